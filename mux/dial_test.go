package mux_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
)

// If one server has two addresses in the list, only one of them is ever asked.
func TestServerThatIsGivenTwiceVotesOnce(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 2)
	_, port, _ := strings.Cut(masters.Addr(0), ":")
	cfg := patiently(mux.Config{Masters: append(masters.Addrs(), "localhost:"+port)})
	eventually(t, "Open fails", func() bool { // unless it connects the server's other address too late
		m, err := mux.Open(t.Context(), cfg)
		if err == nil {
			m.Close()
			return false
		}
		require.ErrorIs(t, err, mux.ErrDuplicate)
		return true
	})
	m, err := mux.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	eventually(t, "one of them is refused", func() bool {
		s := m.Masters()
		return s[1].Phase == mux.Up && (s[0].Phase == mux.Refused && s[2].Phase == mux.Up || s[0].Phase == mux.Up && s[2].Phase == mux.Refused)
	})
	op := &mux.Op{Command: resp.AppendCommand(nil, "SET", "k", "t"), Verdict: verdictOK, All: true}
	require.NoError(t, m.Do(t.Context(), op))
	yes, _, failed, _ := count(op)
	require.Equal(t, []int{2, 1}, []int{yes, failed})
}

// A user who may not run INFO does not learn the run id. The same server under two names
// still has one vote.
func TestServerThatDoesNotSayWhoItIsVotesOnce(t *testing.T) {
	t.Parallel()
	f := newFake(t, "", steady(0))
	_, port, _ := strings.Cut(f.addr(), ":")
	m, err := mux.New(patiently(mux.Config{Masters: []string{f.addr(), "localhost:" + port}}))
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	eventually(t, "one of them is refused", func() bool {
		s := m.Masters()
		return s[0].Phase == mux.Up && s[1].Phase == mux.Refused || s[0].Phase == mux.Refused && s[1].Phase == mux.Up
	})
	refused := m.Masters()[0]
	if refused.Phase == mux.Up {
		refused = m.Masters()[1]
	}
	require.ErrorIs(t, refused.Err, mux.ErrDuplicate)
	require.ErrorContains(t, refused.Err, "INFO")
}

// A server that copies the run id of a master that is out of reach is refused, and not that master when it is back. Two
// servers that change places are told apart all the same.
func TestARunIDThatIsCopied(t *testing.T) {
	t.Parallel()
	honest, liar := newFake(t, "a", steady(0)), newFake(t, "b", steady(0))
	addrs := []string{honest.addr(), liar.addr()}
	var leads sync.Map // from the places
	lead := func(to ...string) {
		for i, at := range addrs {
			leads.Store(at, to[i])
		}
		honest.cut()
		liar.cut()
	}
	lead(addrs...)
	m := open(t, mux.Config{Masters: addrs, BackoffMax: 10 * time.Millisecond, Conn: conn.Options{
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			to, _ := leads.Load(address)
			if to == "" {
				return nil, errors.New("it is out of reach")
			}
			return new(net.Dialer).DialContext(ctx, network, to.(string))
		},
	}})
	phases := func(want ...mux.Phase) {
		t.Helper()
		eventually(t, "their phases", func() bool {
			s := m.Masters()
			return s[0].Phase == want[0] && s[1].Phase == want[1]
		})
	}
	for _, to := range [][]string{{addrs[1], addrs[0]}, addrs} {
		before := m.Masters()[0].Server.RunID
		lead(to...)
		eventually(t, "they have changed places", func() bool {
			s := m.Masters()
			return s[0].Phase == mux.Up && s[1].Phase == mux.Up && s[0].Server.RunID != before && s[1].Server.RunID == before
		})
	}

	lead("", addrs[1])
	phases(mux.Down, mux.Up)
	liar.mu.Lock()
	liar.id = "a"
	liar.mu.Unlock()
	liar.cut()
	eventually(t, "the liar is heard", func() bool { return m.Masters()[1].Phase == mux.Refused || m.Masters()[1].Server.RunID == "a" })
	require.ErrorIs(t, m.Masters()[1].Err, mux.ErrDuplicate)
	leads.Store(addrs[0], addrs[0])
	phases(mux.Up, mux.Refused)
}

// A master that answers a handshake with endless pushes holds nobody up: the dial ends in
// time, and so does Close.
func TestHandshakeOfAMasterThatOnlyPushesEnds(t *testing.T) {
	t.Parallel()
	addrs := []string{newFake(t, "a", steady(0)).addr(), newFake(t, "b", steady(1)).addr(), newFake(t, "c", steady(2)).addr()}
	m := open(t, mux.Config{Masters: addrs, Conn: conn.Options{DialTimeout: 2 * time.Second,
		Wrap: func(master string, s io.ReadWriter) io.ReadWriter {
			if master == addrs[2] {
				return endless{s}
			}
			return s
		}}})
	eventually(t, "the dial has timed out", func() bool { return errors.Is(m.Masters()[2].Err, os.ErrDeadlineExceeded) })
	require.NoError(t, m.Close())
}

// A Dialer that hangs, and ignores its context, is given up when the dial timeout has passed, and asked anew while few hang.
// Its connections that come too late are closed. Nothing waits for it.
func TestHungDialerIsGivenUp(t *testing.T) {
	t.Parallel()
	hung, other := newFake(t, "a", steady(0)), newFake(t, "b", steady(0))
	var calls, opened, open atomic.Int64
	release := make(chan struct{})
	m, err := mux.New(mux.Config{Masters: []string{hung.addr(), other.addr()}, BackoffMax: time.Millisecond, Conn: conn.Options{
		DialTimeout: 300 * time.Millisecond,
		Dialer: func(_ context.Context, network, address string) (net.Conn, error) {
			if address == hung.addr() {
				calls.Add(1)
				<-release
			}
			c, err := net.Dial(network, address)
			if err == nil && address == hung.addr() {
				open.Add(1)
				opened.Add(1)
				c = &closeCounter{Conn: c, open: &open}
			}
			return c, err
		},
	}})
	require.NoError(t, err)
	eventually(t, "the other is up", func() bool { return m.Masters()[1].Phase == mux.Up })
	eventually(t, "it is shown", func() bool {
		s := m.Masters()[0]
		return s.Phase == mux.Down && errors.Is(s.Err, os.ErrDeadlineExceeded) && strings.Contains(s.Err.Error(), "the Dialer has not returned from 4 calls before")
	})
	require.EqualValues(t, 4, calls.Load())
	require.NoError(t, m.Close())
	close(release)
	eventually(t, "what came too late is closed", func() bool { return opened.Load() == 4 && open.Load() == 0 })
	require.EqualValues(t, 4, calls.Load())
}

type closeCounter struct {
	net.Conn
	open *atomic.Int64
	once sync.Once
}

func (c *closeCounter) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}

// A panic of a Dialer is its error. The next try may go well, also after many.
func TestPanicOfADialerIsItsError(t *testing.T) {
	t.Parallel()
	master := newFake(t, "a", steady(0))
	var calls atomic.Int64
	var told atomic.Bool
	m, err := mux.New(patiently(mux.Config{Masters: []string{master.addr()}, BackoffMax: time.Millisecond,
		OnState: func(_ int, s mux.State) {
			if s.Phase == mux.Down && strings.Contains(s.Err.Error(), "the dialler fell") {
				told.Store(true)
			}
		},
		Conn: conn.Options{Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			if calls.Add(1) <= 10 {
				panic("the dialler fell")
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		}},
	}))
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	waitUp(t, m, 1)
	eventually(t, "it is told", told.Load)
	require.EqualValues(t, 11, calls.Load())
}
