package story

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redburst/redburst/redlock/internal/record"
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
	Ending  Matter = "ending" // a lock was let go after its validity had ended, and nobody had renewed it
	Away    Matter = "away"   // a master
	Clocks  Matter = "clock"
	Lists   Matter = "lists" // of masters
	Gap     Matter = "gap"   // in a record
)

// A Cause says why an Overlap or a Loss came about.
type Cause string

// The Causes.
const (
	Forgot     Cause = "masters forgot"         // they were restarted, without what they had
	ClockSet   Cause = "a clock jumped"         // or runs too fast
	TwoLists   Cause = "two lists of masters"   // their quorums need not meet
	Frozen     Cause = "a holder was frozen"    // and came back when its lock had ended
	Deleted    Cause = "keys were deleted"      // by somebody else, or evicted
	Revoked    Cause = "revoked"                // by an operator
	MastersOff Cause = "too few masters"        // answered in time
	Replaced   Cause = "a master was replaced"  // by a replica, which may not have the lock
	Unknown    Cause = "the records do not say" // why
	Ended      Cause = "its time was over"      // nobody has renewed it
)

// A Finding is something remarkable. It says what its Grounds force: where another run of the world could have left the same
// records, Maybe or Likely is set, and Text says what is missing.
type Finding struct {
	At      time.Time
	Matter  Matter
	Cause   Cause  // of an Overlap, a Late one and a Loss
	Key     string // as the masters have it; empty if it is of none
	Text    string // sentences
	Holds   []*Hold
	Masters []string // that are to blame, by the Cause
	Grounds []Ground // the events that show it
	Maybe   bool     // what the records do not say may be that there was nothing of the kind
	Likely  bool     // the Cause fits, and another one may, too

	alike string  // of a Loss: those with the same may be of one fault
	lost  []*Hold // whose loss it tells, if it is of another Matter; some may be nil
}

// A Ground is an event that shows what a Finding says.
type Ground struct {
	Party *Party
	Event *record.Event
}

func ground(r *Round) []Ground {
	if r == nil {
		return nil
	}
	return []Ground{{r.Party, r.Event}}
}

// slack is by how much two clocks that were put together by the masters can be off all the same.
const slack = 50 * time.Millisecond

// What is told at the most, of what somebody may have made up.
const (
	maxFound    = 5_000      // findings of a matter
	maxFoundOf  = 200        // ... and of a key
	maxCompared = 20_000_000 // pairs of what is in the records: some seconds
	maxNamed    = 100        // holds of a finding
	maxText     = 4 << 20    // bytes of findings, about
	maxListed   = 12         // names of a list
)

const tooMuch = "there is too much in the records to say it."

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
	for ; s.texts < len(s.Findings); s.texts++ { // what is found is written on later
		f := &s.Findings[s.texts]
		s.size += len(f.Text) + 16*(len(f.Grounds)+len(f.Masters)+len(f.Holds))
	}
	all, of := subject{matter: m}, subject{m, key}
	if s.size >= maxText || s.found[all] >= maxFound || key != "" && s.found[of] >= maxFoundOf {
		s.leftOut[m]++
		return false
	}
	return true
}

// judge applies the rules. Each has a file of its own, rule_*.go, which says what shows its kind of finding.
func (s *Story) judge(wait time.Duration) {
	s.found, s.leftOut = map[subject]int{}, map[Matter]int{}
	s.watch()
	byKey := s.byKey()
	s.judgeClocks()
	s.judgeLists(byKey)
	for _, key := range slices.SortedFunc(maps.Keys(byKey), name.compare) {
		all := byKey[key]
		slices.SortStableFunc(all, func(a, b *Hold) int { return a.Taken.Compare(b.Taken) })
		s.judgeKey(key.key, all)
	}
	s.judgeLosses()
	s.judgeEnds()
	s.judgeWaits(byKey, wait)
	s.judgeRounds()
	s.judgeMasters()
	s.judgeGaps()
	for _, m := range slices.Sorted(maps.Keys(s.leftOut)) {
		s.Findings = append(s.Findings, Finding{At: s.start(), Matter: m, Text: fmt.Sprintf("There is more of this kind (%s) than is told: %s left out.", m, count(s.leftOut[m], "finding"))})
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
