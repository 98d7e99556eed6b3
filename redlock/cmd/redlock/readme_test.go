package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/redburst/redburst/redlock"
	"github.com/stretchr/testify/require"
)

// These tests hold the README, and the pages in redlock/docs, to what there is: their Go compiles, their
// commands exist with their flags, and so does what they name.

const (
	top    = "../../.."
	module = "github.com/redburst/redburst"
)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, name))
	require.NoError(t, err)
	return strings.ReplaceAll(string(text), "\r\n", "\n")
}

// pages are the README and what it leaves to others, as paths in the repository.
func pages(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(top, "redlock/docs/*.md"))
	require.NoError(t, err)
	require.NotEmpty(t, names)
	all := []string{"README.md"}
	for _, name := range names {
		all = append(all, "redlock/docs/"+filepath.Base(name))
	}
	return all
}

// fenced returns the pages' blocks of a language. Those within a list are indented.
func fenced(t *testing.T, language string) []string {
	t.Helper()
	var blocks []string
	for _, page := range pages(t) {
		if language == "go" && page == "redlock/docs/service.md" {
			continue // it shows examples/service, whose tests hold it to that
		}
		for _, m := range regexp.MustCompile("(?ms)^ *```"+language+"\n(.*?)^ *```$").FindAllStringSubmatch(read(t, page), -1) {
			blocks = append(blocks, m[1])
		}
	}
	require.NotEmpty(t, blocks, "blocks of %s", language)
	return blocks
}

// A whole program is compiled as it is. Fragments stand in a function that has what they take for granted. They
// are compiled as packages of this module that exist in an overlay only.
func TestReadmeCompiles(t *testing.T) {
	t.Parallel()
	packages := []string{"context", "errors", "net", "net/http", "testing", "time",
		"github.com/stretchr/testify/require", module + "/redlock", module + "/redlock/flight", module + "/redlock/redlocktest"}
	above, err := filepath.Abs(top)
	require.NoError(t, err)
	dir := t.TempDir()
	overlay := map[string]string{}
	args := []string{"build", "-overlay", filepath.Join(dir, "overlay.json")}
	for i, block := range fenced(t, "go") {
		source := "package readme\n\nfunc _(t *testing.T, ctx context.Context, client, old *redlock.Client, m *redlock.Mutex, err error, w http.ResponseWriter, " +
			"work func(context.Context) error) error {\n{\n" + block + "}\nreturn nil\n}\n"
		if strings.HasPrefix(block, "package ") {
			source = block
		}
		for _, p := range packages {
			if regexp.MustCompile(`\b` + filepath.Base(p) + `\.`).MatchString(source) {
				source = strings.Replace(source, "package readme\n", fmt.Sprintf("package readme\nimport %q\n", p), 1)
			}
		}
		file := filepath.Join(dir, fmt.Sprintf("block%d.go", i+1))
		require.NoError(t, os.WriteFile(file, []byte(source), 0o666))
		name := fmt.Sprintf("readme%d", i+1)
		overlay[filepath.Join(above, "redlock", name, "block.go")] = file
		args = append(args, "./redlock/"+name)
	}
	text, err := json.Marshal(map[string]any{"Replace": overlay})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "overlay.json"), text, 0o666))
	cmd := exec.Command("go", args...)
	cmd.Dir = above
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// A command of the pages is of one of these kinds. Whatever is no command of
// this project is named here.
func TestReadmeCommandsExist(t *testing.T) {
	t.Parallel()
	makefile := read(t, "Makefile")
	others := map[string]bool{
		"export REDLOCK_MASTERS=redis-a:6379,redis-b:6379,redis-c:6379":                      true,
		"for p in 7001 7002 7003; do redis-server --port $p --save '' --daemonize yes; done": true,
		"for p in 7001 7002 7003; do redis-cli -p $p shutdown nosave; done":                  true,
		"go mod init try && go get " + module + "/redlock":                                   true,
		"go run .":      true,
		"git log -2 -p": true,
		"git push --atomic origin main $(git tag --points-at v0.1.0)":                        true,
		"ssh-keygen -Y sign -f ~/.ssh/id_ed25519 -n redburst dist/SHA256SUMS":                true,
		"ssh-keygen -Y verify -f signers -I NAME -n redburst -s SHA256SUMS.sig < SHA256SUMS": true,
		"sha256sum --check --ignore-missing --strict SHA256SUMS":                             true,
	}
	type kind struct {
		pattern string
		check   func(t *testing.T, args []string)
	}
	kinds := []kind{
		{`^make (.+)$`, func(t *testing.T, args []string) {
			for target := range strings.FieldsSeq(args[0]) {
				if variable, _, ok := strings.Cut(target, "="); ok {
					require.Contains(t, makefile, "$("+variable+")")
					continue
				}
				require.Regexp(t, `(?m)^`+target+`:.* ## `, makefile, "a documented target")
			}
		}},
		{`^redlock (.+)$`, func(t *testing.T, args []string) {
			cmd, rest, err := newRoot().Find(strings.Fields(args[0]))
			require.NoError(t, err)
			require.NotEqual(t, "redlock", cmd.Name(), "a subcommand")
			require.NoError(t, cmd.ParseFlags(rest))
			require.NoError(t, cmd.ValidateArgs(cmd.Flags().Args()))
			keys := cmd.Flags().Args()
			if at := cmd.ArgsLenAtDash(); at >= 0 {
				keys = keys[:at] // the rest is what is run
			}
			for _, key := range keys {
				require.True(t, strings.HasPrefix(key, "lock:"), "%s is no key of the documented ACL", key)
			}
			status, help, _ := do(t, nil, cmd.Name(), "--help")
			require.Zero(t, status)
			require.Contains(t, help, "redlock "+cmd.Name())
		}},
		{`^go install ` + module + `/(\S+)@latest$`, func(t *testing.T, args []string) {
			require.FileExists(t, filepath.Join(top, args[0], "main.go"))
		}},
	}
	kinds = append(kinds, kind{`^go test \./(\S+) -run '\^\$' -bench '?([^' ]+)'? -benchtime \d+x$`, func(t *testing.T, args []string) {
		files, err := filepath.Glob(filepath.Join(top, args[0], "*_test.go"))
		require.NoError(t, err)
		for name := range strings.SplitSeq(args[1], "|") {
			require.True(t, slices.ContainsFunc(files, func(file string) bool {
				text, err := os.ReadFile(file)
				require.NoError(t, err)
				return regexp.MustCompile(`(?m)^func Benchmark\w*` + strings.TrimPrefix(name, "Benchmark") + `\w*\(`).Match(text)
			}), "the benchmark %s", name)
		}
	}})
	for _, block := range fenced(t, "sh") {
		for line := range strings.Lines(block) {
			command, _, _ := strings.Cut(line, " #")
			command = strings.TrimSpace(command)
			t.Run(command, func(t *testing.T) {
				if others[command] {
					return
				}
				for _, k := range kinds {
					if args := regexp.MustCompile(k.pattern).FindStringSubmatch(command); args != nil {
						k.check(t, args[1:])
						return
					}
				}
				t.Fatal("a command of no known kind")
			})
		}
	}
}

// caseNames matches the names of the benchmark's cases.
func caseNames(t *testing.T) *regexp.Regexp {
	t.Helper()
	var names []string
	cases := read(t, "bench/cases.go") + read(t, "bench/hot.go")
	for _, m := range regexp.MustCompile(`(?:with\(|name := )(?:fmt\.Sprintf\()?"([^"]+)"`).FindAllStringSubmatch(cases, -1) {
		names = append(names, strings.ReplaceAll(regexp.QuoteMeta(m[1]), "%d", `\d+`))
	}
	require.NotEmpty(t, names)
	return regexp.MustCompile("^(" + strings.Join(names, "|") + ")$")
}

func TestReadmeNamesWhatThereIs(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for _, page := range pages(t) {
		text.WriteString(read(t, page))
	}
	readme := text.String()
	each := func(pattern string, check func(name string)) {
		all := regexp.MustCompile(pattern).FindAllStringSubmatch(readme, -1)
		require.NotEmpty(t, all, pattern)
		for _, m := range all {
			check(m[1])
		}
	}
	for _, path := range []string{"redlock", "redlock/redlocktest"} {
		doc, err := exec.Command("go", "doc", "-all", module+"/"+path).CombinedOutput()
		require.NoError(t, err, "%s", doc)
		each(`\b`+filepath.Base(path)+`\.([A-Z]\w*)`, func(name string) {
			declared := regexp.MustCompile(`(?m)^(func |var |const |type |\t)` + name + `\b`)
			require.True(t, declared.Match(doc), "%s has no %s", path, name)
		})
	}
	config := reflect.TypeFor[redlock.Config]()
	each(`\bConfig\.([A-Z]\w*)`, func(name string) {
		_, ok := config.FieldByName(name)
		require.True(t, ok, "Config has no %s", name)
	})
	cases := caseNames(t)
	begin, end := strings.Index(readme, "<!-- figures -->"), strings.Index(readme, "<!-- /figures -->")
	require.Less(t, -1, begin)
	require.Less(t, begin, end)
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`-][^`]*)` \\|").FindAllStringSubmatch(readme[begin:end], -1) {
		require.Regexp(t, cases, m[1], "a case of the benchmark")
	}
	each("(?m)^\\| `([a-z][a-z/]*)` \\| [^|]+ \\|$", func(path string) {
		require.DirExists(t, filepath.Join(top, path))
	})
	makefile := read(t, "Makefile")
	each("`make ([a-z-]+)`", func(target string) {
		require.Regexp(t, `(?m)^`+target+`:.* ## `, makefile, "a documented target")
	})
	each("`redlock ([a-z][^`]*)`", func(words string) {
		cmd, rest, err := newRoot().Find(strings.Fields(words))
		require.NoError(t, err)
		require.NotEqual(t, "redlock", cmd.Name(), "redlock %s: a subcommand", words)
		for _, word := range rest {
			if flag, _, _ := strings.Cut(word, "="); strings.HasPrefix(flag, "--") && flag != "--" {
				require.NotNil(t, cmd.Flag(strings.TrimPrefix(flag, "--")), "redlock %s", words)
			}
		}
	})
	benchMain := read(t, "bench/main.go")
	each("`cd bench && go run \\. -cases ([^` ]+)`", func(names string) {
		require.Contains(t, benchMain, `("cases", `, "a flag")
		for name := range strings.SplitSeq(names, ",") {
			require.Regexp(t, cases, name, "a case")
		}
	})
}

// documents are all pages in the repository, with those that GitHub looks for.
func documents(t *testing.T) []string {
	t.Helper()
	all := append(pages(t), "CHANGELOG.md", "redlock/contrib/README.md", "redlock/contrib/deploy/README.md", "bench/report/report.md")
	for _, name := range []string{"CONTRIBUTING.md", "SECURITY.md"} {
		all = append(all, ".github/"+name)
	}
	return all
}

// anchors are what a link can lead to within a page: GitHub makes them of its headings.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	text = regexp.MustCompile("(?ms)^```.*?^```$").ReplaceAllString(text, "")
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(text, -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N}\- ]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all[strings.ReplaceAll(name, " ", "-")] = true
	}
	return all
}

// A link within the repository leads to a file that is there, and to a heading of it.
func TestLinksOfDocumentsLeadSomewhere(t *testing.T) {
	t.Parallel()
	inline, reference := regexp.MustCompile(`\]\(([^)\s]+)\)`), regexp.MustCompile(`(?m)^\[[^\]]+\]: (\S+)$`)
	for _, page := range documents(t) {
		t.Run(page, func(t *testing.T) {
			text := read(t, page)
			for _, m := range append(inline.FindAllStringSubmatch(text, -1), reference.FindAllStringSubmatch(text, -1)...) {
				if strings.Contains(m[1], "://") {
					continue
				}
				name, anchor, _ := strings.Cut(m[1], "#")
				target := page
				if name != "" {
					target = filepath.Join(filepath.Dir(page), name)
				}
				if picture, ok := strings.CutPrefix(filepath.ToSlash(target), "bench/report/"); ok && picture != "report.md" { // made by make bench
					require.Contains(t, read(t, "bench/plot.go"), `"`+picture+`"`)
					continue
				}
				_, err := os.Stat(filepath.Join(top, target))
				require.NoError(t, err, "%s", m[1])
				if anchor != "" {
					require.True(t, anchors(read(t, target))[anchor], "%s has no heading for %s", target, m[1])
				}
			}
		})
	}
}

// pkg.go.dev shows the package comment without the files beside it, so its links lead to GitHub.
func TestLinksOfThePackageCommentLeadSomewhere(t *testing.T) {
	t.Parallel()
	links := regexp.MustCompile(`https://`+module+`/blob/main/(\S+)`).FindAllStringSubmatch(read(t, "redlock/doc.go"), -1)
	require.NotEmpty(t, links)
	for _, m := range links {
		require.FileExists(t, filepath.Join(top, m[1]))
	}
}

// Each package of the module is promised to users, or named as one that is not, or not frozen.
func TestDocumentsSayWhatIsPromised(t *testing.T) {
	t.Parallel()
	promised := []string{"redlock", "redlock/flight", "redlock/redlocktest", "resp", "mux", "conn"}
	others := regexp.MustCompile(`/internal/|/internal$|/redlocktest/|^conn/clock$|^conn/conntest$|^resp/resptest$|^fuzz$|/contrib/|/examples/`)
	list := exec.Command("go", "list", "-f", "{{.Name}} {{.ImportPath}}", module+"/...")
	list.Dir = top
	out, err := list.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for line := range strings.Lines(string(out)) {
		name, path, _ := strings.Cut(strings.TrimSpace(line), " ")
		path = strings.TrimPrefix(path, module+"/")
		if name != "main" && !others.MatchString(path) {
			require.Contains(t, promised, path)
		}
	}
	for _, page := range []string{"README.md", ".github/CONTRIBUTING.md"} {
		text := read(t, page)
		for _, name := range promised {
			require.DirExists(t, filepath.Join(top, name))
			require.Contains(t, text, "`"+name+"`", page)
		}
	}
}

func TestReadmeFitsTheScreen(t *testing.T) {
	t.Parallel()
	for _, page := range pages(t) {
		lines := strings.Split(strings.TrimSuffix(read(t, page), "\n"), "\n")
		require.LessOrEqual(t, len(lines), 280, page)
		for i, line := range lines {
			require.LessOrEqual(t, utf8.RuneCountInString(line), 120, "columns of line %d of %s", i+1, page)
		}
	}
}
