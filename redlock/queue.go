package redlock

import (
	"hash/maphash"
	"sync"
	"time"
)

// lines keeps a line for every key for which somebody of this client is in Lock. Only the first
// of a line contends with other processes. The others wait for their turn. A line exists while
// somebody stands in it, and its memory is pooled: nothing per key is left behind.
//
// Its locks are leaves.
type lines struct {
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
	first, last *waiter
	held        bool        // one who stood here has taken the lock, and not released it yet
	handed      int         // hand-overs in a row
	failure     *RoundError // of the first's last attempt; nil if held
}

// A waiter is one goroutine in Lock.
type waiter struct {
	next, prev *waiter
	signal     chan signal // capacity 1: the latest signal that was not taken yet
	timer      *time.Timer
	watch      *watch
}

// A signal is what a waiter is told by others of its line.
type signal uint8

const (
	turn     signal = iota // you are first: try
	turnHeld               // you are first, but one who stood before you has just taken the lock
	released               // the lock was released: try
	yield                  // the lock was released: let others try before you
)

func (q *lines) init(handovers int) {
	q.handovers = handovers
	q.seed = maphash.MakeSeed()
	for i := range q.shards {
		q.shards[i].lines = make(map[string]*line)
	}
	q.pool.New = func() any { return new(line) }
	q.waiters.New = func() any {
		w := &waiter{signal: make(chan signal, 1), timer: time.NewTimer(time.Hour), watch: newWatch()}
		w.timer.Stop()
		return w
	}
}

func (q *lines) shard(key string) *shard {
	return &q.shards[maphash.String(q.seed, key)%uint64(len(q.shards))]
}

// tell gives a waiter a signal, in place of one that it has not taken yet. The shard's mu is
// held, so nobody else sends.
func (w *waiter) tell(s signal) {
	select {
	case <-w.signal:
	default:
	}
	w.signal <- s
}

// join puts the caller at the end of a key's line. If it is not the first, it gets a signal when
// it is.
func (q *lines) join(key string) (w *waiter, first bool) {
	w = q.waiters.Get().(*waiter)
	s := q.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[key]
	if l == nil {
		l = q.pool.Get().(*line)
		s.lines[key] = l
	}
	w.prev = l.last
	if l.last == nil {
		l.first = w
	} else {
		l.last.next = w
	}
	l.last = w
	return w, l.first == w
}

// leave takes a waiter out of its line, with or without the lock, and gives the next one its
// turn. It returns what the line knows of why the lock could not be taken: whether it is held
// in this client, and how the last attempt failed.
func (q *lines) leave(key string, w *waiter, acquired bool) (held bool, failure *RoundError) {
	s := q.shard(key)
	s.mu.Lock()
	l := s.lines[key]
	if acquired {
		l.held, l.failure = true, nil
	}
	held, failure = l.held, l.failure
	first := w.prev == nil
	if first {
		l.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		l.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	switch {
	case l.first == nil:
		delete(s.lines, key)
		*l = line{}
		q.pool.Put(l)
	case first && acquired:
		l.first.tell(turnHeld)
	case first:
		l.first.tell(turn)
	}
	s.mu.Unlock()
	w.next, w.prev = nil, nil
	select {
	case <-w.signal: // it came too late
	default:
	}
	q.waiters.Put(w)
	return held, failure
}

// noteFailure notes how the last attempt of the first of a line failed.
func (q *lines) noteFailure(key string, e *RoundError) {
	s := q.shard(key)
	s.mu.Lock()
	l := s.lines[key]
	l.held, l.failure = l.held && e.reason == ErrHeld, e
	s.mu.Unlock()
}

// noteHeld notes that the key was found to be another's, unless that is known.
func (q *lines) noteHeld(key string) {
	s := q.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.lines[key]; l.failure == nil || l.failure.reason != ErrHeld {
		l.failure = unasked(opLock, key, ErrHeld, "")
	}
}

// released tells a key's line that the lock was released in this client.
func (q *lines) released(key string) {
	s := q.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.lines[key]
	if l == nil {
		return
	}
	l.held = false
	if q.handovers >= 0 && l.handed >= q.handovers {
		l.handed = 0
		l.first.tell(yield)
		return
	}
	l.handed++
	l.first.tell(released)
}
