package main

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// byHand is the name of a lock as articles show it.
const byHand = "by-hand"

// openByHand opens that: a loop over one go-redis client for each master, one after the other.
func openByHand(f *Fleet, goroutines int) (Locker, error) {
	l := &byHandLocker{ttl: f.ttl()}
	for i := range f.N {
		l.clients = append(l.clients, newGoRedis(f.endpoints[i], goroutines))
	}
	return l, nil
}

type byHandLocker struct {
	clients []goredis.UniversalClient
	ttl     time.Duration
}

func (l *byHandLocker) Close() error {
	var err error
	for _, c := range l.clients {
		err = errors.Join(err, c.Close())
	}
	return err
}

func (l *byHandLocker) Mutex(key string) (Mutex, error) { return &byHandMutex{l: l, key: key}, nil }

type byHandMutex struct {
	l          *byHandLocker
	key, token string
}

var (
	errByHand     = errors.New("by hand: no majority")
	byHandRelease = goredis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) else return 0 end`)
	byHandExtend  = goredis.NewScript(`if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("PEXPIRE", KEYS[1], ARGV[2]) else return 0 end`)
)

// majority counts the masters that do it.
func (m *byHandMutex) majority(do func(c goredis.UniversalClient) bool) error {
	yes := 0
	for _, c := range m.l.clients {
		if do(c) {
			yes++
		}
	}
	if yes <= len(m.l.clients)/2 {
		return errByHand
	}
	return nil
}

func (m *byHandMutex) TryLock(ctx context.Context) error {
	started := time.Now()
	m.token = rand.Text()
	err := m.majority(func(c goredis.UniversalClient) bool {
		ok, err := c.SetNX(ctx, m.key, m.token, m.l.ttl).Result()
		return ok && err == nil
	})
	if err == nil && time.Since(started) < m.l.ttl-m.l.ttl/100 {
		return nil
	}
	m.Unlock(ctx)
	return errByHand
}

func (m *byHandMutex) Lock(ctx context.Context) error { return m.TryLock(ctx) }

func (m *byHandMutex) Extend(ctx context.Context) error {
	return m.run(ctx, byHandExtend, m.token, m.l.ttl.Milliseconds())
}

func (m *byHandMutex) Unlock(ctx context.Context) error { return m.run(ctx, byHandRelease, m.token) }

func (m *byHandMutex) run(ctx context.Context, s *goredis.Script, args ...any) error {
	return m.majority(func(c goredis.UniversalClient) bool {
		n, err := s.Run(ctx, c, []string{m.key}, args...).Int()
		return n == 1 && err == nil
	})
}
