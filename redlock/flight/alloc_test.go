//go:build !race

package flight

import (
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// The race detector makes sync.Pool forget on purpose: this runs without it.
func TestRecordingAllocatesNothing(t *testing.T) {
	for name, opt := range map[string]Options{"memory": {}, "file": {File: t.TempDir() + "/record"}} {
		rec := newRecorder(t, opt)
		c := recorded(t, rec, redlock.Config{Masters: redlocktest.Start(t, 5).Addrs()})
		for kind, m := range map[string]*redlock.Mutex{
			"plain":   c.NewMutex("k", ttl),
			"fenced":  c.NewMutex("f", ttl, redlock.WithFence()),
			"several": c.NewMutex("s", ttl, redlock.WithKeys("t", "u")),
		} {
			pair := func() {
				if m.TryLock(t.Context()) != nil || m.Unlock(t.Context()) != nil {
					t.Error("no lock")
				}
			}
			least := testing.AllocsPerRun(50, pair)
			for range 20 {
				if least == 0 {
					break
				}
				least = min(least, testing.AllocsPerRun(50, pair))
			}
			require.Zero(t, least, "%s, %s", name, kind)
		}
		cfg, err := rec.Attach(redlock.Config{})
		require.NoError(t, err)
		events := []redlock.Event{
			{Kind: behind.Wait, Key: "k"},
			{Kind: behind.Wake, Key: "k"},
			{Kind: redlock.EventWaited, Key: "k", Took: time.Second},
			{Kind: behind.HandedOver, Key: "k"},
		}
		require.Zero(t, testing.AllocsPerRun(1000, func() {
			for i := range events {
				cfg.Observers[0](t.Context(), &events[i])
			}
		}))
	}
}
