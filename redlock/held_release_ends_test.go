package redlock

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// Releases that come while the client is closed.
func TestReleasesDuringClose(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	for n := range bearable(6) {
		var closed atomic.Bool
		var late atomic.Int64
		c := openedWith(t, Config{Masters: masters.Addrs(), Observers: onEvent(EventRound, func(r *Event) {
			if r.Op == opUnlock && closed.Load() {
				late.Add(1)
			}
		})})
		var all []*Mutex
		for i := range 2000 {
			m := c.NewMutex(fmt.Sprint("k", n, ".", i), time.Hour)
			require.NoError(t, m.TryLock(t.Context()))
			all = append(all, m)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for _, m := range all {
				m.Release()
			}
		}()
		require.Eventually(t, func() bool { return c.Stats().Released > 0 }, hanging, 10*time.Microsecond)
		require.NoError(t, c.Close())
		closed.Store(true)
		<-done
		time.Sleep(time.Millisecond) // nothing says that none will come
		if late.Load() > 0 {
			t.Errorf("%d rounds were told after Close had returned", late.Load())
			return
		}
	}
}

type nosy struct{ ask func() }

func (nosy) Error() string   { return "nosy" }
func (e nosy) Is(error) bool { e.ask(); return false }

func TestTheSecondsErrorIsNotAskedWithTheMuxLocked(t *testing.T) {
	_, c := started(t, 1)
	s := newOther(0)
	s.refusal = nosy{func() { c.Stats() }}
	m := c.NewMutex("k", time.Minute, WithSecond(s))
	require.NoError(t, m.TryLock(t.Context()))
	require.NoError(t, m.Release())
	over := make(chan struct{})
	go func() { c.NewMutex("l", time.Minute).TryLock(t.Context()); close(over) }()
	conntest.Soon(t, "another lock", over)
}

// polite answers Unlock as contrib does: once ctx has ended, with its error.
type polite struct{ SecondLock }

func (l polite) Unlock(ctx context.Context) error {
	l.SecondLock.Unlock(context.Background())
	if ctx.Err() != nil {
		return fmt.Errorf("etcd: unlock: %w", ctx.Err())
	}
	return nil
}

type politely struct{ Second }

func (p politely) TryLock(ctx context.Context, key string) (SecondLock, error) {
	l, err := p.Second.TryLock(ctx, key)
	return polite{l}, err
}

func TestAReleaseOfAPairIsNoFailure(t *testing.T) {
	o := new(toldOf)
	simulated(t, 3, Config{Observers: o.observer()}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := c.NewMutex("k", ttl, WithSecond(politely{newOther(time.Millisecond)}))
		require.NoError(t, m.TryLock(t.Context()))
		require.NoError(t, m.Release())
		require.NoError(t, o.last(t).Err)
		require.Zero(t, c.Stats().ReleaseFailed)
	})
}

// Close waits for a group that is used again.
func TestCloseDoesNotPanic(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	began := time.Now()
	for n := 0; time.Since(began) < bearably(3*time.Second); n++ {
		c := openedWith(t, Config{Masters: masters.Addrs(), Observers: onEvent(EventRound, func(r *Event) {})})
		var all []*Mutex
		for i := range 300 {
			m := c.NewMutex(fmt.Sprint("k", i), time.Hour)
			require.NoError(t, m.TryLock(t.Context()))
			all = append(all, m)
		}
		go c.Close()
		<-c.closed
		done := make(chan struct{})
		go func() {
			defer close(done)
			for _, m := range all {
				m.Release()
				for range n % 50 {
					_ = fmt.Sprint(n)
				}
			}
		}()
		func() {
			defer func() {
				if p := recover(); p != nil {
					t.Fatalf("Close panicked: %v (try %d)", p, n)
				}
			}()
			c.Close()
		}()
		<-done
		Says(t, masters, 0, "FLUSHALL")
	}
}
