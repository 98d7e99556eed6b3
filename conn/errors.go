package conn

import (
	"errors"
	"net"
	"os"
	"strings"
)

var (
	// ErrRefused is found by [errors.Is] in every error that wraps a [*RefusedError].
	ErrRefused = errors.New("conn: refused")

	// ErrNotMaster is found by [errors.Is] in the error of a server that has said that
	// it is a replica.
	ErrNotMaster = errors.New("conn: not a master")

	// ErrPollerClosed is what every method of a closed [Poller] returns. It is
	// [os.ErrClosed] and [net.ErrClosed] for [errors.Is].
	ErrPollerClosed error = closedError("poller")

	errClosed error = closedError("connection")
)

// closedError says what is closed, and is known by the names that the standard library
// has for that.
type closedError string

func (e closedError) Error() string      { return "conn: " + string(e) + " is closed" }
func (closedError) Is(target error) bool { return target == os.ErrClosed || target == net.ErrClosed }

// Error is what [Dial] and the methods of [Conn] return if they fail, but for
// [Conn.Next]: which master, what was being done, and why it failed. Its text holds no
// password.
type Error struct {
	Addr string // whose connection it is, as by [Address.String]: no credentials

	// Op is what was being done: "credentials", "sentinel", "resolve", "connect", "tls" or
	// "handshake" in Dial; "write", "read", "close" or, for those that end, "credentials"
	// after it.
	Op string

	// Err is the cause: of the system, such as an [os.SyscallError]; of crypto/tls;
	// [io.EOF]; a [*RefusedError]; a [*resp.SyntaxError]; an error of Options.Credentials;
	// or of the context, together with what it interrupted.
	Err error

	unsent bool
}

// Error is the master, what was being done, and the cause, as in "conn: 10.0.0.1:6379:
// connect: connection refused". Control characters in it are escaped.
func (e *Error) Error() string {
	// Errors of this package, of the system and of crypto/tls repeat what stands in front of
	// them here. What they quote can come from the other side, such as the names in a
	// certificate.
	cause := strings.TrimPrefix(e.Err.Error(), "conn: ")
	return "conn: " + e.Addr + ": " + e.Op + ": " + Printable(strings.TrimPrefix(cause, e.Op+": "))
}

// Unwrap returns the cause, which is Err.
func (e *Error) Unwrap() error { return e.Err }

// RefusedError says that this master can never serve as it is configured: it is a node of
// a cluster or a replica, or the password is wrong. To try again is of no use before
// somebody has changed something. It comes inside an [*Error], which names the master.
type RefusedError struct {
	Reason string // what is wrong
	Remedy string // what to do about it

	replica bool
}

// Error is the reason and, in parentheses, the remedy.
func (e *RefusedError) Error() string { return e.Reason + " (" + e.Remedy + ")" }

// Is reports whether target is [ErrRefused], or is [ErrNotMaster] and the server is a
// replica.
func (e *RefusedError) Is(target error) bool {
	return target == ErrRefused || e.replica && target == ErrNotMaster
}

// demotedError says that a server is not the master of the group that it was dialed for.
// It is no refusal: the sentinels may know the new master a moment later.
type demotedError struct{ role, group string }

func (e demotedError) Error() string {
	return "it is the " + e.role + " of group " + e.group + ", and not its master"
}

func (demotedError) Is(target error) bool { return target == ErrNotMaster }

// SafeToRetry reports whether the master cannot have seen any of the caller's command,
// because no byte of it was written. It is true for every error of [Dial], which sends no
// command of the caller, and for an error of [Conn.Send] before the first byte. It says
// that to try again does no harm, not that it helps. It is false for an error that wraps
// no [*Error], and for nil.
func SafeToRetry(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.unsent
}
