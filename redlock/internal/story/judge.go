package story

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/flight"
)

// A Matter is what a Finding is about.
type Matter string

// The Matters.
const (
	Overlap Matter = "overlap" // two had a lock that excludes the other
	Late    Matter = "late"    // one went on after its lock had ended, while another had it
	Loss    Matter = "loss"
	Waiting Matter = "wait"
	Refusal Matter = "refusal"
	Away    Matter = "away" // a master
	Clocks  Matter = "clock"
	Lists   Matter = "lists" // of masters
	Gap     Matter = "gap"   // in a record
)

// A Cause says why an Overlap or a Loss came about.
type Cause string

// The Causes.
const (
	Forgot     Cause = "masters forgot"          // they were restarted, without what they had
	ClockSet   Cause = "a clock jumped"          // or runs too fast
	TwoLists   Cause = "two lists of masters"    // their quorums need not meet
	Frozen     Cause = "a holder was frozen"     // and came back when its lock had ended
	Deleted    Cause = "keys were deleted"       // by somebody else, or evicted
	Revoked    Cause = "revoked"                 // by an operator
	MastersOff Cause = "too few masters"         // answered in time
	Replaced   Cause = "a master was replaced"   // by a replica, which may not have the lock
	Unknown    Cause = "the records do not say"  // why
	OtherNames Cause = "two names for one thing" // another Config.Prefix
)

// A Finding is something remarkable.
type Finding struct {
	At     time.Time
	Matter Matter
	Cause  Cause  // of an Overlap, a Late one and a Loss
	Key    string // as the masters have it; empty if it is of none
	Text   string // sentences
	Holds  []*Hold
	Maybe  bool // of an Overlap: what the records do not say may be that there was none
}

// maxName is how much of a key a record has.
const maxName = 1 << 10

// slack is by how much two clocks that were put together by the masters can be off all the same.
const slack = 50 * time.Millisecond

// What is told at the most, of what somebody may have made up.
const (
	maxFound    = 5_000      // findings of a matter
	maxFoundOf  = 200        // ... and of a key
	maxCompared = 50_000_000 // pairs of what is in the records: some seconds
	maxNamed    = 100        // holds of a finding
)

// spend reports whether so many pairs may still be compared.
func (s *Story) spend(n int) bool {
	s.spent += n
	return s.spent <= maxCompared
}

// A subject is what findings are counted by.
type subject struct {
	matter Matter
	key    string
}

// room reports whether one more finding is told. If not, it is counted.
func (s *Story) room(m Matter, key string) bool {
	all, of := subject{matter: m}, subject{m, key}
	if s.found[all] >= maxFound || key != "" && s.found[of] >= maxFoundOf {
		s.leftOut[m]++
		return false
	}
	return true
}

func (s *Story) judge(wait time.Duration) {
	s.found, s.leftOut, s.seenOf = map[subject]int{}, map[Matter]int{}, map[string][]*Seen{}
	for _, m := range s.Masters {
		s.seenOf[m.Key] = append(s.seenOf[m.Key], m)
	}
	s.judgeClocks()
	s.judgeLists()
	byKey := s.byKey()
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		all := byKey[key]
		slices.SortStableFunc(all, func(a, b *Hold) int { return a.Taken.Compare(b.Taken) })
		s.judgeKey(key, all)
	}
	s.judgeLosses()
	s.judgeWaits(byKey, wait)
	s.judgeRounds()
	s.judgeMasters()
	for _, p := range s.Parties {
		if p.dropped > 0 {
			s.find(p.droppedFrom, Gap, "", "", "%s: from here on %s of %s are missing in the record, as it was written too slowly.", p.Source, count(int(min(p.dropped, 1<<30)), "event"), p.Name)
		}
		switch {
		case p.place > 0:
		case p.About.LeftOut > 0:
			s.find(s.start(), Gap, "", "", "%s: there was no room for %s of this process. What they did is not told.", p.Source, count(p.About.LeftOut, "client"))
		case p.record.BadPages > 0:
			s.find(p.last, Gap, "", "", "%s: %s of the record are damaged.", p.Source, count(p.record.BadPages, "page"))
		case p.record.Missing() > 0:
			s.find(p.last, Gap, "", "", "%s: %s in the middle of the record are missing.", p.Source, count(int(p.record.Missing()), "event"))
		}
	}
	for _, x := range s.nobody {
		s.find(x.Record.About.Began, Gap, "", "", "%s: the record does not say whose events it has, so that none is told.", x.Name)
	}
	for _, m := range slices.Sorted(maps.Keys(s.leftOut)) {
		s.Findings = append(s.Findings, Finding{At: s.start(), Matter: m, Text: fmt.Sprintf("There is more of this kind (%s) than is told: %s left out.", m, count(s.leftOut[m], "finding"))})
	}
	if s.spent > maxCompared {
		s.find(s.start(), Gap, "", "", "There is too much in these records to compare all of it. What two had at once, and why, may be missing here. Give fewer records.")
	}
	slices.SortStableFunc(s.Findings, func(a, b Finding) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Text, b.Text))
	})
}

func (s *Story) find(at time.Time, m Matter, cause Cause, key, format string, args ...any) *Finding {
	if !s.room(m, key) {
		return new(Finding)
	}
	s.found[subject{matter: m}]++
	if key != "" {
		s.found[subject{m, key}]++
	}
	s.Findings = append(s.Findings, Finding{At: at, Matter: m, Cause: cause, Key: key, Text: fmt.Sprintf(format, args...)})
	return &s.Findings[len(s.Findings)-1]
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Short is a duration as people read it.
func Short(d time.Duration) string {
	switch d = d.Abs(); {
	case d >= time.Minute:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(10 * time.Millisecond)
	case d >= 10*time.Millisecond:
		d = d.Round(time.Millisecond)
	case d >= time.Millisecond:
		d = d.Round(100 * time.Microsecond)
	default:
		d = d.Round(time.Microsecond)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// judgeKey looks at the holds of a key, in the order in which they were taken.
func (s *Story) judgeKey(key string, all []*Hold) {
	var active, before []*Hold
	permits := map[uint64]int{} // by token, of those that are active: two records may have the same lock
	for _, b := range all {
		if !s.spend(len(active) + len(before)) {
			return
		}
		active = slices.DeleteFunc(active, func(a *Hold) bool {
			ended := a.ended(b)
			if ended {
				before = append(before, a)
				if permits[a.Token]--; permits[a.Token] <= 0 {
					delete(permits, a.Token)
				}
			}
			return ended
		})
		for _, a := range active {
			if a.excludes(b) && s.room(Overlap, key) {
				s.overlap(key, a, b)
			}
		}
		others := len(permits)
		if permits[b.Token] > 0 {
			others--
		}
		if b.Holders > 1 && others >= b.Holders && s.room(Overlap, key) {
			a := active[0]
			cause, why := s.whyGranted(a, b)
			f := s.find(b.Taken, Overlap, cause, key, "%s took one of %d permits of %q while %d others had them. Why: %s", b.Party.Name, b.Holders, key, others, why)
			f.Holds = append(slices.Clone(active[:min(len(active), maxNamed)]), b)
		}
		// Who has it next, while one goes on whose validity is over?
		for i, a := range before {
			if a == nil || !a.excludes(b) || a.Told.IsZero() || !a.Told.After(a.Until) || !b.Taken.Add(a.tolerated(b)).Before(a.Told) || a.End == HandedOver {
				continue
			}
			if s.room(Late, key) {
				s.late(key, a, b)
			}
			before[i] = nil
		}
		before = slices.DeleteFunc(before, func(a *Hold) bool { return a == nil || a.Told.Before(b.From) })
		active = append(active, b)
		if b.Holders > 1 {
			permits[b.Token]++
		}
	}
}

// ended reports whether a had ended when b was taken, as far as their clocks can tell.
func (a *Hold) ended(b *Hold) bool {
	tolerated := a.tolerated(b)
	if a.before {
		tolerated = max(tolerated, slack)
	}
	return !a.Ended.After(b.Taken.Add(tolerated))
}

// tolerated is by how much the clocks of the two can be off.
func (a *Hold) tolerated(b *Hold) time.Duration {
	if a.Party.Clock == b.Party.Clock {
		return 0
	}
	return slack + a.Party.Clock.within + b.Party.Clock.within
}

func (s *Story) overlap(key string, a, b *Hold) {
	until := minTime(a.Ended, b.Ended)
	cause, why := s.whyGranted(a, b)
	certain := ""
	if a.Party.Clock.root != b.Party.Clock.root {
		certain = apart
	}
	f := s.find(b.Taken, Overlap, cause, key, "%s took %q while %s still had it: both had it for %s, until %s.%s Why: %s",
		b.Party.Name, key, a.Party.Name, Short(until.Sub(b.Taken)), ending(a, b), certain, why)
	f.Holds = []*Hold{a, b}
	switch {
	case a.End == Open && !a.Party.last.After(b.Taken):
		f.Text += fmt.Sprintf(" But the record of %s ends before: if its process has ended since, it may have released the lock.", a.Party.Name)
	case a.gap:
		f.Text += fmt.Sprintf(" But events are missing from the record of %s: it may have released the lock before.", a.Party.Name)
	case len(key) >= maxName && (len(a.Keys) == 0 || len(b.Keys) == 0):
		f.Text += " But records have the beginning of so long a key alone: these may be two."
	default:
		f.Maybe = certain != ""
		return
	}
	f.Maybe = true
}

// apart is said of what is about two clocks that nothing puts together.
const apart = " That is so only if the wall clocks of both are right: their records have no master in common by which to put them together."

// ending says what has ended the overlap.
func ending(a, b *Hold) string {
	first := a
	if b.Ended.Before(a.Ended) {
		first = b
	}
	switch first.End {
	case Released:
		return first.Party.Name + " released it"
	case Lost:
		return first.Party.Name + " was told that it is lost"
	case HandedOver:
		return first.Party.Name + " handed it over"
	case Open:
		return "the validity of " + first.Party.Name + "'s lock ends, unless that was renewed or released after its record was read"
	}
	return "the validity of " + first.Party.Name + "'s lock ended"
}

// late is about a holder that went on when its lock was over, and b had it.
func (s *Story) late(key string, a, b *Hold) {
	certain := ""
	if a.Party.Clock.root != b.Party.Clock.root {
		certain = apart
	}
	f := s.find(b.Taken, Late, Frozen, key, "%s took %q after %s's lock had ended. But %s noticed its end only %s later: its process stood still (it was stopped, or its machine was, or it "+
		"collected garbage), or it did not look at its context. Whatever %s has written after %s came too late, and may have undone what %s did. Write with the lock's fence (WithFence), so that late writes are refused.%s",
		b.Party.Name, key, a.Party.Name, a.Party.Name, Short(a.Told.Sub(a.Until)), a.Party.Name, a.Until.Format(clockFormat), b.Party.Name, certain)
	f.Holds = []*Hold{a, b}
}

// clockFormat is a time of day.
const clockFormat = "15:04:05.000"

// whyGranted says why b was given what a had.
func (s *Story) whyGranted(a, b *Hold) (Cause, string) {
	if a.Party.Client.List != b.Party.Client.List && !s.sameServers(a.Party, b.Party) {
		return TwoLists, fmt.Sprintf("they have two lists of masters, so that a majority of one need not have a master of the other's: %s has %s, and %s has %s. Give all clients the same list.",
			a.Party.Name, list(a.Party.Client.Masters), b.Party.Name, list(b.Party.Client.Masters))
	}
	first := b.First
	if first == nil {
		first = b.Last
	}
	if a.Last == nil || first == nil {
		return Unknown, "the records do not say which masters said yes."
	}
	both := intersect(a.Last.Yes(), first.Yes())
	if len(both) == 0 {
		return Unknown, fmt.Sprintf("no master said yes to both: %s did to %s, and %s to %s.", list(a.Last.Yes()), a.Party.Name, list(first.Yes()), b.Party.Name)
	}
	cause, why := s.whyGone(both, a, first.At)
	intro := fmt.Sprintf("%s said yes to both. ", list(both)) // no master may do that
	return cause, intro + why
}

// whyGone says why masters that had said yes to a hold did not have it any more at a time.
func (s *Story) whyGone(masters []string, h *Hold, at time.Time) (Cause, string) {
	var restarted, set, other []string
	detail := ""
	for _, m := range masters {
		if !s.spend(3 * len(s.seenOf[m])) {
			return Unknown, "there is too much in the records to say."
		}
		before, after := s.runs(m, h.Last.At, at)
		jump := s.jump(m, h)
		switch {
		case before != "" && after != "" && before != after, (before == "" || after == "") && s.wasRestarted(m, h.Last.At, at):
			restarted = append(restarted, m)
		case jump > max(slack, h.Last.TTL/100):
			set = append(set, m)
			detail = Short(jump)
		default:
			other = append(other, m)
		}
	}
	switch {
	case len(restarted) > 0 && len(restarted) >= len(set):
		return Forgot, fmt.Sprintf("%s restarted meanwhile, and forgot the lock. Have masters keep what they have said over a restart (appendonly yes, appendfsync always), or have clients "+
			"not count a master that was restarted until the longest TTL has passed (Config.RestartGuard).", list(restarted))
	case len(set) > 0:
		return ClockSet, fmt.Sprintf("Since the lock was taken, the clock of %s has gained %s: it was set, or runs too fast. So the key ended there before its time. Never set the clock of a master: slew it.",
			list(set), detail)
	}
	return Deleted, fmt.Sprintf("%s did not restart meanwhile, and its clock was not set, as far as is known. So somebody has deleted the key there (DEL, FLUSHALL), or the server has evicted it (maxmemory-policy).",
		list(other))
}

// runs returns the run ids of a master as of two times, as anybody has seen them.
func (s *Story) runs(master string, before, after time.Time) (was, is string) {
	for _, m := range s.seenOf[master] {
		if m.RunID == "" {
			continue
		}
		if !m.At.After(before) {
			was = m.RunID
		} else if is == "" || !m.At.After(after) {
			is = m.RunID
		}
	}
	return was, is
}

// wasRestarted reports whether somebody has seen that a master's process began between the times. It counts its uptime in
// whole seconds.
func (s *Story) wasRestarted(master string, from, to time.Time) bool {
	for _, m := range s.seenOf[master] {
		if m.Uptime > 0 {
			if began := m.At.Add(-m.Uptime); began.Add(-time.Second).After(from) && began.Add(-time.Second).Before(to) {
				return true
			}
		}
	}
	return false
}

// jump returns by how much a master's clock has gained since a hold was taken.
func (s *Story) jump(master string, h *Hold) (most time.Duration) {
	var base *Seen
	for _, m := range s.seenOf[master] {
		if m.Ahead == 0 || m.RunID == "" {
			continue
		}
		if base == nil || base.RunID != m.RunID {
			base = m
			continue
		}
		most = max(most, s.gained(base, m))
		if !m.At.After(h.Taken) {
			base, most = m, 0
		}
	}
	return most
}

// gained is by how much a master's clock has certainly moved from one reading to the other.
func (s *Story) gained(from, to *Seen) time.Duration {
	most, least := s.masterAhead(to)+to.Within-s.masterAhead(from), s.masterAhead(to)-s.masterAhead(from)-from.Within
	if from.Party.Clock != to.Party.Clock {
		more := slack + from.Party.Clock.within + to.Party.Clock.within
		most, least = most+more, least-more
	}
	return max(least, 0) + min(most, 0)
}

// masterAhead is by how much the master's clock was ahead of the story's, at the least.
func (s *Story) masterAhead(m *Seen) time.Duration {
	return m.Wall.Add(m.Ahead).Sub(m.At)
}

// sameServers reports whether two lists lead to the same servers, by other addresses.
func (s *Story) sameServers(a, b *Party) bool {
	of := func(p *Party) (all []string) {
		for _, m := range s.Masters {
			if m.Party == p && m.RunID != "" && !slices.Contains(all, m.RunID) {
				all = append(all, m.RunID)
			}
		}
		return all
	}
	x, y := of(a), of(b)
	return len(x) > 0 && len(x) == len(a.Client.Masters) && len(y) == len(b.Client.Masters) && len(intersect(x, y)) == max(len(x), len(y))
}

func intersect(a, b []string) (both []string) {
	for _, x := range a {
		if slices.Contains(b, x) {
			both = append(both, x)
		}
	}
	return both
}

// list is a list as people read it.
func list(all []string) string {
	switch len(all) {
	case 0:
		return "none"
	case 1:
		return all[0]
	}
	return strings.Join(all[:len(all)-1], ", ") + " and " + all[len(all)-1]
}

func (s *Story) judgeLosses() {
	told := map[*Hold]bool{} // by a finding that says more
	for _, f := range s.Findings {
		for i, h := range f.Holds {
			if f.Matter == Overlap || f.Matter == Late && i == 0 {
				told[h] = true
			}
		}
	}
	failures := map[lock][]*Round{}
	for _, r := range s.Rounds {
		if r.Outcome != "ok" {
			failures[lock{r.Party, r.Token}] = append(failures[lock{r.Party, r.Token}], r)
		}
	}
	for _, h := range s.Holds {
		if h.End == Lost && !told[h] && s.room(Loss, h.Key) {
			s.judgeLoss(h, failures[lock{h.Party, h.Token}])
		}
	}
}

// A lock is one that a party has had.
type lock struct {
	party *Party
	token uint64
}

func (s *Story) judgeLoss(h *Hold, failures []*Round) {
	at := h.Ended
	cause, why := s.whyLost(h, at, failures)
	left := ""
	if rest := h.Until.Sub(at); rest > 0 && cause != MastersOff { // it was not lost before its time
		left = fmt.Sprintf(" %s before its validity would have ended, and", Short(rest))
	}
	s.find(at, Loss, cause, h.Key, "%s lost %q%s %s after it had taken it. Why: %s", h.Party.Name, h.Key, left, Short(at.Sub(h.Taken)), why).Holds = []*Hold{h}
}

func (s *Story) whyLost(h *Hold, at time.Time, failures []*Round) (Cause, string) {
	if h.Revoked {
		return Revoked, fmt.Sprintf("it was revoked, with the reason %q.", h.Detail)
	}
	if h.Failed == nil || h.Failed.Outcome != "not_held" {
		last := h.lastFailure(failures)
		if last == nil {
			return Unknown, plainText(h.Detail)
		}
		if strings.Contains(last.Detail, "a master was replaced") {
			return Replaced, "another server has taken the place of a master (a failover), and may have forgotten the lock. So too few masters are known to have it."
		}
		return MastersOff, fmt.Sprintf("it was renewed %s before that, and not again, as too few masters answered: %s.", Short(at.Sub(h.Last.At)), votesText(last, against))
	}
	var no []string
	for i, v := range h.Failed.Votes {
		if v.Verdict == redlock.VerdictNo {
			no = append(no, h.Party.master(i))
		}
	}
	if h.Last == nil || len(no) == 0 {
		return Unknown, plainText(h.Detail)
	}
	if had := intersect(no, h.Last.Yes()); len(had) > 0 {
		no = had
	}
	cause, why := s.whyGone(no, h, h.Failed.At)
	return cause, fmt.Sprintf("%s had it no more. %s", list(no), why)
}

// lastFailure returns the last renewal of a hold that has failed. The rounds are by time.
func (h *Hold) lastFailure(failures []*Round) *Round {
	n, _ := slices.BinarySearchFunc(failures, h.Ended.Add(time.Second), func(r *Round, at time.Time) int {
		if r.At.After(at) {
			return 1
		}
		return -1
	})
	if n == 0 {
		return nil
	}
	return failures[n-1]
}

func plainText(detail string) string {
	if detail == "" {
		return "The record does not say why."
	}
	return "Its error: " + strings.TrimPrefix(detail, "redlock: ") + "."
}

// Which votes votesText tells of.
const (
	against  = iota // those that are not yes
	refusals        // those that say no, or failed
)

// votesText says what masters have said in a round.
func votesText(r *Round, which int) string {
	said := map[string][]string{}
	var order []string
	lost := 0
	for _, v := range r.Votes {
		if v.Verdict == redlock.VerdictNo || v.Verdict == redlock.VerdictFailed {
			lost++
		}
	}
	for i, v := range r.Votes {
		m := r.Party.master(i)
		what := ""
		switch v.Verdict {
		case redlock.VerdictNo:
			what = "said no"
		case redlock.VerdictPending:
			what = "did not answer in time"
		default:
			what = "failed (" + cmp.Or(reason(v.Err, m), "without a reason") + ")"
		}
		switch {
		case v.Verdict == redlock.VerdictYes, which == refusals && v.Verdict == redlock.VerdictPending:
			continue
		case v.Verdict == redlock.VerdictPending && 2*lost >= len(r.Votes): // nobody waits for those who are left
			continue
		}
		if said[what] == nil {
			order = append(order, what)
		}
		said[what] = append(said[what], m)
	}
	var parts []string
	for _, what := range order {
		parts = append(parts, list(said[what])+" "+what)
	}
	return strings.Join(parts, "; ")
}

// reason is the beginning of a master's error, for people: what follows says what to do about it.
func reason(err, master string) string {
	text, _, _ := strings.Cut(err, ";")
	for _, r := range reasons {
		if strings.Contains(text, r.part) {
			return r.words
		}
	}
	for _, prefix := range []string{"mux: ", "conn: ", master + ": "} {
		text = strings.TrimPrefix(text, prefix)
	}
	return strings.TrimSuffix(text, ".")
}

// reasons are what systems say of connections, in other words than each other.
var reasons = []struct{ part, words string }{
	{"does not answer", "no answer"},
	{"connection refused", "nobody listens there"},
	{"actively refused", "nobody listens there"}, // Windows
	{"connection reset", brokeOff},
	{"forcibly closed", brokeOff},
	{"broken pipe", brokeOff},
	{"EOF", brokeOff},
}

const brokeOff = "the connection broke"

// fewWaits is how many long waits of one party for one key are told one by one.
const fewWaits = 3

// judgeWaits says which waits were long. Of many of a party for a key, it tells the longest.
func (s *Story) judgeWaits(byKey map[string][]*Hold, wait time.Duration) {
	type group struct {
		party *Party
		key   string
	}
	all := map[group][]*Wait{}
	for _, w := range s.Waits {
		if w.To.Sub(w.From) >= wait {
			g := group{w.Party, w.Key}
			all[g] = append(all[g], w)
		}
	}
	for g, waits := range all {
		if len(waits) <= fewWaits {
			for _, w := range waits {
				s.judgeWait(w, byKey[g.key], "")
			}
			continue
		}
		longest := slices.MaxFunc(waits, func(a, b *Wait) int { return cmp.Compare(a.To.Sub(a.From), b.To.Sub(b.From)) })
		s.judgeWait(longest, byKey[g.key], fmt.Sprintf("%s had %d long waits for %q, of which this was the longest: ", g.party.Name, len(waits), g.key))
	}
}

// judgeWait says who of those that had the key had it while one has waited.
func (s *Story) judgeWait(w *Wait, holds []*Hold, before string) {
	var had []string
	var got *Hold // what it waited for
	for _, h := range holds {
		if h.Party == w.Party && w.Outcome == "ok" && h.Taken.After(w.From) && !h.Taken.After(w.To) {
			got = h
		}
	}
	for _, h := range holds {
		if h != got && h.Taken.Before(w.To) && h.Ended.After(w.From) {
			had = append(had, fmt.Sprintf("%s had it for %s", h.Party.Name, Short(minTime(w.To, h.Ended).Sub(laterTime(w.From, h.Taken)))))
		}
	}
	who := ""
	switch n := len(had); {
	case n > 5:
		who = fmt.Sprintf(" Meanwhile %d others had it, one after the other.", n)
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

// judgeRounds says which rounds have failed: those with the same outcome, of a party, in one sentence.
func (s *Story) judgeRounds() {
	type group struct {
		party   *Party
		outcome string
		op      redlock.Op
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

// whyFailed says what was in the way of a round.
func (r *Round) whyFailed() string {
	which := against
	if r.Outcome == "refused" {
		which = refusals
	}
	return cmp.Or(votesText(r, which), reason(r.Detail, ""), "the record does not say why")
}

// do says what an operation does.
func do(op redlock.Op) string {
	switch op {
	case redlock.OpLock:
		return "take"
	case redlock.OpUnlock:
		return "release"
	case redlock.OpRenew, redlock.OpRecheck:
		return "renew"
	}
	return string(op)
}

// inWords says what an outcome means.
func inWords(outcome string) string {
	switch outcome {
	case "held":
		return "another has it"
	case "no_quorum":
		return "too few masters answered"
	case "refused":
		return "too many masters refused"
	case "expired":
		return "the masters answered too late"
	case "second":
		return "the second lock failed"
	case "cancelled":
		return "its context ended"
	}
	return strings.ReplaceAll(outcome, "_", " ")
}

// An absence of a master began with was. If it came back before it had a vote, that is mute.
type absence struct{ was, mute *Seen }

func (a absence) phase() string {
	if a.mute != nil {
		return "away"
	}
	return away(a.was.Phase)
}

// judgeMasters says which masters were away, by anybody's record.
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
		case !up && a.was == nil && m.Phase != redlock.PhaseDialing && !closedWith(m):
			since[v] = absence{was: m}
		case !up && a.was != nil && a.mute == nil && m.Phase == redlock.PhaseQuarantined:
			since[v] = absence{a.was, m}
		case up && a.was != nil:
			then := ""
			if a.mute != nil {
				then = fmt.Sprintf(". For the last %s of that it was connected, but had no vote, as it might have forgotten locks", Short(m.At.Sub(a.mute.At)))
			}
			s.find(a.was.At, Away, "", "", "%s was %s for %s, as %s saw it%s%s.", m.Key, a.phase(), Short(m.At.Sub(a.was.At)), m.Party.Name, because(a.was), then)
			delete(since, v)
		}
	}
	for v, a := range since {
		then := ""
		if a.mute != nil {
			then = fmt.Sprintf(". From %s on it was connected, but had no vote, as it might have forgotten locks", a.mute.At.Format(clockFormat))
		}
		s.find(a.was.At, Away, "", "", "%s was %s to the end of the record, as %s saw it%s%s.", v.addr, a.phase(), v.party.Name, because(a.was), then)
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

func because(m *Seen) string {
	if m.Err == "" || m.Phase == redlock.PhaseStalled {
		return ""
	}
	return " (" + reason(m.Err, m.Key) + ")"
}

func (s *Story) judgeLists() {
	for i, a := range s.Parties {
		for _, b := range s.Parties[:i] {
			if a.Client.List != b.Client.List && !s.sameServers(a, b) {
				s.find(s.start(), Lists, "", "", "%s and %s have two lists of masters: %s, and %s. A lock of one does not exclude the other.",
					b.Name, a.Name, list(b.Client.Masters), list(a.Client.Masters))
				return // one is enough
			}
			if a.Client.Prefix != b.Client.Prefix {
				s.find(s.start(), Lists, "", "", "%s and %s have two prefixes, %q and %q: the same key is two locks.", b.Name, a.Name, b.Client.Prefix, a.Client.Prefix)
				return
			}
		}
	}
}

func (s *Story) start() (first time.Time) {
	for _, p := range s.Parties {
		at := p.Clock.at(p.About.BeganBoot)
		if first.IsZero() || at.Before(first) {
			first = at
		}
	}
	return first
}

// clockBound is from when on a difference of clocks is remarkable.
const clockBound = 200 * time.Millisecond

func (s *Story) judgeClocks() {
	told := map[*Clock]bool{}
	for _, p := range s.Parties {
		c := p.Clock
		if p.place == 0 {
			s.judgeJumps(p)
		}
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
	type known struct{ first, last *Seen }
	runs := map[string]*known{}
	for _, m := range s.Masters {
		if m.Ahead == 0 || m.RunID == "" {
			continue
		}
		k := runs[m.RunID]
		if k == nil {
			runs[m.RunID] = &known{m, m}
			continue
		}
		gained := s.gained(k.last, m)
		if since := m.At.Sub(k.last.At); gained.Abs() > clockBound && gained.Abs() > since/50 {
			what := "forward"
			if gained < 0 {
				what = "back"
			}
			s.find(m.At, Clocks, "", "", "The clock of the master %s was set %s by %s, or runs wrong: it moved so far within %s.", m.Key, what, Short(gained), Short(since))
		}
		k.last = m
	}
}

// judgeJumps finds where the wall clock of a record was set.
func (s *Story) judgeJumps(p *Party) {
	var before *flight.Event
	for e := range p.record.Events() {
		if before != nil {
			moved := e.Wall.Sub(before.Wall) - (e.Boot - before.Boot)
			if moved.Abs() > clockBound && e.Kind != flight.KindRound && before.Kind != flight.KindRound || moved.Abs() > 2*time.Second {
				what := "forward"
				if moved < 0 {
					what = "back"
				}
				s.find(p.Clock.at(e.Boot), Clocks, "", "", "The wall clock of %s (%s) was set %s by %s.", cmp.Or(p.Clock.Host, p.Source), p.Name, what, Short(moved))
			}
		}
		before = e
	}
}
