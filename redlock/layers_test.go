package redlock

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// How the package is built: which file may use which, what is pure, and where the tests of a file and of a
// rule are.

// The files of the package, from the bottom to the top: each may use what those before it
// define. What asks the masters is internal/round, what decides is internal/quorum, and a lock that is held is internal/held.
// A new kind of lock is a file of internal/kind.
var layers = []string{
	"token", "vote", "errors", "observer", "observer_queue", "observer_slog", "stats", "second", "meet",
	"core",
	"option", "config", "client", "shutdown", "ready", "replace", "mutex", "holders", "acquire_split", "acquire", "unlock", "locks_pattern", "locks_bounds", "locks", "revoke", "wait", "lock", "do", "lead",
	"watch", "doc", "inside",
}

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
	uses := 0
	for id, object := range info.Uses {
		if object.Pkg() != pkg || object.Parent() != nil && object.Parent() != pkg.Scope() {
			continue // another package's, or a local variable
		}
		uses++
		from, above := height(id.Pos())
		to, below := height(object.Pos())
		require.LessOrEqual(t, below, above, "%s, of %s, is used by %s", id.Name, to, from)
	}
	require.Greater(t, uses, 1000, "the names were not resolved")
}

// What is asked and what decides is pure: it takes bytes and an explicit now. So it can be read, and tested, alone.
func TestKindsAndDecisionsReadNoClock(t *testing.T) {
	paths, err := filepath.Glob("internal/kind/*.go")
	require.NoError(t, err)
	require.Greater(t, len(paths), 8)
	decisions, err := filepath.Glob("internal/quorum/*.go")
	require.NoError(t, err)
	require.Greater(t, len(decisions), 5)
	fset := token.NewFileSet()
	for _, path := range append(paths, decisions...) {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, i := range file.Imports {
			require.NotContains(t, []string{`"context"`, `"net"`, `"os"`, `"math/rand/v2"`, `"crypto/rand"`}, i.Path.Value, path)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			_, starts := n.(*ast.GoStmt)
			require.False(t, starts, path)
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if of, ok := s.X.(*ast.Ident); ok && (of.Name == "time" || of.Name == "clock") {
				require.Contains(t, []string{"time.Duration", "time.Microsecond", "time.Millisecond", "time.Second", "time.Minute", "clock.Forever",
					"clock.After"}, of.Name+"."+s.Sel.Name, path)
			}
			return true
		})
	}
}

// The rooms that are packages know no Client, no Observer and no error of this package, nor any room but those below. Each
// has the number of goroutines that it starts, which its doc.go tells of.
func TestARoomKnowsWhatIsBelowItAlone(t *testing.T) {
	const module = "github.com/redburst/redburst/"
	below := []string{"resp", "mux", "conn/clock", "redlock/internal/defaults", "redlock/internal/kind", "redlock/internal/quorum", "redlock/internal/rights", "redlock/internal/script", "redlock/internal/skew"}
	for _, room := range []struct {
		name   string
		starts int
	}{{"round", 0}, {"tracking", 1}, {"line", 0}, {"held", 2}} {
		paths, err := filepath.Glob("internal/" + room.name + "/*.go")
		require.NoError(t, err)
		require.Greater(t, len(paths), 5)
		starts := 0
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			for _, i := range file.Imports {
				if ours, is := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), module); is {
					require.Contains(t, below, ours, path)
				}
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if _, is := n.(*ast.GoStmt); is {
					starts++
				}
				return true
			})
		}
		require.Equal(t, room.starts, starts, room.name)
		below = append(below, "redlock/internal/"+room.name)
	}
}

// testedElsewhere are the source files without a test file of their names, and where their tests are.
var testedElsewhere = map[string]string{
	"locks_bounds": "locks_liar_test.go has masters whose lists have no end, are slow, or say what no other says",
	"meet":         "flight/ask_test.go has masters met when a lock was lost, also while the client closes",
	"inside":       "flight and contrib go through the doors that it opens",
	"doc":          "rules_test.go has its rules, and acl_test.go, limits_test.go and readme_test.go what else it promises",

	"internal/aged":               "redlocktest's masters are, and its aged_test.go looks at what clients make of them",
	"internal/behind":             "observer_test.go and stats_test.go look at what it is told, and flight and the exporters of contrib use the doors",
	"internal/held/core":          "it has no code",
	"internal/held/doc":           "it says what the package is",
	"internal/held/locks":         "it is the door, through which all tests of redlock go",
	"internal/kind/revoke":        "revoke_test.go and revoke_masters_test.go revoke locks of each kind",
	"internal/line/core":          "it has no code",
	"internal/line/doc":           "it says what the package is",
	"internal/processes":          "redlocktest starts and ends its servers with it, and its tests look at that",
	"internal/quorum/doc":         "it says what the package is",
	"internal/round/core":         "core_test.go has how rounds end, and quorum_fence_test.go, held_extension_test.go and wait_test.go make each kind of round",
	"internal/round/doc":          "it says what the package is",
	"internal/skew":               "a variable that tests set",
	"internal/tracking/doc":       "it says what the package is",
	"internal/story/judge":        "story_test.go makes what it judges, and tells of it",
	"internal/story/evidence":     "rules_test.go has worlds in which a finding must come, and such in which it must not",
	"internal/story/rule_away":    "rules_test.go has worlds in which a finding must come, and such in which it must not",
	"internal/story/rule_both":    "rules_test.go has worlds in which a finding must come, and such in which it must not",
	"internal/story/rule_clocks":  "rules_test.go has worlds in which a finding must come, and such in which it must not",
	"internal/story/rule_gap":     "rules_test.go has worlds in which a finding must come, and such in which it must not",
	"internal/story/rule_late":    "rules_test.go has worlds in which a finding must come, and such in which it must not",
	"internal/story/rule_lists":   "rules_test.go has worlds in which a finding must come, and such in which it must not",
	"internal/story/rule_loss":    "rules_test.go has worlds in which a finding must come, and such in which it must not",
	"internal/story/rule_refusal": "rules_test.go has worlds in which a finding must come, and such in which it must not",
	"internal/story/rule_wait":    "rules_test.go has worlds in which a finding must come, and such in which it must not",
	"internal/story/words":        "rules_test.go has worlds in which a finding must come, and such in which it must not",
	"internal/story/text":         "the golden files of story_test.go are its text",
}

// acrossFiles are the test files that have no source file's name, as what they hold is kept by many
// together. Their first comments say what that is.
var acrossFiles = []string{
	"acl", "alloc", "bench", "cluster", "cluster_keys", "coming_from", "cost", "failover", "harmed", "layers", "leak", "limits", "minhold", "model",
	"pairs", "panic", "quirks", "readme", "rules", "scale", "scenarios", "secret", "simulation", "validity", "wallclock", "zero", "internal/story/rules",
}

// What tests a file is found by its name: observer_queue.go has observer_queue_test.go, and maybe
// observer_queue_more_test.go. internal/held/relay.go has held_relay_test.go of this package, as its tests take locks. For a kind, internal/kind/shared.go, it is kind_shared_test.go of this package,
// as a test of a kind takes locks. What several tests use is in helper_*_test.go, which have no tests.
func TestATestIsFoundByItsFile(t *testing.T) {
	paths, err := filepath.Glob("*.go")
	require.NoError(t, err)
	inner, err := filepath.Glob("internal/*/*.go")
	require.NoError(t, err)
	var sources []string
	tests, found := map[string]bool{}, map[string]bool{} // those that there are, and those with a source
	for _, path := range append(paths, inner...) {
		path = filepath.ToSlash(path)
		if name, is := strings.CutSuffix(path, "_test.go"); is {
			tests[name] = true
		} else {
			sources = append(sources, strings.TrimSuffix(path, ".go"))
		}
	}
	isFor := func(test, source string) bool { return test == source || strings.HasPrefix(test, source+"_") }
	named := map[string]bool{}
	for _, source := range sources {
		address := strings.TrimPrefix(source, "internal/")
		dir, name := path.Split(address)
		if address = strings.ReplaceAll(address, "/", "_"); dir == name+"/" {
			address = name // kind_test.go, for internal/kind/kind.go
		}
		dir = path.Dir(source)
		excused := testedElsewhere[source] != "" || testedElsewhere[dir] != ""
		require.NotEqual(t, excused, tests[source] || tests[address], "%s.go is to have %s_test.go, or a place in testedElsewhere", source, address)
		named[source], named[dir] = true, true
		for test := range tests {
			found[test] = found[test] || isFor(test, source) || isFor(test, address)
		}
	}
	for source := range testedElsewhere {
		require.True(t, named[source], "there is no %s", source)
	}
	for test := range tests {
		file, err := parser.ParseFile(token.NewFileSet(), test+"_test.go", nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		if strings.HasPrefix(test, "helper_") {
			for _, d := range file.Decls {
				f, is := d.(*ast.FuncDecl)
				require.False(t, is && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test"), "%s_test.go has a test", test)
			}
		} else if !found[test] && !strings.HasPrefix(test, "example") {
			require.Contains(t, acrossFiles, test, "%s_test.go tests no file of that name", test)
			first := file.Decls[slices.IndexFunc(file.Decls, func(d ast.Decl) bool { return d.Pos() > file.Imports[len(file.Imports)-1].End() })]
			require.True(t, slices.ContainsFunc(file.Comments, func(c *ast.CommentGroup) bool {
				return c.Pos() > file.Name.End() && c.End() < first.Pos() && !documents(first, c)
			}), "%s_test.go does not begin with what it is about", test)
		}
	}
	for _, test := range acrossFiles {
		require.True(t, tests[test] && !found[test], "%s_test.go is not there, or has the name of a source file", test)
	}
}

// documents reports whether the comment is the declaration's.
func documents(d ast.Decl, c *ast.CommentGroup) bool {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return d.Doc == c
	case *ast.GenDecl:
		return d.Doc == c
	}
	return false
}

// The rules of the package comment have numbers, and each has its tests in rules_test.go by that number.
func TestEachRuleHasItsTest(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	_, text, _ := strings.Cut(string(doc), "// # Rules\n")
	text, _, _ = strings.Cut(text, "// # ")
	var rules []string
	for _, m := range regexp.MustCompile(`(?m)^//  (\d+)\. `).FindAllStringSubmatch(text, -1) {
		rules = append(rules, m[1])
	}
	require.GreaterOrEqual(t, len(rules), 6)
	paths, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	var tested []string
	for _, path := range paths {
		source, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)^(// Rule (\d+)[^\n]*\n(?:// [^\n]*\n)*)?func TestRule(\d+)`).FindAllStringSubmatch(string(source), -1) {
			require.Equal(t, "rules_test.go", path, "TestRule%s stands here", m[3])
			require.Equal(t, m[3], m[2], "the comment of TestRule%s is to begin with its rule", m[3])
			tested = append(tested, m[3])
		}
	}
	require.Equal(t, rules, slices.Compact(tested))
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
