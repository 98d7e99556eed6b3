//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func TestStrikesOfOneMasterFollowEachOther(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	_, err := masters.Do(0, "SCRIPT", "LOAD", "return 1")
	require.NoError(t, err)
	n := newNemesis(masters, new(fleet), nil, time.Second)
	n.quarantine = 200 * ms // no client has to see the restarts
	// As if each had lasted longer than planned.
	require.NoError(t, n.run(t.Context(), []strike{
		{At: 0, For: 50 * ms, Fault: kill},
		{At: 1 * ms, For: 50 * ms, Fault: freeze},
		{At: 2 * ms, Fault: flush},
		{At: 3 * ms, For: 50 * ms, Fault: kill},
	}))
	up := n.majorityUp()
	require.NotEmpty(t, up)
	for i, s := range up {
		require.Less(t, s.From, s.To)
		require.True(t, i == 0 || up[i-1].To < s.From)
	}
	require.False(t, n.isHarmed(0))
	_, err = masters.Do(0, "PING")
	require.NoError(t, err)
	require.Equal(t, map[fault]int{kill: 2, freeze: 1, flush: 1}, n.faults)
}

func TestStrikesOnTrafficAreOverWhenTheyEnd(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1, redlocktest.WithLinks(), masterArgs)
	n := newNemesis(masters, new(fleet), nil, time.Second)
	faults := []fault{cut, cutRequests, cutReplies, refuse, delay, answersLost, lateLost, block, reset, rewrite}
	for _, f := range faults {
		require.NoError(t, n.run(t.Context(), []strike{{For: 10 * ms, Fault: f}}))
		require.False(t, n.isHarmed(0))
		c, err := net.Dial("tcp", masters.Addr(0))
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		_, err = io.WriteString(c, "PING\r\n")
		require.NoError(t, err)
		buf := make([]byte, len("+PONG\r\n"))
		_, err = io.ReadFull(c, buf)
		require.NoError(t, err, f)
		require.Equal(t, "+PONG\r\n", string(buf), f)
	}
	require.Len(t, n.faults, len(faults))
	require.Len(t, n.majorityUp(), len(faults)-1, "each but two have harmed the master")
}

func TestAMasterThatWasDemotedHasForgottenItsKeys(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	do := func(command ...string) string {
		reply, err := masters.Do(0, command...)
		require.NoError(t, err)
		return fmt.Sprint(reply)
	}
	n := newNemesis(masters, new(fleet), nil, time.Second)
	n.quarantine = 20 * ms
	for i, long := range []time.Duration{0, 200 * ms} {
		do("SET", "held", "by somebody")
		before := identity(do("INFO"))
		c, err := net.Dial("tcp", masters.Addr(0))
		require.NoError(t, err)
		defer c.Close()
		_, err = io.WriteString(c, "PING\r\n") // it is a client from then on
		require.NoError(t, err)
		_, err = io.ReadFull(c, make([]byte, len("+PONG\r\n")))
		require.NoError(t, err)
		since := clock.Now()

		require.NoError(t, n.run(t.Context(), []strike{{For: n.quarantine + long, Fault: demote}}))
		require.False(t, n.isHarmed(0))
		info := do("INFO")
		require.Equal(t, "master", field(info, "role"))
		require.Equal(t, before[:40], field(info, "run_id"), "it is the same process")
		require.NotEqual(t, before[41:], field(info, "master_replid"))
		require.Equal(t, before[41:], field(info, "master_replid2"))
		require.Equal(t, "[]", do("KEYS", "*"))
		require.Contains(t, do("CONFIG", "GET", "replica-read-only"), "yes")
		require.Len(t, n.forgot, i+1)
		require.Greater(t, n.forgot[i], since)
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		_, err = c.Read(make([]byte, 1))
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the connection has ended")
		require.Error(t, err)
	}
}

func TestAReplicaOfTheNemesisDropsWhatItIsGiven(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	n := newNemesis(masters, new(fleet), nil, time.Second)
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- n.run(ctx, []strike{{For: n.quarantine + time.Hour, Fault: demote}}) }()
	require.Eventually(t, func() bool {
		_, err := masters.Do(0, "SET", "key", "token")
		role, failed := masters.Do(0, "INFO", "replication")
		return err == nil && failed == nil && field(role.(string), "role") == "slave"
	}, patience, ms, "it takes writes")
	require.Eventually(t, func() bool {
		there, err := masters.Do(0, "EXISTS", "key")
		return err == nil && there == int64(0)
	}, patience, ms)
	interrupt()
	require.NoError(t, <-ended)
	require.Len(t, n.forgot, 1)
}

func TestADemotionWaitsForTheMaster(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	n := newNemesis(masters, new(fleet), nil, time.Second)
	n.quarantine = 0
	masters.Pause(0)
	ended := make(chan error)
	go func() { ended <- n.run(t.Context(), []strike{{Fault: demote}}) }()
	require.Eventually(t, func() bool { return n.isHarmed(0) }, patience, ms)
	masters.Resume(0)
	require.NoError(t, <-ended)
	info, err := masters.Do(0, "INFO")
	require.NoError(t, err)
	require.Equal(t, "master", field(info.(string), "role"))
	require.NotEqual(t, strings.Repeat("0", 40), field(info.(string), "master_replid2"), "it was a replica")
}

func TestASpoiledCounterIsWhatItWasAgain(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 5)
	counters := func() (all []any) {
		for i := range masters.N() {
			count, err := masters.Do(i, "GET", spoiledCounter)
			require.NoError(t, err)
			all = append(all, count)
		}
		return all
	}
	n := newNemesis(masters, new(fleet), nil, time.Second)
	n.harm(0)
	for i := range 4 { // the last one has none
		_, err := masters.Do(i, "SET", spoiledCounter, strconv.Itoa(10+i), "PX", "600000")
		require.NoError(t, err)
	}
	n.spoil(t.Context(), ms)
	require.Equal(t, []any{"10", "11", "12", "13", nil}, counters())
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	n.spoil(ended, time.Hour)
	require.Equal(t, []any{"10", "spoiled", "spoiled", "spoiled", nil}, counters(), "so they were spoiled before, too")
}
