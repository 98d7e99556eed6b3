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
	Keys      []lockKey
	Logs      []clientLog
	Up        []span         // when a majority of the masters was up and reachable
	Counters  map[string]int // the counts at the end, by key
	Arrivals  []arrival      // at the resource
	Counts    map[string]int // of the resource at the end, by key
	LeastLate int            // so many writes, or more, must have come late to the resource
	Bound     time.Duration  // within which a lock is to be taken while a majority is up; 0 if none is
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
	Overlaps   int
	Outcomes   outcomeCounts
	Increments int      // counted
	Overtaken  int      // failed, since another had written meanwhile
	GivenUp    int      // given up before the write, since the lock was not valid any more
	Stale      int      // counted, but when the lock was not known to be valid any more
	Taken      int      // writes by the resource
	Late       int      // writes that came late to the resource
	Lost       int      // increments of the resource
	Backward   int      // fences that are lower than an earlier one
	Raised     int      // second rounds for a fence
	Harm       []string // what the resource has suffered. These are violations, unless it looks at no fence
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

// A claim is when a client has claimed a key: from From until before To.
type claim struct {
	client string
	hold   int
	key    string
	span
	until time.Duration // end of the validity
	fence uint64        // 0 if it has none
	left  bool
}

// A write is an attempt to increment a counter.
type write struct {
	*claim
	began   time.Duration
	at      time.Duration // when it was over; when it began, if the client was killed meanwhile
	version int
	outcome string // empty if the client was killed meanwhile
	valid   bool   // at at
}

type checker struct {
	trial
	finding
	ttl    map[string]time.Duration
	claims []*claim
	writes []*write
}

// check judges a trial.
func check(t trial) finding {
	c := checker{trial: t, ttl: make(map[string]time.Duration)}
	c.Outcomes = make(outcomeCounts)
	for _, k := range t.Keys {
		c.ttl[k.Name] = k.TTL
	}
	for _, l := range t.Logs {
		c.read(l)
	}
	c.checkOverlaps()
	c.checkFences()
	c.checkCounters()
	c.checkResource()
	c.checkProgress()
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
	opDo:     outcomes("ok, lost, lost+not held, cancelled, deadline", "held, no quorum, expired"),
	opExtend: outcomes("ok, no quorum, expired, not held, cancelled, deadline", "no quorum, expired, not held"),
	opUnlock: outcomes("ok, no quorum, not held, cancelled, deadline", "no quorum, not held"),
	opLost:   outcomes("lost, lost+no quorum, lost+expired, lost+not held", ""),
	opDone: outcomes("ok, lost, lost+no quorum, lost+expired, lost+not held, cancelled, deadline",
		"lost, lost+no quorum, lost+expired, lost+not held"),
	opWrote: outcomes("ok, overtaken, refused, given up", ""),
	opWhole: outcomes("ok", ""),
	opEnd:   outcomes("ok", ""),
}

// outcomes lists those that come alone, and those that come with the error of a
// context that had ended.
func outcomes(alone, withContext string) []string {
	all := strings.Split(alone, ", ")
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
		if names, is := allowed[r.Op]; is {
			c.Outcomes.add(r)
			if !slices.Contains(names, r.Outcome) {
				c.violation("%s %s ended in %s", who, r.Key, r.Outcome)
			}
		}
		var h *claim
		switch r.Op {
		case opOpen, opWhole, opDone:
			c.Raised += int(r.Raised)
			continue
		case opEnd:
			ended = true
			continue
		case opTry, opLock, opDo:
			if r.Outcome != ok {
				continue
			}
			h = &claim{client: l.Client, hold: r.Hold, key: r.Key, span: span{From: r.T}, until: r.T, fence: r.Fence}
			holds[r.Hold] = h
			c.claims = append(c.claims, h)
		default:
			if h = holds[r.Hold]; h == nil {
				c.violation("%s of hold %d, which was never taken", who, r.Hold)
				continue
			}
		}
		if r.Until > r.T+c.ttl[h.key] {
			c.violation("%s %s: valid for %v, longer than the TTL", who, h.key, r.Until-r.T)
		}
		switch r.Op {
		case opWrite:
			open[r.Hold] = &write{claim: h, began: r.T, at: r.T, version: r.Version}
		case opWrote:
			w := open[r.Hold]
			if w == nil || w.version != r.Version {
				c.violation("%s of a write that was not begun", who)
				continue
			}
			delete(open, r.Hold)
			w.at, w.outcome, w.valid = r.T, r.Outcome, r.Valid
			c.writes = append(c.writes, w)
		case opLeave:
			h.To, h.left = r.T, true
		case opExtend, opUnlock, opLost:
			if r.T < h.until && strings.Contains(r.Outcome, "not held") {
				c.violation("%s %s, hold %d: %s, though it was valid until %s", who, h.key, h.hold, r.Outcome, c.at(h.until))
			}
		}
		h.until = max(h.until, r.Until)
	}
	for _, h := range holds {
		if !h.left || h.until < h.To {
			h.To = h.until
		}
	}
	for _, w := range open {
		c.writes = append(c.writes, w)
	}
	switch {
	case l.Death != "":
		c.violation("%s died: %s", l.Client, l.Death)
	case !l.Killed && !ended:
		c.violation("%s: the end of its records is missing", l.Client)
	case !l.Killed && len(open) > 0:
		c.violation("%s: the end of a write is missing", l.Client)
	}
}

// checkOverlaps finds claims of one key that overlap. Those that touch do not.
func (c *checker) checkOverlaps() {
	slices.SortFunc(c.claims, func(a, b *claim) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	var last *claim // of those of this key so far, the one that ends last
	for _, h := range c.claims {
		switch {
		case h.To <= h.From: // over before it began
			continue
		case last != nil && last.key == h.key && h.From < last.To:
			c.Overlaps++
			c.violation("%s: %s (hold %d, %s to %s) and %s (hold %d, %s to %s) had it at once", h.key,
				last.client, last.hold, c.at(last.From), c.at(last.To), h.client, h.hold, c.at(h.From), c.at(h.To))
			if h.To <= last.To {
				continue
			}
		}
		last = h
	}
}

// checkFences demands that no two locks of a key have the same fence, and that each has a greater
// one than those that were claimed before. The claims are in the order of their beginnings.
func (c *checker) checkFences() {
	type at struct {
		key   string
		fence uint64
	}
	given := make(map[at]*claim)
	var last *claim // of those of this key so far, the one with the greatest fence
	for _, h := range c.claims {
		if h.fence == 0 {
			continue
		}
		if other := given[at{h.key, h.fence}]; other != nil {
			c.violation("%s: %s (hold %d) and %s (hold %d) have the same fence, %d", h.key, other.client, other.hold, h.client, h.hold, h.fence)
		}
		given[at{h.key, h.fence}] = h
		switch {
		case h.To <= h.From: // it does not say when it began
			continue
		case last == nil || last.key != h.key || last.fence < h.fence:
			last = h
		case h.fence < last.fence:
			c.Backward++
			c.violation("%s: %s (hold %d) has the fence %d from %s on, and %s (hold %d) had %d from %s on", h.key,
				h.client, h.hold, h.fence, c.at(h.From), last.client, last.hold, last.fence, c.at(last.From))
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
		c.Taken++
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
	for _, k := range c.Keys {
		if c.Counts[k.Name] != count[k.Name] {
			c.violation("%s: the resource's count is %d, and %d was written last", k.Name, c.Counts[k.Name], count[k.Name])
		}
	}
	if c.Late < c.LeastLate {
		c.violation("%d writes came late to the resource, and not %d: its fence was not tested", c.Late, c.LeastLate)
	}
}

// checkProgress finds the longest time in which a key was not taken, though a
// majority of the masters was up all the while.
func (c *checker) checkProgress() {
	for _, k := range c.Keys {
		var taken []time.Duration
		for _, h := range c.claims {
			if h.key == k.Name {
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
					c.Stall, c.StallKey = t-since, k.Name
				}
				if c.Bound > 0 && t-since > c.Bound {
					c.violation("%s was not taken from %s to %s, though a majority of the masters was up", k.Name, c.at(since), c.at(t))
				}
				since = t
			}
		}
	}
}
