package main

import (
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
	for _, m := range all {
		path, err := filepath.Abs(m.path)
		require.NoError(t, err)
		require.NoError(t, tree{dir: dir}.apply(t.Context(), path, "--check"))
	}
}

func TestTheTestsOfEachPatchAreThere(t *testing.T) {
	all, err := load(".")
	require.NoError(t, err)
	texts := map[string]string{}
	for _, m := range all {
		for _, ts := range m.tests {
			if texts[ts.pkg] == "" {
				texts[ts.pkg] = testFiles(t, filepath.Join(root, ts.pkg))
			}
			for _, name := range ts.names {
				name, _, _ = strings.Cut(name, "/")
				require.Contains(t, texts[ts.pkg], "\nfunc "+name+"(", "%s: %s", m.name, ts.pkg)
			}
		}
	}
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
