package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func TestEachLockHasAGreaterFence(t *testing.T) {
	masters := redlocktest.Start(t, 5)
	c := opened(t, masters.Addrs(), nil)
	last := uint64(0)
	for range 20 {
		m := c.NewMutex("k", 10*time.Second, WithFence())
		require.Zero(t, m.Fence())
		require.NoError(t, m.TryLock(t.Context()))
		require.Greater(t, m.Fence(), last)
		last = m.Fence()
		require.NoError(t, m.Extend(t.Context()))
		require.Equal(t, last, m.Fence())
		require.NoError(t, m.Unlock(t.Context()))
		require.Zero(t, m.Fence())
	}
	require.Zero(t, c.Stats().FenceRaised, "nobody else was there")
	all, err := c.Holders(t.Context(), "k", WithFence())
	require.NoError(t, err)
	at := 0
	for _, h := range all {
		if h.Fence == last {
			at++
		}
	}
	require.GreaterOrEqual(t, at, 3)
}

func TestFenceFromTheContext(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := opened(t, masters.Addrs(), nil)
	require.Zero(t, FenceFrom(t.Context()))
	require.NoError(t, c.Do(t.Context(), "a", 10*time.Second, func(outer context.Context) error {
		a := FenceFrom(outer)
		require.NotZero(t, a)
		type some struct{}
		derived, cancel := context.WithCancel(context.WithValue(outer, some{}, 1))
		defer cancel()
		require.Equal(t, a, FenceFrom(derived))
		return errors.Join(
			c.Do(outer, "b", 10*time.Second, func(inner context.Context) error {
				require.NotZero(t, FenceFrom(inner))
				require.NotEqual(t, a, FenceFrom(inner))
				return nil
			}, WithFence()),
			c.Do(outer, "c", 10*time.Second, func(inner context.Context) error {
				require.Zero(t, FenceFrom(inner), "the outer lock's number says nothing of this one")
				return nil
			}))
	}, WithFence()))
	m := c.NewMutex("a", 10*time.Second, WithFence())
	require.NoError(t, m.TryLock(t.Context()))
	held, stop := m.KeepAlive(t.Context())
	require.Equal(t, m.Fence(), FenceFrom(held))
	stop()
	require.Equal(t, m.Fence(), FenceFrom(held), "it can still be used to be refused")
	require.NoError(t, m.Unlock(t.Context()))
	require.NotZero(t, FenceFrom(held))
}

// The scripts do on real masters what the model's counters do, whatever is asked in whatever order.
func TestScriptsOfTheFence(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	c := opened(t, masters.Addrs(), nil)
	random := rand.New(rand.NewPCG(rand.Uint64(), 0))
	const ttl = time.Minute
	for round := range 20 {
		key := fmt.Sprint("k", round)
		var want counter
		s := &spec{key: key, term: newTerm(ttl, 0.01, 0), timeout: hanging}
		s.numbers = newFenced(key, ttl, time.Hour)
		s.kind = s.numbers
		for step := range 100 {
			k := c.takeCall()
			token := []byte(fmt.Sprint("token", random.IntN(2)))
			number := 1 + uint64(random.IntN(200))
			if random.IntN(2) == 0 {
				number += 1 << 52
			}
			restore := random.IntN(2) == 0
			var reply int64
			yes := false
			verb := random.IntN(6)
			switch verb {
			case 0:
				k.acquire(s, "", number)
				reply = want.acquire(string(k.token), number)
				yes = reply > 0
			case 1:
				k.extend(s, token, number, restore)
				reply = want.extend(string(token), restore, number)
				yes = reply == 1
			case 2:
				k.extend(s, token, 0, false)
				reply = want.adopt(string(token))
				yes = reply >= 0
			case 3:
				k.token = append(k.token[:0], token...)
				k.raise(s, number)
				reply = want.raise(string(token), number)
				yes = reply == 1
			case 4:
				k.release(s, token)
				reply = want.release(string(token))
				yes = reply == 1
			default: // it expires
				command(t, masters, 0, "DEL", key)
				want.token = ""
				c.putCall(k)
				continue
			}
			require.NoError(t, c.rounds.Do(t.Context(), &k.op))
			vote := k.op.Votes[0]
			require.NoError(t, vote.Err)
			require.Equal(t, reply, vote.Int, "step %d, verb %d", step, verb)
			require.Equal(t, yes, vote.Verdict == VerdictYes, "step %d, verb %d", step, verb)
			if verb == 0 && yes { // from now on under a token that comes again
				command(t, masters, 0, "SET", key, string(token), "KEEPTTL")
				want.token = string(token)
			}
			c.putCall(k)
			f, err := masters.Do(0, "GET", "{"+key+"}:fence")
			require.NoError(t, err)
			if f == nil {
				f = "0"
			}
			require.Equal(t, fmt.Sprint(want.f), f, "step %d, verb %d", step, verb)
			v, err := masters.Do(0, "GET", key)
			require.NoError(t, err)
			if want.token == "" {
				require.Nil(t, v)
				continue
			}
			require.Equal(t, want.token, v)
			left, err := masters.Do(0, "PTTL", "{"+key+"}:fence")
			require.NoError(t, err)
			require.Greater(t, left, ttl.Milliseconds(), "the counter outlives the lock")
		}
	}
}

// A counter is a master's key and the counter beside it, as the scripts are to treat them.
type counter struct {
	token string // of the key; empty if it is free
	f     uint64
}

func (c *counter) acquire(token string, hint uint64) int64 {
	if c.token != "" {
		return -int64(c.f)
	}
	c.token, c.f = token, max(c.f+1, hint)
	return int64(c.f)
}

func (c *counter) extend(token string, restore bool, fence uint64) int64 {
	was := c.token
	if was != token && (was != "" || !restore) {
		return 0
	}
	c.token, c.f = token, max(c.f, fence)
	if was == "" {
		return replyRestored
	}
	return 1
}

func (c *counter) adopt(token string) int64 {
	if c.token != token {
		return -1
	}
	return int64(c.f)
}

func (c *counter) raise(token string, fence uint64) int64 {
	if c.token != token {
		return 0
	}
	c.f = max(c.f, fence)
	return 1
}

func (c *counter) release(token string) int64 {
	if c.token != token {
		return 0
	}
	c.token = ""
	return 1
}
