package flight_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/flight"
	"github.com/redburst/redburst/redlock/internal/record"
	"github.com/redburst/redburst/redlock/internal/story"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// The records of two hosts whose clocks are minutes apart are told in the order in which it was: by the clocks of their
// masters; and where these do not say what time it is, by fences.
func TestOrderIsRightWhereClocksLie(t *testing.T) {
	t.Parallel()
	for name, mute := range map[string]bool{"by the masters": false, "by fences": true} {
		for _, by := range []time.Duration{7 * time.Minute, -7 * time.Minute} {
			t.Run(fmt.Sprint(name, " ", by), func(t *testing.T) {
				t.Parallel()
				masters := redlocktest.Start(t, 3)
				var recorders []*flight.Recorder
				var mutexes []*redlock.Mutex
				var clients []*redlock.Client
				for i, lie := range []time.Duration{0, by} {
					rec, err := flight.New(flight.Lying(lie, mute))
					require.NoError(t, err)
					defer rec.Close()
					cfg, err := rec.Attach(redlock.Config{Masters: masters.Addrs(), Owner: []string{"right", "wrong"}[i]})
					require.NoError(t, err)
					c, err := redlock.Open(t.Context(), cfg)
					require.NoError(t, err)
					defer c.Close()
					recorders, clients = append(recorders, rec), append(clients, c)
					mutexes = append(mutexes, c.NewMutex("k", time.Minute, redlock.WithFence()))
				}
				for range 5 {
					for _, m := range mutexes {
						require.NoError(t, m.Lock(t.Context()))
						require.NoError(t, m.Unlock(t.Context()))
					}
				}
				var sources []story.Source
				for i, rec := range recorders {
					require.Eventually(t, func() bool { return clients[i].Stats().EventsWaiting == 0 }, time.Minute, time.Millisecond)
					var b bytes.Buffer
					_, err := rec.WriteTo(&b)
					require.NoError(t, err)
					r, err := record.Read(&b)
					require.NoError(t, err)
					sources = append(sources, story.Source{Name: fmt.Sprint(i), Record: r})
				}
				tale := story.Tell(sources, time.Minute)
				require.Len(t, tale.Holds, 10)
				last := uint64(0)
				for _, h := range tale.Holds {
					require.Greater(t, h.Fence, last)
					last = h.Fence
				}
				disagree := 0
				for _, f := range tale.Findings {
					require.NotEqual(t, story.Overlap, f.Matter, f.Text)
					require.NotEqual(t, story.Loss, f.Matter, f.Text)
					if f.Matter == story.Clocks {
						disagree++
						require.Regexp(t, `(6m5\d|7m)`, f.Text)
					}
				}
				if by < 0 || !mute {
					require.Equal(t, 1, disagree, tale.Findings)
				}
			})
		}
	}
}
