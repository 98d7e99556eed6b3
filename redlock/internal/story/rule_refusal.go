package story

// judgeRounds says which rounds have failed: those with the same outcome, of a party, in one sentence.
func (s *Story) judgeRounds() {
	type group struct {
		party   *Party
		outcome string
		op      string
	}
	type seen struct {
		n           int
		first, last *Round
	}
	var order []group
	all := map[group]*seen{}
	for _, r := range s.Rounds {
		switch r.Outcome {
		case "no_quorum", "refused", "expired", "second", "error":
		default:
			continue
		}
		g := group{r.Party, r.Outcome, r.Op}
		if all[g] == nil {
			all[g] = &seen{first: r}
			order = append(order, g)
		}
		all[g].n++
		all[g].last = r
	}
	for _, g := range order {
		x := all[g]
		said := x.first.whyFailed()
		if x.n == 1 {
			s.find(x.first.At, Refusal, "", "", "%s could not %s %q, as %s: %s.", g.party.Name, do(g.op), x.first.Key, inWords(g.outcome), said)
			continue
		}
		s.find(x.first.At, Refusal, "", "", "%s could not %s its locks %s within %s, as %s. The first was %q: %s.",
			g.party.Name, do(g.op), count(x.n, "time"), Short(x.last.At.Sub(x.first.At)), inWords(g.outcome), x.first.Key, said)
	}
}
