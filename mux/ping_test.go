package mux_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// A master that cuts what is idle for 2 s cuts a connection that nobody uses twice, and then no more.
func TestIdleConnectionsAreKept(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	says(t, masters, 0, "CONFIG", "SET", "timeout", "2")
	m := open(t, mux.Config{Masters: masters.Addrs()})
	pings := func() (n int) {
		eventually(t, "it says", func() bool { // unless the machine is so busy that it cuts who asks
			stats, err := masters.Do(0, "INFO", "commandstats")
			n = conntest.Calls(stats, "ping")
			return err == nil
		})
		return n
	}
	eventually(t, "it was cut", func() bool { return m.Masters()[0].Connects >= 3 })
	before := pings()
	eventually(t, "it is kept", func() bool { return pings() >= before+4 })
	require.LessOrEqual(t, m.Masters()[0].Connects, uint64(4)) // a busy machine may be late once
}

// Only a connection that is idle is sent a PING, and each master's at its own time. One in quarantine is.
func TestABusyConnectionIsSentNoPing(t *testing.T) {
	t.Parallel()
	var pings atomic.Int64
	counts := func() script {
		return func(args []string) (string, bool) {
			if args[0] == "PING" {
				pings.Add(1)
				return "+PONG\r\n", true
			}
			return ":1\r\n", true
		}
	}
	master, other := newFake(t, "m", counts), newFake(t, "o", counts) // the turn of the other one is after minutes
	m := open(t, mux.Config{Masters: []string{master.addr(), other.addr()}})
	waitUp(t, m, 2)
	const every = time.Second
	mux.PingEvery(m, 0, every)
	for began := time.Now(); time.Since(began) < 3*every; time.Sleep(every / 50) {
		require.NoError(t, m.Do(t.Context(), vote("k")))
	}
	require.LessOrEqual(t, pings.Load(), int64(1)) // a busy machine
	eventually(t, "it is idle", func() bool { return pings.Load() >= 3 })
}
