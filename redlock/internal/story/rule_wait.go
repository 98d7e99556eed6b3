package story

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// fewWaits is how many long waits of one party for one key are told one by one.
const fewWaits = 3

// judgeWaits says which waits were long. Of many of a party for a key, it tells the longest.
func (s *Story) judgeWaits(byKey map[name][]*Hold, wait time.Duration) {
	type group struct {
		party *Party
		key   string
	}
	all := map[group][]*Wait{}
	holds := func(g group) []*Hold { return byKey[name{g.party.database, g.key}] }
	for _, w := range s.Waits {
		if w.To.Sub(w.From) >= wait {
			g := group{w.Party, w.Key}
			all[g] = append(all[g], w)
		}
	}
	for g, waits := range all {
		if len(waits) <= fewWaits {
			for _, w := range waits {
				s.judgeWait(w, holds(g), "")
			}
			continue
		}
		longest := slices.MaxFunc(waits, func(a, b *Wait) int { return cmp.Compare(a.To.Sub(a.From), b.To.Sub(b.From)) })
		s.judgeWait(longest, holds(g), fmt.Sprintf("%s had %d long waits for %q, of which this was the longest: ", g.party.Name, len(waits), g.key))
	}
}

// judgeWait says who of those that had the key had it while one has waited.
func (s *Story) judgeWait(w *Wait, holds []*Hold, before string) {
	if !s.room(Waiting, w.Key) || !s.spend(2*len(holds)) {
		return
	}
	var had []string
	how := ", one after the other"
	var got *Hold // what it waited for
	for _, h := range holds {
		if h.Party == w.Party && w.Outcome == "ok" && h.Taken.After(w.From) && !h.Taken.After(w.To) {
			got = h
		}
	}
	for _, h := range holds {
		if h != got && h.Taken.Before(w.To) && h.Ended.After(w.From) {
			if h.Holders != 1 { // readers, and permits
				how = ""
			}
			had = append(had, fmt.Sprintf("%s had it for %s", h.Party.Name, Short(minTime(w.To, h.Ended).Sub(laterTime(w.From, h.Taken)))))
		}
	}
	who := ""
	switch n := len(had); {
	case n > 5:
		who = fmt.Sprintf(" Meanwhile %d others had it%s.", n, how)
	case n > 0:
		who = fmt.Sprintf(" Meanwhile %s.", list(had))
	case w.HeldBy != "" && w.Outcome == "held":
		who = fmt.Sprintf(" %s had it, by what the masters say. Its record is not here.", w.HeldBy)
	}
	end := "and took it"
	if w.Outcome != "ok" {
		end = "and did not get it (" + inWords(w.Outcome) + ")"
	}
	s.find(w.To, Waiting, "", w.Key, "%s%s waited %s for %q, %s.%s", before, w.Party.Name, Short(w.To.Sub(w.From)), w.Key, end, who)
}

func laterTime(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
