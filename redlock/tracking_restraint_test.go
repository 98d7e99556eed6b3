package redlock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/redlock/internal/tracking"
	"github.com/stretchr/testify/require"
)

// As redlock/internal/tracking/restraint.go has them.
const (
	maxVainNotices = 8
	noticePauseMax = 8 * tracking.NotifyPause
)

// notifyOfNothing has the masters notify a process every millisecond that whatever its waiters wait for has changed, as
// masters do whose table of promises is full.
func (r *notifiedRounds) notifyOfNothing(d time.Duration) {
	for end := r.now() + d; r.now() < end; time.Sleep(time.Millisecond) {
		keys := r.client.tracking.Keys()
		r.mu.Lock()
		for key := range keys {
			for master := range r.masters {
				r.told(master, key)
			}
		}
		r.mu.Unlock()
	}
	synctest.Wait()
}

func TestNoticesOfNothingAreActedOnWithAPause(t *testing.T) {
	queued(t, 2, func(t *testing.T, p *processes) { // one waits for the lock, and one for its predecessor
		const d = 5 * time.Second
		for i := range p.clients {
			before := p.rounds[i].ordered()
			p.rounds[i].notifyOfNothing(d)
			n := p.rounds[i].ordered() - before
			require.Less(t, n, 6*int(d/noticePauseMax)+6*maxVainNotices)
			require.Greater(t, n, int(d/noticePauseMax), "they still look")
		}
		_, after := p.release(2)
		require.Less(t, after[0], noticePauseMax+20*time.Millisecond)
	})
}

func TestWatcherActsWithAPauseOnNoticesOfNothing(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		taken(t, c)
		watcher, told := another(t, r, Config{})
		next, stop := watched(t, watcher, "k")
		defer stop()
		require.True(t, next().Held)
		const d = 5 * time.Second
		before := told.ordered()
		told.notifyOfNothing(d)
		require.Less(t, told.ordered()-before, 2*int(d/noticePauseMax)+4*maxVainNotices)
	})
}
