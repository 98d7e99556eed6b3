package redlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/held"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/line"
	"github.com/redburst/redburst/redlock/internal/round"
)

const (
	pollMin = 2 * time.Millisecond
	pollMax = 200 * time.Millisecond

	minSettle        = 100 * time.Microsecond
	maxRaceDoublings = 3
	lookInterval     = 10 * time.Second      // how long a waiter relies on notices, or on a queue that stands still: to twice this
	sameEnd          = 20 * time.Millisecond // two looks see the same end of a lock within that: masters may be busy
)

// A wait is one call of Lock. It is pooled, and not on the stack: it would make the stack of a goroutine that waits
// twice as large.
type wait struct {
	mutex         *Mutex
	waiter        *line.Waiter  // nil once it has left its local queue
	settleFirst   bool          // in its next interval it settles before it looks
	next          attempt       // the next attempt, or the last one
	polls         int           // in a row
	vainLooks     int           // looks in a row that found the key free, though the attempts that followed have failed
	lostRace      bool          // masters have refused the last attempt: another was faster
	began         time.Duration // when it began to wait; 0 if it does not wait
	since         time.Duration // ... in the queues, since others have last agreed on the number of permits
	intentAskedAt time.Duration // when it last asked for readers, to leave its intent; 0 for never, clock.Forever if it must not
	nextFreeCheck time.Duration // when freeDespiteQueue looks again; 0 before its first call
	intent        []byte        // the token of the intent that it has left on the masters; empty without
	undecided     *RoundError   // of an attempt that was undecided when the context ended

	contended bool // others want the lock, or have it
	refused   bool // it was refused since it came; of a reader, also if a look found the lock held
	acquired  bool // the lock is taken, and the caller does not know that yet

	ends     time.Duration // when the lock was to be free, as the look showed that began a row of vain notices
	interval interval      // the one that is under way
	dueAt    time.Duration // when it looks or tries even if nothing notifies it; 0 for never
	renewAt  time.Duration // when it renews its intent or its entries; 0 if it has none
	heedAt   time.Duration // when it acts on a notice of the masters; 0 if there was none
}

// end ends the call with the results of lock, and returns the result of Lock. Then finish tells it.
func (w *wait) end(ctx context.Context, e *RoundError, err error) *RoundError {
	m, c := w.mutex, w.mutex.client
	w.acquired = e == nil && err == nil
	var place *round.Call
	ahead := 0
	if errors.Is(err, context.DeadlineExceeded) {
		place = c.globalQueues.AskPlace(w.waiter, c.round.ShortTimeout(m.spec().Timeout, explainMin))
		ahead = c.localQueues.Ahead(w.waiter, m.spec().Names()...)
	}
	held, why := w.leave(w.acquired)
	if err != nil {
		failure, _ := why.(*RoundError)
		e = m.waitError(ctx, err, e, w.undecided, held, failure)
		e.ahead = ahead
		e.place, e.inLine = c.globalQueues.ReadPlace(place)
	}
	return e
}

// leave takes it out of all queues, with or without the lock. It returns what the local queues know of why the lock could not be
// taken: see line.LocalQueues.Leave.
func (w *wait) leave(acquired bool) (held bool, why error) {
	c, names := w.mutex.client, w.mutex.spec().Names()
	w.withdraw()
	w.leaveGlobalQueue()
	if w.contended {
		c.looks.NoteRefused(c.now(), names...)
	}
	declined, held, why := c.localQueues.Leave(w.waiter, acquired, names...)
	w.waiter = nil
	if declined {
		c.localQueues.Released(0, names...)
	}
	return held, why
}

// reset makes it ready for another call. The intent keeps its memory.
func (w *wait) reset() { *w = wait{intent: w.intent[:0]} }

// again makes it ready to try again in the same call.
func (w *wait) again() {
	m, began, failures := w.mutex, w.began, w.next.failures
	w.reset()
	w.mutex, w.began, w.next.failures = m, began, failures
}

// cleanUp runs after each Lock. If a context has panicked, it removes what the call has left in
// the queues, in the statistics and on the masters.
func (w *wait) cleanUp() {
	m := w.mutex
	defer func() {
		w.reset()
		m.client.waits.Put(w)
	}()
	if w.waiter != nil {
		w.leave(false)
	}
	if w.began != 0 {
		m.client.stats.waiting.Add(-1)
	}
	if w.acquired {
		m.unlock(held.EndedContext, false) // the release is sent, and not waited for
	}
}

// lock tries and waits, again and again. It returns the error of the last attempt, and the error that has ended the
// waiting: the context's or ErrClosed. If an attempt ends the call, the second error is nil. try says that it begins
// with an attempt, and head that the waiter is the head of its local queues. It waits until waiting ends, and attempts
// are made with ctx.
func (w *wait) lock(ctx, waiting context.Context, try, head bool) (*RoundError, error) {
	m := w.mutex
	var last *RoundError
	for {
		if try {
			a := &w.next
			if w.since != 0 {
				a.waited = m.client.now() - w.since
			}
			// A newcomer that finds its slot taken enters the queue before it looks for another slot, as waiters
			// come first.
			a.oneSlot = w.since == 0 && m.spec().Slotted != nil && w.usesGlobalQueue()
			e := a.run(ctx, waiting)
			if a.secondFailed && (last == nil || last.reason != ErrSecond) { // otherwise last says more
				last = e
			}
			if m.turn != nil {
				m.turn.failure.Store(e)
			}
			if e == nil || e.final() || m.standsAside(e) {
				return e, nil
			}
			if e.ended != nil {
				w.undecided = e
				return last, e.ended
			}
			last = e
			head = !m.spec().Reader || m.client.localQueues.NoteReaderRefused(w.waiter, m.spec().Names()...)
			w.lostRace = e.reason == ErrHeld && len(e.Votes) > 0
			w.refused = w.refused || w.lostRace
			if e.reason == ErrNoQuorum || w.next.secondFailed {
				w.leaveGlobalQueue()
			}
			m.client.localQueues.NoteFailure(e, e.reason == ErrHeld, m.spec().Names()...)
			if e.reason == ErrHeld && (m.spec().Slotted == nil || w.since != 0) { // otherwise other slots may be free
				m.client.looks.NoteRefused(m.client.now(), m.spec().Names()...)
			}
		}
		if w.since == 0 {
			w.since = m.client.now()
			w.begins(ctx)
		}
		if err := w.untilFree(waiting, head, head && w.settleFirst); err != nil {
			return last, err
		}
		switch taken, err := w.takeOver(waiting); {
		case err != nil:
			return last, err
		case taken:
			return nil, nil
		}
		try = true
	}
}

// standsAside reports whether a Lock that has failed so is to wait outside the queues, as it need not be waited for there: others
// have another number of permits; or the Mutex itself has a lock that others can have, too.
func (m *Mutex) standsAside(e *RoundError) bool {
	return m.spec().Slotted != nil && e.differs() || e.detail == heldByItself && m.turn != nil
}

// An interval is the time between two attempts, in which the wait sleeps until the lock may be free.
type interval struct {
	settling bool   // it lets a winner finish before it looks
	why      string // why the wait tries when the timer fires; empty if it looks then
}

// A step is what a wait does next in an interval.
type step uint8

const (
	sleepOn step = iota
	lookNow      // at the key, on the masters
	tryNow       // the lock may be free
)

// untilFree waits until the lock may be free. head says that the waiter is the head of its local queues. Then it
// subscribes to the masters. Otherwise the local queues give it its turn. refused says that it was refused, or has
// come to a contended key without a global queue. Then it looks a moment later, so that the winner can finish
// its round, and waiters that were notified of a release come first.
func (w *wait) untilFree(ctx context.Context, head, refused bool) error {
	w.interval = interval{}
	defer w.endInterval()
	for next := w.begin(head, refused); ; {
		if w.mutex.client.isShut() {
			return ErrClosed
		}
		if in := w.waiter.Given(); in != nil && in.Counting.Load() {
			next = sleepOn
		} else if in != nil {
			w.interval.why, next = wakeReleased, tryNow
		}
		switch next {
		case lookNow:
			var err error
			if next, err = w.look(ctx); err == mux.ErrForgotten {
				next = lookNow // unless it still has the lock that it was given
			} else if err != nil {
				return err
			}
			continue
		case tryNow:
			w.prepareAttempt(ctx)
			return nil
		}
		var err error
		if next, err = w.sleep(ctx); err == mux.ErrForgotten {
			next = lookNow
		} else if err != nil {
			return err
		}
	}
}

// takeOver takes over the lock that the waiter was given, if any. It reports whether it has. The error is the
// context's, or ErrClosed.
func (w *wait) takeOver(ctx context.Context) (taken bool, err error) {
	if in := w.waiter.Given(); in == nil || in.Counting.Load() {
		return false, nil
	}
	m, c := w.mutex, w.mutex.client
	if c.isShut() {
		return false, ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	c.held.ClearExpired(&m.hold) // which calls contexts: before the lock is taken out
	if !c.enter() {              // the lock is released when the waiter leaves
		return false, ErrClosed
	}
	defer c.attempts.RUnlock()
	given := w.waiter.TakeGiven()
	if given == nil { // Close has taken it back
		return false, nil
	}
	switches, token, taken := c.held.TakeOver(ctx, &m.hold, given, c.groups)
	if !taken {
		return false, nil
	}
	w.acquired = true // from here on a panic unlocks it
	defer m.hold.Unpin()
	if !c.held.Survives(ctx, &m.hold, token, switches) {
		w.acquired = false
		m.giveBack(token)
		return false, nil
	}
	c.stats.acquired.Add(1)
	return true, nil
}

// sleep serves one event, and returns the next step. If there is none, it sleeps until something comes.
func (w *wait) sleep(ctx context.Context) (step, error) {
	q := w.waiter
	if s, is := q.Signal(); is {
		return w.localQueueNotified(s), nil
	}
	now, subscribed := w.mutex.client.now(), q.Listens()
	if subscribed && w.heedAt == 0 && q.TakeNotified() {
		w.heedAt = q.Restraint().Due(now)
	}
	switch {
	case w.heedAt != 0 && now >= w.heedAt:
		w.heedAt = 0
		return w.mastersNotified(), nil
	case q.Moved():
		return lookNow, nil
	case w.dueAt != 0 && now >= w.dueAt:
		w.dueAt = 0
		return w.timerFired(), nil
	case w.renewAt != 0 && now >= w.renewAt:
		w.renewAt = 0
		return w.renew(ctx)
	default:
		w.armTimer(now)
	}
	if subscribed {
		return sleepOn, ended(q.Sleep(ctx))
	}
	return sleepOn, w.sleepUnsubscribed(ctx)
}

// sleepUnsubscribed sleeps outside the mux, as the waiter does not need the masters' pushes.
func (w *wait) sleepUnsubscribed(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.mutex.client.shut:
		return ErrClosed
	case <-w.waiter.Woken():
		return nil
	}
}

// armTimer sets the timer to dueAt, renewAt or heedAt, whichever is earliest.
func (w *wait) armTimer(now time.Duration) {
	at := clock.Forever
	for _, t := range [...]time.Duration{w.dueAt, w.renewAt, w.heedAt} {
		if t != 0 {
			at = min(at, t)
		}
	}
	if at != clock.Forever {
		w.waiter.WakeIn(at - now)
	}
}

func (w *wait) begin(head, refused bool) step {
	switch {
	case w.next.secondFailed:
		return w.sleepFor(w.pause(), wakePoll)
	case refused:
		return w.settle()
	case head:
		return lookNow
	}
	return sleepOn // until a local queue notifies
}

func (w *wait) endInterval() {
	w.dueAt, w.heedAt = 0, 0
	w.waiter.End()
}

// settle has the waiter look a moment later, so that a winner can finish.
func (w *wait) settle() step {
	w.interval.settling = true
	w.dueAt = w.mutex.client.now() + w.settleTime()
	return sleepOn
}

func (w *wait) timerFired() step {
	switch {
	case w.interval.settling:
		return lookNow
	case w.interval.why == "":
		w.waiter.Doubt()
		return lookNow
	}
	return tryNow
}

// mastersNotified serves a notification of the subscription: a key has changed on masters, or masters will not
// notify.
func (w *wait) mastersNotified() step {
	if w.waiter.AwaitsPredecessor() { // the predecessor has left, or the queue master will not notify
		w.waiter.End()
		return lookNow
	}
	if _, majority := w.mutex.client.looks.Free(w.waiter); !majority || w.waiter.Restraint().Doubts() {
		return lookNow // the missing master may be one that does not notify; and to look costs less than to try in vain
	}
	w.interval.why = wakeFree
	return tryNow
}

// localQueueNotified serves a signal of a local queue.
func (w *wait) localQueueNotified(s line.Signal) step {
	switch s {
	case line.TurnHeld: // the holder is of this client, and will notify it; if it cannot, the masters will
		// Most locks are short. A look waits for every master, and would
		// often delay the holder's release.
		if w.mutex.spec().Slotted == nil { // otherwise another slot may be free
			w.polls = pollLast
		}
		return w.settle()
	case line.Yield: // other processes come first
		if w.usesGlobalQueue() {
			if w.waiter.AwaitsPredecessor() { // the queue master notifies
				return sleepOn
			}
			return lookNow
		}
		w.interval.why, w.interval.settling, w.polls = wakeTurn, false, 0
		w.dueAt = w.mutex.client.now() + w.pause()
		return sleepOn
	case line.Turn:
		w.interval.why = wakeTurn
	case line.Released:
		w.interval.why = wakeReleased
	}
	return tryNow
}

// look looks at the key, if no other waiter is ahead in a global queue. It sets the timer in case nothing notifies
// the waiter.
func (w *wait) look(ctx context.Context) (step, error) {
	c := w.mutex.client
	w.interval.settling = false
	if contend, err := w.enterGlobalQueue(ctx); err != nil || !contend {
		return sleepOn, err
	}
	w.intend(ctx)
	c.looks.Listen(w.waiter, w.mutex.spec()) // anew: the answers have earlier changes
	if !c.looks.Tracked() {
		return w.sleepFor(w.pause(), wakePoll), nil
	}
	p, err := c.looks.Look(ctx, w.mutex.spec(), w.waiter)
	if err != nil {
		return 0, ended(err)
	}
	if p.Held { // noted, so that a waiter that gives up can say why
		w.contended = true
		c.localQueues.NoteHeld(foundHeld, w.mutex.spec().Names()...)
		if w.mutex.spec().Reader && !w.refused {
			w.refused = true
			return lookNow, nil // this time it enters the global queue
		}
	}
	w.mutex.hold.SetNextSlot(p.Slot)
	w.learn(p.At)
	left := p.At - c.now()
	switch {
	case p.Free && !p.Read && w.waiter.Restraint().Doubts():
		w.heedAt = w.waiter.Restraint().Due(c.now())
		return sleepOn, nil
	case p.Free:
		w.interval.why = wakeFree
		w.vainLooks++
		return tryNow, nil
	case !p.WillNotify:
		return w.sleepFor(w.pause(), wakePoll), nil
	case left > lookInterval: // a master may hang, and then it does not notify, and nothing says that it hangs
		return w.sleepFor(lookInterval+rand.N(lookInterval), ""), nil
	}
	// The random part keeps waiters for the same TTL from trying all at the same moment.
	return w.sleepFor(max(left, 0)+1+rand.N(line.ExpirySlack), wakeExpiry), nil
}

// foundHeld marks a local queue whose lock another process holds. It has no key: waitError adds that.
var foundHeld = unasked(opLock, "", ErrHeld, "")

// learn learns from a look what the notice before it was worth. One who has taken the lock meanwhile has it until
// another time, and so has its holder once it was renewed. A look that knows no time has seen no change.
func (w *wait) learn(ends time.Duration) {
	changed := ends != clock.Forever && (ends-w.ends).Abs() > max(sameEnd, w.mutex.client.round.Mux.RTT())
	if changed {
		w.ends = ends
	}
	w.waiter.Restraint().Learn(changed)
}

// usesGlobalQueue reports whether the waiter is to be in the global queues. A reader enters them only after it was
// refused. A waiter does without them for a while if the queue master does not serve it (Waiter.MayEnter), and
// while too few masters can notify.
func (w *wait) usesGlobalQueue() bool {
	m := w.mutex
	return (!m.spec().Reader || w.refused) && w.waiter.MayEnter(m.client.now()) && m.client.looks.Tracked()
}

// enterGlobalQueue has the waiter enter the global queues, and reports whether it may contend. If it may not, its
// subscription will be notified.
func (w *wait) enterGlobalQueue(ctx context.Context) (contend bool, err error) {
	m, c := w.mutex, w.mutex.client
	contend = true
	switch {
	case !w.waiter.MayEnter(c.now()): // it keeps the entries that it has
	case !w.usesGlobalQueue():
		w.leaveGlobalQueue()
		return true, nil
	case w.waiter.AtHead():
		return true, nil
	default:
		if contend, err = c.globalQueues.Enter(ctx, w.waiter, w.since, m.namedOwner()); err != nil {
			return false, ended(err)
		}
	}
	if !w.waiter.AtHead() && w.renewAt == 0 { // others are ahead of it, or there is no queue for a while
		w.renewAt = c.now() + line.EntryPause // notices do not put it off: with it, the lock is looked at
		if at := w.waiter.EntersAt(); at > c.now() {
			w.renewAt = at
		}
	}
	if contend {
		return true, nil
	}
	w.contended = true
	c.localQueues.NoteHeld(foundHeld, m.spec().Names()...)
	w.withdraw() // its intent must not refuse readers that are ahead of it
	w.dueAt = 0
	return false, nil
}

// renew renews what the waiter has on the masters while it waits: its intent, if it is the head of the global
// queues, or else its entries.
func (w *wait) renew(ctx context.Context) (step, error) {
	if w.waiter.AtHead() {
		if len(w.intent) > 0 {
			w.intend(ctx)
		}
		return sleepOn, nil
	}
	contend, err := w.enterGlobalQueue(ctx)
	switch {
	case err != nil:
		return sleepOn, err
	case contend:
		return lookNow, nil
	case w.freeDespiteQueue(ctx):
		w.interval.why = wakePoll
		return tryNow, nil
	}
	return sleepOn, nil
}

// freeDespiteQueue looks now and then whether the lock is free although others are ahead of the waiter. Mostly it is
// not. If it is free, the queue master may lie, or may have an entry without a waiter.
func (w *wait) freeDespiteQueue(ctx context.Context) bool {
	c := w.mutex.client
	now, was := c.now(), w.nextFreeCheck
	if now < was {
		return false
	}
	w.nextFreeCheck = now + lookInterval + rand.N(lookInterval)
	if was == 0 {
		return false
	}
	slot, free := c.looks.Find(ctx, w.mutex.spec(), w.waiter)
	if free {
		w.mutex.hold.SetNextSlot(slot)
	}
	return free
}

// leaveGlobalQueue has the waiter leave the global queues, if it is in any.
func (w *wait) leaveGlobalQueue() { w.mutex.client.globalQueues.Leave(w.waiter) }

// intend leaves an intent, if the waiter is a writer that has waited for a while and readers hold the lock. It renews
// the intent for as long as they do. See shared.go in internal/kind.
func (w *wait) intend(ctx context.Context) {
	m, c := w.mutex, w.mutex.client
	now := c.now()
	intending, ok := m.spec().Kind.(kind.Intending)
	if !ok || now-w.since < kind.IntentAfter || w.intentAskedAt != 0 && now-w.intentAskedAt < kind.IntentPause {
		return
	}
	w.intentAskedAt = now
	k := c.round.Take()
	defer c.round.Put(k)
	left := len(w.intent) > 0 // before this
	if !left {
		w.intent = round.AppendToken(w.intent, c.owner) // it may be there, whatever becomes of the wait meanwhile
	}
	k.Intend(m.spec(), intending, w.intent, c.round.ShortTimeout(m.spec().Timeout, round.MinShortTimeout))
	w.waiter.Ask(ctx, k) // an intent is a courtesy, so its error does not matter
	for i := range k.Op.Votes {
		switch v := &k.Op.Votes[i]; {
		case v.Verdict == mux.VerdictYes:
			w.renewAt = c.now() + kind.IntentPause
		case v.Err != nil && permanent(v.Err): // no second line in the master's ACL LOG
			w.intentAskedAt = clock.Forever
			continue
		case v.Verdict == mux.VerdictNo || !k.Op.Asked.Has(i):
			continue
		}
		left = true // it is there, or may be there on a master whose answer has not come
	}
	if !left {
		w.intent = w.intent[:0]
	}
}

// withdraw takes the intent away.
func (w *wait) withdraw() {
	if len(w.intent) == 0 {
		return
	}
	c := w.mutex.client
	k := c.round.Take()
	defer c.round.Put(k)
	k.Withdraw(w.mutex.spec(), w.mutex.spec().Kind.(kind.Intending), w.intent)
	c.round.Mux.Send(&k.Op)
	w.intent = w.intent[:0]
}

// sleepFor sets the timer. why says why the wait tries when the timer fires; if it is empty, the wait looks again.
func (w *wait) sleepFor(d time.Duration, why string) step {
	w.interval.why, w.vainLooks = why, 0
	w.dueAt = w.mutex.client.now() + d
	return sleepOn
}

// prepareAttempt says how the next attempt is made.
func (w *wait) prepareAttempt(ctx context.Context) {
	c := w.mutex.client
	if w.interval.why != wakePoll {
		w.polls = 0
	}
	w.settleFirst = w.interval.why != wakeReleased && w.interval.why != wakePoll
	if w.next.notified = w.interval.why == wakeFree; w.next.notified {
		slot, _ := c.looks.Free(w.waiter)
		w.mutex.hold.SetNextSlot(slot)
	}
	if slot := w.waiter.TakeFreedSlot(); slot != 0 && w.interval.why == wakeReleased {
		w.mutex.hold.SetNextSlot(slot - 1)
	}
	c.stats.countWake(w.interval.why)
	if e := c.events.begin(ctx, behind.Wake, w.mutex.spec().Key); e != nil {
		e.more.Why = w.interval.why
		c.events.end(e)
	}
}

// settleTime returns about the time that a winner needs to set its key on the other masters. It doubles each time
// that the key is free and cannot be taken: then there is no winner (masters refuse to write, or the Mutex itself
// holds the lock by its clock). After a lost race it doubles maxRaceDoublings times at most, as there was a
// winner. A waiter that loses race after race on a hot key must not settle for longer than others pause (wait.pause).
func (w *wait) settleTime() time.Duration {
	doublings := min(max(w.vainLooks-1, 0), 16)
	if w.lostRace {
		doublings = min(doublings, maxRaceDoublings)
	}
	d := max(w.mutex.client.round.Mux.RTT(), minSettle)
	d = max(d, min(d<<doublings, pollMax))
	return d + rand.N(d)
}

// pollLast is a number of polls after which the pause is the longest.
const pollLast = 8

// pause returns how long to wait before the next poll: about the time of a round, and a random time on top of it. The
// random time is at most twice as long, and that bound doubles with each poll, up to pollMax. So contenders that
// have split a vote soon stop meeting.
func (w *wait) pause() time.Duration {
	base := max(pollMin, 2*w.mutex.client.round.Mux.RTT())
	most := max(base, min(base<<w.polls, pollMax))
	w.polls = min(w.polls+1, pollLast)
	return base/2 + rand.N(most)
}

// begins notes that Lock waits, unless it does already, in the statistics and for the Observers.
func (w *wait) begins(ctx context.Context) {
	if w.began != 0 {
		return
	}
	c := w.mutex.client
	w.began = c.now()
	c.stats.waiting.Add(1)
	c.events.tell(ctx, behind.Wait, w.mutex.spec().Key)
}

// finish notes that Lock returns, in the statistics and for the Observers.
func (w *wait) finish(ctx context.Context, e *RoundError) {
	began := w.began
	if began == 0 {
		return
	}
	c := w.mutex.client
	c.stats.waiting.Add(-1)
	w.began = 0
	if ev := c.events.begin(ctx, EventWaited, w.mutex.spec().Key); ev != nil {
		if ev.Took = c.now() - began; e != nil {
			ev.Err = e
		}
		c.events.end(ev)
	}
}
