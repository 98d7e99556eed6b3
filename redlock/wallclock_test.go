package redlock_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Scenario 21: a wall clock that jumps changes nothing. No test may set the clock
// of the machine it runs on; so this one shows that nothing asks for it. What
// decides reads clock.Now, and what else is measured by package time is measured
// by the monotonic part of its times: a wall clock's reading is only had by the
// methods that are looked for here, and the masters could only notice it by an
// expiry at a point in time.

// hinted reads the wall clock once, for a number that a fence may begin with: it decides nothing
// where the masters remember their counters.
const hinted = "internal/round/hints.go"

// witnessed reads it for when a master's process was first known, which others read by their own. Of two clocks it takes
// the lesser age.
const witnessed = "client.go"

// scored has a master compare its clock with a time that it has read from it itself.
const scored = "internal/kind/shared.go"

func TestAWallClockThatJumpsChangesNothing(t *testing.T) {
	t.Parallel()
	files, hints, stamps, scores := 0, 0, 0, 0
	for _, dir := range []string{".", "internal/kind", "internal/quorum", "internal/round", "internal/script", "../mux", "../conn", "../resp"} {
		paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
		require.NoError(t, err)
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			files++
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, 0)
			require.NoError(t, err)
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.SelectorExpr:
					pkg, ok := n.X.(*ast.Ident)
					if ok && pkg.Name == "time" && pkg.Obj == nil {
						return true // a function of the package: time.Unix makes a time, it reads none
					}
					switch n.Sel.Name {
					case "Unix", "UnixMilli", "UnixMicro", "UnixNano":
						switch path {
						case hinted:
							hints++
							return true
						case witnessed:
							stamps++
							return true
						}
						t.Errorf("%s reads the wall clock", set.Position(n.Pos()))
					}
				case *ast.BasicLit:
					for _, at := range []string{"PXAT", "EXAT", "EXPIREAT"} {
						if n.Kind == token.STRING && strings.Contains(strings.ToUpper(n.Value), at) {
							if path == scored {
								scores++
								continue
							}
							t.Errorf("%s has a master compare our clock with its own", set.Position(n.Pos()))
						}
					}
				}
				return true
			})
		}
	}
	require.Greater(t, files, 20)
	require.Equal(t, 1, scores, "likewise")
	require.Equal(t, 1, hints, "what is not so any more need not be excused")
	require.Equal(t, 1, stamps, "likewise")
}
