package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"go/doc"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// What the README shows is what is run here, for each case that it is meant for.

func inOne(ctx context.Context, client *redlock.Client, work func(context.Context) error) error {
	return client.Do(ctx, "lock:orders:42", 10*time.Second, work) // as its program does
}

func acquired(ctx context.Context, client *redlock.Client, work func(context.Context) error) error {
	// README
	held, release, err := client.Acquire(ctx, "lock:orders:42", 10*time.Second)
	if err != nil { // ctx has ended before
		return err
	}
	defer release() // also if the work panics
	if err := work(held); err != nil {
		return err
	}
	return release() // ErrLost: another may have held it meanwhile, so the work does not count
	// end
}

// answer asks for the errors in the order that the README advises.
func answer(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	switch {
	case errors.Is(err, redlock.ErrHeld):
		code = http.StatusConflict
	case errors.Is(err, redlock.ErrNoQuorum):
		code = http.StatusServiceUnavailable // Stats.NoQuorum counts these: set an alert on it
	case errors.Is(err, context.DeadlineExceeded):
		code = http.StatusGatewayTimeout
	}
	http.Error(w, http.StatusText(code), code)
}

func TestReadmeShowsWhatIsRunHere(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	source, err := os.ReadFile("readme_test.go")
	require.NoError(t, err)
	shown := regexp.MustCompile(`(?s)\n\t// README\n(.*?)\t// end\n`).FindAllStringSubmatch(string(source), -1)
	require.Len(t, shown, 1)
	for _, m := range shown {
		text := strings.ReplaceAll("\n"+m[1], "\n\t", "\n")[1:]
		require.Contains(t, string(readme), text)
	}
}

// The README's program is that of the example: whoever pastes it has what pkg.go.dev shows. It runs.
func TestReadmeProgram(t *testing.T) {
	t.Parallel()
	const file = "example_program_test.go"
	fset := token.NewFileSet()
	parsed, err := parser.ParseFile(fset, file, nil, parser.ParseComments)
	require.NoError(t, err)
	examples := doc.Examples(parsed)
	require.Len(t, examples, 1, "it alone is in its file, so all of the file is shown")
	var program strings.Builder
	require.NoError(t, format.Node(&program, fset, examples[0].Play))
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	before, _, found := strings.Cut(string(readme), "```go\n"+program.String()+"```\n")
	require.True(t, found, "the README has the program:\n%s", program.String())
	require.Less(t, strings.Count(before, "\n"), 12, "at its top")

	source, dir := program.String(), t.TempDir()
	masters := redlocktest.Start(t, 3)
	for i := range masters.N() {
		addr := fmt.Sprintf("127.0.0.1:700%d", i+1)
		require.Equal(t, 1, strings.Count(source, addr))
		source = strings.Replace(source, addr, masters.Addr(i), 1)
	}
	require.Equal(t, 1, strings.Count(source, "5 * time.Second"))
	source = strings.Replace(source, "5 * time.Second", "0", 1)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o666))
	out, err := exec.Command("go", "run", filepath.Join(dir, "main.go")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "this process alone is at work\n", string(out))
}

// The documented ACL is for keys that begin with "lock:", so the names in all examples do.
func TestExamplesNameLocksThatTheACLAllows(t *testing.T) {
	t.Parallel()
	names := regexp.MustCompile(`\.(?:NewMutex|Do|Lead|Watch|Holders)\((?:ctx, )?"(\w[^"]*)"`)
	var files []string
	for _, pattern := range []string{"example*_test.go", "doc.go", "docs/*.md", "../README.md", "examples/*/*_test.go"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		files = append(files, found...)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range names.FindAllSubmatch(text, -1) {
			require.True(t, strings.HasPrefix(string(m[1]), "lock:"), "%s: %s", file, m[0])
		}
	}
}

// What CONTRIBUTING links to is there, so are its targets, and it has every step of the gate.
// Each line of the table of who is trusted names tests, and all that the page names are there.
func TestSecurityNamesItsTests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../.github/SECURITY.md")
	require.NoError(t, err)
	there := map[string]bool{}
	require.NoError(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(source, -1) {
			there[string(m[1])] = true
		}
		return err
	}))
	named := regexp.MustCompile("`(Test\\w+)`")
	rows, _, _ := strings.Cut(string(text[strings.Index(string(text), "| who |"):]), "\n\n")
	lines := strings.Split(rows, "\n")[2:]
	require.Greater(t, len(lines), 10)
	for _, line := range lines {
		require.True(t, named.MatchString(line) || strings.HasSuffix(line, "| - |"), line)
	}
	for _, m := range named.FindAllSubmatch(text, -1) {
		require.True(t, there[string(m[1])], "%s is no test", m[1])
	}
}

func TestContributingNamesWhatThereIs(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("..", name))
		require.NoError(t, err)
		return string(text)
	}
	text, makefile := read(".github/CONTRIBUTING.md"), read("Makefile")
	links := regexp.MustCompile(`\]\(([^:)]+)\)`).FindAllStringSubmatch(text, -1)
	require.NotEmpty(t, links)
	for _, m := range links {
		require.FileExists(t, filepath.Join("../.github", m[1]))
	}
	targets := regexp.MustCompile("`make ([a-z-]+)`").FindAllStringSubmatch(text, -1)
	require.NotEmpty(t, targets)
	for _, m := range targets {
		require.Regexp(t, `(?m)^`+m[1]+`:.* ## `, makefile, "a documented target")
	}
	steps := regexp.MustCompile(`(?m)^\s*step make (.+)$`).FindAllStringSubmatch(read(".ci/run"), -1)
	require.NotEmpty(t, steps)
	for _, m := range steps {
		for target := range strings.FieldsSeq(m[1]) {
			if !strings.Contains(target, "=") {
				require.Contains(t, text, "| `make "+target+"` |", "a step of the gate")
			}
		}
	}
}

// What is left out with the race detector is run without it: make test names its package and, but for those that are run whole, it.
func TestWhatIsNotForTheRaceDetectorIsRunWithoutIt(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	whole := regexp.MustCompile(`(?m)^\tCI=true \$\(GO\) test -shuffle=on (\./.*)$`).FindSubmatch(makefile)
	some := regexp.MustCompile(`(?m)^\tCI=true \$\(GO\) test -short -run '([^']+)' (\./conn .*)$`).FindSubmatch(makefile)
	require.NotNil(t, whole)
	require.NotNil(t, some)
	run := regexp.MustCompile(string(some[1]))
	found := 0
	require.NoError(t, filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != ".." {
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil || strings.HasPrefix(d.Name(), ".") {
				return fs.SkipDir
			}
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		if !strings.HasPrefix(string(text), "//go:build !race") {
			return nil
		}
		dir := "./" + filepath.ToSlash(filepath.Dir(strings.TrimPrefix(filepath.ToSlash(path), "../")))
		if slices.ContainsFunc(strings.Fields(string(whole[1])), func(p string) bool {
			tree, all := strings.CutSuffix(p, "/...")
			return p == dir || all && (dir == tree || strings.HasPrefix(dir, tree+"/"))
		}) {
			return nil
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)`).FindAllStringSubmatch(string(text), -1) {
			found++
			require.Contains(t, strings.Fields(string(some[2])), dir, path)
			require.Regexp(t, run, m[1], path)
		}
		return nil
	}))
	require.Greater(t, found, 10)
}

func TestReadmeIsRightInEachCase(t *testing.T) {
	t.Parallel()
	var working error = errors.New("the work's own")
	code := func(err error) int {
		w := httptest.NewRecorder()
		answer(w, err)
		return w.Code
	}
	for name, do := range map[string]func(context.Context, *redlock.Client, func(context.Context) error) error{
		"in one": inOne, "acquired": acquired,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			masters, client := started(t, 3)
			budget := func(d time.Duration) context.Context {
				ctx, cancel := context.WithTimeout(t.Context(), d)
				t.Cleanup(cancel)
				return ctx
			}
			fine := func(context.Context) error { return nil }
			// patient does it with a longer budget if a busy machine has not answered by then.
			patient := func(want int) error {
				for d := 200 * time.Millisecond; ; d *= 2 {
					if err := do(budget(d), client, fine); code(err) == want || d > 20*time.Second {
						return err
					}
				}
			}
			require.NoError(t, do(t.Context(), client, fine))
			require.Equal(t, working, do(t.Context(), client, func(context.Context) error { return working }))

			// Lost in the middle, and another has it: noticed while it works, or only at its end.
			other := openOn(t, masters, nil)
			for _, notices := range []bool{true, false} {
				theirs := other.NewMutex("lock:orders:42", long)
				err := do(t.Context(), client, func(ctx context.Context) error {
					steals(t, masters, theirs)
					if notices {
						conntest.Soon(t, "the loss is noticed", ctx.Done())
					}
					return nil
				})
				require.Error(t, err)
				require.True(t, errors.Is(err, redlock.ErrLost) || errors.Is(err, redlock.ErrNotHeld), "%v", err)
				require.Equal(t, http.StatusInternalServerError, code(err))

				// Held, with a budget that runs out.
				err = patient(http.StatusConflict)
				require.Equal(t, http.StatusConflict, code(err), "%v", err)
				require.NoError(t, theirs.Unlock(t.Context()))
			}

			// Cancelled before, and while it works: it is released all the same.
			ctx, cancel := context.WithCancel(t.Context())
			err := do(ctx, client, func(ctx context.Context) error {
				cancel()
				conntest.Soon(t, "the context ends", ctx.Done())
				return ctx.Err()
			})
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, redlock.ErrLost)
			require.ErrorIs(t, do(ctx, client, fine), context.Canceled)
			redlock.SoonSays(t, masters, 0, int64(0), "EXISTS", "lock:orders:42")

			// No time at all, with healthy masters.
			err = do(budget(time.Nanosecond), client, fine)
			require.Equal(t, http.StatusGatewayTimeout, code(err), "%v", err)

			// Too few.
			masters.Kill(0)
			masters.Kill(1)
			reaches(t, client, 0, "down")
			reaches(t, client, 1, "down")
			err = patient(http.StatusServiceUnavailable)
			require.Equal(t, http.StatusServiceUnavailable, code(err), "%v", err)
		})
	}
}
