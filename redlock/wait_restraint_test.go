package redlock

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// notifyOfNothing has the masters notify a process every millisecond that whatever its waiters wait for has changed, as
// masters do whose table of promises is full.
func (r *notifiedRounds) notifyOfNothing(d time.Duration) {
	ns := &r.client.notices
	for end := r.now() + d; r.now() < end; time.Sleep(time.Millisecond) {
		ns.mu.Lock()
		keys := slices.Collect(maps.Keys(ns.byKey))
		ns.mu.Unlock()
		r.mu.Lock()
		for _, key := range keys {
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

// Where notices tell of changes, or are rare, nobody pauses.
func TestNoticesOfChangesAreActedOnAtOnce(t *testing.T) {
	var r restraint
	at := time.Hour
	for i := range 1000 {
		at += time.Millisecond
		require.Equal(t, at, r.due(at))
		r.learn(i%3 == 0)
	}
	r = restraint{}
	for range 1000 {
		at += 2*noticePauseMax + 1
		require.Equal(t, at, r.due(at))
		r.learn(false)
	}
	for range 2 * maxVainNotices {
		at += time.Millisecond
		at = r.due(at)
		r.learn(false)
	}
	require.Equal(t, at+noticePauseMax, r.due(at+1))
	require.Equal(t, at+time.Minute, r.due(at+time.Minute), "after a quiet time")
}
