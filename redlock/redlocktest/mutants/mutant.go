package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A mutant is a fault, and the tests that should notice it.
type mutant struct {
	name  string
	path  string // of the patch
	fault string // what is wrong
	kind  string
	tests []tests
	chaos bool // chaos should notice it, too
}

// tests are some tests of one package.
type tests struct {
	setup
	names []string // in full, with those of subtests
}

// A setup is how the tests of a package are built and run. It can be compared.
type setup struct {
	pkg   string // such as ./redlock
	tags  string
	flags string
}

func (s setup) String() string {
	said := "go test"
	if s.tags != "" {
		said += " -tags " + s.tags
	}
	if s.flags != "" {
		said += " " + s.flags
	}
	return said + " " + s.pkg
}

var kinds = []string{"safety", "security", "liveness", "resources", "report"}

// load reads the patches in a directory, in the order of their names.
func load(dir string) ([]*mutant, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.patch"))
	if err != nil {
		return nil, err
	}
	var all []*mutant
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		m, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		m.name, m.path = strings.TrimSuffix(filepath.Base(path), ".patch"), path
		all = append(all, m)
	}
	return all, nil
}

// field is a line of the header that is not part of the sentence.
var field = regexp.MustCompile(`^([A-Z][a-z]+): (.+)$`)

// parse reads what stands before the diff.
func parse(patch []byte) (*mutant, error) {
	m := &mutant{}
	var common setup
	var fault []string
	lines := bufio.NewScanner(bytes.NewReader(patch))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "diff --git ") {
			break
		}
		part := field.FindStringSubmatch(line)
		if part == nil {
			if line != "" {
				fault = append(fault, line)
			}
			continue
		}
		switch value := part[2]; part[1] {
		case "Kind":
			m.kind = value
		case "Test":
			words := strings.Fields(value)
			m.tests = append(m.tests, tests{setup{pkg: words[0]}, words[1:]})
		case "Tags":
			common.tags = value
		case "Flags":
			common.flags = value
		case "Chaos":
			m.chaos = value == "yes"
		default:
			return nil, fmt.Errorf("%s is none of Kind, Test, Tags, Flags and Chaos", part[1])
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	m.fault = strings.Join(fault, " ")
	switch {
	case m.fault == "":
		return nil, errors.New("it does not say what the fault is")
	case !slices.Contains(kinds, m.kind):
		return nil, fmt.Errorf("its Kind is %q, and none of %s", m.kind, strings.Join(kinds, ", "))
	case len(m.tests) == 0:
		return nil, errors.New("it names no Test")
	}
	for i := range m.tests {
		t := &m.tests[i]
		if !strings.HasPrefix(t.pkg, "./") || len(t.names) == 0 {
			return nil, fmt.Errorf("its Test is not a package, such as ./redlock, and names of tests")
		}
		t.tags, t.flags = common.tags, common.flags
	}
	return m, nil
}
