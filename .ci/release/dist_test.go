package main

import (
	"bytes"
	"debug/elf"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// made returns a directory with what is made for this platform, from a clone of the repository.
func made(t *testing.T, version string) (dir, commit string) {
	clone := filepath.Join(t.TempDir(), "clone")
	_, err := run(".", "git", "clone", "--quiet", "../..", clone)
	require.NoError(t, err)
	commit, err = run(clone, "git", "rev-parse", "HEAD")
	require.NoError(t, err)
	dir = t.TempDir()
	require.NoError(t, makeDist(clone, dir, version, "linux/"+runtime.GOARCH))
	return dir, strings.TrimSpace(commit)
}

func TestDist(t *testing.T) {
	one, commit := made(t, "v0.1.0")
	t.Run("the same commit makes the same bytes", func(t *testing.T) { testSameBytes(t, one) })
	t.Run("the Debian package is installed and removed", func(t *testing.T) { testDebian(t, one, commit) })
}

// Whoever builds the same commit gets the same bytes, wherever it lies.
func testSameBytes(t *testing.T, one string) {
	two, _ := made(t, "v0.1.0")
	sums := func(dir string) string {
		text, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
		require.NoError(t, err)
		return string(text)
	}
	require.Equal(t, sums(one), sums(two))
	require.Equal(t, 3, strings.Count(sums(one), "\n"), "an archive, a .deb and a .rpm")
	packages, err := filepath.Glob(filepath.Join(one, "*.rpm"))
	require.NoError(t, err)
	require.Len(t, packages, 1)
	text, err := os.ReadFile(packages[0])
	require.NoError(t, err)
	require.True(t, bytes.Contains(text, []byte(buildHost+"\x00")), "it names no machine")
	if _, err := exec.LookPath("sha256sum"); err == nil {
		_, err := run(one, "sha256sum", "--check", "--strict", "SHA256SUMS")
		require.NoError(t, err)
	}
}

func testDebian(t *testing.T, dir, commit string) {
	if _, err := exec.LookPath("dpkg"); err != nil || os.Getuid() != 0 {
		t.Skip("it takes dpkg, and root")
	}
	if _, err := run("", "dpkg", "--status", "redlock"); err == nil {
		t.Skip("redlock is installed on this machine: it stays")
	}
	packages, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	require.NoError(t, err)
	require.Len(t, packages, 1)
	// A root of its own: the machine's is left alone, but for the scripts of the package, of which there are none.
	root := t.TempDir()
	for _, name := range []string{"updates", "info", "triggers"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, "var/lib/dpkg", name), 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(root, "var/lib/dpkg/status"), nil, 0o644))
	dpkg := func(args ...string) {
		t.Helper()
		_, err := run("", "dpkg", append([]string{"--root=" + root, "--force-script-chrootless"}, args...)...)
		require.NoError(t, err)
	}
	dpkg("--install", packages[0])

	said, err := run("", filepath.Join(root, "usr/bin/redlock"), "version")
	require.NoError(t, err)
	require.Contains(t, said, "v0.1.0")
	require.Contains(t, said, commit[:12])
	require.Contains(t, said, runtime.Version())
	manual, err := run("", "gzip", "-dc", filepath.Join(root, "usr/share/man/man1/redlock.1.gz"))
	require.NoError(t, err)
	require.Contains(t, manual, "redlock run")
	unit, err := os.ReadFile(filepath.Join(root, "usr/lib/systemd/system/redlock-job@.service"))
	require.NoError(t, err)
	program := regexp.MustCompile(`(?m)^ExecStart=(\S+)`).FindSubmatch(unit)
	require.Equal(t, "/usr/bin/redlock", string(program[1]), "what the unit starts is in the package")
	require.FileExists(t, filepath.Join(root, "usr/share/bash-completion/completions/redlock"))

	dpkg("--purge", "redlock")
	var left []string
	for _, top := range []string{"usr", "etc", "lib"} {
		filepath.Walk(filepath.Join(root, top), func(name string, info os.FileInfo, err error) error {
			if err == nil && !info.IsDir() {
				left = append(left, name)
			}
			return nil
		})
	}
	require.Empty(t, left, "what is left of the package")
}

// Whoever builds a program in its folder does not commit it by mistake, and does not stop a release.
func TestWhatGoBuildLeavesIsIgnored(t *testing.T) {
	said, err := run("../..", "git", "grep", "-l", "^package main$", "--", "*.go")
	require.NoError(t, err)
	programs := map[string]bool{}
	for name := range strings.FieldsSeq(said) {
		dir := path.Dir(name)
		programs[path.Join(dir, path.Base(dir))] = true
	}
	require.Greater(t, len(programs), 4)
	for program := range programs {
		_, err := run("../..", "git", "check-ignore", "--quiet", "--no-index", program)
		require.NoError(t, err)
	}
}

// What is built is in the context of the image, and the history, and what else lies there, is not.
func TestTheImageIsMadeOfTheSourceAlone(t *testing.T) {
	text, err := os.ReadFile("../../.dockerignore")
	require.NoError(t, err)
	var sent []string
	first := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "!"); ok {
			require.Equal(t, "*", first, "nothing is sent but what is named")
			sent = append(sent, name)
		} else if first == "" && line != "" && line[0] != '#' {
			first = line
		}
	}
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	said, err := run(root, "go", "list", "-deps", "-f", "{{with .Module}}{{if .Main}}{{$.Dir}}{{end}}{{end}}", "./redlock/cmd/redlock")
	require.NoError(t, err)
	needed := map[string]bool{"go.mod": true, "go.sum": true}
	for dir := range strings.FieldsSeq(said) {
		below, err := filepath.Rel(root, dir)
		require.NoError(t, err)
		top, _, _ := strings.Cut(filepath.ToSlash(below), "/")
		needed[top] = true
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(needed)), sent)
	for _, secret := range []string{"locker.password", "locker.new", "ca.key"} { // as the README there makes them
		_, err := run(root, "git", "check-ignore", "--quiet", "--no-index", "redlock/contrib/deploy/"+secret)
		require.NoError(t, err, secret)
		require.Contains(t, string(text), "\n**/*"+path.Ext(secret)+"\n")
	}
}

// The image has nothing but the command in it, which needs no library.
func TestTheImageIsStatic(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(root, "redlock/contrib/deploy/Dockerfile"))
	require.NoError(t, err)
	build := regexp.MustCompile(`(?m)^RUN (CGO_ENABLED=0 go build .* -o) /redlock (.*)$`).FindStringSubmatch(string(text))
	require.NotNil(t, build, "the Dockerfile builds the command")
	binary := filepath.Join(t.TempDir(), "redlock")
	_, err = run(root, "sh", "-c", strings.ReplaceAll(build[1]+" "+binary+" "+build[2], "$VERSION", "v0.1.0"))
	require.NoError(t, err)
	f, err := elf.Open(binary)
	require.NoError(t, err)
	defer f.Close()
	for _, p := range f.Progs {
		require.NotEqual(t, elf.PT_INTERP, p.Type, "it asks for a loader, and the image has none")
	}
	said, err := run("", binary, "version")
	require.NoError(t, err)
	require.Contains(t, said, "v0.1.0")
}
