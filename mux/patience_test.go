package mux_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
)

// A busyMaster takes up connections one after the other, each of which is work. One that was given up is as much.
type busyMaster struct {
	*fakeMaster
	taken atomic.Int64
	up    sync.Map // the connections
}

func newBusy(t *testing.T, work time.Duration) (m *busyMaster, addr string) {
	m = &busyMaster{fakeMaster: newFake(t, "busy", steady(0))}
	queue := make(chan chan struct{}, 1000)
	t.Cleanup(func() { close(queue) })
	go func() {
		for turn := range queue {
			time.Sleep(work)
			m.taken.Add(1)
			close(turn)
		}
	}()
	return m, conntest.Listen(t, func(c net.Conn) {
		m.up.Store(c, true)
		defer m.up.Delete(c)
		turn := make(chan struct{})
		queue <- turn
		<-turn
		to, err := net.Dial("tcp", m.addr())
		if err != nil {
			return
		}
		var both sync.WaitGroup
		both.Go(func() { io.Copy(to, c); to.Close() })
		io.Copy(c, to)
		c.Close()
		both.Wait()
	})
}

// restart ends all connections.
func (m *busyMaster) restart() {
	m.up.Range(func(c, _ any) bool { c.(net.Conn).Close(); return true })
}

// A fleet that connects at once, to masters that need several dial timeouts for it, makes hardly any work in vain.
func TestAFleetGetsIn(t *testing.T) {
	t.Parallel()
	getsIn := func(work time.Duration) bool {
		const n = 60
		busy, addr := newBusy(t, work)
		all := make([]*mux.Mux, n)
		for i := range all {
			m, err := mux.New(mux.Config{Masters: []string{addr}, Conn: conn.Options{DialTimeout: 10 * work}})
			require.NoError(t, err)
			defer m.Close()
			all[i] = m
		}
		for range 2 {
			for _, m := range all {
				waitUp(t, m, 1)
			}
			if busy.taken.Swap(0) >= 3*n/2 {
				return false
			}
			busy.restart()
		}
		return true
	}
	// On a busy machine a client may find no CPU for a dial timeout. But if the work is in vain, it is so with any.
	work := 10 * time.Millisecond
	for !getsIn(work) {
		work *= 2
		require.Less(t, work, 200*time.Millisecond)
	}
}

// While a dial goes on, the master's state says what it waits for, and Open does not wait for it.
func TestADialThatGoesOnIsSaid(t *testing.T) {
	t.Parallel()
	busy, addr := newBusy(t, 1500*time.Millisecond)
	states := make(chan mux.State, 100)
	cfg := mux.Config{Masters: []string{addr}, Conn: conn.Options{DialTimeout: 500 * time.Millisecond},
		OnState: func(_ int, s mux.State) { states <- s }}
	m, err := mux.New(cfg)
	require.NoError(t, err)
	defer m.Close()
	s := conntest.Soon(t, "it is said", states)
	require.Equal(t, mux.Down, s.Phase)
	require.ErrorContains(t, s.Err, "handshake: the dial timeout of 500ms passed: i/o timeout; it has taken the connection, and is waited for")
	require.Equal(t, mux.Up, conntest.Soon(t, "it is up", states).Phase)
	require.EqualValues(t, 1, busy.taken.Load())

	_, err = mux.Open(t.Context(), cfg)
	require.ErrorIs(t, err, mux.ErrNoQuorum)
}

// newMute starts a server that takes connections and says nothing. It tells of each that it has taken, and that has
// ended.
func newMute(t *testing.T) (m *fakeMaster, taken chan time.Time, ended chan struct{}) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	taken, ended = make(chan time.Time, 100), make(chan struct{}, 100)
	conntest.ListenOn(t, l, func(c net.Conn) {
		taken <- time.Now()
		io.Copy(io.Discard, c)
		ended <- struct{}{}
	})
	return &fakeMaster{l: l}, taken, ended
}

// A dial that took too long is followed by one that has more time.
func TestDialsThatTakeTooLongGetMoreTime(t *testing.T) {
	t.Parallel()
	const once = 50 * time.Millisecond
	mute, taken, _ := newMute(t)
	m, err := mux.New(mux.Config{Masters: []string{mute.addr()}, StallTime: time.Millisecond,
		Conn: conn.Options{DialTimeout: once / 2, Patience: once / 2}})
	require.NoError(t, err)
	defer m.Close()
	first := conntest.Soon(t, "it is dialled", taken)
	var last time.Time
	for range 4 { // after once, twice, and two times four times that
		last = conntest.Soon(t, "it is dialled again", taken)
	}
	require.Greater(t, last.Sub(first), 8*once) // the first may have been taken late
}

// A dial that goes on ends when the sentinels name another master, and when the place is given to another.
func TestADialThatGoesOnEndsWhenThePlaceIsAnothers(t *testing.T) {
	t.Parallel()
	waits := func(m *mux.Mux) {
		eventually(t, "the dial goes on", func() bool {
			err := m.Masters()[0].Err
			return err != nil && strings.Contains(err.Error(), "is waited for")
		})
	}
	opt := conn.Options{DialTimeout: time.Second, Patience: 20 * time.Second} // a busy machine says hello in less
	soon := func(ended <-chan struct{}) {
		select {
		case <-ended:
		case <-time.After(opt.Patience / 2):
			require.Fail(t, "the dial goes on")
		}
	}

	was, taken, ended := newMute(t)
	is := member(t, "is", hasRole("master"), "+OK\r\n", func([]string) {})
	sentinel := newSentinel(t, was)
	m, err := mux.New(mux.Config{Masters: []string{sentinel.group()}, Conn: opt})
	require.NoError(t, err)
	defer m.Close()
	conntest.Soon(t, "it is dialled", taken)
	waits(m)
	eventually(t, "who follows the group has asked, too", func() bool { return sentinel.asked.Load() >= 2 })
	sentinel.master.Store(is)
	sentinel.cut()
	soon(ended)
	waitUp(t, m, 1)

	// They do so before the dial timeout.
	was, taken, ended = newMute(t)
	sentinel = newSentinel(t, was)
	slow := opt
	slow.DialTimeout = 2 * time.Second
	m, err = mux.New(mux.Config{Masters: []string{sentinel.group()}, Conn: slow})
	require.NoError(t, err)
	defer m.Close()
	conntest.Soon(t, "it is dialled", taken)
	eventually(t, "who follows the group has asked, too", func() bool { return sentinel.asked.Load() >= 2 })
	sentinel.master.Store(is)
	sentinel.cut()
	soon(ended)
	waitUp(t, m, 1)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	down := l.Addr().String()
	m, err = mux.New(mux.Config{Masters: []string{down}, Conn: opt})
	require.NoError(t, err)
	defer m.Close()
	c, err := l.Accept()
	require.NoError(t, err)
	defer c.Close()
	l.Close() // as a machine that is down does; of the connection nobody hears
	waits(m)
	require.NoError(t, m.Replace(t.Context(), down, newFake(t, "new", steady(0)).addr(), "", false))
	gone := make(chan struct{})
	go func() {
		io.Copy(io.Discard, c)
		close(gone)
	}()
	soon(gone)
}

// Sentinels that answer too late for the dial timeout get more time.
func TestLateSentinelsGetMoreTime(t *testing.T) {
	t.Parallel()
	sentinel := newSentinel(t, member(t, "is", hasRole("master"), "+OK\r\n", func([]string) {}))
	late := conntest.Listen(t, func(c net.Conn) {
		time.Sleep(100 * time.Millisecond)
		to, err := net.Dial("tcp", sentinel.addr())
		if err != nil {
			return
		}
		go func() { io.Copy(c, to); c.Close() }()
		io.Copy(to, c)
		to.Close()
	})
	m, err := mux.New(mux.Config{Masters: []string{"sentinel://" + late + "/g"}, Conn: conn.Options{DialTimeout: 100 * time.Millisecond}})
	require.NoError(t, err)
	defer m.Close()
	waitUp(t, m, 1)
}

// A dialer that pauses for long, as a server has not answered, dials at once when the sentinels name another.
func TestADialerDoesNotPauseForWhoHadThePlaceBefore(t *testing.T) {
	t.Parallel()
	was, taken, _ := newMute(t)
	is := member(t, "is", hasRole("master"), "+OK\r\n", func([]string) {})
	sentinel := newSentinel(t, was)
	m, err := mux.New(mux.Config{Masters: []string{sentinel.group()}, StallTime: 24 * time.Hour,
		Conn: conn.Options{DialTimeout: time.Second, Patience: 2 * time.Second}})
	require.NoError(t, err)
	defer m.Close()
	conntest.Soon(t, "it is dialled", taken)
	eventually(t, "it pauses", func() bool {
		s := m.Masters()[0]
		return errors.Is(s.Err, conn.ErrUnanswered) && !strings.Contains(s.Err.Error(), "is waited for") && sentinel.asked.Load() >= 2
	})
	sentinel.master.Store(is)
	sentinel.cut()
	waitUp(t, m, 1)
}
