package etcd

import (
	"context"
	"errors"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/contrib/internal/second"
)

// The defaults of the options.
const (
	DefaultTTL    = 10 * time.Second
	DefaultPrefix = "redlock/"
)

// An Option is a setting of New.
type Option func(*store)

// WithTTL sets for how long a lease lasts that is not renewed, which is after how long others can have the locks of
// a process that has died. It is rounded up to seconds. etcd raises it to one and a half of its election
// timeout, which is 2 s by default. The default is DefaultTTL. A request that is not answered within a
// third of it, or a second if that is more, has failed.
func WithTTL(ttl time.Duration) Option { return func(s *store) { s.ttl = ttl } }

// WithPrefix sets what the names of all keys in etcd begin with. The default is DefaultPrefix.
func WithPrefix(prefix string) Option { return func(s *store) { s.prefix = prefix } }

// A Second takes locks in an etcd cluster. It is a redlock.Second. Any number of goroutines may use it.
type Second struct {
	store  *store
	second *second.Second
}

var _ redlock.Second = (*Second)(nil)

// New makes a Second of an etcd client. It does not wait for etcd: the first lock opens the
// session. The client stays the caller's, who closes it after the Second.
func New(client *clientv3.Client, opts ...Option) (*Second, error) {
	if client == nil {
		return nil, errors.New("etcd: no client")
	}
	s := &store{client: client, ttl: DefaultTTL, prefix: DefaultPrefix}
	for _, opt := range opts {
		opt(s)
	}
	if s.ttl <= 0 {
		return nil, errors.New("etcd: the TTL must be above zero")
	}
	s.ttl = (s.ttl + time.Second - 1).Truncate(time.Second)
	return &Second{store: s, second: second.New("etcd", s, s.ttl)}, nil
}

// TryLock takes the lock of a key, or fails at once, with an error that wraps redlock.ErrHeld if another has it
// or waits for it.
func (s *Second) TryLock(ctx context.Context, key string) (redlock.SecondLock, error) {
	return s.second.TryLock(ctx, key)
}

// Lock takes the lock of a key. It waits for it until ctx ends. Those who wait have it in the order in which
// they came.
func (s *Second) Lock(ctx context.Context, key string) (redlock.SecondLock, error) {
	return s.second.Lock(ctx, key)
}

// Close ends the session, and with it all locks and their contexts, and waits until no goroutine is left, for a third
// of the TTL at most. An error says that etcd has not confirmed it: then the locks are free when the TTL has
// passed. All later calls fail with redlock.ErrClosed.
func (s *Second) Close() error { return s.second.Close() }

// Prefix returns the prefix that gives a concurrency.Mutex the lock of this key.
func (s *Second) Prefix(key string) string { return s.store.prefix + escape(key) }

var escaper = strings.NewReplacer("%", "%25", "/", "%2F")

// escape makes a key one step of a path, and no two keys the same.
func escape(key string) string { return escaper.Replace(key) }
