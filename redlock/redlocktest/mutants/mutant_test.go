package main

import (
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

func TestEachMutantAppliesToTheTree(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip(err)
	}
	dir, err := filepath.Abs(root)
	require.NoError(t, err)
	if _, err := os.Stat(filepath.Join(dir, ".git")); err != nil {
		t.Skip(err) // such as in the module cache
	}
	files, err := tracked(t.Context(), dir)
	require.NoError(t, err)
	src, err := read(dir, files)
	require.NoError(t, err)
	all, err := load(".")
	require.NoError(t, err)
	require.NotEmpty(t, all)
	for _, m := range all {
		if _, err := m.plant(src); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}

func TestTheTestsOfEachMutantAreThere(t *testing.T) {
	all, err := load(".")
	require.NoError(t, err)
	require.Empty(t, withoutTests(t, root, all))
}

func TestAMutantWithoutItsTestIsNoticed(t *testing.T) {
	dir, mutants := tiny(t), t.TempDir()
	write(t, mutants, map[string]string{
		"a.mutant": sumReturns("a - b", "TestSum/of_two"),
		"z.mutant": sumReturns("a * b", "TestSum TestNowhere"),
	})
	all, err := load(mutants)
	require.NoError(t, err)
	require.Equal(t, []string{"z: there is no TestNowhere in ./sum"}, withoutTests(t, dir, all))
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
