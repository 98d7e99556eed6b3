package mux

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/redburst/redburst/resp"
)

var (
	// ErrClosed is returned to every caller of a Mux that was closed. A Mux that was drained
	// returns it too, unless the operation persists. [errors.Is] finds os.ErrClosed in it.
	ErrClosed error = closedError{}
	// ErrTimeout is returned when Op.Timeout has passed before a decision.
	ErrTimeout = errors.New("mux: not decided within the operation's timeout")
	// ErrForgotten is what Do and Wait return for an Op that was forgotten.
	ErrForgotten = errors.New("mux: operation was forgotten")
	// ErrNoQuorum is in the error of Open ([errors.Is]) if no majority of the masters could
	// be connected.
	ErrNoQuorum = errors.New("mux: no majority of the masters is connected")
	// ErrConnecting is the cause of a failed vote of a master that has not been connected
	// yet.
	ErrConnecting = errors.New("mux: not connected yet")
	// ErrStalled is the cause of a failed vote of a master that owed replies and sent none
	// for longer than the stall time, so that its connection was reset.
	ErrStalled = errors.New("mux: master does not answer: connection reset")
	// ErrBacklog is the cause of a failed vote of a master that is sent nothing more for
	// now, because it owes too many replies or has taken too few of the bytes for it.
	ErrBacklog = errors.New("mux: master lags behind: too much is outstanding")
	// ErrTooLong is what Do and Wait return for an operation whose command and fallback
	// have more than 2 MiB together. It is written to no master.
	ErrTooLong = errors.New("mux: the command is too long")
	// ErrUnexpected is the cause of a failed vote when Op.Verdict could not tell what a
	// reply means, and of a connection's reset when the master sent a reply that nobody
	// asked for.
	ErrUnexpected = errors.New("mux: unexpected reply")
	// ErrSwitched is the cause of a failed vote of a master whose group of sentinels, or whose
	// slot of a cluster, has another master now, or will have soon.
	ErrSwitched = errors.New("mux: the group has another master now")
	// ErrUnconfirmed is the cause of a failed vote of a cluster's master that more than half of
	// the cluster's masters have not confirmed for [conn.SlotTrust].
	ErrUnconfirmed = errors.New("mux: more than half of the cluster's masters have not confirmed it lately")
	// ErrDemoted is the cause of a failed vote of a master with a fixed place that has said
	// that it is a replica now. Its connection was reset.
	ErrDemoted = errors.New("mux: it says that it is a replica now")
	// ErrReplaced is the cause of a failed vote of a master whose place was given to another one.
	ErrReplaced = errors.New("mux: it was replaced")
	// ErrNotMember is in the error of Replace for a master that is not in the list.
	ErrNotMember = errors.New("mux: not one of the masters")
	// ErrAnswers is in the error of Replace for a master that is not down.
	ErrAnswers = errors.New("mux: the old master still answers: shut it down for good first")

	// ErrMayAnswer is in the error of Replace for a master of which nobody can tell here whether it is down: it
	// may be frozen, or out of our reach alone.
	ErrMayAnswer = errors.New("mux: nobody can tell from here whether the old master is down")
	// ErrDuplicate is in the error of a master that is the same server as another one of the
	// list, and in the error of New and Open for two equal addresses.
	ErrDuplicate = errors.New("mux: the same server was given twice")
)

type closedError struct{}

func (closedError) Error() string        { return "mux: closed" }
func (closedError) Is(target error) bool { return target == os.ErrClosed }

// A QuarantineError is the cause of a failed vote of a master that may have forgotten
// locks. It does not vote until the last of them must have expired.
type QuarantineError struct {
	Reason string    // why it may have forgotten locks, as the Keeper said
	Until  time.Time // when it may vote again, by the wall clock; the Keeper can put it off
}

// Error says why the master does not vote, and until when.
func (e *QuarantineError) Error() string {
	return fmt.Sprintf("mux: %s: it may have forgotten locks, and does not vote until %s", e.Reason, e.Until.Format("15:04:05.000"))
}

// A ReplyError is the cause of a failed vote of a master that answered with an error.
type ReplyError struct {
	Code    string // the error's code, such as NOPERM, as by conn.ErrorCode
	Message string // its text with the code, as by conn.Conn.ErrorText: fit to be logged
}

// inScript is where a server says in which script a command has failed, and in which line: behind the error, or before Redis 7
// in front of it.
var inScript = regexp.MustCompile(`( script:( [0-9a-f]+,)?)? on @user_script:\d+\.?|^(ERR Error running script \(call to f_[0-9a-f]+\): )?(@user_script: ?\d+: )+-?`)

// Error returns the Message, which is the master's own and does not name this package. It leaves out in which script and line
// a command has failed.
func (e *ReplyError) Error() string {
	return strings.TrimSpace(inScript.ReplaceAllString(e.Message, ""))
}

// A SkippedError is the cause of a failed vote of a master whose reply exceeds the limits of
// Config.Conn. Nothing of the reply was kept.
type SkippedError struct{ Reply resp.Skipped }

// Error says what the reply was, how long, and which limit it exceeds.
func (e *SkippedError) Error() string {
	return fmt.Sprintf("mux: the reply exceeds the limits: %s of %d bytes (%v)", e.Reply.Kind, e.Reply.Bytes, e.Reply.Fault)
}

// Unwrap makes errors.Is(err, resp.TooLong) and the like work.
func (e *SkippedError) Unwrap() error { return e.Reply.Fault }

// An OpenError says why Open failed, master by master. It wraps the Cause and the error of
// each master that is not connected.
type OpenError struct {
	// Masters is the state of every master when Open gave up, in the order of
	// Config.Masters.
	Masters []State
	// Cause is ErrNoQuorum if too few masters were connected when the dial timeout had
	// passed; the context's error if the context ended first, together with ErrNoQuorum if
	// so many dials had failed by then that there was no majority; or the error of a master
	// that can never serve, if waiting was of no use.
	Cause error
}

// Error returns the Cause and lists each master that is not connected, with its error, on
// one line.
func (e *OpenError) Error() string {
	var b strings.Builder
	b.WriteString("mux: " + unprefixed(e.Cause))
	for _, s := range e.Masters {
		switch {
		case s.Phase == Up || s.Phase == Quarantined || s.Err == e.Cause:
		case s.Err == nil:
			fmt.Fprintf(&b, "; %s: %s", s.Addr, unprefixed(ErrConnecting))
		default:
			b.WriteString("; " + unprefixed(s.Err)) // it names the master itself
		}
	}
	return b.String()
}

// unprefixed is the text of an error that becomes a part of another: on one line, and without
// the names of this package and of conn.
func unprefixed(err error) string { return prefixes.Replace(err.Error()) }

var prefixes = strings.NewReplacer("mux: ", "", "conn: ", "", "\n", "; ")

// Unwrap returns the Cause, and the error of each master that is not connected.
func (e *OpenError) Unwrap() []error {
	errs := []error{e.Cause}
	for _, s := range e.Masters {
		if s.Phase != Up && s.Phase != Quarantined && s.Err != nil {
			errs = append(errs, s.Err)
		}
	}
	return errs
}
