//go:build linux

package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/stretchr/testify/require"
)

// behindK is the lock k with a second one.
func behindK() lockable {
	l := one("k")
	l.Second = true
	return l
}

// seconded is a lock as of taken, with its second one of this number.
func seconded(number uint64, lock []record) []record {
	lock[0].Second = number
	return lock
}

// said is what a second lock of k has recorded.
func said(at time.Duration, number uint64, outcome string) []record {
	return []record{{T: at, Op: opSecond, Lock: "k", Second: number, Outcome: outcome}}
}

func TestASecondLockIsAccountedFor(t *testing.T) {
	result := func(at time.Duration, o op, outcome string) []record {
		return []record{{T: at, Op: o, Lock: "k", Hold: 1, Outcome: outcome}}
	}
	a := seconded(7, taken(1, 10*ms, 100*ms, 0))
	b := log("b", seconded(8, taken(1, 50*ms, 140*ms, 60*ms)))
	lost := said(40*ms, 7, gone)
	for _, test := range []struct {
		what      string
		logs      []clientLog
		violation string // a part of it; empty if there is none
	}{
		{"whoever has lost it claims nothing", []clientLog{log("a", a, lost), b}, ""},
		{"... also if it was lost before its holder came to look", []clientLog{log("a", said(9*ms, 7, gone), a), b}, ""},
		{"... and another is not lost", []clientLog{log("a", a, said(40*ms, 6, gone)), b}, "had it at once"},
		{"... nor is another client's", []clientLog{log("a", a, said(70*ms, 7, gone)), b}, "had it at once"},
		{"lost", []clientLog{log("a", a, lost, result(50*ms, opUnlock, "not held"))}, ""},
		{"lost, and it was not", []clientLog{log("a", a, result(50*ms, opUnlock, "not held"))}, "though it was valid until"},
		{"a loss that it is blamed for", []clientLog{log("a", a, lost, result(50*ms, opLost, "lost+second"))}, ""},
		{"a loss that it is blamed for, and it was not", []clientLog{log("a", a, result(50*ms, opLost, "lost+second"))}, "though its second lock was not lost"},
		{"released, though it was lost", []clientLog{log("a", a, lost, result(50*ms, opUnlock, ok))}, "though its second lock was lost"},
		{"valid while it is taken", []clientLog{log("a", said(9*ms, 7, validEarly), a)}, "second k ended in valid already"},
		{"valid when it is lost", []clientLog{log("a", a, lost, said(40*ms, 7, stillValid))}, "second k ended in still valid"},
		{"a failure", []clientLog{log("a", said(9*ms, 0, failed), result(10*ms, opTry, "second"))}, ""},
		{"a failure in the end", []clientLog{log("a", result(10*ms, opLock, "second+deadline"))}, ""},
		{"a failure that is not waited out", []clientLog{log("a", result(10*ms, opLock, "second"))}, "ended in second"},
		{"a failure of Unlock", []clientLog{log("a", a, result(50*ms, opUnlock, "second"))}, "ended in second"},
	} {
		f := check(trial{Locks: []lockable{behindK()}, Logs: test.logs})
		if test.violation == "" {
			require.Empty(t, f.Violations, test.what)
			require.Empty(t, f.Disorders, test.what)
			continue
		}
		require.Len(t, f.Violations, 1, "%s: %v", test.what, f.Violations)
		require.Contains(t, f.Violations[0], test.violation, test.what)
	}
	f := judge(0, log("a", result(10*ms, opTry, "second")))
	require.Len(t, f.Violations, 1, "a lock that has none")
}

// aFileSecond is that of a worker whose files are in dir.
func aFileSecond(t *testing.T, dir string, seed uint64) *fileSecond {
	j, err := openJournal(filepath.Join(t.TempDir(), "journal"))
	require.NoError(t, err)
	t.Cleanup(func() { j.file.Close() })
	c := &client{clientConfig: clientConfig{Dir: dir}, journal: j}
	return &fileSecond{worker: &worker{client: c, rng: rand.New(rand.NewPCG(seed, 0))}, lock: behindK()}
}

func TestOneAtATimeHasASecondLock(t *testing.T) {
	dir, last := t.TempDir(), uint64(0)
	a, b := aFileSecond(t, dir, 1), aFileSecond(t, dir, 2)
	take := func(s *fileSecond) *fileLock {
		for {
			l, err := s.Lock(t.Context(), "k")
			if errors.Is(err, errFailed) {
				continue
			}
			require.NoError(t, err)
			require.Greater(t, l.Fence(), last)
			last = l.Fence()
			return l.(*fileLock)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		l := take(a)
		l.mu.Lock() // it is not lost meanwhile
		if !l.over {
			_, err := b.TryLock(t.Context(), "k")
			require.True(t, errors.Is(err, redlock.ErrHeld) || errors.Is(err, errFailed), err)
			_, err = b.Lock(ended, "k")
			require.True(t, errors.Is(err, context.Canceled) || errors.Is(err, errFailed), err)
			require.NoError(t, l.ctx.Err())
		}
		l.mu.Unlock()
		if b.percent(50) {
			l.loseNow()
			require.Error(t, l.ctx.Err())
			require.ErrorIs(t, l.Unlock(ended), redlock.ErrNotHeld)
		} else if err := l.Unlock(ended); err != nil {
			require.ErrorIs(t, err, redlock.ErrNotHeld)
			require.ErrorIs(t, context.Cause(l.ctx), errGone)
		} else {
			require.ErrorIs(t, context.Cause(l.ctx), errReleased)
		}
		a, b = b, a
	}
	records, err := readJournal(a.journal.file.Name())
	require.NoError(t, err)
	counted := make(map[string]int)
	for _, r := range records {
		counted[r.Outcome]++
	}
	require.NotZero(t, counted[gone], counted)
	require.NotZero(t, counted["held"], counted)
}
