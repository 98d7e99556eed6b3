package conn_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/resp"
)

// The zero Conn is a closed one.
func TestZeroConnIsClosed(t *testing.T) {
	t.Parallel()
	var c conn.Conn
	p := newPoller(t)
	for name, do := range map[string]func() error{
		"Send":    func() error { _, err := c.Send([]byte("x")); return err },
		"Receive": func() error { _, err := c.Receive(); return err },
		"Close":   c.Close,
		"Abort":   c.Abort,
		"Add":     func() error { return p.Add(&c, 1, conn.Readable) },
		"Modify":  func() error { return p.Modify(&c, 1, conn.Readable) },
		"Remove":  func() error { return p.Remove(&c) },
	} {
		require.ErrorIs(t, do(), net.ErrClosed, name)
		require.ErrorContains(t, do(), "connection is closed", name)
	}
	_, err := c.Next()
	require.Equal(t, resp.ErrNeedMore, err)
	flushed, err := c.Flush()
	require.NoError(t, err)
	require.True(t, flushed)
	require.Zero(t, c.Unsent())
	require.Zero(t, c.Server())
	require.Empty(t, c.RemoteAddr())
}

// The zero Poller is a closed one.
func TestZeroPollerIsClosed(t *testing.T) {
	t.Parallel()
	var p conn.Poller
	c, _ := pair(t, conn.Options{})
	for name, do := range map[string]func() error{
		"Wait":   func() error { _, err := p.Wait(clock.Now() + time.Hour); return err },
		"Poll":   func() error { _, err := p.Poll(); return err },
		"Add":    func() error { return p.Add(c, 1, conn.Readable) },
		"Modify": func() error { return p.Modify(c, 1, conn.Readable) },
		"Remove": func() error { return p.Remove(c) },
		"Close":  p.Close,
	} {
		require.Equal(t, conn.ErrPollerClosed, do(), name)
	}
	p.Wake()
}

// The zero Address is of no master.
func TestZeroAddressIsRefused(t *testing.T) {
	t.Parallel()
	var a conn.Address
	require.Equal(t, "(none)", a.String())
	require.Empty(t, a.Endpoint())
	require.Empty(t, a.Group())
	require.Equal(t, a, a.WithHint("10.0.0.1:6379"))
	_, err := conn.Dial(t.Context(), a, conn.Options{})
	requireRefused(t, err, "the address is empty", "ParseAddress")
}

// There is no group to follow at a fixed place.
func TestFollowOfAFixedPlaceEndsAtOnce(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	for _, a := range []conn.Address{{}, parse(t, "127.0.0.1:1")} {
		conn.FollowGroup(ctx, a, conn.Options{}, func(string) { t.Error("there is no group") })
		require.NoError(t, ctx.Err())
	}
}
