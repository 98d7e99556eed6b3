package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is that of the module, from here.
const root = "../../.."

func TestEachPatchAppliesToTheTree(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip(err)
	}
	dir, err := filepath.Abs(root)
	require.NoError(t, err)
	if _, err := os.Stat(filepath.Join(dir, ".git")); err != nil {
		t.Skip(err) // such as in the module cache
	}
	all, err := load(".")
	require.NoError(t, err)
	require.NotEmpty(t, all)
	require.Empty(t, unapplicable(t.Context(), t, tree{dir: dir}, all))
}

func TestTheTestsOfEachPatchAreThere(t *testing.T) {
	all, err := load(".")
	require.NoError(t, err)
	require.Empty(t, withoutTests(t, root, all))
}

func TestAPatchThatNoLongerFitsIsNoticed(t *testing.T) {
	dir, patches := tiny(t), t.TempDir()
	good := sumReturns("a - b", "TestSum/of_two")
	write(t, patches, map[string]string{
		"a.patch":     good,
		"moved.patch": strings.Replace(good, "{ return a + b }", "{ return a+b }", 1),
		"z.patch":     sumReturns("a * b", "TestSum TestNowhere"),
	})
	all, err := load(patches)
	require.NoError(t, err)
	require.Equal(t, []string{"moved"}, unapplicable(t.Context(), t, tree{dir: dir}, all))
	require.Equal(t, []string{"z: there is no TestNowhere in ./sum"}, withoutTests(t, dir, all))
}

// unapplicable returns the names of those that do not apply to the tree. One run of git looks at
// each of them by itself. It ends at the first that does not apply, so then each gets its own.
func unapplicable(ctx context.Context, t *testing.T, at tree, all []*mutant) (names []string) {
	t.Helper()
	var paths []string
	for _, m := range all {
		path, err := filepath.Abs(m.path)
		require.NoError(t, err)
		paths = append(paths, path)
	}
	if _, err := output(command(ctx, at.dir, "git", append([]string{"apply", "--check"}, paths...)...)); err == nil {
		return nil
	}
	for i, m := range all {
		if err := at.apply(ctx, paths[i], "--check"); err != nil {
			t.Log(err)
			names = append(names, m.name)
		}
	}
	return names
}

// withoutTests says which tests are named and not there.
func withoutTests(t *testing.T, root string, all []*mutant) (missing []string) {
	t.Helper()
	texts := map[string]string{}
	for _, m := range all {
		for _, ts := range m.tests {
			if texts[ts.pkg] == "" {
				texts[ts.pkg] = testFiles(t, filepath.Join(root, ts.pkg))
			}
			for _, name := range ts.names {
				name, _, _ = strings.Cut(name, "/")
				if !strings.Contains(texts[ts.pkg], "\nfunc "+name+"(") {
					missing = append(missing, fmt.Sprintf("%s: there is no %s in %s", m.name, name, ts.pkg))
				}
			}
		}
	}
	return missing
}

// testFiles returns the text of all tests of a package.
func testFiles(t *testing.T, dir string) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	var all strings.Builder
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		all.Write(text)
	}
	return all.String()
}
