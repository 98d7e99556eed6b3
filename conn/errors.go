package conn

import (
	"errors"
	"net"
	"os"
	"strings"
)

// ErrRefused is found by [errors.Is] in every error that holds a [*RefusedError].
var ErrRefused = errors.New("refused")

// ErrNotMaster is found by [errors.Is] in the error of a server that has said that it is
// no master now, but a replica.
var ErrNotMaster = errors.New("not its master")

// ErrPollerClosed is returned by a [Poller] that has been closed.
var ErrPollerClosed error = pollerClosed{}

type pollerClosed struct{}

func (pollerClosed) Error() string        { return "poller closed" }
func (pollerClosed) Is(target error) bool { return target == os.ErrClosed || target == net.ErrClosed }

// Error is what every failing call of this package returns: which master, what was
// being done, and why it failed. It never holds a password.
type Error struct {
	Master string // the address without credentials, as by [Address.String]
	Op     string // "credentials", "sentinel", "resolve", "connect", "tls", "handshake", "read", "write"
	Err    error

	unsent bool
}

func (e *Error) Error() string {
	// Errors of the system, and of crypto/tls, say the same again. What they quote can
	// come from the other side, such as the names in a certificate.
	return e.Master + ": " + e.Op + ": " + Printable(strings.TrimPrefix(e.Err.Error(), e.Op+": "))
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// RefusedError says that this master can never serve as it is configured, so trying
// again is of no use before somebody has changed something: a node of a cluster, a
// replica, a wrong password. It comes inside an [*Error], which names the master.
type RefusedError struct {
	Reason string // what is wrong
	Remedy string // what to do about it

	replica bool
}

func (e *RefusedError) Error() string { return e.Reason + " (" + e.Remedy + ")" }

// Is reports whether target is [ErrRefused]; or [ErrNotMaster], if it is a replica.
func (e *RefusedError) Is(target error) bool {
	return target == ErrRefused || e.replica && target == ErrNotMaster
}

// SafeToRetry reports whether the master cannot have seen any of the caller's
// command, because no byte of it was written: true for every error of [Dial], which
// sends no command of the caller's, and for every error of [Conn.Send]. It says that
// trying again does no harm, not that it helps. An error that this package did not
// make, a joined one of several masters included, is not safe.
func SafeToRetry(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.unsent
}
