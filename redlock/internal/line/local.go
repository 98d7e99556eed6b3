package line

import (
	"hash/maphash"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redburst/redburst/redlock/internal/round"
)

// LocalQueues has a queue for every key that a goroutine of this client is locking (in Lock). Only the head of a
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
type LocalQueues struct {
	core         *Core
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
	writers    int     // waiters that are not readers
	held       bool    // a waiter of this queue has taken the lock, and this client has not released it yet
	handovers  int     // hand-overs in a row
	failure    failure // of the head's last attempt; zero once a waiter of this queue has taken the lock
}

// A failure is how an attempt has failed.
type failure struct {
	err  error
	held bool // because the lock was held
}

// A localEntry is a waiter's place in one queue. It is guarded by the mu of the queue's shard.
type localEntry struct {
	waiter     *Waiter
	next, prev *localEntry
}

// Init makes the queues ready. handovers is how many hand-overs in a row there may be; below zero, any number.
func (qs *LocalQueues) Init(c *Core, handovers int) {
	qs.core, qs.maxHandovers = c, handovers
	qs.seed = maphash.MakeSeed()
	for i := range qs.shards {
		qs.shards[i].queues = make(map[string]*localQueue)
	}
	qs.pool.New = func() any { return new(localQueue) }
	qs.waiters.New = func() any { return NewWaiter(qs.core) }
}

func (qs *LocalQueues) shard(key string) *shard { return &qs.shards[qs.index(key)] }

func (qs *LocalQueues) index(key string) uint64 {
	return maphash.String(qs.seed, key) % uint64(len(qs.shards))
}

// lock takes the locks of the keys' shards. It returns the shards as a set, for unlock.
func (qs *LocalQueues) lock(keys []string) (locked uint64) {
	for _, key := range keys {
		locked |= 1 << qs.index(key)
	}
	for rest := locked; rest != 0; rest &= rest - 1 {
		qs.shards[bits.TrailingZeros64(rest)].mu.Lock()
	}
	return locked
}

func (qs *LocalQueues) unlock(locked uint64) {
	for ; locked != 0; locked &= locked - 1 {
		qs.shards[bits.TrailingZeros64(locked)].mu.Unlock()
	}
}

// Empty reports whether nobody waits for the keys, and takes no lock. Who joins later makes an attempt later.
func (qs *LocalQueues) Empty(keys []string) bool {
	for _, key := range keys {
		if qs.shard(key).n.Load() > 0 {
			return false
		}
	}
	return true
}

// queue returns a key's queue; nil if it has no waiters. The key's shard is locked.
func (qs *LocalQueues) queue(key string) *localQueue { return qs.shard(key).queues[key] }

// Join puts the caller at the end of the queues of a lock. first says that it is the head of all of them. If not, it gets a
// signal when it is. clear says that only readers are ahead of it: a reader need not wait for them.
func (qs *LocalQueues) Join(s *round.Spec) (w *Waiter, first, clear bool) {
	return qs.joinAs(s, s.Reader, s.Names()...)
}

// joinAs is Join. The lock is nil if nothing is to be handed over.
func (qs *LocalQueues) joinAs(s *round.Spec, reader bool, keys ...string) (w *Waiter, first, clear bool) {
	w = qs.waiters.Get().(*Waiter)
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

// Leave takes a waiter out of its queues, with or without the lock. It gives their turn to the successors that are
// now the heads of all their queues. If the waiter is a reader and has the lock, Leave gives all readers their
// turn, up to the first writer. It returns what the queues know of why the lock could not be taken: whether it is
// held in this client, and the error of the last attempt. If the waiter was given a lock that it has not taken over,
// Leave releases that, and returns declined: then the caller must call Released. It does so under the locks of the
// shards, as TakeBack does, so that Close does not come in between.
func (qs *LocalQueues) Leave(w *Waiter, acquired bool, keys ...string) (declined, held bool, why error) {
	locked := qs.lock(keys)
	for i, key := range keys {
		s, e := qs.shard(key), &w.entries[i]
		q := s.queues[key]
		if acquired {
			q.held, q.failure = true, failure{}
		}
		held = held || q.held
		if q.failure.err != nil {
			why = q.failure.err
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
					e.waiter.notify(Turn)
				}
			}
		case turned && acquired:
			next.notify(TurnHeld)
		case turned:
			next.notify(Turn)
		}
	}
	if given := w.given.Swap(nil); given != nil { // from here on it is not the head, so it is given nothing
		declined = true
		given.Of.GiveBack(w.spec)
	}
	qs.unlock(locked)
	clear(w.entries)
	w.spec = nil
	w.freedSlot.Store(0)
	w.timer.Stop()
	w.ticket.reset()
	select {
	case <-w.signal: // it came too late
	default:
	}
	qs.waiters.Put(w)
	return declined, held, why
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

// Ahead returns how many waiters are ahead of one in the queue of its first key. It counts maxAhead at most.
func (qs *LocalQueues) Ahead(w *Waiter, keys ...string) (n int) {
	defer qs.unlock(qs.lock(keys))
	for e := w.entries[0].prev; e != nil && n < maxAhead; e = e.prev {
		n++
	}
	return n
}

const maxAhead = 1000

// NoteReaderRefused notes that a reader was refused, so that it is notified again when another reader takes the lock.
// It reports whether the reader is the head of its queue now.
func (qs *LocalQueues) NoteReaderRefused(w *Waiter, keys ...string) (first bool) {
	defer qs.unlock(qs.lock(keys))
	w.signalled = false
	return w.blockers.Load() == 0
}

// NoteFailure notes the error of the last attempt of the queues' head. held says that the lock was held.
func (qs *LocalQueues) NoteFailure(err error, held bool, keys ...string) {
	defer qs.unlock(qs.lock(keys))
	for _, key := range keys {
		q := qs.queue(key)
		q.held, q.failure = q.held && held, failure{err, held}
	}
}

// NoteHeld notes that another process holds a lock on the keys, unless the queues know that the lock is held. err
// says so, without a key.
func (qs *LocalQueues) NoteHeld(err error, keys ...string) {
	defer qs.unlock(qs.lock(keys))
	for _, key := range keys {
		if q := qs.queue(key); !q.failure.held {
			q.failure = failure{err, true}
		}
	}
}

// Released notifies the keys' queues that this client has released a lock on them, or that slot of it. Each head that
// is ready then tries at once. But if one of their queues has had too many hand-overs in a row, all these heads
// let other processes try first.
func (qs *LocalQueues) Released(slot int, keys ...string) {
	if qs.Empty(keys) {
		return
	}
	defer qs.unlock(qs.lock(keys))
	next := Released
	for _, key := range keys {
		if q := qs.queue(key); q.ready() && qs.maxHandovers >= 0 && q.handovers >= qs.maxHandovers {
			next = Yield
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
		if q.handovers++; next == Yield {
			q.handovers = 0
		}
		q.head.waiter.freedSlot.Store(int32(slot))
		q.head.waiter.notify(next)
	}
}

// HandOver gives a lock to the head of its queues, if that wants the same lock and was given none: two Mutexes can have a
// lock if the masters have lost the first. It reports whether it has. goesOn says whether the lock may be given on once more
// after so many hand-overs in a row, and whether they are counted anew then. give gives it; nil if it cannot any more. Both
// are called under the locks of the queues.
func (qs *LocalQueues) HandOver(s *round.Spec, goesOn func(handovers int) (yes, again bool), give func() *Given) bool {
	keys := s.Names()
	defer qs.unlock(qs.lock(keys))
	if q := qs.queue(keys[0]); !q.ready() || q.head.waiter.spec == nil || !s.Alike(q.head.waiter.spec) || q.head.waiter.given.Load() != nil {
		return false
	}
	handovers := 0
	for _, key := range keys {
		handovers = max(handovers, qs.queue(key).handovers)
	}
	yes, again := goesOn(handovers)
	if !yes {
		qs.queue(keys[0]).handovers = qs.maxHandovers // so that Released lets other processes try first
		return false
	}
	in := give()
	if in == nil {
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
	w.given.Store(in)
	if !in.Counting.Load() {
		w.hurry()
	}
	return true
}

// Counted wakes the waiter for a key that was given the lock, if it is still there: the number of its lock is known now, or
// there is none.
func (qs *LocalQueues) Counted(in *Given, key string) {
	s := qs.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[key]; q != nil && q.head.waiter.given.Load() == in {
		q.head.waiter.hurry()
	}
}

// Wake wakes all waiters.
func (qs *LocalQueues) Wake() {
	for i := range qs.shards {
		s := &qs.shards[i]
		s.mu.Lock()
		for _, q := range s.queues {
			for e := q.head; e != nil; e = e.next {
				e.waiter.Wake()
			}
		}
		s.mu.Unlock()
	}
}

// TakeBack releases the locks that waiters were given and have not taken over. From then on none may be given.
func (qs *LocalQueues) TakeBack() {
	for i := range qs.shards {
		s := &qs.shards[i]
		s.mu.Lock()
		for _, q := range s.queues {
			if w := q.head.waiter; w.given.Load() != nil {
				given := w.given.Swap(nil)
				given.Of.GiveBack(w.spec)
			}
		}
		s.mu.Unlock()
	}
}

// ready reports whether the queue's head can try: it is the head of all its queues.
func (q *localQueue) ready() bool { return q != nil && q.head.waiter.blockers.Load() == 0 }

// Head returns the head of a key's queue; nil if nobody waits. Tests ask.
func (qs *LocalQueues) Head(key string) *Waiter {
	s := qs.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[key]; q != nil {
		return q.head.waiter
	}
	return nil
}

// Size returns the number of queues. Tests ask.
func (qs *LocalQueues) Size() (n int) {
	for i := range qs.shards {
		n += int(qs.shards[i].n.Load())
	}
	return n
}
