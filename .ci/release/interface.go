package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// library reports whether what a module exports is for users.
func library(m goModule) bool {
	return m.dir == "." || strings.HasPrefix(m.dir, "redlock/contrib/") && !strings.HasSuffix(m.dir, "test")
}

// unpromised are the packages whose interface is promised to nobody: .github/CONTRIBUTING.md says which those are.
var unpromised = regexp.MustCompile(`^- \./(conn(/clock|/conntest)?|mux|resp/resptest|fuzz|redlock/cmd|redlock/examples|redlock/redlocktest/(chaos|mutants|servers))\b`)

// promisedOnly returns the changes of a report of apidiff that concern a promise.
func promisedOnly(report string) string {
	var kept strings.Builder
	for line := range strings.Lines(report) {
		if strings.HasPrefix(line, "- ") && !unpromised.MatchString(line) {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// breaks returns what breaks users of the last version. old is a directory for its tree.
func (r *release) breaks(clone, last string) (string, error) {
	apidiff, err := run(r.root, "go", "tool", "-modfile=.ci/tools.mod", "-n", "apidiff")
	if err != nil {
		return "", err
	}
	apidiff = strings.TrimSpace(apidiff)
	old := clone + "-" + last
	if _, err := run(clone, "git", "worktree", "add", "--quiet", "--detach", old, last); err != nil {
		return "", err
	}
	defer run(clone, "git", "worktree", "remove", "--force", old)
	before, err := modulesOf(old)
	if err != nil {
		return "", err
	}
	var report strings.Builder
	for _, m := range before {
		if err := replaceBack(old, before, m); err != nil { // its neighbours of that version stand there, too
			return "", err
		}
		if !library(m) {
			continue
		}
		if _, err := os.Stat(filepath.Join(clone, m.dir, "go.mod")); err != nil {
			report.WriteString("- the module " + m.path + ": removed\n")
			continue
		}
		file := filepath.Join(filepath.Dir(clone), strings.ReplaceAll(m.path, "/", "_"))
		if _, err := run(filepath.Join(old, m.dir), apidiff, "-m", "-w", file, m.path); err != nil {
			return "", err
		}
		said, err := run(filepath.Join(clone, m.dir), apidiff, "-m", "-incompatible", file, m.path)
		if err != nil {
			return "", err
		}
		report.WriteString(promisedOnly(said))
	}
	return report.String(), nil
}
