package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// Groups of sentinels that switch to another master. The sentinels, the mux, the quarantine and the
// recheck keep exclusion and service together.

// A group switches while a lock needs its old master: no majority can be proven any
// more, so the lock is lost at once and not at the end of its validity.
func TestLockThatNeedsAReplacedMasterIsLostAtOnce(t *testing.T) {
	t.Parallel()
	groups := redlocktest.StartGroups(t, 3)
	c := openUp(t, redlock.Config{Masters: groups.Addrs(), RoundTimeout: busy})
	redlock.Says(t, groups.Servers(2), groups.Master(2), "SET", "k", "foreign")
	// A busy machine may need half a minute for the switch (sentinels that stood still
	// trust their clocks no more).
	kept, plain := c.NewMutex("k", time.Hour), c.NewMutex("all", time.Hour)
	require.NoError(t, kept.TryLock(t.Context()))
	require.NoError(t, plain.TryLock(t.Context()))
	redlock.Confirmed(t, plain) // or the other two do not make a quorum
	held, stop := kept.KeepAlive(t.Context())
	defer stop()

	before := redlock.Until(plain)
	groups.Switch(0)
	conntest.Soon(t, "the lock is lost, as no majority can be proven", held.Done())
	cause := context.Cause(held)
	require.ErrorIs(t, cause, redlock.ErrLost)
	require.Zero(t, kept.Remaining())
	var round *redlock.RoundError
	require.ErrorAs(t, cause, &round)
	var quarantined *mux.QuarantineError
	require.True(t, errors.As(round.Votes[0].Err, &quarantined) || errors.Is(round.Votes[0].Err, mux.ErrSwitched), cause)
	require.Eventually(t, func() bool { return redlock.Until(plain).After(before) }, time.Minute, 5*time.Millisecond, "the other was checked and survives")
	require.NoError(t, plain.Unlock(t.Context()))
	require.ErrorIs(t, kept.Unlock(t.Context()), redlock.ErrNotHeld)
}

// All groups fail over one after the other, by a kill and by an order, while locks
// are held, renewed and fought for: no two hold one, and service goes on. At full scale there are five groups.
func TestFailoversKeepExclusionAndService(t *testing.T) {
	t.Parallel()
	n := 3
	if atFullScale {
		n = 5
	}
	groups := redlocktest.StartGroups(t, n)
	const ttl = 3 * time.Second
	cfg := redlock.Config{Masters: groups.Addrs(), RoundTimeout: 2 * time.Second}
	clients := []*redlock.Client{openUp(t, cfg), openUp(t, cfg)}
	held := clients[0].NewMutex("held", ttl)
	require.NoError(t, held.TryLock(t.Context()))
	alive, stop := held.KeepAlive(t.Context())
	defer stop()
	redlock.Confirmed(t, held)

	f := &fight{t: t, mayFail: func(err error, ran bool) bool {
		return ran || !errors.Is(err, redlock.ErrNoQuorum) // a release may meet one master that goes, and one that has not got what another had
	}}
	f.begin(ttl, clients)
	f.goesOn("at first")
	for i := range n {
		was := groups.Master(i)
		if i%2 == 0 {
			groups.Servers(i).Kill(was)
			f.goesOn("while a master is gone")
			groups.Master(i, was)
		} else {
			groups.Switch(i)
		}
		f.goesOn("after a failover")
		for _, c := range clients { // three that do not vote would be too many
			reaches(t, c, i, "up")
		}
		redlock.Confirmed(t, held)
	}
	f.end()
	require.NoError(t, context.Cause(alive))
	require.ErrorIs(t, clients[1].NewMutex("held", ttl).TryLock(t.Context()), redlock.ErrHeld)
}

// A minority of sentinels that are down or hang does not matter. While most are down, a client that is
// connected goes on, also if its connection is lost. A new one gets no vote, unless it trusts any.
func TestSentinelsMayFail(t *testing.T) {
	t.Parallel()
	groups := redlocktest.StartGroups(t, 1)
	at, err := net.Dial("tcp", groups.Servers(0).Addr(groups.Master(0)))
	require.NoError(t, err)
	defer at.Close()
	groups.Sentinels().Pause(0)
	phases := make(chan string, 1000)
	cfg := redlock.Config{Masters: groups.Addrs(), RoundTimeout: busy, DialTimeout: busy}
	watched := cfg
	watched.Observers = tellPhases(phases)
	c := openConfig(t, watched)
	comesUp(t, phases)
	used(t, c, long)
	groups.Sentinels().Kill(0)
	used(t, openConfig(t, cfg), long)
	groups.Sentinels().Kill(1)
	used(t, c, long)
	fmt.Fprint(at, "CLIENT KILL TYPE normal\r\n")
	for conntest.Soon(t, "the connection is lost", phases) == "up" {
	}
	comesUp(t, phases)
	used(t, c, long)
	_, err = redlock.Open(t.Context(), cfg)
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.ErrorContains(t, err, "2 of 3 sentinels must name the same master of group group0")
	cfg.TrustAnySentinel = true
	used(t, openConfig(t, cfg), long)
	addr, err := conn.ParseAddress(groups.Addrs()[0] + "x")
	require.NoError(t, err)
	_, err = conn.Dial(t.Context(), addr, conn.Options{DialTimeout: busy})
	require.ErrorContains(t, err, "group0x")
}

// Sentinels with a password are followed to another master, and are not shown the master's.
func TestSentinelsMayHaveAPassword(t *testing.T) {
	t.Parallel()
	groups := redlocktest.StartGroups(t, 1)
	for j := range 3 {
		_, err := groups.Sentinels().Do(j, "ACL", "SETUSER", "watcher", "on", ">watch", "+@all", "allchannels")
		if err != nil && strings.Contains(err.Error(), "unknown command") {
			t.Skip("sentinels have users from Redis 6.2 on")
		}
		require.NoError(t, err)
		redlock.Says(t, groups.Sentinels(), j, "ACL", "SETUSER", "default", "-sentinel|get-master-addr-by-name", "-subscribe")
	}
	phases := make(chan string, 1000)
	cfg := redlock.Config{Masters: groups.Addrs(), RoundTimeout: busy, DialTimeout: busy}
	_, err := redlock.Open(t.Context(), cfg)
	require.ErrorContains(t, err, "set SentinelPassword")
	cfg.Observers = tellPhases(phases)
	cfg.SentinelUsername, cfg.SentinelPassword = "watcher", redlock.NewSecret("watch")
	c := openConfig(t, cfg)
	comesUp(t, phases)
	used(t, c, 100*time.Millisecond)
	require.Eventually(t, func() bool { // it may find no replica that it likes at the moment
		_, err := groups.Sentinels().Do(0, "SENTINEL", "FAILOVER", "group0")
		return err == nil || strings.HasPrefix(err.Error(), "INPROG")
	}, time.Minute, 100*time.Millisecond)
	for conntest.Soon(t, "the old master is left", phases) == "up" {
	}
	comesUp(t, phases)
	used(t, c, 100*time.Millisecond)
}

// tellPhases is an Observer that sends the phases of a client's only master.
func tellPhases(to chan<- string) []redlock.Observer {
	return onEvent(redlock.EventMaster, func(e *redlock.Event) { m := *e.Master; to <- m.Phase })
}

// comesUp waits until the master is up.
func comesUp(t *testing.T, phases <-chan string) {
	t.Helper()
	for conntest.Soon(t, "it is up", phases) != "up" {
	}
}

// BenchmarkFailover kills the master of one of five groups, and reports when it is
// replaced and votes again, and how the acquire does meanwhile.
func BenchmarkFailover(b *testing.B) {
	for b.Loop() {
		groups := redlocktest.StartGroups(b, 5)
		c := openUp(b, redlock.Config{Masters: groups.Addrs()})
		const ttl = 5 * time.Second
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
		groups.Servers(0).Kill(groups.Master(0))
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
