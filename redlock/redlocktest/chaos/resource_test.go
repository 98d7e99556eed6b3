//go:build linux

package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// served returns a resource, and what gives a holder its counter of the key k.
func served(t *testing.T, unfenced bool) (*resource, func(client string, fence uint64) fencedCounter) {
	r := newResource(unfenced)
	t.Cleanup(r.close)
	return r, func(client string, fence uint64) fencedCounter {
		end, err := r.connect()
		require.NoError(t, err)
		s, err := openSession(end)
		require.NoError(t, err)
		t.Cleanup(s.close)
		require.NoError(t, s.conn.SetDeadline(time.Now().Add(patience)))
		return fencedCounter{s, step{Client: client, Hold: 1, Key: "k", Fence: fence}}
	}
}

func readAs(t *testing.T, c fencedCounter) int {
	n, err := c.read()
	require.NoError(t, err)
	return n
}

func incrementAs(t *testing.T, c fencedCounter, n int) bool {
	taken, err := c.increment(n)
	require.NoError(t, err)
	return taken
}

func TestResourceRefusesAWriteOnceALaterHolderHasRead(t *testing.T) {
	for _, unfenced := range []bool{false, true} {
		r, holder := served(t, unfenced)
		a, b := holder("a", 7), holder("b", 8)
		require.True(t, incrementAs(t, a, readAs(t, a)))
		require.True(t, incrementAs(t, a, readAs(t, a)), "the same number is not late")
		old := readAs(t, a)
		n := readAs(t, b)
		require.Equal(t, unfenced, incrementAs(t, a, old), "it would come between b's read and its write")
		require.True(t, incrementAs(t, b, n))
		require.Equal(t, 3, readAs(t, a), "who is late may look")

		arrivals, counts := r.result()
		require.Equal(t, map[string]int{"k": 3}, counts)
		require.Len(t, arrivals, 4)
		require.Equal(t, []bool{false, false, true, false}, []bool{arrivals[0].Late, arrivals[1].Late, arrivals[2].Late, arrivals[3].Late})
		require.Equal(t, 1, r.tested(), "one was late, or is lost")
	}
}

func TestALateWriteThatLosesTwoIncrementsIsCountedOnce(t *testing.T) {
	r, holder := served(t, true)
	a, b := holder("a", 7), holder("b", 8)
	old := readAs(t, a)
	require.True(t, incrementAs(t, b, 0))
	require.True(t, incrementAs(t, b, 1))
	require.Zero(t, r.tested())
	require.True(t, incrementAs(t, a, old))
	require.Equal(t, 1, r.tested(), "one late write has lost two increments")
}

func TestResourceKeepsTheFencesOfKeysApart(t *testing.T) {
	_, holder := served(t, false)
	a, b := holder("a", 7), holder("b", 8)
	b.holder.Key = "other"
	require.True(t, incrementAs(t, b, 0))
	require.True(t, incrementAs(t, a, 0))
}

func TestAClientIsCaughtInTheMiddleOfAWrite(t *testing.T) {
	r, holder := served(t, false)
	a, b := holder("a", 7), holder("b", 8)
	require.True(t, incrementAs(t, a, 0), "nobody waits for it")

	patient, abandon := context.WithTimeout(t.Context(), patience)
	defer abandon()
	caughts, taken := make(chan *caught, 1), make(chan bool, 1)
	go func() { caughts <- r.catch(patient, "a") }()
	require.Eventually(t, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.traps["a"] != nil
	}, patience, ms)
	go func() {
		ok, err := a.increment(1)
		taken <- ok && err == nil
	}()
	w := <-caughts
	require.NotNil(t, w)
	require.False(t, r.isLate(w))
	arrivals, _ := r.result()
	require.Len(t, arrivals, 1, "the second half has not come")
	require.True(t, incrementAs(t, b, readAs(t, b)), "others go on")
	require.True(t, r.isLate(w))
	close(w.released)
	require.False(t, <-taken)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Nil(t, r.catch(ctx, "b"))
	require.True(t, incrementAs(t, b, 2), "the trap is gone")
}
