package held

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/quorum"
)

// A rechecker asks the masters again for every lock that is held, after a group has switched to another master. A
// master that had voted for the lock may have been replaced by one that does not have the lock. The new master
// is in quarantine. So a lock survives if the other masters make a quorum. Otherwise it is lost at once, but stays on the masters until its holder lets go (renewer.noteLost). A lock that
// survives has its full TTL again, even without a KeepAlive: a shorter TTL could undo a renewal that is under way.
//
// Its list of the locks is also what Shutdown waits for, so it has them even if there is no group.
type rechecker struct {
	core    *Core
	renewer *renewer
	// How often a group has switched to another master, and, in the lower half, for how many of these switches the goroutine of
	// the rechecks runs; 0 if it does not run. It is one number, so that nobody reads the one half of before a switch and the
	// other of after it.
	switches atomic.Uint64
	running  sync.WaitGroup // that goroutine, and those that end the contexts of the locks that it finds lost

	mu    sync.Mutex // comes before Lock.mu
	holds []*Lock
	cap   int // sweep when there are more holds, and more than minSweep
}

const (
	oneSwitch   = 1<<32 | 1
	notYetAsked = 1<<32 - 1
)

// minSweep is the number of holds up to which they are not swept.
const minSweep = 64

// add adds the hold to the list. Now and then it drops the holds without a valid lock: if their users
// never call Unlock, nothing else drops them.
func (r *rechecker) add(h *Lock) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.listed == 0 {
		r.holds = append(r.holds, h)
		h.listed = int32(len(r.holds))
	}
	if len(r.holds) <= max(r.cap, minSweep) {
		return
	}
	for _, h := range slices.Backward(r.holds) { // those behind were looked at
		if h.remaining(r.core.Now) == 0 {
			r.drop(h)
		}
	}
	r.cap = 2 * len(r.holds)
}

func (r *rechecker) remove(h *Lock) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h.listed != 0 {
		r.drop(h)
	}
}

// drop takes the hold out of the list. The last one takes its place.
func (r *rechecker) drop(h *Lock) {
	last := len(r.holds) - 1
	r.holds[last].listed, r.holds[h.listed-1] = h.listed, r.holds[last]
	r.holds[last], r.holds, h.listed = nil, r.holds[:last], 0
}

func (r *rechecker) list() []*Lock {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.holds)
}

// switched is the mux's hook for a group that has switched to another master. One recheck runs at a time, and one
// more follows if any switches came after it had begun.
func (r *rechecker) switched(int) {
	if r.switches.Add(oneSwitch)&notYetAsked > 1 {
		return
	}
	r.running.Go(func() {
		for done := false; !done; {
			both := r.switches.Load()
			r.recheckAll()
			done = r.switches.CompareAndSwap(both, both&^notYetAsked)
		}
	})
}

// settled returns how many switches there were, and whether the rechecks of all of them are over. If they are, and a
// lock leaves the list only afterwards, it was rechecked for all of them.
func (r *rechecker) settled() (switches uint64, yes bool) {
	both := r.switches.Load()
	return both >> 32, both&notYetAsked == 0
}

// recheckAll rechecks every lock that is held.
func (r *rechecker) recheckAll() {
	for some := range slices.Chunk(r.list(), maxSending) {
		r.recheck(some)
	}
}

// survives asks the masters again for a lock that was just taken while a group has switched. One of the lock's votes
// may be that of the replaced master, and the recheck of all locks may have come too early to see this one. It
// reports whether the lock is still valid. If it is not, it is released: nobody relies on it yet. If the client is
// closed meanwhile, or ctx ends, nobody knows, and the caller gives it back. The token is that of the caller's lock. The hold may have
// another lock by now, on which another goroutine may rely.
func (r *rechecker) survives(ctx context.Context, h *Lock, token []byte) bool {
	asked := r.ask(ctx, []*Lock{h}, token, func(tell func()) { tell() })
	h.mu.Lock()
	held := h.has(token) && h.state(r.core.Now()) == stateHeld
	h.mu.Unlock()
	if !held {
		r.renewer.lose(h, token, nil)
	}
	return held && asked
}

// recheck rechecks these locks, whose holders may rely on them.
// A context may block when it is called: the others wait for nobody.
func (r *rechecker) recheck(holds []*Lock) { r.ask(context.Background(), holds, nil, r.running.Go) }

// ask asks the masters again for these locks. Of one that is lost, call calls the contexts, and tells the Observers. It is
// released if its token is that, which nobody relies on yet. It reports false if ctx has ended, or the client was closed, meanwhile:
// then nobody knows.
func (r *rechecker) ask(ctx context.Context, holds []*Lock, token []byte, call func(func())) (asked bool) {
	var posted []extension
	for _, h := range holds {
		x := extension{core: r.core, hold: h, call: r.core.Round.Take()}
		if x.post() {
			posted = append(posted, x)
		} else {
			r.core.Round.Put(x.call)
		}
	}
	// All rounds were posted at the same time. Those with the shortest timeout are completed first, so that none
	// waits for longer than its own timeout. Waiting for its turn makes no round late.
	slices.SortFunc(posted, func(x, y extension) int { return cmp.Compare(x.call.Op.Timeout, y.call.Op.Timeout) })
	asked = true
	for _, x := range posted {
		asked = r.complete(ctx, x, token, call) && asked
		r.core.Round.Put(x.call)
	}
	return asked
}

// complete waits for the round and judges it. It repeats a round once that was not decided in time: when a server
// fails, others may be slow for a moment. Every other failure means that the lock is lost, as the lock can no
// longer rely on a vote that it had. It reports false if ctx has ended, or the client was closed, before it was decided.
func (r *rechecker) complete(ctx context.Context, x extension, token []byte, call func(func())) (asked bool) {
	defer x.hold.Unpin()
	err := r.core.Round.Mux.Wait(ctx, &x.call.Op)
	if err == mux.ErrTimeout && !quorum.Count(x.call.Op.Votes, err).Lost() && x.post() {
		x.hold.Unpin() // for the first round
		err = r.core.Round.Mux.Wait(ctx, &x.call.Op)
	}
	left, repair, reason := x.complete(err, true)
	r.core.Round.Forget(repair)
	r.renewer.askAgain(x.hold)
	if reason == ErrClosed || reason == quorum.ErrUndecided { // the lock is not lost by that
		return false
	}
	var f Failure
	var tell func()
	if reason != nil && reason != errUnlocked {
		f = r.core.Teller.Failure(OpRecheck, x.hold.spec.Key, x.call, err, reason)
		f.Note(Replaced)
		tell = r.renewer.noteLost(x.hold, slices.Clone(x.call.Token), f, string(x.call.Token) != string(token))
	}
	x.observe(ctx, OpRecheck, left, f)
	if tell != nil {
		call(tell)
	}
	return true
}
