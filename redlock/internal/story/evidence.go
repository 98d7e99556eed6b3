package story

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock/internal/defaults"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/record"
)

// What the records show of the masters. A master that has said yes to a lock has its key until the TTL has passed. If the key was
// gone before, one of these is the reason, and each leaves its own traces:
//
//	it restarted       the process that said yes is another one than that which had the key no more
//	its clock moved    by as much as the key had left to live
//	it was deleted     if it is the same process, and its clock did not move

// watch puts what was seen of each master together. Two addresses at which the same processes were seen, and no other, are of one server.
func (s *Story) watch() {
	runs := map[string]map[string]bool{}
	for _, m := range s.Masters {
		if m.alive() && runs[m.Key] == nil {
			runs[m.Key] = map[string]bool{}
		}
		if m.alive() {
			runs[m.Key][m.RunID] = true
		}
	}
	s.seenOf, s.aliases = map[string][]*Seen{}, map[string]string{}
	first := map[string]string{} // address, by the processes
	for _, addr := range slices.Sorted(maps.Keys(runs)) {
		all := strings.Join(slices.Sorted(maps.Keys(runs[addr])), " ")
		if s.aliases[addr] = addr; roams(addr) {
			continue
		}
		first[all] = cmp.Or(first[all], addr)
		s.aliases[addr] = first[all]
	}
	for _, m := range s.Masters {
		of := s.serverOf(m.Key)
		s.seenOf[of] = append(s.seenOf[of], m)
	}
}

// serverOf is one address for each server, as far as its processes are known.
func (s *Story) serverOf(addr string) string { return cmp.Or(s.aliases[addr], addr) }

// A ballot is what a master has said in a round on a hold.
type ballot struct {
	*Round
	verdict record.Verdict
}

// ballots are what each master has said of a hold, but to its release.
func (h *Hold) ballots() map[string][]ballot {
	if h.said == nil {
		h.said = map[string][]ballot{}
		for _, r := range h.rounds {
			for i, v := range r.Votes {
				m := r.master(i)
				if h.said[m] == nil {
					h.voters = append(h.voters, m)
				}
				h.said[m] = append(h.said[m], ballot{r, v.Verdict})
			}
		}
	}
	return h.said
}

// work is how much there is to look at for who has said what.
func (h *Hold) work() (n int) {
	for _, r := range h.rounds {
		n += 1 + len(r.Votes)
	}
	return n
}

// yesOf returns the latest round on a hold that began before a time and in which a master said yes; nil if there is none.
func (h *Hold) yesOf(master string, before time.Time) (yes *Round) {
	for _, b := range h.ballots()[master] {
		if b.verdict == record.Yes && b.From.Before(before) && (yes == nil || b.At.After(yes.At)) {
			yes = b.Round
		}
	}
	return yes
}

// yesAll returns the masters that have said yes to a hold in a round before a time.
func (h *Hold) yesAll(before time.Time) (all []string) {
	h.ballots()
	for _, m := range h.voters {
		if h.yesOf(m, before) != nil {
			all = append(all, m)
		}
	}
	return all
}

// A fate is why a master did not have a key any more.
type fate struct {
	cause   Cause // Ended if its time was over
	moved   time.Duration
	missing string // what else would have to be known
	grounds []Ground
}

// allowed is by how much the clocks of master and client may differ in a TTL. No record says which factor its client had.
func allowed(ttl time.Duration) time.Duration { return quorum.NewTerm(ttl, defaults.DriftFactor).Drift }

// fate returns why a master that had said yes to a hold did not have its key when another round asked it: that one had a no, or
// another lock was given a yes.
func (s *Story) fate(x gone) fate {
	yes, by := x.yes, x.by
	tolerated := tolerance(yes.Party.Clock, by.Party.Clock)
	left := yes.From.Add(yes.TTL).Sub(by.At) // of the key's time, when it was gone at the latest
	if left <= tolerated+allowed(yes.TTL) {
		return fate{cause: Ended, grounds: ground(yes)}
	}
	seen := s.seenOf[s.serverOf(x.master)]
	if !s.spend(4 * len(seen)) {
		return fate{cause: Unknown, missing: "there is too much in the records to say more"}
	}
	restarted, same, process, grounds := restart(seen, yes, by, roams(x.master))
	if restarted {
		return fate{cause: Forgot, grounds: grounds}
	}
	moved, known, sure, readings := s.moved(seen, process, yes, by)
	if moved > 0 && moved+tolerated >= left*9/10 {
		f := fate{cause: ClockSet, moved: moved, grounds: readings}
		if !sure {
			f.missing = "if that was while it had the key: when it was, no record says"
		}
		return f
	}
	switch stood := stoodStill(seen, process, yes, by); {
	case stood > 0 && stood+tolerated >= left*9/10:
		return fate{cause: Unknown, missing: fmt.Sprintf("a clock since boot stood still for %s meanwhile, as its host slept or was paused, so that the key's time may have been over; "+
			"or the host's wall clock and the master's were set", Short(stood))}
	case !same:
		return fate{cause: Unknown, missing: "whether it was restarted, the records do not say (INFO is denied, or what was seen of it is not in them)"}
	case !known:
		return fate{cause: Deleted, grounds: grounds, missing: "nobody has looked at the clock since"}
	}
	return fate{cause: Deleted, grounds: append(grounds, readings...)}
}

// lag is how much later than what a master has said of itself that can be recorded.
const lag = 50 * time.Millisecond

// alive reports whether what was seen of a master shows that a process of it was there.
func (m *Seen) alive() bool {
	return m.RunID != "" && (m.Kind == record.KindAsked || m.Phase == "up" || m.Phase == "quarantined")
}

// after reports whether a master was seen after a time.
func (m *Seen) after(at time.Time) bool {
	if m.Kind == record.KindAsked {
		at = at.Add(lag)
	}
	return m.At.After(at)
}

// restart reports whether the process of a master that said yes was another one than that which by has met, or that they are known to be
// the same: a run id is that of one process, and does not come again. It returns that process, too, as far as it is known. One that roams may
// have several processes at a time. So who has seen the old one later does not say which of them by has met.
func restart(seen []*Seen, yes, by *Round, roams bool) (restarted, same bool, process string, grounds []Ground) {
	was, is := metBy(seen, yes), metBy(seen, by)
	before := was // the last that is known to have been there when it said yes, or before
	for _, m := range seen {
		if was == nil && m.alive() && m.At.Before(yes.From) {
			before = m
		}
	}
	if before != nil {
		process = before.RunID
	}
	for _, m := range seen { // a process that began in between, by its own uptime, which is in whole seconds
		began, tolerated := m.At.Add(-m.Uptime), tolerance(m.Party.Clock, yes.Party.Clock)
		if m.Uptime > 0 && m.fresh && began.Add(-time.Second-tolerated).After(yes.At) && began.Add(tolerated).Before(by.At) {
			return true, false, process, []Ground{{m.Party, m.Event}}
		}
	}
	if was != nil && is != nil && was.RunID != is.RunID { // two connections: one had the yes, and the other came with what by has met
		return true, false, process, []Ground{{was.Party, was.Event}, {is.Party, is.Event}}
	}
	for _, m := range seen {
		if before != nil && m.alive() && m.RunID == process && (m == is || !roams && m.after(by.At)) {
			return false, true, process, []Ground{{before.Party, before.Event}, {m.Party, m.Event}}
		}
	}
	return false, false, process, nil
}

// roams reports whether a master is whoever sentinels, or the nodes of a cluster, say that it is.
func roams(master string) bool {
	a, err := conn.ParseAddress(master)
	return err == nil && (a.Group() != "" || a.Cluster())
}

// metBy returns what the party of a round had seen of the master's process on the connection that the round went by; nil if that is not
// recorded, or if it can have been another connection.
func metBy(seen []*Seen, r *Round) (on *Seen) {
	for _, m := range seen {
		switch {
		case m.Party != r.Party || m.Kind != record.KindMaster:
		case m.At.After(r.At):
			return on.unbroken(r)
		case !m.alive(), m.At.After(r.From) && (on == nil || on.RunID != m.RunID): // it is broken, or came meanwhile
			on = nil
		default:
			on = m
		}
	}
	return on.unbroken(r)
}

// unbroken returns nil if events are missing between the two: one may have been that the connection broke.
func (m *Seen) unbroken(r *Round) *Seen {
	if m != nil && m.gaps != r.gaps {
		return nil
	}
	return m
}

// soon is how long after a loss a recorder asks the masters about it.
const soon = 3 * time.Second

// moved returns by how much the clock of the process that said yes has certainly gone ahead since, until by did not find the key there. It
// is known that it did not if it was read before and after. It is sure that it did if that was not before the yes, nor long after by.
func (s *Story) moved(seen []*Seen, process string, yes, by *Round) (most time.Duration, known, sure bool, grounds []Ground) {
	var base, calm *Seen // the latest reading before the yes, and the latest that shows no gain on it
	for _, m := range seen {
		if m.Ahead == 0 || m.RunID != process || process == "" || !m.fresh {
			continue
		}
		if base == nil || !m.At.After(yes.From) {
			base, calm = m, m
			continue
		}
		over := m.At.After(by.At)
		gained := time.Duration(float64(s.gained(base, m)) * max(1, float64(by.At.Sub(base.At))/float64(max(m.At.Sub(base.At), 1)))) // it may run fast all the time
		switch {
		case gained > most:
			most, grounds = gained, []Ground{{calm.Party, calm.Event}, {m.Party, m.Event}}
			sure = !calm.At.Before(yes.From) && !m.At.After(by.At.Add(soon))
		case gained <= 0 && most == 0:
			calm = m
		}
		if over {
			known = !base.At.After(yes.From)
			if grounds == nil {
				grounds = []Ground{{base.Party, base.Event}, {m.Party, m.Event}}
			}
			break
		}
	}
	return most, known, sure, grounds
}

// stoodStill is for how long the clock of one of two rounds has stood still while a process had a key, by what its host has read of the
// process's clock.
func stoodStill(seen []*Seen, process string, yes, by *Round) (most time.Duration) {
	last := map[*Clock]*Seen{}
	for _, m := range seen {
		c := m.Party.Clock
		if m.Ahead == 0 || m.RunID != process || !m.fresh || c != yes.Party.Clock && c != by.Party.Clock {
			continue
		}
		if k := last[c]; k != nil && m.At.After(yes.From) && k.At.Before(by.At) {
			most = max(most, slept(k, m))
		}
		last[c] = m
	}
	return most
}

// slept is for how long the clock since boot has stood still between two readings: the wall clock and the master's clock have both gone ahead
// of it by as much. It is 0 if it has not, or if the readings are of two hosts.
func slept(from, to *Seen) time.Duration {
	by := jump(from.Event, to.Event)
	if from.Party.Clock != to.Party.Clock || by < clockBound || (to.Ahead-from.Ahead).Abs() > slack+from.Within+to.Within {
		return 0
	}
	return by
}

// gained is by how much a master's clock has certainly moved from one reading to the other.
func (s *Story) gained(from, to *Seen) time.Duration {
	if slept(from, to) > 0 {
		return 0
	}
	most, least := s.masterAhead(to)+to.Within-s.masterAhead(from), s.masterAhead(to)-s.masterAhead(from)-from.Within
	if from.Party.Clock != to.Party.Clock {
		more := tolerance(from.Party.Clock, to.Party.Clock)
		most, least = most+more, least-more
	}
	return max(least, 0) + min(most, 0)
}

// masterAhead is by how much the master's clock was ahead of the story's, at the least.
func (s *Story) masterAhead(m *Seen) time.Duration {
	return m.Wall.Add(m.Ahead).Sub(m.At)
}

// tolerance is by how much two clocks can be off.
func tolerance(a, b *Clock) time.Duration {
	if a == b {
		return 0
	}
	return slack + a.within + b.within
}

// A verdict is why masters had keys no more.
type verdict struct {
	cause   Cause
	masters []string
	why     string
	likely  bool
	grounds []Ground
}

// A gone is a master that had a lock, by one round, and had it no more by another.
type gone struct {
	master  string
	yes, by *Round
}

// whyGone says why masters had a lock no more. The cause is that of most of them, and all are to blame that should have had it.
func (s *Story) whyGone(all []gone) (out verdict) {
	type group struct {
		masters []string
		fates   []fate
	}
	groups := map[Cause]*group{}
	for _, x := range all {
		f := s.fate(x)
		if groups[f.cause] == nil {
			groups[f.cause] = new(group)
		}
		g := groups[f.cause]
		g.masters, g.fates = append(g.masters, x.master), append(g.fates, f)
	}
	var said []string
	most := 0
	for _, cause := range []Cause{Forgot, ClockSet, Deleted, Unknown, Ended} { // of as many masters, the first
		g := groups[cause]
		if g == nil {
			continue
		}
		missing := ""
		for _, f := range g.fates {
			if f.missing != "" {
				missing = f.missing
			}
		}
		said = append(said, goneWords(cause, g.masters, g.fates[0].moved, missing))
		if cause == Unknown || cause == Ended { // nobody is to blame
			out.cause = cmp.Or(out.cause, cause)
			continue
		}
		if len(g.masters) > most {
			out.cause, most = cause, len(g.masters)
		}
		out.masters, out.likely = append(out.masters, g.masters...), out.likely || missing != ""
		for _, f := range g.fates {
			out.grounds = append(out.grounds, f.grounds...)
		}
	}
	out.why = strings.Join(said, " ")
	if out.cause == "" {
		out.cause = Unknown
	}
	return out
}

func goneWords(cause Cause, masters []string, moved time.Duration, missing string) string {
	who := list(masters)
	one := len(masters) == 1
	pick := func(a, b string) string {
		if one {
			return a
		}
		return b
	}
	switch cause {
	case Forgot:
		did := " restarted meanwhile, and forgot the lock. Have"
		if slices.ContainsFunc(masters, roams) {
			did = " restarted meanwhile, or another server took the place, and the lock was forgotten. Have"
		}
		return who + did + " masters keep what they have said over a restart (appendonly yes, appendfsync always), or have clients " +
			"not count a master that was restarted until the longest TTL has passed (Config.RestartGuard)."
	case ClockSet:
		text := fmt.Sprintf("The %s of %s %s gained %s: %s set, or %s too fast. So the key ended there before its time", pick("clock", "clocks"), who, pick("has", "have"), Short(moved), pick("it was", "they were"), pick("runs", "run"))
		if missing != "" {
			text += ", " + missing
		}
		return text + ". Never set the clock of a master: slew it."
	case Deleted:
		text := fmt.Sprintf("%s did not restart meanwhile, and %s not set", who, pick("its clock was", "their clocks were"))
		if missing != "" {
			text += ", as far as is known: " + missing
		}
		return text + ". So somebody has deleted the key there (DEL, FLUSHALL, or another process with the lock's token), or the server has evicted it (maxmemory-policy)."
	case Ended:
		return fmt.Sprintf("On %s its time was over: nobody had renewed it.", who)
	}
	return fmt.Sprintf("Why %s had it no more is not known: %s.", who, missing)
}
