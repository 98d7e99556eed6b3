package conn

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
)

var (
	// ErrRefused is what [errors.Is] finds in every error that wraps a [*RefusedError].
	ErrRefused = errors.New("conn: refused")

	// ErrNotMaster is what [errors.Is] finds in the error of a server that has said that it
	// is a replica, and of a node of a cluster that has said that the slot is another's or on its
	// way there.
	ErrNotMaster = errors.New("conn: not a master")

	// ErrNoListener is in the error of [Dial] if each address of the master has refused the connection: the
	// machine is up, and nobody listens there. A server that is frozen, or out of reach, refuses none.
	ErrNoListener = errors.New("conn: nobody listens there")

	// ErrUnanswered is in the error of [Dial] if a server has taken a connection and has not answered in time: the
	// master, a sentinel or a node, or who gives the credentials. It may have had work with it, or be far away.
	ErrUnanswered = errors.New("conn: no answer in time")

	// ErrPollerClosed is what every method of a closed [Poller] returns. [errors.Is] takes
	// it for [os.ErrClosed] and for [net.ErrClosed].
	ErrPollerClosed error = closedError("poller")

	errClosed error = closedError("connection")
)

// An ofKind is an error that is one of the above, too.
type ofKind struct {
	error
	kind error
}

func (e ofKind) Is(target error) bool { return target == e.kind }
func (e ofKind) Unwrap() error        { return e.error }

// notMaster says that a server is not the master of the group that it was dialed for, or that a node of a cluster does not have the
// slot, or not for long. It is no refusal: another may be known to be it a moment later.
func notMaster(text string) error { return ofKind{errors.New(text), ErrNotMaster} }

// awaitAnswer waits for a connection that was made.
func awaitAnswer(ctx context.Context, p *Poller, s *sock, want Interest) error {
	err := p.await(ctx, s, want)
	if err != nil && ctx.Err() == context.DeadlineExceeded {
		err = ofKind{err, ErrUnanswered}
	}
	return err
}

// foreign is an error of a connection of the user's own, or of its Dialer. It says nothing of the master: so it is none of
// those by which a master is judged.
func foreign(err error) error {
	judged := refusedTLS(err)
	for _, verdict := range []error{ErrNoListener, ErrRefused, ErrNotMaster, ErrUnanswered} {
		if errors.Is(judged, verdict) {
			return errors.New(err.Error())
		}
	}
	return err
}

// quoting is an error whose text would quote a password.
type quoting struct {
	error
	text string
}

func (e quoting) Error() string { return e.text }
func (e quoting) Unwrap() error { return e.error }

// quoted is an error that quotes what a server says, without the passwords that it is told, which hide hides: it may have been
// told them before.
func quoted(err error, hide func(string) string) error {
	if text := hide(err.Error()); text != err.Error() {
		return quoting{err, text}
	}
	return err
}

// closedError says what is closed, and is known by the names that the standard library
// has for that.
type closedError string

func (e closedError) Error() string      { return "conn: " + string(e) + " is closed" }
func (closedError) Is(target error) bool { return target == os.ErrClosed || target == net.ErrClosed }

// Error is what [Dial] and the methods of [Conn], except [Conn.Next], return if they fail. It
// says which master it was, what was being done, and why it failed. Its text holds no password.
type Error struct {
	Addr string // whose connection it is, as by [Address.String]: no credentials

	// Op is what was being done. In Dial it is "credentials", "sentinel", "cluster",
	// "resolve", "connect", "tls" or "handshake". After it, it is "write", "read", "close" or, if the
	// credentials could not be renewed, "credentials".
	Op string

	// Err is the cause: an error of the system, such as an [os.SyscallError], or of
	// crypto/tls; [io.EOF]; a [*RefusedError]; a [*resp.SyntaxError]; an error of
	// Options.Credentials; or that of the context, together with what it interrupted.
	Err error
}

// Error returns the address, what was being done, and the cause, as in "conn: 10.0.0.1:6379:
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

// RefusedError says that this master can never serve as it is configured. For example, its certificate has expired, it is a
// node of a cluster or a replica, or the password is wrong. To try again is of no use before
// somebody has changed something. A RefusedError comes inside an [*Error], which names the
// master.
type RefusedError struct {
	Reason string // what is wrong
	Remedy string // what to do about it

	cause   error // of crypto/tls; nil if it is another
	replica bool
}

// Error returns the reason and, in parentheses, the remedy.
func (e *RefusedError) Error() string { return e.Reason + " (" + e.Remedy + ")" }

// Unwrap returns the error of crypto/tls, if it was that.
func (e *RefusedError) Unwrap() error { return e.cause }

// Is reports whether target is [ErrRefused], or is [ErrNotMaster] and the server is a
// replica.
func (e *RefusedError) Is(target error) bool {
	return target == ErrRefused || e.replica && target == ErrNotMaster
}
