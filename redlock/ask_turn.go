package redlock

import (
	"context"
	"time"

	"github.com/redburst/redburst/mux"
)

// inTurn asks as contenders do: one master first, the same for all contenders, and the other masters only after
// its yes. Of the waiters that were notified of a release at the same moment, one goes on, and each of the
// others has cost one command. So a split vote does not split again. If the first master does not answer, the
// next one takes its place. The first is one of likely, the masters where the key can be free; the empty set
// means all masters. The call must be an acquire.
//
// It returns the mux's error. clean says that nothing of ours can be left on any master, as all masters that were
// asked said no.
func inTurn(ctx context.Context, c *core, s *spec, k *call, likely mux.Set) (clean bool, err error) {
	n := len(c.masters)
	quorum := majority(n)
	timeout := k.op.Timeout
	k.earlyVotes = k.earlyVotes[:0]
	var asked, reached mux.Set
	var started time.Duration
	failed := 0
	clean = true
	r := c.takeStates()
	k.order = ordered(k.order[:0], s.names()[0], r.states)
	c.putStates(r)
	k.earlyLimit = c.shortTimeout(s.timeout, minShortTimeout)
	for _, g := range k.order {
		if likely != 0 && !likely.Has(g) {
			continue
		}
		k.op.Only, k.op.Quorum, k.op.Timeout = mux.Set(0).With(g), 1, k.earlyLimit
		err = c.rounds.Do(ctx, &k.op)
		if asked == 0 {
			started = k.op.Started
		}
		asked = asked.With(g)
		reached |= k.op.Asked
		vote := k.op.Votes[g]
		k.earlyVotes = append(k.earlyVotes, earlyVote{g, vote})
		k.asked = len(k.earlyVotes)
		clean = clean && (k.op.Asked == 0 || vote.Verdict == VerdictNo)
		if vote.Verdict == VerdictYes && quorum > 1 {
			if s.numbers != nil && uint64(vote.Int) > k.fence { // so that the others give the same number
				k.hint(s, uint64(vote.Int))
			}
			k.op.Only, k.op.Quorum, k.op.Timeout = (1<<n-1)&^asked, quorum-1, timeout
			err = c.rounds.Do(ctx, &k.op)
			reached |= k.op.Asked
			k.asked = n
			break
		}
		if vote.Verdict == VerdictYes || vote.Verdict == VerdictNo || err != nil && err != mux.ErrTimeout {
			break
		}
		if failed++; failed > n-quorum {
			break
		}
	}
	// The round consists of all these operations, and begins with the first.
	k.op.Started, k.op.Asked = started, reached
	for i, g := range k.earlyVotes {
		cut := i == len(k.earlyVotes)-1 && err != nil && err != mux.ErrTimeout
		if g.vote.Verdict == VerdictPending && !cut { // its time was over
			g.vote.Verdict, g.vote.Err = VerdictFailed, mux.ErrTimeout
		}
		k.op.Votes[g.master] = g.vote
	}
	return clean, err
}

// ordered appends the masters in the order in which all contenders for a key ask them. The order is by a hash of
// the key and the server's own identity, which is the same to all processes, whatever the server's
// address is to them.
func ordered(dst []int, key string, masters []mux.State) []int {
	var weights [64]uint64 // a mux.Set has at most 64 masters
	first := len(dst)
	for i := range masters {
		weights[i] = weight(key, &masters[i])
		at := len(dst)
		for dst = append(dst, i); at > first && weights[i] < weights[dst[at-1]]; at-- {
			dst[at], dst[at-1] = dst[at-1], i
		}
	}
	return dst
}

// weight returns the weight of a master in the order for a key: the least comes first.
func weight(key string, s *mux.State) uint64 {
	id := s.Server.RunID
	if id == "" {
		id = s.Addr
	}
	return hash(key, id)
}

// hash returns FNV-1a of two strings, and a finalizer spreads it over all bits. It is the same in
// every process.
func hash(a, b string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(a) {
		h = (h ^ uint64(a[i])) * 1099511628211
	}
	h *= 1099511628211 // the NUL between them
	for i := range len(b) {
		h = (h ^ uint64(b[i])) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	return h
}
