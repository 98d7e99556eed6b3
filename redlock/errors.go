package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/held"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
)

// The errors of a lock. An operation that failed wraps one of them. The loss of a lock may wrap a
// second one, which says how it was lost.
//
// If the context ended before the masters had decided, the error wraps the context's error and
// cause alone. It wraps both if a waiting Lock knew by then why it had to wait. So ask for the
// lock's errors first, and then for the context's error.
var (
	// ErrHeld: enough masters answered, and another holds the lock, or is about to; or the
	// caller's own context is that of the lock (see Lock).
	ErrHeld = quorum.ErrHeld
	// ErrSplit is an ErrHeld that can name no holder: some masters have given this client their
	// vote, and others have not, and no majority names another. Perhaps nobody has the lock.
	ErrSplit error = narrower{"redlock: perhaps nobody has it: the votes are split", ErrHeld}
	// ErrNoQuorum: so many masters failed or were late that a quorum was impossible, whether the
	// lock is held or not. The end of a context is another error.
	ErrNoQuorum = quorum.ErrNoQuorum
	// ErrExpired: a quorum said yes, but too late: nothing was left of the lock's validity.
	ErrExpired = quorum.ErrExpired
	// ErrNotHeld: there is no lock to extend or to release. If there was one, it had ended
	// before, and another may have held it since.
	ErrNotHeld = quorum.ErrNotHeld
	// ErrLost is the cause of KeepAlive's context when the lock is not provably held any more.
	ErrLost = errors.New("redlock: lock lost")
	// ErrRevoked is an ErrLost: an operator has taken the lock away from its holder
	// ([Client.Revoke]). RoundError.WhyRevoked has the reason. Nobody else has the lock before
	// its holder lets go of it, or its TTL has passed.
	ErrRevoked error = narrower{"redlock: revoked", ErrLost}
	// ErrMaxLifetime is the cause of KeepAlive's context when the maximum lifetime has passed
	// ([WithMaxLifetime]). The lock is not lost: it stays valid until it is released, or until
	// its validity ends.
	ErrMaxLifetime = errors.New("redlock: the maximum lifetime has passed")
	// ErrSecond: the lock in the other system ([WithSecond]) could not be taken or released, as
	// that system fails; or it was lost.
	ErrSecond = held.ErrSecond
	// ErrClosed: the client was closed.
	ErrClosed = held.ErrClosed
	// ErrRefused is conn.ErrRefused: so many masters refuse this client that no quorum is possible
	// before somebody changes something. They are nodes of a cluster, or replicas; they and we do not
	// trust each other's certificates; they have another password, or rights that lack a command or a
	// key; they are out of memory, or cannot write to their disk; or others use another number of
	// permits. The error of a round wraps ErrNoQuorum, too, so ask for ErrRefused first. A minority
	// that refuses is in the Votes.
	ErrRefused = conn.ErrRefused
)

// A narrower error is one of the others, too.
type narrower struct {
	text string
	of   error
}

func (e narrower) Error() string { return e.text }
func (e narrower) Unwrap() error { return e.of }

// A RoundError says how an operation failed, with every master's vote. Each error that comes from
// the masters has this type. These have other types: an error of the configuration, as no master
// was asked; an error that the caller's own function returns to Do and Lead; and those of
// [Client.Replace] and [Client.Shutdown]. errors.Is and errors.As look into a RoundError, and into
// the masters' own errors.
type RoundError struct {
	Op    string // what failed: one of those of Event.Op, or open, holders, locks, watch, lead or ready
	Key   string // empty for "open"
	Votes []Vote // one for each master; nil if none was asked

	// HeldBy and HeldFor say who holds the key, and how long the key still lives if its holder
	// does not renew it. They are known for a Lock that has run out of time (ErrHeld), and if an
	// attempt that met a split had to ask, and a majority names one. HeldBy is the holder's owner (Config.Owner, WithOwner), which is a hint. It is empty if the holder
	// has published none. HeldFor is below 0 if the key does not expire, and 0 if nothing is
	// known. Of permits, they are about the one that ends first; of readers, about the one that
	// ends last.
	HeldBy  string
	HeldFor time.Duration

	// WhyRevoked is the reason that was given when the lock was revoked. If masters give several as often, it has them all. It is
	// empty if the error does not wrap ErrRevoked, and of an Extend that need not ask the masters any more.
	WhyRevoked string

	failure

	note  string // for the reader of the message
	held  string // likewise: who holds the key
	ahead int    // likewise: how many callers of the process were ahead of it
	late  string // likewise: how long the caller has waited

	// place is the one that a Lock had in the line between processes when it ran out of time, from 1 on, and inLine is
	// how many stood there. Both are 0 if that is not known, or if the Lock was not in the line, as another caller of
	// its process was ahead of it.
	place, inLine int
}

// A failure is what this package goes by when an operation has failed. It has no text: what is for a reader is in the
// RoundError.
type failure struct {
	reason error // the sentinel; nil if the context ended before there was a decision
	under  error // the error under it, if there is one
	ended  error // the context's error, if it cut the operation short
	cause  error // ... and its cause, if that is another
	cut    bool  // the round ended before it was decided

	limit time.Duration // the round timeout, if that has ended the round

	named     bool // a quorum of the masters names a holder
	tombstone bool // a master has the lock's
	detail    detail
}

// A detail is what is known of a failure beside its reason.
type detail uint8

const (
	heldByUs      detail = 1 + iota // of ErrHeld: by a holder of this process; the note says by whom
	heldByItself                    // of ErrHeld: by the Mutex itself
	heldInSecond                    // of ErrHeld: the second lock is
	secondPending                   // the context ended while the second lock was waited for
	unsure                          // the agreement on the number of permits, on which the attempt relied, has ended
)

// Outcome says in one word how an operation has ended, for the labels of metrics and the fields of
// logs. err is what it has returned, or what an Observer was told.
//
//	"ok"              there is no error
//	"held"            ErrHeld, also if a Lock has run out of time because of it
//	"refused"         ErrRefused
//	"no_quorum"       ErrNoQuorum of another cause, also if a Lock has run out of time because of it
//	"expired"         ErrExpired
//	"not_held"        ErrNotHeld
//	"lost"            ErrLost
//	"revoked"         ErrRevoked, whatever else the error wraps
//	"max_lifetime"    ErrMaxLifetime
//	"second"          ErrSecond
//	"closed"          ErrClosed
//	"cancelled"       a context ended before the masters had decided
//	"error"           anything else
func Outcome(err error) string {
	if err == nil {
		return "ok"
	}
	e, ok := errors.AsType[*RoundError](err)
	if !ok {
		return "error"
	}
	if e.reason == ErrRefused || e.reason == ErrNoQuorum && e.refused() {
		return "refused"
	}
	if e.under == ErrRevoked {
		return "revoked"
	}
	for _, o := range outcomes {
		if e.reason == o.reason {
			return o.word
		}
	}
	if e.reason == nil && e.ended != nil {
		return "cancelled"
	}
	return "error"
}

var outcomes = [...]struct {
	reason error
	word   string
}{
	{ErrHeld, "held"},
	{ErrNoQuorum, "no_quorum"},
	{ErrExpired, "expired"},
	{ErrNotHeld, "not_held"},
	{ErrLost, "lost"},
	{ErrMaxLifetime, "max_lifetime"},
	{ErrSecond, "second"},
	{ErrClosed, "closed"},
}

// The operations: see [RoundError] and [Event].
const (
	opLock    = "lock"
	opExtend  = held.OpExtend
	opUnlock  = held.OpUnlock
	opRenew   = held.OpRenew
	opRecheck = held.OpRecheck
	opRevoke  = "revoke"
	opOpen    = "open"
	opHolders = "holders"
	opLead    = "lead"
	opWatch   = "watch"
	opLocks   = "locks"
	opReady   = "ready"
)

// Notes of a RoundError.
const (
	byThisMutex = "this Mutex already" // the Mutex itself is in the attempt's way
	byUs        = "this process"       // another caller of this client is
	replaced    = held.Replaced
	askAgreed   = "whether all agree on the number of permits is to be asked again"
)

// unasked makes the error of an operation that asked no master.
func unasked(op string, key string, reason error, note string) *RoundError {
	return &RoundError{Op: op, Key: key, failure: failure{reason: reason}, note: note}
}

// ours makes the error of an attempt that a holder of this process is in the way of.
func ours(key, by string) *RoundError {
	e := unasked(opLock, key, ErrHeld, by)
	e.detail = heldByUs
	return e
}

// byItself makes the error of an attempt that the Mutex itself is in the way of.
func byItself(key string) *RoundError {
	e := ours(key, byThisMutex)
	e.detail = heldByItself
	return e
}

// lostTo makes the cause of a KeepAlive's context that ended for that reason, and not because a
// renewal failed.
func lostTo(key string, under error) *RoundError {
	e := unasked(opRenew, key, ErrLost, "")
	e.under = under
	return e
}

// asError makes an error of one that may be nil.
func asError(e *RoundError) error {
	if e == nil {
		return nil
	}
	return e
}

// Error says what happened, then why, master by master.
func (e *RoundError) Error() string {
	var b strings.Builder
	b.WriteString("redlock: ")
	b.WriteString(e.Op)
	if e.Key != "" {
		b.WriteString(" " + kind.Quoted(e.Key))
	}
	ended := ""
	if e.ended != nil {
		ended = e.ended.Error()
	}
	if e.cause != nil {
		ended += ": " + e.cause.Error()
	}
	what := []string{ended}
	if e.reason != nil {
		what = []string{e.why(e.reason)}
	}
	if e.under == ErrSplit {
		what = nil
	}
	if e.under != nil {
		what = append(what, e.why(e.under))
	}
	if e.WhyRevoked != "" {
		what = append(what, strconv.Quote(e.WhyRevoked))
	}
	switch {
	case e.note == "":
	case e.detail == heldByUs || e.detail == heldByItself: // in place of ErrHeld's text
		what = []string{"held by " + e.note}
	default:
		what = append(what, e.note)
	}
	b.WriteString(": " + strings.Join(what, ": "))
	if n := len(e.Votes); n > 0 && e.reason != ErrRefused { // a refusal counts, however many others say yes
		count := map[string]int{}
		for _, v := range e.Votes {
			count[v.Verdict]++
		}
		pending := "not waited for"
		switch {
		case e.cut && e.reason == nil:
			pending = "outstanding"
		case e.cut:
			pending = "late"
		}
		fmt.Fprintf(&b, " (%d yes, %d no, %d failed, %d %s; %d of %d needed)",
			count[votedYes], count[votedNo], count[voteFailed], count[votePending], pending, quorum.Majority(n), n)
	}
	if e.held != "" {
		b.WriteString("; " + e.held)
	}
	switch {
	case e.place > 0:
		fmt.Fprintf(&b, "; number %d of %d in line", e.place, max(e.place, e.inLine))
	case e.ahead > 0:
		fmt.Fprintf(&b, "; %d of this process were ahead of it", e.ahead)
	}
	if e.reason != nil && ended != "" {
		b.WriteString("; " + ended)
	}
	if e.late != "" {
		b.WriteString("; " + e.late)
	}
	for i, v := range e.Votes {
		// Errors of the transport name the master themselves.
		s := strings.TrimPrefix(e.failed(v), v.Addr+": ")
		if s == "" || slices.ContainsFunc(e.Votes[:i], func(of Vote) bool { return sameFailure(e.failed(of), of.Addr, s, v.Addr) }) {
			continue
		}
		b.WriteString("; " + v.Addr)
		for _, of := range e.Votes[i+1:] {
			if sameFailure(e.failed(of), of.Addr, s, v.Addr) {
				b.WriteString(", " + of.Addr)
			}
		}
		b.WriteString(": " + s)
	}
	return b.String()
}

// failed says why a master's vote is none; empty if it is one, or was not waited for.
func (e *RoundError) failed(v Vote) string {
	switch {
	case v.Err != nil:
		return unprefixed(v.Err.Error())
	case v.Verdict == votePending && e.limit != 0:
		return lateError{e.limit}.Error()
	}
	return ""
}

// sameFailure reports whether two masters failed alike, but for their addresses.
func sameFailure(a, addr, b, other string) bool {
	a = strings.TrimPrefix(a, addr+": ")
	return a == b || addr != "" && strings.ReplaceAll(a, addr, other) == b
}

// why returns the text of the reason, or of the error under it.
func (e *RoundError) why(err error) string {
	if err == ErrNoQuorum && e.refused() {
		return "too many masters refuse"
	}
	return bare(err)
}

func bare(err error) string { return unprefixed(strings.TrimPrefix(err.Error(), "redlock: ")) }

// unprefixed returns the text of an error of a package below, without the names of these packages: users know the
// masters, and not what talks to them.
func unprefixed(text string) string { return prefixes.Replace(text) }

var prefixes = strings.NewReplacer("mux: ", "", "conn: ", "")

// A plainError is an error with its text unprefixed.
type plainError struct{ error }

func (e plainError) Error() string { return bare(e.error) }
func (e plainError) Unwrap() error { return e.error }

// A lateError is the vote of a master that has not answered in time. It wraps mux.ErrTimeout.
type lateError struct{ limit time.Duration }

func (e lateError) Error() string {
	return fmt.Sprintf("no answer within the round timeout of %v", e.limit)
}
func (lateError) Unwrap() error { return mux.ErrTimeout }

// Unwrap returns the sentinel, the error under it, and the context's error and cause.
func (e *RoundError) Unwrap() []error {
	errs := make([]error, 0, 4)
	for _, err := range [...]error{e.reason, e.under, e.ended, e.cause} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// Is reports whether target is the sentinel, or in a master's error. It does not look for context
// errors there: if a master could not be dialled in time, the caller was not out of time. Nor does
// it look for ErrRefused: a minority that refuses is not why the operation has failed.
func (e *RoundError) Is(target error) bool {
	if target == e.reason || target == e.under {
		return target != nil
	}
	if target == ErrRefused {
		return e.refused()
	}
	if target == context.Canceled || target == context.DeadlineExceeded {
		return false
	}
	for _, v := range e.Votes {
		if v.Err != nil && errors.Is(v.Err, target) {
			return true
		}
	}
	return false
}

// As finds the first master's error of the target's type, such as a
// *mux.ReplyError or a *conn.RefusedError.
func (e *RoundError) As(target any) bool {
	for _, v := range e.Votes {
		if v.Err != nil && errors.As(v.Err, target) {
			return true
		}
	}
	return false
}

// blame notes that a context cut the round short, if it did. err is what the mux returned. It
// asks the context, which may panic, so it comes after all else.
func (e *RoundError) blame(ctx context.Context, err error) {
	if err != nil && err != mux.ErrTimeout && e.reason != ErrClosed {
		e.endedBy(ctx, err)
	}
}

// endedBy notes that a context cut the operation short, with this error.
func (e *RoundError) endedBy(ctx context.Context, err error) *RoundError {
	e.ended, e.cause = err, nil
	if cause := context.Cause(ctx); cause != err {
		e.cause = cause
	}
	return e
}

// final reports whether it is of no use to try again: the client is closed, or so many masters
// refuse us that there is no quorum before a person changes their configuration.
func (e *RoundError) final() bool { return e.reason == ErrClosed || e.refusedBy(permanent) }

// differs reports whether so many masters refuse us, even if only as others have another number
// of permits.
func (e *RoundError) differs() bool {
	return e.refusedBy(func(err error) bool { return permanent(err) || codeOf(err) == "PERMITS" })
}

// refused reports whether it is ErrRefused.
func (e *RoundError) refused() bool {
	return e.reason == ErrRefused || (e.reason == ErrNoQuorum || e.under == ErrNoQuorum) && e.refusedBy(func(err error) bool {
		switch codeOf(err) {
		case "PERMITS", "OOM", "MISCONF": // Lock goes on trying: another client, or the server itself, may change that
			return true
		}
		return permanent(err)
	})
}

// revoked reports whether the lock is gone because it was revoked.
func (e *RoundError) revoked() bool { return e != nil && e.under == ErrRevoked }

func (e *RoundError) refusedBy(refuses func(error) bool) bool {
	refused := 0
	for _, v := range e.Votes {
		if v.Err != nil && refuses(v.Err) {
			refused++
		}
	}
	return refused > 0 && refused > quorum.Spare(len(e.Votes))
}

func codeOf(err error) string {
	var reply *mux.ReplyError
	if !errors.As(err, &reply) {
		return ""
	}
	return reply.Code
}

// ended turns the mux's error into that of a call that waits.
func ended(err error) error {
	if errors.Is(err, mux.ErrClosed) {
		return ErrClosed
	}
	return err
}

func permanent(err error) bool {
	if errors.Is(err, conn.ErrRefused) {
		return true
	}
	switch codeOf(err) {
	case "NOPERM", "NOAUTH", "WRONGPASS", "NOFENCE", "NOSHARED":
		return true
	}
	return false
}
