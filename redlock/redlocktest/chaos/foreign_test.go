//go:build linux

package main

import (
	"testing"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

const minute = time.Minute // longer than a test

// foreignOf returns a stranger that knows the masters as they are now.
func foreignOf(t *testing.T, masters *redlocktest.Masters, guard time.Duration) *stranger {
	var runs []string
	for i := range masters.N() {
		info, err := masters.Do(i, "INFO")
		require.NoError(t, err)
		require.Len(t, identity(info.(string)), 40+1+40)
		runs = append(runs, identity(info.(string)))
	}
	s := newStranger(masters.Addrs(), runs, guard, "")
	s.time = patience // on a busy machine
	t.Cleanup(s.close)
	return s
}

// takes waits until the masters give the lock: a release may be on its way to one.
func takes(t *testing.T, m mutex) {
	require.Eventually(t, func() bool { return m.TryLock(t.Context()) == nil }, patience, ms)
}

func TestAStrangerIsAWriter(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	client, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs()})
	require.NoError(t, err)
	defer client.Close()
	theirs := foreignOf(t, masters, 0).newMutex(lockable{Kind: foreign, Keys: []string{"a"}, TTL: minute})
	other := foreignOf(t, masters, 0).newMutex(lockable{Kind: foreign, Keys: []string{"a"}, TTL: minute})
	for _, l := range []lockable{
		{Kind: plain, Keys: []string{"a"}}, {Kind: several, Keys: []string{"b", "a"}}, {Kind: shared, Keys: []string{"a"}},
	} {
		ours := client.NewMutex(l.Keys[0], minute, l.options(false)...)
		takes(t, ours)
		require.ErrorIs(t, theirs.TryLock(t.Context()), redlock.ErrHeld, l)
		require.NoError(t, ours.Unlock(t.Context()))
		takes(t, theirs)
		require.InDelta(t, float64(minute-minute/100), float64(theirs.Remaining()), float64(patience))
		require.ErrorIs(t, ours.TryLock(t.Context()), redlock.ErrHeld, l)
		require.ErrorIs(t, other.TryLock(t.Context()), redlock.ErrHeld, l)
		require.NoError(t, other.Unlock(t.Context()), "it is not the holder")
		require.ErrorIs(t, ours.TryLock(t.Context()), redlock.ErrHeld, l)
		require.NoError(t, theirs.Unlock(t.Context()))
		require.Zero(t, theirs.Remaining())
	}
}

func TestAStrangerExtendsWhatIsItsOwn(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	m := foreignOf(t, masters, 0).newMutex(lockable{Kind: foreign, Keys: []string{"a"}, TTL: minute})
	takes(t, m)
	until := m.until
	require.NoError(t, m.Extend(t.Context()))
	require.Greater(t, m.until, until)
	until = m.until
	for i := range 2 {
		_, err := masters.Do(i, "SET", "a", "another's")
		require.NoError(t, err)
	}
	require.ErrorIs(t, m.Extend(t.Context()), redlock.ErrNoQuorum)
	require.Equal(t, until, m.until, "nothing was gained")
}

func TestAStrangerDoesNotCountTheVoteOfAMasterThatWasRestarted(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	l := lockable{Kind: foreign, Keys: []string{"a"}, TTL: minute}
	m := foreignOf(t, masters, time.Hour).newMutex(l)
	takes(t, m)
	require.NoError(t, m.Unlock(t.Context()))
	masters.Restart(0)
	takes(t, m)
	require.NoError(t, m.Unlock(t.Context()))
	masters.Restart(1)
	for deadline := clock.Now() + patience; m.masters[1].votes == 0 && clock.Now() < deadline; {
		require.Error(t, m.TryLock(t.Context()), "one master may vote")
	}
	require.NotZero(t, m.masters[1].votes)
	require.ErrorIs(t, m.TryLock(t.Context()), redlock.ErrHeld, "all answer")
	takes(t, foreignOf(t, masters, time.Hour).newMutex(l)) // which never knew another run
}

// Its connections go on, and those of whoever comes later know nothing else.
func TestAStrangerDoesNotCountTheVoteOfAMasterThatWasFlushed(t *testing.T) {
	masters := redlocktest.Start(t, 2)
	l := lockable{Kind: foreign, Keys: []string{"a"}, TTL: minute}
	old, later := foreignOf(t, masters, time.Hour), foreignOf(t, masters, time.Hour)
	m := old.newMutex(l)
	takes(t, m)
	require.NoError(t, m.Unlock(t.Context()))
	masters.Flush(0)
	for _, s := range []*stranger{old, later} {
		require.ErrorIs(t, s.newMutex(l).TryLock(t.Context()), redlock.ErrHeld, "two answer")
		require.NotZero(t, s.masters[0].votes)
		require.Zero(t, s.masters[1].votes)
	}
}

func TestAStrangerDoesNotCountTheVoteOfAMasterThatWasAReplica(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	do := func(command ...string) {
		_, err := masters.Do(0, command...)
		require.NoError(t, err)
	}
	m := foreignOf(t, masters, time.Hour).newMutex(lockable{Kind: foreign, Keys: []string{"a"}, TTL: minute})
	masters.Kill(1)
	takes(t, m)
	require.NoError(t, m.Unlock(t.Context()))
	do("REPLICAOF", "127.0.0.1", "1")
	do("CONFIG", "SET", "replica-read-only", "no")
	do("CLIENT", "KILL", "SKIPME", "yes")
	for range 2 {
		require.ErrorIs(t, m.TryLock(t.Context()), redlock.ErrNoQuorum)
	}
	require.Zero(t, m.masters[0].votes, "it is not asked")
	do("REPLICAOF", "NO", "ONE")
	for deadline := clock.Now() + patience; m.masters[0].votes == 0 && clock.Now() < deadline; {
		require.Error(t, m.TryLock(t.Context()), "one master may vote")
	}
	require.NotZero(t, m.masters[0].votes)
	require.ErrorIs(t, m.TryLock(t.Context()), redlock.ErrHeld, "two answer")
}

func TestAStrangerNeedsAMajority(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	m := foreignOf(t, masters, 0).newMutex(lockable{Kind: foreign, Keys: []string{"a"}, TTL: minute})
	masters.Kill(0)
	require.NoError(t, m.TryLock(t.Context()))
	require.NoError(t, m.Unlock(t.Context()))
	masters.Kill(1)
	require.ErrorIs(t, m.TryLock(t.Context()), redlock.ErrNoQuorum)
	n, err := masters.Do(2, "EXISTS", "a")
	require.NoError(t, err)
	require.Zero(t, n, "what the attempt has set is deleted")
	require.ErrorIs(t, m.Unlock(t.Context()), redlock.ErrNoQuorum)
}
