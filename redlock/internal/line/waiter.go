package line

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/internal/tracking"
)

// A Waiter is one goroutine in Lock, with its places in the queues. It listens to a lock, or to the notice of its
// predecessor in a global queue.
type Waiter struct {
	listener
	core *Core

	entries   []localEntry // in the queue of each of its keys, in their order
	blockers  atomic.Int32 // the number of queues in which others are ahead of it
	spec      *round.Spec  // of the lock; nil if that was not said
	reader    bool         // it may have the lock beside other readers
	signalled bool         // of a reader: it was notified since it was last refused. Guarded as its entries are
	signal    chan Signal  // capacity 1: the latest signal that was not taken yet
	timer     *time.Timer  // wakes it
	freedSlot atomic.Int32 // the slot that this client has released last; 0 if none was
	ticket    ticket       // in the global queues

	given  atomic.Pointer[Given] // that it was given, and has not taken over; set under its shard's mu
	askMu  sync.Mutex            // under it only the lock of the mux is taken
	asking *mux.Op               // that it waits for, unless it is given a lock; nil if it waits for none
}

type listener = tracking.Listener

// A Given is a lock that can be given to a waiter.
type Given struct {
	Counting atomic.Bool // it is given, and is not to be taken over yet: its number is still asked for
	Of       interface { // whose it is; set once
		GiveBack(s *round.Spec) // releases it. The queues are locked
	}
}

// A Signal is what a local queue notifies a waiter of. A writer gets no signal before it is the head of all its
// queues.
type Signal uint8

const (
	Turn     Signal = iota // it is the head: try
	TurnHeld               // it is the head, but its predecessor has just taken the lock
	Released               // the lock was released: try
	Yield                  // the lock was released: let other processes try first
)

// NewWaiter returns one that stands in no queue.
func NewWaiter(c *Core) *Waiter {
	w := &Waiter{core: c, signal: make(chan Signal, 1)}
	w.Init(c.Tracking)
	w.timer = time.AfterFunc(time.Hour, w.Wake)
	w.timer.Stop()
	return w
}

// notify gives a waiter a signal, in place of one that it has not taken yet. Other queues may notify the same
// waiter at the same time.
func (w *Waiter) notify(s Signal) {
	defer w.Wake()
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

// Signal takes the latest signal, if there is one that was not taken yet.
func (w *Waiter) Signal() (s Signal, is bool) {
	select {
	case s = <-w.signal:
		return s, true
	default:
		return 0, false
	}
}

// WakeIn wakes the waiter after that time, and not when it was to be woken before.
func (w *Waiter) WakeIn(d time.Duration) { w.timer.Reset(d) }

// TakeFreedSlot returns the slot that this client has released last, from 1 on; 0 if none was since it was last asked.
func (w *Waiter) TakeFreedSlot() int { return int(w.freedSlot.Swap(0)) }

// Given returns the lock that the waiter was given, and has not taken over; nil if there is none.
func (w *Waiter) Given() *Given { return w.given.Load() }

// TakeGiven is Given, but from then on the lock is the caller's.
func (w *Waiter) TakeGiven() *Given { return w.given.Swap(nil) }

// hurry wakes a waiter that was given a lock. If it waits for answers of the masters, it needs them no more.
func (w *Waiter) hurry() {
	defer w.Wake()
	w.askMu.Lock()
	defer w.askMu.Unlock()
	if w.asking != nil {
		w.core.Round.Mux.Forget(w.asking)
	}
}

// Ask is round.Core.DoUndoable, but returns mux.ErrForgotten if the waiter is given a lock.
func (w *Waiter) Ask(ctx context.Context, k *round.Call) error {
	k.Op.Votes = k.Op.Votes[:0]
	if err := ctx.Err(); err != nil {
		return err
	}
	k.BeginUndoable()
	defer k.EndUndoable()
	if !w.post(k) {
		return mux.ErrForgotten
	}
	defer w.asked()
	return w.core.Round.Mux.Wait(ctx, &k.Op)
}

// post posts a question, unless the waiter was given a lock. Who gives it one later finds the question posted.
func (w *Waiter) post(k *round.Call) bool {
	w.askMu.Lock()
	defer w.askMu.Unlock()
	if in := w.given.Load(); in != nil && !in.Counting.Load() {
		return false
	}
	k.Op.Awaited = true
	w.core.Round.Post(k)
	w.asking = &k.Op
	return true
}

func (w *Waiter) asked() {
	w.askMu.Lock()
	w.asking = nil
	w.askMu.Unlock()
}

// AtHead reports whether the waiter is the head of all its global queues.
func (w *Waiter) AtHead() bool { return w.ticket.atHead }

// Doubt has the waiter enter the global queues again before it contends: it may have lost its entry.
func (w *Waiter) Doubt() { w.ticket.atHead = false }

// Moved reports whether the waiter was the head, and a queue has another master since. Then the waiter is in Doubt.
func (w *Waiter) Moved() bool {
	if !w.ticket.moved.Swap(false) || !w.ticket.atHead {
		return false
	}
	w.ticket.atHead = false
	return true
}

// EntersAt returns when it may enter the global queues again, or could last.
func (w *Waiter) EntersAt() time.Duration { return w.ticket.enterAfter }

// MayEnter reports whether the waiter may enter the global queues again: it does without them for a while if a queue master
// has not served it.
func (w *Waiter) MayEnter(now time.Duration) bool { return now >= w.ticket.enterAfter }

// AwaitsPredecessor reports whether what the waiter listens to is the notice of its predecessor in a global queue.
func (w *Waiter) AwaitsPredecessor() bool { return w.ListensTo(w.ticket.awaited) }

// Restraint is the waiter's, on notices that the lock may be free, or that its predecessor has left.
func (w *Waiter) Restraint() *tracking.Restraint { return &w.ticket.restraint }
