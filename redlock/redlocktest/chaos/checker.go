//go:build linux

package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A trial is what was observed in a test: all that is judged.
type trial struct {
	Began     time.Duration
	Locks     []lockable
	Logs      []clientLog
	Up        []span          // when a majority of the masters was up and reachable
	Unread    []unread        // logs
	Forgot    []time.Duration // when a master has forgotten its keys, in this order
	Masters   int
	Roaming   bool           // the masters
	Seen      sightings      // of tokens on the masters
	Counters  map[string]int // the counts at the end, by key
	Arrivals  []arrival      // at the resource
	Counts    map[string]int // of the resource at the end, by key
	LeastLate int            // so many writes, or more, must have come late to the resource
	Bound     time.Duration  // within which a lock is to be taken while a majority is up; 0 if none is

	// LongEnough is for how long in all a majority is to be up so that locks of each kind must have
	// been taken; 0 if they need not.
	LongEnough time.Duration
	EachKey    bool // likewise, of each key, in twice that time
}

// A clientLog is what one client has recorded.
type clientLog struct {
	Client  string
	Killed  bool   // by the nemesis
	Death   string // how it died, if it did so by itself
	Records []record
}

// A finding is what the checker says of a trial.
type finding struct {
	Violations []string
	Deaths     []string       // of clients: violations that nobody plants
	Overlaps   map[string]int // by key
	AtOnce     map[string]int // by key: how many had it at one moment, at most
	Taken      map[string]int // locks, by their names
	Kinds      map[string]int // the same, by kind
	Outcomes   outcomeCounts
	Increments int        // counted
	Overtaken  int        // failed, since another had written meanwhile
	GivenUp    int        // given up before the write, since the lock was not valid any more
	Stale      int        // counted, but when the lock was not known to be valid any more
	Written    int        // writes that the resource has taken
	Late       int        // writes that came late to the resource
	Lost       int        // increments of the resource
	Backward   int        // fences that are lower than an earlier one
	Raised     int        // second rounds for a fence
	Disorders  []disorder // histories that are not linearizable
	Histories  int        // that were looked at
	Longest    int        // locks in one of them
	Harm       []string   // what the resource has suffered. These are violations, unless it looks at no fence
	During     int        // records of clients while their log was blocked
	Kept       int        // locks that were kept while the log of their client was blocked
	Unkept     int        // those that were not
	Stall      time.Duration
	StallKey   string
}

// outcomeCounts says how often each outcome was recorded.
type outcomeCounts map[op]map[string]int

func (o outcomeCounts) add(r record) {
	if o[r.Op] == nil {
		o[r.Op] = make(map[string]int)
	}
	o[r.Op][r.Outcome]++
}

// A claim is when a client has claimed a lock, all its keys: from From until before To.
type claim struct {
	client string
	hold   int
	lock   lockable
	second secondID // its second lock; the number is 0 if it has none
	span
	began time.Duration // when it was asked for, or later, but before it was taken
	until time.Duration // end of the validity
	least time.Duration // until then nobody else may have it, whatever becomes of the holder
	fence uint64        // 0 if it has none
	token string        // empty if nobody knows it
	left  bool
	lost  bool          // as an operation has found, while the validity had not ended
	freed time.Duration // when an Unlock had said that it was held until then; 0 if none has
	sure  time.Duration // an Unlock, or Do, has said that it was held until then, also beyond the validity; 0 if none has
}

// A write is an attempt to increment a counter.
type write struct {
	*claim
	key     string
	began   time.Duration
	at      time.Duration // when it was over; when it began, if the client was killed meanwhile
	version int
	outcome string // empty if the client was killed meanwhile
	valid   bool   // at at
}

// minHoldMargin is taken from a least hold: the clocks may differ a little over it.
const minHoldMargin = 20 * time.Millisecond

type checker struct {
	trial
	finding
	locks  map[string]lockable // by their names
	claims []*claim
	writes []*write
	gone   map[secondID]time.Duration // when second locks were lost, or later

	revocations []record
}

// check judges a trial.
func check(t trial) finding {
	c := checker{trial: t, locks: make(map[string]lockable), gone: make(map[secondID]time.Duration)}
	c.Outcomes = make(outcomeCounts)
	c.Overlaps, c.AtOnce, c.Taken, c.Kinds = make(map[string]int), make(map[string]int), make(map[string]int), make(map[string]int)
	for _, l := range t.Locks {
		if l.TTL >= c.locks[l.String()].TTL { // some differ where a rule is broken
			c.locks[l.String()] = l
		}
		for _, fenced := range []bool{false, true} {
			if !fenced || l.mayFence() {
				c.Kinds[l.Kind.label(fenced)] = 0
			}
		}
	}
	for _, l := range t.Logs {
		for _, r := range l.Records {
			if r.Op == opRevoke {
				c.revocations = append(c.revocations, r)
			}
		}
	}
	for _, l := range t.Logs {
		c.read(l)
	}
	c.checkRevocations()
	c.checkOverlaps()
	c.checkFences()
	c.checkOrder()
	c.checkReleases()
	c.checkCounters()
	c.checkResource()
	c.checkProgress()
	c.checkKinds()
	c.checkLeaders()
	c.checkLogs()
	return c.finding
}

func (c *checker) harm(format string, args ...any) {
	c.Harm = append(c.Harm, fmt.Sprintf(format, args...))
}

func (c *checker) violation(format string, args ...any) {
	c.Violations = append(c.Violations, fmt.Sprintf(format, args...))
}

// at shows a time of the test.
func (c *checker) at(t time.Duration) string { return fmt.Sprintf("%.6fs", (t - c.Began).Seconds()) }

// allowed are the outcomes that are no violation in themselves. A context may end an
// operation before the masters have decided it, and nothing else is to blame then.
var allowed = map[op][]string{
	opOpen:   outcomes("ok, no quorum, cancelled, deadline", "no quorum"),
	opTry:    outcomes("ok, held, no quorum, expired, cancelled, deadline", "held, no quorum, expired"),
	opLock:   outcomes("ok, cancelled, deadline", "held, no quorum, expired"), // it waits for its context
	opDo:     outcomes("ok, lost, lost+not held, lost+revoked, cancelled, deadline", "held, no quorum, expired, lost, lost+not held, lost+revoked"),
	opExtend: outcomes("ok, no quorum, expired, not held, lost+revoked+not held, cancelled, deadline", "no quorum, expired, not held, lost+revoked+not held"),
	opAdopt:  outcomes("ok, no quorum, expired, not held, lost+revoked+not held, cancelled, deadline", "no quorum, expired, not held, lost+revoked+not held"),
	opUnlock: outcomes("ok, no quorum, not held, lost+revoked+not held, cancelled, deadline", "no quorum, not held, lost+revoked+not held"),
	opRevoke: outcomes("ok, not held, no quorum, cancelled, deadline", "no quorum, not held"),
	opSecond: outcomes("ok, held, failed, gone, cancelled, deadline", ""),
	opLost:   outcomes("lost, lost+no quorum, lost+expired, lost+not held, lost+revoked", ""),
	opDone: outcomes("ok, no quorum, lost, lost+no quorum, lost+expired, lost+not held, lost+revoked, cancelled, deadline",
		"no quorum, lost, lost+no quorum, lost+expired, lost+not held, lost+revoked"),
	opLead:  outcomes("ok", ""),
	opClean: outcomes("ok, not kept", ""),
	opLed:   outcomes("cancelled, deadline", "held, no quorum, expired"),
	opWrote: outcomes("ok, overtaken, refused, given up", ""),
	opWhole: outcomes("ok", ""),
	opEnd:   outcomes("ok", ""),
}

// allowedBySecond are those that a lock may have beside them if there is a second one behind it.
var allowedBySecond = map[op][]string{
	opTry:  outcomes("second", ""),
	opLock: outcomes("", "second"),
	opDo:   outcomes("lost+second", "second, lost+second"),
	opDone: outcomes("lost+second", "lost+second"),
	opLost: outcomes("lost+second", ""),
}

// outcomes lists those that come alone, and those that come with the error of a
// context that had ended.
func outcomes(alone, withContext string) []string {
	var all []string
	if alone != "" {
		all = strings.Split(alone, ", ")
	}
	if withContext != "" {
		for _, o := range strings.Split(withContext, ", ") {
			all = append(all, o+"+cancelled", o+"+deadline")
		}
	}
	return all
}

// read goes through one client's records.
func (c *checker) read(l clientLog) {
	holds := make(map[int]*claim)
	open := make(map[int]*write) // by hold
	ended := false
	for _, r := range l.Records {
		who := fmt.Sprintf("%s at %s: %s", l.Client, c.at(r.T), r.Op)
		if _, is := allowed[r.Op]; is {
			c.Outcomes.add(r)
			if !c.allows(r, holds[r.Hold]) {
				c.violation("%s %s ended in %s", who, r.Lock, r.Outcome)
			}
		}
		var h *claim
		switch r.Op {
		case opOpen, opWhole, opLed:
			c.Raised += int(r.Raised)
			continue
		case opDone:
			if h := holds[r.Hold]; h != nil && h.left && r.Outcome == ok {
				h.sure = h.To
			}
			continue
		case opSecond:
			if r.Outcome == gone {
				c.gone[secondID{r.Lock, r.Second}] = r.T
			}
			continue
		case opEnd:
			ended = true
			continue
		case opRevoke:
			continue
		case opTry, opLock, opDo, opLead:
			if r.Outcome != ok {
				continue
			}
			lock, is := c.locks[r.Lock]
			if !is {
				c.violation("%s of %q, of which nothing is known", who, r.Lock)
				continue
			}
			c.Taken[r.Lock]++
			c.Kinds[lock.Kind.label(r.Fence != 0)]++
			h = &claim{client: l.Client, hold: r.Hold, lock: lock, span: span{From: r.T}, began: r.Began, until: r.T, fence: r.Fence, token: r.Token, second: secondID{r.Lock, r.Second}}
			if r.Until > r.T { // the round that took it began less than a TTL before its end
				latest := r.Until - lock.TTL
				if c.Roaming { // unless a recheck has prolonged it before its taker knew of it
					latest = r.Began
				}
				h.began = min(max(r.Began, latest), r.T)
				if lock.MinHold > 0 { // likewise; what is allowed for clocks is in the margin
					h.least = latest + lock.MinHold - minHoldMargin
				}
			}
			holds[r.Hold] = h
			c.claims = append(c.claims, h)
		default:
			if h = holds[r.Hold]; h == nil {
				c.violation("%s of hold %d, which was never taken", who, r.Hold)
				continue
			}
		}
		if r.Until > r.T+h.lock.TTL {
			c.violation("%s %s: valid for %v, longer than the TTL", who, h.lock, r.Until-r.T)
		}
		switch r.Op {
		case opWrite:
			open[r.Hold] = &write{claim: h, key: r.Key, began: r.T, at: r.T, version: r.Version}
		case opWrote:
			w := open[r.Hold]
			if w == nil || w.key != r.Key || w.version != r.Version {
				c.violation("%s of a write that was not begun", who)
				continue
			}
			delete(open, r.Hold)
			w.at, w.outcome, w.valid = r.T, r.Outcome, r.Valid
			c.writes = append(c.writes, w)
		case opLeave:
			h.To, h.left = r.T, true
		case opExtend, opAdopt, opUnlock, opLost:
			if !h.left && strings.Contains(r.Outcome, "revoked") {
				h.To, h.left = r.T, true // the client has let go, though its holder may leave the lock to its TTL
			}
			_, second := c.gone[h.second] // that comes before what follows from it
			switch {
			case r.Op == opAdopt && r.Outcome == ok:
				h.left = false
			case r.Op == opLost && strings.Contains(r.Outcome, "second") && !second:
				c.violation("%s %s, hold %d: %s, though its second lock was not lost", who, h.lock, h.hold, r.Outcome)
			case r.Op == opUnlock && r.Outcome == ok && second:
				c.violation("%s %s, hold %d: %s, though its second lock was lost", who, h.lock, h.hold, r.Outcome)
			case r.T < h.until && strings.Contains(r.Outcome, "not held") && !second:
				h.lost = true
				if !c.mayBeLost(h, r.T) && !c.mayBeRevoked(h, r.T) {
					c.violation("%s %s, hold %d: %s, though it was valid until %s", who, h.lock, h.hold, r.Outcome, c.at(h.until))
				}
			case strings.Contains(r.Outcome, "revoked") && !c.mayBeRevoked(h, r.T):
				c.violation("%s %s, hold %d: %s, though nobody has revoked it", who, h.lock, h.hold, r.Outcome)
			case r.Op == opUnlock && r.Outcome == ok:
				h.freed = r.T
				if h.left && h.lock.Kind != foreign { // another library's says so in any case
					h.sure = h.To
				}
				if h.lost && h.lock.Kind != foreign {
					c.violation("%s %s, hold %d: %s, though it was known to be lost", who, h.lock, h.hold, r.Outcome)
				}
			}
		}
		h.until = max(h.until, r.Until)
	}
	for _, h := range holds {
		if !h.left || h.until < h.To {
			h.To = h.until
		}
		h.To = max(h.To, h.least)
		if at, is := c.gone[h.second]; is {
			h.To = min(h.To, at)
		}
	}
	for _, w := range open {
		c.writes = append(c.writes, w)
	}
	switch {
	case l.Death != "":
		c.violation("%s died: %s", l.Client, l.Death)
		c.Deaths = append(c.Deaths, c.Violations[len(c.Violations)-1])
	case !l.Killed && !ended:
		c.violation("%s: the end of its records is missing", l.Client)
	case !l.Killed && len(open) > 0:
		c.violation("%s: the end of a write is missing", l.Client)
	}
}

// allows reports whether an operation may end like that. The claim is that of the record's hold, if it has one.
func (c *checker) allows(r record, h *claim) bool {
	switch {
	case slices.Contains(allowed[r.Op], r.Outcome):
		return true
	case r.Outcome == "no quorum" && (c.disputed(r.Lock) || r.Lock == spoiledKey):
		return true
	case c.locks[r.Lock].Second || h != nil && h.lock.Second:
		return slices.Contains(allowedBySecond[r.Op], r.Outcome)
	}
	return false
}

// disputed reports whether there are others who want another number of permits. Then a Lock does not wait.
func (c *checker) disputed(name string) bool {
	l := c.locks[name]
	return l.Kind == permits && slices.ContainsFunc(c.Locks, func(other lockable) bool {
		return other.Kind == permits && other.Keys[0] == l.Keys[0] && other.Permits != l.Permits
	})
}

// mayBeLost reports whether a lock may be lost while it is valid: a master that has forgotten it was one of its
// quorum, perhaps, and nobody knows that it was not another who has the lock. A vote may have been given some time
// before the claim.
func (c *checker) mayBeLost(h *claim, now time.Duration) bool {
	i, _ := slices.BinarySearch(c.Forgot, h.From-time.Second)
	return i < len(c.Forgot) && c.Forgot[i] <= now
}

// mayBeRevoked reports whether somebody has tried to revoke the lock since it was asked for. One that is passed on without
// the masters' word may have been revoked before.
func (c *checker) mayBeRevoked(h *claim, now time.Duration) bool {
	began := h.began
	if h.lock.Passed {
		began -= h.lock.TTL
	}
	return slices.ContainsFunc(c.revocations, func(r record) bool {
		lock, is := c.locks[r.Lock]
		return is && r.Began <= now && r.T >= began && (r.Token == "" || h.token == "" || r.Token == h.token) &&
			slices.ContainsFunc(lock.Keys, func(key string) bool { return slices.Contains(h.lock.Keys, key) })
	})
}

// checkRevocations demands that no lock was extended once it was revoked. An extension gives a validity of less than
// the TTL from its beginning on. A claim whose token nobody knows is judged by its overlaps alone.
func (c *checker) checkRevocations() {
	revoked := make(map[string]record)
	for _, r := range c.revocations {
		if r.Token != "" && r.Outcome == ok {
			revoked[r.Token] = r
		}
	}
	for _, h := range c.claims {
		if r, is := revoked[h.token]; is && h.until > r.T+h.lock.TTL {
			c.violation("%s: %s was extended, though it was revoked at %s", h.lock, c.show(h), c.at(r.T))
		}
	}
}

// checkOverlaps finds claims that exclude each other and overlap. Those that touch do not. It goes
// through the claims in the order of their beginnings, and knows for each key who has it then. It also finds
// those who were told that they had held the lock until they gave it back, though another had it before.
func (c *checker) checkOverlaps() {
	slices.SortFunc(c.claims, func(a, b *claim) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	holders := make(map[string][]*claim) // by key
	for _, h := range c.claims {
		if h.To <= h.From { // over before it began
			continue
		}
		for _, key := range h.lock.Keys {
			sure := slices.DeleteFunc(holders[key], func(other *claim) bool { return max(other.To, other.sure) <= h.From })
			now := slices.DeleteFunc(slices.Clone(sure), func(other *claim) bool { return other.To <= h.From })
			if others := h.lock.excludedBy(now); len(others) > 0 {
				c.Overlaps[key]++
				c.violation("%s: %s and %s had it at once", key, c.show(others...), c.show(h))
			} else if others := h.lock.excludedBy(sure); len(others) > 0 {
				c.violation("%s: it was said that %s had it until the release, though %s had it before", key, c.show(others...), c.show(h))
			}
			holders[key] = append(sure, h)
			c.AtOnce[key] = max(c.AtOnce[key], len(now)+1)
		}
	}
}

// excludedBy returns those because of whom nobody may have the lock beside the holders of a key. All
// who have permits agree on how many there are.
func (l lockable) excludedBy(holders []*claim) (others []*claim) {
	for _, h := range holders {
		switch {
		case l.Kind == shared && h.lock.Kind == shared:
		case l.Kind == permits && h.lock.Permits == l.Permits && len(holders) < l.Permits:
		default:
			others = append(others, h)
		}
	}
	return others
}

// show lists claims.
func (c *checker) show(claims ...*claim) string {
	var all []string
	for _, h := range claims {
		all = append(all, fmt.Sprintf("%s (hold %d of %s, %s to %s)", h.client, h.hold, h.lock, c.at(h.From), c.at(h.To)))
	}
	return strings.Join(all, ", ")
}

// checkFences demands that no two locks of a key have the same fence, and that each has a greater
// one than those that were claimed before. The claims are in the order of their beginnings.
func (c *checker) checkFences() {
	type at struct {
		key   string
		fence uint64
	}
	given := make(map[at]*claim)
	greatest := make(map[string]*claim) // by key: the one with the greatest fence so far
	for _, h := range c.claims {
		if h.fence == 0 {
			continue
		}
		for _, key := range h.lock.Keys {
			if other := given[at{key, h.fence}]; other != nil {
				c.violation("%s: %s (hold %d) and %s (hold %d) have the same fence, %d", key, other.client, other.hold, h.client, h.hold, h.fence)
			}
			given[at{key, h.fence}] = h
			switch last := greatest[key]; {
			case h.To <= h.From: // it does not say when it began
			case last == nil || last.fence < h.fence:
				greatest[key] = h
			case h.fence < last.fence:
				c.Backward++
				c.violation("%s: %s (hold %d) has the fence %d from %s on, and %s (hold %d) had %d from %s on", key,
					h.client, h.hold, h.fence, c.at(h.From), last.client, last.hold, last.fence, c.at(last.From))
			}
		}
	}
}

// checkReleases demands that what was unlocked stays so. A quorum has deleted the key, and its token can only be
// left on the others.
func (c *checker) checkReleases() {
	for _, h := range c.claims {
		if h.token == "" || h.freed == 0 || h.lock.MinHold > 0 {
			continue
		}
		there := 0
		for _, asked := range c.Seen[h.token] {
			if asked > h.freed {
				there++
			}
		}
		if there > (c.Masters-1)/2 {
			c.violation("%s: %d masters had the token of %s again after it was unlocked at %s", h.lock, there, c.show(h), c.at(h.freed))
		}
	}
}

// checkCounters finds increments that were lost, and those that only the condition
// of the write has kept from being lost though both writers held valid locks.
func (c *checker) checkCounters() {
	type at struct {
		key     string
		version int
	}
	counted := make(map[at]*write)
	open := make(map[at]bool)
	for _, w := range c.writes {
		v := at{w.key, w.version}
		switch {
		case w.outcome == gaveUp:
			c.GivenUp++
		case w.fence != 0: // it is the resource's
		case w.outcome == "":
			open[v] = true
		case w.outcome == ok:
			c.Increments++
			if !w.valid {
				c.Stale++
			}
			if counted[v] != nil {
				c.violation("%s: increment %d was written by %s at %s, and again by %s at %s", w.key, w.version,
					counted[v].client, c.at(counted[v].at), w.client, c.at(w.at))
			}
			counted[v] = w
			if w.version >= c.Counters[w.key] {
				c.violation("%s: increment %d of %s at %s is lost: the count is %d", w.key, w.version, w.client, c.at(w.at), c.Counters[w.key])
			}
		}
	}
	for _, w := range c.writes {
		if w.outcome != overtaken {
			continue
		}
		c.Overtaken++
		if other := counted[at{w.key, w.version}]; w.valid && other != nil && other.valid {
			c.violation("%s: %s at %s would have lost increment %d, of %s at %s, and both held valid locks", w.key,
				w.client, c.at(w.at), w.version, other.client, c.at(other.at))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(c.Counters)) {
		for n := range c.Counters[key] {
			if v := (at{key, n}); counted[v] == nil && !open[v] {
				c.violation("%s: nobody has written increment %d", key, n)
			}
		}
	}
}

// checkResource finds increments that the resource has lost, and demands that it and the clients
// tell the same of each write.
func (c *checker) checkResource() {
	type source struct {
		client        string
		hold, version int
	}
	made := make(map[source][]*write)
	for _, w := range c.writes {
		if w.fence == 0 || w.outcome == gaveUp {
			continue
		}
		s := source{w.client, w.hold, w.version}
		made[s] = append(made[s], w)
		if w.outcome == refused && w.valid {
			c.violation("%s: %s was refused at %s with the fence %d, though its lock was valid", w.key, w.client, c.at(w.at), w.fence)
		}
	}
	count, greatest := make(map[string]int), make(map[string]uint64)
	for _, a := range c.Arrivals {
		s := source{a.Client, a.Hold, a.Count - 1}
		i := slices.IndexFunc(made[s], func(w *write) bool {
			return w.key == a.Key && w.fence == a.Fence && w.began <= a.T &&
				(w.outcome == "" || a.T <= w.at && (w.outcome == ok) == a.Taken)
		})
		if i < 0 {
			c.violation("%s: the resource says of a write of %d by %s at %s what that one does not say", a.Key, a.Count, a.Client, c.at(a.T))
		} else {
			made[s] = slices.Delete(made[s], i, i+1)
		}
		if a.Late {
			c.Late++
		}
		if !a.Taken {
			continue
		}
		c.Written++
		if a.Fence < greatest[a.Key] {
			c.harm("%s: a write of %s at %s with the fence %d was taken after one with %d", a.Key, a.Client, c.at(a.T), a.Fence, greatest[a.Key])
		}
		greatest[a.Key] = max(greatest[a.Key], a.Fence)
		if last := count[a.Key]; a.Count != last+1 {
			c.Lost += last + 1 - a.Count
			c.harm("%s: %s has written %d at %s, when the count was %d", a.Key, a.Client, a.Count, c.at(a.T), last)
		}
		count[a.Key] = a.Count
	}
	for _, w := range c.writes {
		if s := (source{w.client, w.hold, w.version}); w.outcome != "" && slices.Contains(made[s], w) {
			c.violation("%s: a write of %d by %s ended in %s at %s, and the resource has not had it", w.key, w.version+1, w.client, w.outcome, c.at(w.at))
		}
	}
	for _, key := range keysOf(c.Locks) {
		if c.Counts[key] != count[key] {
			c.violation("%s: the resource's count is %d, and %d was written last", key, c.Counts[key], count[key])
		}
	}
	if c.Late < c.LeastLate {
		c.violation("%d writes came late to the resource, and not %d: its fence was not tested", c.Late, c.LeastLate)
	}
}

// checkProgress finds the longest time in which a key was not taken, though a
// majority of the masters was up all the while.
func (c *checker) checkProgress() {
	for _, key := range keysOf(c.Locks) {
		var taken []time.Duration
		for _, h := range c.claims {
			if slices.Contains(h.lock.Keys, key) {
				taken = append(taken, h.From)
			}
		}
		slices.Sort(taken)
		for _, up := range c.Up {
			since := up.From
			first, _ := slices.BinarySearch(taken, up.From)
			end, _ := slices.BinarySearch(taken, up.To)
			for _, t := range append(taken[first:end:end], up.To) {
				if t-since > c.Stall {
					c.Stall, c.StallKey = t-since, key
				}
				if c.Bound > 0 && t-since > c.Bound {
					c.violation("%s was not taken from %s to %s, though a majority of the masters was up", key, c.at(since), c.at(t))
				}
				since = t
			}
		}
	}
}

// checkKinds demands locks of each kind, and of each key, if there was time for them; and that the masters were looked at.
func (c *checker) checkKinds() {
	var up time.Duration
	for _, s := range c.Up {
		up += s.To - s.From
	}
	if c.LongEnough == 0 || up < c.LongEnough {
		return
	}
	missing := func(what string) {
		c.violation("no %s, though a majority of the masters was up for %v", what, up)
	}
	for _, k := range slices.Sorted(maps.Keys(c.Kinds)) {
		if c.Kinds[k] == 0 {
			missing("lock of the kind " + k + " was taken")
		}
	}
	for _, key := range keysOf(c.Locks) { // some are taken about once in a second
		if c.EachKey && up >= 2*c.LongEnough && !slices.ContainsFunc(c.claims, func(h *claim) bool { return slices.Contains(h.lock.Keys, key) }) {
			missing("lock of the key " + key + " was taken")
		}
	}
	if c.Masters > 0 && len(c.Seen) == 0 {
		missing("key was seen on a master")
	}
}
