package redlock

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/mux"
)

const (
	pollMin = 2 * time.Millisecond
	pollMax = 200 * time.Millisecond

	minSettle        = 100 * time.Microsecond
	maxRaceDoublings = 3
	maxVainLooks     = 8 // looks in vain, after which nobody asks in turn

	explainMin = 50 * time.Millisecond // least time for asking who holds a lock
)

// Lock takes the lock, and waits for it until ctx is done.
//
// Callers of one client that wait for the same key stand in a line. Only the first of the line
// contends with other processes. When the lock is released in this client, the first of the
// line has it at once. The package comment says how it waits.
//
// Lock keeps trying while too few masters answer, as they may be back before ctx is done. It
// returns at once if so many masters refuse this client (NOPERM, NOAUTH, WRONGPASS, NOFENCE, NOSHARED) that
// no quorum is possible: somebody has to change something first. Where others have another number of permits
// (PERMITS), it tells the Observer of the attempt that has found that out, and waits until they are gone.
//
// The error is a *RoundError. It says why the lock was not to be had, as far as that is known
// (ErrHeld, ErrNoQuorum), and wraps the context's error. If ctx ran out of time because the lock
// is held, Lock asks the masters who holds it, for at most 50 ms or four round trips, and
// RoundError.HeldBy and HeldFor say it. If ctx was cancelled, Lock returns at once.
func (m *Mutex) Lock(ctx context.Context) error {
	m.mustClient()
	if m.invalid != nil {
		return m.invalid
	}
	for {
		e := m.lock(ctx)
		if e == nil {
			return nil
		}
		if e.final() || !e.differs() || e.ended != nil {
			return e
		}
		if err := m.untilAgreed(ctx); err != nil {
			return m.waitError(ctx, err, e, nil, false, nil)
		}
	}
}

// lock is Lock, but returns, too, if others have another number of permits.
func (m *Mutex) lock(ctx context.Context) *RoundError {
	c := m.client
	if err := ctx.Err(); err != nil {
		return unasked(opLock, m.key, nil, "").endedBy(ctx, err)
	}
	w, first, clear := c.localQueues.joinAs(m.reader, m.names()...)
	call, _ := c.waits.Get().(*wait)
	if call == nil {
		call = new(wait)
	}
	call.mutex, call.waiter = m, w
	call.next.mutex, call.next.waitsSecond = m, true
	defer call.cleanUp()
	// Whoever comes to a contended key looks first, so that those who were told
	// of its release are not always overtaken by whoever has released it.
	try := (first || m.reader && clear) && !(c.subscriptions.contended(c.now(), m.names()...) && c.subscriptions.tracked())
	call.settleFirst = first && !try && !call.usesGlobalQueue() // the line says who comes first
	e, err := call.lock(ctx, try, first)
	return call.end(ctx, e, err)
}

// untilAgreed waits until a quorum of the masters knows of no other number of permits. It stands in no line:
// whoever has the right number is not to wait for it. It only asks. An attempt would leave its own number
// where the others' is not, and would keep it there, in the way of those who use the lock.
func (m *Mutex) untilAgreed(ctx context.Context) error {
	c := m.client
	c.stats.waiting.Add(1)
	defer c.stats.waiting.Add(-1)
	k := c.takeCall()
	defer c.putCall(k)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.closed:
			return ErrClosed
		case <-time.After(agreedPause + rand.N(agreedPause)):
		}
		k.agrees(&m.spec)
		switch err := c.rounds.Do(ctx, &k.op); {
		case err == nil && count(k.op.Votes, nil).yes >= majority(len(c.masters)):
			return nil
		case err != nil && err != mux.ErrTimeout:
			return ended(err)
		}
	}
}

// waiting is one call of Lock. It is pooled, and not on the stack: the stack of a goroutine that waits
// would be twice as large.
type wait struct {
	mutex         *Mutex
	waiter        *waiter       // nil once it has left its line
	settleFirst   bool          // it looks a moment later, if it is refused
	next          attempt       // the next attempt, or the last one
	polls         int           // in a row
	vainLooks     int           // looks in a row that found the key free, though it was not to be had
	lostRace      bool          // ... as another was faster, the last time
	since         time.Duration // when it began to wait; 0 if it does not wait
	intentAskedAt time.Duration // when it last asked for readers; 0 if it has not
	nextFreeCheck time.Duration // when it looks whether the lock is free, though another stands before it; 0 before that
	intent        []byte        // the token of what it has left on the masters; nil if it has not
	undecided     *RoundError   // an attempt that the context's end left undecided

	contended bool // others want the lock, or have it
	refused   bool // it was refused since it came, or has seen that the lock is held
	acquired  bool // it is taken, and the caller does not know of it yet

	ticket   ticket   // in the line between processes
	interval interval // the wait that is under way
}

// end ends the call with what lock has returned, and returns what Lock does.
func (w *wait) end(ctx context.Context, e *RoundError, err error) *RoundError {
	m, c := w.mutex, w.mutex.client
	w.acquired = e == nil && err == nil
	w.withdraw()
	w.leaveGlobalQueue()
	if w.contended {
		c.subscriptions.noteRefused(c.now(), m.names()...)
	}
	held, failure := c.localQueues.leave(w.waiter, w.acquired, m.names()...)
	w.waiter = nil
	if err != nil {
		e = m.waitError(ctx, err, e, w.undecided, held, failure)
	}
	w.finish(ctx, e)
	w.acquired = false // the caller knows of it now
	return e
}

// reset makes it that of another call. The standing keeps its memory.
func (w *wait) reset() {
	s := &w.ticket
	id, ahead, bell, spots := s.id[:0], s.predecessor[:0], s.predecessorNotice[:0], s.entries[:0]
	*w = wait{}
	s.id, s.predecessor, s.predecessorNotice, s.entries = id, ahead, bell, spots
}

// cleanUp follows each Lock. If the panic of an Observer, or of a context, has left that, nothing of it
// stays behind, not in its line, not in the statistics, not on the masters.
func (w *wait) cleanUp() {
	m := w.mutex
	defer func() {
		w.reset()
		m.client.waits.Put(w)
	}()
	if w.waiter != nil {
		w.withdraw()
		w.leaveGlobalQueue()
		m.client.localQueues.leave(w.waiter, false, m.names()...)
	}
	if w.since != 0 {
		m.client.stats.waiting.Add(-1)
	}
	if w.acquired {
		m.unlock(endedContext, false) // the release is sent, and not waited for
	}
}

// lock tries and waits in turns. It returns how the last attempt failed, if it
// did and was not the last word, and the error that ended the waiting: the
// context's or ErrClosed. Front says that nobody of its line stands before it.
func (w *wait) lock(ctx context.Context, try, front bool) (*RoundError, error) {
	m := w.mutex
	var last *RoundError
	for {
		if try {
			a := &w.next
			if w.since != 0 {
				a.waited = m.client.now() - w.since
			}
			// A newcomer that finds its slot taken enters the queue before it looks for another slot: those who
			// wait come first.
			a.oneSlot = w.since == 0 && m.slotted != nil && w.usesGlobalQueue()
			e := a.run(ctx)
			if a.secondFailed && (last == nil || last.reason != ErrSecond) { // else last says more than that it was cut
				last = e
			}
			if e == nil || e.final() || e.differs() {
				return e, nil
			}
			if e.ended != nil {
				w.undecided = e
				return last, e.ended
			}
			last = e
			front = !m.reader || m.client.localQueues.noteReaderRefused(w.waiter, m.names()...)
			w.lostRace = e.reason == ErrHeld && len(e.Votes) > 0
			w.refused = w.refused || w.lostRace
			if e.reason == ErrNoQuorum || w.next.secondFailed {
				w.leaveGlobalQueue()
			}
			m.client.localQueues.noteFailure(e, m.names()...)
			if e.reason == ErrHeld && (m.slotted == nil || w.since != 0) { // else other slots may be free
				m.client.subscriptions.noteRefused(m.client.now(), m.names()...)
			}
		}
		if w.since == 0 {
			w.since = m.client.now()
			m.client.stats.waiting.Add(1)
			m.client.observe.waitStart(ctx, m.key)
		}
		if err := w.untilFree(ctx, front, front && w.settleFirst); err != nil {
			return last, err
		}
		try = true
	}
}

// A vigil is one wait for the lock to be free.
type interval struct {
	subscribed bool // the masters tell its watch
	settling   bool // it lets a winner finish before it looks
	why        Wake // what it means that the timer fires: that the lock may be free, or nothing
}

// A step is what a vigil does next.
type step uint8

const (
	sleepOn step = iota
	lookNow      // at the key, on the masters
	tryNow       // the lock may be free
)

// untilFree waits until the lock may be free. front says that nobody of its line stands before
// it: then it watches the masters, and otherwise the line gives it its turn. refused says that
// it was refused, or comes to a contended key that has no line. Then it looks a moment later: the
// winner can finish its round, and those who were told of a release come first.
func (w *wait) untilFree(ctx context.Context, front, refused bool) error {
	w.interval = interval{}
	defer w.endInterval()
	for next := w.begin(front, refused); ; {
		switch next {
		case lookNow:
			var err error
			if next, err = w.look(ctx); err != nil {
				return err
			}
			continue
		case tryNow:
			w.prepareAttempt(ctx)
			return nil
		}
		var err error
		if next, err = w.sleep(ctx); err != nil {
			return err
		}
	}
}

// sleep takes what has come, or returns once something has.
func (w *wait) sleep(ctx context.Context) (step, error) {
	q := w.waiter
	select {
	case s := <-q.signal:
		return w.localQueueNotified(s), nil
	default:
	}
	watches := w.interval.subscribed || w.ticket.awaitedNotice != ""
	if watches && w.mutex.client.subscriptions.takeNotified(q.subscription) {
		return w.mastersNotified(), nil
	}
	switch now := w.mutex.client.now(); {
	case w.ticket.moved.Swap(false) && w.ticket.atHead:
		w.ticket.atHead = false
		return lookNow, nil
	case q.dueAt != 0 && now >= q.dueAt:
		q.dueAt = 0
		return w.timerFired(), nil
	case q.renewAt != 0 && now >= q.renewAt:
		q.renewAt = 0
		return w.renew(ctx)
	default:
		q.armTimer(now)
	}
	if watches {
		return sleepOn, q.subscription.sleep(ctx)
	}
	return sleepOn, w.sleepUnsubscribed(ctx)
}

// park sleeps outside the mux: what the masters push is of no interest.
func (w *wait) sleepUnsubscribed(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-w.mutex.client.closed:
		return ErrClosed
	case <-w.waiter.subscription.woken:
		return nil
	}
}

// alarm sets the timer.
func (w *waiter) armTimer(now time.Duration) {
	at := w.dueAt
	if at == 0 || w.renewAt != 0 && w.renewAt < at {
		at = w.renewAt
	}
	if at != 0 {
		w.timer.Reset(at - now)
	}
}

func (w *wait) begin(front, refused bool) step {
	switch {
	case w.next.secondFailed:
		return w.sleepFor(w.pause(), WakePoll)
	case refused:
		return w.settle()
	case front:
		return lookNow
	}
	return sleepOn // until the line tells
}

func (w *wait) endInterval() {
	w.waiter.dueAt = 0
	w.mutex.client.globalQueues.stopAwaiting(&w.ticket)
	w.unsubscribe()
}

// standAside has a winner finish before it looks.
func (w *wait) settle() step {
	w.interval.settling = true
	w.waiter.dueAt = w.mutex.client.now() + w.settleTime()
	return sleepOn
}

func (w *wait) timerFired() step {
	switch {
	case w.interval.settling:
		return lookNow
	case w.interval.why == "":
		w.ticket.atHead = false // it may have lost its place: it asks again
		return lookNow
	}
	return tryNow
}

// mastersTold takes that masters have told of a change, or that they will not tell.
func (w *wait) mastersNotified() step {
	if w.ticket.awaitedNotice != "" { // of the entry before, or of its line's master
		w.mutex.client.globalQueues.stopAwaiting(&w.ticket)
		return lookNow
	}
	if _, _, majority := w.mutex.client.subscriptions.free(w.waiter.subscription); !majority {
		return lookNow // the last that is needed may be one that does not tell
	}
	w.interval.why = WakeFree
	return tryNow
}

// lineTold takes a signal of its line.
func (w *wait) localQueueNotified(s signal) step {
	switch s {
	case turnHeld: // its holder will tell; the masters, what it cannot tell
		// Most locks are short: the look, which waits for every
		// master, would often be in the way of its release.
		if w.mutex.slotted == nil { // of several slots another may be free
			w.polls = pollLast
		}
		return w.settle()
	case yield: // whoever else was told comes first
		if w.usesGlobalQueue() {
			if w.ticket.awaitedNotice != "" { // the line tells
				return sleepOn
			}
			return lookNow
		}
		w.interval.why, w.interval.settling, w.polls = WakeTurn, false, 0
		w.waiter.dueAt = w.mutex.client.now() + w.pause()
		return sleepOn
	case turn:
		w.interval.why = WakeTurn
	case released:
		w.interval.why = WakeReleased
	}
	return tryNow
}

// look looks at the key, and sets the timer for the case that nobody tells anything.
func (w *wait) look(ctx context.Context) (step, error) {
	c := w.mutex.client
	w.interval.settling = false
	if contend, err := w.enterGlobalQueue(ctx); err != nil || !contend {
		return sleepOn, err
	}
	w.interval.subscribed = true
	w.intend(ctx)
	c.subscriptions.add(w.waiter.subscription, w.mutex.slots(), c.subscriptions.quorum, w.mutex.names()...) // afresh: what was told before is in the answers
	if !c.subscriptions.tracked() {
		return w.sleepFor(w.pause(), WakePoll), nil
	}
	p, err := c.subscriptions.look(ctx, &w.mutex.spec, w.waiter.subscription)
	if err != nil {
		return 0, ended(err)
	}
	if p.held { // whoever leaves the line from now on knows why
		w.contended = true
		c.localQueues.noteHeld(w.mutex.names()...)
		if w.mutex.reader && !w.refused {
			w.refused = true
			return lookNow, nil // from its place in the line
		}
	}
	w.mutex.setNextSlot(p.slot)
	left := p.at - c.now()
	switch {
	case p.free:
		w.interval.why = WakeFree
		w.vainLooks++
		return tryNow, nil
	case !p.willNotify:
		return w.sleepFor(w.pause(), WakePoll), nil
	case left > lookInterval: // a master that hangs tells nothing, and nobody knows
		return w.sleepFor(lookInterval+rand.N(lookInterval), ""), nil
	}
	// Those who wait for the same TTL need not all try in the same moment.
	return w.sleepFor(max(left, 0)+1+rand.N(expirySlack), WakeExpiry), nil
}

// stands reports whether the waiter stands in the line between processes. A reader does not before it was
// refused, nor does who cannot be told of the end of the entry before it.
func (w *wait) usesGlobalQueue() bool {
	m := w.mutex
	return (!m.reader || w.refused) && m.client.now() >= w.ticket.enterAfter && m.client.subscriptions.tracked()
}

// stand has the waiter be in the line between processes, and reports whether it may contend. If not, it
// will be told.
func (w *wait) enterGlobalQueue(ctx context.Context) (contend bool, err error) {
	m, c := w.mutex, w.mutex.client
	switch {
	case !w.usesGlobalQueue():
		w.leaveGlobalQueue()
		return true, nil
	case w.ticket.atHead:
		return true, nil
	}
	contend, err = c.globalQueues.enter(ctx, &w.ticket, w.waiter.subscription, m.reader, m.names())
	if err != nil {
		return false, ended(err)
	}
	if !w.ticket.atHead { // it stands behind another, or there is no line for a while
		w.waiter.renewAt = c.now() + entryPause
	}
	if contend {
		return true, nil
	}
	w.contended = true
	c.localQueues.noteHeld(m.names()...)
	w.unsubscribe()
	w.withdraw() // readers that stand before it must not wait for it
	w.waiter.dueAt = 0
	return false, nil
}

// renew renews what the waiter has on the masters while it waits: its intent, or its entries.
func (w *wait) renew(ctx context.Context) (step, error) {
	if w.ticket.atHead {
		if w.intent != nil {
			w.intend(ctx)
		}
		return sleepOn, nil
	}
	w.unsubscribe() // what the masters tell meanwhile would be lost: the look that follows sees it
	contend, err := w.enterGlobalQueue(ctx)
	switch {
	case err != nil:
		return sleepOn, err
	case contend:
		return lookNow, nil
	case w.freeDespiteQueue(ctx):
		w.interval.why = WakePoll
		return tryNow, nil
	}
	return sleepOn, nil
}

// stuck looks now and then whether the lock is free though another stands before the waiter. It mostly is
// not. If it is, the line's master may say what is not so, or keep an entry that has no waiter.
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
	slot, free := c.subscriptions.find(ctx, &w.mutex.spec)
	if free {
		w.mutex.setNextSlot(slot)
	}
	return free
}

// unwatch has the masters' word of the lock no longer be told to the waiter.
func (w *wait) unsubscribe() {
	if c := w.mutex.client; w.interval.subscribed {
		w.interval.subscribed = false
		c.subscriptions.remove(w.mutex.names()...)
	}
}

// leaveLine has the waiter leave the line between processes, if it stands there.
func (w *wait) leaveGlobalQueue() { w.mutex.client.globalQueues.leave(&w.ticket) }

// intend leaves the intent of a writer that has waited for a while, where it is for readers, and
// leaves it again for as long as they are there. See kind_shared.go.
func (w *wait) intend(ctx context.Context) {
	m, c := w.mutex, w.mutex.client
	now := c.now()
	courts, ok := m.kind.(intending)
	if !ok || now-w.since < intentAfter || w.intentAskedAt != 0 && now-w.intentAskedAt < intentPause {
		return
	}
	w.intentAskedAt = now
	k := c.takeCall()
	defer c.putCall(k)
	token := w.intent
	if token == nil {
		token = appendToken(nil, c.owner)
	}
	k.intend(&m.spec, courts, token, c.shortTimeout(m.timeout, minShortTimeout))
	c.doUndoable(ctx, k) // if nobody answers, nothing is lost
	for i := range k.op.Votes {
		switch v := &k.op.Votes[i]; {
		case v.Verdict == VerdictYes:
			w.waiter.renewAt = c.now() + intentPause
		case v.Err != nil && permanent(v.Err): // one line in its ACL LOG is enough
			w.intentAskedAt = clock.Forever
			continue
		case v.Verdict == VerdictNo || !k.op.Asked.Has(i):
			continue
		}
		w.intent = token // it is there, or may be: a master that was not waited for leaves it, too
	}
}

// withdraw takes the intent away.
func (w *wait) withdraw() {
	if w.intent == nil {
		return
	}
	c := w.mutex.client
	k := c.takeCall()
	defer c.putCall(k)
	k.withdraw(&w.mutex.spec, w.mutex.kind.(intending), w.intent)
	c.rounds.Send(&k.op)
	w.intent = nil
}

// sleepFor sets the timer. why is what it means that it fires; empty means only that it is time
// to look again.
func (w *wait) sleepFor(d time.Duration, why Wake) step {
	w.interval.why, w.vainLooks = why, 0
	w.waiter.dueAt = w.mutex.client.now() + d
	return sleepOn
}

// prepareAttempt says how the attempt is made that follows.
//
// After a release in this client the attempt follows it at once on every connection: nobody
// elsewhere can have been told before it arrives. Whoever polls was not told either, and knows
// nothing of the master that would be asked first: it may hold another's key for ever, or be
// slow. Whoever is the first in line has nobody to compete with but those who pass it by, and
// would lose to each of them if it took two round trips. And if the key is free each time and cannot
// be had, the master that is asked first may be at fault. All others ask in turn.
func (w *wait) prepareAttempt(ctx context.Context) {
	c := w.mutex.client
	if w.interval.why != WakePoll {
		w.polls = 0
	}
	w.settleFirst = w.interval.why != WakeReleased && w.interval.why != WakePoll
	w.next.inTurn, w.next.likely = w.settleFirst && !w.ticket.atHead && w.vainLooks < maxVainLooks, 0
	if w.next.notified = w.interval.why == WakeFree; w.next.notified {
		var slot int
		slot, w.next.likely, _ = c.subscriptions.free(w.waiter.subscription)
		w.mutex.setNextSlot(slot)
	}
	if slot := w.waiter.freedSlot.Swap(0); slot != 0 && w.interval.why == WakeReleased {
		w.mutex.setNextSlot(int(slot) - 1)
	}
	c.stats.countWake(w.interval.why)
	c.observe.wake(ctx, w.mutex.key, w.interval.why)
}

// settling is about the time that a winner needs to set its other keys. It doubles
// where the key is free each time and cannot be had: that is no winner (masters
// that refuse to write, a Mutex that holds it by its clock). A race that another has
// won says nothing of that: whoever loses one after the other on a hot key must not
// stand aside for longer than others pause for it (waiting.pause).
func (w *wait) settleTime() time.Duration {
	doublings := min(max(w.vainLooks-1, 0), 16)
	if w.lostRace {
		doublings = min(doublings, maxRaceDoublings)
	}
	d := max(w.mutex.client.rounds.RTT(), minSettle)
	d = max(d, min(d<<doublings, pollMax))
	return d + rand.N(d)
}

// pollLast is a number of polls after which the pause is the longest.
const pollLast = 8

// pause is how long to wait before the next poll: at least about the time of a
// round, and on top of it a random part of twice that time, doubled with each
// poll. So those who have split a vote do not meet again for long.
func (w *wait) pause() time.Duration {
	base := max(pollMin, 2*w.mutex.client.rounds.RTT())
	most := max(base, min(base<<w.polls, pollMax))
	w.polls = min(w.polls+1, pollLast)
	return base/2 + rand.N(most)
}

// finish notes that Lock returns.
func (w *wait) finish(ctx context.Context, e *RoundError) {
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
func (m *Mutex) waitError(ctx context.Context, err error, last, cut *RoundError, held bool, failure *RoundError) *RoundError {
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
		e.Key, e.note, e.Votes = m.key, "", slices.Clone(failure.Votes)
	case cut != nil:
		*e = *cut
	}
	e.endedBy(ctx, err)
	if e.reason == ErrHeld && errors.Is(err, context.DeadlineExceeded) {
		ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.client.shortTimeout(m.timeout, explainMin))
		defer cancel()
		h := m.findHolder(ask)
		e.held, e.HeldBy, e.HeldFor = h.String(), h.owner, h.left
	}
	return e
}

// holder asks who is in the way of the lock. Of several keys, the first that somebody holds decides.
// Of readers it is the last, and of permits the one that is free first.
func (m *Mutex) findHolder(ctx context.Context) (h holderSummary) {
	c := m.client
	if m.slotted != nil {
		all, _ := c.Holders(ctx, m.key, WithPermits(m.slots())) // those that answer are enough
		return soonest(all, len(c.masters))
	}
	for _, key := range m.names() {
		all, _ := c.Holders(ctx, key)
		if slices.ContainsFunc(all, func(h Holder) bool { return h.Token == UnknownToken }) { // readers
			if readers, err := c.Holders(ctx, key, WithShared()); err == nil {
				if h = last(readers, len(c.masters)); h.votes > 0 {
					break
				}
			}
		}
		if h = leading(all, len(c.masters)); h.votes > 0 {
			break
		}
	}
	return h
}
