package redlock

import (
	"hash/maphash"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// localQueues has a queue for every key for which a goroutine of this client is in Lock. Only the head of
// a queue contends with other processes. The others wait for their turn. A queue exists while it has
// waiters, and its memory is pooled: nothing per key is left behind.
//
// A waiter for several keys has an entry in the queue of each. It contends once it is the head of all of
// them, and its successors wait until then. It joins all its queues in one step, so a waiter that is
// ahead of it in one queue is ahead of it in all queues that they share. Therefore no two wait for each
// other, whatever the order in which they name their keys. A waiter has its turn when those ahead
// of it have left: no later waiter delays it.
//
// Readers of a shared lock do not wait for one another. They try at once where only readers are ahead of
// them. The first that takes the lock notifies its successors, up to the first writer. A reader has one
// entry.
//
// Its locks are taken in the order of the shards. Under them only the lock of the mux is taken, to wake a
// waiter.
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
}

// A localQueue is guarded by its shard's mu.
type localQueue struct {
	head, tail *localEntry
	writers    int         // waiters that are not readers
	held       bool        // a waiter of this queue has taken the lock, and not released it yet
	handovers  int         // hand-overs in a row
	failure    *RoundError // of the head's last attempt; nil if held
}

// A waiter is one goroutine in Lock.
type waiter struct {
	entries      []localEntry // in the queue of each of its keys, in their order
	blockers     atomic.Int32 // the queues in which others are ahead of it
	reader       bool         // it may have the lock beside other readers
	signalled    bool         // ... and was notified since it was last refused. Guarded as its entries
	signal       chan signal  // capacity 1: the latest signal that was not taken yet
	subscription *subscription
	timer        *time.Timer   // wakes it at the earlier of these two
	dueAt        time.Duration // when it looks or tries, though nothing notifies it; 0 if it does not
	renewAt      time.Duration // when it renews its intent and its entries; 0 if it has none
	freedSlot    atomic.Int32  // the slot that was released last, of a lock that has slots; 0 if none was
}

// A localEntry is a waiter's place in one queue. It is guarded by the mu of the queue's shard.
type localEntry struct {
	waiter     *waiter
	next, prev *localEntry
}

// A signal is what other waiters of its queues notify a waiter of. A writer gets none before it is the head of
// all its queues.
type signal uint8

const (
	turn     signal = iota // you are the head: try
	turnHeld               // you are the head, but your predecessor has just taken the lock
	released               // the lock was released: try
	yield                  // the lock was released: let others try before you
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
		w.timer = time.AfterFunc(time.Hour, w.subscription.wake)
		w.timer.Stop()
		return w
	}
}

func (qs *localQueues) shard(key string) *shard { return &qs.shards[qs.index(key)] }

func (qs *localQueues) index(key string) uint64 {
	return maphash.String(qs.seed, key) % uint64(len(qs.shards))
}

// lock takes the locks of the keys' shards, and returns these as a set, for unlock.
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

// queue returns a key's queue; nil if it has no waiters. Its shard is locked.
func (qs *localQueues) queue(key string) *localQueue { return qs.shard(key).queues[key] }

// notify gives a waiter a signal, in place of one that it has not taken yet. Others may do so at
// the same time, from other queues.
func (w *waiter) notify(s signal) {
	defer w.subscription.wake()
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

// join puts the caller at the end of each key's queue. If it is not the head of all, it gets a
// signal when it is.
func (qs *localQueues) join(keys ...string) (w *waiter, first bool) {
	w, first, _ = qs.joinAs(false, keys...)
	return w, first
}

// joinAs is join for a reader, too. It also reports whether only readers are ahead of it: a reader need
// not wait for them.
func (qs *localQueues) joinAs(reader bool, keys ...string) (w *waiter, first, clear bool) {
	w = qs.waiters.Get().(*waiter)
	w.reader, w.signalled = reader, false
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

// leave takes a waiter out of its queues, with or without the lock, and gives its successors
// their turns. A reader that has the lock gives all readers theirs, up to the first writer. leave
// returns what the queues know of why the lock could not be taken: whether it is held in this
// client, and how the last attempt failed.
func (qs *localQueues) leave(w *waiter, acquired bool, keys ...string) (held bool, failure *RoundError) {
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
	qs.unlock(locked)
	clear(w.entries)
	w.freedSlot.Store(0)
	w.timer.Stop()
	w.dueAt, w.renewAt = 0, 0
	select {
	case <-w.signal: // it came too late
	default:
	}
	qs.waiters.Put(w)
	return held, failure
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

// noteReaderRefused notes that a reader was refused, so that it is notified again when others take the lock. It
// reports whether the reader is the head of its queue now.
func (qs *localQueues) noteReaderRefused(w *waiter, keys ...string) (first bool) {
	defer qs.unlock(qs.lock(keys))
	w.signalled = false
	return w.blockers.Load() == 0
}

// noteFailure notes how the last attempt of the head of the queues failed.
func (qs *localQueues) noteFailure(e *RoundError, keys ...string) {
	defer qs.unlock(qs.lock(keys))
	for _, key := range keys {
		q := qs.queue(key)
		q.held, q.failure = q.held && e.reason == ErrHeld, e
	}
}

// foundHeld marks a queue whose lock another process holds. Callers add the key.
var foundHeld = unasked(OpLock, "", ErrHeld, "")

// noteHeld notes that another process holds a lock on the keys, unless that is known.
func (qs *localQueues) noteHeld(keys ...string) {
	defer qs.unlock(qs.lock(keys))
	for _, key := range keys {
		if q := qs.queue(key); q.failure == nil || q.failure.reason != ErrHeld {
			q.failure = foundHeld
		}
	}
}

// released notifies the keys' queues that a lock on them, or that slot of it, was released in this client. If
// one of the heads that could try comes after too many hand-overs in its queue, all of them let other
// processes try first.
func (qs *localQueues) released(slot int, keys ...string) {
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

// ready reports whether the queue has a head that is the head of all its queues.
func (q *localQueue) ready() bool { return q != nil && q.head.waiter.blockers.Load() == 0 }
