package redlock

import "context"

// A Second is a lock in another system, behind that on the masters ([WithSecond]): an etcd cluster, a
// ZooKeeper ensemble. Implementations are in redlock/contrib. Its methods may be called by any number
// of goroutines at once.
//
// Whatever a call that fails may have left behind, it takes away by itself, also if that is only
// possible after it has returned.
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
	// monotonic clock. Its cause says why. It ends with Unlock, too.
	Context() context.Context
	// Fence is greater than that of every earlier holder of the key. It is 0 if the system has none.
	Fence() uint64
	// Unlock releases the lock. It is called once, also after Context has ended, and returns soon after
	// ctx has ended. The release goes out whatever becomes of ctx. The error wraps ErrNotHeld if the lock
	// was not held any more, and any other error says that nobody knows yet whether it is free.
	Unlock(ctx context.Context) error
}
