package main

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// prune writes the test files of a package anew, without the tests that are not named, and without the functions that only
// those call. It returns the path of an overlay for go build. Most of what a mutant costs is to compile the tests of its
// package again, which are many times those that are to notice it.
func (t tree) prune(s setup, names []string) (overlay string, err error) {
	paths, err := filepath.Glob(filepath.Join(t.of(s), "*_test.go"))
	if err != nil {
		return "", err
	}
	set := token.NewFileSet()
	files, texts := make([]*ast.File, len(paths)), make([][]byte, len(paths))
	for i, path := range paths {
		if texts[i], err = os.ReadFile(path); err != nil {
			return "", err
		}
		if files[i], err = parser.ParseFile(set, path, texts[i], parser.SkipObjectResolution|parser.ParseComments); err != nil {
			return "", err
		}
	}
	needed := reachable(files, names)
	replaced := map[string]string{}
	for i, f := range files {
		to := t.binary(s) + "-" + filepath.Base(paths[i])
		if err := os.WriteFile(to, without(set, f, texts[i], needed), 0o644); err != nil {
			return "", err
		}
		replaced[paths[i]] = to
	}
	text, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	overlay = t.binary(s) + "-overlay.json"
	return overlay, os.WriteFile(overlay, text, 0o644)
}

// reachable returns the names that these tests need, and all that is no function. It goes by the names alone, so it
// has some that nobody needs.
func reachable(files []*ast.File, tests []string) map[string]bool {
	funcs := map[string][]*ast.FuncDecl{}
	needed, queue := map[string]bool{}, []string(nil)
	need := func(name string) {
		if !needed[name] {
			needed[name] = true
			queue = append(queue, name)
		}
	}
	walk := func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				need(id.Name)
			}
			return true
		})
	}
	for _, f := range files {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				funcs[fn.Name.Name] = append(funcs[fn.Name.Name], fn)
			} else {
				walk(d)
			}
		}
	}
	need("TestMain")
	need("init")
	for _, name := range tests {
		name, _, _ = strings.Cut(name, "/")
		need(name)
	}
	for len(queue) > 0 {
		for _, fn := range funcs[queue[0]] {
			walk(fn)
		}
		queue = queue[1:]
	}
	return needed
}

// without returns the text of a file without the functions that are not needed, and without the imports that only they
// use. All lines stay where they are.
func without(set *token.FileSet, f *ast.File, text []byte, needed map[string]bool) []byte {
	text = bytes.Clone(text)
	blank := func(from, to token.Pos) {
		for i := set.Position(from).Offset; i < set.Position(to).Offset; i++ {
			if text[i] != '\n' {
				text[i] = ' '
			}
		}
	}
	used := map[string]bool{}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && !needed[fn.Name.Name] {
			from := fn.Pos()
			if fn.Doc != nil {
				from = fn.Doc.Pos()
			}
			blank(from, fn.End())
			continue
		}
		ast.Inspect(d, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok {
				if id, ok := sel.X.(*ast.Ident); ok {
					used[id.Name] = true
				}
			}
			return true
		})
	}
	for _, d := range f.Decls {
		if all, ok := d.(*ast.GenDecl); ok && all.Tok == token.IMPORT {
			for _, im := range all.Specs {
				switch name := nameOf(im.(*ast.ImportSpec)); {
				case name == "_" || name == "." || used[name]:
				case all.Lparen.IsValid():
					blank(im.Pos(), im.End())
				default:
					blank(all.Pos(), all.End())
				}
			}
		}
	}
	return text
}

// nameOf returns the name by which a file knows a package that it imports. It is a guess where the file names none.
func nameOf(im *ast.ImportSpec) string {
	if im.Name != nil {
		return im.Name.Name
	}
	whole, _ := strconv.Unquote(im.Path.Value)
	if dir, last := path.Split(whole); len(last) > 1 && last[0] == 'v' && strings.Trim(last[1:], "0123456789") == "" {
		return path.Base(dir)
	}
	return path.Base(whole)
}
