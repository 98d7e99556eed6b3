package story

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/redlock"
)

// judgeLosses tells of locks that were lost.
//
// Grounds: the round that has found it, before the client has released what was left of it, and for each master that did not have
// the key then, the round before in which it said yes. A master that is not known to have said yes may never have had it.
func (s *Story) judgeLosses() {
	told := map[*Hold]bool{} // by a finding that says more
	for _, f := range s.Findings {
		for i, h := range f.Holds {
			if f.Matter == Overlap && !f.Maybe || f.Matter == Late && i == 0 {
				told[h] = true
			}
		}
	}
	for _, h := range s.Holds {
		if h.End == Lost && !told[h] && !h.overran() && s.room(Loss, h.Key) {
			s.judgeLoss(h)
		}
	}
}

func (s *Story) judgeLoss(h *Hold) {
	at := h.Ended
	v := s.whyLost(h)
	left := ""
	if rest := h.Until.Sub(at); rest > 0 && v.cause != MastersOff { // it was not lost before its time
		left = fmt.Sprintf(" %s before its validity would have ended, and", Short(rest))
	}
	f := s.find(at, Loss, v.cause, h.Key, "%s lost %q%s %s after it had taken it. Why: %s", h.Party.Name, h.Key, left, Short(at.Sub(h.Taken)), v.why)
	f.Holds, f.Masters, f.Likely = []*Hold{h}, v.masters, v.likely
	f.Grounds = append(append(ground(h.finder()), h.shown()...), v.grounds...)
}

// finder returns the round that has found a hold lost, if its votes are those of masters that were not yet told to release it.
func (h *Hold) finder() (found *Round) {
	released := h.letGo
	for _, r := range h.rounds {
		if r.Op == redlock.OpUnlock {
			released = minTime(r.From, released)
		}
	}
	for _, r := range h.rounds {
		switch {
		case r.Outcome != "not_held" && r.Outcome != "revoked", found != nil && !r.At.Before(found.At):
		case r.Op != redlock.OpUnlock && (released.IsZero() || !r.At.After(released)), r.Op == redlock.OpUnlock && found == nil && !h.told && !r.From.After(released) && h.unlocked:
			found = r
		}
	}
	return found
}

func (s *Story) whyLost(h *Hold) verdict {
	if h.Revoked {
		return verdict{cause: Revoked, why: fmt.Sprintf("it was revoked, with the reason %q.", h.Detail)}
	}
	found := h.finder()
	if found == nil {
		return s.whyNotRenewed(h)
	}
	var had, perhaps []string
	for i, v := range found.Votes {
		m := found.master(i)
		switch {
		case v.Verdict != redlock.VerdictNo:
		case h.yesOf(m, found.From) != nil:
			had = append(had, m)
		default:
			perhaps = append(perhaps, m)
		}
	}
	if len(had) == 0 {
		return verdict{cause: Unknown, why: cmp.Or(votesText(found, against), "the record does not say") + ". That they had it before, the records do not show."}
	}
	v := s.whyGone(had, h, found)
	also := ""
	if len(perhaps) > 0 {
		also = fmt.Sprintf(" %s did not have it either; whether they ever had it, no record says: they had not answered when it was taken.", list(perhaps))
		if len(perhaps) == 1 {
			also = fmt.Sprintf(" %s did not have it either; whether it ever had it, no record says: it had not answered when it was taken.", perhaps[0])
		}
	}
	v.why = fmt.Sprintf("%s had it no more.%s %s", list(had), also, v.why)
	return v
}

// whyNotRenewed is about a lock of which the record has a renewal that has failed.
func (s *Story) whyNotRenewed(h *Hold) verdict {
	var last *Round
	for _, r := range h.rounds {
		if r.Outcome != "ok" && r.Op != redlock.OpUnlock && !r.At.After(h.Ended.Add(time.Second)) && (last == nil || r.At.After(last.At)) {
			last = r
		}
	}
	switch {
	case last == nil || h.Last == nil:
		return verdict{cause: Unknown, why: plainText(h.Detail)}
	case strings.Contains(last.Detail, "a master was replaced"):
		return verdict{cause: Replaced, grounds: ground(last), why: "another server has taken the place of a master (a failover), and may have forgotten the lock. So too few masters are known to have it."}
	}
	var off []string
	for i, v := range last.Votes {
		if v.Verdict == redlock.VerdictFailed || v.Verdict == redlock.VerdictPending && last.Outcome == "no_quorum" {
			off = append(off, last.master(i))
		}
	}
	return verdict{cause: MastersOff, masters: off, grounds: ground(last), why: fmt.Sprintf("it was renewed %s before that, and not again, as too few masters answered: %s.",
		Short(h.Ended.Sub(h.Last.At)), votesText(last, against))}
}

// overran reports whether a holder let go of a lock that was over by its own time, as nobody had renewed it. That is no loss.
func (h *Hold) overran() bool {
	return h.End == Lost && h.Failed != nil && !h.told && h.Last != nil && !h.Revoked && !h.Failed.From.Before(h.Until)
}

// fewEndings is how many of one party for one key are told one by one.
const fewEndings = 1

// judgeEnds tells of locks that were let go, or extended, only after their validity had ended. Grounds: the round that took the lock, and the
// one that came too late. Nobody is to blame but the TTL.
func (s *Story) judgeEnds() {
	type group struct {
		party *Party
		key   string
	}
	all := map[group][]*Hold{}
	var order []group
	for _, h := range s.Holds {
		if h.overran() {
			g := group{h.Party, h.Key}
			if all[g] == nil {
				order = append(order, g)
			}
			all[g] = append(all[g], h)
		}
	}
	for _, g := range order {
		longest := slices.MaxFunc(all[g], func(a, b *Hold) int { return cmp.Compare(a.Failed.From.Sub(a.Until), b.Failed.From.Sub(b.Until)) })
		before := ""
		if n := len(all[g]); n > fewEndings {
			before = fmt.Sprintf("%d locks on %q of %s were over before it was done with them. The longest: ", n, g.key, g.party.Name)
		}
		late := longest.Failed
		f := s.find(longest.Until, Ending, "", g.key, "%s%s had %q for its whole validity, did not renew it, and asked for it again %s after that. Another could have taken it meanwhile. Use KeepAlive or Do, or a longer TTL.",
			before, g.party.Name, g.key, Short(late.From.Sub(longest.Until)))
		f.Grounds = append(ground(longest.Last), ground(late)...)
	}
}
