package redlock_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
)

func TestBusyPollThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	for _, d := range []time.Duration{-1, time.Second} {
		_, err := redlock.New(redlock.Config{Masters: masters.Addrs(), BusyPoll: d})
		require.ErrorContains(t, err, "redlock: new: ")
		require.ErrorContains(t, err, "is not within 0 and 10ms")
	}
	c, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs(), DialTimeout: busy, BusyPoll: 200 * time.Microsecond})
	if !conn.CanBusyPoll {
		require.ErrorContains(t, err, "busy polling needs Linux")
		return
	}
	require.NoError(t, err)
	defer c.Close()
	used(t, c, long)
}
