package redlock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redburst/redburst/redlock/internal/behind"
)

const (
	mostEvents  = 8192        // events that may wait for an Observer; a power of two
	keptEvents  = 256         // room that is kept for the next ones when there were more; likewise
	observerEnd = time.Second // how long Close waits for Observers

	// tellPause is how long an Observer that has nothing to do waits after an event, so that it is told what follows, too.
	// To start its goroutine for each costs the goroutine that locks up to a tenth of a round.
	tellPause = time.Millisecond
)

// events are those that the Observers of a client are still to be told. Whoever tells something never waits for an
// Observer: it writes into a ring, and has the Observer's goroutine run soon. Each Observer reads the ring by itself. The
// ring grows up to mostEvents. Then a new event takes the place of the oldest, and an Observer that has not read that is
// told how many it has missed.
//
// mu is a leaf: an event can be told under any other lock. An Observer is called without it.
type events struct {
	observers []*observing
	idle      sync.Cond // no Observer is called any more; with mu

	inTests Observer // is called by who tells, when something happens

	mu     sync.Mutex
	now    func() time.Duration
	ring   []Event // the event with number n is at n modulo its length, a power of two
	next   uint64  // number of the next event
	left   uint64  // how many were left out
	closed bool    // nothing is told any more
	over   bool    // ... nor what was told before that
}

// observing is an Observer, and what it is still to be told.
type observing struct {
	of      *events
	tell    Observer
	begins  *time.Timer   // starts its goroutine
	running bool          // that runs, or is to begin
	next    uint64        // number of the next event that it is told
	dropped uint64        // events before that which it was not told
	since   time.Duration // ... when the first of them happened
	last    times         // ... and the last of them
	event   Event         // what it is being told
	votes   []Vote        // the memory of the event, which the Observer may change
	token   []byte        // likewise
}

type times struct {
	wall time.Time
	boot time.Duration
}

func (q *events) init(all []Observer, now func() time.Duration) {
	q.now, q.idle.L = now, &q.mu
	for _, tell := range all {
		if tell != nil {
			o := &observing{of: q, tell: tell}
			o.begins = time.AfterFunc(time.Hour, o.tellAll)
			o.begins.Stop()
			q.observers = append(q.observers, o)
		}
	}
}

// setClock is for a client whose clock is not known when it is made.
func (q *events) setClock(now func() time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.now = now
}

// observed reports whether there is an Observer.
func (q *events) observed() bool { return len(q.observers) > 0 || q.inTests != nil }

// tell tells of an event that is no more than its kind and its key.
func (q *events) tell(ctx context.Context, kind EventKind, key string) bool {
	e := q.begin(ctx, kind, key)
	if e != nil {
		q.end(e)
	}
	return e != nil
}

// begin returns an event that is to be filled, and then ended: mu is held until then, so nothing is called in between. It
// returns nil if nobody is to be told.
func (q *events) begin(ctx context.Context, kind EventKind, key string) *Event {
	if !q.observed() {
		return nil
	}
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		return nil
	}
	e := q.room()
	*e = Event{Kind: kind, Key: key, ctx: ctx, Votes: e.Votes[:0], more: behind.Event{Token: e.more.Token[:0]}}
	return e
}

// end tells of the event that begin has returned.
func (q *events) end(e *Event) {
	if e.Time = time.Now(); e.more.Boot == 0 {
		e.more.Boot = q.now()
	}
	q.next++
	for _, o := range q.observers {
		if !o.running {
			o.running = true
			o.begins.Reset(tellPause)
		}
	}
	if q.inTests == nil {
		q.mu.Unlock()
		return
	}
	tests := *e
	tests.Votes = slices.Clone(e.Votes)
	q.mu.Unlock()
	q.inTests(tests.ctx, &tests)
}

// room returns the place of the next event.
func (q *events) room() *Event {
	oldest := q.oldest()
	if q.next-oldest == uint64(len(q.ring)) {
		if len(q.ring) == mostEvents {
			for _, o := range q.observers {
				o.skip(oldest)
			}
		} else {
			was := q.ring
			q.ring = make([]Event, max(2*len(was), 16))
			for n := oldest; n < q.next; n++ {
				*q.at(n) = was[n%uint64(len(was))]
			}
		}
	}
	return q.at(q.next)
}

func (q *events) at(n uint64) *Event { return &q.ring[n&uint64(len(q.ring)-1)] }

// oldest is the number of the first event that an Observer is still to be told.
func (q *events) oldest() uint64 {
	oldest := q.next
	for _, o := range q.observers {
		oldest = min(oldest, o.next)
	}
	return oldest
}

// skip leaves the event out, if that is the next one of the Observer.
func (o *observing) skip(oldest uint64) {
	if o.next != oldest {
		return
	}
	e := o.of.at(oldest)
	if o.dropped == 0 {
		o.since = e.more.Boot
	}
	o.next++
	o.dropped++
	o.of.left++
	o.last = times{e.Time, e.more.Boot}
}

// tellAll tells the Observer of all events that there are.
func (o *observing) tellAll() {
	q := o.of
	q.mu.Lock()
	for o.take() {
		q.mu.Unlock()
		o.tell(o.event.ctx, &o.event)
		q.mu.Lock()
	}
	o.running, o.event = false, Event{}
	clear(o.votes)
	if len(q.ring) > keptEvents && q.oldest() == q.next {
		q.ring = make([]Event, keptEvents)
	}
	q.idle.Broadcast()
	q.mu.Unlock()
}

// take copies the next event of the Observer. It returns false if there is none.
func (o *observing) take() bool {
	q := o.of
	switch {
	case q.over:
		return false
	case o.dropped > 0:
		o.event = Event{Kind: behind.Dropped, Time: o.last.wall, ctx: context.Background(),
			more: behind.Event{Boot: o.last.boot, Started: o.since, Dropped: o.dropped}}
		o.dropped = 0
		return true
	case o.next == q.next:
		return false
	}
	e := q.at(o.next)
	o.votes, o.token = append(o.votes[:0], e.Votes...), append(o.token[:0], e.more.Token...)
	o.event = *e
	o.event.Votes, o.event.more.Token = o.votes, o.token
	if e.Master != nil {
		own := *e.Master
		o.event.Master = &own
	}
	o.next++
	if q.oldest() == o.next { // the others have it, too
		e.forget()
	}
	return true
}

// stats returns how many events were left out, and how many an Observer is still to be told.
func (q *events) stats() (left uint64, waiting int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, o := range q.observers {
		if o.running && !q.over {
			waiting = max(waiting, int(q.next-o.next)+1)
		}
	}
	return q.left, waiting
}

// forget lets the garbage collector have what the event has pointed to.
func (e *Event) forget() {
	clear(e.Votes)
	*e = Event{Votes: e.Votes[:0], more: behind.Event{Token: e.more.Token[:0]}}
}

// close returns when the Observers were told all, or after observerEnd. No call of an Observer begins after it.
func (q *events) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for _, o := range q.observers {
		if o.begins.Stop() {
			go o.tellAll()
		}
	}
	late := time.AfterFunc(observerEnd, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.over = true
		q.idle.Broadcast()
	})
	defer late.Stop()
	for !q.over && slices.ContainsFunc(q.observers, func(o *observing) bool { return o.running }) {
		q.idle.Wait()
	}
	q.over, q.ring = true, nil
}
