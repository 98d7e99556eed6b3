package story

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Line is a sentence or more about one moment.
type Line struct {
	At   time.Time
	Text string
	Mark bool // it is remarkable
}

// String is the line with its time of day, in UTC.
func (l Line) String() string { return l.At.Format(clockFormat) + "  " + l.Text }

// Remarkable returns what is remarkable about all keys.
func (s *Story) Remarkable() (all []Line) {
	for _, f := range s.together() {
		all = append(all, Line{f.At, f.Text, true})
	}
	return all
}

// together returns the findings. One fault can end hundreds of locks: those that a party lost next to each other, and of which the
// records say the same, are one finding, with the time, the key and the sentences of the first.
func (s *Story) together() (all []Finding) {
	const (
		apart  = time.Second // no more from one loss to the next
		shown  = 3           // of the others
		others = "%s lost %s within %s, for the same reason as far as the records say. The first: %s Others: %s."
	)
	type fault struct {
		place int // of the first, in all
		last  time.Time
		keys  []string // of the others
	}
	faults := map[string]*fault{}
	var order []*fault
	for _, f := range s.Findings { // by time
		of := faults[f.alike]
		if of != nil && f.At.Sub(of.last) <= apart {
			of.last, of.keys = f.At, append(of.keys, strconv.Quote(f.Key))
			continue
		}
		if f.alike != "" {
			of = &fault{place: len(all), last: f.At}
			faults[f.alike], order = of, append(order, of)
		}
		all = append(all, f)
	}
	for _, of := range order {
		if n := len(of.keys); n > 0 {
			f := &all[of.place]
			more := of.keys
			if n > shown+1 {
				more = append(more[:shown:shown], fmt.Sprintf("%d more", n-shown))
			}
			f.Text = fmt.Sprintf(others, f.Holds[0].Party.Name, count(n+1, "lock"), Short(of.last.Sub(f.At)), f.Text, list(more))
		}
	}
	return all
}

// Of returns the story of a key.
func (s *Story) Of(key string) (all []Line) {
	add := func(at time.Time, format string, args ...any) {
		all = append(all, Line{At: at, Text: fmt.Sprintf(format, args...)})
	}
	for _, h := range s.Holds {
		if len(h.Party.ofOne(h.names(), key)) == 0 {
			continue
		}
		add(h.Taken, "%s", h.begins())
		switch h.End {
		case Released:
			but := ""
			if h.Freed != nil && h.Freed.Outcome != "ok" {
				but = fmt.Sprintf(". But %s: %s", inWords(h.Freed.Outcome), h.Freed.whyFailed())
			}
			add(h.Ended, "%s releases it, after %s%s.", h.Party.Name, Short(h.Ended.Sub(h.Taken)), but)
		case Expired:
			then := "It has not released it."
			if h.gap {
				then = "Events are missing: whether it has released it before is not known."
			}
			add(h.Ended, "The validity of %s's lock ends. %s", h.Party.Name, then)
		case Lost:
			if h.outlived() {
				add(h.Ended, "The validity of %s's lock ends.", h.Party.Name)
			}
			add(laterTime(h.Told, h.Ended), "%s learns that its lock is lost.", h.Party.Name)
		case Open:
			then := "By then it has the lock"
			if h.gap {
				then = "Events are missing: whether it has the lock by then is not known. It has it"
			}
			add(h.Party.last, "The record of %s ends. %s, until %s at the latest.", h.Party.Name, then, h.Until.Format(clockFormat))
		}
	}
	for _, w := range s.Waits {
		if !w.Party.ofKey(w.Key, key) {
			continue
		}
		add(w.From, "%s begins to wait.", w.Party.Name)
		if w.Outcome != "ok" {
			by := ""
			if w.HeldBy != "" && w.Outcome == "held" {
				by = ", as " + w.HeldBy + " has it"
			} else if w.Outcome != "held" {
				by = ", as " + inWords(w.Outcome)
			}
			add(w.To, "%s has waited for %s, and gives up%s.", w.Party.Name, Short(w.To.Sub(w.From)), by)
		}
	}
	type refusals struct {
		n    int
		last time.Time
	}
	tries := map[*Party]*refusals{}
	tell := func(p *Party) {
		if r := tries[p]; r != nil && r.n == 1 {
			add(r.last, "%s tries, and is refused, as another has it.", p.Name)
		} else if r != nil {
			add(r.last, "%s has tried %s, and was refused each time, as another has it.", p.Name, count(r.n, "time"))
		}
		delete(tries, p)
	}
	for _, r := range s.Rounds {
		if !r.Party.ofKey(r.Party.Client.Prefix+r.Key, key) || r.Op != "lock" {
			continue
		}
		if r.Outcome == "held" {
			if tries[r.Party] == nil {
				tries[r.Party] = &refusals{}
			}
			tries[r.Party].n++
			tries[r.Party].last = r.At
			continue
		}
		tell(r.Party)
		if r.Outcome != "ok" {
			add(r.At, "%s does not get it, as %s: %s.", r.Party.Name, inWords(r.Outcome), r.whyFailed())
		}
	}
	for _, p := range s.Parties {
		tell(p)
	}
	for _, f := range s.Findings {
		if s.Concerns(f, key) && f.Matter != Waiting ||
			f.Key == "" && (f.Matter == Lists || f.Matter == Clocks || f.Matter == Away) {
			all = append(all, Line{f.At, f.Text, true})
		}
	}
	slices.SortStableFunc(all, func(a, b Line) int { return a.At.Compare(b.At) })
	return all
}

// outlived reports whether a lock was lost as its validity ended. Who records that is a little later than who decides it, so
// that the two times differ.
func (h *Hold) outlived() bool {
	rest := h.Until.Sub(h.Ended)
	return rest == 0 || h.Last != nil && h.Failed == nil && !h.Revoked && rest < h.Last.TTL/10
}

// begins says how a hold began.
func (h *Hold) begins() string {
	var b strings.Builder
	what := "the lock"
	switch {
	case h.Holders == 0:
		what = "the lock as a reader"
	case h.Holders > 1:
		what = fmt.Sprintf("one of %d permits", h.Holders)
	case len(h.Keys) > 1:
		what = fmt.Sprintf("the lock on %s", list(h.Keys))
	}
	if h.Last == nil || h.First == nil && h.From.Equal(h.Taken) {
		fmt.Fprintf(&b, "%s is handed %s within its process", h.Party.Name, what)
	} else {
		fmt.Fprintf(&b, "%s takes %s", h.Party.Name, what)
	}
	if h.Fence > 0 {
		fmt.Fprintf(&b, ", with fence %d", h.Fence)
	}
	if h.First != nil {
		if text := votesText(h.First, refusals); text != "" {
			fmt.Fprintf(&b, ", although %s", text)
		}
	}
	fmt.Fprintf(&b, ". It is valid until %s", h.Until.Format(clockFormat))
	return b.String() + "."
}

// Knows reports whether somebody has held a key, or wanted it.
func (s *Story) Knows(key string) bool {
	return slices.ContainsFunc(s.Holds, func(h *Hold) bool { return len(h.Party.ofOne(h.names(), key)) > 0 }) ||
		slices.ContainsFunc(s.Rounds, func(r *Round) bool { return len(r.Party.ofOne(r.names(), key)) > 0 }) ||
		slices.ContainsFunc(s.Waits, func(w *Wait) bool { return w.Party.ofKey(w.Key, key) })
}

// Who says whose records these are.
func (s *Story) Who() (all []string) {
	for _, p := range s.Parties {
		line := fmt.Sprintf("%s: process %d of %s on %s, from %s", p.Name, p.About.PID, p.About.Program, cmp.Or(p.About.Host, "an unknown host"),
			p.Clock.at(p.About.BeganBoot).Format("2006-01-02 15:04:05.000"))
		switch {
		case p.About.Ended == nil && p.last.IsZero() && p.Skipped == 0:
			line += ". It has recorded nothing"
		case p.About.Ended == nil && p.last.IsZero():
			line += ". Nothing of it is in the record any more"
		case p.About.Ended == nil:
			line += ", and it still went on, or was killed, after " + p.last.Format(clockFormat)
		default:
			last := p.last
			if last.IsZero() {
				last = p.Clock.at(p.About.BeganBoot + p.About.Ended.Sub(p.About.Began))
			}
			line += " to " + last.Format(clockFormat)
		}
		if p.Skipped > 0 {
			line += fmt.Sprintf(". %s before or amid these are not in it", count(int(p.Skipped), "event"))
		}
		all = append(all, line+".")
	}
	return all
}
