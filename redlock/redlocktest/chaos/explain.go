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

// explains prints which overlaps the flight records tell of, and reports whether they are on these keys, one on each, and
// have that cause.
func (a *arena) explains(out io.Writer, cause story.Cause, keys ...string) (as bool, err error) {
	findings, err := a.explain()
	if err != nil {
		return false, err
	}
	found, others := map[string]int{}, 0
	for _, f := range findings {
		switch {
		case f.Matter != story.Overlap:
		case f.Cause == cause:
			found[f.Key]++
		default:
			others++
			line(out, "explain", "%s: %s", f.Cause, f.Text)
		}
	}
	as = others == 0 && len(found) == len(keys)
	for _, key := range keys {
		as = as && found[key] > 0
	}
	line(out, "explain", "flight records: %d keys with two holders at once, as %s", len(found), cause)
	return as, nil
}
