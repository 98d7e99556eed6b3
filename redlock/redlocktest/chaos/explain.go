//go:build linux

package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/redburst/redburst/redlock/flight"
	"github.com/redburst/redburst/redlock/internal/story"
)

// explain returns what the clients' flight records say was remarkable.
func (a *arena) explain() (all []story.Finding, err error) {
	var sources []story.Source
	for _, p := range a.fleet.all {
		f, err := os.Open(p.journal + flightSuffix)
		if err != nil {
			return nil, err
		}
		r, err := flight.Read(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		sources = append(sources, story.Source{Name: p.name, Record: r})
	}
	return story.Tell(sources, time.Hour).Findings, nil
}

// explains prints of which keys the flight records tell that two had them at once, or, if the cause is story.Frozen, that one
// went on after its time. It reports whether they tell so of these keys, with that cause, and of no other.
func (a *arena) explains(out io.Writer, cause story.Cause, keys ...string) (as bool, err error) {
	findings, err := a.explain()
	if err != nil {
		return false, err
	}
	what, as := "two holders at once", true
	matter := story.Overlap
	if cause == story.Frozen {
		what, matter = "one who went on after its time", story.Late
	}
	found := map[string]bool{}
	for _, f := range findings {
		switch {
		case f.Matter == matter && f.Cause == cause:
			found[f.Key] = true
		case f.Matter == story.Overlap || f.Matter == matter:
			as = false
			line(out, "explain", "%s: %s", f.Cause, f.Text)
		}
	}
	for _, key := range keys {
		as = as && found[key]
	}
	line(out, "explain", "flight records: keys with %s: %d, as %s", what, len(found), cause)
	return as && len(found) == len(keys), nil
}
