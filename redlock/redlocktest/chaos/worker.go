//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
)

// A worker is one goroutine of a client that takes locks in turns.
type worker struct {
	*client
	rng     *rand.Rand
	mutexes map[mutexKind]*redlock.Mutex // reused
}

type mutexKind struct {
	key    string
	fenced bool
}

func (w *worker) run() {
	for !w.isFinishing() {
		w.turn()
		time.Sleep(w.upTo(2 * time.Millisecond))
	}
}

// percent is true in so many of a hundred cases.
func (w *worker) percent(n int) bool { return w.rng.IntN(100) < n }

func (w *worker) upTo(most time.Duration) time.Duration { return rand64(w.rng, most) }

// long is about as long as a lock lives that is not renewed.
func (w *worker) long(key lockKey) time.Duration { return w.upTo(key.TTL + key.TTL/2) }

// turn tries to take a lock in one of the ways there are, and uses it.
func (w *worker) turn() {
	key := w.Keys[w.rng.IntN(len(w.Keys))]
	ctx, cancel := context.WithTimeout(context.Background(), w.upTo(2*time.Second))
	defer cancel()
	switch {
	case w.percent(15):
		defer time.AfterFunc(w.upTo(5*time.Millisecond), cancel).Stop()
	case w.percent(3):
		cancel()
	}
	fenced := w.percent(50)
	if w.percent(10) {
		w.do(ctx, key, fenced)
		return
	}
	how := opLock
	if w.percent(40) {
		how = opTry
	}
	h := w.acquire(ctx, key, w.mutex(key, fenced), fenced, how)
	if h == nil {
		return
	}
	switch {
	case w.percent(3):
		h.keep(w.long(key))
	case w.percent(3):
		for range 1 + w.rng.IntN(3) {
			h.work(w.long(key) / 2)
			h.extend()
		}
	case w.percent(1):
		h.work(w.long(key)) // it ends with the validity, unless it does before
	default:
		h.work(w.upTo(3 * time.Millisecond))
	}
	if w.percent(1) {
		return // the lock is left to its TTL
	}
	release, abandon := context.WithTimeout(context.Background(), w.upTo(2*time.Second))
	defer abandon()
	if w.percent(10) {
		abandon()
	}
	h.leave(release)
}

// mutex returns the worker's Mutex of a key, now and then a fresh one.
func (w *worker) mutex(key lockKey, fenced bool) *redlock.Mutex {
	kind := mutexKind{key.Name, fenced}
	if w.mutexes[kind] == nil || w.percent(5) {
		w.mutexes[kind] = w.lock.NewMutex(key.Name, key.TTL, options(fenced)...)
	}
	return w.mutexes[kind]
}

func options(fenced bool) []redlock.Option {
	if fenced {
		return []redlock.Option{redlock.WithFence()}
	}
	return nil
}

// acquire returns nil if the lock was not to be had.
func (w *worker) acquire(ctx context.Context, key lockKey, m *redlock.Mutex, fenced bool, how op) *hold {
	attempt := m.TryLock
	if how == opLock {
		attempt = m.Lock
	}
	err := attempt(ctx)
	now := conn.Now()
	if err != nil {
		w.add(record{T: now, Op: how, Key: key.Name, Outcome: name(ctx, err)})
		return nil
	}
	h := &hold{key: key, mutex: m, until: now + m.Remaining(), fenced: fenced, fence: m.Fence()}
	return w.begin(h, now, how)
}

// do takes the lock by Do, under a context that may end while it is held.
func (w *worker) do(ctx context.Context, key lockKey, fenced bool) {
	began := false
	err := w.lock.Do(ctx, key.Name, key.TTL, func(held context.Context) error {
		now := conn.Now()
		began = true
		h := w.begin(&hold{key: key, alive: held, until: now, fenced: fenced, fence: redlock.FenceFrom(held)}, now, opDo)
		if w.percent(10) {
			h.work(w.long(key))
		} else {
			h.work(w.upTo(3 * time.Millisecond))
		}
		w.add(record{Op: opLeave, Hold: h.id})
		return context.Cause(held)
	}, options(fenced)...)
	if began {
		w.add(record{Op: opDone, Key: key.Name, Outcome: name(ctx, err)})
		return
	}
	w.add(record{Op: opDo, Key: key.Name, Outcome: name(ctx, err)})
}

// A hold is a lock that was taken, and what its holder does with it.
type hold struct {
	*worker
	id      int
	key     lockKey
	mutex   *redlock.Mutex  // nil within Do
	alive   context.Context // of KeepAlive or Do; nil otherwise
	until   time.Duration   // as it was last recorded
	fenced  bool
	fence   uint64 // 0 if it is not fenced
	counter counter
}

// begin begins a hold of a lock that was taken before now.
func (w *worker) begin(h *hold, now time.Duration, how op) *hold {
	if h.fenced != (h.fence != 0) {
		panic(fmt.Sprintf("fence %d of a lock that is fenced: %t", h.fence, h.fenced))
	}
	h.worker, h.id = w, int(w.holds.Add(1))
	h.counter = w.counters[h.key.Name]
	if h.fenced {
		h.counter = fencedCounter{w.resource, step{Client: w.Name, Hold: h.id, Key: h.key.Name, Fence: h.fence}}
	}
	w.add(record{T: now, Op: how, Key: h.key.Name, Hold: h.id, Until: h.until, Fence: h.fence, Outcome: ok})
	return h
}

// look reports whether the lock is valid, and records until when it is known to
// be: the clock is read before the lock is asked. The end of the validity is the
// same at every look, but for the time between these two, until it is renewed.
func (h *hold) look() bool {
	now := conn.Now()
	until := now
	if h.alive != nil && h.alive.Err() != nil {
		return false
	}
	if h.mutex != nil {
		left := h.mutex.Remaining()
		if left == 0 {
			return false
		}
		until += left
	}
	if until > h.until+time.Millisecond || h.mutex == nil {
		h.until = until
		h.add(record{T: now, Op: opLook, Hold: h.id, Until: until})
	}
	return true
}

// work uses the lock, while it is valid, for so long.
func (h *hold) work(long time.Duration) {
	for end := conn.Now() + long; h.look(); time.Sleep(h.upTo(3 * time.Millisecond)) {
		if h.percent(50) {
			h.increment()
		}
		if conn.Now() >= end {
			return
		}
	}
}

// increment increments the counter that the lock protects, looking at the lock before the
// write. It takes its time, before and after the look, to be frozen there.
func (h *hold) increment() {
	n, err := h.counter.read()
	if err != nil {
		panic(err)
	}
	time.Sleep(h.upTo(time.Millisecond))
	h.add(record{Op: opWrite, Hold: h.id, Version: n})
	wrote := record{Op: opWrote, Hold: h.id, Version: n, Outcome: gaveUp}
	if h.look() {
		time.Sleep(h.upTo(time.Millisecond))
		written, err := h.counter.increment(n)
		switch {
		case err != nil:
			panic(err)
		case written:
			wrote.Outcome = ok
		case h.fenced:
			wrote.Outcome = refused
		default:
			wrote.Outcome = overtaken
		}
		wrote.T = conn.Now()
		wrote.Valid = h.look()
	}
	h.add(wrote)
}

// keep uses the lock while KeepAlive renews it.
func (h *hold) keep(long time.Duration) {
	var stop func()
	h.alive, stop = h.mutex.KeepAlive(context.Background())
	h.work(long)
	if h.alive.Err() != nil {
		h.add(record{T: conn.Now(), Op: opLost, Hold: h.id, Outcome: name(h.alive, context.Cause(h.alive))})
	}
	stop()
	h.alive = nil
	h.look()
}

func (h *hold) extend() {
	ctx, cancel := context.WithTimeout(context.Background(), h.upTo(2*h.key.TTL))
	defer cancel()
	err := h.mutex.Extend(ctx)
	r := record{T: conn.Now(), Op: opExtend, Hold: h.id, Outcome: name(ctx, err)}
	if left := h.mutex.Remaining(); err == nil && left > 0 {
		r.Until = r.T + left
		h.until = r.Until
	}
	h.add(r)
}

func (h *hold) leave(ctx context.Context) {
	h.add(record{Op: opLeave, Hold: h.id})
	err := h.mutex.Unlock(ctx)
	h.add(record{Op: opUnlock, Hold: h.id, Outcome: name(ctx, err)})
}
