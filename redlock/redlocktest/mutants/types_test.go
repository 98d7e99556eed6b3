//go:build !race

package main

import (
	"encoding/json"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A mutant that does not compile any more notices nothing, and is not noticed until somebody runs it. So each function that one
// changes is checked here, beside the declarations of its package.
func TestEachMutantOfThisModuleHasItsTypes(t *testing.T) {
	src, all := theTree(t)
	packages, export := compiled(t)
	importing := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(export[path]) })
	checked := 0
	for _, m := range all {
		changed, err := m.plant(src)
		require.NoError(t, err)
		of := map[string]bool{}
		for file := range changed {
			of[filepath.Dir(file)] = true
		}
		for dir := range of {
			if names, ours := packages[dir]; ours {
				checked++
				if err := typed(dir, names, src, changed, importing); err != nil {
					t.Errorf("%s: %v", m.name, err)
				}
			}
		}
	}
	require.Greater(t, checked, len(all)/2)
}

// compiled returns the files of each package of the module, by its directory there, and where the compiler has put what the
// packages that it needs export.
func compiled(t *testing.T) (files map[string][]string, export map[string]string) {
	t.Helper()
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,GoFiles,Export,Module", "./...")
	cmd.Dir = root
	out, err := output(cmd)
	require.NoError(t, err)
	files, export = map[string][]string{}, map[string]string{}
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var p struct {
			ImportPath, Dir, Export string
			GoFiles                 []string
			Module                  *struct {
				Main bool
				Dir  string
			}
		}
		require.NoError(t, d.Decode(&p))
		export[p.ImportPath] = p.Export
		if p.Module != nil && p.Module.Main {
			dir, err := filepath.Rel(p.Module.Dir, p.Dir)
			require.NoError(t, err)
			files[dir] = p.GoFiles
		}
	}
	return files, export
}

// leftOut is what is wrong only because bodies are left out.
var leftOut = regexp.MustCompile(` imported (as \S+ )?and not used|missing function body|must have a body`)

// typed checks the types of a package some of whose files are changed. It leaves out the bodies of the functions that are as
// before, and says nothing of these, nor of an import that only they use.
func typed(dir string, names []string, src, changed sources, importing types.Importer) error {
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		path := filepath.Join(dir, name)
		text, mutated := changed[path]
		if !mutated {
			text = src[path]
		}
		f, err := parser.ParseFile(set, path, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && (!mutated || strings.Contains(src[path], text[set.Position(fn.Pos()).Offset:set.Position(fn.End()).Offset])) {
				fn.Body = nil
			}
		}
		files = append(files, f)
	}
	var wrong error
	config := types.Config{Importer: importing, GoVersion: "go1.26", Error: func(err error) {
		if wrong == nil && !leftOut.MatchString(err.Error()) {
			wrong = err
		}
	}}
	config.Check(dir, set, files, nil)
	return wrong
}
