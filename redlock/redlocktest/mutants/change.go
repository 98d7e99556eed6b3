package main

import (
	"cmp"
	"context"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A change is what differs between a revision and the work tree: lines of the files as they are
// now, and mutants.
type change struct {
	lines   map[string][][2]int // the first and the last line of each stretch, by the files
	mutants map[string]bool     // by their names
}

// hunk is the head of a stretch of a diff, and what it says of the new lines.
var hunk = regexp.MustCompile(`^@@ -\S+ \+(\d+)(?:,(\d+))? @@`)

// since asks git for the change.
func since(ctx context.Context, root, revision string) (*change, error) {
	diff, err := output(command(ctx, root, "git", "diff", "--unified=0", "--no-color", "--no-ext-diff", "--no-renames", "--src-prefix=a/", "--dst-prefix=b/", revision, "--"))
	if err != nil {
		return nil, err
	}
	c := &change{map[string][][2]int{}, map[string]bool{}}
	file := ""
	for line := range strings.Lines(diff) {
		line = strings.TrimRight(line, "\n")
		if name, ok := strings.CutPrefix(line, "+++ b/"); ok {
			file = name
			if m, ok := strings.CutSuffix(path.Base(file), ".mutant"); ok {
				c.mutants[m] = true
			}
			continue
		}
		h := hunk.FindStringSubmatch(line)
		if h == nil {
			continue
		}
		first, _ := strconv.Atoi(h[1])
		n := 1
		if h[2] != "" {
			n, _ = strconv.Atoi(h[2])
		}
		last := first + n - 1
		if n == 0 { // lines are gone between this one and the next
			last = first + 1
		}
		c.lines[file] = append(c.lines[file], [2]int{first, last})
	}
	return c, nil
}

// touches says whether the change is about a mutant: about its old text where it stands now, or about itself.
func (c *change) touches(m *mutant, all sources) bool {
	return c.mutants[m.name] || m.stands(all, func(p place) bool {
		return slices.ContainsFunc(c.lines[p.file], func(l [2]int) bool { return l[0] <= p.last && l[1] >= p.first })
	})
}

// stands says whether one of its texts is at such a place, or is not to be found, which is to be said.
func (m *mutant) stands(all sources, is func(place) bool) bool {
	places, err := m.places(all)
	return err != nil || slices.ContainsFunc(places, is)
}

// newestFirst sorts mutants by the last commit since a revision that has changed them. What is to be committed is the
// newest, and what has not changed itself comes last.
func (c *change) newestFirst(ctx context.Context, root, revision string, all []*mutant) error {
	log, err := output(command(ctx, root, "git", "log", "--format=", "--name-only", "--no-renames", revision+"..HEAD", "--", "*.mutant"))
	if err != nil {
		return err
	}
	age := map[string]int{}
	for file := range strings.Lines(log) {
		name := strings.TrimSuffix(path.Base(strings.TrimSpace(file)), ".mutant")
		if _, known := age[name]; !known {
			age[name] = len(age)
		}
	}
	for _, m := range all {
		_, known := age[m.name]
		switch {
		case known:
		case c.mutants[m.name]:
			age[m.name] = -1
		default:
			age[m.name] = math.MaxInt
		}
	}
	slices.SortStableFunc(all, func(a, b *mutant) int { return cmp.Compare(age[a.name], age[b.name]) })
	return nil
}
