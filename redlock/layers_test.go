package redlock

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The files of the package, from the bottom to the top: each may use what those before it
// define. The names say the rooms: what decides, what asks the masters, holding a lock, waiting for one, and, without
// a prefix, the interface. A new kind of lock is a file of internal/kind.
var layers = []string{
	"token", "vote", "errors", "observer", "observers", "stats", "second",
	"decide_round", "decide_fence", "decide_guard",
	"ask_hints", "ask_spec", "ask_agreement", "ask_call", "ask_core", "ask_turn",
	"hold", "hold_release", "hold_extension", "hold_keepalive", "hold_renewer", "hold_backing", "hold_recheck",
	"wait_sleeper", "wait_subscription", "wait_contention", "wait_look", "wait_global_queue_script", "wait_global_queue",
	"wait_local_queue", "watch_subscription",
	"option", "config", "client", "mutex", "acquire", "unlock", "holders", "wait", "lock", "do", "lead", "watch", "doc",
}

// upward is what runs the other way all the same: a hold has its KeepAlives, which it moves, and
// a KeepAlive is ended by its renewer. They are one mechanism.
var upward = []string{"hold -> hold_keepalive", "hold_keepalive -> hold_renewer"}

func TestEachFileUsesOnlyWhatIsBelowIt(t *testing.T) {
	fset := token.NewFileSet()
	paths, err := filepath.Glob("*.go")
	require.NoError(t, err)
	var files []*ast.File
	for _, path := range paths {
		if !strings.HasSuffix(path, "_test.go") {
			file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			files = append(files, file)
		}
	}
	// Only names of this package count, so the others need not be there.
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: nowhere{}, Error: func(error) {}}
	pkg, _ := config.Check("redlock", fset, files, info)
	height := func(at token.Pos) (name string, layer int) {
		name = strings.TrimSuffix(filepath.Base(fset.Position(at).Filename), ".go")
		layer = slices.Index(layers, name)
		require.GreaterOrEqual(t, layer, 0, "%s has no place in layers", name)
		return name, layer
	}
	for _, file := range files {
		height(file.Pos())
	}
	require.Len(t, slices.Compact(slices.Sorted(slices.Values(layers))), len(layers), "a file has two places in layers")
	require.Len(t, files, len(layers), "a place in layers has no file")
	found := map[string]bool{}
	uses := 0
	for id, object := range info.Uses {
		if object.Pkg() != pkg || object.Parent() != nil && object.Parent() != pkg.Scope() {
			continue // another package's, or a local variable
		}
		uses++
		from, above := height(id.Pos())
		to, below := height(object.Pos())
		if below > above {
			found[from+" -> "+to] = true
			require.Contains(t, upward, from+" -> "+to, "%s, of %s, is used by %s", id.Name, to, from)
		}
	}
	require.Greater(t, uses, 1000, "the names were not resolved")
	require.Len(t, found, len(upward), "what is not so any more need not be excused")
}

// What is asked and what decides is pure: it takes bytes and an explicit now. So it can be read, and tested, alone.
func TestKindsAndDecisionsReadNoClock(t *testing.T) {
	paths, err := filepath.Glob("internal/kind/*.go")
	require.NoError(t, err)
	require.Greater(t, len(paths), 8)
	fset := token.NewFileSet()
	for _, path := range append(paths, "decide_round.go") {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, i := range file.Imports {
			require.NotContains(t, []string{`"context"`, `"net"`, `"os"`, `"sync"`, `"math/rand/v2"`}, i.Path.Value, path)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			_, starts := n.(*ast.GoStmt)
			require.False(t, starts, path)
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if of, ok := s.X.(*ast.Ident); ok && (of.Name == "time" || of.Name == "clock") {
				require.Contains(t, []string{"Duration", "Millisecond", "Second", "Minute", "Forever"}, s.Sel.Name, path)
			}
			return true
		})
	}
}

// nowhere imports empty packages.
type nowhere struct{}

func (nowhere) Import(path string) (*types.Package, error) {
	p := types.NewPackage(path, filepath.Base(path))
	p.MarkComplete()
	return p, nil
}

// Imports run one way, and whoever imports the lock gets no other dependency than golang.org/x/sys.
func TestTheLibraryNeedsSysAlone(t *testing.T) {
	const module, list = "github.com/redburst/redburst/", "{{if not .Standard}}{{.ImportPath}}{{end}}"
	below := []string{"golang.org/x/sys/"}
	for _, name := range []string{"resp", "conn", "mux", "redlock"} {
		out, err := exec.Command("go", "list", "-deps", "-f", list, module+name).CombinedOutput()
		require.NoError(t, err, "%s", out)
		below = append(below, module+name)
		for path := range strings.FieldsSeq(string(out)) {
			require.True(t, slices.ContainsFunc(below, func(b string) bool { return strings.HasPrefix(path, b) }), "%s needs %s", name, path)
		}
	}
}
