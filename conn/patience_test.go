package conn_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
)

// A server that has taken the connection is waited for longer than one that has not. Whoever dials is told of it.
func TestDialIsPatientWithWhoHasTakenTheConnection(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	m, tlsAddr := startTLS(t, a)
	// late passes on to a server what it is sent, but not before Dial has said that it waits.
	late := func(to string, waits <-chan struct{}) string {
		return conntest.Listen(t, func(c net.Conn) {
			<-waits
			up, err := net.Dial("tcp", to)
			if err != nil {
				return
			}
			go func() { io.Copy(up, c); up.Close() }()
			io.Copy(c, up)
		})
	}
	for op, of := range map[string]struct{ scheme, to string }{
		"handshake": {"redis://", m.addr()},
		"tls":       {"rediss://", tlsAddr},
	} {
		waits := make(chan struct{})
		addr := late(of.to, waits)
		opt := conn.Options{DialTimeout: 200 * time.Millisecond, Patience: patient,
			OnPatience: func(endpoint string, err error) {
				require.Equal(t, addr, endpoint)
				require.ErrorContains(t, err, addr+": "+op+": the dial timeout of 200ms passed: i/o timeout; it has taken the connection, and is waited for")
				require.ErrorIs(t, err, os.ErrDeadlineExceeded)
				close(waits) // once
			}}
		if op == "tls" {
			opt.TLS = &tls.Config{RootCAs: a.roots}
		}
		c, err := conn.Dial(t.Context(), parse(t, of.scheme+addr), opt)
		require.NoError(t, err, op)
		require.True(t, newLine(t, c).do("PING").Is("PONG"), op)
		require.NoError(t, c.Close())
	}
}

// Patience ends, too: by itself, and with the caller's context.
func TestPatienceEnds(t *testing.T) {
	t.Parallel()
	silent := conntest.Listen(t, func(c net.Conn) { io.Copy(io.Discard, c) })
	for scheme, op := range map[string]string{"redis://": "handshake", "rediss://": "tls"} {
		opt := conn.Options{DialTimeout: 10 * time.Millisecond, Patience: 20 * time.Millisecond}
		began := time.Now()
		_, err := conn.Dial(t.Context(), parse(t, scheme+silent), opt)
		require.GreaterOrEqual(t, time.Since(began), 30*time.Millisecond)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, op+": the dial timeout of 10ms passed, and 20ms more: i/o timeout")

		ctx, cancel := context.WithCancel(t.Context())
		opt.Patience = patient
		opt.OnPatience = func(string, error) { cancel() }
		_, err = conn.Dial(ctx, parse(t, scheme+silent), opt)
		require.ErrorIs(t, err, context.Canceled)
	}
}

// There is no patience with who has not even taken the connection: it has no work with another dial.
func TestNoPatienceWithWhoIsOutOfReach(t *testing.T) {
	t.Parallel()
	began := time.Now()
	_, err := conn.Dial(t.Context(), parse(t, conntest.Unreachable(t)), conn.Options{DialTimeout: 10 * time.Millisecond, Patience: time.Hour,
		OnPatience: func(string, error) { t.Error("it has taken no connection") }})
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.ErrorContains(t, err, ": connect: ")
	require.Less(t, time.Since(began), 5*time.Second)
}
