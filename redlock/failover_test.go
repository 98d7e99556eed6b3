package redlock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func openConfig(t testing.TB, cfg redlock.Config) *redlock.Client {
	t.Helper()
	cfg.DialTimeout = cmp.Or(cfg.DialTimeout, busy)
	c, err := redlock.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func phase(c *redlock.Client, i int) string { return c.Stats().Masters[i].Phase }

func reaches(t testing.TB, c *redlock.Client, i int, want string) {
	t.Helper()
	require.Eventually(t, func() bool { return phase(c, i) == want }, time.Minute, time.Millisecond, "%s", want)
}

// A holds r1 and r2 of three; r1 comes back empty. Then r1 and r3 must not give the
// lock to B, whether B has known r1 before or comes only now.
func TestRestartedMasterDoesNotGiveALockAway(t *testing.T) {
	const ttl = 4 * time.Second
	for _, c := range []struct {
		name  string
		known bool // B was there before
		guard time.Duration
		given bool
	}{
		{"without a guard, to a newcomer: the violation that Redlock warns of", false, 0, true},
		{"with a guard, to a newcomer", false, ttl, false},
		{"to one that has known it", true, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			masters := redlocktest.Start(t, 3)
			cfg := redlock.Config{Masters: masters.Addrs(), RoundTimeout: busy}
			a := openConfig(t, cfg)
			for i := range 3 {
				reaches(t, a, i, "up")
			}
			cfg.RestartGuard = c.guard
			var b *redlock.Client
			if c.known {
				b = openConfig(t, cfg)
				used := b.NewMutex("other", ttl) // it uses this TTL
				require.NoError(t, used.TryLock(t.Context()))
				require.NoError(t, used.Unlock(t.Context()))
				for i := range 3 {
					reaches(t, b, i, "up")
				}
			}
			if c.guard > 0 { // the others are older than that
				for i := 1; i < 3; i++ {
					require.Eventually(t, func() bool {
						info, _ := masters.Do(i, "INFO", "server")
						var up int
						_, after, _ := strings.Cut(fmt.Sprint(info), "uptime_in_seconds:")
						fmt.Sscan(after, &up)
						return time.Duration(up)*time.Second > ttl+time.Second
					}, time.Minute, 100*time.Millisecond)
				}
			}
			_, err := masters.Do(2, "SET", "k", "foreign")
			require.NoError(t, err)
			m := a.NewMutex("k", ttl)
			require.NoError(t, m.TryLock(t.Context()))
			settled(t, a) // r3 has refused it
			_, err = masters.Do(2, "DEL", "k")
			require.NoError(t, err)
			masters.Restart(0)

			if b == nil {
				b = openConfig(t, cfg)
			}
			if c.given {
				reaches(t, b, 0, "up")
			} else { // who has known it may not know yet that it was restarted
				reaches(t, b, 0, "quarantined")
			}
			other := b.NewMutex("k", ttl)
			err = other.TryLock(t.Context())
			held := m.Remaining() > 0
			if c.given {
				require.NoError(t, err)
				require.True(t, held, "both hold it")
				return
			}
			require.Error(t, err)
			var quarantined *mux.QuarantineError
			require.ErrorAs(t, err, &quarantined)
			require.Less(t, time.Now(), quarantined.Until)
			require.Contains(t, err.Error(), "does not vote until")
			require.Equal(t, "quarantined", phase(b, 0))
			// It does as soon as A's lock has ended.
			require.NoError(t, other.Lock(t.Context()))
			require.Zero(t, m.Remaining())
			reaches(t, b, 0, "up")
			require.NoError(t, other.Unlock(t.Context()))
		})
	}
}

// What is durable has forgotten nothing.
func TestDurableMasterVotesAtOnceAfterARestart(t *testing.T) {
	for _, c := range []struct {
		name     string
		durable  bool // on disk
		declared bool
		want     string
	}{
		{"as it says itself", true, false, "up"},
		{"as is declared", false, true, "up"},
		{"not durable", false, false, "quarantined"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var opts []redlocktest.Option
			if c.durable {
				opts = append(opts, redlocktest.WithArgs("--appendonly", "yes", "--appendfsync", "always"))
			}
			masters := redlocktest.Start(t, 3, opts...)
			// No quarantine is over within this test.
			client := openConfig(t, redlock.Config{Masters: masters.Addrs(), Durable: c.declared, RestartGuard: 24 * time.Hour, RoundTimeout: busy})
			for i := range 3 {
				reaches(t, client, i, c.want)
			}
			m := client.NewMutex("k", long)
			if c.want == "up" {
				require.NoError(t, m.TryLock(t.Context()))
				require.Eventually(t, func() bool { // the others were enough for the lock
					v, err := masters.Do(0, "GET", "k")
					return err == nil && v == m.Token()
				}, time.Minute, time.Millisecond)
			}
			masters.Kill(0)
			reaches(t, client, 0, "down")
			masters.Restart(0)
			reaches(t, client, 0, c.want)
			if c.durable {
				v, err := masters.Do(0, "GET", "k")
				require.NoError(t, err)
				require.Equal(t, m.Token(), v)
				require.NoError(t, m.Unlock(t.Context()))
			}
		})
	}
}

// A release reaches a master in quarantine, and nothing else does.
func TestQuarantinedMasterIsToldOfReleases(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	c := openConfig(t, redlock.Config{Masters: masters.Addrs(), RoundTimeout: busy})
	for i := range 3 {
		reaches(t, c, i, "up")
	}
	m := c.NewMutex("k", long)
	require.NoError(t, m.TryLock(t.Context()))
	masters.Restart(0)
	reaches(t, c, 0, "quarantined")
	_, err := masters.Do(0, "SET", "k", m.Token()) // as if it had remembered
	require.NoError(t, err)
	other := c.NewMutex("other", long)
	require.NoError(t, other.TryLock(t.Context()))
	require.NoError(t, m.Extend(t.Context()))
	require.NoError(t, m.Unlock(t.Context()), "two of three still had it")
	require.Eventually(t, func() bool {
		v, err := masters.Do(0, "DBSIZE")
		return err == nil && v == int64(0)
	}, time.Minute, time.Millisecond)
	require.NoError(t, other.Unlock(t.Context()))
}

// A group switches while a lock needs its old master: no majority can be proven any
// more, so the lock is lost at once and not at the end of its validity.
func TestLockThatNeedsAReplacedMasterIsLostAtOnce(t *testing.T) {
	groups := redlocktest.StartGroups(t, 3)
	c := openConfig(t, redlock.Config{Masters: groups.Addrs(), RoundTimeout: busy})
	for i := range 3 {
		reaches(t, c, i, "up")
	}
	_, err := groups.Do(2, "SET", "k", "foreign")
	require.NoError(t, err)
	// A busy machine may need half a minute for the switch (sentinels that stood still
	// trust their clocks no more).
	kept, plain := c.NewMutex("k", time.Hour), c.NewMutex("all", time.Hour)
	require.NoError(t, kept.TryLock(t.Context()))
	require.NoError(t, plain.TryLock(t.Context()))
	held, stop := kept.KeepAlive(t.Context())
	defer stop()

	before := plain.Until()
	groups.Switch(0)
	select {
	case <-held.Done():
	case <-time.After(time.Minute):
		t.Fatal("the lock is not lost, though no majority can be proven")
	}
	cause := context.Cause(held)
	require.ErrorIs(t, cause, redlock.ErrLost)
	require.Zero(t, kept.Remaining())
	var round *redlock.RoundError
	require.ErrorAs(t, cause, &round)
	var quarantined *mux.QuarantineError
	require.True(t, errors.As(round.Votes[0].Err, &quarantined) || errors.Is(round.Votes[0].Err, mux.ErrSwitched), cause)
	require.Eventually(t, func() bool { return plain.Until().After(before) }, time.Minute, time.Millisecond, "the other was checked and survives")
	require.NoError(t, plain.Unlock(t.Context()))
	require.ErrorIs(t, kept.Unlock(t.Context()), redlock.ErrNotHeld)
}

// Five groups fail over one after the other, by a kill and by an order, while locks
// are held, renewed and fought for: no two hold one, and service goes on.
func TestFailoversKeepExclusionAndService(t *testing.T) {
	groups := redlocktest.StartGroups(t, 5)
	const ttl = 3 * time.Second
	cfg := redlock.Config{Masters: groups.Addrs(), RoundTimeout: 2 * time.Second}
	clients := []*redlock.Client{openConfig(t, cfg), openConfig(t, cfg)}
	for _, c := range clients {
		for i := range 5 {
			reaches(t, c, i, "up")
		}
	}
	held := clients[0].NewMutex("held", ttl)
	require.NoError(t, held.TryLock(t.Context()))
	alive, stop := held.KeepAlive(t.Context())
	defer stop()

	ctx, cancel := context.WithCancel(t.Context())
	var fighting sync.WaitGroup
	var current [2]atomic.Pointer[context.Context] // of who was given the lock last and has not returned
	var taken [2]atomic.Int64                      // by key, so that progress can be awaited
	var failures sync.Map
	for _, c := range clients {
		for w := range 4 {
			key := w % 2
			fighting.Go(func() {
				for ctx.Err() == nil {
					err := c.Do(ctx, fmt.Sprint("k", key), ttl, func(in context.Context) error {
						// Another may still be in here, but it must know that it has lost
						// the lock, if we have it now.
						if prev := current[key].Swap(&in); prev != nil && in.Err() == nil && (*prev).Err() == nil && in.Err() == nil {
							failures.Store("two hold a valid lock", true)
						}
						taken[key].Add(1)
						time.Sleep(time.Millisecond)
						current[key].CompareAndSwap(&in, nil)
						return nil
					})
					if err != nil && ctx.Err() == nil && errors.Is(err, redlock.ErrNoQuorum) && !errors.Is(err, redlock.ErrLost) {
						failures.Store(err.Error(), true)
					}
				}
			})
		}
	}
	progress := func(when string) {
		for key := range taken {
			from := taken[key].Load()
			require.Eventually(t, func() bool { return taken[key].Load() > from+10 }, time.Minute, time.Millisecond, when)
		}
	}
	progress("at first")
	for i := range 5 {
		was := groups.Master(i)
		if i%2 == 0 {
			groups.Kill(i)
			progress("while a master is gone")
			groups.Await(i, was)
		} else {
			groups.Switch(i)
		}
		progress("after a failover")
		for _, c := range clients { // three that do not vote would be too many
			reaches(t, c, i, "up")
		}
	}
	cancel()
	fighting.Wait()
	failures.Range(func(what, _ any) bool { t.Error(what); return true })
	require.NoError(t, context.Cause(alive))
	require.ErrorIs(t, clients[1].NewMutex("held", ttl).TryLock(t.Context()), redlock.ErrHeld)
}

// Sentinels that are down, hang, or know nothing yet do not matter.
func TestSentinelsMayFail(t *testing.T) {
	groups := redlocktest.StartGroups(t, 1)
	groups.KillSentinel(0)
	groups.PauseSentinel(1)
	c := openConfig(t, redlock.Config{Masters: groups.Addrs(), RoundTimeout: busy})
	m := c.NewMutex("k", long)
	require.NoError(t, m.TryLock(t.Context()))
	require.NoError(t, m.Unlock(t.Context()))
	groups.ResumeSentinel(1)
	addr, err := conn.ParseAddress(groups.Addr(0) + "x")
	require.NoError(t, err)
	_, err = conn.Dial(t.Context(), addr, conn.Options{})
	require.ErrorContains(t, err, "group0x")
}

// BenchmarkFailover kills the master of one of five groups, and reports when it is
// replaced and votes again, and how the acquire does meanwhile.
func BenchmarkFailover(b *testing.B) {
	for b.Loop() {
		groups := redlocktest.StartGroups(b, 5)
		c := openConfig(b, redlock.Config{Masters: groups.Addrs()})
		const ttl = 5 * time.Second
		for i := range 5 {
			reaches(b, c, i, "up")
		}
		m := c.NewMutex("k", ttl)
		acquire := func(until func(took time.Duration) bool) (all []time.Duration) {
			for begin := time.Now(); !until(time.Since(begin)); {
				started := time.Now()
				require.NoError(b, m.TryLock(b.Context()))
				all = append(all, time.Since(started))
				require.NoError(b, m.Unlock(b.Context()))
			}
			slices.Sort(all)
			return all
		}
		report := func(when string, all []time.Duration) {
			b.ReportMetric(float64(all[len(all)/2].Microseconds()), when+"-p50-us")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), when+"-p99-us")
		}
		acquire(func(d time.Duration) bool { return d > time.Second })
		report("before", acquire(func(d time.Duration) bool { return d > 3*time.Second }))
		groups.Kill(0)
		killed := time.Now()
		var replaced time.Duration
		report("meanwhile", acquire(func(time.Duration) bool {
			p := phase(c, 0)
			if p == "quarantined" && replaced == 0 {
				replaced = time.Since(killed)
			}
			return replaced > 0 && p == "up"
		}))
		b.ReportMetric(replaced.Seconds(), "replaced-s")
		b.ReportMetric(time.Since(killed).Seconds(), "votes-again-s")
	}
}
