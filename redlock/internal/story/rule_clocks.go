package story

import (
	"cmp"
	"time"

	"github.com/redburst/redburst/redlock/flight"
)

// clockBound is from when on a difference of clocks is remarkable.
const clockBound = 200 * time.Millisecond

// judgeClocks tells of clocks that differ, and that were set. Grounds: what a master's clock said to two, or to one twice, each in a
// handshake of its own; and of a host's, the wall clock beside the one since boot of each event.
func (s *Story) judgeClocks() {
	told := map[*Clock]bool{}
	for _, t := range s.tapes {
		if len(t.parties) == 0 {
			continue
		}
		p, c := t.parties[0], t.clock
		s.judgeJumps(t, p)
		if told[c] || c.Off.Abs() < clockBound+c.within {
			continue
		}
		told[c] = true
		what := "ahead of"
		if c.Off < 0 {
			what = "behind"
		}
		s.find(c.at(p.About.BeganBoot), Clocks, "", "", "The wall clock of %s is %s %s that of %s. All times here are by the latter.",
			cmp.Or(c.Host, p.Source)+" ("+p.Name+")", Short(c.Off), what, s.Parties[0].Name)
	}
	last := map[string]*Seen{} // by run id
	for _, m := range s.Masters {
		if m.Ahead == 0 || m.RunID == "" || !m.fresh {
			continue
		}
		k := last[m.RunID]
		last[m.RunID] = m
		if k == nil {
			continue
		}
		gained := s.gained(k, m)
		if since := m.At.Sub(k.At); gained.Abs() > clockBound && gained.Abs() > since/50 {
			what := "forward"
			if gained < 0 {
				what = "back"
			}
			f := s.find(m.At, Clocks, "", "", "The clock of the master %s was set %s by %s, or runs wrong: it moved so far within %s.", m.Key, what, Short(gained), Short(since))
			f.Grounds = []Ground{{k.Party, k.Event}, {m.Party, m.Event}}
		}
	}
}

// judgeJumps finds where the wall clock of a record was set.
func (s *Story) judgeJumps(t *tape, p *Party) {
	var before *flight.Event
	for e := range t.record.Events() {
		if before != nil {
			moved := e.Wall.Sub(before.Wall) - (e.Boot - before.Boot)
			if moved.Abs() > clockBound && e.Kind != flight.KindRound && before.Kind != flight.KindRound || moved.Abs() > 2*time.Second {
				what := "forward"
				if moved < 0 {
					what = "back"
				}
				f := s.find(p.Clock.at(e.Boot), Clocks, "", "", "The wall clock of %s (%s) was set %s by %s.", cmp.Or(p.Clock.Host, p.Source), p.Name, what, Short(moved))
				f.Grounds = []Ground{{p, before}, {p, e}}
			}
		}
		before = e
	}
}
