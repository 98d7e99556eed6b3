package redlocktest

import (
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest/internal/network"
	"github.com/stretchr/testify/require"
)

func TestMastersRunOnHosts(t *testing.T) {
	t.Parallel()
	needRedis(t)
	_, nodes := network.Start(t, 3)
	masters := Start(t, 2, WithHosts(nodes[0], nodes[1]))
	ping := func(i int) error {
		return nodes[2].Do(func() error {
			c, err := net.DialTimeout("tcp", masters.Addr(i), patience)
			if err != nil {
				return err
			}
			defer c.Close()
			require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
			_, err = c.Write([]byte("PING\r\n"))
			require.NoError(t, err)
			buf := make([]byte, 7)
			_, err = c.Read(buf)
			require.Equal(t, "+PONG\r\n", string(buf))
			return err
		})
	}
	require.Equal(t, []string{nodes[0].Addr().String() + ":6379", nodes[1].Addr().String() + ":6379"}, masters.Addrs())
	require.NoError(t, ping(0))
	require.NoError(t, ping(1))

	masters.Kill(0)
	require.ErrorIs(t, ping(0), syscall.ECONNREFUSED)
	require.NoError(t, ping(1))
	masters.Restart(0)
	require.NoError(t, ping(0))
	masters.Pause(1)
	masters.Resume(1)
	pong, err := masters.Do(1, "PING")
	require.NoError(t, err)
	require.Equal(t, "PONG", pong)
}
