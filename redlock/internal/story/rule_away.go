package story

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/redlock/internal/record"
)

// An absence of a master began with was. If it came back before it had a vote, that is mute.
type absence struct{ was, mute *Seen }

func (a absence) phase() string {
	if a.mute != nil {
		return "away"
	}
	return cmp.Or(phaseWords[a.was.Phase], a.was.Phase)
}

// judgeMasters says which masters were away, by anybody's record. Grounds: the phases that a client has told of, the first and the last. What
// ended with the client itself, or as the master's place was given to another, is no absence.
func (s *Story) judgeMasters() {
	type view struct {
		party *Party
		addr  string
	}
	since := map[view]absence{}
	closed := map[*Party]*Seen{} // of one that is not connected, Close tells nothing
	var all []absent
	for _, m := range s.Masters {
		v := view{m.Party, m.Key}
		if m.Kind != record.KindMaster {
			continue
		}
		if closedWith(m) {
			closed[m.Party] = m
			continue
		}
		a := since[v]
		up := m.Phase == "up"
		switch {
		case !up && a.was == nil && m.Phase != "dialing" && !replaced(m):
			since[v] = absence{was: m}
		case !up && a.was != nil && a.mute == nil && m.Phase == "quarantined":
			since[v] = absence{a.was, m}
		case replaced(m) && a.was != nil:
			all = append(all, absent{absence: a, last: m, suffix: ", until its place was given to another"})
			delete(since, v)
		case up && a.was != nil:
			then := ""
			if a.mute != nil {
				then = fmt.Sprintf(". For the last %s of that it was connected, but had no vote, as it might have forgotten locks", Short(m.At.Sub(a.mute.At)))
			}
			all = append(all, absent{absence: a, last: m, then: then})
			delete(since, v)
		}
	}
	for _, a := range since {
		then := ""
		if a.mute != nil {
			then = fmt.Sprintf(". From %s on it was connected, but had no vote, as it might have forgotten locks", a.mute.At.Format(clockFormat))
		}
		x := absent{absence: a, then: then}
		if c := closed[a.was.Party]; c != nil && !c.At.Before(a.was.At) {
			x.last, x.suffix = c, ", until the client was closed"
		}
		all = append(all, x)
	}
	s.tellAbsences(all)
}

// An absent is an absence as one client saw it.
type absent struct {
	absence
	last         *Seen // nil to the end of the record
	suffix, then string
}

// tellAbsences tells of absences. What several clients saw of one master at about the same time is one, and as long as the
// longest.
func (s *Story) tellAbsences(all []absent) {
	slices.SortFunc(all, func(a, b absent) int {
		return cmp.Or(a.was.At.Compare(b.was.At), cmp.Compare(a.was.Key, b.was.Key), cmp.Compare(a.was.Party.Name, b.was.Party.Name))
	})
	for len(all) > 0 {
		first, long := all[0], time.Duration(0)
		var by []string
		var grounds []Ground
		all = slices.DeleteFunc(all, func(a absent) bool {
			if a.was.Key != first.was.Key || a.phase() != first.phase() || (a.last == nil) != (first.last == nil) || a.suffix != first.suffix ||
				(a.then == "") != (first.then == "") || a.was.At.Sub(first.was.At) > oneAbsence {
				return false
			}
			by = append(by, a.was.Party.Name)
			grounds = append(grounds, Ground{a.was.Party, a.was.Event})
			if last := cmp.Or(a.last, a.mute); last != nil {
				grounds = append(grounds, Ground{last.Party, last.Event})
			}
			if a.last != nil {
				long = max(long, a.last.At.Sub(a.was.At))
			}
			return true
		})
		slices.Sort(by)
		how := "to the end of the record"
		if first.last != nil {
			how = "for " + Short(long) + first.suffix
		}
		f := s.find(first.was.At, Away, "", "", "%s was %s %s, as %s saw it%s%s.", first.was.Key, first.phase(), how, list(by), because(first.was), first.then)
		f.Grounds = grounds
	}
}

// oneAbsence is how far apart clients see that a master is away, which look at different moments.
const oneAbsence = 2 * time.Second

// phaseWords say what a phase means; the others are words.
var phaseWords = map[string]string{"stalled": "silent", "down": "not connected", "quarantined": "without a vote"}

// closedWith reports whether the client has left the master.
func closedWith(m *Seen) bool {
	return strings.Contains(m.Err, "closed") && !strings.Contains(m.Err, ":") || m.Err == "mux: closed"
}

// replaced reports whether the master was given up for another.
func replaced(m *Seen) bool { return strings.Contains(m.Err, "it was replaced") }

func because(m *Seen) string {
	if m.Err == "" || m.Phase == "stalled" {
		return ""
	}
	return " (" + reason(m.Err, m.Key) + ")"
}
