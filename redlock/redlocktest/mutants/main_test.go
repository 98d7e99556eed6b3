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

const header = `diff --git a/sum/sum.go b/sum/sum.go
--- a/sum/sum.go
+++ b/sum/sum.go
@@ -1,3 +1,3 @@
 package sum
 
`

func TestAPatchSaysWhatIsWrongAndWhoNoticesIt(t *testing.T) {
	m, err := parse([]byte(`The sum is a difference,
which is something else.

Kind: safety
Test: ./sum TestSum TestSum/of_two
Test: ./other TestOther
Tags: some
Flags: -short -v
Chaos: yes

` + header + `-Kind: this is not a header
`))
	require.NoError(t, err)
	of := func(pkg string) setup { return setup{pkg, "some", "-short -v"} }
	require.Equal(t, &mutant{
		fault: "The sum is a difference, which is something else.",
		kind:  "safety",
		tests: []tests{{of("./sum"), []string{"TestSum", "TestSum/of_two"}}, {of("./other"), []string{"TestOther"}}},
		chaos: true,
	}, m)
	require.Equal(t, "go test -tags some -short -v ./sum", of("./sum").String())
}

func TestAPatchThatSaysTooLittleIsRefused(t *testing.T) {
	for text, says := range map[string]string{
		"Kind: safety\nTest: ./sum TestSum\n":               "does not say what the fault is",
		"It is wrong.\nTest: ./sum TestSum\n":               `its Kind is ""`,
		"It is wrong.\nKind: bad\nTest: ./sum TestSum\n":    `its Kind is "bad"`,
		"It is wrong.\nKind: safety\n":                      "it names no Test",
		"It is wrong.\nKind: safety\nTest: ./sum\n":         "its Test is not a package",
		"It is wrong.\nKind: safety\nTest: TestSum\n":       "its Test is not a package",
		"It is wrong.\nKind: safety\nTests: ./sum TestSum":  "Tests is none of",
		"It is wrong.\n" + header + "Kind: safety\nTest: x": `its Kind is ""`,
	} {
		_, err := parse([]byte(text))
		require.ErrorContains(t, err, says, text)
	}
}

func TestExactlyTheNamedTestsAreRun(t *testing.T) {
	run := pattern([]string{"TestSum", "TestAll/of_2+2"})
	require.Equal(t, `^TestSum$|^TestAll$/^of_2\+2$`, run)
}

func TestWhoNoticed(t *testing.T) {
	for said, who := range map[string]string{
		"--- FAIL: TestA (0.00s)\n    --- FAIL: TestA/b (0.00s)\n--- FAIL: TestC (0s)\n": "TestA/b",
		"panic: test timed out after 1m0s\n":                                             "panic: test timed out after 1m0s",
		"--- FAIL: TestA (0.00s)\npanic: boom [recovered]\n":                             "TestA",
		"PASS\n2 goroutines are left\n":                                                  "what is left",
	} {
		require.Equal(t, who, by(said))
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

import "testing"

func TestSum(t *testing.T) {
	if Sum(2, 2) != 4 {
		t.Fatal("not 4")
	}
}

func TestNothing(t *testing.T) {}

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
	return "The sum is wrong.\n\nKind: report\nTest: ./sum " + test + "\n\n" + header +
		"-func Sum(a, b int) int { return a + b }\n+func Sum(a, b int) int { return " + expression + " }\n"
}

func tryTiny(t *testing.T, patches map[string]string) (code int, said string, err error) {
	t.Helper()
	var out strings.Builder
	code, err = tryTinyUntil(t.Context(), t, &out, patches)
	return code, out.String(), err
}

func tryTinyUntil(ctx context.Context, t *testing.T, out io.Writer, patches map[string]string) (code int, err error) {
	t.Helper()
	// Where the copies are made, and must be gone from.
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	t.Setenv("TMP", tmp)
	j := job{root: tiny(t), patches: t.TempDir(), only: regexp.MustCompile(""), atOnce: 2, timeout: time.Minute}
	write(t, j.patches, patches)
	code, err = j.do(ctx, out)
	left, globErr := filepath.Glob(filepath.Join(tmp, "redburst-mutants-*"))
	require.NoError(t, globErr)
	require.Empty(t, left, "a copy is left")
	return code, err
}

func TestEachMutantIsJudged(t *testing.T) {
	code, said, err := tryTiny(t, map[string]string{
		"good.patch":    sumReturns("a - b", "TestSum"),
		"blind.patch":   sumReturns("a - b", "TestNothing"),
		"equal.patch":   sumReturns("b + a", "TestSum TestNothing"),
		"panics.patch":  sumReturns("**new(*int)", "TestSum"),
		"garbage.patch": sumReturns("a +", "TestSum"),
		"moved.patch":   strings.Replace(sumReturns("a - b", "TestSum"), "{ return a + b }", "{ return a+b }", 1),
	})
	require.NoError(t, err)
	require.Equal(t, 1, code)
	require.Contains(t, said, "passed           without a mutant: go test ./sum: 2 tests")
	require.Regexp(t, `(?m)^noticed +good +report +TestSum \(`, said)
	require.Regexp(t, `(?m)^noticed +panics +report +TestSum \(`, said)
	require.Contains(t, said, "\n6 mutants in ")
	require.Contains(t, said, "\nnoticed: 2\n")
	require.Contains(t, said, "\nNOT NOTICED: 2: blind, equal\n")
	require.Contains(t, said, "\nDOES NOT APPLY: 1: moved\n")
	require.Contains(t, said, "\nDOES NOT COMPILE: 1: garbage\n")
}

func TestAllNoticedIsSuccess(t *testing.T) {
	code, said, err := tryTiny(t, map[string]string{"good.patch": sumReturns("a - b", "TestSum")})
	require.NoError(t, err)
	require.Equal(t, 0, code, said)
}

// The tiny module has a chaos of its own, which notices a sum that is not 4, with the second seed.
func TestChaosIsToNoticeHalf(t *testing.T) {
	of := func(expression, chaos string) string {
		return strings.Replace(sumReturns(expression, "TestNothing"), "Kind: report\n", "Kind: safety\n"+chaos, 1)
	}
	all := map[string]string{
		"good.patch":   of("a - b", "Chaos: yes\n"),
		"missed.patch": of("b + a", "Chaos: yes\n"),
		"other.patch":  sumReturns("a - b", "TestSum"),
	}
	code, said, err := tryTinyChaos(t, all)
	require.NoError(t, err)
	require.Zero(t, code, said)
	require.Contains(t, said, "passed           without a mutant: 3 runs of chaos")
	require.Regexp(t, `(?m)^noticed +good +safety +seed 2: the sum is 0 \(`, said)
	require.Regexp(t, `(?m)^NOT NOTICED +missed +safety`, said)
	require.NotContains(t, said, "other")
	require.Contains(t, said, "\nchaos has noticed 1 of 2 that break safety\n")

	all["unlikely.patch"] = of("a - b", "")
	code, said, err = tryTinyChaos(t, all)
	require.NoError(t, err)
	require.Equal(t, 1, code, "1 of 3 is less than half")
	require.Contains(t, said, "\nchaos has noticed 1 of 3 that break safety\n")
}

func tryTinyChaos(t *testing.T, patches map[string]string) (code int, said string, err error) {
	t.Helper()
	j := job{root: tiny(t), patches: t.TempDir(), only: regexp.MustCompile(""), atOnce: 1, chaos: true}
	write(t, j.patches, patches)
	write(t, j.root, map[string]string{"redlock/redlocktest/chaos/main.go": `package main

import (
	"fmt"
	"os"
	"tiny/sum"
)

func main() {
	if s := sum.Sum(2, 2); s != 4 && os.Args[4] == "2" {
		fmt.Printf("  VIOLATION      the sum is %d\n", s)
		os.Exit(1)
	}
}
`})
	var out strings.Builder
	code, err = j.do(t.Context(), &out)
	return code, out.String(), err
}

func TestTestsThatDoNotPassAnywayNoticeNothing(t *testing.T) {
	for test, says := range map[string]string{
		"TestWrong":   "does not pass",
		"TestSkipped": "does not run TestSkipped, or skips it",
		"TestNowhere": "does not run TestNowhere, or skips it",
	} {
		code, _, err := tryTiny(t, map[string]string{"good.patch": sumReturns("a - b", "TestSum "+test)})
		require.ErrorContains(t, err, says)
		require.Equal(t, 2, code)
	}
}

// An interrupt is a context that ends.
func TestAnInterruptLeavesNoCopy(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	code, err := tryTinyUntil(ctx, t, endsAtAWord{cancel}, map[string]string{"good.patch": sumReturns("a - b", "TestSum")})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 2, code)
}

// endsAtAWord ends a context as soon as something is said.
type endsAtAWord struct{ end context.CancelFunc }

func (e endsAtAWord) Write(p []byte) (int, error) {
	e.end()
	return len(p), nil
}
