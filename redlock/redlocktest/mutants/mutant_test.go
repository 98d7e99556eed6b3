package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is that of the module, from here.
const root = "../../.."

// theTree returns the sources of the tree, and all mutants.
func theTree(t *testing.T) (src sources, all []*mutant) {
	t.Helper()
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
	src, err = read(dir, files)
	require.NoError(t, err)
	all, err = load(".")
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return src, all
}

func TestEachMutantAppliesToTheTree(t *testing.T) {
	src, all := theTree(t)
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
	for _, file := range paths {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		all.Write(text)
	}
	return all.String()
}

// ruleRow is a row of the index of rules: what it says, the file and the declaration, and the fault.
var ruleRow = regexp.MustCompile(`(?m)^//\t(\S.*?) {2,}(\S+) {2,}(\S+) {2,}([a-z-]+)$`)

func TestEachRuleStandsWhereTheIndexSaysAndAMutantBreaksItThere(t *testing.T) {
	src, all := theTree(t)
	_, text, ok := strings.Cut(src["redlock/inside.go"], "# Where the rules are")
	require.True(t, ok)
	index := ruleRow.FindAllStringSubmatch(text, -1)
	require.NotEmpty(t, index)
	require.Len(t, index, strings.Count(text, "\n//\t"))
	for _, row := range index {
		rule, file, declared, fault := row[1], row[2], row[3], row[4]
		at := slices.IndexFunc(all, func(m *mutant) bool { return m.name == fault })
		if at < 0 {
			t.Errorf("%s: there is no mutant %s", rule, fault)
			continue
		}
		places, err := all[at].places(src)
		require.NoError(t, err)
		var in []string
		for _, p := range places {
			in = append(in, p.file+" "+declarationAt(t, src[p.file], p.from))
		}
		if !slices.Contains(in, file+" "+declared) {
			t.Errorf("%s: %s breaks %s, not %s %s", rule, fault, in, file, declared)
		}
	}
}

// declarationAt names the function, method, constant or variable that has the byte.
func declarationAt(t *testing.T, text string, at int) string {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "", text, parser.SkipObjectResolution)
	require.NoError(t, err)
	has := func(n ast.Node) bool {
		return set.Position(n.Pos()).Offset <= at && at < set.Position(n.End()).Offset
	}
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if !has(d) {
				continue
			}
			if d.Recv == nil {
				return d.Name.Name
			}
			of := d.Recv.List[0].Type
			if star, ok := of.(*ast.StarExpr); ok {
				of = star.X
			}
			if generic, ok := of.(*ast.IndexExpr); ok {
				of = generic.X
			}
			return of.(*ast.Ident).Name + "." + d.Name.Name
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if v, ok := s.(*ast.ValueSpec); ok && has(d) && (len(d.Specs) == 1 || has(v)) {
					return v.Names[0].Name
				}
			}
		}
	}
	return ""
}
