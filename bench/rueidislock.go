package main

import (
	"context"
	"errors"

	"github.com/redis/rueidis/rueidislock"
)

// openRueidisLock opens rueidislock, whose majority is one of keys on one
// master, with one key, as its own benchmark does. It renews every lock it
// holds, and it waits for an invalidation instead of trying again.
func openRueidisLock(f *Fleet, _ int) (Locker, error) {
	opt := rueidisOption(f.endpoints[0])
	opt.DisableCache = false // it waits by it
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   opt,
		KeyValidity:    lockTTL,
		TryNextAfter:   roundTimeout,
		KeyMajority:    1,
		NoLoopTracking: true,
	})
	if err != nil {
		return nil, err
	}
	return rueidisLocker{l}, nil
}

type rueidisLocker struct{ locker rueidislock.Locker }

func (l rueidisLocker) Close() error { l.locker.Close(); return nil }

func (l rueidisLocker) Mutex(key string) (Mutex, error) {
	return &rueidisMutex{locker: l.locker, key: key}, nil
}

type rueidisMutex struct {
	locker  rueidislock.Locker
	key     string
	release context.CancelFunc
}

func (m *rueidisMutex) TryLock(ctx context.Context) (err error) {
	_, m.release, err = m.locker.TryWithContext(ctx, m.key)
	return err
}

func (m *rueidisMutex) Lock(ctx context.Context) (err error) {
	// The lock ends with its context, which is not what bounds the waiting.
	held, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	_, release, err := m.locker.WithContext(held, m.key)
	if !stop() && err == nil {
		release()
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return err
	}
	m.release = func() { release(); cancel() }
	return nil
}

func (m *rueidisMutex) Extend(context.Context) error {
	return errors.New("rueidislock: extends by itself only")
}

func (m *rueidisMutex) Unlock(context.Context) error {
	m.release() // returns when the master has answered, and not what
	return nil
}
