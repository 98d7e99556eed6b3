package redlock

import (
	"context"
	"errors"
)

// A Second takes locks in another system, beside those on the masters ([WithSecond]): an etcd
// cluster, a ZooKeeper ensemble. Implementations are in redlock/contrib. Any number of goroutines
// may call its methods at once.
//
// A call that fails cleans up after itself, even after it has returned.
type Second interface {
	// TryLock takes the lock of a key. If another has it or waits for it, TryLock fails at once
	// with an error that wraps ErrHeld. Any other error says that the system fails, and that
	// nothing is known. It returns soon after ctx has ended.
	TryLock(ctx context.Context, key string) (SecondLock, error)
	// Lock takes the lock of a key. It waits for it until ctx ends, and fails at once if the
	// system fails. An error that is due to ctx wraps ctx's error. It returns soon after ctx has
	// ended.
	Lock(ctx context.Context, key string) (SecondLock, error)
}

// A SecondLock is a lock that a [Second] has taken.
type SecondLock interface {
	// Context ends no later than another can have the lock, by this process's monotonic clock.
	// Its cause says why. It ends with Unlock, too. The client calls its Err whenever a caller
	// asks whether the lock is held, so Err can look at the clock itself (timers do not count a
	// suspend). Err must not block.
	Context() context.Context
	// Fence is greater than that of every earlier holder of the key. It is 0 if the system has
	// none.
	Fence() uint64
	// Unlock releases the lock. The client calls it once, even after Context has ended. It
	// returns soon after ctx has ended, and the release goes out whatever becomes of ctx. The
	// error wraps ErrNotHeld if the lock was not held any more. Any other error says that it is
	// not known whether the lock is free.
	Unlock(ctx context.Context) error
}

// secondEnded says how a second lock was lost. It is made while mutexes are held, so it does not
// yet call the error of the other system.
type secondEnded struct{ cause error }

func (e secondEnded) Error() string   { return ErrSecond.Error() + ": " + e.cause.Error() }
func (e secondEnded) Unwrap() []error { return []error{ErrSecond, foreignError{e.cause}} }

// A foreignError is an error of the other system. It never counts as an error of the caller's
// context, though a context of that system may have ended.
type foreignError struct{ error }

func (a foreignError) Is(target error) bool {
	return target != context.Canceled && target != context.DeadlineExceeded && errors.Is(a.error, target)
}

func (a foreignError) As(target any) bool { return errors.As(a.error, target) }
