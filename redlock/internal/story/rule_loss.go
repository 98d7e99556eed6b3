package story

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/record"
)

// judgeLosses tells of locks that were lost.
//
// Grounds: the round that has found it, before the client has released what was left of it, and for each master that did not have
// the key then, the round before in which it said yes. A master that had not answered when the lock was taken has set the key all
// the same if it has answered since on the same connection, unless another's key was in the way: so it is likely that it had it. Of any
// other, it is not known.
func (s *Story) judgeLosses() {
	told := map[*Hold]bool{} // by a finding that says more
	for _, f := range s.Findings {
		for _, h := range f.lost {
			told[h] = true
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
	f.alike = fmt.Sprintf("%q %q %q %v", h.Party.Name, v.cause, v.masters, v.likely)
	if len(v.masters) == 0 { // nobody is to blame, so the words are all there is to compare
		f.alike += v.why
	}
	f.Grounds = append(append(ground(h.finder()), h.shown()...), v.grounds...)
}

// finder returns the round that has found a hold lost, if its votes are those of masters that were not yet told to release it: the first
// that began before the holder let go. A release is it if no other was, and the client knew of no loss: otherwise it has given back before
// what was left.
func (h *Hold) finder() (found *Round) {
	released, release := h.letGo, h.Freed
	if release != nil {
		released = minTime(release.From, released)
	}
	knew := h.told
	for _, r := range h.rounds {
		if r.Outcome != "not_held" && r.Outcome != "revoked" {
			continue
		}
		knew = true
		if (released.IsZero() || r.From.Before(released)) && (found == nil || r.At.Before(found.At)) {
			found = r
		}
	}
	if !knew && h.unlocked && release != nil && (release.Outcome == "not_held" || release.Outcome == "revoked") {
		return release
	}
	return found
}

func (s *Story) whyLost(h *Hold) verdict {
	if h.Revoked {
		return verdict{cause: Revoked, why: fmt.Sprintf("it was revoked, with the reason %q.", h.Detail)}
	}
	if !s.spend(2 * h.work()) {
		return verdict{cause: Unknown, why: tooMuch}
	}
	found := h.finder()
	undecided := found == nil
	if undecided {
		found = h.unrenewed()
	}
	switch {
	case found == nil:
		return verdict{cause: Unknown, why: plainText(h.Detail)}
	case strings.Contains(found.Detail, "a master was replaced"):
		return verdict{cause: Replaced, grounds: ground(found), why: "another server has taken the place of a master (a failover), and may have forgotten the lock. So too few masters are known to have it."}
	}
	var lost []gone
	var had, set, perhaps, off []string
	for i, v := range found.Votes {
		m := found.master(i)
		x := h.goneBy(m, found)
		switch {
		case v.Verdict == record.Failed && x.by == nil && v.Err != suspect, v.Verdict == record.Pending && found.Outcome == "no_quorum":
			off = append(off, m)
			continue
		case v.Verdict == record.Yes || v.Verdict == record.Pending || x.by == nil:
			continue
		case x.yes == nil && s.hasSet(h, m, x.by):
			x.yes, set = h.First, append(set, m)
		}
		if x.yes == nil {
			perhaps = append(perhaps, m)
		} else {
			lost, had = append(lost, x), append(had, m)
		}
	}
	if undecided && len(had) == 0 {
		return verdict{cause: MastersOff, masters: off, grounds: ground(found), why: h.notRenewed(found)}
	}
	if len(had) == 0 {
		return verdict{cause: Unknown, why: cmp.Or(votesText(found, against), "the record does not say") + ". That they had it before, the records do not show."}
	}
	v := s.whyGone(lost)
	also := ""
	if len(set) > 0 {
		v.likely = true
		also = fmt.Sprintf(" Of these, %s had not answered when it was taken, but did so later: so the key was there, too, unless another's was in its way.", list(set))
	}
	if len(perhaps) > 0 {
		also += fmt.Sprintf(" %s did not have it either, and whether it ever was there, no record says.", list(perhaps))
	}
	v.why = fmt.Sprintf("%s had it no more.%s %s", list(had), also, v.why)
	if undecided {
		v.why = h.notRenewed(found) + " " + v.why
		if len(off) > len(v.masters) {
			v.cause, v.likely = MastersOff, false
		}
		v.masters = append(v.masters, off...)
		v.grounds = append(v.grounds, ground(found)...)
	}
	return v
}

// notRenewed says that a round did not renew a lock, as too few masters answered.
func (h *Hold) notRenewed(r *Round) string {
	before, again := "renewed", "again"
	if h.Last.Op == record.OpLock {
		before, again = "taken", "renewed"
	}
	return fmt.Sprintf("it was %s %s before that, and not %s, as too few masters answered: %s.", before, Short(h.Ended.Sub(h.Last.At)), again, votesText(r, against))
}

// suspect is said of a master that has the lock, and may have had it not all the time: by a command that came late.
var suspect = mux.ErrSuspect.Error()

// unrenewed returns the last round that has not renewed a lock, and not found it lost either. It returns nil if there is none, or the
// record does not say who has had the lock.
func (h *Hold) unrenewed() (last *Round) {
	if h.Last == nil {
		return nil
	}
	for _, r := range h.rounds {
		if r.Outcome == "ok" || r.Outcome == "not_held" || r.At.After(h.Ended.Add(time.Second)) || last != nil && !r.At.After(last.At) {
			continue
		}
		last = r
	}
	return last
}

// goneBy says how it is known that a master had lost a lock by the time of a round: by its first no since it last said yes. The master may
// have been sent the lock again since, so that it has it, and its yes does not count yet.
func (h *Hold) goneBy(master string, found *Round) gone {
	x := gone{master: master, yes: h.yesOf(master, found.From)}
	for i, v := range found.Votes {
		if found.Op == record.OpUnlock && v.Verdict == record.No && found.master(i) == master {
			x.by = found
		}
	}
	for _, b := range h.ballots()[master] {
		if b.verdict == record.No && b.Op != record.OpLock && !b.At.After(found.At) && (x.by == nil || b.At.Before(x.by.At)) && (x.yes == nil || !b.From.Before(x.yes.At)) {
			x.by = b.Round
		}
	}
	return x
}

// hasSet reports whether a master whose vote on the taking of a lock is not known has carried that out before it said no to another
// round, and no record shows that another's key was in the way. It has if it answered on the same connection, as commands keep their
// order there.
func (s *Story) hasSet(h *Hold, master string, by *Round) bool {
	at := -1
	if h.First != nil && h.First.Party == by.Party && h.First.gaps == by.gaps && h.First.Asked >= len(h.First.Votes) {
		at = slices.IndexFunc(h.First.Votes, func(v record.Vote) bool { return v.Verdict == record.Pending })
	}
	for ; at >= 0 && at < len(h.First.Votes); at++ {
		if h.First.Votes[at].Verdict == record.Pending && h.First.master(at) == master {
			return s.oneConnection(master, h.First, by) && !s.inTheWay(h, master, by)
		}
	}
	return false
}

// oneConnection reports whether two rounds of a party went to a master by the same connection.
func (s *Story) oneConnection(master string, from, to *Round) bool {
	var met *Seen
	for _, m := range s.seenOf[s.serverOf(master)] {
		switch {
		case m.Party != from.Party || m.Kind != record.KindMaster || m.At.After(to.At):
		case !m.At.After(from.From):
			met = m
		case met == nil || !m.alive() || m.RunID != met.RunID:
			return false
		}
	}
	return met != nil && met.alive()
}

// inTheWay reports whether a master may have had another's key when a lock was taken: it may have said yes to that, and is not known to
// have been told of its release by then.
func (s *Story) inTheWay(h *Hold, master string, by *Round) bool {
	if s.roundsOf == nil {
		s.roundsOf = map[name][]*Round{}
		for _, r := range s.Rounds {
			for _, key := range r.names() {
				if n := (name{r.Party.database, key}); r.Op == record.OpLock || r.Op == record.OpUnlock {
					s.roundsOf[n] = append(s.roundsOf[n], r)
				}
			}
		}
	}
	before := map[uint64]bool{} // tokens of keys that may be there
	for _, key := range h.names() {
		all := s.roundsOf[name{h.Party.database, key}]
		if !s.spend(len(all)) {
			return true
		}
		for _, r := range all { // by time
			for i, v := range r.Votes {
				switch {
				case r.Token == h.Token || r.master(i) != master:
				case r.Op == record.OpUnlock && (v.Verdict == record.Yes || v.Verdict == record.No) && r.At.Before(h.From):
					delete(before, r.Token)
				case r.Op == record.OpLock && (v.Verdict == record.Yes || v.Verdict == record.Pending) && r.From.Before(by.At) && r.From.Add(r.TTL).After(h.From):
					before[r.Token] = true
				}
			}
		}
	}
	return len(before) > 0
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
		late, again := longest.Failed, ""
		if longest.Last.Op != record.OpLock {
			again = " again"
		}
		f := s.find(longest.Until, Ending, "", g.key, "%s%s had %q for its whole validity, did not renew it%s, and asked for it again %s after that. Another could have taken it meanwhile. Use KeepAlive or Do, or a longer TTL.",
			before, g.party.Name, g.key, again, Short(late.From.Sub(longest.Until)))
		if late.gaps != longest.known() {
			f.doubt("That is so only if it was not renewed meanwhile: events are missing before that.")
		}
		f.Grounds = append(ground(longest.Last), ground(late)...)
	}
}
