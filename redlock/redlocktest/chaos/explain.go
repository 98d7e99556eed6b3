//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/redburst/redburst/conn"
	records "github.com/redburst/redburst/redlock/internal/record"
	"github.com/redburst/redburst/redlock/internal/story"
)

// explain returns what the clients' flight records say was remarkable, and which clients have none: they were killed
// before it had a head.
func (a *arena) explain() (all []story.Finding, missing []string, err error) {
	var sources []story.Source
	for _, p := range a.fleet.all {
		r, err := readFlight(p.journal + flightSuffix)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", p.name, err)
		}
		switch {
		case r != nil:
			sources = append(sources, story.Source{Name: p.name, Record: r})
		case p.killed || !p.cmd.ProcessState.Success(): // how it died is a violation already
			missing = append(missing, p.name)
		default:
			return nil, nil, fmt.Errorf("%s has ended by itself, and left no flight record", p.name)
		}
	}
	return story.Tell(sources, time.Hour).Findings, missing, nil
}

// kinds counts findings by what they are about, their causes, and whether nothing else can have been.
func kinds(all []story.Finding) map[string]int {
	n := map[string]int{}
	for _, f := range all {
		kind := string(f.Matter)
		if f.Cause != "" {
			kind += " (" + string(f.Cause) + ")"
		}
		if f.Maybe || f.Likely {
			kind += ", maybe"
		}
		n[kind]++
	}
	return n
}

// readFlight returns nil if there is no record, or one without a whole head.
func readFlight(path string) (*records.Record, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := records.Read(f)
	if errors.Is(err, records.ErrNoRecord) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, nil
	}
	return r, err
}

// A planted is what was done so that a rule is broken: to which masters, and when.
type planted struct {
	masters []string // as the clients know them; nil if it is not a master's fault
	at      time.Time
}

// plant notes that something is done to these masters.
func (a *arena) plant(masters ...int) {
	a.planted = planted{at: time.Now()}
	for _, i := range masters {
		a.planted.masters = append(a.planted.masters, conn.Redact(a.fleet.config.Masters[i]))
	}
}

// tells reports whether a finding blames the masters to which something was done, some of them at the least and no others, after that was
// done, and is certain that it was so. Whether who let go late has relied on its lock until then, no record says.
func (p planted) tells(f story.Finding) bool {
	others := slices.ContainsFunc(f.Masters, func(m string) bool { return !slices.Contains(p.masters, m) })
	return !others && (len(f.Masters) > 0) == (len(p.masters) > 0) && (!f.Maybe || f.Matter == story.Late) && len(f.Grounds) > 0 && !f.At.Before(p.at) && f.At.Before(time.Now())
}

// explains prints of which keys the flight records tell that two had them at once, or, if the cause is story.Frozen, that one
// went on after its time. It reports whether they tell so of these keys, with that cause, the masters and the time of what was planted, and of
// no other.
func (a *arena) explains(out io.Writer, cause story.Cause, keys ...string) (as bool, err error) {
	findings, _, err := a.explain()
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
		case f.Matter == matter && f.Cause == cause && a.planted.tells(f):
			found[f.Key] = true
		case f.Matter == story.Overlap || f.Matter == matter:
			as = false
			line(out, "explain", "%v %s, of %v: %s", f.At, f.Cause, f.Masters, f.Text)
		}
	}
	for _, key := range keys {
		as = as && found[key]
	}
	line(out, "explain", "flight records: keys with %s: %d, as %s", what, len(found), cause)
	return as && len(found) == len(keys), nil
}
