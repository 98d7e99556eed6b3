//go:build linux && !redburst_portable

package conn

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/conn/conntest"
)

func newTestPoller(t *testing.T) *Poller {
	p, err := NewPoller()
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

func TestSocketOptions(t *testing.T) {
	t.Parallel()
	for network, loopback := range map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0"} {
		l, err := net.Listen(network, loopback)
		if network == "tcp6" && err != nil {
			continue // a machine without IPv6
		}
		require.NoError(t, err)
		defer l.Close()
		s, err := dialSock(t.Context(), newTestPoller(t), target{addr: l.Addr().(*net.TCPAddr).AddrPort()})
		require.NoError(t, err)
		defer s.close()
		for _, o := range []struct{ level, name, want int }{
			{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
			{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 10_000},
			{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 10},
			{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 5},
			{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 2},
		} {
			got, err := unix.GetsockoptInt(s.fd, o.level, o.name)
			require.NoError(t, err)
			require.Equal(t, o.want, got)
		}
		fl, err := unix.FcntlInt(uintptr(s.fd), unix.F_GETFL, 0)
		require.NoError(t, err)
		require.NotZero(t, fl&unix.O_NONBLOCK)
		fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.NotZero(t, fd&unix.FD_CLOEXEC)
	}
}

// A redial of a dead local master can connect to itself, when the kernel chooses the
// master's port as the source. It is forced here by binding to it.
func TestASocketConnectedToItselfIsRefused(t *testing.T) {
	t.Parallel()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	s := &sock{fd: fd}
	defer s.close()
	require.NoError(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	self, err := unix.Getsockname(fd)
	require.NoError(t, err)
	require.ErrorIs(t, s.connect(t.Context(), newTestPoller(t), self), unix.ECONNREFUSED)
}

// A Unix socket with a full backlog answers EAGAIN, and nothing tells when to try again.
func TestFullBacklogOfAUnixSocket(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/s"
	lfd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(lfd)
	require.NoError(t, unix.Bind(lfd, &unix.SockaddrUnix{Name: path}))
	require.NoError(t, unix.Listen(lfd, 0))
	p := newTestPoller(t)

	for {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		defer unix.Close(fd)
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			require.ErrorIs(t, err, unix.EAGAIN)
			break
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = dialSock(ctx, p, target{path: path})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	time.AfterFunc(10*time.Millisecond, func() {
		fd, _, err := unix.Accept(lfd)
		if err == nil {
			unix.Close(fd)
		}
	})
	s, err := dialSock(t.Context(), p, target{path: path})
	require.NoError(t, err)
	require.NoError(t, s.close())
}

func TestZones(t *testing.T) {
	t.Parallel()
	for zone, want := range map[string]bool{"1": true, "lo": true, "nowhere": false} {
		_, _, err := target{addr: netip.MustParseAddrPort("[fe80::1%" + zone + "]:1")}.sockaddr()
		require.Equal(t, want, err == nil, zone)
	}
}

// Waiting holds no thread, however many wait.
func TestWaitingParksNoThread(t *testing.T) {
	threads := func() int {
		entries, err := os.ReadDir("/proc/self/task")
		require.NoError(t, err)
		return len(entries)
	}
	before := threads()
	const n = 100
	started := make(chan struct{}, n)
	ended := make(chan error, n)
	var pollers []*Poller
	for range n {
		p := newTestPoller(t)
		pollers = append(pollers, p)
		go func() {
			started <- struct{}{}
			_, err := p.Wait(clock.Forever)
			ended <- err
		}()
	}
	for range n {
		<-started
	}
	conntest.Parked(t, n, "(*Poller).Wait(", "TestWaitingParksNoThread")
	require.Less(t, threads(), before+n/2)
	for _, p := range pollers {
		p.Wake()
	}
	for range n {
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(time.Minute):
			t.Fatal("a Wake has ended nobody's wait")
		}
	}
}

// What a sock has written to a connection that takes nothing is bounded, and neither close nor abort waits for it. Both ends
// of the bridge end then.
func TestABridgeIsBoundedAndEnds(t *testing.T) {
	for _, end := range []func(*sock) error{(*sock).close, (*sock).abort} {
		ours, theirs := net.Pipe()
		s, err := sockOf(ours)
		require.NoError(t, err)
		written := 0
		for n := 1; n > 0; written += n {
			n, err = s.Write(make([]byte, 64<<10))
			require.NoError(t, err)
			require.Less(t, written, 4<<20)
		}
		require.NoError(t, end(s))
		require.ErrorIs(t, end(s), net.ErrClosed)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			theirs.Write([]byte("what nobody reads"))
			for err == nil {
				_, err = theirs.Read(make([]byte, 1<<10))
			}
		}()
		conntest.Soon(t, "it was closed", ended)
	}
}

// After an abort nothing more is sent, though something was under way, and the connection does not take notice of its Close.
func TestAnAbortedBridgeSendsNothingMore(t *testing.T) {
	nc := &deaf{writing: make(chan struct{}), goOn: make(chan struct{})}
	s, err := sockOf(nc)
	require.NoError(t, err)
	_, err = s.Write([]byte("first"))
	require.NoError(t, err)
	conntest.Soon(t, "it is sent", nc.writing)
	_, err = s.Write([]byte("second"))
	require.NoError(t, err)
	b := s.bridge
	require.NoError(t, s.abort())
	close(nc.goOn)
	require.Eventually(t, func() bool { return b.far.SetDeadline(time.Time{}) != nil }, 20*time.Second, time.Millisecond, "the far end is closed")
	require.EqualValues(t, 1, nc.writes.Load())
}

// deaf is a connection whose Write goes on though it was closed.
type deaf struct {
	net.Conn
	writing, goOn chan struct{}
	writes        atomic.Int64
}

func (d *deaf) Write(p []byte) (int, error) {
	if d.writes.Add(1) == 1 {
		close(d.writing)
	}
	<-d.goOn
	return len(p), nil
}

func (d *deaf) Read([]byte) (int, error) { <-d.goOn; return 0, net.ErrClosed }
func (d *deaf) Close() error             { return nil }
