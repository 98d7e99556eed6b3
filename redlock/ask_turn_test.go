package redlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A master that was asked before the others, and has not answered in its time, may have set the key
// all the same.
func TestAnAttemptInTurnIsReleasedWhereItWasNotAnswered(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		order := ranked(nil, "k", r.Masters())
		r.set(func(m *fakeMaster) { m.mute = true }, order[0])
		r.set(occupy, order[1])
		e := (&attempt{mutex: c.NewMutex("k", ttl), inTurn: true}).take(t.Context())
		require.NotNil(t, e)
		require.ErrorIs(t, e, ErrHeld)
		time.Sleep(time.Second)
		require.Equal(t, 1, r.keys(), "another's")
	})
}

// The master that is asked before the others refuses what is free there. It does not keep anybody from the lock.
func TestAMasterThatRefusesInTurnIsNotAskedFirstForEver(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		r.set(func(m *fakeMaster) { m.deny = denyQueues }, all(5)...) // so they contend in turn
		holder := c.NewMutex("k", time.Hour)
		require.NoError(t, holder.TryLock(t.Context()))
		p := newProcesses(t, r, holder)
		for range 3 {
			p.join()
		}
		for i := range 3 {
			p.wait(i, t.Context())
		}
		time.Sleep(time.Second)
		r.set(func(m *fakeMaster) { m.stubborn = true }, ranked(nil, "k", r.Masters())[0])
		p.release(3)
	})
}
