package redlock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// How long a lock is valid by a round, whatever the round is for.

// What a round gives is counted from its start: that is when the first of the keys can have been set.
func TestValidityIsCountedFromTheStartOfEachRound(t *testing.T) {
	const delay = 3 * time.Millisecond
	for name, c := range map[string]struct {
		op   string
		took time.Duration
		do   func(ctx context.Context, m *Mutex) error
	}{
		"TryLock": {opLock, delay, func(ctx context.Context, m *Mutex) error { return m.TryLock(ctx) }},
		"Extend":  {opExtend, delay, func(ctx context.Context, m *Mutex) error { return m.Extend(ctx) }},
		"KeepAlive": {opRenew, delay, func(ctx context.Context, m *Mutex) error {
			held, stop := m.KeepAlive(ctx)
			defer stop()
			time.Sleep(ttl / 4) // a renewal comes in between
			return context.Cause(held)
		}},
		"recheck": {opRecheck, delay, func(_ context.Context, m *Mutex) error {
			m.client.held.Recheck(&m.hold)
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, client *Client, r *fakeRounds) {
				m := client.NewMutex("k", ttl)
				if c.op != opLock {
					require.NoError(t, m.TryLock(t.Context()))
					time.Sleep(ttl / 4)
				}
				var left []time.Duration
				client.events.hook(EventRound, func(round *Event) {
					if round.Op == c.op {
						left = append(left, m.Remaining())
					}
				})
				r.set(func(m *fakeMaster) { m.delay = delay }, all(3)...)
				require.NoError(t, c.do(t.Context(), m))
				synctest.Wait()
				require.Equal(t, []time.Duration{ttl - m.spec().Term.Drift - c.took}, left)
			})
		})
	}
}
