package conn_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/resp"
)

// fill sends numbered blocks until the connection takes no more, and returns them.
func fill(tb testing.TB, c *conn.Conn) []byte {
	tb.Helper()
	var all []byte
	for i := uint32(0); ; i++ {
		block := bytes.Repeat(binary.BigEndian.AppendUint32(nil, i), 1000)
		all = append(all, block...)
		flushed, err := c.Send(block)
		require.NoError(tb, err)
		require.Equal(tb, flushed, c.Unsent() == 0)
		if !flushed {
			return all
		}
	}
}

func TestSendKeepsWhatTheSocketDoesNotTake(t *testing.T) {
	t.Parallel()
	c, peer := pair(t, conn.Options{})
	p := newPoller(t)
	require.NoError(t, p.Add(c, 1, conn.Writable))
	for range 3 {
		want := fill(t, c)
		for i := range 10 {
			more := bytes.Repeat([]byte{byte(i)}, 1000)
			before := c.Unsent()
			flushed, err := c.Send(more)
			require.NoError(t, err)
			require.False(t, flushed)
			require.Equal(t, before+len(more), c.Unsent())
			want = append(want, more...)
			more[0]++ // Send has its own copy
		}
		got := make([]byte, len(want))
		read := make(chan error, 1)
		go func() {
			_, err := io.ReadFull(peer, got)
			read <- err
		}()
		for flushed := false; !flushed; {
			wait(t, p)
			var err error
			flushed, err = c.Flush()
			require.NoError(t, err)
			require.Equal(t, flushed, c.Unsent() == 0)
			if !flushed {
				_, err = c.Send(nil)
				require.NoError(t, err)
			}
		}
		require.NoError(t, soon(t, read))
		require.True(t, bytes.Equal(want, got), "in order and complete")
		flushed, err := c.Flush()
		require.NoError(t, err)
		require.True(t, flushed)
	}
}

func TestAbortResetsAndCloseDelivers(t *testing.T) {
	t.Parallel()
	c, peer := pair(t, conn.Options{})
	_, err := c.Send([]byte("goodbye"))
	require.NoError(t, err)
	require.NoError(t, c.Close())
	all, err := io.ReadAll(peer)
	require.NoError(t, err)
	require.Equal(t, "goodbye", string(all))

	c, peer = pair(t, conn.Options{})
	sent := fill(t, c)
	require.NoError(t, c.Abort())
	all, err = io.ReadAll(peer)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.Less(t, len(all), len(sent))
}

func TestNothingWorksOnAClosedConnection(t *testing.T) {
	t.Parallel()
	for _, end := range []func(*conn.Conn) error{(*conn.Conn).Close, (*conn.Conn).Abort} {
		c, _ := pair(t, conn.Options{})
		require.NoError(t, end(c))
		_, err := c.Send([]byte("x"))
		require.ErrorIs(t, err, net.ErrClosed)
		_, err = c.Receive()
		require.ErrorIs(t, err, net.ErrClosed)
		require.ErrorIs(t, c.Close(), net.ErrClosed)
		require.ErrorIs(t, c.Abort(), net.ErrClosed)
	}
}

// A server is there when it answers, whatever it logs.
func TestServerNeedNotLogThatItServes(t *testing.T) {
	t.Parallel()
	m := start(t, "loglevel warning")
	require.True(t, newLine(t, dial(t, m.addr(), conn.Options{})).do("PING").Is("PONG"))
	require.NotContains(t, m.logged(), "Ready to accept")
}

// A frame is longer than the buffers, and takes many reads.
func TestLongRepliesArriveWhole(t *testing.T) {
	t.Parallel()
	m := start(t)
	l := newLine(t, dial(t, m.addr(), conn.Options{Limits: resp.Limits{Bulk: 1 << 20}}))
	long := strings.Repeat("x", 1<<20)
	require.True(t, l.do("SET", "k", long).Is("OK"))
	require.True(t, l.do("GET", "k").Is(long))
	require.Equal(t, 0, l.Unsent())

	small := newLine(t, dial(t, m.addr(), conn.Options{}))
	for range 3 {
		_, err := small.try("GET", "k")
		require.Equal(t, resp.ErrSkipped, err)
		require.Equal(t, resp.Skipped{Kind: resp.BulkString, Fault: resp.TooLong, Bytes: int64(len("$1048576\r\n") + len(long) + 2)}, small.Skipped())
		require.Equal(t, "PONG", string(small.do("PING").Bytes()))
	}
	small.Raise(resp.Limits{Bulk: 1 << 20})
	require.True(t, small.do("GET", "k").Is(long))
	_, err := small.try("GET", "k")
	require.Equal(t, resp.ErrSkipped, err, "the limits were raised for one reply")

	ended := newLine(t, dial(t, m.addr(), conn.Options{Limits: resp.Limits{Skip: 1 << 20}}))
	_, err = ended.try("GET", "k")
	require.ErrorIs(t, err, resp.TooLong, "more than can be skipped")
}

// Somebody keeps something at the key by which a cluster's node is asked for its slot. It says nothing of the node.
func TestLongValueAtTheKeyOfTheSlot(t *testing.T) {
	t.Parallel()
	nodes, at := nodesOf(t, 3)
	nodes[0].answer("GET", "$100000\r\n"+strings.Repeat("x", 100_000)+"\r\n")
	c, err := conn.Dial(t.Context(), cluster(t, at...), ofLocks)
	require.NoError(t, err)
	defer c.Close()
	require.Equal(t, nodes[0].addr, c.Server().Endpoint)
}

// Two goroutines use the two sides of a connection at once.
func TestSendingAndReceivingAtOnce(t *testing.T) {
	t.Parallel()
	m := start(t)
	sendAndReceiveAtOnce(t, dial(t, m.addr(), conn.Options{}))
}

func sendAndReceiveAtOnce(t *testing.T, c *conn.Conn) {
	n := 20000
	if network(t) != nil {
		n = 200
	}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait) // when the pollers are closed
	out, in := newPoller(t), newPoller(t)
	require.NoError(t, out.Add(c, 1, conn.Writable))
	require.NoError(t, in.Add(c, 1, conn.Readable))
	wg.Go(func() {
		burst := resp.AppendCommand(nil, "ECHO", "0123456789")
		for range n {
			flushed, err := c.Send(burst)
			for err == nil && !flushed {
				if _, err = out.Wait(clock.Forever); err == nil {
					flushed, err = c.Flush()
				}
			}
			if err != nil {
				t.Error(err)
				return
			}
		}
	})
	for got := 0; got < n; {
		v, err := c.Next()
		if err == nil {
			require.True(t, v.Is("0123456789"))
			got++
			continue
		}
		require.ErrorIs(t, err, resp.ErrNeedMore)
		wait(t, in)
		_, err = c.Receive()
		require.NoError(t, err)
	}
}

// counting counts the writes to a stream.
type counting struct {
	io.ReadWriter
	writes int
}

func (c *counting) Write(p []byte) (int, error) {
	c.writes++
	return c.ReadWriter.Write(p)
}

func TestHandshakeAndBurstAreOneWriteEach(t *testing.T) {
	t.Parallel()
	m := start(t, "requirepass pw")
	var stream *counting
	opt := conn.Options{Password: conn.NewSecret("pw"), ClientName: "x", Tracking: true, Scripts: []string{oneScript, "return 1"}}
	opt.Wrap = func(master string, rw io.ReadWriter) io.ReadWriter {
		require.Equal(t, m.addr(), strings.TrimSuffix(strings.TrimPrefix(master, "redis://"), "/1"))
		stream = &counting{ReadWriter: rw}
		return stream
	}
	c := dial(t, "redis://"+m.addr()+"/1", opt)
	require.Equal(t, 1, stream.writes)
	_, err := c.Send(bytes.Repeat(resp.AppendCommand(nil, "PING"), 1000))
	require.NoError(t, err)
	require.Equal(t, 2, stream.writes)
}

// What other tests assert also holds on the worst network that the contract allows.
func TestABadNetworkChangesNothing(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]*conntest.Faults{
		"byte by byte": {Most: 1},
		"idle":         {Idle: 0.7},
		"both":         {Most: 3, Idle: 0.3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBadNetwork(t, faults)
			for name, test := range map[string]func(*testing.T){
				"who":        TestServerSaysWhoItIs,
				"tracking":   TestTrackedKeysAreTold,
				"RESP2":      TestServersWithoutHELLOAreSpokenToInRESP2,
				"refusals":   TestServersThatCanBeNoMasterAreRefused,
				"credential": TestCredentials,
				"unix":       TestUnixSockets,
				"tls":        TestTLS,
				"at once":    TestSendingAndReceivingAtOnce,
				"tls twice":  TestTLSSendingAndReceivingAtOnce,
			} {
				t.Run(name, test)
			}
		})
	}
}

// Wherever the stream breaks, the dial or the command after it ends with an error that says
// so, never with a wrong answer.
func TestResetsAtEveryByte(t *testing.T) {
	t.Parallel()
	m := start(t)
	for _, side := range []string{"read", "write"} {
		for at := int64(1); ; at++ {
			faults := &conntest.Faults{ResetRead: at}
			if side == "write" {
				faults = &conntest.Faults{ResetWrite: at}
			}
			opt := conn.Options{Wrap: faults.Wrap, DialTimeout: patient, Tracking: true, Scripts: []string{oneScript}}
			c, err := conn.Dial(t.Context(), parse(t, m.addr()), opt)
			if err != nil {
				require.ErrorIs(t, err, syscall.ECONNRESET)
				require.NotErrorIs(t, err, conn.ErrRefused)
				continue
			}
			l := newLine(t, c)
			v, err := l.try("PING")
			if err == nil {
				require.True(t, v.Is("PONG"))
				require.NoError(t, c.Close())
				if faults.Resets() == 0 {
					break
				}
				continue
			}
			require.ErrorIs(t, err, syscall.ECONNRESET)
			c.Abort()
		}
	}
}

// What the example of Dial does with a connection works, and ends in time.
func TestExamplePipelines(t *testing.T) {
	t.Parallel()
	c := dial(t, start(t).addr(), conn.Options{Tracking: true})
	for range 3 {
		n := 0
		require.NoError(t, pipeline(c, bytes.Repeat(resp.AppendCommand(nil, "PING"), 2), 2, clock.Now()+patient, func(v resp.Value) {
			n++
			require.True(t, v.Is("PONG"))
		}))
		require.Equal(t, 2, n)
	}
	err := pipeline(c, resp.AppendCommand(nil, "BLPOP", "k", "0"), 1, clock.Now(), nil)
	require.EqualError(t, err, "no reply in time")
}
