package redlock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redburst/redburst/mux"
)

// A Mutex is a lock on one key. It is made by [Client.NewMutex], and may be used
// by any number of goroutines at once, but it is one holder: of two that call
// Lock on it the second waits like any other contender of the key, and an Unlock
// releases whatever the Mutex holds, whoever took it. Give each holder a Mutex.
//
// TryLock, Extend and Unlock on a Mutex that is reused allocate nothing if they
// succeed and the key has at most 512 bytes: no large buffers are kept.
type Mutex struct {
	client   *Client
	key      string
	term     term
	timeout  time.Duration // of a round
	lifetime time.Duration // 0 if unlimited
	invalid  error         // why it can never be taken

	// mu guards what follows. Extends are posted under it, so that none is
	// posted after an Unlock has taken the token away.
	mu    sync.Mutex
	token []byte        // of the lock that is held, or was until it expired; empty if none is
	until time.Duration // end of the validity; 0 if unknown, of a lock that was handed over
	gone  bool          // it is known to be lost
	since time.Duration // when it was taken; 0 if unknown
	keeps *keep         // its live KeepAlives
}

// Format prints the key, and not the token, whatever the verb.
func (m *Mutex) Format(s fmt.State, _ rune) { fmt.Fprintf(s, "redlock.Mutex{%s}", quoted(m.key)) }

// Key returns the key.
func (m *Mutex) Key() string { return m.key }

// Token returns the token under which the masters know the lock: what another
// process needs to extend or release it ([WithToken]). It is empty while the
// Mutex is unlocked.
func (m *Mutex) Token() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return string(m.token)
}

// Until returns the end of the lock's validity: until then it is provably held,
// if the masters' clocks keep their promise (see the package comment). It is in
// the past once the lock has expired, and zero while the Mutex is unlocked. A
// suspended machine makes it lag, as it does all of Go's times; Remaining does
// not.
func (m *Mutex) Until() time.Time {
	m.mu.Lock()
	until := m.until
	m.mu.Unlock()
	if until == 0 {
		return time.Time{}
	}
	return time.Now().Add(until - m.client.now())
}

// Remaining returns how much is left of the lock's validity, suspended time
// counted; 0 if nothing is.
func (m *Mutex) Remaining() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.until == 0 {
		return 0
	}
	return max(0, m.until-m.client.now())
}

// TryLock tries to take the lock, in one round. Its error is a *RoundError that
// wraps ErrHeld, also if this Mutex holds the lock already; ErrNoQuorum;
// ErrExpired; ErrClosed; or, if ctx ended before the masters had decided, the
// context's error and cause. If it fails, or succeeds too late, what it has set on any
// master is deleted again, whatever becomes of ctx.
//
// A lock that has expired without an Unlock does not count as held: what is left of it is
// released first.
func (m *Mutex) TryLock(ctx context.Context) error {
	if m.invalid != nil {
		return m.invalid
	}
	if e := m.acquire(ctx, false, 0); e != nil {
		return e
	}
	return nil
}

// acquire is one attempt: in one burst, or in turn where others are known to
// contend.
func (m *Mutex) acquire(ctx context.Context, inTurn bool, likely mux.Set) *RoundError {
	c := m.client
	if err := ctx.Err(); err != nil {
		return m.unasked(opLock, nil, "").end(ctx, err)
	}
	if m.Remaining() > 0 {
		return m.unasked(opLock, ErrHeld, byThisMutex)
	}
	c.guard.use(m.term.ttl)
	m.clearExpired()
	k := c.takeCall()
	defer c.putCall(k)
	k.acquire(m)
	taken, told := false, false
	defer func() {
		if taken && !told { // a context or an Observer has panicked: nobody knows that it is taken
			m.giveBack(k, m.unasked(opLock, ErrNotHeld, ""))
		}
	}()
	switches := c.guard.switches.Load()
	left, e, err := m.attempt(ctx, k, inTurn, likely)
	taken = e == nil
	if taken && c.guard.switches.Load() != switches && !m.survives() {
		e = m.stale(opLock, k, err)
		m.giveBack(k, m.unasked(opLock, ErrNotHeld, ""))
	}
	took := k.op.Decided - k.op.Started
	c.stats.attempt(e, took)
	if e != nil {
		e.blame(ctx, err)
	}
	m.observe(ctx, opLock, k, took, left, e)
	told = true
	return e
}

// attempt asks the masters, and either installs the lock or has what may have been set
// on them released. It returns what is left of the validity, and the mux's error too.
func (m *Mutex) attempt(ctx context.Context, k *call, inTurn bool, likely mux.Set) (left time.Duration, e *RoundError, err error) {
	c := m.client
	// It never waits: a context, or an Observer that it calls, may bring us here again
	// while Close waits for the attempt that is under way.
	if !c.attempts.TryRLock() {
		k.op.Started, k.op.Decided = 0, 0
		return 0, m.unasked(opLock, ErrClosed, ""), nil
	}
	clean := false // nothing can be left on any master, or what is there is ours
	defer func() { // also if the context panics
		if !clean {
			m.undo(k)
		}
		c.attempts.RUnlock()
	}()
	if inTurn {
		clean, err = c.inTurn(ctx, m, k, likely)
	} else {
		err = c.rounds.Do(ctx, &k.op)
		clean = k.op.Asked == 0 // or while the masters are down, releases pile up as debts
	}
	m.clearExpired() // another goroutine's, since we have begun
	now, until := c.now(), m.term.until(k.op.Started)
	reason := count(k.op.Votes, err).acquired(now, until)
	if reason == nil {
		if m.install(k.token, until, now) {
			clean = true
			return until - now, nil, err
		}
		reason = ErrExpired
	}
	return until - now, m.failed(opLock, k, err, reason), err
}

// undo has what the call's round may have set on any master released.
func (m *Mutex) undo(k *call) {
	k.release(m, k.token)
	m.client.rounds.Send(&k.op)
}

// giveBack makes the Mutex one that does not hold the call's lock, and has that released.
// Last is how the last round on the lock has failed, if that is why.
func (m *Mutex) giveBack(k *call, last *RoundError) {
	over := m.clear(k.token, last)
	defer m.undo(k) // also if a context panics
	m.client.renewer.finish(over)
}

// clearExpired makes the Mutex one that is not locked if its lock has expired: before it
// takes the next one its KeepAlives have ended and their Observers have been told, and what
// late requests of it may have set on some master is released.
func (m *Mutex) clearExpired() {
	c := m.client
	m.mu.Lock()
	if len(m.token) == 0 || m.until == 0 || m.until > c.now() {
		m.mu.Unlock()
		return
	}
	k := c.takeCall()
	defer c.putCall(k)
	k.token = append(k.token[:0], m.token...) // which never becomes valid again
	m.mu.Unlock()
	m.giveBack(k, nil)
}

// clear makes the Mutex one that is not locked, if it has the lock with that token. From
// then on no renewal of it is sent. It returns the KeepAlives that are to be finished; last is
// that of giveBack.
func (m *Mutex) clear(token []byte, last *RoundError) (over []*keep) {
	r := &m.client.renewer
	r.mu.Lock() // before the KeepAlives are gone, no renewal is under way to Post
	defer r.mu.Unlock()
	m.mu.Lock()
	var keeps *keep
	if string(m.token) == string(token) {
		keeps = m.reset()
	}
	m.mu.Unlock()
	return r.lose(keeps, last)
}

// reset makes the Mutex one that is not locked, and returns its KeepAlives. mu is held.
func (m *Mutex) reset() (keeps *keep) {
	keeps = m.keeps
	m.token, m.until, m.since, m.gone, m.keeps = m.token[:0], 0, 0, false, nil
	return keeps
}

// survives asks the masters again for a lock that was just taken, as one of its votes
// may be that of a master that was replaced meanwhile: the recheck of all locks may have
// come too early to see this one. It reports whether there still is a valid lock.
func (m *Mutex) survives() bool {
	m.client.recheckThese([]*Mutex{m})
	return m.Remaining() > 0
}

// stale is the failure of a round that has succeeded with such a vote.
func (m *Mutex) stale(op string, k *call, err error) *RoundError {
	e := m.failed(op, k, err, ErrNoQuorum)
	e.note = replaced
	return e
}

// replaced is the note of what failed for want of a vote that cannot be believed.
const replaced = "a master was replaced by another"

// install makes the Mutex hold a lock that was just taken. It reports whether it does:
// a caller that stood still until its lock was over may find that another has taken the
// next one, be it that this is over, too.
func (m *Mutex) install(token []byte, until, now time.Duration) bool {
	m.mu.Lock()
	if m.until > until || m.keeps != nil {
		m.mu.Unlock()
		return false
	}
	m.token = append(m.token[:0], token...)
	m.until, m.since, m.gone = until, now, false
	m.mu.Unlock()
	if m.client.groups {
		m.client.holding.add(m)
	}
	return true
}

// Extend gives the lock its full TTL again. It succeeds only while the lock is
// valid by our clock (a lock that was handed over is known by the masters'
// answers alone), and then also repairs it: a TTL that was changed is set right,
// and a master that has lost the key, by a restart or a flush, is given it
// again.
//
// Its error is a *RoundError that wraps ErrNotHeld if the lock is lost for
// certain: its validity had ended, or a quorum of the masters no longer had the
// key, even if all have it now; ErrExpired if its validity ended meanwhile;
// ErrNoQuorum if too few masters answered; ErrClosed; or the context's error if ctx
// ended before the masters had decided. After ErrNotHeld and ErrExpired the Mutex holds
// no valid lock any more; after the others it is valid until Until.
func (m *Mutex) Extend(ctx context.Context) error {
	if m.invalid != nil {
		return m.invalid
	}
	if e := m.extend(ctx); e != nil {
		return e
	}
	return nil
}

func (m *Mutex) extend(ctx context.Context) *RoundError {
	c := m.client
	if err := ctx.Err(); err != nil {
		return m.unasked(opExtend, nil, "").end(ctx, err)
	}
	c.guard.use(m.term.ttl) // which nobody here has used yet if the lock was handed over
	k := c.takeCall()
	defer c.putCall(k)
	switches := c.guard.switches.Load()
	m.mu.Lock()
	limit := m.until
	handed := len(m.token) > 0 && limit == 0
	if !handed && limit <= c.now() {
		note := "its validity has ended"
		if len(m.token) == 0 {
			note = "not locked"
		}
		m.mu.Unlock()
		return m.unasked(opExtend, ErrNotHeld, note)
	}
	k.token = append(k.token[:0], m.token...)
	k.extend(m, k.token, !handed)
	c.rounds.Post(k.one[:]...)
	m.mu.Unlock()

	err := c.rounds.Wait(ctx, &k.op)
	until := m.term.until(k.op.Started)
	limit = m.end(k.token, limit) // which another round may have moved
	if handed {
		limit = until
	}
	now := c.now()
	reason := count(k.op.Votes, err).extended(now, until, limit)
	if reason == nil {
		reason = m.prolong(k.token, until, now)
	}
	if reason == ErrExpired && c.now() < m.end(k.token, 0) {
		reason = nil // we came too late, and others have extended it further
	}
	stale := false
	if reason == nil && handed && c.groups {
		c.holding.add(m) // for the next recheck; the last may not have seen it
		stale = c.guard.switches.Load() != switches && !m.survives()
	}
	var e *RoundError
	switch {
	case stale:
		e = m.stale(opExtend, k, err)
	case reason != nil:
		e = m.failed(opExtend, k, err, reason)
	default:
		c.stats.extended.Add(1)
	}
	took := k.op.Decided - k.op.Started
	if e != nil && (e.reason == ErrNotHeld || e.reason == ErrExpired || stale || !handed && m.end(k.token, 0) <= now) {
		m.lost(k, now, e) // the last: it came so late that it may have set keys again of a lock that is over
	}
	if e != nil {
		e.blame(ctx, err)
	}
	m.observe(ctx, opExtend, k, took, until-now, e)
	return e
}

// prolong moves the end of the validity, if the Mutex still holds that lock: not if it
// was unlocked, or another round has found it to be lost, and is about to release what
// it gave back; nor if it has ended since now, when the caller looked.
func (m *Mutex) prolong(token []byte, until, now time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.gone || string(m.token) != string(token):
		return ErrNotHeld
	case m.until != 0 && m.until <= max(now, m.client.now()):
		return ErrExpired
	}
	m.setUntil(max(until, m.until))
	return nil
}

// end returns the end of the validity of the lock with that token, if the Mutex still
// holds it, and otherwise what was known of it.
func (m *Mutex) end(token []byte, known time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.gone || string(m.token) != string(token) {
		return known
	}
	return max(known, m.until)
}

// keeping reports whether k keeps the lock that the Mutex holds. mu is held.
func (m *Mutex) keeping(k *keep) bool {
	for at := m.keeps; at != nil; at = at.sibling {
		if at == k {
			return true
		}
	}
	return false
}

// setUntil sets the end of the validity, for the KeepAlives too. mu is held.
func (m *Mutex) setUntil(until time.Duration) {
	m.until = until
	for k := m.keeps; k != nil; k = k.sibling {
		k.until.Store(int64(until))
	}
}

// lost takes note that the call's round has found the lock to be lost: it ends
// the validity, releases what the round may have set again on some masters, and
// ends the KeepAlives.
func (m *Mutex) lost(k *call, now time.Duration, why *RoundError) {
	r := &m.client.renewer
	r.mu.Lock() // before an Unlock can find the KeepAlives gone, no renewal is under way to Post
	m.mu.Lock()
	var keeps *keep
	if string(m.token) == string(k.token) {
		if m.until == 0 || m.until > now {
			m.until = now
		}
		m.gone = true
		keeps, m.keeps = m.keeps, nil
	}
	m.mu.Unlock()
	over := r.lose(keeps, why)
	r.mu.Unlock()
	m.undo(k)
	r.finish(over)
}

// Unlock releases the lock. The release goes to every master whatever becomes of
// ctx, which bounds only the waiting for the answers; a master that cannot be
// reached gets it when it is back, or the key ends with its TTL. Afterwards the
// Mutex is unlocked, whatever Unlock returns, and its KeepAlives have ended.
//
//	what the masters say                  returned
//	a quorum deleted the key              nil: the lock was held until now,
//	                                      unless it was known to be lost
//	so many had not got it any more
//	that no quorum can have had it        ErrNotHeld
//	neither, and its validity had ended
//	before Unlock was called              ErrNotHeld
//	neither, and ctx ended before         the context's error
//	neither, and it was still valid       ErrNoQuorum
//	not asked: the Mutex is unlocked      ErrNotHeld
//	not asked: the client is closed       ErrClosed
//
// After ErrNotHeld the lock may have been another's before Unlock was called,
// and exclusion may have been broken. After ErrNoQuorum, and after the context's error,
// nothing was broken: it is only not known that the lock is free yet. The error is a
// *RoundError.
func (m *Mutex) Unlock(ctx context.Context) error {
	if m.invalid != nil {
		return m.invalid
	}
	if e := m.unlock(ctx); e != nil {
		return e
	}
	return nil
}

func (m *Mutex) unlock(ctx context.Context) *RoundError {
	c := m.client
	k := c.takeCall()
	defer c.putCall(k)
	if c.groups {
		c.holding.remove(m) // before: a lock that is installed from now on is added again
	}
	m.mu.Lock()
	if len(m.token) == 0 {
		m.mu.Unlock()
		return m.unasked(opUnlock, ErrNotHeld, "not locked")
	}
	k.release(m, m.token)
	now := c.now()
	expired, gone := m.until != 0 && m.until <= now, m.gone
	since := m.since
	keeps := m.reset()
	m.mu.Unlock()
	if keeps != nil {
		c.renewer.mu.Lock()
		over := c.renewer.end(keeps)
		c.renewer.mu.Unlock()
		finished := false
		defer func() {
			if !finished { // a context has panicked: the release goes out nevertheless
				c.rounds.Send(&k.op)
				c.lines.released(m.key)
			}
		}()
		c.renewer.finish(over)
		finished = true
	}

	c.rounds.Post(k.one[:]...)
	// From here on a local waiter's attempt follows the release on every
	// connection: it need not wait for the answers.
	c.lines.released(m.key)
	if since != 0 {
		c.stats.hold.add(now - since)
	}
	err := c.rounds.Wait(ctx, &k.op)
	reason := count(k.op.Votes, err).released(expired, gone)
	var e *RoundError
	if reason != nil {
		e = m.failed(opUnlock, k, err, reason)
		e.blame(ctx, err)
	} else {
		c.stats.released.Add(1)
	}
	m.observe(ctx, opUnlock, k, k.op.Decided-k.op.Started, 0, e)
	return e
}

const (
	opLock   = "lock"
	opExtend = "extend"
	opUnlock = "unlock"
	opRenew  = "renew"

	opRecheck = "recheck"
)

// unasked is the failure of an operation that asked no master.
func (m *Mutex) unasked(op string, reason error, note string) *RoundError {
	return &RoundError{Op: op, Key: m.key, reason: reason, note: note}
}

// failed makes the error of a round: err is what the mux returned, reason what
// the votes say.
func (m *Mutex) failed(op string, k *call, err, reason error) *RoundError {
	return m.client.failed(op, m.key, k, err, reason)
}

// observe tells the Observer of a round: e is how it failed, if it did.
func (m *Mutex) observe(ctx context.Context, op string, k *call, took, validity time.Duration, e *RoundError) {
	c := m.client
	if c.observe.Round == nil {
		return
	}
	r := Round{Op: op, Key: m.key, Took: took, Asked: len(c.masters)}
	if k.asked != 0 {
		r.Asked = k.asked
	}
	if e != nil {
		r.Votes, r.Err = e.Votes, e
	} else {
		k.votes = appendVotes(k.votes[:0], c.masters, k.op.Votes, k.token)
		r.Votes, r.Validity = k.votes, validity
	}
	c.observe.Round(ctx, r)
}
