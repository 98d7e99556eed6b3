//go:build linux

package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/redlock/redlocktest/internal/network"
	"github.com/stretchr/testify/require"
)

// spacious returns namespaces for one master and two clients, with the master.
func spacious(t *testing.T) *namespaces {
	redlocktest.Start(t, 0) // skips, or fails, where there is no Redis
	n, all := network.Start(t, 3)
	spaces := &namespaces{network: n, masters: all[:1], clients: all[1:]}
	spaces.control = redlocktest.Start(t, 1, redlocktest.WithHosts(spaces.hosts()...))
	return spaces
}

// dial connects a client to the master.
func (n *namespaces) dial(t *testing.T, client int) (c net.Conn) {
	require.NoError(t, n.clients[client].Do(func() (err error) {
		c, err = (&net.Dialer{Timeout: patience}).Dial("tcp", n.control.Addr(0))
		return err
	}))
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

// increment sends an INCR.
func increment(t *testing.T, c net.Conn, key string) {
	_, err := io.WriteString(c, "INCR "+key+"\r\n")
	require.NoError(t, err)
}

// hear reads the reply to an INCR.
func hear(t *testing.T, c net.Conn, want string) {
	buf := make([]byte, len(want)+3)
	_, err := io.ReadFull(c, buf)
	require.NoError(t, err)
	require.Equal(t, ":"+want+"\r\n", string(buf))
}

func (n *namespaces) value(t *testing.T, key string) any {
	v, err := n.control.Do(0, "GET", key)
	require.NoError(t, err)
	return v
}

func TestAStrikeHitsItsPairsAndItsDirection(t *testing.T) {
	t.Parallel()
	spaces := spacious(t)
	for _, s := range []strike{
		{Fault: cutPair, Pairs: []pair{{0, 0}}},
		{Fault: cutPair, Pairs: []pair{{0, 0}}, Way: requests},
		{Fault: cutPair, Pairs: []pair{{0, 0}}, Way: replies},
		{Fault: cut},
		{Fault: cutRequests},
		{Fault: cutReplies},
	} {
		name := strings.ReplaceAll(string(s.Fault.by(s.Way)), " ", "-")
		struck, other := spaces.dial(t, 0), spaces.dial(t, 1)
		listening := spaces.dial(t, 0)
		_, err := io.WriteString(listening, "SUBSCRIBE "+name+"\r\n")
		require.NoError(t, err)
		_, err = listening.Read(make([]byte, 100))
		require.NoError(t, err)
		lift := spaces.impose(s)
		if s.Way == requests || s.Fault == cutRequests {
			_, err = spaces.control.Do(0, "PUBLISH", name, "word")
			require.NoError(t, err)
			_, err = listening.Read(make([]byte, 100))
			require.NoError(t, err, "what the master sends arrives")
		}
		increment(t, struck, name)
		if s.Pairs != nil {
			increment(t, other, "other-"+name)
			hear(t, other, "1")
		}
		if s.Way == replies || s.Fault == cutReplies {
			require.Eventually(t, func() bool { return spaces.value(t, name) == "1" }, patience, 5*time.Millisecond)
		} else {
			time.Sleep(10 * ms)
			require.Nil(t, spaces.value(t, name), name)
		}
		require.NoError(t, struck.SetReadDeadline(time.Now().Add(10*ms)))
		_, err = struck.Read(make([]byte, 1))
		require.Error(t, err, name)
		require.NoError(t, struck.SetReadDeadline(time.Now().Add(patience)))
		lift()
		hear(t, struck, "1")
	}
}

// In time or late, a request is carried out, and nobody hears of it.
func TestAnswersAreLostWithTheirConnections(t *testing.T) {
	t.Parallel()
	spaces := spacious(t)
	linked := redlocktest.Start(t, 1, redlocktest.WithLinks())
	for name, one := range map[string]struct {
		traffic traffic
		masters *redlocktest.Masters
		dial    func() net.Conn
	}{
		"namespaces": {spaces, spaces.control, func() net.Conn { return spaces.dial(t, 0) }},
		"links": {links{linked, nil}, linked, func() net.Conn {
			c, err := net.Dial("tcp", linked.Addr(0))
			require.NoError(t, err)
			t.Cleanup(func() { c.Close() })
			return c
		}},
	} {
		for _, f := range []fault{answersLost, lateLost} {
			n := newNemesis(one.masters, new(fleet), nil, time.Second)
			n.traffic = one.traffic
			c := one.dial()
			increment(t, c, "before")
			_, err := c.Read(make([]byte, 100))
			require.NoError(t, err)
			key := strings.ReplaceAll(string(f), " ", "-")
			ended := make(chan error)
			lift := n.traffic.impose(strike{Fault: f, For: time.Second}) // so that it is in force
			go func() { ended <- n.run(t.Context(), []strike{{Fault: f, For: time.Second}}) }()
			increment(t, c, key)
			value := func() any {
				v, err := one.masters.Do(0, "GET", key)
				require.NoError(t, err)
				return v
			}
			if f == lateLost {
				require.Nil(t, value())
			}
			require.Eventually(t, func() bool { return value() == "1" }, patience, ms, name)
			require.NoError(t, c.SetReadDeadline(time.Now().Add(20*ms)))
			_, err = c.Read(make([]byte, 100))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded, name)
			require.NoError(t, <-ended)
			lift()
			require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
			io.WriteString(c, "PING\r\n") // only whoever sends hears of a reset
			_, err = c.Read(make([]byte, 100))
			require.Error(t, err, name)
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, name)
		}
	}
}

func TestConnectionsAreRefused(t *testing.T) {
	t.Parallel()
	spaces := spacious(t)
	lift := spaces.impose(strike{Fault: refuse})
	for _, client := range spaces.clients {
		require.ErrorIs(t, client.Do(func() error {
			_, err := (&net.Dialer{Timeout: patience}).Dial("tcp", spaces.control.Addr(0))
			return err
		}), syscall.ECONNREFUSED)
	}
	lift()
	spaces.dial(t, 0)
}

func TestStrikesOnPacketsAreOverWhenTheyEnd(t *testing.T) {
	t.Parallel()
	spaces := spacious(t)
	n := newNemesis(spaces.control, new(fleet), nil, time.Second)
	n.traffic = spaces
	var strikes []strike
	for _, f := range []fault{cut, cutRequests, cutReplies, refuse, delay, answersLost, lateLost, reset} {
		strikes = append(strikes, strike{Fault: f, For: 20 * ms})
	}
	for _, f := range partial {
		strikes = append(strikes, strike{Fault: f, For: 20 * ms, Pairs: []pair{{0, 0}, {1, 0}}})
	}
	for i, s := range strikes {
		require.NoError(t, n.run(t.Context(), []strike{s}))
		require.False(t, n.isHarmed(0))
		require.NotZero(t, n.since)
		for client := range spaces.clients {
			c := spaces.dial(t, client)
			increment(t, c, fmt.Sprintf("%d-%d", i, client))
			hear(t, c, "1")
			require.NoError(t, c.Close())
		}
	}
	require.Len(t, n.majorityUp(), len(strikes), "each but the reset has harmed the master, or a pair")
}

func TestTheEndOfConnectionsLeavesNone(t *testing.T) {
	t.Parallel()
	spaces := spacious(t)
	c := spaces.dial(t, 0)
	increment(t, c, "k")
	hear(t, c, "1")
	spaces.end(0)
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}
