package redlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redburst/redburst/mux"
)

const (
	pollMin = 2 * time.Millisecond
	pollMax = 200 * time.Millisecond

	minSettling      = 100 * time.Microsecond
	maxRaceDoublings = 3

	explainMin = 50 * time.Millisecond // least time for asking who holds a lock
)

// Lock takes the lock, and waits for it until ctx is done. Those of one client
// who wait for a key stand in a line: only the first contends with other
// processes, and when the lock is released in this client the first has it at
// once, in the order of arrival. See the package comment for how it waits.
//
// It goes on trying when too few masters answer, since they may be back before
// ctx is done; but not when so many refuse us (no permission, wrong password)
// that somebody has to change something first.
//
// The error is a *RoundError. It says why the lock was not to be had, as far as that is
// known (ErrHeld, ErrNoQuorum), and wraps the context's error. A waiter that ran out of
// time because the lock is held asks the masters by whom, for a short moment, and
// RoundError.HeldBy and HeldFor say it; one that was cancelled leaves at once.
func (m *Mutex) Lock(ctx context.Context) error {
	m.of()
	if m.invalid != nil {
		return m.invalid
	}
	c := m.client
	if err := ctx.Err(); err != nil {
		return unasked(opLock, m.key, nil, "").endedBy(ctx, err)
	}
	w, first := c.lines.join(m.key)
	wait := waiting{mutex: m, waiter: w}
	defer wait.cleanUp()
	// Whoever comes to a contended key looks first, so that those who were told
	// of its release are not always overtaken by whoever has released it.
	try := first && !(c.watches.contended(m.key, c.now()) && c.watches.tracked())
	wait.inTurn = first && !try
	e, err := wait.lock(ctx, try, first)
	wait.acquired = e == nil && err == nil
	held, failure := c.lines.leave(m.key, w, wait.acquired)
	wait.waiter = nil
	if err != nil {
		e = m.gaveUp(ctx, err, e, wait.cut, held, failure)
	}
	wait.finish(ctx, e)
	wait.acquired = false // the caller knows of it now
	if e != nil {
		return e
	}
	return nil
}

// waiting is one call of Lock.
type waiting struct {
	mutex  *Mutex
	waiter *waiter       // nil once it has left its line
	inTurn bool          // the next attempt is made in turn
	likely mux.Set       // ... where the key can be free; zero means anywhere
	told   bool          // ... since the masters have told of a change, or said that it is free
	polls  int           // in a row
	vain   int           // looks in a row that found the key free, though it was not to be had
	raced  bool          // ... as another was faster, the last time
	since  time.Duration // when it began to wait; 0 if it does not wait
	cut    *RoundError   // an attempt that the context's end left undecided

	acquired bool // the lock is taken, and the caller does not know of it yet
}

// cleanUp is for a Lock that is left by the panic of an Observer, or of a context: nothing
// of it stays behind, not in its line, not in the statistics, not on the masters.
func (w *waiting) cleanUp() {
	m := w.mutex
	if w.waiter != nil {
		m.client.lines.leave(m.key, w.waiter, false)
	}
	if w.since != 0 {
		m.client.stats.waiting.Add(-1)
	}
	if w.acquired {
		ended, end := context.WithCancel(context.Background())
		end() // the release is sent, and not waited for
		m.unlock(ended)
	}
}

// lock tries and waits in turns. It returns how the last attempt failed, if it
// did and was not the last word, and the error that ended the waiting: the
// context's or ErrClosed. Front says that nobody of its line stands before it.
func (w *waiting) lock(ctx context.Context, try, front bool) (*RoundError, error) {
	m := w.mutex
	var last *RoundError
	for {
		if try {
			e := m.acquire(ctx, w.inTurn, w.likely)
			if w.told {
				m.client.stats.told(e)
				w.told = false
			}
			if e == nil || e.final() {
				return e, nil
			}
			if e.ended != nil {
				w.cut = e
				return last, e.ended
			}
			last = e
			w.raced = e.reason == ErrHeld && len(e.Votes) > 0
			m.client.lines.noteFailure(m.key, e)
			if e.reason == ErrHeld {
				m.client.watches.noteRefused(m.key, m.client.now())
			}
		}
		if w.since == 0 {
			w.since = m.client.now()
			m.client.stats.waiting.Add(1)
			m.client.observe.waitStart(ctx, m.key)
		}
		if err := w.untilFree(ctx, front, front && (!try || w.inTurn)); err != nil {
			return last, err
		}
		try, front = true, true
	}
}

// untilFree waits until the lock may be free. Whoever is in front of its line
// watches the masters; the others have to be given their turn. One that was
// refused in turn lets the winner finish its round before it looks. So does one that
// comes to a contended key: it may be who has just released it, and those who were
// told of that come first.
func (w *waiting) untilFree(ctx context.Context, front, refused bool) error {
	m := w.mutex
	c := m.client
	timer, watch := w.waiter.timer, w.waiter.watch
	defer timer.Stop()
	watching := false
	defer func() {
		if watching {
			c.watches.remove(m.key, c.now())
		}
	}()
	var why Wake
	look := front && !refused
	if refused {
		timer.Reset(w.settling())
	}
	for {
		if look {
			look, refused = false, false
			watching = true
			c.watches.add(m.key, watch) // afresh: what was told before is in the answers
			var pause time.Duration
			var err error
			if pause, why, err = w.look(ctx); err != nil {
				return err
			}
			if pause == 0 {
				w.vain++
				break
			}
			w.vain = 0
			timer.Reset(pause)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.closed:
			return ErrClosed
		case <-timer.C:
			if refused || why == "" {
				look = true
				continue
			}
		case <-watch.told:
			if !watching { // a rest of an earlier wait, whose majority was told before the others
				continue
			}
			if _, majority := c.watches.free(watch); !majority {
				look = true // the last that is needed may be one that does not tell
				continue
			}
			why = WakeFree
		case s := <-w.waiter.signal:
			switch s {
			case turnHeld: // its holder will tell; the masters, what it cannot tell
				// Most locks are short: the look, which waits for every
				// master, would often be in the way of its release.
				refused, w.polls = true, pollLast
				timer.Reset(w.settling())
				continue
			case yield: // whoever else was told comes first
				why, refused, w.polls = WakeTurn, false, 0
				timer.Reset(w.pause())
				continue
			case turn:
				why = WakeTurn
			case released:
				why = WakeReleased
			}
		}
		break
	}
	if why != WakePoll {
		w.polls = 0
	}
	// After a release in this client the attempt follows it at once on every
	// connection: nobody elsewhere can have been told before it arrives. Whoever
	// polls was not told either, and knows nothing of the master that would be
	// asked first: it may hold another's key for ever, or be slow.
	w.inTurn, w.likely = why != WakeReleased && why != WakePoll, 0
	if w.told = why == WakeFree; w.told {
		w.likely, _ = c.watches.free(watch)
	}
	c.stats.wake(why)
	c.observe.wake(ctx, m.key, why)
	return nil
}

// look looks at the key, and returns how long to wait unless something is told,
// and what it means that this has passed: nothing, but that it is time to look again.
func (w *waiting) look(ctx context.Context) (pause time.Duration, why Wake, err error) {
	c := w.mutex.client
	if !c.watches.tracked() {
		return w.pause(), WakePoll, nil
	}
	c.watches.listen()
	p, err := c.watches.look(ctx, &w.mutex.spec, w.waiter.watch)
	switch {
	case errors.Is(err, mux.ErrClosed):
		return 0, "", ErrClosed
	case err != nil:
		return 0, "", err
	}
	if p.held { // whoever leaves the line from now on knows why
		c.lines.noteHeld(w.mutex.key)
	}
	switch {
	case p.free:
		return 0, WakeFree, nil
	case !p.told:
		return w.pause(), WakePoll, nil
	case p.at-c.now() > lookAgain: // a master that hangs tells nothing, and nobody knows
		return lookAgain + rand.N(lookAgain), "", nil
	}
	// Those who wait for the same TTL need not all try in the same moment.
	return max(p.at-c.now(), 0) + 1 + rand.N(expirySlack), WakeExpiry, nil
}

// settling is about the time that a winner needs to set its other keys. It doubles
// where the key is free each time and cannot be had: that is no winner (masters
// that refuse to write, a Mutex that holds it by its clock). A race that another has
// won says nothing of that: whoever loses one after the other on a hot key must not
// stand aside for longer than others pause for it (waiting.pause).
func (w *waiting) settling() time.Duration {
	doublings := min(max(w.vain-1, 0), 16)
	if w.raced {
		doublings = min(doublings, maxRaceDoublings)
	}
	d := max(w.mutex.client.rounds.RTT(), minSettling)
	d = max(d, min(d<<doublings, pollMax))
	return d + rand.N(d)
}

// pollLast is a number of polls after which the pause is the longest.
const pollLast = 8

// pause is how long to wait before the next poll: at least about the time of a
// round, and on top of it a random part of twice that time, doubled with each
// poll. So those who have split a vote do not meet again for long.
func (w *waiting) pause() time.Duration {
	base := max(pollMin, 2*w.mutex.client.rounds.RTT())
	most := max(base, min(base<<w.polls, pollMax))
	w.polls = min(w.polls+1, pollLast)
	return base/2 + rand.N(most)
}

// finish notes that Lock returns.
func (w *waiting) finish(ctx context.Context, e *RoundError) {
	since := w.since
	if since == 0 {
		return
	}
	c := w.mutex.client
	c.stats.waiting.Add(-1)
	w.since = 0
	var err error
	if e != nil {
		err = e
	}
	c.observe.waitEnd(ctx, w.mutex.key, c.now()-since, err)
}

// gaveUp makes the error of a Lock that err has ended: last is how its own last
// attempt failed, held and failure are what its line knew, and cut is an attempt
// that was still undecided.
func (m *Mutex) gaveUp(ctx context.Context, err error, last, cut *RoundError, held bool, failure *RoundError) *RoundError {
	if err == ErrClosed {
		return unasked(opLock, m.key, ErrClosed, "")
	}
	e := unasked(opLock, m.key, nil, "")
	switch {
	case last != nil:
		*e = *last
		e.Votes = slices.Clone(last.Votes) // which others of its line are told, too
	case held:
		e.reason, e.note = ErrHeld, "within this process"
	case failure != nil:
		*e = *failure
		e.note, e.Votes = "", slices.Clone(failure.Votes)
	case cut != nil:
		*e = *cut
	}
	e.endedBy(ctx, err)
	if e.reason == ErrHeld && errors.Is(err, context.DeadlineExceeded) {
		ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.explainTime())
		defer cancel()
		all, _ := m.client.Holders(ask, m.key) // those that answer are enough
		h := leading(all)
		e.held, e.HeldBy, e.HeldFor = h.String(), h.owner, h.left
	}
	return e
}

func (m *Mutex) explainTime() time.Duration {
	return min(m.timeout, max(explainMin, 4*m.client.rounds.RTT()))
}
