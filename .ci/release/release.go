package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/mod/semver"
)

// A release is one call of the command.
type release struct {
	root    string   // the repository
	version string   // v0.1.0
	gate    []string // the command that must pass, in a clean clone
	push    bool
	out     io.Writer
}

// do checks everything before it changes anything. The branch and the tags change in one step, at the end.
func (r *release) do() error {
	root, err := run(r.root, "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	r.root = strings.TrimSpace(root)
	branch, err := run(r.root, "git", "symbolic-ref", "HEAD")
	if err != nil {
		return fmt.Errorf("a release is made on a branch: %w", err)
	}
	branch = strings.TrimSpace(branch)
	before, err := run(r.root, "git", "rev-parse", "HEAD")
	if err != nil {
		return err
	}
	before = strings.TrimSpace(before)
	all, err := modulesOf(r.root)
	if err != nil {
		return err
	}
	last, err := r.check(all)
	if err != nil {
		return err
	}

	tmp, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	clone := filepath.Join(tmp, "clone")
	if _, err := run(r.root, "git", "clone", "--quiet", r.root, clone); err != nil {
		return err
	}
	if err := r.compare(clone, last); err != nil {
		return err
	}
	if err := sameAuthor(r.root, clone); err != nil {
		return err
	}
	r.say("the gate: %s", strings.Join(r.gate, " "))
	if _, err := run(clone, r.gate[0], r.gate[1:]...); err != nil {
		return fmt.Errorf("the gate has failed: %w", err)
	}
	released, next, err := r.commit(clone, all, fileProxy{filepath.Join(tmp, "proxy")})
	if err != nil {
		return err
	}

	if _, err := run(r.root, "git", "fetch", "--quiet", clone, "HEAD"); err != nil { // brings the objects
		return err
	}
	update := fmt.Sprintf("start\nupdate %s %s %s\n", branch, next, before)
	refs := []string{branch}
	for _, m := range all {
		ref := "refs/tags/" + m.tag(r.version)
		update += fmt.Sprintf("create %s %s\n", ref, released)
		refs = append(refs, ref)
	}
	if err := updateRefs(r.root, update+"prepare\ncommit\n"); err != nil {
		return err
	}
	// The commits differ from what is checked out in the changed files alone, and the tree is clean.
	if _, err := run(r.root, "git", "reset", "--quiet", "--hard"); err != nil {
		return err
	}
	for _, m := range all {
		r.say("tagged %s", m.tag(r.version))
	}
	push := append([]string{"push", "--atomic", "origin"}, refs...)
	if !r.push {
		r.say("Nothing has left this machine. To publish: git %s", strings.Join(push, " "))
		return nil
	}
	_, err = run(r.root, "git", push...)
	return err
}

// check looks at what needs no build. It returns the last version; empty if there is none.
func (r *release) check(all []goModule) (last string, err error) {
	if !semver.IsValid(r.version) || semver.Canonical(r.version) != r.version {
		return "", fmt.Errorf("%q is no version: write one as v0.1.0", r.version)
	}
	if major := semver.Major(r.version); major != "v0" && major != "v1" {
		return "", fmt.Errorf("%s: from v2 on, the paths of all modules must end with /%s", r.version, major)
	}
	status, err := run(r.root, "git", "status", "--porcelain")
	if err != nil {
		return "", err
	}
	if status != "" {
		return "", fmt.Errorf("the tree is not clean:\n%s", status)
	}
	tags, err := run(r.root, "git", "tag", "--list")
	if err != nil {
		return "", err
	}
	have := make(map[string]bool)
	for _, tag := range strings.Fields(tags) {
		have[tag] = true
		if semver.IsValid(tag) && (last == "" || semver.Compare(tag, last) > 0) {
			last = tag
		}
	}
	if last != "" && semver.Compare(r.version, last) <= 0 {
		return "", fmt.Errorf("%s is not above %s, the last version", r.version, last)
	}
	for _, m := range all {
		if tag := m.tag(r.version); have[tag] {
			return "", fmt.Errorf("the tag %s exists", tag)
		}
	}
	text, err := os.ReadFile(filepath.Join(r.root, "CHANGELOG.md"))
	if err != nil {
		return "", err
	}
	_, err = sectionOf(string(text), r.version)
	return last, err
}

var breaking = regexp.MustCompile(`(?m)^### Breaking$`)

var heading = regexp.MustCompile(`(?m)^## \[([^\]]+)\](?: - (\d{4}-\d{2}-\d{2}))?\s*$`)

// sectionOf returns what the changelog says of a version. It fails if that is nothing, or has no date, or if something
// stands there that is in no version.
func sectionOf(changelog, version string) (string, error) {
	all := heading.FindAllStringSubmatchIndex(changelog, -1)
	section := ""
	for i, at := range all {
		end := len(changelog)
		if i+1 < len(all) {
			end = all[i+1][0]
		}
		text := strings.TrimSpace(changelog[at[1]:end])
		switch name := changelog[at[2]:at[3]]; {
		case name == "Unreleased" && text != "":
			return "", errors.New("CHANGELOG.md: move what is under [Unreleased] into the section of this version")
		case "v"+name == version && at[4] < 0:
			return "", fmt.Errorf("CHANGELOG.md: the section [%s] has no date: ## [%s] - 2006-01-02", name, name)
		case "v"+name == version:
			section = text
		}
	}
	if section == "" {
		return "", fmt.Errorf("CHANGELOG.md has nothing under ## [%s] - 2006-01-02", strings.TrimPrefix(version, "v"))
	}
	return section, nil
}

// compare lists what the modules export otherwise than in the last version. It refuses what breaks users, unless the
// section of the changelog has a part "Breaking".
func (r *release) compare(clone, last string) error {
	if last == "" {
		r.say("no version before this one: nothing to compare")
		return nil
	}
	text, err := os.ReadFile(filepath.Join(clone, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	section, err := sectionOf(string(text), r.version)
	if err != nil {
		return err
	}
	breaks, err := r.breaks(clone, last)
	if err != nil || breaks == "" {
		return err
	}
	r.say("this breaks users of %s:\n%s", last, breaks)
	switch {
	case !breaking.MatchString(section):
		return fmt.Errorf("%s breaks users of %s, and CHANGELOG.md has no part \"### Breaking\"", r.version, last)
	case semver.Major(r.version) != "v0" && semver.Major(last) == semver.Major(r.version):
		return fmt.Errorf("%s breaks users of %s: that takes a new major version", r.version, last)
	case semver.MajorMinor(r.version) == semver.MajorMinor(last):
		return fmt.Errorf("%s breaks users of %s: that takes a new minor version", r.version, last)
	}
	return nil
}

// commit makes the two commits in the clone, and returns them.
func (r *release) commit(clone string, all []goModule, proxy fileProxy) (released, next string, err error) {
	r.say("each module, with nothing but what is published before it")
	if err := publish(clone, r.version, all, proxy); err != nil {
		return "", "", err
	}
	if released, err = commitModules(clone, "release: "+r.version+"\n\nEach module requires the others at this version."); err != nil {
		return "", "", err
	}
	for _, m := range all {
		if err := replaceBack(clone, all, m); err != nil {
			return "", "", err
		}
	}
	next, err = commitModules(clone, "release: development goes on after "+r.version+"\n\nThe modules of the tree use each other as they stand.")
	return released, next, err
}

// replaceBack makes a module use those of the tree that it needs.
func replaceBack(root string, all []goModule, m goModule) error {
	if len(m.needs) == 0 {
		return nil
	}
	name := filepath.Join(root, filepath.FromSlash(m.dir), "go.mod")
	file, err := readModule(name)
	if err != nil {
		return err
	}
	for _, other := range all {
		for _, needed := range m.needs {
			if other.path != needed {
				continue
			}
			to, err := filepath.Rel(m.dir, other.dir)
			if err != nil {
				return err
			}
			if to = filepath.ToSlash(to); !strings.HasPrefix(to, ".") {
				to = "./" + to
			}
			if err := file.AddReplace(needed, "", to, ""); err != nil {
				return err
			}
		}
	}
	return writeModule(name, file)
}

// sameAuthor has a clone commit in the name of whoever commits in the repository.
func sameAuthor(root, clone string) error {
	for _, key := range []string{"user.name", "user.email"} {
		value, err := run(root, "git", "config", key)
		if err != nil {
			return fmt.Errorf("git does not know who releases: %w", err)
		}
		if _, err := run(clone, "git", "config", key, strings.TrimSpace(value)); err != nil {
			return err
		}
	}
	return nil
}

// commitModules commits the changes of the modules' files, if there are any, and returns the commit.
func commitModules(dir, message string) (string, error) {
	if _, err := run(dir, "git", "add", "--", "*go.mod", "*go.sum"); err != nil {
		return "", err
	}
	if _, err := run(dir, "git", "diff", "--cached", "--quiet"); err != nil { // something is to be committed
		if _, err := run(dir, "git", "commit", "--quiet", "-m", message); err != nil {
			return "", err
		}
	}
	at, err := run(dir, "git", "rev-parse", "HEAD")
	return strings.TrimSpace(at), err
}

func (r *release) say(format string, args ...any) { fmt.Fprintf(r.out, format+"\n", args...) }
