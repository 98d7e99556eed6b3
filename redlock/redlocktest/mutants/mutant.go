package main

import (
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
	name   string
	fault  string // what is wrong
	breaks string // what it breaks, one of kinds
	way    string // the kind of test that notices it, if the mutant says so
	swaps  []swap
	tests  []tests
	chaos  bool // chaos should notice it, too
}

// A swap is a text of the sources and what the fault has in its place, each of whole lines.
type swap struct{ old, new string }

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

var (
	kinds = []string{"safety", "security", "liveness", "resources", "report"}
	ways  = []string{"second time", "one of several", "bounds of time", "window", "not to be said"}
)

// load reads the mutants in a directory, in the order of their names.
func load(dir string) ([]*mutant, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.mutant"))
	if err != nil {
		return nil, err
	}
	var all []*mutant
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		m, err := parse(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		m.name = strings.TrimSuffix(filepath.Base(path), ".mutant")
		all = append(all, m)
	}
	return all, nil
}

// field is a line of the header that is not part of the sentence.
var field = regexp.MustCompile(`^([A-Z][a-z]+): (.+)$`)

// parse reads the header, and the pairs of texts after it.
func parse(text string) (*mutant, error) {
	m := &mutant{}
	var common setup
	var fault []string
	var in *string // the text that the lines belong to, after the header
	for line := range strings.Lines(text) {
		switch bare := strings.TrimRight(line, "\r\n"); {
		case bare == "--- old":
			m.swaps = append(m.swaps, swap{})
			in = &m.swaps[len(m.swaps)-1].old
			continue
		case bare == "--- new":
			if len(m.swaps) == 0 || in == &m.swaps[len(m.swaps)-1].new {
				return nil, errors.New("a new text has no old one before it")
			}
			in = &m.swaps[len(m.swaps)-1].new
			continue
		case in != nil:
			*in += bare + "\n"
			continue
		}
		line = strings.TrimSpace(line)
		part := field.FindStringSubmatch(line)
		if part == nil {
			if line != "" {
				fault = append(fault, line)
			}
			continue
		}
		switch value := part[2]; part[1] {
		case "Breaks":
			m.breaks = value
		case "Way":
			m.way = value
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
			return nil, fmt.Errorf("%s is none of Breaks, Way, Test, Tags, Flags and Chaos", part[1])
		}
	}
	m.fault = strings.Join(fault, " ")
	switch {
	case m.fault == "":
		return nil, errors.New("it does not say what the fault is")
	case !slices.Contains(kinds, m.breaks):
		return nil, fmt.Errorf("it Breaks %q, which is none of %s", m.breaks, strings.Join(kinds, ", "))
	case m.way != "" && !slices.Contains(ways, m.way):
		return nil, fmt.Errorf("its Way is %q, which is none of %s", m.way, strings.Join(ways, ", "))
	case len(m.tests) == 0:
		return nil, errors.New("it names no Test")
	case len(m.swaps) == 0:
		return nil, errors.New("it has no old and new text")
	}
	for _, s := range m.swaps {
		if strings.TrimSpace(s.old) == "" || s.old == s.new {
			return nil, errors.New("an old text is empty, or as the new one")
		}
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

// sources are the texts of the files that mutants are planted in, by their paths in the module.
type sources map[string]string

// A place is where the old text of a swap stands.
type place struct {
	file        string
	from, to    int // in bytes
	first, last int // its lines, from 1
}

// places finds the old texts. Each must stand in one place.
func (m *mutant) places(all sources) ([]place, error) {
	var found []place
	for _, s := range m.swaps {
		var here []place
		for file, text := range all {
			for at := 0; ; {
				i := strings.Index(text[at:], s.old)
				if i < 0 {
					break
				}
				if from := at + i; from == 0 || text[from-1] == '\n' {
					first := strings.Count(text[:from], "\n") + 1
					here = append(here, place{file, from, from + len(s.old), first, first + strings.Count(s.old, "\n") - 1})
				}
				at += i + 1
			}
		}
		if len(here) != 1 {
			where := make([]string, len(here))
			for i, p := range here {
				where[i] = fmt.Sprintf("%s:%d", p.file, p.first)
			}
			slices.Sort(where)
			return nil, fmt.Errorf("its old text stands in %d places, not in one: %s\n%s", len(here), strings.Join(where, " "), s.old)
		}
		found = append(found, here[0])
	}
	return found, nil
}

// plant returns the files that the mutant changes, as they are with it.
func (m *mutant) plant(all sources) (sources, error) {
	places, err := m.places(all)
	if err != nil {
		return nil, err
	}
	order := make([]int, len(places))
	for i := range order {
		order[i] = i
	}
	// From the end to the beginning, so that the places before stay where they are.
	slices.SortFunc(order, func(a, b int) int { return places[b].from - places[a].from })
	changed := sources{}
	end := map[string]int{} // of what is not changed yet
	for _, i := range order {
		p := places[i]
		text, ok := changed[p.file]
		if !ok {
			text, end[p.file] = all[p.file], len(all[p.file])
		}
		if p.to > end[p.file] {
			return nil, errors.New("two of its old texts overlap")
		}
		changed[p.file], end[p.file] = text[:p.from]+m.swaps[i].new+text[p.to:], p.from
	}
	return changed, nil
}
