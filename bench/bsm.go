package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	goredis "github.com/redis/go-redis/v9"
)

// openBsm opens bsm/redislock, which locks on one master, over a go-redis
// tuned like redsync's.
func openBsm(f *Fleet, goroutines int) (Locker, error) {
	c := newGoRedis(f.endpoints[0], goroutines)
	return &bsmLocker{client: c, locks: redislock.New(c)}, nil
}

type bsmLocker struct {
	client goredis.UniversalClient
	locks  *redislock.Client
}

func (l *bsmLocker) Close() error { return l.client.Close() }

func (l *bsmLocker) Mutex(key string) (Mutex, error) { return &bsmMutex{l: l, key: key}, nil }

type bsmMutex struct {
	l    *bsmLocker
	key  string
	held *redislock.Lock
}

func (m *bsmMutex) obtain(ctx context.Context, opt *redislock.Options) (err error) {
	m.held, err = m.l.locks.Obtain(ctx, m.key, lockTTL, opt)
	return err
}

func (m *bsmMutex) TryLock(ctx context.Context) error { return m.obtain(ctx, nil) }

func (m *bsmMutex) Lock(ctx context.Context) error {
	// Its documentation recommends no less than 16 ms.
	return m.obtain(ctx, &redislock.Options{
		RetryStrategy: redislock.ExponentialBackoff(16*time.Millisecond, 200*time.Millisecond),
	})
}

func (m *bsmMutex) Extend(ctx context.Context) error { return m.held.Refresh(ctx, lockTTL, nil) }
func (m *bsmMutex) Unlock(ctx context.Context) error { return m.held.Release(ctx) }
