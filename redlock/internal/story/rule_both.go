package story

import (
	"fmt"
	"slices"
	"time"
)

// judgeKey looks at the holds of a key, in the order in which they were taken, for those that two had at once, and for those that went on
// after their time.
//
// Grounds of two at once: the round in which one took it, and an event by which the other shows later that it relied on it until then: a
// renewal, its letting go, or its being told of a loss. A validity that goes on shows nothing: its record may end before, or
// have a gap, or its holder may have passed the lock on to a process whose record is not here.
func (s *Story) judgeKey(key string, all []*Hold) {
	var active, before []*Hold
	for _, b := range all {
		if !s.spend(len(active) + len(before)) {
			return
		}
		active = slices.DeleteFunc(active, func(a *Hold) bool {
			ended := a.ended(b)
			if ended {
				before = append(before, a)
			}
			return ended
		})
		for _, a := range active {
			if a.excludes(b) && a.reliesAt(b) != no && s.room(Overlap, key) {
				s.overlap(key, a, b)
			}
		}
		if b.Holders > 1 {
			s.tooMany(key, active, b)
		}
		before = s.late(key, before, b)
		active = append(active, b)
	}
}

// ended reports whether a had ended when b was taken, as far as their clocks can tell.
func (a *Hold) ended(b *Hold) bool { return !a.Ended.After(b.Taken.Add(a.tolerated(b))) }

// tolerated is by how much the clocks of the two can be off.
func (a *Hold) tolerated(b *Hold) time.Duration {
	tolerated := tolerance(a.Party.Clock, b.Party.Clock)
	if a.before {
		tolerated = max(tolerated, slack)
	}
	return tolerated
}

// What records say of a question.
type answer int

const (
	no answer = iota
	maybe
	yes
)

// reliesAt says whether a relied on its lock when b was taken.
func (a *Hold) reliesAt(b *Hold) answer {
	at := b.Taken.Add(a.tolerated(b))
	switch {
	case a.sure.After(at):
		return yes
	case a.End != Open && a.End != Expired, a.gap, !a.Party.tape.end().After(at):
		return no // it may have let go: its record could not say so
	}
	return maybe
}

func (s *Story) overlap(key string, a, b *Hold) {
	v := s.whyGranted(a, b)
	if a.reliesAt(b) == maybe && v.cause == Deleted {
		v = verdict{cause: Unknown, why: fmt.Sprintf("%s had the key no more: somebody has released it who was given the lock, or has deleted it.", list(v.masters))}
	}
	had, first := together(a, b)
	f := s.find(b.Taken, Overlap, v.cause, key, "%s took %q while %s still had it%s.", b.Party.Name, key, a.Party.Name, had)
	f.Holds, f.Masters, f.Likely = []*Hold{a, b}, v.masters, v.likely
	f.Grounds = append(append(append(ground(a.Last), a.shown()...), ground(b.first())...), v.grounds...)
	if a.reliesAt(b) == maybe {
		f.doubt("Its validity went on, and " + a.Party.Name + " did not say that it let go. But it does not show that it relied on it: it may have passed the lock on to a process whose record is not here.")
	}
	if a.Party.Clock.root != b.Party.Clock.root {
		f.doubt(apart)
	}
	if len(key) >= maxName && (len(a.Keys) == 0 || len(b.Keys) == 0) {
		f.doubt("But records have the beginning of so long a key alone: these may be two.")
	}
	f.Text += " Why: " + v.why
	if !f.Maybe {
		f.lost = []*Hold{first, v.lostBy(a, b)}
	}
}

// lostBy returns a hold if its loss is what a verdict tells: masters had given it to another, and it was not renewed since.
func (v verdict) lostBy(h, other *Hold) *Hold {
	if len(v.masters) == 0 || h.Last != nil && h.Last.At.After(other.Taken) {
		return nil
	}
	return h
}

// doubt says what could be otherwise.
func (f *Finding) doubt(text string) {
	f.Maybe = true
	f.Text += " " + text
}

// maxName is how much of a key a record has.
const maxName = 1 << 10

// apart is said of what is about two clocks that nothing puts together.
const apart = "That is so only if the wall clocks of both are right: their records have no master in common by which to put them together."

// together says for how long two had a lock, as far as both show it. It returns whose end it names; nil if it names none.
func together(a, b *Hold) (text string, first *Hold) {
	first = a
	if b.sure.Before(a.sure) {
		first = b
	}
	at := laterTime(first.sure, b.Taken)
	words := map[End]string{Released: " released it", Lost: " was told that it is lost", HandedOver: " handed it over"}[first.End]
	switch d := at.Sub(b.Taken); {
	case d <= 0:
		return "", nil
	case words == "":
		return fmt.Sprintf(": both had it for %s at the least", Short(d)), nil
	default:
		return fmt.Sprintf(": both had it for %s, until %s%s", Short(d), first.Party.Name, words), first
	}
}

// first is the round that has taken a lock, or the first that is known.
func (h *Hold) first() *Round {
	if h.First != nil {
		return h.First
	}
	return h.Last
}

// shown is the event by which a holder showed that it relied on its lock.
func (h *Hold) shown() []Ground {
	if h.sureBy == nil {
		return nil
	}
	return []Ground{{h.Party, h.sureBy}}
}

// tooMany tells of permits. Grounds: so many others show later that they relied on theirs.
func (s *Story) tooMany(key string, active []*Hold, b *Hold) {
	var others []*Hold
	certain, all := map[uint64]bool{}, map[uint64]bool{}
	apartToo := false
	for _, a := range active {
		relies := a.reliesAt(b)
		if a.Holders < 1 || a.Token == b.Token || relies == no || all[a.Token] {
			continue
		}
		others = append(others, a)
		all[a.Token] = true
		if relies == yes {
			certain[a.Token] = true
		}
		apartToo = apartToo || a.Party.Clock.root != b.Party.Clock.root
	}
	if len(all) < b.Holders || !s.room(Overlap, key) {
		return
	}
	v := s.whyGranted(others[0], b)
	f := s.find(b.Taken, Overlap, v.cause, key, "%s took one of %d permits of %q while %d others had them.", b.Party.Name, b.Holders, key, len(all))
	f.Holds, f.Masters, f.Likely = append(slices.Clone(others[:min(len(others), maxNamed)]), b), v.masters, v.likely
	f.Grounds = append(ground(b.first()), v.grounds...)
	for _, a := range f.Holds[:len(f.Holds)-1] {
		f.Grounds = append(append(f.Grounds, ground(a.Last)...), a.shown()...)
	}
	if len(certain) < b.Holders {
		f.doubt("Not all of these others show that they relied on theirs until then: they may have passed them on.")
	}
	if apartToo {
		f.doubt(apart)
	}
	f.Text += " Why: " + v.why
	if !f.Maybe {
		f.lost = []*Hold{v.lostBy(others[0], b)}
	}
}

// whyGranted says why b was given what a had.
func (s *Story) whyGranted(a, b *Hold) verdict {
	first := b.first()
	if a.Last == nil || first == nil {
		return verdict{cause: Unknown, why: "the records do not say which masters said yes."}
	}
	if !s.spend(2*a.work() + len(first.Votes)*len(first.Votes)) {
		return verdict{cause: Unknown, why: tooMuch}
	}
	had, granted := a.yesAll(first.At), first.Yes()
	var both []string // by a's names
	for _, m := range had {
		if slices.ContainsFunc(granted, func(n string) bool { return s.serverOf(n) == s.serverOf(m) }) {
			both = append(both, m)
		}
	}
	if len(both) == 0 { // no master has done what none may do
		if s.apart(a.Party, b.Party) {
			v := verdict{cause: TwoLists, why: fmt.Sprintf("they have two lists of masters, so that a majority of one need not have a master of the other's: %s has %s, and %s has %s. Give all clients the same list.",
				a.Party.Name, list(a.Party.listAt(first.Boot)), b.Party.Name, list(b.Party.listAt(first.Boot)))}
			if !s.knowsAll(a.Party) || !s.knowsAll(b.Party) {
				v.likely = true
				v.why += " That is so only if they are not names of the same servers: who each of these is, the records do not say (INFO is denied, or what was seen of it is not in them)."
			}
			return v
		}
		return verdict{cause: Unknown, why: fmt.Sprintf("no master said yes to both, as far as is known: %s did to %s, and %s to %s.", list(had), a.Party.Name, list(granted), b.Party.Name)}
	}
	var lost []gone
	for _, m := range both {
		lost = append(lost, gone{m, a.yesOf(m, first.At), first})
	}
	v := s.whyGone(lost)
	v.why = fmt.Sprintf("%s said yes to both. ", list(both)) + v.why // no master may do that
	return v
}
