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
		order := ordered(nil, "k", r.Masters())
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
		r.set(func(m *fakeMaster) { m.stubborn = true }, ordered(nil, "k", r.Masters())[0])
		p.release(3)
	})
}

// In turn, the masters that are asked later are given the first one's number as their hint.
func TestAskedInTurnTheMastersAgree(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		ahead := time.Now().Add(time.Hour).UnixMicro()
		order := ordered(nil, "k", r.Masters())
		r.set(func(m *fakeMaster) { m.counters["k"] = ahead }, order[0])
		r.set(unscript, order[1], order[2]) // which are told the number by text
		m := c.NewMutex("k", ttl, WithFence())
		require.Nil(t, (&attempt{mutex: m, inTurn: true}).take(t.Context()))
		require.EqualValues(t, ahead+1, m.Fence())
		require.Zero(t, c.Stats().FenceRaised)
		require.NoError(t, m.Unlock(t.Context()))
	})
}

// A second round asks all masters, also after a first one that has asked them in turn.
func TestAskedInTurnAllMastersAreRaised(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		ahead := time.Now().Add(time.Hour).UnixMicro()
		order := ordered(nil, "k", r.Masters())
		r.set(func(m *fakeMaster) { m.counters["k"] = ahead }, order[1])
		r.set(func(m *fakeMaster) { occupy(m) }, order[2])
		m := c.NewMutex("k", ttl, WithFence())
		require.Nil(t, (&attempt{mutex: m, inTurn: true}).take(t.Context()))
		require.EqualValues(t, ahead+1, m.Fence())
		require.EqualValues(t, 1, c.Stats().FenceRaised)
		require.NoError(t, m.Unlock(t.Context()))
	})
}

// Contenders for the same keys ask the same master first, whatever the order of the keys.
func TestSeveralAskAlikeInTurn(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
			first := map[int]int{}
			for _, m := range []*Mutex{c.NewMutex("0", ttl, WithKeys(key)), c.NewMutex(key, ttl, WithKeys("0"))} {
				r.set(func(m *fakeMaster) { m.keys["0"] = fakeKey{"another's", r.clock() + time.Hour} }, all(5)...)
				k := newCall().(*call)
				k.acquire(&m.spec, "", 0)
				clean, err := inTurn(t.Context(), &c.core, &m.spec, k, 0)
				require.NoError(t, err)
				require.True(t, clean)
				require.Len(t, k.earlyVotes, 1)
				first[k.earlyVotes[0].master]++
			}
			require.Len(t, first, 1)
		}
	})
}
