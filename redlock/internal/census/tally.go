package census

import (
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock/internal/defaults"
	"github.com/redburst/redburst/redlock/internal/quorum"
)

// A Tally counts which masters name whom as the holders of a key.
type Tally struct {
	Rows   []*Row // by master; nil of those that are silent
	Claims []*Claim
	by     map[name]*Claim
}

type name struct {
	token  conn.Secret
	permit int
	reader bool
}

// A Claim is a holder whom some masters name.
type Claim struct {
	Holder      // as it was named first, but for a size, a type, and a revocation: a quorum has to say so, or all that name it
	Reader bool // it shares the key with others
	On     []int
	ttls   []time.Duration
	whys   []string // the reasons of those who say that it was revoked
	of     *Tally
}

// NewTally returns the tally of so many masters, of which none has answered.
func NewTally(masters int) *Tally {
	return &Tally{Rows: make([]*Row, masters), by: map[name]*Claim{}}
}

// Add counts what a master says.
func (t *Tally) Add(master int, r Row) {
	t.Rows[master] = &r
	for _, h := range r.Holders {
		t.Count(master, h, r.Readers > 0)
	}
}

// Count counts that a master names a holder. It is called once for each that a master names, by master.
func (t *Tally) Count(master int, h Holder, reader bool) {
	at := name{h.Token, h.Permit, reader}
	c := t.by[at]
	if c == nil {
		c = &Claim{Holder: h, Reader: reader, of: t}
		t.by[at], t.Claims = c, append(t.Claims, c)
	}
	c.On, c.ttls, c.Size = append(c.On, master), append(c.ttls, h.TTL), max(c.Size, h.Size)
	if c.Type == "" {
		c.Type = h.Type
	}
	if h.Revoked {
		c.whys = append(c.whys, h.Reason)
	}
	c.Reason = ""
	if c.Revoked = len(c.whys) >= min(t.Quorum(), len(c.On)); c.Revoked {
		c.Reason = MostSaid(c.whys)
	}
}

// MostSaid returns the reason that most masters give for a revocation. If several are given as often, it returns them all: one
// master cannot give its own for the others'.
func MostSaid(reasons []string) string {
	by, best := map[string]int{}, 0
	for _, r := range reasons {
		by[r]++
		best = max(best, by[r])
	}
	var most []string
	for r, n := range by {
		if n == best {
			most = append(most, r)
		}
	}
	slices.Sort(most)
	return strings.Join(most, " | ")
}

// Quorum is how many masters are a majority.
func (t *Tally) Quorum() int { return quorum.Majority(len(t.Rows)) }

// Silent is how many masters have not answered.
func (t *Tally) Silent() (n int) {
	for _, r := range t.Rows {
		if r == nil {
			n++
		}
	}
	return n
}

// Leader is the first of those that most masters name; one that none names if there is none.
func (t *Tally) Leader() *Claim {
	leader := &Claim{of: t}
	for _, c := range t.Claims {
		if len(c.On) > len(leader.On) {
			leader = c
		}
	}
	return leader
}

// Open reports whether the masters that do not say who holds the key could make a holder, if there is none.
func (t *Tally) Open() bool {
	leader := t.Leader()
	return leader.Open() || !leader.Held() && slices.ContainsFunc(t.Claims, (*Claim).Open)
}

// Fence is the last fence that was given: the greatest that a majority remembers, so one that somebody wrote on fewer
// is none. It is 0 if there is none, or fewer have answered.
func (t *Tally) Fence() uint64 {
	var all []uint64
	for _, r := range t.Rows {
		if r != nil {
			all = append(all, r.Fence)
		}
	}
	if len(all) < t.Quorum() {
		return 0
	}
	return OfMost(all, t.Quorum())
}

// Since is about when the lock was taken, if now is the wall clock's: a fence begins as the time of its holder's clock, in
// microseconds. It is zero if the holder has no fence, shares the key, or has a fence that no clock has made.
func (t *Tally) Since(now time.Time) time.Time {
	leader, fence, fenced := t.Leader(), t.Fence(), 0
	for i, master := range leader.On {
		if r := t.Rows[master]; r.Fence == fence && outlives(r.FenceTTL, leader.ttls[i]) {
			fenced++
		}
	}
	at := time.UnixMicro(int64(fence))
	if age := now.Sub(at); fenced < t.Quorum() || leader.Reader || age < -time.Minute || age > defaults.MaxTTL {
		return time.Time{}
	}
	return at
}

// outlives reports whether a fence's counter was given its life together with the key. It then outlives the key by
// Config.FenceMemory, which nobody sets to a fraction of a minute. The two were asked for a moment apart.
func outlives(counter, key time.Duration) bool {
	const moment = 20 * time.Millisecond
	return key > 0 && counter-key > time.Minute/2 && (counter-key+moment)%time.Minute <= 2*moment
}

// Held reports whether a majority of the masters names the holder.
func (c *Claim) Held() bool { return len(c.On) >= c.of.Quorum() }

// Open reports whether the masters that do not say who holds the key could make it the holder.
func (c *Claim) Open() bool { return !c.Held() && len(c.On)+c.of.Hidden(c.Reader) >= c.of.Quorum() }

// Hidden returns how many masters do not say who holds the key, or who shares it: those that are silent, and of one that is shared
// those with a set that does not expire, and had readers before, perhaps. If a quorum has such a set, it is no lock.
func (t *Tally) Hidden(shared bool) int {
	sets := 0
	for _, r := range t.Rows {
		if shared && r != nil && slices.ContainsFunc(r.Holders, Holder.MayBeReaders) {
			sets++
		}
	}
	if sets >= t.Quorum() {
		sets = 0
	}
	return t.Silent() + sets
}

// Fence is the holder's, if so many of those that name it have one number that a quorum has it; else 0. agree reports
// whether all of them have that number: if not, it may still be raised.
func (c *Claim) Fence() (fence uint64, agree bool) {
	by := map[uint64]int{}
	for _, master := range c.On {
		n := c.of.Rows[master].Fence
		if by[n]++; by[n] >= c.of.Quorum() {
			fence = n
		}
	}
	return fence, len(by) == 1
}

// Lasts is until when no majority has the lock if it is not renewed, or nobody, if none has. It is NoExpiry for ever.
func (c *Claim) Lasts() time.Duration {
	var all []uint64
	for _, ttl := range c.ttls {
		all = append(all, uint64(ttl)) // NoExpiry is the longest
	}
	return time.Duration(OfMost(all, c.of.Quorum()))
}

// OfMost returns what a quorum has, or more; if fewer are there, what all have, or more; and 0 of nobody.
func OfMost(all []uint64, quorum int) uint64 {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[max(0, len(all)-quorum)]
}
