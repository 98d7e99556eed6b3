package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAMutantSaysWhatIsWrongAndWhoNoticesIt(t *testing.T) {
	m, err := parse(`The sum is a difference,
which is something else.

Breaks: safety
Way: second time
Test: ./sum TestSum TestSum/of_two
Test: ./other TestOther
Tags: some
Flags: -short -v
Chaos: yes

--- old
	return a + b
}
--- new
Breaks: this is not a header
--- old
x

y
--- new
`)
	require.NoError(t, err)
	of := func(pkg string) setup { return setup{pkg, "some", "-short -v"} }
	require.Equal(t, &mutant{
		fault:  "The sum is a difference, which is something else.",
		breaks: "safety",
		way:    "second time",
		swaps:  []swap{{"\treturn a + b\n}\n", "Breaks: this is not a header\n"}, {"x\n\ny\n", ""}},
		tests:  []tests{{of("./sum"), []string{"TestSum", "TestSum/of_two"}}, {of("./other"), []string{"TestOther"}}},
		chaos:  true,
	}, m)
	require.Equal(t, "go test -tags some -short -v ./sum", of("./sum").String())
}

func TestAMutantThatSaysTooLittleIsRefused(t *testing.T) {
	const swap = "--- old\nx\n--- new\ny\n"
	for text, says := range map[string]string{
		"Breaks: safety\nTest: ./sum TestSum\n" + swap:                                "does not say what the fault is",
		"It is wrong.\nTest: ./sum TestSum\n" + swap:                                  `it Breaks ""`,
		"It is wrong.\nBreaks: bad\nTest: ./sum TestSum\n" + swap:                     `it Breaks "bad"`,
		"It is wrong.\nBreaks: safety\nWay: bad\nTest: ./sum TestSum\n" + swap:        `its Way is "bad"`,
		"It is wrong.\nBreaks: safety\n" + swap:                                       "it names no Test",
		"It is wrong.\nBreaks: safety\nTest: ./sum\n" + swap:                          "its Test is not a package",
		"It is wrong.\nBreaks: safety\nTest: TestSum\n" + swap:                        "its Test is not a package",
		"It is wrong.\nBreaks: safety\nTests: ./sum TestSum\n" + swap:                 "Tests is none of",
		"It is wrong.\nBreaks: safety\nTest: ./sum TestSum\n":                         "no old and new text",
		"It is wrong.\n--- new\ny\n":                                                  "no old one before it",
		"It is wrong.\nBreaks: safety\nTest: ./sum TestSum\n--- old\nx\n--- new\nx\n": "as the new one",
		"It is wrong.\nBreaks: safety\nTest: ./sum TestSum\n--- old\n\n--- new\nx\n":  "old text is empty",
		"It is wrong.\n" + swap + "Breaks: safety\nTest: x":                           `it Breaks ""`,
	} {
		_, err := parse(text)
		require.ErrorContains(t, err, says, text)
	}
}

func TestATextIsFoundWhereverItStandsAndOnlyThere(t *testing.T) {
	m := &mutant{swaps: []swap{{"b\n", "B\n"}, {"y\nz\n", ""}, {"d\n", "D\nD\n"}}}
	changed, err := m.plant(sources{"one": "a\nb\nbb\nc\nd\n", "deep/two": "x\ny\nz\n", "three": "a\n"})
	require.NoError(t, err)
	require.Equal(t, sources{"one": "a\nB\nbb\nc\nD\nD\n", "deep/two": "x\n"}, changed)

	_, err = m.plant(sources{"one": "a\nb\nd\n", "two": "b\n", "three": "y\nz\n"})
	require.ErrorContains(t, err, "stands in 2 places, not in one: one:2 two:1")
	_, err = m.plant(sources{"one": "ab\n b\nd\ny\nz\n"})
	require.ErrorContains(t, err, "stands in 0 places")
	m = &mutant{swaps: []swap{{"a\nb\n", ""}, {"b\nc\n", ""}}}
	_, err = m.plant(sources{"one": "a\nb\nc\n"})
	require.ErrorContains(t, err, "overlap")
}

func TestExactlyTheNamedTestsAreRun(t *testing.T) {
	run := pattern([]string{"TestSum", "TestAll/of_2+2"})
	require.Equal(t, `^TestSum$|^TestAll$/^of_2\+2$`, run)
}

func TestWhoNoticed(t *testing.T) {
	for said, want := range map[string][2]string{
		"--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/b (0.00s)\n--- FAIL: TestC (0s)\n": {"TestA/b", "assertion"},
		"panic: test timed out after 1m0s\n":                                             {"panic: test timed out after 1m0s", "deadline"},
		"--- FAIL: TestA (0.00s)\npanic: test timed out after 1m0s\n":                    {"TestA", "assertion"},
		"--- FAIL: TestA (0.00s)\npanic: boom [recovered]\n":                             {"TestA", "panic"},
		"panic: boom\n":                 {"panic: boom", "panic"},
		"PASS\n2 goroutines are left\n": {"what is left", "assertion"},
	} {
		who, how := by(said)
		require.Equal(t, want, [2]string{who, how}, said)
	}
}

// tiny is a module with a package and its tests, known to git.
func tiny(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	root := t.TempDir()
	write(t, root, map[string]string{
		"go.mod":     "module tiny\n\ngo 1.26\n",
		"sum/sum.go": "package sum\n\nfunc Sum(a, b int) int { return a + b }\n",
		"sum/sum_test.go": `package sum

import (
	"testing"
	"time"
)

func TestSum(t *testing.T) {
	if Sum(2, 2) != 4 {
		t.Fatal("not 4")
	}
}

func TestNothing(t *testing.T) {}

func TestEnds(t *testing.T) {
	for Sum(2, 2) != 4 {
		time.Sleep(time.Millisecond)
	}
}

func TestWrong(t *testing.T) { t.Fail() }

func TestSkipped(t *testing.T) { t.Skip() }
`,
	})
	_, err := output(command(t.Context(), root, "git", "init", "-q"))
	require.NoError(t, err)
	_, err = output(command(t.Context(), root, "git", "add", "."))
	require.NoError(t, err)
	return root
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
}

// sumReturns is a mutant of tiny.
func sumReturns(expression, test string) string {
	return "The sum is wrong.\n\nBreaks: report\nTest: ./sum " + test + "\n\n" +
		"--- old\nfunc Sum(a, b int) int { return a + b }\n--- new\nfunc Sum(a, b int) int { return " + expression + " }\n"
}

func tryTiny(t *testing.T, mutants map[string]string) (code int, said string, err error) {
	t.Helper()
	var out strings.Builder
	code, err = tryTinyUntil(t.Context(), t, &out, mutants)
	return code, out.String(), err
}

func tryTinyUntil(ctx context.Context, t *testing.T, out io.Writer, mutants map[string]string) (code int, err error) {
	t.Helper()
	// Where the copies are made, and must be gone from.
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	t.Setenv("TMP", tmp)
	j := job{root: tiny(t), mutants: t.TempDir(), only: regexp.MustCompile(""), area: regexp.MustCompile(""), atOnce: 2, timeout: 5 * time.Second}
	write(t, j.mutants, mutants)
	code, err = j.do(ctx, out)
	left, globErr := filepath.Glob(filepath.Join(tmp, "redburst-mutants-*"))
	require.NoError(t, globErr)
	require.Empty(t, left, "a copy is left")
	return code, err
}

func TestEachMutantIsJudged(t *testing.T) {
	code, said, err := tryTiny(t, map[string]string{
		"good.mutant":    sumReturns("a - b", "TestSum"),
		"blind.mutant":   sumReturns("a - b", "TestNothing"),
		"equal.mutant":   sumReturns("b + a", "TestSum TestNothing"),
		"panics.mutant":  sumReturns("**new(*int)", "TestSum"),
		"garbage.mutant": sumReturns("a +", "TestSum"),
		"hangs.mutant":   sumReturns("a - b", "TestEnds"),
		"moved.mutant":   strings.Replace(sumReturns("a - b", "TestSum"), "{ return a + b }", "{ return a+b }", 1),
		"wrong.mutant":   sumReturns("a - b", "TestSum TestWrong"),
		"skipped.mutant": sumReturns("a - b", "TestSum TestSkipped"),
		"nowhere.mutant": sumReturns("a - b", "TestSum TestNowhere"),
	})
	require.NoError(t, err)
	require.Equal(t, 1, code)
	require.Regexp(t, `(?m)^noticed +good +report +TestSum: assertion \(\d+\.\ds\)$`, said)
	require.Regexp(t, `(?m)^noticed +panics +report +TestSum: panic \(`, said)
	require.Regexp(t, `(?m)^DEADLINE ALONE +hangs +report +panic: test timed out after 5s: deadline \(`, said)
	require.Contains(t, said, "go test ./sum does not pass")
	require.Contains(t, said, "does not run TestSkipped, or skips it")
	require.Contains(t, said, "does not run TestNowhere, or skips it")
	require.Contains(t, said, "\n10 mutants in ")
	require.Contains(t, said, "\nnoticed: 2\n")
	require.Contains(t, said, "\nNOT NOTICED: 2: blind, equal\n")
	require.Contains(t, said, "\nDEADLINE ALONE: 1: hangs\n")
	require.Contains(t, said, "\nDOES NOT APPLY: 1: moved\n")
	require.Contains(t, said, "\nDOES NOT COMPILE: 1: garbage\n")
	require.Contains(t, said, "\nFAILS WITHOUT IT: 3: nowhere, skipped, wrong\n")
}

// What is compiled for a mutant is the tests that are to notice it, with what they call, and nothing that only others call. It
// stands in the same lines.
func TestOtherTestsAreNotCompiled(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{
		"go.mod": "module tiny\n\ngo 1.26\n",
		"sum/sum_test.go": `package sum

import (
	"os"
	"testing"
	"time"
)

func TestMain(m *testing.M) { begin(); os.Exit(m.Run()) }

// TestSum calls what is in another file.
func TestSum(t *testing.T) { helped(t) }

// TestOther alone needs the time.
func TestOther(t *testing.T) {
	slept()
	time.Sleep(0)
}
`,
		"sum/helper_test.go": `package sum

import (
	"testing"
	"time"
)

type sleeper struct{}

func (sleeper) Sleep() { slept() }

func begin() {}

func helped(t *testing.T) { panic("in line 14") }

func slept() { time.Sleep(0) }

func TestLast(t *testing.T) { unknown() }
`,
		"sum/outer_test.go": "package sum_test\n\nimport \"testing\"\n\nfunc TestOuter(t *testing.T) { unknown() }\n",
	})
	tr, s := tree{root, t.TempDir()}, setup{pkg: "./sum"}
	overlay, err := tr.prune(s, []string{"TestSum/of_two"})
	require.NoError(t, err)
	require.NoError(t, tr.compile(t.Context(), s, "", "-overlay", overlay))
	said, err := tr.run(t.Context(), s, "", []string{"TestSum", "TestOther"}, time.Minute, "-test.v")
	require.Error(t, err)
	require.Contains(t, said, "helper_test.go:14")
	require.NotContains(t, said, "RUN   TestOther")
}

func TestAllNoticedIsSuccess(t *testing.T) {
	code, said, err := tryTiny(t, map[string]string{"good.mutant": sumReturns("a - b", "TestSum")})
	require.NoError(t, err)
	require.Equal(t, 0, code, said)
}

// The tiny module has a chaos of its own, which notices a sum that is not 4, with the second seed. It cannot be done if
// that is 3.
func TestChaosIsToNoticeHalf(t *testing.T) {
	of := func(expression, chaos string) string {
		return strings.Replace(sumReturns(expression, "TestNothing"), "Breaks: report\n", "Breaks: safety\n"+chaos, 1)
	}
	all := map[string]string{
		"good.mutant":   of("a - b", "Chaos: yes\n"),
		"more.mutant":   of("a*b + 1", "Chaos: yes\n"),
		"missed.mutant": of("b + a", "Chaos: yes\n"),
		"less.mutant":   of("a + b - 1", "Chaos: yes\n"),
		"other.mutant":  sumReturns("a - b", "TestSum"),
	}
	code, said, err := tryTinyChaos(t, all)
	require.NoError(t, err)
	require.Zero(t, code, said)
	require.Contains(t, said, "passed           without a mutant: 3 runs of chaos")
	require.Regexp(t, `(?m)^noticed +good +safety +seed 2: the sum is 0$`, said)
	require.Regexp(t, `(?m)^noticed +more +safety +seed 2: the sum is 5$`, said)
	require.Regexp(t, `(?m)^NOT NOTICED +missed +safety`, said)
	require.Regexp(t, `(?m)^NO CHAOS +less +safety +seed 2: exit status 2\nthere is no chaos$`, said)
	require.NotContains(t, said, "other")
	require.Contains(t, said, "\nchaos has noticed 2 of 4 that break safety\n")

	all["unlikely.mutant"] = of("a - b", "")
	code, said, err = tryTinyChaos(t, all)
	require.NoError(t, err)
	require.Equal(t, 1, code, "2 of 5 is less than half")
	require.Contains(t, said, "\nchaos has noticed 2 of 5 that break safety\n")
}

func tryTinyChaos(t *testing.T, mutants map[string]string) (code int, said string, err error) {
	t.Helper()
	j := job{root: tiny(t), mutants: t.TempDir(), only: regexp.MustCompile(""), area: regexp.MustCompile(""), atOnce: 1, chaos: true}
	write(t, j.mutants, mutants)
	write(t, j.root, map[string]string{"redlock/redlocktest/chaos/main.go": `package main

import (
	"fmt"
	"os"
	"tiny/sum"
)

func main() {
	if s := sum.Sum(2, 2); s != 4 && os.Args[4] == "2" {
		if s == 3 {
			fmt.Println("there is no chaos")
			os.Exit(2)
		}
		what := "VIOLATION"
		if s > 4 {
			what = "DISORDER "
		}
		fmt.Printf("  %s      the sum is %d\n", what, s)
		os.Exit(1)
	}
}
`})
	var out strings.Builder
	code, err = j.do(t.Context(), &out)
	return code, out.String(), err
}

// git runs git in a tree, as somebody, and returns what it says.
func git(t *testing.T, root string, args ...string) string {
	t.Helper()
	out, err := output(command(t.Context(), root, "git", append([]string{"-c", "user.name=a", "-c", "user.email=a@b"}, args...)...))
	require.NoError(t, err)
	return out
}

func TestAChangeChoosesMutants(t *testing.T) {
	mutants := map[string]string{
		"one.mutant": sumReturns("a - b", "TestSum"),
		"two.mutant": "It is one less.\n\nBreaks: report\nTest: ./sum TestSum\n\n--- old\n\t// two\n--- new\n\t// 2\n",
	}
	j := job{root: tiny(t), mutants: t.TempDir(), only: regexp.MustCompile(""), area: regexp.MustCompile(""), list: true, change: "HEAD"}
	write(t, j.mutants, mutants)
	write(t, j.root, map[string]string{"sum/two.go": "package sum\n\nfunc Two() int {\n\t// two\n\treturn 2\n}\n"})
	git(t, j.root, "add", ".")
	git(t, j.root, "commit", "-qm", "all")
	list := func() string {
		var out strings.Builder
		code, err := j.do(t.Context(), &out)
		require.NoError(t, err)
		require.Zero(t, code)
		return out.String()
	}
	require.Equal(t, "no mutant's text differs from HEAD\n", list())
	write(t, j.root, map[string]string{"sum/two.go": "package sum\n\nfunc Two() int {\n\t// two\n\treturn 1 + 1\n}\n"})
	require.Equal(t, "no mutant's text differs from HEAD\n", list(), "the line below differs")
	write(t, j.root, map[string]string{"sum/two.go": "package sum\n\nfunc Two() int {\n\n\t// two\n\treturn 2\n}\n"})
	require.Equal(t, "no mutant's text differs from HEAD\n", list(), "it stands elsewhere")
	write(t, j.root, map[string]string{"sum/two.go": "package sum\n\nfunc Two() int {\n\t// two\n\t// two\n\treturn 2\n}\n"})
	require.Contains(t, list(), "two ", "it does not apply any more")
	write(t, j.root, map[string]string{"sum/two.go": "package sum\n\n// two\n\nfunc Two() int { return 2 }\n",
		"sum/sum.go": "package sum\n\nfunc Sum(a, b int) int { return a + b }\n\nfunc Two() int {\n\t// two\n\treturn 2\n}\n"})
	require.NotContains(t, list(), "one  ")
	require.Contains(t, list(), "two  ", "it has moved")

	j.change, j.area = "", regexp.MustCompile("^sum/s")
	require.Contains(t, list(), "one  ")
	write(t, j.root, map[string]string{"other/two.go": "package other\n\n// one\n", "sum/sum.go": "package sum\n\nfunc Sum(a, b int) int { return a + b }\n",
		"sum/two.go": "package sum\n\nfunc Two() int {\n\t// two\n\treturn 2\n}\n"})
	require.NotContains(t, list(), "two  ", "its text is in another file")
}

func TestTheNewestIsTriedFirst(t *testing.T) {
	j := job{root: tiny(t), only: regexp.MustCompile(""), area: regexp.MustCompile(""), list: true, change: "HEAD", within: 1}
	j.mutants = j.root
	git(t, j.root, "add", ".")
	git(t, j.root, "commit", "-qm", "all")
	j.change = strings.TrimSpace(git(t, j.root, "rev-parse", "HEAD"))
	for _, name := range []string{"one", "two", "three", "four"} {
		write(t, j.root, map[string]string{name + ".mutant": sumReturns("a - b", "TestSum")})
		git(t, j.root, "add", ".")
		if name != "four" {
			git(t, j.root, "commit", "-qm", name)
		}
	}
	write(t, j.root, map[string]string{"sum/sum.go": "package sum\n\nfunc Sum(a, b int) int { return a + b }\n\n// more\n"})
	var out strings.Builder
	code, err := j.do(t.Context(), &out)
	require.NoError(t, err)
	require.Zero(t, code)
	require.Regexp(t, `(?s)^four .*\nthree .*\ntwo .*\none .*\n$`, out.String())
}

func TestWhatIsNotTriedInTimeIsSaid(t *testing.T) {
	j := job{root: tiny(t), mutants: t.TempDir(), only: regexp.MustCompile(""), area: regexp.MustCompile(""), within: 1}
	write(t, j.mutants, map[string]string{"one.mutant": sumReturns("a - b", "TestNothing"), "two.mutant": sumReturns("a - b", "TestNothing")})
	time.Sleep(time.Millisecond)
	var out strings.Builder
	code, err := j.do(t.Context(), &out)
	require.NoError(t, err)
	require.Zero(t, code)
	require.Contains(t, out.String(), "not tried: 2\n")
}

// An interrupt is a context that ends.
func TestAnInterruptLeavesNoCopy(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	mutants := map[string]string{}
	for _, name := range []string{"a", "b", "c", "d"} {
		mutants[name+".mutant"] = sumReturns("a - b", "TestSum")
	}
	code, err := tryTinyUntil(ctx, t, endsAtAWord{cancel}, mutants)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 2, code)
}

// endsAtAWord ends a context as soon as something is said.
type endsAtAWord struct{ end context.CancelFunc }

func (e endsAtAWord) Write(p []byte) (int, error) {
	e.end()
	return len(p), nil
}
