package redlock

import (
	"hash/maphash"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/redlock/internal/round"
)

// localQueues has a queue for every key that a goroutine of this client is locking (in Lock). Only the head of a
// queue contends with other processes. The others wait for their turn. A queue exists while it has waiters, and its
// memory is pooled: nothing is left behind for a key.
//
// A waiter for several keys has an entry in the queue of each. It contends once it is the head of all these queues,
// and its successors wait until then. It joins all its queues in one step. So a waiter that is ahead of it in one
// queue is ahead of it in all queues that they share, and no two wait for each other, in whatever order they
// name their keys. A waiter has its turn when all waiters ahead of it have left: no later waiter delays it.
//
// Readers of a shared lock do not wait for one another. A reader tries at once if only readers are ahead of it.
// The first reader that takes the lock notifies the readers that follow it, up to the first writer. A reader
// has one entry.
//
// Locks of several shards are taken in the order of the shards. Under them only the lock of the mux is taken, to wake
// a waiter, and that of a relay, to give its lock to one.
type localQueues struct {
	core         *core
	maxHandovers int // in a row; below zero: any number
	seed         maphash.Seed
	shards       [64]shard
	waiters      sync.Pool
	pool         sync.Pool // of *localQueue
}

type shard struct {
	mu     sync.Mutex
	queues map[string]*localQueue
	n      atomic.Int32 // of queues; changed under mu
}

// A localQueue is guarded by its shard's mu.
type localQueue struct {
	head, tail *localEntry
	writers    int         // waiters that are not readers
	held       bool        // a waiter of this queue has taken the lock, and this client has not released it yet
	handovers  int         // hand-overs in a row
	failure    *RoundError // of the head's last attempt; nil once a waiter of this queue has taken the lock
}

// A waiter is one goroutine in Lock.
type waiter struct {
	entries      []localEntry // in the queue of each of its keys, in their order
	blockers     atomic.Int32 // the number of queues in which others are ahead of it
	spec         *round.Spec  // of the lock; nil if that was not said
	reader       bool         // it may have the lock beside other readers
	signalled    bool         // of a reader: it was notified since it was last refused. Guarded as its entries are
	signal       chan signal  // capacity 1: the latest signal that was not taken yet
	subscription *waiterSubscription
	timer        *time.Timer   // wakes it at dueAt, renewAt or heedAt, whichever is earliest
	dueAt        time.Duration // when it looks or tries even if nothing notifies it; 0 for never
	renewAt      time.Duration // when it renews its intent or its entries; 0 if it has none
	heedAt       time.Duration // when it acts on a notice of the masters; 0 if there was none
	freedSlot    atomic.Int32  // the slot that this client has released last; 0 if none was
}

// A localEntry is a waiter's place in one queue. It is guarded by the mu of the queue's shard.
type localEntry struct {
	waiter     *waiter
	next, prev *localEntry
}

// A signal is what a local queue notifies a waiter of. A writer gets no signal before it is the head of all its
// queues.
type signal uint8

const (
	turn     signal = iota // it is the head: try
	turnHeld               // it is the head, but its predecessor has just taken the lock
	released               // the lock was released: try
	yield                  // the lock was released: let other processes try first
)

func (qs *localQueues) init(c *core, handovers int) {
	qs.core, qs.maxHandovers = c, handovers
	qs.seed = maphash.MakeSeed()
	for i := range qs.shards {
		qs.shards[i].queues = make(map[string]*localQueue)
	}
	qs.pool.New = func() any { return new(localQueue) }
	qs.waiters.New = func() any {
		w := &waiter{signal: make(chan signal, 1), subscription: newSubscription(qs.core)}
		w.timer = time.AfterFunc(time.Hour, w.subscription.Wake)
		w.timer.Stop()
		return w
	}
}

func (qs *localQueues) shard(key string) *shard { return &qs.shards[qs.index(key)] }

func (qs *localQueues) index(key string) uint64 {
	return maphash.String(qs.seed, key) % uint64(len(qs.shards))
}

// lock takes the locks of the keys' shards. It returns the shards as a set, for unlock.
func (qs *localQueues) lock(keys []string) (locked uint64) {
	for _, key := range keys {
		locked |= 1 << qs.index(key)
	}
	for rest := locked; rest != 0; rest &= rest - 1 {
		qs.shards[bits.TrailingZeros64(rest)].mu.Lock()
	}
	return locked
}

func (qs *localQueues) unlock(locked uint64) {
	for ; locked != 0; locked &= locked - 1 {
		qs.shards[bits.TrailingZeros64(locked)].mu.Unlock()
	}
}

// empty reports whether nobody waits for the keys, and takes no lock. Who joins later makes an attempt later.
func (qs *localQueues) empty(keys []string) bool {
	for _, key := range keys {
		if qs.shard(key).n.Load() > 0 {
			return false
		}
	}
	return true
}

// queue returns a key's queue; nil if it has no waiters. The key's shard is locked.
func (qs *localQueues) queue(key string) *localQueue { return qs.shard(key).queues[key] }

// notify gives a waiter a signal, in place of one that it has not taken yet. Other queues may notify the same
// waiter at the same time.
func (w *waiter) notify(s signal) {
	defer w.subscription.Wake()
	for {
		select {
		case w.signal <- s:
			return
		default:
		}
		select {
		case <-w.signal:
		default:
		}
	}
}

// join puts the caller at the end of each key's queue. first says that it is the head of all of them. If not, it
// gets a signal when it is.
func (qs *localQueues) join(keys ...string) (w *waiter, first bool) {
	w, first, _ = qs.joinAs(nil, false, keys...)
	return w, first
}

// joinFor is join for a lock.
func (qs *localQueues) joinFor(s *round.Spec) (w *waiter, first, clear bool) {
	return qs.joinAs(s, s.Reader, s.Names()...)
}

// joinAs is join for readers and writers. clear says that only readers are ahead of the caller. A reader need not
// wait for them.
func (qs *localQueues) joinAs(s *round.Spec, reader bool, keys ...string) (w *waiter, first, clear bool) {
	w = qs.waiters.Get().(*waiter)
	w.spec, w.reader, w.signalled = s, reader, false
	w.entries = slices.Grow(w.entries[:0], len(keys))[:len(keys)]
	locked := qs.lock(keys)
	defer qs.unlock(locked)
	blockers := int32(0)
	clear = true
	for i, key := range keys {
		s := qs.shard(key)
		q := s.queues[key]
		if q == nil {
			q = qs.pool.Get().(*localQueue)
			s.queues[key] = q
			s.n.Add(1)
		}
		clear = clear && q.writers == 0
		if !reader {
			q.writers++
		}
		e := &w.entries[i]
		*e = localEntry{waiter: w, prev: q.tail}
		if q.tail == nil {
			q.head = e
		} else {
			q.tail.next = e
			blockers++
		}
		q.tail = e
	}
	w.blockers.Store(blockers)
	return w, blockers == 0, clear
}

// leave takes a waiter out of its queues, with or without the lock. It gives their turn to the successors that are
// now the heads of all their queues. If the waiter is a reader and has the lock, leave gives all readers their
// turn, up to the first writer. It returns what the queues know of why the lock could not be taken: whether it is
// held in this client, and the error of the last attempt. If the waiter was given a lock that it has not taken over,
// leave releases that, and returns declined: then the caller must call released. It does so under the locks of the
// shards, as takeBack does, so that Close does not come in between.
func (qs *localQueues) leave(w *waiter, acquired bool, keys ...string) (declined, held bool, failure *RoundError) {
	locked := qs.lock(keys)
	for i, key := range keys {
		s, e := qs.shard(key), &w.entries[i]
		q := s.queues[key]
		if acquired {
			q.held, q.failure = true, nil
		}
		held = held || q.held
		if q.failure != nil {
			failure = q.failure
		}
		q.remove(e)
		if q.head == nil {
			delete(s.queues, key)
			s.n.Add(-1)
			*q = localQueue{}
			qs.pool.Put(q)
			continue
		}
		next := q.head.waiter
		turned := e.prev == nil && next.blockers.Add(-1) == 0 // it is the head of all its queues now
		switch {
		case acquired && w.reader && next.reader:
			for e := q.head; e != nil && e.waiter.reader; e = e.next {
				if !e.waiter.signalled {
					e.waiter.signalled = true
					e.waiter.notify(turn)
				}
			}
		case turned && acquired:
			next.notify(turnHeld)
		case turned:
			next.notify(turn)
		}
	}
	if given := w.subscription.given.Swap(nil); given != nil { // from here on it is not the head, so it is given nothing
		declined = true
		given.giveBack(qs.core, w.spec, slices.Clone(given.token), 0)
	}
	qs.unlock(locked)
	clear(w.entries)
	w.spec = nil
	w.freedSlot.Store(0)
	w.timer.Stop()
	w.dueAt, w.renewAt, w.heedAt = 0, 0, 0
	select {
	case <-w.signal: // it came too late
	default:
	}
	qs.waiters.Put(w)
	return declined, held, failure
}

func (q *localQueue) remove(e *localEntry) {
	if !e.waiter.reader {
		q.writers--
	}
	if e.prev == nil {
		q.head = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		q.tail = e.prev
	} else {
		e.next.prev = e.prev
	}
}

// ahead returns how many waiters are ahead of one in the queue of its first key. It counts maxAhead at most.
func (qs *localQueues) ahead(w *waiter, keys ...string) (n int) {
	defer qs.unlock(qs.lock(keys))
	for e := w.entries[0].prev; e != nil && n < maxAhead; e = e.prev {
		n++
	}
	return n
}

const maxAhead = 1000

// noteReaderRefused notes that a reader was refused, so that it is notified again when another reader takes the lock.
// It reports whether the reader is the head of its queue now.
func (qs *localQueues) noteReaderRefused(w *waiter, keys ...string) (first bool) {
	defer qs.unlock(qs.lock(keys))
	w.signalled = false
	return w.blockers.Load() == 0
}

// noteFailure notes the error of the last attempt of the queues' head.
func (qs *localQueues) noteFailure(e *RoundError, keys ...string) {
	defer qs.unlock(qs.lock(keys))
	for _, key := range keys {
		q := qs.queue(key)
		q.held, q.failure = q.held && e.reason == ErrHeld, e
	}
}

// foundHeld marks a queue whose lock another process holds. It has no key: the callers of leave add that.
var foundHeld = unasked(opLock, "", ErrHeld, "")

// noteHeld notes that another process holds a lock on the keys, unless the queues know that the lock is held.
func (qs *localQueues) noteHeld(keys ...string) {
	defer qs.unlock(qs.lock(keys))
	for _, key := range keys {
		if q := qs.queue(key); q.failure == nil || q.failure.reason != ErrHeld {
			q.failure = foundHeld
		}
	}
}

// released notifies the keys' queues that this client has released a lock on them, or that slot of it. Each head that
// is ready then tries at once. But if one of their queues has had too many hand-overs in a row, all these heads
// let other processes try first.
func (qs *localQueues) released(slot int, keys ...string) {
	if qs.empty(keys) {
		return
	}
	defer qs.unlock(qs.lock(keys))
	next := released
	for _, key := range keys {
		if q := qs.queue(key); q.ready() && qs.maxHandovers >= 0 && q.handovers >= qs.maxHandovers {
			next = yield
		}
	}
	for _, key := range keys {
		q := qs.queue(key)
		if q != nil {
			q.held = false
		}
		if !q.ready() {
			continue
		}
		if q.handovers++; next == yield {
			q.handovers = 0
		}
		q.head.waiter.freedSlot.Store(int32(slot))
		q.head.waiter.notify(next)
	}
}

// handOver gives a lock, which rel releases, to the head of its queues, if that wants the same lock and was given none:
// two Mutexes can have a lock if the masters have lost the first. It reports whether it has. in is the lock's relay; nil
// for one that begins. until is the end of the validity, and switches is the number of switches before the holder has
// left the list of the rechecks.
func (qs *localQueues) handOver(all *relays, s *round.Spec, in *relay, rel *release, until time.Duration, switches uint64) bool {
	keys := s.Names()
	defer qs.unlock(qs.lock(keys))
	if q := qs.queue(keys[0]); !q.ready() || q.head.waiter.spec == nil || !s.Alike(q.head.waiter.spec) || q.head.waiter.subscription.given.Load() != nil {
		return false
	}
	handovers, goesOn, again := 0, true, false
	for _, key := range keys {
		handovers = max(handovers, qs.queue(key).handovers)
	}
	switch {
	case qs.maxHandovers < 0:
		goesOn = in == nil || !in.wearsOut()
	case in != nil:
		goesOn, again = in.goesOn(handovers, qs.maxHandovers)
	default:
		goesOn = handovers < qs.maxHandovers
	}
	if !goesOn {
		qs.queue(keys[0]).handovers = qs.maxHandovers // so that released lets other processes try first
		return false
	}
	if in == nil {
		in = all.begin(s, rel.Token)
	}
	if !in.give(rel, until, switches) {
		return false
	}
	for _, key := range keys {
		q := qs.queue(key)
		q.handovers++
		if again {
			q.handovers = 1
		}
	}
	w := qs.queue(keys[0]).head.waiter
	w.subscription.given.Store(in)
	if !in.counting.Load() {
		w.subscription.hurry()
	}
	return true
}

// counted wakes the waiter that was given the relay's lock, if it is still there: the number of its lock is known now, or
// there is none.
func (qs *localQueues) counted(r *relay) {
	key := r.spec.Names()[0]
	s := qs.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[key]; q != nil && q.head.waiter.subscription.given.Load() == r {
		q.head.waiter.subscription.hurry()
	}
}

// wake wakes all waiters.
func (qs *localQueues) wake() {
	for i := range qs.shards {
		s := &qs.shards[i]
		s.mu.Lock()
		for _, q := range s.queues {
			for e := q.head; e != nil; e = e.next {
				e.waiter.subscription.Wake()
			}
		}
		s.mu.Unlock()
	}
}

// takeBack releases the locks that waiters were given and have not taken over. From then on none may be given.
func (qs *localQueues) takeBack() {
	for i := range qs.shards {
		s := &qs.shards[i]
		s.mu.Lock()
		for _, q := range s.queues {
			if w := q.head.waiter; w.subscription.given.Load() != nil {
				given := w.subscription.given.Swap(nil)
				given.giveBack(qs.core, w.spec, slices.Clone(given.token), 0)
			}
		}
		s.mu.Unlock()
	}
}

// ready reports whether the queue's head can try: it is the head of all its queues.
func (q *localQueue) ready() bool { return q != nil && q.head.waiter.blockers.Load() == 0 }
