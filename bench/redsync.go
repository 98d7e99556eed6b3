package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	redsyncgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	redsyncredigo "github.com/go-redsync/redsync/v4/redis/redigo"
	"github.com/gomodule/redigo/redis"
	goredis "github.com/redis/go-redis/v9"
)

// quickRetry is the mean delay between the attempts of a redsync that was
// tuned for waiting: its default is 50 to 250 ms.
const quickRetry = 5 * time.Millisecond

// A poolOpener opens one client's connections to one master.
type poolOpener func(e Endpoint, goroutines int) (pool redsyncredis.Pool, close func() error, err error)

func openRedsync(open poolOpener, failFast bool, retry time.Duration) func(f *Fleet, goroutines int) (Locker, error) {
	return func(f *Fleet, goroutines int) (Locker, error) {
		l := &redsyncLocker{failFast: failFast}
		var pools []redsyncredis.Pool
		for i := range f.N {
			pool, closePool, err := open(f.endpoints[i], goroutines)
			if err != nil {
				l.Close()
				return nil, err
			}
			pools = append(pools, pool)
			l.closers = append(l.closers, closePool)
		}
		l.rs = redsync.New(pools...)
		l.options = []redsync.Option{
			redsync.WithExpiry(f.ttl()),
			redsync.WithFailFast(failFast),
			// Its 32 tries by default would turn a long wait into an error.
			redsync.WithTries(1 << 30),
		}
		if retry > 0 {
			l.options = append(l.options, redsync.WithRetryDelayFunc(func(int) time.Duration {
				return retry/2 + rand.N(retry)
			}))
		}
		return l, nil
	}
}

type redsyncLocker struct {
	rs       *redsync.Redsync
	options  []redsync.Option
	failFast bool
	closers  []func() error
}

func (l *redsyncLocker) Close() error {
	var err error
	for _, c := range l.closers {
		err = errors.Join(err, c())
	}
	return err
}

func (l *redsyncLocker) Mutex(key string) (Mutex, error) {
	return &redsyncMutex{l: l, key: key, m: l.rs.NewMutex(key, l.options...)}, nil
}

type redsyncMutex struct {
	l   *redsyncLocker
	key string
	m   *redsync.Mutex
}

// fresh makes a new redsync.Mutex where the old one may still be read: in
// fail-fast mode its goroutines outlive the call and read its value.
func (m *redsyncMutex) fresh() *redsync.Mutex {
	if m.l.failFast {
		m.m = m.l.rs.NewMutex(m.key, m.l.options...)
	}
	return m.m
}

func (m *redsyncMutex) TryLock(ctx context.Context) error { return m.fresh().TryLockContext(ctx) }
func (m *redsyncMutex) Lock(ctx context.Context) error    { return m.fresh().LockContext(ctx) }

var errRefused = errors.New("redsync: refused without an error")

func (m *redsyncMutex) Extend(ctx context.Context) error { return verdict(m.m.ExtendContext(ctx)) }
func (m *redsyncMutex) Unlock(ctx context.Context) error { return verdict(m.m.UnlockContext(ctx)) }

// verdict leaves out the error of a minority.
func verdict(ok bool, err error) error {
	switch {
	case ok:
		return nil
	case err == nil:
		return errRefused
	}
	return err
}

// openGoRedis tunes go-redis for a lock as its debugging and pool guides say:
// the context's deadline is honoured, one short timeout and no retries (the
// lock algorithm has its own), and as many connections as the callers use at
// once, the fail-fast mode's stragglers included.
func openGoRedis(e Endpoint, goroutines int) (redsyncredis.Pool, func() error, error) {
	c := newGoRedis(e, goroutines)
	return redsyncgoredis.NewPool(c), c.Close, nil
}

func newGoRedis(e Endpoint, goroutines int) goredis.UniversalClient {
	goredis.SetLogger(silent{}) // it logs every failed dial, which takes time
	opt := &goredis.Options{
		Network:               e.Network,
		Addr:                  e.Addr,
		TLSConfig:             e.TLS,
		Password:              e.Password,
		DialTimeout:           time.Second,
		DialerRetries:         1,
		ReadTimeout:           roundTimeout,
		WriteTimeout:          roundTimeout,
		ContextTimeoutEnabled: true,
		MaxRetries:            -1,
		PoolSize:              poolSize(goroutines),
	}
	if e.Network != clusterNetwork {
		return goredis.NewClient(opt)
	}
	return goredis.NewClusterClient(&goredis.ClusterOptions{
		Addrs:                 strings.Split(e.Addr, ","),
		Password:              opt.Password,
		DialTimeout:           opt.DialTimeout,
		DialerRetries:         opt.DialerRetries,
		ReadTimeout:           opt.ReadTimeout,
		WriteTimeout:          opt.WriteTimeout,
		ContextTimeoutEnabled: opt.ContextTimeoutEnabled,
		PoolSize:              opt.PoolSize,
	})
}

func poolSize(goroutines int) int { return max(20, 2*goroutines) }

func openRedigo(e Endpoint, goroutines int) (redsyncredis.Pool, func() error, error) {
	options := []redis.DialOption{
		redis.DialContextFunc((&net.Dialer{Timeout: time.Second}).DialContext),
		redis.DialReadTimeout(roundTimeout),
		redis.DialWriteTimeout(roundTimeout),
		redis.DialPassword(e.Password),
	}
	if e.TLS != nil {
		options = append(options, redis.DialUseTLS(true), redis.DialTLSConfig(e.TLS))
	}
	p := &redis.Pool{
		// An idle connection over MaxIdle is closed, so it has to hold the
		// busiest moment, or every burst dials.
		MaxIdle:     poolSize(goroutines),
		IdleTimeout: 4 * time.Minute,
		DialContext: func(ctx context.Context) (redis.Conn, error) {
			return redis.DialContext(ctx, e.Network, e.Addr, options...)
		},
	}
	return redsyncredigo.NewPool(p), p.Close, nil
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
