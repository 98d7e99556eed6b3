package mux

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

var (
	// ErrClosed is returned to every caller of a Mux that was closed, and of one that was
	// drained unless the operation persists. [errors.Is] finds os.ErrClosed in it.
	ErrClosed error = closedError{}
	// ErrTimeout is returned when Op.Timeout passed before a decision.
	ErrTimeout = errors.New("mux: not decided within the operation's timeout")
	// ErrForgotten is what Wait returns for an Op that was forgotten.
	ErrForgotten = errors.New("mux: operation was forgotten")
	// ErrNoQuorum is found in the error of Open when no majority of the
	// masters could be connected.
	ErrNoQuorum = errors.New("mux: no majority of the masters is connected")
	// ErrConnecting is the cause of a failed vote of a master that has not
	// been connected yet.
	ErrConnecting = errors.New("mux: not connected yet")
	// ErrStalled is the cause of a failed vote of a master that owed a reply
	// for longer than the stall time, so that its connection was reset.
	ErrStalled = errors.New("mux: master does not answer: connection reset")
	// ErrBacklog is the cause of a failed vote of a master that is given
	// nothing more, because too many replies or too many unwritten bytes are
	// outstanding there.
	ErrBacklog = errors.New("mux: master lags behind: too much is outstanding")
	// ErrTooLong is what Do and Wait return for an operation whose command and
	// fallback have more than 2 MiB together: it is written to nobody.
	ErrTooLong = errors.New("mux: the command is too long")
	// ErrUnexpected is the cause of a failed vote, or of the reset of a
	// connection, when a master answered what the command cannot draw.
	ErrUnexpected = errors.New("mux: unexpected reply")
	// ErrSwitched is the cause of a failed vote of a master whose group has
	// another master now.
	ErrSwitched = errors.New("mux: the group has another master now")
	// ErrDemoted is the cause of a failed vote of a master with a fixed place that has
	// said that it is a replica now. Its connection is reset.
	ErrDemoted = errors.New("mux: it says that it is a replica now")
	// ErrDuplicate is found in the error of a master that turned out to be
	// the same server as another one of the list.
	ErrDuplicate = errors.New("mux: the same server was given twice")
)

type closedError struct{}

func (closedError) Error() string        { return "mux: closed" }
func (closedError) Is(target error) bool { return target == os.ErrClosed }

// A QuarantineError is the cause of a failed vote of a master that may have
// forgotten locks, until the last of them must have expired.
type QuarantineError struct {
	Reason string
	Until  time.Time
}

// Error says why, and until when.
func (e *QuarantineError) Error() string {
	return fmt.Sprintf("mux: %s: it may have forgotten locks, and does not vote until %s", e.Reason, e.Until.Format("15:04:05.000"))
}

// A ReplyError is an error reply of a master.
type ReplyError struct {
	Code    string // such as NOPERM: conn.ErrorCode
	Message string // the text with its code, as far as it can be logged: conn.ErrorText
}

// Error returns the master's message.
func (e *ReplyError) Error() string { return e.Message }

// An OpenError says why Open failed, master by master. It wraps the Cause, and the
// error of each master that is not up.
type OpenError struct {
	Masters []State
	// Cause is ErrNoQuorum if masters failed, or did not answer in time; the context's
	// error, together with ErrNoQuorum if a majority had become impossible by then; or
	// the refusal of a master, if waiting is of no use.
	Cause error
}

// Error lists each master that is not up, with its cause.
func (e *OpenError) Error() string {
	var b strings.Builder
	b.WriteString("mux: " + bare(e.Cause))
	for _, s := range e.Masters {
		switch {
		case s.Phase == Up || s.Phase == Quarantined || s.Err == e.Cause:
		case s.Err == nil:
			fmt.Fprintf(&b, "; %s: %s", s.Address, bare(ErrConnecting))
		default:
			b.WriteString("; " + bare(s.Err)) // it names the master itself
		}
	}
	return b.String()
}

// bare is the text of an error that becomes a part of another: on one line, and without
// the name of this package.
func bare(err error) string { return barer.Replace(err.Error()) }

var barer = strings.NewReplacer("mux: ", "", "\n", "; ")

// Unwrap returns the causes.
func (e *OpenError) Unwrap() []error {
	errs := []error{e.Cause}
	for _, s := range e.Masters {
		if s.Phase != Up && s.Phase != Quarantined && s.Err != nil {
			errs = append(errs, s.Err)
		}
	}
	return errs
}
