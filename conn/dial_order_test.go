package conn

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
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

// slowForIPv6 answers what is asked about IPv6 when late is closed.
type slowForIPv6 struct {
	net.Conn
	late <-chan struct{}
}

func (c slowForIPv6) Write(p []byte) (int, error) {
	if !bytes.Contains(p, []byte{0, 28, 0, 1}) { // AAAA
		return c.Conn.Write(p)
	}
	go func(p []byte) {
		<-c.late
		c.Conn.Write(p)
	}(bytes.Clone(p))
	return len(p), nil
}

// There are name servers that answer A at once, and AAAA never.
func TestANameServerMayKeepSilentAboutIPv6(t *testing.T) {
	one := netip.MustParseAddr("127.0.0.1")
	late := make(chan struct{})
	names := conntest.Resolver(func(name string) netip.Addr {
		switch {
		case strings.HasPrefix(name, "old"):
			return one
		case name == "new.test":
			return netip.IPv6Loopback()
		}
		return netip.Addr{}
	})
	pipes := names.Dial
	names.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := pipes(ctx, network, address)
		return slowForIPv6{c, late}, err
	}
	was := net.DefaultResolver
	net.DefaultResolver = names
	t.Cleanup(func() { net.DefaultResolver = was })

	look := func(ctx context.Context, host string) ([]target, error) {
		return resolve(ctx, Address{host: host, port: 1})
	}
	at := func(ip netip.Addr) []target { return []target{{addr: netip.AddrPortFrom(ip, 1)}} }
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second) // the resolver itself gives up after 5, or later
	defer cancel()
	got, err := look(ctx, "old.test.")
	require.NoError(t, err)
	require.Equal(t, at(one), got)

	// A dial that has less time than that asks for A alone when a quarter of it has passed.
	tries := 0
	require.Eventually(t, func() bool { // a busy machine needs more; each name is looked up by one call
		tries++
		const limit = patienceWithIPv6
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		got, err := look(ctx, fmt.Sprintf("old%d.test.", tries))
		return err == nil && slices.Equal(at(one), got) && time.Since(began) < limit*3/4
	}, 30*time.Second, time.Millisecond)

	short, cancel := context.WithTimeout(t.Context(), time.Second/2)
	defer cancel()
	_, err = look(short, "new.test.")
	require.Error(t, err, "it has no address of IPv4, and that does not end the look-up")
	close(late)
	ctx, cancel = context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	got, err = look(ctx, "new.test.")
	require.NoError(t, err)
	require.Equal(t, at(netip.IPv6Loopback()), got)
	_, err = look(ctx, "none.test.")
	require.ErrorContains(t, err, "no such host")
}
