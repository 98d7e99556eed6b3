package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// scratch is a repository with three modules in a row, each of which needs the one before, and a bare one that it
// pushes to.
type scratch struct {
	t           *testing.T
	dir, origin string
	said        bytes.Buffer
}

const changelog = "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-01-02\n\nThe first version.\n"

func newScratch(t *testing.T) *scratch {
	s := &scratch{t: t, dir: t.TempDir(), origin: t.TempDir()}
	s.git("init", "--quiet", "--initial-branch=main")
	s.git("config", "user.name", "A Releaser")
	s.git("config", "user.email", "releaser@example.com")
	_, err := run(s.origin, "git", "init", "--quiet", "--bare", "--initial-branch=main")
	require.NoError(t, err)
	s.git("remote", "add", "origin", s.origin)
	module := func(path, needs string) string {
		return "module " + rootModule + path + "\n\ngo 1.26.0\n" + needs
	}
	const none = " v0.0.0-00010101000000-000000000000\n"
	s.write(map[string]string{
		"LICENSE":            "MIT",
		"CHANGELOG.md":       changelog,
		"go.mod":             module("", ""),
		"redlock/redlock.go": "package redlock\n\nfunc Lock(key string) {}\n",
		"redlock/contrib/one/go.mod": module("/redlock/contrib/one", "\nrequire "+rootModule+none+
			"\nreplace "+rootModule+" => ../../..\n"),
		"redlock/contrib/one/one.go": "package one\n\nimport \"" + rootModule + "/redlock\"\n\nfunc Two() { redlock.Lock(\"\") }\n",
		"redlock/contrib/a/go.mod": module("/redlock/contrib/a", "\nrequire (\n\t"+rootModule+none+"\t"+rootModule+"/redlock/contrib/one"+none+")\n"+
			"\nreplace (\n\t"+rootModule+" => ../../..\n\t"+rootModule+"/redlock/contrib/one => ../one\n)\n"),
		"redlock/contrib/a/a.go": "package a\n\nimport \"" + rootModule + "/redlock/contrib/one\"\n\nvar _ = one.Two\n",
	})
	for _, name := range []string{"tools.mod", "tools.sum"} {
		require.NoError(t, copyFile(filepath.Join("..", name), filepath.Join(s.dir, ".ci", name)))
	}
	s.commit("the beginning")
	return s
}

func (s *scratch) git(args ...string) string {
	s.t.Helper()
	said, err := run(s.dir, "git", args...)
	require.NoError(s.t, err)
	return strings.TrimSpace(said)
}

func (s *scratch) write(files map[string]string) {
	for name, text := range files {
		name = filepath.Join(s.dir, name)
		require.NoError(s.t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(s.t, os.WriteFile(name, []byte(text), 0o644))
	}
}

func (s *scratch) commit(message string) {
	s.git("add", "--all")
	s.git("commit", "--quiet", "-m", message)
}

func (s *scratch) release(version string, options ...func(*release)) error {
	s.said.Reset()
	r := release{root: s.dir, version: version, gate: []string{"true"}, out: &s.said}
	for _, option := range options {
		option(&r)
	}
	return r.do()
}

func push(r *release) { r.push = true }

func TestAReleaseIsTaggedAndDevelopmentGoesOn(t *testing.T) {
	s := newScratch(t)
	require.NoError(t, s.release("v0.1.0"))

	require.Equal(t, "redlock/contrib/a/v0.1.0\nredlock/contrib/one/v0.1.0\nv0.1.0", s.git("tag", "--list"))
	tagged := s.git("show", "redlock/contrib/a/v0.1.0:redlock/contrib/a/go.mod")
	require.Contains(t, tagged, rootModule+" v0.1.0\n")
	require.Contains(t, tagged, rootModule+"/redlock/contrib/one v0.1.0\n")
	require.NotContains(t, tagged, "replace")
	after := s.git("show", "HEAD:redlock/contrib/a/go.mod")
	require.Contains(t, after, rootModule+"/redlock/contrib/one => ../one")
	require.Equal(t, s.git("rev-parse", "HEAD~1"), s.git("rev-parse", "v0.1.0"))
	require.Empty(t, s.git("status", "--porcelain"))
	require.Equal(t, "A Releaser", s.git("log", "-1", "--format=%an"))
	_, err := run(filepath.Join(s.dir, "redlock/contrib/a"), "go", "build", "./...")
	require.NoError(t, err, "development goes on")
	require.Empty(t, s.git("ls-remote", "origin"), "nothing has left the machine")
	require.Contains(t, s.said.String(), "git push --atomic origin refs/heads/main")
}

// The go command makes the archive of a module from the repository. What the go.sum of the tag says of it must be the
// same.
func TestTheSumsAreThoseOfTheGoCommand(t *testing.T) {
	s := newScratch(t)
	require.NoError(t, s.release("v0.1.0", push))
	require.Contains(t, s.git("ls-remote", "origin"), "refs/tags/redlock/contrib/one/v0.1.0")

	user := t.TempDir()
	config := filepath.Join(user, "gitconfig")
	require.NoError(t, os.WriteFile(config, []byte("[url \"file://"+s.origin+"\"]\n\tinsteadOf = https://github.com/redburst/redburst\n"), 0o644))
	env := []string{
		"GIT_CONFIG_GLOBAL=" + config, "GOPRIVATE=" + rootModule, "GOFLAGS=-modcacherw", "GOMODCACHE=" + filepath.Join(user, "cache"),
	}
	s.git("worktree", "add", "--quiet", "--detach", filepath.Join(user, "tag"), "v0.1.0")
	said, err := runEnv(filepath.Join(user, "tag", "redlock/contrib/a"), env, "go", "build", "-v", "./...")
	require.NoError(t, err, said)
}

func TestWhatIsNotReleased(t *testing.T) {
	for name, test := range map[string]struct {
		version string
		options []func(*release)
		before  func(s *scratch)
		says    string
	}{
		"no version":            {version: "0.1.0", says: "is no version"},
		"half a version":        {version: "v0.1", says: "is no version"},
		"a new path":            {version: "v2.0.0", says: "must end with /v2"},
		"a file not committed":  {version: "v0.1.0", before: func(s *scratch) { s.write(map[string]string{"x.go": "package x\n"}) }, says: "not clean"},
		"nothing to say of it":  {version: "v0.2.0", says: "CHANGELOG.md has nothing under ## [0.2.0]"},
		"a gate that fails":     {version: "v0.1.0", options: []func(*release){func(r *release) { r.gate = []string{"false"} }}, says: "the gate has failed"},
		"a version that stands": {version: "v0.1.0", before: func(s *scratch) { s.git("tag", "v0.1.0") }, says: "not above v0.1.0"},
		"a version that goes back": {version: "v0.1.0", before: func(s *scratch) {
			s.git("tag", "v0.1.1")
		}, says: "not above v0.1.1"},
		"a tag of one module": {version: "v0.1.0", before: func(s *scratch) {
			s.git("tag", "redlock/contrib/one/v0.1.0")
		}, says: "the tag redlock/contrib/one/v0.1.0 exists"},
		"news without a version": {version: "v0.1.0", before: func(s *scratch) {
			s.write(map[string]string{"CHANGELOG.md": strings.Replace(changelog, "## [Unreleased]\n", "## [Unreleased]\n\n- News.\n", 1)})
			s.commit("news")
		}, says: "move what is under [Unreleased]"},
		"no date": {version: "v0.1.0", before: func(s *scratch) {
			s.write(map[string]string{"CHANGELOG.md": strings.Replace(changelog, " - 2026-01-02", "", 1)})
			s.commit("no date")
		}, says: "has no date"},
		"a module that needs what is not published": {version: "v0.1.0", before: func(s *scratch) {
			s.write(map[string]string{"redlock/contrib/one/one.go": "package one\n\nimport \"" + rootModule + "/elsewhere\"\n\nvar _ = elsewhere.X\n"})
			s.commit("a package that is not there")
		}, says: "with nothing but what is published"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newScratch(t)
			if test.before != nil {
				test.before(s)
			}
			head, tags := s.git("rev-parse", "HEAD"), s.git("tag", "--list")
			err := s.release(test.version, test.options...)
			require.ErrorContains(t, err, test.says)
			require.Equal(t, head, s.git("rev-parse", "HEAD"))
			require.Equal(t, tags, s.git("tag", "--list"))
		})
	}
}

func TestWhatBreaksUsersIsSaid(t *testing.T) {
	s := newScratch(t)
	require.NoError(t, s.release("v0.1.0"))

	next := func(version, text string) {
		s.write(map[string]string{"CHANGELOG.md": strings.Replace(changelog, "## [0.1.0]", "## ["+version+"] - 2026-02-03\n\n"+text+"\n\n## [0.1.0]", 1)})
		s.commit("what is new in " + version)
	}
	s.write(map[string]string{"redlock/redlock.go": "package redlock\n\nfunc Lock(key string) {}\n\nfunc New() {}\n"})
	next("0.1.1", "More.")
	require.NoError(t, s.release("v0.1.1"))
	require.NotContains(t, s.said.String(), "breaks")

	s.write(map[string]string{"redlock/redlock.go": "package redlock\n\nfunc Lock(key string, ttl int) {}\n",
		"redlock/contrib/one/one.go": "package one\n\nimport \"" + rootModule + "/redlock\"\n\nfunc Two() { redlock.Lock(\"\", 1) }\n"})
	next("0.2.0", "Other.")
	require.ErrorContains(t, s.release("v0.2.0"), "breaks users of v0.1.1")
	require.Contains(t, s.said.String(), "redlock.Lock: changed from func(string) to func(string, int)")
	require.Contains(t, s.said.String(), "redlock.New: removed")

	next("0.1.2", "### Breaking\n\nLock has a TTL.")
	require.ErrorContains(t, s.release("v0.1.2"), "a new minor version")
	next("0.2.0", "### Breaking\n\nLock has a TTL.")
	require.NoError(t, s.release("v0.2.0"))
	require.Contains(t, s.git("show", "redlock/contrib/a/v0.2.0:redlock/contrib/a/go.mod"), rootModule+" v0.2.0\n")
}
