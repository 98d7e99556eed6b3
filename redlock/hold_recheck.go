package redlock

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redburst/redburst/mux"
)

// A rechecker asks the masters again for every lock that is held when a Sentinel group has
// another master, since one of those that had voted for it may have been replaced by one that
// knows nothing of it. That one is in quarantine. So a lock survives if the others make a
// quorum, those included that are given it now. If not, it is lost at once. A lock that
// survives has its full TTL again, also one that nobody keeps alive: a shorter one could undo a
// renewal that is under way.
//
// It knows the locks only where a master is a group's (core.groups): elsewhere there is nothing
// to be asked again.
type rechecker struct {
	core     *core
	renewer  *renewer
	switches atomic.Uint64  // how often a group has switched to another master
	asking   atomic.Int64   // switches since no recheck runs
	running  sync.WaitGroup // the recheck

	mu    sync.Mutex // comes before hold.mu
	holds map[*hold]struct{}
	cap   int // sweep when there are more
}

// A set of fewer holds than this is not swept.
const minSweep = 64

// add makes the hold one that is rechecked. Now and then it drops those whose lock has run out
// without an Unlock, which may have been forgotten by everybody else.
func (r *rechecker) add(h *hold) {
	if !r.core.groups {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holds == nil {
		r.holds = map[*hold]struct{}{}
	}
	r.holds[h] = struct{}{}
	if len(r.holds) <= max(r.cap, minSweep) {
		return
	}
	for h := range r.holds {
		if h.remaining(r.core.now) == 0 {
			delete(r.holds, h)
		}
	}
	r.cap = 2 * len(r.holds)
}

func (r *rechecker) remove(h *hold) {
	if !r.core.groups {
		return
	}
	r.mu.Lock()
	delete(r.holds, h)
	r.mu.Unlock()
}

func (r *rechecker) list() (all []*hold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for h := range r.holds {
		all = append(all, h)
	}
	return all
}

// switched is the mux's hook for a group that has another master now. However many switches
// there are, one recheck runs, and one more if a switch came after it had begun.
func (r *rechecker) switched(int) {
	r.switches.Add(1)
	if r.asking.Add(1) > 1 {
		return
	}
	r.running.Go(func() {
		for done := false; !done; {
			n := r.asking.Load()
			r.recheckAll()
			done = r.asking.CompareAndSwap(n, 0)
		}
	})
}

// all rechecks every lock that is held.
func (r *rechecker) recheckAll() {
	for some := range slices.Chunk(r.list(), maxSending) {
		r.recheck(some)
	}
}

// survives asks the masters again for a lock that was just taken, as one of its votes may be
// that of a master that was replaced meanwhile: the recheck of all locks may have come too
// early to see this one. It reports whether there still is a valid lock.
func (r *rechecker) survives(h *hold) bool {
	r.recheck([]*hold{h})
	return h.remaining(r.core.now) > 0
}

func (r *rechecker) recheck(holds []*hold) {
	var posted []extension
	for _, h := range holds {
		x := extension{r.core, h, r.core.takeCall()}
		if x.post() {
			posted = append(posted, x)
		} else {
			r.core.putCall(x.call)
		}
	}
	// Those with the shortest timeout come first, so that none is kept waiting for
	// longer than its own. None is too late because it had to wait.
	slices.SortFunc(posted, func(x, y extension) int { return cmp.Compare(x.call.op.Timeout, y.call.op.Timeout) })
	for _, x := range posted {
		r.complete(x)
		r.core.putCall(x.call)
	}
}

// complete waits for the round and draws the conclusion. A round that was not decided in time is
// repeated once: when a server fails, others may be slow for a moment. Any other failure is a
// loss, as a vote that the lock relied on cannot be believed any more.
func (r *rechecker) complete(x extension) {
	ctx := context.Background()
	err := r.core.rounds.Wait(ctx, &x.call.op)
	if err == mux.ErrTimeout && x.post() {
		err = r.core.rounds.Wait(ctx, &x.call.op)
	}
	left, reason := x.complete(err, true)
	if reason == ErrClosed { // that is no loss
		return
	}
	var e *RoundError
	if reason != nil && reason != errUnlocked {
		e = r.core.failure(OpRecheck, x.hold.key, x.call, err, reason)
		e.note = replaced
		r.renewer.lose(x.hold, x.call.token, e)
	}
	r.core.observeRound(ctx, OpRecheck, x.hold.key, x.call, left, e)
}
