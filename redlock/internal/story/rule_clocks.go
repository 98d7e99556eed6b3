package story

import (
	"cmp"
	"time"

	"github.com/redburst/redburst/redlock/internal/record"
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

// jumped notes if the wall clock of a record was set between an event and the one before it.
func (t *tape) jumped(e *record.Event) {
	if b := t.before; b != nil && len(t.jumps) < maxFound {
		moved := jump(b, e).Abs()
		if moved > clockBound && e.Kind != record.KindRound && b.Kind != record.KindRound || moved > 2*time.Second {
			t.jumps = append(t.jumps, [2]*record.Event{b, e})
		}
	}
	t.before = e
}

func jump(from, to *record.Event) time.Duration {
	return to.Wall.Sub(from.Wall) - (to.Boot - from.Boot)
}

// judgeJumps tells where the wall clock of a record was set.
func (s *Story) judgeJumps(t *tape, p *Party) {
	for _, j := range t.jumps {
		what, moved, or := "forward", jump(j[0], j[1]), ", or its clock since boot stood still for as long: it slept, or its machine was paused"
		if moved < 0 {
			what, or = "back", ""
		}
		f := s.find(p.Clock.at(j[1].Boot), Clocks, "", "", "The wall clock of %s (%s) was set %s by %s%s.", cmp.Or(p.Clock.Host, p.Source), p.Name, what, Short(moved), or)
		f.Grounds = []Ground{{p, j[0]}, {p, j[1]}}
	}
}
