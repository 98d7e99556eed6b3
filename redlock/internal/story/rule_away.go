package story

import (
	"fmt"
	"strings"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/flight"
)

// An absence of a master began with was. If it came back before it had a vote, that is mute.
type absence struct{ was, mute *Seen }

func (a absence) phase() string {
	if a.mute != nil {
		return "away"
	}
	return away(a.was.Phase)
}

// judgeMasters says which masters were away, by anybody's record. Grounds: the phases that a client has told of, the first and the last. What
// ended with the client itself, or as the master's place was given to another, is no absence.
func (s *Story) judgeMasters() {
	type view struct {
		party *Party
		addr  string
	}
	since := map[view]absence{}
	for _, m := range s.Masters {
		v := view{m.Party, m.Key}
		if m.Kind != flight.KindMaster {
			continue
		}
		a := since[v]
		up := m.Phase == redlock.PhaseUp
		switch {
		case !up && a.was == nil && m.Phase != redlock.PhaseDialing && !closedWith(m) && !replaced(m):
			since[v] = absence{was: m}
		case !up && a.was != nil && a.mute == nil && m.Phase == redlock.PhaseQuarantined:
			since[v] = absence{a.was, m}
		case replaced(m) && a.was != nil:
			s.absent(a, fmt.Sprintf("for %s, until its place was given to another", Short(m.At.Sub(a.was.At))), "", m)
			delete(since, v)
		case up && a.was != nil:
			then := ""
			if a.mute != nil {
				then = fmt.Sprintf(". For the last %s of that it was connected, but had no vote, as it might have forgotten locks", Short(m.At.Sub(a.mute.At)))
			}
			s.absent(a, "for "+Short(m.At.Sub(a.was.At)), then, m)
			delete(since, v)
		}
	}
	for _, a := range since {
		then := ""
		if a.mute != nil {
			then = fmt.Sprintf(". From %s on it was connected, but had no vote, as it might have forgotten locks", a.mute.At.Format(clockFormat))
		}
		s.absent(a, "to the end of the record", then, a.mute)
	}
}

func (s *Story) absent(a absence, long, then string, last *Seen) {
	f := s.find(a.was.At, Away, "", "", "%s was %s %s, as %s saw it%s%s.", a.was.Key, a.phase(), long, a.was.Party.Name, because(a.was), then)
	f.Grounds = []Ground{{a.was.Party, a.was.Event}}
	if last != nil {
		f.Grounds = append(f.Grounds, Ground{last.Party, last.Event})
	}
}

// away says what a phase means.
func away(p redlock.Phase) string {
	switch p {
	case redlock.PhaseStalled:
		return "silent"
	case redlock.PhaseDown:
		return "not connected"
	case redlock.PhaseRefused:
		return "refused"
	case redlock.PhaseQuarantined:
		return "without a vote"
	}
	return string(p)
}

// closedWith reports whether the client has left the master.
func closedWith(m *Seen) bool {
	return strings.Contains(m.Err, "closed") && !strings.Contains(m.Err, ":") || m.Err == "mux: closed"
}

// replaced reports whether the master was given up for another.
func replaced(m *Seen) bool { return strings.Contains(m.Err, "it was replaced") }

func because(m *Seen) string {
	if m.Err == "" || m.Phase == redlock.PhaseStalled {
		return ""
	}
	return " (" + reason(m.Err, m.Key) + ")"
}
