package conn

import (
	"context"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/conntest"
)

// Dial tries every address of a name in turn, and none uses up the time of the next ones.
func TestEveryAddressIsTried(t *testing.T) {
	t.Parallel()
	good, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer good.Close()
	to := func(s string) target { return target{addr: netip.MustParseAddrPort(s)} }
	refusing := to("127.0.0.1:1")
	listening := to(good.Addr().String())

	connect := func(limit time.Duration, targets ...target) error {
		ctx, cancel := context.WithTimeoutCause(t.Context(), limit, os.ErrDeadlineExceeded)
		defer cancel()
		p, err := NewPoller()
		require.NoError(t, err)
		defer p.Close()
		s, _, err := (&dialing{poller: p}).connect(ctx, targets)
		if err == nil {
			require.NoError(t, s.close())
		}
		return err
	}
	require.NoError(t, connect(time.Minute, listening))
	require.NoError(t, connect(time.Minute, refusing, refusing, listening))

	err = connect(time.Minute, refusing, to("127.0.0.1:2"))
	require.ErrorContains(t, err, "127.0.0.1:1: ")
	require.ErrorContains(t, err, "; 127.0.0.1:2: ")

	// Nobody listens if each address says so. One that is silent says nothing.
	silent := to(conntest.Unreachable(t))
	require.ErrorIs(t, connect(time.Minute, refusing), ErrNoListener)
	require.ErrorIs(t, connect(time.Minute, refusing, to("127.0.0.1:2")), ErrNoListener)
	require.ErrorIs(t, connect(time.Minute, target{path: t.TempDir() + "/none"}), ErrNoListener)
	for _, targets := range [][]target{{silent}, {silent, refusing}, {refusing, silent}} {
		require.NotErrorIs(t, connect(time.Second/2, targets...), ErrNoListener)
	}

	// An address where nothing answers leaves time for the good one.
	for limit := time.Second / 2; ; limit *= 2 {
		err := connect(limit, silent, listening)
		if err == nil {
			break
		}
		require.Less(t, limit, time.Minute, "%v", err) // a busy machine needs more
	}
}
