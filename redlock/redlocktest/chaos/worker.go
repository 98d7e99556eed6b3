//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock"
)

// A worker is one goroutine of a client that takes locks in turns.
type worker struct {
	*client
	rng      *rand.Rand
	mutexes  map[mutexKind]*redlock.Mutex // reused
	stranger *stranger

	unguarded []lockable // those that need no RestartGuard
}

type mutexKind struct {
	lock   string
	fenced bool
}

// A mutex is a [redlock.Mutex], or that of a stranger.
type mutex interface {
	TryLock(context.Context) error
	Lock(context.Context) error
	Extend(context.Context) error
	Unlock(context.Context) error
	Remaining() time.Duration
}

func newWorker(c *client, i int) *worker {
	return &worker{
		client: c, rng: rand.New(rand.NewPCG(c.Seed, uint64(i))), mutexes: make(map[mutexKind]*redlock.Mutex),
		unguarded: unguarded(c.Locks), stranger: newStranger(c.masters(), c.Runs, c.RestartGuard, c.Password),
	}
}

func (w *worker) run() {
	defer w.stranger.close()
	for !w.isFinishing() {
		w.turn()
		time.Sleep(w.upTo(2 * time.Millisecond))
	}
}

// percent is true in so many of a hundred cases.
func (w *worker) percent(n int) bool { return w.rng.IntN(100) < n }

func (w *worker) upTo(most time.Duration) time.Duration { return rand64(w.rng, most) }

// long is about as long as a lock lives that is not renewed.
func (w *worker) long(l lockable) time.Duration { return w.upTo(l.TTL + l.TTL/2) }

// short is how long most locks are held. Those that others can hold meanwhile are held for longer,
// or these would hardly ever come.
func (w *worker) short(l lockable) time.Duration {
	if l.isWriter() {
		return w.upTo(3 * time.Millisecond)
	}
	return w.upTo(50 * time.Millisecond)
}

// turn tries to take a lock in one of the ways there are, and uses it.
func (w *worker) turn() {
	l := w.choose()
	ctx, cancel := context.WithTimeout(context.Background(), w.upTo(2*time.Second))
	defer cancel()
	switch {
	case w.percent(15):
		defer time.AfterFunc(w.upTo(5*time.Millisecond), cancel).Stop()
	case w.percent(3):
		cancel()
	}
	if w.leads(l) {
		w.lead(ctx, l)
		return
	}
	if w.percent(3) {
		w.revoke(ctx, l)
		return
	}
	fenced := w.percent(50) && l.mayFence() && !w.Unguarded
	if w.percent(10) && l.Kind != foreign {
		w.do(ctx, l, fenced)
		return
	}
	how := opLock
	if w.percent(40) && !l.Passed || l.Left && w.percent(50) { // who waits comes when the lock is to be had, and not before
		how = opTry
	}
	h := w.acquire(ctx, l, fenced, how)
	if h == nil || w.handsOver(l) && !h.handOver() {
		return
	}
	switch {
	case l.Left && w.percent(90):
		return
	case l.Extended && w.percent(70):
		for range 1 + w.rng.IntN(8) {
			time.Sleep(w.upTo(l.TTL + l.TTL/5))
			h.extend()
		}
	case w.percent(6) && l.Kind != foreign:
		h.keep(w.long(l))
	case w.percent(10):
		for range 1 + w.rng.IntN(3) {
			h.work(w.long(l) / 2)
			if w.percent(25) { // it may be over
				time.Sleep(w.long(l))
			}
			h.extend()
		}
	case w.percent(1), !l.isWriter() && w.percent(7): // others can go on meanwhile
		h.work(w.long(l)) // it ends with the validity, unless it does before
	default:
		h.work(w.short(l))
	}
	if w.percent(1) || !l.isWriter() && w.percent(4) {
		return // the lock is left to its TTL
	}
	release, abandon := context.WithTimeout(context.Background(), w.upTo(2*time.Second))
	defer abandon()
	if w.percent(10) {
		abandon()
	}
	if m, is := h.mutex.(*redlock.Mutex); is && w.percent(10) {
		h.leaveAmid(release, m)
		return
	}
	h.leave(release)
}

// choose prefers the first lock: of one that is taken by one client right after the other, each fence counts. It
// also prefers those that are passed on, so that several workers of a client wait for them.
func (w *worker) choose() lockable {
	if w.percent(20) {
		return w.Locks[0]
	}
	if w.Unguarded {
		return w.unguarded[w.rng.IntN(len(w.unguarded))]
	}
	if passed := w.passed(); len(passed) > 0 && w.percent(25) {
		return passed[w.rng.IntN(len(passed))]
	}
	for {
		if l := w.Locks[w.rng.IntN(len(w.Locks))]; l.Side == everybody || l.Side == sideOf(w.Place) {
			return l
		}
	}
}

// passed returns the locks that are passed on.
func (c *client) passed() (all []lockable) {
	for _, l := range c.Locks {
		if l.Passed {
			all = append(all, l)
		}
	}
	return all
}

// mutex returns the worker's mutex of a lock, now and then a fresh one.
func (w *worker) mutex(l lockable, fenced bool) mutex {
	if l.Kind == foreign {
		w.stranger.follow(w.masters())
		return w.stranger.newMutex(l)
	}
	kind := mutexKind{l.String(), fenced}
	if w.mutexes[kind] == nil || w.percent(5) {
		w.mutexes[kind] = w.newMutex(l, fenced)
	}
	return w.mutexes[kind]
}

// acquire returns nil if the lock was not to be had.
func (w *worker) acquire(ctx context.Context, l lockable, fenced bool, how op) *hold {
	m := w.mutex(l, fenced)
	attempt := m.TryLock
	if how == opLock {
		attempt = m.Lock
	}
	began := clock.Now()
	err := attempt(ctx)
	now := clock.Now()
	if err != nil {
		w.add(record{T: now, Began: began, Op: how, Lock: l.String(), Outcome: name(ctx, err)})
		return nil
	}
	h := &hold{lock: l, mutex: m, until: now + m.Remaining(), fenced: fenced}
	if own, is := m.(*redlock.Mutex); is {
		if !l.Passed {
			h.token = own.Token()
		}
		if fenced || l.Second {
			h.fence = own.Fence()
		}
	}
	return w.begin(h, began, now, how)
}

// do takes the lock by Do, under a context that may end while it is held.
func (w *worker) do(ctx context.Context, l lockable, fenced bool) {
	asked, began, untold := clock.Now(), 0, false
	options, _ := w.options(l, fenced)
	err := w.lock.Do(ctx, l.Keys[0], l.TTL, func(held context.Context) error {
		now := clock.Now()
		h := w.begin(&hold{lock: l, alive: held, until: now, fenced: fenced, fence: redlock.FenceFrom(held)}, asked, now, opDo)
		began = h.id
		if w.percent(30) {
			h.work(w.long(l))
		} else {
			h.work(w.short(l))
		}
		w.add(record{Op: opLeave, Hold: h.id})
		if w.percent(50) {
			return context.Cause(held)
		}
		untold = errors.Is(context.Cause(held), redlock.ErrLost)
		return nil
	}, options...)
	if began > 0 {
		r := record{Op: opDone, Lock: l.String(), Hold: began, Outcome: name(ctx, err)}
		if untold && !errors.Is(err, redlock.ErrLost) {
			r.Outcome = lossUntold
		}
		w.add(r)
		return
	}
	w.add(record{Op: opDo, Began: asked, Lock: l.String(), Outcome: name(ctx, err)})
}

// A hold is a lock that was taken, and what its holder does with it.
type hold struct {
	*worker
	id     int
	lock   lockable
	mutex  mutex           // nil within Do
	alive  context.Context // of KeepAlive or Do; nil otherwise
	until  time.Duration   // as it was last recorded
	fenced bool
	fence  uint64 // 0 if it is not fenced
	token  string // empty within Do, and of another library's lock
	second uint64 // the number of its second lock; 0 if it has none
}

// begin begins a hold of a lock that was asked for at began, and taken before now.
func (w *worker) begin(h *hold, began, now time.Duration, how op) *hold {
	if h.lock.Second { // it is no fence of the masters'
		h.second, h.fence = h.fence, 0
	}
	if h.fenced != (h.fence != 0) || h.lock.Second != (h.second != 0) {
		panic(fmt.Sprintf("fence %d of a lock that is fenced: %t", h.fence, h.fenced))
	}
	h.worker, h.id = w, int(w.holds.Add(1))
	w.add(record{T: now, Began: began, Op: how, Lock: h.lock.String(), Hold: h.id, Until: h.until, Fence: h.fence, Token: h.token, Second: h.second, Outcome: ok})
	return h
}

// look reports whether the lock is valid, and records until when it is known to
// be: the clock is read before the lock is asked. The end of the validity is the
// same at every look, but for the time between these two, until it is renewed.
func (h *hold) look() bool {
	gone := h.secondIsGone()
	now := clock.Now()
	until := now
	if h.alive != nil && h.alive.Err() != nil {
		return false
	}
	if h.mutex != nil {
		left := h.mutex.Remaining()
		if left == 0 {
			if h.alive != nil && !h.endsBefore(h.until) {
				h.add(record{Op: opLost, Hold: h.id, Outcome: outlived})
			}
			return false
		}
		until += left
	}
	h.foundValid(gone)
	if until > h.until+time.Millisecond || h.mutex == nil {
		h.until = until
		h.add(record{T: now, Op: opLook, Hold: h.id, Until: until})
	}
	return true
}

// endsBefore reports whether the context has ended, or does before that time: that of a lock which is lost while it was
// valid ends a moment after the Mutex says so.
func (h *hold) endsBefore(until time.Duration) bool {
	select {
	case <-h.alive.Done():
		return true
	case <-time.After(until - clock.Now()):
		return h.alive.Err() != nil
	}
}

// work uses the lock, while it is valid, for so long.
func (h *hold) work(long time.Duration) {
	for end := clock.Now() + long; h.look(); time.Sleep(h.upTo(3 * time.Millisecond)) {
		if h.percent(50) && h.lock.isWriter() {
			h.increment()
		}
		if clock.Now() >= end {
			return
		}
	}
}

// counter returns the counter of one of the lock's keys.
func (h *hold) counter(key string) counter {
	if h.fenced {
		return fencedCounter{h.resource, step{Client: h.Name, Hold: h.id, Key: key, Fence: h.fence}}
	}
	return h.counters[key]
}

// increment increments a counter that the lock protects, looking at the lock before the
// write. It takes its time, before and after the look, to be frozen there.
func (h *hold) increment() {
	key := h.lock.Keys[h.rng.IntN(len(h.lock.Keys))]
	counter := h.counter(key)
	n, err := counter.read()
	if err != nil {
		panic(err)
	}
	time.Sleep(h.upTo(time.Millisecond))
	h.add(record{Op: opWrite, Key: key, Hold: h.id, Version: n})
	wrote := record{Op: opWrote, Key: key, Hold: h.id, Version: n, Outcome: gaveUp}
	if h.look() {
		time.Sleep(h.upTo(time.Millisecond))
		written, err := counter.increment(n)
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
		wrote.T = clock.Now()
		wrote.Valid = h.look()
	}
	h.add(wrote)
}

// keep uses the lock while KeepAlive renews it. It looks at the context, and at the Mutex perhaps.
func (h *hold) keep(long time.Duration) {
	m := h.mutex
	var stop func()
	h.alive, stop = m.(*redlock.Mutex).KeepAlive(context.Background())
	if h.percent(50) {
		h.mutex = nil
	}
	h.work(long)
	h.mutex = m
	if h.alive.Err() != nil {
		h.add(record{T: clock.Now(), Op: opLost, Hold: h.id, Outcome: name(h.alive, context.Cause(h.alive))})
	}
	stop()
	h.alive = nil
	h.look()
}

func (h *hold) extend() {
	ctx, cancel := context.WithTimeout(context.Background(), h.upTo(2*h.lock.TTL))
	defer cancel()
	isRevived := func() bool { return false }
	if h.lock.Kind != foreign { // which one goroutine uses at a time
		isRevived = h.watch()
	}
	err := h.mutex.Extend(ctx)
	r := record{T: clock.Now(), Op: opExtend, Hold: h.id, Outcome: name(ctx, err)}
	if isRevived() {
		r.Outcome = revived
	}
	if left := h.mutex.Remaining(); err == nil && left > 0 {
		r.Until = r.T + left
		h.until = r.Until
	}
	h.add(r)
}

// watch looks at the lock until it is asked whether the lock was valid again after its validity had ended.
func (h *hold) watch() (isRevived func() bool) {
	over := h.mutex.Remaining() == 0
	stop, revived := make(chan struct{}), make(chan bool)
	go func() {
		for stopped, again := false, false; ; {
			switch left := h.mutex.Remaining(); {
			case left == 0:
				over = true
			case over:
				again = true
			}
			if stopped {
				revived <- again
				return
			}
			select {
			case <-stop:
				stopped = true
			case <-time.After(time.Millisecond / 2):
			}
		}
	}()
	return func() bool {
		close(stop)
		return <-revived
	}
}

func (h *hold) leave(ctx context.Context) {
	h.add(record{Op: opLeave, Hold: h.id})
	h.unlock(ctx)
}

// unlock unlocks a lock that its holder has left.
func (h *hold) unlock(ctx context.Context) {
	err := h.mutex.Unlock(ctx)
	h.add(record{Op: opUnlock, Hold: h.id, Outcome: name(ctx, err)})
}

// leaveAmid unlocks while a KeepAlive and an Extend are under way, mostly when the lock is about to be renewed,
// which is when a third of the TTL has passed. Nothing may make the lock valid again, and the context of the
// KeepAlive must have ended when Unlock returns.
func (h *hold) leaveAmid(ctx context.Context, m *redlock.Mutex) {
	alive, stop := m.KeepAlive(context.Background())
	defer stop()
	extended := make(chan struct{})
	go func() {
		defer close(extended)
		m.Extend(ctx)
	}()
	if h.percent(70) {
		drift := h.lock.TTL/100 + 2*time.Millisecond
		time.Sleep(m.Remaining() - h.lock.TTL*2/3 + drift - time.Millisecond/2)
	}
	time.Sleep(h.upTo(time.Millisecond))
	h.add(record{Op: opLeave, Hold: h.id})
	err := m.Unlock(ctx)
	r := record{T: clock.Now(), Op: opUnlock, Hold: h.id, Outcome: name(ctx, err)}
	if alive.Err() == nil {
		r.Outcome = keptAlive
	}
	<-extended
	if m.Remaining() > 0 {
		r.Outcome = stillValid
	}
	h.add(r)
}
