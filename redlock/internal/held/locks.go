package held

import (
	"context"
	"slices"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/line"
	"github.com/redburst/redburst/redlock/internal/round"
)

// Locks are the locks of a client that are held.
type Locks struct {
	core      Core
	counts    Counts
	releases  releases
	relays    relays
	renewer   renewer
	rechecker rechecker
}

// Init makes them ready. Their hooks can be called from then on.
func (ls *Locks) Init(c Core) {
	ls.core = c
	ls.core.counts = &ls.counts
	ls.releases.core, ls.releases.relays = &ls.core, &ls.relays
	ls.renewer.core = &ls.core
	ls.renewer.subscriptions.Init(c.Tracking, c.Masters, ls.renewer.heed, &ls.renewer.running)
	ls.rechecker.core, ls.rechecker.renewer = &ls.core, &ls.renewer
	ls.relays.core, ls.relays.renewer = &ls.core, &ls.renewer
}

// Counts returns what was counted.
func (ls *Locks) Counts() *Counts { return &ls.counts }

// Kept returns the number of live KeepAlives.
func (ls *Locks) Kept() int { return ls.renewer.kept() }

// Has reports whether a lock with that token is held.
func (ls *Locks) Has(token string) bool {
	return slices.ContainsFunc(ls.rechecker.list(), func(h *Lock) bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return string(h.token()) == token && h.state(ls.core.Now()) == stateHeld
	})
}

// Able returns the masters that notify of changes of what is kept alive.
func (ls *Locks) Able() mux.Set { return ls.renewer.subscriptions.Able() }

// Connected is the mux's hook for a master that was connected anew.
func (ls *Locks) Connected(master int) { ls.renewer.subscriptions.Connected(master) }

// Switched is the mux's hook for a group that has switched to another master.
func (ls *Locks) Switched(master int) { ls.rechecker.switched(master) }

// Switches returns how often a group has switched to another master.
func (ls *Locks) Switches() uint64 {
	switches, _ := ls.rechecker.settled()
	return switches
}

// Survives reports whether a lock that was just taken is valid, though groups may have switched since there were so many
// switches. Then the masters are asked again, and a lock that is not valid is released. If ctx ends first, nobody knows, and it
// reports false. The token is that of the caller's lock, as the hold may have another one by now.
func (ls *Locks) Survives(ctx context.Context, h *Lock, token []byte, since uint64) bool {
	return ls.Switches() == since || ls.rechecker.survives(ctx, h, token)
}

// Recheck asks the masters again for these locks, as Switched does for all, and waits for all that follows. Tests call it.
func (ls *Locks) Recheck(holds ...*Lock) {
	ls.rechecker.recheck(holds)
	ls.rechecker.running.Wait()
}

// Held returns how many locks are held on each key.
func (ls *Locks) Held() map[string]int {
	of := map[string]int{}
	for _, h := range ls.rechecker.list() {
		if h.Taken(ls.core.Now) {
			of[h.spec.Key]++
		}
	}
	return of
}

// Shutdown ends the contexts of all KeepAlives, and goes on renewing their locks.
func (ls *Locks) Shutdown() { ls.renewer.shutdown() }

// Close ends all KeepAlives. The mux ends what is under way.
func (ls *Locks) Close() { ls.renewer.close(ls.rechecker.list()) }

// Wait waits for the goroutines, when the mux is closed and no lock is given to a waiter any more.
func (ls *Locks) Wait() {
	ls.renewer.running.Wait()
	ls.rechecker.running.Wait()
	ls.relays.running.Wait()
}

// Size returns how many KeepAlives, renewals and questions there are, and locks that are rechecked. Tests ask.
func (ls *Locks) Size() (kept, listed int) {
	r := &ls.renewer
	listed = len(ls.rechecker.list())
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.heap) + len(r.ready) + r.sending + len(r.asking), listed
}

// Install makes the hold that of a lock that the call has just taken, and that is valid until then. It returns false if
// another attempt has taken a lock meanwhile that stays: see Lock.replace. It releases the lock that the hold had. It pins
// the hold, until the attempt has looked whether a group has switched.
func (ls *Locks) Install(h *Lock, k *round.Call, until, now time.Duration) bool {
	had, ok := h.install(k, until, now)
	if !ok {
		return false
	}
	had.giveBack(&ls.core, h)
	ls.rechecker.add(h)
	return true
}

// TakeOver puts a lock that a waiter was given into its hold, or releases it. It reports whether the hold has it. Then it has
// told the Observers, before anybody can release the lock, and pins the hold, until the caller has asked Survives. switches is
// the number of switches of groups before the last holder left the list of the rechecks. The token is nil if no master can
// switch.
func (ls *Locks) TakeOver(ctx context.Context, h *Lock, given *line.Given, canSwitch bool) (switches uint64, token []byte, taken bool) {
	in := given.Of.(*relay)
	switches = in.switches
	if canSwitch {
		token = slices.Clone(in.token) // before it is taken: the relay can be another lock's then
	}
	had, taken := in.take(ctx, h)
	if taken {
		had.giveBack(&ls.core, h)
		ls.rechecker.add(h)
	} else {
		in.GiveBack(&h.spec)
		ls.core.Queues.Released(0, h.spec.Names())
	}
	return switches, token, taken
}

// GiveBack releases the lock with that token, if the hold still has it, and ends its KeepAlives. f is why.
func (ls *Locks) GiveBack(h *Lock, token []byte, f Failure) { ls.renewer.giveBack(h, token, 0, f) }

// ClearExpired empties the hold if its lock is over. Before a Mutex takes the next lock, the KeepAlives of this one have
// ended, and keys that its late requests may have set on some master are released.
func (ls *Locks) ClearExpired(h *Lock) {
	c := &ls.core
	h.mu.Lock()
	if len(h.token()) == 0 || !h.state(c.Now()).Over() || h.backingMustStay(c.Now()) {
		h.mu.Unlock()
		return
	}
	k := c.Round.Take() // for its buffer: TryLock allocates nothing
	defer c.Round.Put(k)
	k.Token = append(k.Token[:0], h.token()...) // this token never becomes valid again
	rest := h.restTime(c.Now)
	h.mu.Unlock()
	ls.renewer.giveBack(h, k.Token, rest, nil)
}

// Lose notes that the lock with that token is lost, as whoever finds that out does: see renewer.lose. Tests call it.
func (ls *Locks) Lose(h *Lock, token []byte, f Failure) { ls.renewer.lose(h, token, f) }

// KeepAlive begins to keep a lock alive. If the lock is not held, the context is done from the beginning. by says who
// keeps it, if it is not the caller of KeepAlive.
func (ls *Locks) KeepAlive(ctx context.Context, h *Lock, by string) *KeepAlive {
	return ls.renewer.addTo(ctx, h, by, false)
}
