package redlock

import (
	"context"
	"errors"
	"time"
)

// A Second is a lock in another system, behind that on the masters ([WithSecond]): an etcd cluster, a
// ZooKeeper ensemble. Implementations are in redlock/contrib. Its methods may be called by any number
// of goroutines at once.
//
// A call that fails cleans up after itself, even after it has returned.
type Second interface {
	// TryLock takes the lock of a key, or fails at once with an error that wraps ErrHeld if another
	// has it or waits for it. Any other error says that nobody knows, as the system fails.
	// It returns soon after ctx has ended.
	TryLock(ctx context.Context, key string) (SecondLock, error)
	// Lock takes the lock of a key. It waits for it until ctx ends, and fails at once if the system
	// does. An error that ctx has brought about wraps ctx's error. It returns soon after ctx has ended.
	Lock(ctx context.Context, key string) (SecondLock, error)
}

// A SecondLock is a lock that a [Second] has taken.
type SecondLock interface {
	// Context ends no later than the moment from which another can have the lock, by this process's
	// monotonic clock. Its cause says why. It ends with Unlock, too. Its Err is asked wherever somebody
	// wants to know whether the lock is held, so it can look at the clock itself (timers do not count a
	// suspend); it must not block.
	Context() context.Context
	// Fence is greater than that of every earlier holder of the key. It is 0 if the system has none.
	Fence() uint64
	// Unlock releases the lock. It is called once, also after Context has ended, and returns soon after
	// ctx has ended. The release goes out whatever becomes of ctx. The error wraps ErrNotHeld if the lock
	// was not held any more, and any other error says that nobody knows yet whether it is free.
	Unlock(ctx context.Context) error
}

// A behind is the second lock of a hold that has taken both.
type behind struct {
	lock  SecondLock
	ctx   context.Context // of the lock, and of package context: it is asked under locks
	end   context.CancelFunc
	until time.Duration // that the hold's validity has ever had for its end; guarded by hold.mu
	timer *time.Timer   // fires when that may have passed
	watch func() bool   // stops watching ctx
	gone  bool          // it was released; who has taken it out of its hold has this to itself
}

// attach asks the lock for its context, which may panic.
func (b *behind) attach() { b.ctx, b.end = context.WithCancel(b.lock.Context()) }

// look has the lock's own context look whether it is over, which ends ours. No lock is held, as the context
// may be of any kind.
func (b *behind) look() {
	if b != nil {
		_ = b.lock.Context().Err()
	}
}

// lost reports whether there was a second lock, and is none any more.
func (b *behind) lost() bool { return b != nil && b.ctx.Err() != nil }

// why says how it was lost.
func (b *behind) why() error { return secondEnded{context.Cause(b.ctx)} }

// secondEnded says how a second lock was lost. It is made under locks, so it does not ask the other system's
// error for anything yet.
type secondEnded struct{ cause error }

func (e secondEnded) Error() string   { return ErrSecond.Error() + ": " + e.cause.Error() }
func (e secondEnded) Unwrap() []error { return []error{ErrSecond, apart{e.cause}} }

// apart is an error of the other system. It is no error of the caller's context, whatever ended there.
type apart struct{ error }

func (a apart) Is(target error) bool {
	return target != context.Canceled && target != context.DeadlineExceeded && errors.Is(a.error, target)
}

func (a apart) As(target any) bool { return errors.As(a.error, target) }

// giveUp releases it and waits for nobody. b may be nil.
func (b *behind) giveUp() {
	if b == nil {
		return
	}
	b.unlock(overdue)
}

// overdue is a context that has ended.
var overdue = func() context.Context {
	ctx, end := context.WithCancel(context.Background())
	end()
	return ctx
}()

// unlockWithin is unlock, and waits for no longer than d.
func (b *behind) unlockWithin(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return b.unlock(ctx)
}

// unlock releases it, once: a context that panics may bring its caller back.
func (b *behind) unlock(ctx context.Context) error {
	if b.gone {
		return nil
	}
	b.gone = true
	if b.watch != nil {
		b.watch()
		b.timer.Stop()
	}
	if b.end != nil {
		defer b.end()
	}
	return b.lock.Unlock(ctx)
}
