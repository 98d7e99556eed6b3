//go:build linux

package network_test

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest/internal/network"
	"github.com/stretchr/testify/require"
)

// patience is how long a test waits for what must happen.
const patience = time.Minute

// A port is a UDP socket in a node, through which numbers are sent.
type port struct {
	t    *testing.T
	conn *net.UDPConn
}

func open(t *testing.T, node *network.Node) port {
	t.Helper()
	p := port{t: t}
	require.NoError(t, node.Do(func() (err error) {
		p.conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(node.Addr(), 0)))
		return err
	}))
	t.Cleanup(func() { p.conn.Close() })
	require.NoError(t, p.conn.SetDeadline(time.Now().Add(patience)))
	return p
}

func openAll(t *testing.T, all []*network.Node) (ports []port) {
	t.Helper()
	for _, node := range all {
		ports = append(ports, open(t, node))
	}
	return ports
}

func (p port) send(to port, numbers ...int) {
	p.t.Helper()
	for _, n := range numbers {
		_, err := p.conn.WriteTo(binary.BigEndian.AppendUint64(nil, uint64(n)), to.conn.LocalAddr())
		require.NoError(p.t, err)
	}
}

// receive returns the next numbers that arrive.
func (p port) receive(count int) (numbers []int) {
	p.t.Helper()
	buf := make([]byte, 8)
	for range count {
		_, err := io.ReadFull(p.conn, buf)
		require.NoError(p.t, err)
		numbers = append(numbers, int(binary.BigEndian.Uint64(buf)))
	}
	return numbers
}

// passed returns when what was sent before has met the weather, as a packet to another node tells.
func (p port) passed(other port) {
	p.t.Helper()
	p.send(other, -1)
	other.receive(1)
}

func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

func TestACutInOneDirectionDropsThatAlone(t *testing.T) {
	t.Parallel()
	n, all := network.Start(t, 3)
	p := openAll(t, all)
	a, b, c := p[0], p[1], p[2]
	lift := n.Impose(network.Weather{Cut: true}, network.Way{From: all[0], To: all[1]})
	a.send(b, 1)
	a.passed(c)
	b.send(a, 2)
	require.Equal(t, []int{2}, a.receive(1), "the other direction")
	b.send(c, 3)
	require.Equal(t, []int{3}, c.receive(1), "another pair")
	c.send(b, 4)
	require.Equal(t, []int{4}, b.receive(1), "the one cut off hears the others")
	lift()
	a.send(b, 5)
	require.Equal(t, []int{5}, b.receive(1), "and the first is lost")
}

func TestWeathersAddUp(t *testing.T) {
	t.Parallel()
	n, all := network.Start(t, 3)
	p := openAll(t, all)
	a, b, c := p[0], p[1], p[2]
	way := network.Way{From: all[0], To: all[1]}
	lifts := []func(){n.Impose(network.Weather{Cut: true}, way), n.Impose(network.Weather{Cut: true}, way)}
	lifts[0]()
	lifts[0]()
	a.send(b, 1)
	a.passed(c)
	lifts[1]()
	a.send(b, 2)
	require.Equal(t, []int{2}, b.receive(1))

	const delay = 20 * time.Millisecond
	for range 3 {
		n.Impose(network.Weather{Delay: delay}, way)
	}
	began := time.Now()
	a.send(b, 3)
	b.receive(1)
	require.GreaterOrEqual(t, time.Since(began), 3*delay)
}

func TestDelayedPacketsArriveLaterAndInOrder(t *testing.T) {
	t.Parallel()
	n, all := network.Start(t, 2)
	p := openAll(t, all)
	const delay, count = 50 * time.Millisecond, 100
	lift := n.Impose(network.Weather{Delay: delay}, network.Way{From: all[0], To: all[1]})
	began := time.Now()
	p[0].send(p[1], upTo(count)...)
	require.Equal(t, upTo(count), p[1].receive(count))
	require.GreaterOrEqual(t, time.Since(began), delay)
	lift()
	n.Impose(network.Weather{Delay: time.Hour}, network.Way{From: all[0], To: all[1]})
	p[1].send(p[0], 7)
	require.Equal(t, []int{7}, p[0].receive(1), "the other direction has no delay")
}

func TestJitterReorders(t *testing.T) {
	t.Parallel()
	n, all := network.Start(t, 2)
	p := openAll(t, all)
	const count = 100
	n.Impose(network.Weather{Jitter: 50 * time.Millisecond}, network.Way{From: all[0], To: all[1]})
	p[0].send(p[1], upTo(count)...)
	numbers := p[1].receive(count)
	require.NotEqual(t, upTo(count), numbers)
	slices.Sort(numbers)
	require.Equal(t, upTo(count), numbers, "all are there")
	p[1].send(p[0], upTo(count)...)
	require.Equal(t, upTo(count), p[0].receive(count), "the other direction keeps its order")
}

func TestSomePacketsAreLost(t *testing.T) {
	t.Parallel()
	n, all := network.Start(t, 3)
	p := openAll(t, all)
	const count = 200
	lift := n.Impose(network.Weather{Loss: 0.5}, network.Way{From: all[0], To: all[1]})
	for i := range count { // one after another, so that the socket has room for them
		p[0].send(p[1], i)
		p[0].passed(p[2])
	}
	lift()
	p[0].send(p[1], count)
	arrived := 0
	for p[1].receive(1)[0] != count {
		arrived++
	}
	require.InDelta(t, count/2, arrived, count/4)
}

func TestPacketsAreDoubled(t *testing.T) {
	t.Parallel()
	n, all := network.Start(t, 2)
	p := openAll(t, all)
	n.Impose(network.Weather{Double: 1}, network.Way{From: all[0], To: all[1]})
	p[0].send(p[1], 1, 2)
	require.Equal(t, []int{1, 1, 2, 2}, p[1].receive(4))
}

// listen listens on TCP in a node.
func listen(t *testing.T, node *network.Node) (l *net.TCPListener) {
	t.Helper()
	require.NoError(t, node.Do(func() (err error) {
		l, err = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(node.Addr(), 0)))
		return err
	}))
	t.Cleanup(func() { l.Close() })
	require.NoError(t, l.SetDeadline(time.Now().Add(patience)))
	return l
}

func dial(from *network.Node, l *net.TCPListener) (c net.Conn, err error) {
	err = from.Do(func() (err error) {
		c, err = (&net.Dialer{Timeout: patience}).Dial("tcp4", l.Addr().String())
		return err
	})
	return c, err
}

// connect returns both sides of a connection.
func connect(t *testing.T, from *network.Node, l *net.TCPListener) (client, server net.Conn) {
	t.Helper()
	client, err := dial(from, l)
	require.NoError(t, err)
	server, err = l.Accept()
	require.NoError(t, err)
	for _, c := range []net.Conn{client, server} {
		t.Cleanup(func() { c.Close() })
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	}
	return client, server
}

// say sends a word from one side of a connection to the other.
func say(t *testing.T, from, to net.Conn, word string) {
	t.Helper()
	_, err := io.WriteString(from, word)
	require.NoError(t, err)
	hear(t, to, word)
}

func hear(t *testing.T, c net.Conn, word string) {
	t.Helper()
	buf := make([]byte, len(word))
	_, err := io.ReadFull(c, buf)
	require.NoError(t, err)
	require.Equal(t, word, string(buf))
}

func TestAConnectionOutlivesACut(t *testing.T) {
	t.Parallel()
	n, all := network.Start(t, 3)
	p := openAll(t, all)
	client, server := connect(t, all[0], listen(t, all[1]))
	for i, ways := range [][]network.Way{
		{{From: all[0], To: all[1]}},
		{{From: all[1], To: all[0]}},
		network.Both(all[0], all[1]),
	} {
		lift := n.Impose(network.Weather{Cut: true}, ways...)
		_, err := io.WriteString(client, "word")
		require.NoError(t, err)
		if i == 1 {
			hear(t, server, "word") // it arrives, and no acknowledgement comes back
		} else {
			p[0].passed(p[2])
			require.NoError(t, server.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
			_, err = server.Read(make([]byte, 1))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded)
			require.NoError(t, server.SetReadDeadline(time.Now().Add(patience)))
		}
		lift()
		if i != 1 {
			hear(t, server, "word")
		}
		say(t, server, client, "answer")
	}
}

func TestAConnectionSurvivesLossReorderingAndDoubles(t *testing.T) {
	t.Parallel()
	n, all := network.Start(t, 2)
	client, server := connect(t, all[0], listen(t, all[1]))
	n.Impose(network.Weather{Loss: 0.05, Jitter: 2 * time.Millisecond, Double: 0.1}, network.Both(all[0], all[1])...)
	sent, arrived := make([]byte, 1<<17), make([]byte, 1<<17)
	rand.Read(sent)
	go client.Write(sent)
	_, err := io.ReadFull(server, arrived)
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, arrived))
}

func TestAnAddressRefuses(t *testing.T) {
	t.Parallel()
	n, all := network.Start(t, 3)
	l := listen(t, all[1])
	client, server := connect(t, all[0], l)
	other, otherServer := connect(t, all[2], l)
	lift := n.Impose(network.Weather{Refuse: true}, network.Both(all[0], all[1])...)
	_, err := dial(all[0], l)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	requireReset(t, client, server)
	say(t, other, otherServer, "the others go on")
	lift()
	works(t, all[0], l)
}

// requireReset uses a connection, which is reset on both sides.
func requireReset(t *testing.T, client, server net.Conn) {
	t.Helper()
	_, err := io.WriteString(client, "word")
	require.NoError(t, err)
	for _, c := range []net.Conn{client, server} {
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
}

// works uses a new connection both ways.
func works(t *testing.T, from *network.Node, l *net.TCPListener) {
	t.Helper()
	client, server := connect(t, from, l)
	say(t, client, server, "word")
	say(t, server, client, "answer")
}

func TestAResetEndsTheConnectionsThatThereAre(t *testing.T) {
	t.Parallel()
	n, all := network.Start(t, 3)
	l := listen(t, all[1])
	other, otherServer := connect(t, all[2], l)
	for range 2 {
		client, server := connect(t, all[0], l)
		say(t, client, server, "word")
		fromServer, toClient := connect(t, all[0], l)
		n.Reset(all[0], all[1])
		requireReset(t, client, server)
		requireReset(t, toClient, fromServer)
		works(t, all[0], l)
	}
	say(t, other, otherServer, "the others go on")
}

func TestProcessesAreStartedInANode(t *testing.T) {
	_, all := network.Start(t, 2)
	namespace := func() string {
		out, err := exec.Command("readlink", "/proc/self/ns/net").Output()
		require.NoError(t, err)
		return strings.TrimSpace(string(out))
	}
	var in [2]string
	for i, node := range all {
		require.NoError(t, node.Do(func() error {
			in[i] = namespace()
			return nil
		}))
	}
	here := namespace()
	require.NotEqual(t, here, in[0])
	require.NotEqual(t, here, in[1])
	require.NotEqual(t, in[0], in[1])
	for range 100 { // on whatever thread, it has come back
		var own string
		done := make(chan struct{})
		go func() {
			defer close(done)
			all[0].Do(func() error { return nil })
			own, _ = os.Readlink("/proc/thread-self/ns/net")
		}()
		<-done
		require.Equal(t, here, own)
	}
	require.Equal(t, io.EOF, all[0].Do(func() error { return io.EOF }))
}

func TestAClosedNetworkLeavesNothing(t *testing.T) {
	descriptors := func() int {
		files, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(files)
	}
	n, _ := network.Start(t, 1) // the poller has descriptors of its own
	n.Close()
	before := descriptors()
	for range 3 {
		n := network.New()
		a, err := n.Add()
		require.NoError(t, err)
		b, err := n.Add()
		require.NoError(t, err)
		n.Impose(network.Weather{Delay: time.Hour}, network.Both(a, b)...)
		p := open(t, a)
		p.send(p, 1)
		_, err = p.conn.WriteTo([]byte("word"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(b.Addr(), 1)))
		require.NoError(t, err)
		p.conn.Close()
		n.Close()
	}
	require.Equal(t, before, descriptors())
}

func TestOnlyAnOwnNamespaceIsJoined(t *testing.T) {
	n, all := network.Start(t, 1)
	here, err := n.Join()
	require.NoError(t, err)
	_, err = n.Join()
	require.ErrorContains(t, err, "no network namespace of its own", "its device is there already")
	p := open(t, here)
	p.send(open(t, all[0]), 1)
	c, err := net.Dial("udp4", netip.AddrPortFrom(all[0].Addr(), 9).String())
	require.NoError(t, err)
	require.Equal(t, here.Addr().String(), c.LocalAddr().(*net.UDPAddr).IP.String(), "what is opened elsewhere in this process is in it")
	require.NoError(t, c.Close())
}
