package held

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/line"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
)

// A relay is a lock that stays in the process: holders of one client have it one after the other, under one token.
// A holder that unlocks while another waits behind it does not release the lock. The next one has it at once, with
// what is left of the validity, and the masters are asked once more. The last holder releases it.
//
// # States
//
// The token is in one place at a time. Lock.mu of the holder guards it, or relay.mu:
//
//	it is              where                       what ends that
//	held               in the hold of a Mutex      Unlock takes it out (Lock.reset), once the contexts of the
//	                                               KeepAlives have ended
//	in limbo           with the Unlock that has    give, or end
//	                   taken it out
//	given              with a waiter, that has     TakeOver puts it into the waiter's hold, or declines: end
//	                   not woken yet, or has no
//	                   fence yet
//	released           nowhere                     the relay is over
//
// Nothing but end releases a token that has been given on. All that could do so for the holder before would be a
// round that is still to be judged, or an attempt that has not returned: these pin the hold (Lock.pins), and a lock
// that is pinned is not given on. So a late round of a former holder ends nothing.
//
// # Rounds
//
// Unlock returns nil if a quorum had the token in a round that began after Unlock was called. One round of a relay is
// under way at a time. The releases that come meanwhile wait for the next one and share it: all of them came before
// it began. Mostly the round only reads the keys. That proves the same as a release does, and notifies nobody who
// waits for the keys in another process. It extends the lock when a renewal would be due. The release of the last
// holder is a round, too, and the releases that wait by then share that one: a later round would find nothing.
//
// A relay whose round has not succeeded gives the lock to nobody any more. If a round has found the lock lost, all
// releases that share the round, and those that come later, are told, and the holder that has the lock now loses it.
//
// # Fences
//
// With a fence each holder has a number of its own, and the waiter that is given the lock waits for it. The round after
// the hand-over is a pass then: a release and an acquire in one. It counts where the lock is (internal/quorum/fence.go says
// why the number is greater than all before), and extends the lock when a renewal would be due. It confirms the Unlock, and nobody shares it. If it
// fails, or too few masters have a number that is believed, the waiter declines the lock. A pass sets the lock nowhere
// again, so such a relay ends after its TTL, even without a limit of hand-overs.
//
// # Goroutine
//
// A goroutine of the relay waits for its rounds while releases wait for them. So no caller's context, and no panic of
// one, is in the way of the others. It begins when a lock is given on, which no client that is closed does, and ends
// when no release waits. Close ends its round, and waits for it.
//
// # What can come between
//
//	Close                       Queues.HandOver gives no lock on once the client is closed, and Close waits for it. Who
//	                            wakes with a lock after Close returns ErrClosed. The releases that wait get ErrClosed.
//	a panic of an Observer,     In Unlock, before the lock is given on: it is released. In Lock, after it was taken
//	or of a context             over: it is unlocked, as any lock is whose caller does not know of it.
//	the context of a waiter     It declines the lock. Then the lock is released, and the next waiter tries.
//	ends
//	the context of an Unlock    The release stays in its round, and nobody waits for it.
//	ends
//	a renewal is under way      It pins the hold: the lock is released on the masters.
//	a repair is under way       The sets go with the token: see internal/quorum/suspect.go.
//	a group switches to         While a recheck is under way, no lock is given on. If a switch comes after the hold has
//	another master              left the list of the rechecks, whoever takes the lock over rechecks it.
//	the lock is lost            The state is looked at when it is given on and when it is taken over. In between, the
//	                            round that follows each hand-over finds the loss.
//	the process stands still    The validity is looked at when it is given on and when it is taken over.
type relay struct {
	of    *relays
	spec  *round.Spec
	token []byte
	run   func() // serve, made once

	lease lease       // of its extensions; begins and ends under the holder's mu, or under mu if there is no holder
	lost  atomic.Bool // the lock is known to be lost

	running  atomic.Bool // the goroutine runs; it does while releases wait; changed under mu
	mu       sync.Mutex  // comes before Lock.mu
	holder   *Lock       // the hold that has the lock; nil while it is given, or released
	until    time.Duration
	sets     quorum.Sets  // of the token. Guarded by mu, and by that of the holder while it has the lock
	trust    quorum.Trust // of the round that is under way
	switches uint64       // of groups, before the last holder left the list of the rechecks
	given    bool         // the lock was given on once
	over     bool         // the lock is not given on any more
	waiting  []*release   // for the next round
	sharing  []*release   // the round that is under way
	last     *round.Call  // the release on the masters, posted and not waited for yet
	released bool         // the lock is released on the masters
	began    time.Duration
	before   uint64     // the fence of the last holder; with a fence only
	fence    uint64     // of the waiter that it is given to, or of the holder; 0 if there is none yet
	handed   line.Given // as the queues know it. Counting is changed under mu
	round    [2]*mux.Op // argument of Post

	turnEnds time.Duration // when it ends unless nobody else waits. Guarded by the shards of its queues
	ends     time.Duration // when it ends in any case; likewise

	line question
}

// A relay ends after Core.Handovers, or after relayTurn if that is earlier, unless nobody stands in the global queue.
// The end costs the process about three round trips. With work of 1 ms under the lock, those that come in between wait
// for about as long as if each lock went by the masters.
//
// A relay ends after relayMost in any case. There may be others who stand in no queue: they poll, as clients of other
// libraries do. They find the lock free for about three round trips.
const (
	relayTurn      = 4 * time.Millisecond
	relayTurnTrips = 4 // ... or that many round trips, if they take longer
	relayMost      = 10 * time.Millisecond
	relayMostTrips = 30
)

// A question is whether anybody else stands in the global queue of the relay's lock.
type question struct {
	round.Call
	asking    atomic.Bool // the queue master is being asked
	name      string      // of the lock
	answer    atomic.Int32
	onDecided func(error) // made once
}

// The answers to a question.
const (
	unanswered int32 = iota
	nobodyWaits
	somebodyWaits
)

// relays are the relays of a client.
type relays struct {
	core    *Core
	renewer *renewer
	pool    sync.Pool // of *relay
	running sync.WaitGroup
}

// begin returns a relay of a lock that is about to be given on for the first time.
func (all *relays) begin(s *round.Spec, token []byte) *relay {
	r, _ := all.pool.Get().(*relay)
	if r == nil {
		r = &relay{of: all}
		r.run, r.line.onDecided, r.handed.Of = r.serve, r.decided, r
	}
	r.spec, r.token = s, append(r.token[:0], token...)
	r.lost.Store(false)
	r.line.answer.Store(unanswered)
	r.holder, r.until, r.given, r.over, r.released, r.fence = nil, 0, false, false, false, 0
	now := all.core.Now()
	r.began, r.turnEnds, r.ends = now, now+r.turn(), now+max(relayMost, relayMostTrips*all.core.Round.Mux.RTT())
	return r
}

func (r *relay) turn() time.Duration {
	return max(relayTurn, relayTurnTrips*r.of.core.Round.Mux.RTT())
}

// drop makes the relay another lock's. It is not dropped while the queue master is asked.
func (r *relay) drop() {
	r.spec = nil
	if !r.line.asking.Load() {
		r.of.pool.Put(r)
	}
}

// give has a release wait for the next round of the relay, as the lock is given to a waiter. It reports whether the
// lock can be given on.
func (r *relay) give(rel *release, until time.Duration, switches uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over || r.lost.Load() {
		return false
	}
	if !r.given {
		r.sets, r.given = rel.Sets, true
	}
	r.holder, r.until, r.switches = nil, max(r.until, until), switches
	if r.lease.ends.Load() == 0 {
		r.lease.begin(r.until)
	} else {
		r.lease.ends.Store(int64(r.until))
	}
	r.before, r.fence = rel.Fence, 0
	r.handed.Counting.Store(r.spec.Numbers != nil)
	rel.shared = true
	r.waiting = append(r.waiting, rel)
	if !r.running.Swap(true) {
		r.of.running.Add(1)
		go r.run()
	}
	return true
}

// take puts the lock into the hold of the waiter that it was given to. It reports whether it has, and what the hold had.
func (r *relay) take(ctx context.Context, h *Lock) (had former, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	now := r.of.core.Now()
	if r.lost.Load() || r.spec.Numbers != nil && r.fence == 0 || !r.spec.Fresh(r.until, now) {
		return had, false
	}
	if had, ok = h.receive(r, now); !ok {
		return had, false
	}
	r.holder = h
	r.of.core.Teller.HandedOver(ctx, r.spec.Key, h.token(), h.fence, h.left(now))
	return had, true
}

// end releases the lock on the masters while the goroutine runs. The releases that wait share that round. It is judged
// after the round that is under way, which may have set the lock again where it was gone, and then knows more. rel is
// the release of the last holder; nil if nobody waits for that. end returns false if the goroutine does not run. Then
// the caller releases the lock. The token must have been taken out of its hold.
func (r *relay) end(rel *release) (shared bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holder, r.over, r.released = nil, true, true
	r.lease.end()
	if !r.running.Load() {
		if rel != nil { // the last round may have repaired the lock, or found the loss, when the token was out of the hold
			if rel.Sets = r.sets; r.lost.Load() {
				rel.was = stateLost
			}
		}
		r.drop()
		return false
	}
	if rel != nil {
		rel.shared = true
		r.waiting = append(r.waiting, rel)
	}
	r.last = r.of.core.Round.Take()
	r.last.Release(r.spec, r.token)
	r.last.Op.Suspect, r.last.Op.Unless = r.sets.Doubted()
	r.of.core.Round.Post(r.last)
	return true
}

// giveBack releases a lock, which may be in a relay: r is nil if it is in none. Nobody waits for the release. It
// leaves the lock on the masters for the rest, if rest is above 0.
func (r *relay) giveBack(c *Core, s *round.Spec, token []byte, rest time.Duration) {
	if r == nil || !r.end(nil) {
		c.Round.SendRelease(s, token, rest)
	}
}

// GiveBack releases the lock, which was given to a waiter for that lock.
func (r *relay) GiveBack(s *round.Spec) { r.giveBack(r.of.core, s, slices.Clone(r.token), 0) }

// serve is the relay's goroutine.
func (r *relay) serve() {
	defer r.of.running.Done()
	c := r.of.core
	for k := r.next(); k != nil; k = r.next() {
		err := c.Round.Mux.Wait(context.Background(), &k.Op)
		lost, tell := r.complete(k, err)
		if tell != nil { // not here: a context may unlock when it is called, and then waits for this goroutine
			r.of.running.Go(tell)
		}
		for i, rel := range r.sharing {
			rel.share(&k.Op, err, lost)
			r.sharing[i] = nil
		}
		if r.spec.Numbers != nil && k.Op.Persist == 0 {
			r.number(k, err)
		}
		c.Round.Put(k)
	}
}

// next posts the next round, and returns it; nil if no release waits.
func (r *relay) next() *round.Call {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sharing, r.waiting = r.waiting, r.sharing[:0]
	k := r.last
	switch {
	case k != nil:
		r.last = nil
		return k
	case len(r.sharing) == 0:
		r.running.Store(false)
		if r.released {
			r.drop()
		}
		return nil
	}
	c := r.of.core
	k = c.Round.Take()
	h := r.holder
	if h != nil { // nothing may come between what it says and the round
		h.mu.Lock()
		defer h.mu.Unlock()
	}
	now := c.Now()
	until, ttl := r.validity(), time.Duration(0)
	if !r.lost.Load() && now < until && now >= r.spec.Term.Due(until) {
		ttl = r.spec.Term.TTL
		if h != nil {
			h.noteWrite()
		}
	}
	switch {
	case r.spec.Numbers != nil:
		k.Pass(r.spec, r.token, max(c.Round.Hints.Next(), r.before+1), ttl)
	case ttl > 0:
		k.Extend(r.spec, r.token, 0, ttl)
		k.Op.Lease, k.Op.Epoch = &r.lease, r.lease.epoch.Load()
		k.Op.Grace = c.Round.ShortTimeout(r.spec.Timeout, round.MinShortTimeout)
	default:
		k.Read(r.spec, r.token)
		k.Op.Lease, k.Op.Epoch = &r.lease, r.lease.epoch.Load() // its text must not follow the last holder's release
	}
	r.trust = c.Round.BeginRound(&r.sets, k)
	k.Op.Awaited = true // serve writes it, when no lock is held
	r.round = [2]*mux.Op{&k.Op}
	n := 1
	if r.ask() {
		r.round[1] = &r.line.Op
		n = 2
	}
	c.Round.Mux.Post(r.round[:n]...)
	return k
}

// number takes the fence of the waiter that the lock is given to from a round that has counted. If the masters' numbers
// differ, there is a second round (round.Core.AgreeOnFence). Without a fence the waiter declines the lock. Then it is released.
func (r *relay) number(k *round.Call, err error) {
	c := r.of.core
	until := r.spec.Term.Until(k.Op.Started)
	r.mu.Lock()
	limit := min(until, r.until) // the lock is not revived
	if k.TTL == 0 {
		until = limit
	}
	r.mu.Unlock()
	c.Round.Hints.Learn(k.Op.Votes)
	why := quorum.Count(k.Op.Votes, err).Acquired(c.Now(), limit)
	if why == nil {
		if again, e := c.Round.AgreeOnFence(context.Background(), r.spec, k); again {
			c.counts.Raised.Add(1)
			why = quorum.Count(k.Op.Votes, e).Acquired(c.Now(), limit)
		}
	}
	r.mu.Lock()
	if why == nil {
		r.fence, r.until = k.Fence, max(r.until, until)
	} else {
		r.over = true
	}
	r.handed.Counting.Store(false)
	r.mu.Unlock()
	c.Queues.Counted(&r.handed, r.spec.Names()[0])
}

// validity returns the end of the validity. mu is held, and the holder's mu if there is a holder.
func (r *relay) validity() time.Duration {
	if h := r.holder; h != nil && h.has(r.token) {
		return h.until
	}
	return max(r.until, time.Duration(r.lease.ends.Load())) // the last holder may have moved it, and have no lock any more
}

// complete judges a round, and reports whether the lock was lost for those that share the round. tell is to tell the holder
// that has it now; nil if there is nothing to tell.
func (r *relay) complete(k *round.Call, err error) (gone bool, tell func()) {
	c := r.of.core
	r.mu.Lock()
	h := r.holder
	if h != nil {
		h.mu.Lock()
	}
	releases := k.Op.Persist > 0 // its votes say the same to all who share it, and nobody has the lock
	c.Round.Judge(&r.sets, r.trust, k)
	t := quorum.Count(k.Op.Votes, err)
	if far, _ := c.Round.Hints.Unbelieved(k.Op.Votes); far != 0 { // they have the lock
		t.Yes, t.Failed = t.Yes+far.Len(), t.Failed-far.Len()
	}
	reason := t.Released(false, r.lost.Load())
	gone = reason == quorum.ErrNotHeld
	if k.TTL > 0 && r.spec.Numbers == nil && reason != quorum.ErrNotHeld && !r.released { // it has extended
		reason = r.prolong(t, c.Now(), r.spec.Term.Until(k.Op.Started))
	}
	if reason != nil {
		r.over = true
	} else if !releases {
		r.repair(k, h)
	}
	if h != nil {
		h.mu.Unlock()
	}
	lost := gone || reason == quorum.ErrExpired  // if it was extended too late, a quorum had it until then all the same
	if reason != nil && !lost && r.last != nil { // the release that was posted meanwhile began after these, and may know
		r.waiting = append(r.waiting, r.sharing...)
		clear(r.sharing)
		r.sharing = r.sharing[:0]
	}
	news := lost && !releases && !r.lost.Swap(true)
	r.mu.Unlock()
	if news && h != nil {
		tell = r.of.renewer.noteLost(h, slices.Clone(r.token), c.Teller.Failure(OpUnlock, r.spec.Key, k, err, reason), false)
	}
	if t.Released(false, false) == nil { // whoever has it now has lost it since: they let go before
		return false, tell
	}
	return gone || !news && r.lost.Load(), tell // others may have found out meanwhile
}

// repair has the lock repaired after a round that has succeeded, if the round has extended it. h is the holder; nil if there
// is none. mu is held, and the holder's.
func (r *relay) repair(k *round.Call, h *Lock) {
	on := r.sets.Succeeded(r.trust, quorum.SaidGone(k.Op.Votes))
	if on == 0 || r.released {
		return
	}
	if h != nil {
		h.noteWrite()
	}
	r.of.core.Round.Forget(r.of.core.Round.Repair(r.spec, &r.sets, k, on, r.of.core.Now))
}

// prolong moves the end of the validity after a round that has extended the lock. It returns why the lock was not
// extended. mu is held, and the holder's.
func (r *relay) prolong(t quorum.Tally, now, until time.Duration) error {
	h := r.holder
	limit := r.validity()
	switch reason := t.Extended(now, until, limit); {
	case reason == quorum.ErrExpired && now < limit: // another round has extended it further
		return nil
	case reason != nil:
		return reason
	}
	if h != nil && h.has(r.token) {
		h.prolong(until)
	} else {
		r.until = max(r.until, until)
	}
	return nil
}

// ask prepares the question whether anybody stands in the global queue of the lock. It returns false if it is being
// asked, or cannot be asked: of several keys, each has a queue.
func (r *relay) ask() bool {
	names, q := r.spec.Names(), &r.line
	c := r.of.core // without a limit of hand-overs, a relay need not end for others
	if c.Handovers < 0 || len(names) > 1 || q.asking.Load() || !c.Queues.AskOthers(&q.Call, names[0]) {
		return false
	}
	q.name = names[0]
	q.Op.Timeout, q.Op.OnDecided, q.Op.Awaited = c.Round.ShortTimeout(r.spec.Timeout, round.MinShortTimeout), q.onDecided, true
	q.asking.Store(true)
	return true
}

// decided takes the answer. The Mux is locked.
func (r *relay) decided(error) {
	q, answer := &r.line, unanswered
	for i := range q.Op.Votes {
		switch q.Op.Votes[i].Verdict {
		case mux.VerdictYes:
			answer = nobodyWaits
			r.of.core.Queues.NoteOthers(q.Op.Decided, false, q.name)
		case mux.VerdictNo:
			answer = somebodyWaits
			r.of.core.Queues.NoteOthers(q.Op.Decided, true, q.name)
		}
	}
	q.answer.Store(answer)
	q.asking.Store(false)
}

// goesOn reports whether the lock can be given on once more, after so many hand-overs in a row, of which there may be
// most. After these, or after its turn, it can only if nobody stands in the global queue, or while the queue master is
// being asked. The round trip for which that lasts delays the others for less than the hand-overs before it. again says
// that the hand-overs are counted from the beginning.
func (r *relay) goesOn(handovers, most int) (yes, again bool) {
	now, q := r.of.core.Now(), &r.line
	switch {
	case now >= r.ends:
		return false, false
	case handovers < most && now < r.turnEnds:
		return true, false
	case q.answer.Load() == somebodyWaits:
		return false, false
	case q.answer.Swap(unanswered) == nobodyWaits:
		r.turnEnds = now + r.turn()
		return true, true
	}
	return q.asking.Load(), false
}

// wearsOut reports whether a lock with a fence has been in the relay for its TTL. Its rounds set the lock nowhere again,
// so that in time it could be left on too few masters.
func (r *relay) wearsOut() bool {
	return r.spec.Numbers != nil && r.of.core.Now() >= r.began+r.spec.Term.TTL
}
