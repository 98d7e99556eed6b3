package redlock

import (
	"hash/maphash"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// lines keeps a line for every key for which somebody of this client is in Lock. Only the first
// of a line contends with other processes. The others wait for their turn. A line exists while
// somebody stands in it, and its memory is pooled: nothing per key is left behind.
//
// A waiter for several keys stands in the line of each. It contends once it is the first of all
// of them, and those behind it wait until then. It joins all its lines in one step, so whoever
// came before it in one line came before it in all that they share. Therefore no two wait for
// each other, whatever the order in which they name their keys, and a waiter has its turn when
// those that came before it have left: nobody who comes later delays it.
//
// Readers of a shared lock do not wait for one another. They try at once where only readers stand
// before them, and the first that gets in calls those behind it, up to the first writer. A reader
// stands in one line.
//
// Its locks are taken in the order of the shards. Under them only that of the mux is taken, to wake a
// waiter.
type lines struct {
	core      *core
	handovers int // in a row; below zero: any number
	seed      maphash.Seed
	shards    [64]shard
	waiters   sync.Pool
	pool      sync.Pool // of *line
}

type shard struct {
	mu    sync.Mutex
	lines map[string]*line
}

// A line is guarded by its shard's mu.
type line struct {
	first, last *place
	writers     int         // waiters that are no readers
	held        bool        // one who stood here has taken the lock, and not released it yet
	handed      int         // hand-overs in a row
	failure     *RoundError // of the first's last attempt; nil if held
}

// A waiter is one goroutine in Lock.
type waiter struct {
	places []place      // in the line of each of its keys, in their order
	behind atomic.Int32 // the lines in which others stand before it
	reader bool         // it may have the lock beside other readers
	going  bool         // ... and was told so since it was last refused. Guarded as its place
	signal chan signal  // capacity 1: the latest signal that was not taken yet
	watch  *watch
	timer  *time.Timer   // wakes it at the earlier of these two
	due    time.Duration // when it looks or tries, though nobody tells it; 0 if it does not
	again  time.Duration // when it renews its intent and its entries; 0 if it has none
	freed  atomic.Int32  // the slot that was released last, of a lock that has slots; 0 if none was
}

// A place is a waiter's in one line. It is guarded by the mu of the line's shard.
type place struct {
	waiter     *waiter
	next, prev *place
}

// A signal is what a waiter is told by others of its lines. It is told nothing before it is the
// first of all of them.
type signal uint8

const (
	turn     signal = iota // you are first: try
	turnHeld               // you are first, but one who stood before you has just taken the lock
	released               // the lock was released: try
	yield                  // the lock was released: let others try before you
)

func (q *lines) init(c *core, handovers int) {
	q.core, q.handovers = c, handovers
	q.seed = maphash.MakeSeed()
	for i := range q.shards {
		q.shards[i].lines = make(map[string]*line)
	}
	q.pool.New = func() any { return new(line) }
	q.waiters.New = func() any {
		w := &waiter{signal: make(chan signal, 1), watch: newWatch(q.core)}
		w.timer = time.AfterFunc(time.Hour, w.watch.wake)
		w.timer.Stop()
		return w
	}
}

func (q *lines) shard(key string) *shard { return &q.shards[q.index(key)] }

func (q *lines) index(key string) uint64 {
	return maphash.String(q.seed, key) % uint64(len(q.shards))
}

// lock takes the locks of the keys' shards, and returns these as a set, for unlock.
func (q *lines) lock(keys []string) (locked uint64) {
	for _, key := range keys {
		locked |= 1 << q.index(key)
	}
	for rest := locked; rest != 0; rest &= rest - 1 {
		q.shards[bits.TrailingZeros64(rest)].mu.Lock()
	}
	return locked
}

func (q *lines) unlock(locked uint64) {
	for ; locked != 0; locked &= locked - 1 {
		q.shards[bits.TrailingZeros64(locked)].mu.Unlock()
	}
}

// line returns a key's line; nil if nobody stands in it. Its shard is locked.
func (q *lines) line(key string) *line { return q.shard(key).lines[key] }

// tell gives a waiter a signal, in place of one that it has not taken yet. Others may do so at
// the same time, from other lines.
func (w *waiter) tell(s signal) {
	defer w.watch.wake()
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

// join puts the caller at the end of each key's line. If it is not the first of all, it gets a
// signal when it is.
func (q *lines) join(keys ...string) (w *waiter, first bool) {
	w, first, _ = q.enter(false, keys...)
	return w, first
}

// enter is join for a reader, too. It also reports whether only readers stand before it: they are
// in nobody's way.
func (q *lines) enter(reader bool, keys ...string) (w *waiter, first, clear bool) {
	w = q.waiters.Get().(*waiter)
	w.reader, w.going = reader, false
	w.places = slices.Grow(w.places[:0], len(keys))[:len(keys)]
	locked := q.lock(keys)
	defer q.unlock(locked)
	behind := int32(0)
	clear = true
	for i, key := range keys {
		s := q.shard(key)
		l := s.lines[key]
		if l == nil {
			l = q.pool.Get().(*line)
			s.lines[key] = l
		}
		clear = clear && l.writers == 0
		if !reader {
			l.writers++
		}
		p := &w.places[i]
		*p = place{waiter: w, prev: l.last}
		if l.last == nil {
			l.first = p
		} else {
			l.last.next = p
			behind++
		}
		l.last = p
	}
	w.behind.Store(behind)
	return w, behind == 0, clear
}

// leave takes a waiter out of its lines, with or without the lock, and gives their next ones
// their turns. A reader that has the lock gives all readers theirs, up to the first writer. leave
// returns what the lines know of why the lock could not be taken: whether it is held in this
// client, and how the last attempt failed.
func (q *lines) leave(w *waiter, acquired bool, keys ...string) (held bool, failure *RoundError) {
	locked := q.lock(keys)
	for i, key := range keys {
		s, p := q.shard(key), &w.places[i]
		l := s.lines[key]
		if acquired {
			l.held, l.failure = true, nil
		}
		held = held || l.held
		if l.failure != nil {
			failure = l.failure
		}
		l.remove(p)
		if l.first == nil {
			delete(s.lines, key)
			*l = line{}
			q.pool.Put(l)
			continue
		}
		next := l.first.waiter
		turned := p.prev == nil && next.behind.Add(-1) == 0 // it is the first of all its lines now
		switch {
		case acquired && w.reader && next.reader:
			for p := l.first; p != nil && p.waiter.reader; p = p.next {
				if !p.waiter.going {
					p.waiter.going = true
					p.waiter.tell(turn)
				}
			}
		case turned && acquired:
			next.tell(turnHeld)
		case turned:
			next.tell(turn)
		}
	}
	q.unlock(locked)
	clear(w.places)
	w.freed.Store(0)
	w.timer.Stop()
	w.due, w.again = 0, 0
	select {
	case <-w.signal: // it came too late
	default:
	}
	q.waiters.Put(w)
	return held, failure
}

func (l *line) remove(p *place) {
	if !p.waiter.reader {
		l.writers--
	}
	if p.prev == nil {
		l.first = p.next
	} else {
		p.prev.next = p.next
	}
	if p.next == nil {
		l.last = p.prev
	} else {
		p.next.prev = p.prev
	}
}

// refused notes that a reader was refused, so that it is told again when others get in. It reports
// whether the reader is the first of its line now.
func (q *lines) refused(w *waiter, keys ...string) (first bool) {
	defer q.unlock(q.lock(keys))
	w.going = false
	return w.behind.Load() == 0
}

// noteFailure notes how the last attempt of the first of the lines failed.
func (q *lines) noteFailure(e *RoundError, keys ...string) {
	defer q.unlock(q.lock(keys))
	for _, key := range keys {
		l := q.line(key)
		l.held, l.failure = l.held && e.reason == ErrHeld, e
	}
}

// foundHeld is the error of a line whose lock another process holds. Callers add the key.
var foundHeld = unasked(opLock, "", ErrHeld, "")

// noteHeld notes that a lock on the keys was found to be another's, unless that is known.
func (q *lines) noteHeld(keys ...string) {
	defer q.unlock(q.lock(keys))
	for _, key := range keys {
		if l := q.line(key); l.failure == nil || l.failure.reason != ErrHeld {
			l.failure = foundHeld
		}
	}
}

// released tells the keys' lines that a lock on them was released in this client, or the slot of it
// that was. If one of those who could try has been preceded by enough hand-overs in its line, they
// all let others try.
func (q *lines) released(slot int, keys ...string) {
	defer q.unlock(q.lock(keys))
	next := released
	for _, key := range keys {
		if l := q.line(key); l.ready() && q.handovers >= 0 && l.handed >= q.handovers {
			next = yield
		}
	}
	for _, key := range keys {
		l := q.line(key)
		if l != nil {
			l.held = false
		}
		if !l.ready() {
			continue
		}
		if l.handed++; next == yield {
			l.handed = 0
		}
		l.first.waiter.freed.Store(int32(slot))
		l.first.waiter.tell(next)
	}
}

// ready reports whether somebody stands in the line, and its first is that of all its lines.
func (l *line) ready() bool { return l != nil && l.first.waiter.behind.Load() == 0 }
