package main

import (
	"context"
	"time"

	"github.com/redburst/redburst/redlock"
)

// openRedburst opens redburst with its defaults. One client serves any number of
// goroutines, so their number needs no tuning.
func openRedburst(opts ...redlock.Option) func(f *Fleet, _ int) (Locker, error) {
	return openRedburstWith(func(*redlock.Config) {}, opts...)
}

// openRedburstWith opens redburst with other settings than its defaults.
func openRedburstWith(set func(cfg *redlock.Config), opts ...redlock.Option) func(f *Fleet, _ int) (Locker, error) {
	return func(f *Fleet, _ int) (Locker, error) {
		cfg := redlock.Config{Masters: f.URLs(), TLS: f.endpoints[0].TLS}
		if f.clusters != nil {
			cfg.Prefix = "{locks}:" // all keys are in one slot
		}
		if f.durable {
			cfg.Durable, cfg.RestartGuard = true, f.ttl()
		}
		set(&cfg)
		if f.rounds != nil {
			cfg.Observers = []redlock.Observer{f.rounds.told}
		}
		c, err := redlock.Open(context.Background(), cfg)
		if err != nil {
			return nil, err
		}
		return redburstLocker{c, f.ttl(), opts}, nil
	}
}

type redburstLocker struct {
	client *redlock.Client
	ttl    time.Duration
	opts   []redlock.Option
}

func (l redburstLocker) Close() error { return l.client.Close() }

func (l redburstLocker) Mutex(key string) (Mutex, error) {
	return redburstMutex{l.client.NewMutex(key, l.ttl, l.opts...)}, nil
}

type redburstMutex struct{ *redlock.Mutex }

func (m redburstMutex) KeepAlive(ctx context.Context) (context.Context, func()) {
	return m.Mutex.KeepAlive(ctx)
}
