package redlock

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/held"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
)

// slotTries is how often an attempt looks for another slot, and tries that. It looks again if a
// faster contender has taken the slot.
const slotTries = 8

// TryLock tries to take the lock, in one round; in a few more if contenders have split the votes,
// so that one of them has it. Its error is a *RoundError that wraps
//
//	ErrHeld                another holds the lock, or this Mutex does already, or ctx belongs to it (see Lock)
//	ErrSplit               and ErrHeld: perhaps nobody has it
//	ErrNoQuorum            too few masters answered
//	ErrExpired             they answered too late
//	ErrClosed              the client is closed, or shuts down
//	ErrSecond              the second lock could not be taken, as its system fails ([WithSecond])
//	the context's error    ctx ended before the masters had decided; its cause, too
//
// ErrHeld seldom says who holds the lock, or that the key is no lock but a hash: no master's answer
// to the attempt says it, and TryLock is often called in a loop that must not cost a second round.
// [Client.Holders] says it, and so does a Lock that waits.
//
// If it fails, or succeeds too late, it deletes what it has set on any master, whatever becomes
// of ctx.
//
// A lock that has expired without an Unlock does not count as held: TryLock first releases what
// is left of it. A lock that the masters have lost counts as held while its second lock remains
// ([WithSecond]). If several can hold the lock, and the Mutex has one that was handed over and
// not extended yet, TryLock releases that one when it has taken another: a Mutex holds one.
func (m *Mutex) TryLock(ctx context.Context) error {
	mustContext(ctx)
	m.mustClient()
	return asError(m.tryLock(ctx))
}

func (m *Mutex) tryLock(ctx context.Context) *RoundError {
	a := attempt{mutex: m, leads: true}
	e := a.run(ctx, ctx)
	if e != nil && a.secondFailed {
		m.client.localQueues.Released(0, m.spec().Names()...)
	}
	return e
}

// An attempt is one try for a lock, of one round or more. Each TryLock makes a new one. A Lock
// that waits makes one attempt after the other, and sets here how the next one is made.
type attempt struct {
	mutex        *Mutex
	waited       time.Duration // for how long its Lock has waited
	leads        bool          // if it is refused, it waits for the vote of the first master (see acquire_split.go)
	failures     int           // of attempts of its Lock before this one, but for ErrHeld
	oneSlot      bool          // if its slot is taken, it tries no other
	waitsSecond  bool          // it waits for the second lock
	notified     bool          // the masters have notified of a change, or have said that the key is free
	relies       bool          // it relies on an agreement on the number of permits, if there is one
	secondFailed bool          // it had the lock on the masters, and not the second one
	token        []byte        // if the second lock is still to be taken, that of the lock on the masters
	entered      bool          // it has Client.attempts: Close waits for it
}

// leave lets Close go on. What the attempt has taken, and does not keep, was released, or Close finds it.
func (a *attempt) leave() {
	if a.entered {
		a.entered = false
		a.mutex.client.attempts.RUnlock()
	}
}

// run makes the attempt, on one slot after the other if the lock has slots, and takes the second lock, for which it waits
// until waiting ends.
func (a *attempt) run(ctx, waiting context.Context) *RoundError {
	m := a.mutex
	a.secondFailed = false
	e := a.take(ctx)
	if m.spec().Slotted != nil && !a.oneSlot {
		e = a.takeOthers(ctx, e)
	}
	if a.notified {
		m.client.stats.countNotified(e)
		a.notified = false
	}
	if e != nil || m.spec().Second == nil {
		return e
	}
	e = a.takeSecond(waiting)
	a.secondFailed = e != nil
	return e
}

// takeSecond takes the second lock, when the one on the masters is taken. If it cannot, that is released.
func (a *attempt) takeSecond(ctx context.Context) *RoundError {
	defer a.leave()
	m := a.mutex
	key, second := m.spec().Key, m.spec().Second.(Second)
	reason, err := m.client.held.TakeSecond(ctx, &m.hold, a.token, func(ctx context.Context) (held.Second, error) {
		if ctx.Err() == nil { // Close finds that it is kept alive
			a.leave()
		}
		if a.waitsSecond {
			return second.Lock(ctx, key)
		}
		return second.TryLock(ctx, key)
	})
	switch {
	case reason == nil && err == nil:
		return nil
	case reason == nil:
		e := unasked(opLock, key, nil, "its second lock was not taken yet")
		e.detail = secondPending
		return e.endedBy(ctx, err)
	}
	e := unasked(opLock, key, reason, "")
	switch reason {
	case ErrExpired:
		e.note = "its validity ended before the second lock was taken"
	case ErrHeld:
		e.note, e.detail = "the second lock is", heldInSecond
	case ErrSecond:
		e.under = foreignError{err}
	}
	return e
}

// takeOthers goes on after an attempt whose slot is taken. While a look finds another slot that
// is free, it tries that one. It returns the last attempt's error; nil if it has the lock.
func (a *attempt) takeOthers(ctx context.Context, e *RoundError) *RoundError {
	m := a.mutex
	for range slotTries {
		if e == nil || e.reason != ErrHeld || len(e.Votes) == 0 {
			break
		}
		slot, found := m.client.looks.Find(ctx, m.spec(), nil)
		if !found {
			break
		}
		m.hold.SetNextSlot(slot)
		other := attempt{mutex: m, leads: a.leads, failures: a.failures}
		e = other.take(ctx)
		a.failures = other.failures
	}
	return e
}

// namedOwner returns the owner that its tokens name.
func (m *Mutex) namedOwner() string { return cmp.Or(m.spec().Owner, m.client.owner) }

// take tries to take the lock on the masters, or one slot of it.
//
// If it relies on an agreement which ends meanwhile, it tries once more, and looks at the mark.
// It does so only once: a master that answers with errors, or comes and goes, ends all agreements
// again and again.
func (a *attempt) take(ctx context.Context) *RoundError {
	a.relies = true
	e := a.once(ctx)
	if e != nil && e.detail == unsure {
		a.relies = false
		e = a.once(ctx)
	}
	return e
}

// once tries once.
func (a *attempt) once(ctx context.Context) (e *RoundError) {
	m := a.mutex
	c := m.mustClient()
	if err := ctx.Err(); err != nil {
		return unasked(opLock, m.spec().Key, nil, "").endedBy(ctx, err)
	}
	if c.isShut() {
		return unasked(opLock, m.spec().Key, ErrClosed, "")
	}
	m.hold.CheckSecond()
	if m.hold.Taken(c.now) {
		return byItself(m.spec().Key)
	}
	if e := m.heldWithin(ctx); e != nil {
		return e
	}
	c.guard.Use(m.spec().Life())
	c.held.ClearExpired(&m.hold)
	waited := c.meetFirst(ctx, m.spec().Timeout)
	k := c.round.Take()
	defer c.round.Put(k)
	hint := uint64(0)
	if m.spec().Numbers != nil {
		hint = c.round.Hints.Next()
	}
	k.Waited, k.Failures = a.waited, a.failures
	if m.spec().Slotted != nil {
		k.Slot = m.hold.NextSlot()
		k.Relies, k.AgreementEpoch = c.round.Agreed.Lately(m.spec(), c.now())
		k.Relies = k.Relies && a.relies
	}
	k.Acquire(m.spec(), m.namedOwner(), hint)
	k.Op.Timeout = max(k.Op.Timeout-waited, time.Millisecond)
	k.Op.Lead = a.leads
	if m.spec().Slotted != nil && !k.Relies {
		k.Op.Verdict = c.round.Agreed.Judge
	}
	if len(k.Op.Fallback) > 0 {
		m.hold.BeginAttempt(k)
	}
	taken, returns := false, false
	defer func() {
		if taken && !returns { // a context has panicked: the caller does not know of the lock
			m.giveBack(k.Token)
		}
		if taken {
			m.hold.Unpin()
		}
		if !returns || e != nil || m.spec().Second == nil {
			a.leave()
		}
	}()
	switches := c.held.Switches()
	left, e, err := a.round(ctx, k)
	taken = e == nil
	switch {
	case !taken:
	case k.Relies && c.round.Agreed.Epoch.Load() != k.AgreementEpoch:
		e = m.stale(k, err, askAgreed)
		e.detail = unsure
	case !c.held.Survives(ctx, &m.hold, k.Token, switches):
		e = m.stale(k, err, replaced)
	}
	if taken && e != nil {
		m.giveBack(k.Token)
		if ended := ctx.Err(); ended != nil && e.note == replaced { // before they have said so, perhaps
			e, err = c.failure(opLock, m.spec().Key, k, ended, quorum.ErrUndecided), ended
			e.note = replaced
		}
	}
	again := e != nil && e.detail == unsure // no master has failed, and the attempt goes on
	if !again {
		c.stats.countAttempt(e, k.Op.Decided-k.Op.Started)
	}
	if e != nil {
		e.blame(ctx, err)
	}
	if e != nil && e.reason != nil && e.reason != ErrHeld && !again {
		a.failures++
	}
	if e == nil && m.spec().Second != nil {
		a.token = slices.Clone(k.Token)
	}
	c.observeRound(ctx, opLock, m.spec().Key, k, left, e)
	returns = true
	return e
}

// giveBack releases the lock that an attempt has taken, and that nobody knows of.
func (m *Mutex) giveBack(token []byte) {
	m.client.held.GiveBack(&m.hold, token, (*failed)(unasked(opLock, m.spec().Key, ErrNotHeld, "")))
}

// meetFirst waits while the first connections of a new client are under way, no longer than limit, and returns for how long.
func (c *Client) meetFirst(ctx context.Context, limit time.Duration) (waited time.Duration) {
	if c.met.Load() || c.awaitFirst == nil {
		return 0
	}
	began := c.now()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if c.awaitFirst(ctx) == nil {
		c.met.Store(true)
	}
	return c.now() - began
}

// round asks the masters. It installs the lock, or else releases what it may have set on them. It
// returns the rest of the validity, and the mux's error too. The caller leaves.
func (a *attempt) round(ctx context.Context, k *round.Call) (left time.Duration, e *RoundError, err error) {
	m, c := a.mutex, a.mutex.client
	// It does not wait for the mutex: a context that it calls may call TryLock
	// again while Close waits for the attempt that is under way.
	if !c.enter() {
		k.Op.Started, k.Op.Decided = 0, 0
		return 0, unasked(opLock, m.spec().Key, ErrClosed, ""), nil
	}
	a.entered = true
	clean := false // true if no master can have a key of a failed attempt
	had := false   // a quorum has said yes, so the lock can have been revoked since
	defer func() { // also if the context panics
		if !clean {
			m.hold.EndAttempt(k)
			c.round.SendUndo(m.spec(), k.Token, had)
		}
	}()
	err = c.round.Mux.Do(ctx, &k.Op)
	until := m.spec().Term.Until(k.Op.Started)
	owing := k.Op.Asked &^ quorum.AnsweredBy(k.Op.Votes)
	var holder holderSummary
	if t := quorum.Count(k.Op.Votes, err); !t.Cut && t.Yes > 0 && t.Acquired(0, 1) == ErrHeld {
		owing, holder, err = m.resolve(ctx, k, err, until)
	}
	clean = k.Op.Asked&^quorum.SaidNo(k.Op.Votes) == 0 // else releases would pile up as debts while the masters are down
	c.held.ClearExpired(&m.hold)                       // a lock that another goroutine has taken, and let expire, since this attempt began
	now := c.now()
	k.Sets = quorum.NewSets(owing, k.Op.Started, now)
	reason := quorum.Count(k.Op.Votes, err).Acquired(now, until)
	had = reason == nil || reason == ErrExpired
	own := false    // the Mutex itself is in its way
	var far mux.Set // the masters whose counters are not believed
	unbelieved := ""
	if m.spec().Numbers != nil {
		c.round.Hints.Learn(k.Op.Votes)
		far, unbelieved = c.round.Hints.Unbelieved(k.Op.Votes)
		if reason == nil {
			if again, e := c.round.AgreeOnFence(ctx, m.spec(), k); again {
				c.held.Counts().Raised.Add(1)
				err, now = e, c.now()
				reason = quorum.Count(k.Op.Votes, err).Acquired(now, until)
				var more mux.Set
				more, unbelieved = c.round.Hints.Unbelieved(k.Op.Votes)
				far |= more
			}
		}
	}
	if reason == nil && c.isShut() {
		reason = ErrClosed // and its keys are released
	}
	if reason == nil {
		c.round.Mend(m.spec(), k, far)
		if c.held.Install(&m.hold, k, until, now) {
			if m.spec().Slotted != nil && !k.Relies && c.round.ReachedAll(k) {
				c.round.Agreed.Note(m.spec(), k.AgreementEpoch, k.Op.Started)
			}
			clean = true
			return until - now, nil, err
		}
		reason = ErrExpired
		if own = (m.spec().Plural() || m.spec().Second != nil) && m.hold.Taken(c.now); own {
			reason = ErrHeld // another attempt of this Mutex has it: it ran beside this one, or before the masters lost the key
		}
	}
	e = c.failure(opLock, m.spec().Key, k, err, reason)
	switch {
	case own:
		e.note, e.detail = byThisMutex, heldByItself
	case e.reason == ErrHeld && quorum.SaidYes(k.Op.Votes) != 0:
		e.under = ErrSplit
	}
	if holder.votes > 0 {
		e.names(holder)
	}
	if unbelieved != "" && reason == ErrNoQuorum {
		e.note = unbelieved
	}
	return 0, e, err
}

// heldWithin returns an error if the caller would wait for itself: see held.Locks.InTheWay. It allocates nothing unless it
// returns an error.
func (m *Mutex) heldWithin(ctx context.Context) *RoundError {
	by, is := m.client.held.InTheWay(ctx, m.spec())
	if !is {
		return nil
	}
	return ours(m.spec().Key, "the "+cmp.Or(by, "KeepAlive")+" that this context belongs to: locks are not reentrant")
}
