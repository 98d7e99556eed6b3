package mux

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The package's documentation has this rule: an unexported method of Mux needs mu held,
// unless its comment says that it takes mu or works without mu. If the method, or one that
// it calls, lets mu go meanwhile, its comment says so.
func TestMethodsSayWhatTheyDoWithTheLock(t *testing.T) {
	t.Parallel()
	methods := map[string]*ast.FuncDecl{}
	entries, err := os.ReadDir(".")
	require.NoError(t, err)
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.ParseComments)
		require.NoError(t, err)
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil || len(f.Recv.List[0].Names) == 0 {
				continue
			}
			if f.Recv.List[0].Names[0].Name == "m" { // as of each method of Mux, and of no other
				methods[f.Name.Name] = f
			}
		}
	}
	require.Greater(t, len(methods), 40)
	says := func(f *ast.FuncDecl, what string) bool {
		return strings.Contains(strings.Join(strings.Fields(f.Doc.Text()), " "), what)
	}
	for name, f := range methods {
		free := f.Name.IsExported() || says(f, "takes mu") || says(f, "without mu")
		if free {
			continue
		}
		for callee, ours := range callsOf(f) {
			if !ours {
				continue
			}
			switch g := methods[callee]; {
			case callee == "mu.Lock" || callee == "mu.Unlock":
				require.True(t, says(f, "lets mu go"), "%s calls %s", name, callee)
			case g == nil || g.Name.IsExported():
			case says(g, "takes mu"):
				t.Errorf("%s, which has mu, calls %s, which takes it", name, callee)
			case says(g, "lets mu go"):
				require.True(t, says(f, "lets mu go"), "%s calls %s", name, callee)
			}
		}
	}
}

// callsOf returns the names of the functions that a method calls, but for calls by other
// goroutines. The value is true for methods of Mux, and for those of mu.
func callsOf(f *ast.FuncDecl) map[string]bool {
	calls := map[string]bool{}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			return false
		case *ast.CallExpr:
			callee, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			name := callee.Sel.Name
			switch of := callee.X.(type) {
			case *ast.Ident:
				calls[name] = calls[name] || of.Name == "m"
			case *ast.SelectorExpr:
				if of.Sel.Name == "mu" {
					calls["mu."+name] = true
				}
				return of.Sel.Name != "wg" || name != "Go"
			}
		}
		return true
	})
	return calls
}
