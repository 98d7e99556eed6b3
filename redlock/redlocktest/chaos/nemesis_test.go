//go:build linux

package main

import (
	"io"
	"net"
	"testing"
	"time"

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
	faults := []fault{cut, cutRequests, cutReplies, refuse, delay, block, reset, rewrite}
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
