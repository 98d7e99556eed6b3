package conn_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"regexp"
	"sync"
	"sync/atomic"
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
		opt := conn.Options{DialTimeout: 300 * time.Millisecond, Patience: 20 * time.Millisecond}
		began := time.Now()
		_, err := conn.Dial(t.Context(), parse(t, scheme+silent), opt)
		require.GreaterOrEqual(t, time.Since(began), 320*time.Millisecond)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, op+": the dial timeout of 300ms passed, and 20ms more: i/o timeout")

		ctx, cancel := context.WithCancel(t.Context())
		opt.Patience = patient
		opt.OnPatience = func(string, error) { cancel() }
		_, err = conn.Dial(ctx, parse(t, scheme+silent), opt)
		require.ErrorIs(t, err, context.Canceled)
	}
}

// On a busy machine both have ended before anybody looks: the master has not answered all the same.
func TestPatienceThatEndsUnseen(t *testing.T) {
	t.Parallel()
	silent := conntest.Listen(t, func(c net.Conn) { io.Copy(io.Discard, c) })
	ended := make(chan error, 100)
	for range cap(ended) { // some of them see it late
		go func() {
			_, err := conn.Dial(t.Context(), parse(t, silent), conn.Options{DialTimeout: 500 * time.Millisecond, Patience: 1})
			ended <- err
		}()
	}
	for range cap(ended) {
		err := conntest.Soon(t, "a dial ends", ended)
		require.ErrorIs(t, err, conn.ErrUnanswered)
		require.ErrorContains(t, err, ", and 1ns more: i/o timeout")
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

// A far server is a way to another one, with a delay. It counts the writes that have come.
type far struct {
	addr   string
	by     time.Duration
	writes atomic.Int64
}

func farFrom(t *testing.T, to string, by time.Duration) *far {
	f := &far{by: by}
	f.addr = conntest.Listen(t, func(c net.Conn) {
		up, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		go func() { io.Copy(c, up); c.Close() }()
		defer up.Close()
		for b := make([]byte, 1<<16); ; {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			f.writes.Add(1)
			time.Sleep(f.by)
			up.Write(b[:n])
		}
	})
	return f
}

// Servers may be far away: those that know where the master is are asked all at once, as the master is.
func TestWhatCanBeAskedAtOnceIs(t *testing.T) {
	t.Parallel()
	opt := ofLocks
	nodes, _ := nodesOf(t, 1)
	node := farFrom(t, nodes[0].addr, 0)
	nodes[0].answer("CLUSTER SLOTS", slotsAt(node.addr))
	c, err := conn.Dial(t.Context(), cluster(t, node.addr), opt)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.EqualValues(t, 2, node.writes.Load(), "one on each connection")

	master := serverAs(t, "master")
	sentinel := farFrom(t, sentinelAt(t, master.addr).addr, 0)
	c, err = conn.Dial(t.Context(), group(t, sentinel.addr), opt)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.EqualValues(t, 1, sentinel.writes.Load())

	opt.SentinelPassword = conn.NewSecret("own")
	guarded := farFrom(t, guardedSentinel(t, sentinelAt(t, master.addr), "-NOAUTH Authentication required.\r\n", "AUTH own").at, 0)
	c, err = conn.Dial(t.Context(), group(t, guarded.addr), opt)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.EqualValues(t, 2, guarded.writes.Load())
}

// Who follows a group or a cluster gives those more time that have not answered in time.
func TestFollowersGetUsedToLateAnswers(t *testing.T) {
	t.Parallel()
	opt := ofLocks
	opt.DialTimeout = 50 * time.Millisecond
	sentinel := script(t, map[string]string{"SENTINEL": "*2\r\n$9\r\n127.0.0.1\r\n$1\r\n1\r\n", "SUBSCRIBE": subscribed})
	require.Equal(t, "127.0.0.1:1", conntest.Soon(t, "the group is followed", following(t, group(t, farFrom(t, sentinel.addr, 3*opt.DialTimeout).addr), opt)))

	nodes, _ := nodesOf(t, 1)
	late := farFrom(t, nodes[0].addr, 3*opt.DialTimeout)
	nodes[0].answer("CLUSTER SLOTS", slotsAt(late.addr))
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan struct{})
	ended := make(chan struct{})
	var once sync.Once
	go func() {
		defer close(ended)
		conn.FollowSlot(ctx, cluster(t, late.addr), opt, func(o conn.SlotOwner) {
			if o.Endpoint != "" {
				once.Do(func() { close(told) })
			}
		})
	}()
	conntest.Soon(t, "the slot is followed", told)
	cancel()
	<-ended
}

// The error of who asks for the master's place says that it is the dial timeout that is too short, and what has had work
// with it.
func TestLateAnswersAreSaid(t *testing.T) {
	t.Parallel()
	silent := conntest.Listen(t, func(c net.Conn) { io.Copy(io.Discard, c) })
	gone := conntest.Unreachable(t)
	opt := ofLocks
	opt.DialTimeout = 60 * time.Millisecond
	for says, of := range map[string]struct {
		a          conn.Address
		unanswered bool
	}{
		`no answer within [0-9]+ms, two thirds of the dial timeout`: {cluster(t, silent), true},
		`no answer within [0-9]+ms, its share of the dial timeout`:  {group(t, silent), true},
		`the dial timeout of 60ms passed`:                           {parse(t, silent), true},
		`two thirds of the dial timeout`:                            {cluster(t, gone), false},
		`its share of the dial timeout`:                             {group(t, gone), false},
	} {
		var err error
		for begun := time.Now(); time.Since(begun) < time.Minute; { // on a busy machine all the time passes at once
			if _, err = conn.Dial(t.Context(), of.a, opt); regexp.MustCompile(says).MatchString(err.Error()) {
				break
			}
		}
		require.Regexp(t, says, err.Error())
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, of.unanswered, errors.Is(err, conn.ErrUnanswered), "%v", err)
	}
}
