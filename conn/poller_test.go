package conn_test

import (
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/conn/conntest"
)

func newPoller(tb testing.TB) *conn.Poller {
	tb.Helper()
	return opened(tb, conn.NewPoller)
}

func newSinglePoller(tb testing.TB) *conn.Poller {
	tb.Helper()
	return opened(tb, conn.NewSinglePoller)
}

// opened makes a Poller, and closes it when the test has ended.
func opened(tb testing.TB, open func() (*conn.Poller, error)) *conn.Poller {
	tb.Helper()
	p, err := open()
	require.NoError(tb, err)
	tb.Cleanup(func() { p.Close() })
	return p
}

// busy makes a Poller that is busy at times.
func busy(newPoller func(tb testing.TB) *conn.Poller) func(tb testing.TB) *conn.Poller {
	return func(tb testing.TB) *conn.Poller {
		tb.Helper()
		p := newPoller(tb)
		soon := func() time.Duration { return time.Duration(rand.IntN(500)) * time.Microsecond }
		done := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				p.SetBusy(clock.Now() + soon())
				select {
				case <-done:
					return
				case <-time.After(soon()):
				}
			}
		})
		tb.Cleanup(func() { close(done); wg.Wait() })
		return p
	}
}

// eachPoller runs a test with either kind of Poller, where it has one connection at most. If it can ask
// instead of parking, the test runs with that, too.
func eachPoller(t *testing.T, test func(t *testing.T, newPoller func(tb testing.TB) *conn.Poller)) {
	t.Parallel()
	t.Run("any", func(t *testing.T) { t.Parallel(); test(t, newPoller) })
	t.Run("single", func(t *testing.T) { t.Parallel(); test(t, newSinglePoller) })
	if conn.CanBusyPoll {
		t.Run("any, busy", func(t *testing.T) { t.Parallel(); test(t, busy(newPoller)) })
		t.Run("single, busy", func(t *testing.T) { t.Parallel(); test(t, busy(newSinglePoller)) })
	}
}

// often is how often a test does something that is to meet an unlucky moment. A busy Poller takes a processor
// meanwhile.
func often(t *testing.T, n int) int {
	if strings.HasSuffix(t.Name(), "busy") {
		return n / 5
	}
	return n
}

// wait waits for one event.
func wait(tb testing.TB, p *conn.Poller) conn.Event {
	tb.Helper()
	events, err := p.Wait(clock.Now() + time.Minute)
	require.NoError(tb, err)
	require.Len(tb, events, 1)
	return events[0]
}

func poll(tb testing.TB, p *conn.Poller) []conn.Event {
	tb.Helper()
	events, err := p.Poll()
	require.NoError(tb, err)
	return events
}

func TestReadinessIsReportedUntilItIsDealtWith(t *testing.T) {
	eachPoller(t, func(t *testing.T, newPoller func(tb testing.TB) *conn.Poller) {
		c, peer := pair(t, conn.Options{})
		p := newPoller(t)
		require.NoError(t, p.Add(c, math.MaxUint64, conn.Readable))
		require.Empty(t, poll(t, p))
		io.WriteString(peer, "+a\r\n")
		for range 3 {
			require.Equal(t, conn.Event{ID: math.MaxUint64, Ready: conn.Readable}, wait(t, p))
			require.Len(t, poll(t, p), 1)
		}
		_, err := c.Receive()
		require.NoError(t, err)
		require.Empty(t, poll(t, p))

		require.NoError(t, p.Modify(c, 1<<40, conn.Readable|conn.Writable))
		require.Equal(t, conn.Event{ID: 1 << 40, Ready: conn.Writable}, wait(t, p))
		require.NoError(t, p.Remove(c))
		require.Empty(t, poll(t, p))
		require.Error(t, p.Remove(c))
		require.Error(t, p.Modify(c, 1, conn.Readable))
		require.NoError(t, p.Add(c, 2, conn.Writable))
		require.Error(t, p.Add(c, 3, conn.Writable))
		require.Equal(t, uint64(2), wait(t, p).ID)
	})
}

func TestHangupAloneIsNotWokenByData(t *testing.T) {
	eachPoller(t, func(t *testing.T, newPoller func(tb testing.TB) *conn.Poller) {
		c, peer := pair(t, conn.Options{})
		watch, read := newPoller(t), newPoller(t)
		require.NoError(t, watch.Add(c, 1, conn.Hangup))
		require.NoError(t, read.Add(c, 2, conn.Readable))
		io.WriteString(peer, "+a\r\n")
		require.Equal(t, conn.Event{ID: 2, Ready: conn.Readable}, wait(t, read))
		require.Empty(t, poll(t, watch))

		peer.Close()
		require.Equal(t, conn.Event{ID: 1, Ready: conn.Hangup}, wait(t, watch))
		require.NotZero(t, wait(t, read).Ready&conn.Readable)
		n, err := c.Receive()
		require.NoError(t, err)
		require.Equal(t, 4, n)
		require.NotZero(t, wait(t, read).Ready&conn.Readable)
		_, err = c.Receive()
		require.ErrorIs(t, err, io.EOF)
	})
}

func TestResetIsAHangup(t *testing.T) {
	eachPoller(t, func(t *testing.T, newPoller func(tb testing.TB) *conn.Poller) {
		c, peer := pair(t, conn.Options{})
		p := newPoller(t)
		require.NoError(t, p.Add(c, 1, conn.Hangup))
		require.NoError(t, peer.(*net.TCPConn).SetLinger(0))
		peer.Close()
		require.NotZero(t, wait(t, p).Ready&conn.Hangup)
		_, err := c.Receive()
		require.Error(t, err)
		require.NotErrorIs(t, err, io.EOF)
	})
}

// parked waits until a Wait of this test is parked, or just under way if its Poller is a busy one.
func parked(t *testing.T) {
	t.Helper()
	name, kind, _ := strings.Cut(t.Name(), "/")
	if strings.HasSuffix(kind, "busy") {
		conntest.Inside(t, 1, "(*Poller).Wait(", "conn_test."+name)
		return
	}
	conntest.Parked(t, 1, "(*Poller).Wait(", "conn_test."+name)
}

func TestAWaitSeesWhatIsChangedDuringIt(t *testing.T) {
	eachPoller(t, func(t *testing.T, newPoller func(tb testing.TB) *conn.Poller) {
		c, _ := pair(t, conn.Options{})
		p := newPoller(t)
		seen := make(chan conn.Event, 1)
		waits := func() {
			events, _ := p.Wait(clock.Forever)
			seen <- events[0]
		}
		for i := range uint64(100) {
			go waits()
			if i%2 == 0 {
				parked(t)
			}
			require.NoError(t, p.Add(c, i, conn.Writable))
			require.Equal(t, i, soon(t, seen).ID)
			require.NoError(t, p.Modify(c, i, conn.Readable))
			go waits()
			require.NoError(t, p.Modify(c, i+1000, conn.Writable))
			require.Equal(t, i+1000, soon(t, seen).ID)
			require.NoError(t, p.Remove(c))
		}
	})
}

func TestMoreReadyThanOneWaitReports(t *testing.T) {
	t.Parallel()
	const n = 100
	p := newPoller(t)
	left := map[uint64]bool{}
	for i := range uint64(n) {
		c, _ := pair(t, conn.Options{})
		require.NoError(t, p.Add(c, i, conn.Writable))
		left[i] = true
	}
	for len(left) > 0 {
		events, err := p.Wait(clock.Forever)
		require.NoError(t, err)
		for _, e := range events {
			delete(left, e.ID)
		}
	}
}

func TestWakeIsKeptForTheNextWait(t *testing.T) {
	eachPoller(t, func(t *testing.T, newPoller func(tb testing.TB) *conn.Poller) {
		p := newPoller(t)
		for range 3 {
			p.Wake()
			p.Wake()
			require.Empty(t, poll(t, p), "Poll takes none")
			events, err := p.Wait(clock.Forever)
			require.NoError(t, err)
			require.Empty(t, events)

			// The Wake is used up, and left nothing that would end a later wait.
			at := clock.Now() + 5*time.Millisecond
			events, err = p.Wait(at)
			require.NoError(t, err)
			require.Empty(t, events)
			require.GreaterOrEqual(t, clock.Now(), at)
		}

		// A Wake does not hide what is ready.
		c, _ := pair(t, conn.Options{})
		require.NoError(t, p.Add(c, 1, conn.Writable))
		p.Wake()
		require.Equal(t, conn.Writable, wait(t, p).Ready)
	})
}

func TestADeadlineIsNeverEarlyAndNeverForgotten(t *testing.T) {
	eachPoller(t, func(t *testing.T, newPoller func(tb testing.TB) *conn.Poller) {
		p := newPoller(t)
		c, _ := pair(t, conn.Options{})
		require.NoError(t, p.Add(c, 1, conn.Readable))
		for range 300 {
			// The deadline is before, at or after the one that is armed, or has passed.
			at := clock.Now() + time.Duration(rand.IntN(4000)-1000)*time.Microsecond
			if rand.IntN(4) == 0 {
				p.Wake()
				_, err := p.Wait(clock.Forever)
				require.NoError(t, err)
			}
			events, err := p.Wait(at)
			require.NoError(t, err)
			require.Empty(t, events)
			require.GreaterOrEqual(t, clock.Now(), at)
		}
		for _, at := range []time.Duration{math.MinInt64, -1, 0, 1, clock.Now()} {
			events, err := p.Wait(at)
			require.NoError(t, err)
			require.Empty(t, events)
		}
	})
}

// Who leaves a message and then calls Wake gets it read, however the calls interleave.
func TestNoWakeIsLost(t *testing.T) {
	eachPoller(t, func(t *testing.T, newPoller func(tb testing.TB) *conn.Poller) {
		var wg sync.WaitGroup
		t.Cleanup(wg.Wait) // when the poller is closed
		p := newPoller(t)
		c, _ := pair(t, conn.Options{})
		require.NoError(t, p.Add(c, 1, conn.Readable))
		rounds := often(t, 20000)
		var mu sync.Mutex
		asked, ended := 0, false
		answers := make(chan int, 1)
		wg.Go(func() {
			answered := 0
			for {
				until := clock.Forever
				if rand.IntN(3) == 0 {
					until = clock.Now() + time.Duration(rand.IntN(100))*time.Microsecond
				}
				if _, err := p.Wait(until); err != nil {
					return
				}
				mu.Lock()
				if asked > answered {
					answered = asked
					answers <- answered
				}
				if ended {
					mu.Unlock()
					return
				}
				mu.Unlock()
			}
		})
		for i := 1; i <= rounds; i++ {
			mu.Lock()
			asked = i
			mu.Unlock()
			p.Wake()
			if i%7 == 0 {
				p.Wake()
			}
			require.Equal(t, i, soon(t, answers))
		}
		mu.Lock()
		ended = true
		mu.Unlock()
		p.Wake()
	})
}

// The same holds for what arrives on a connection, with Wakes and deadlines in between.
func TestNoReadinessIsLost(t *testing.T) {
	eachPoller(t, func(t *testing.T, newPoller func(tb testing.TB) *conn.Poller) {
		c, peer := pair(t, conn.Options{})
		go io.Copy(peer, peer)
		p := newPoller(t)
		require.NoError(t, p.Add(c, 1, conn.Readable))
		done := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(time.Duration(rand.IntN(200)) * time.Microsecond):
					p.Wake()
				}
			}
		})
		defer wg.Wait()
		defer close(done)
		for range often(t, 5000) {
			_, err := c.Send([]byte("+a\r\n"))
			require.NoError(t, err)
			for got, begun := 0, time.Now(); got < 4; {
				require.Less(t, time.Since(begun), time.Minute, "what has arrived is not reported")
				until := clock.Forever
				if rand.IntN(3) == 0 {
					until = clock.Now() + time.Duration(rand.IntN(100))*time.Microsecond
				}
				_, err := p.Wait(until)
				require.NoError(t, err)
				n, err := c.Receive()
				require.NoError(t, err)
				got += n
			}
			for {
				if _, err := c.Next(); err != nil {
					break
				}
			}
		}
	})
}

func TestCloseEndsAWait(t *testing.T) {
	eachPoller(t, func(t *testing.T, newPoller func(tb testing.TB) *conn.Poller) {
		for i := range 50 {
			p := newPoller(t)
			c, _ := pair(t, conn.Options{})
			require.NoError(t, p.Add(c, 1, conn.Readable))
			failed := make(chan error, 1)
			go func() {
				_, err := p.Wait(clock.Forever)
				failed <- err
			}()
			if i%2 == 0 {
				parked(t)
			}
			require.NoError(t, p.Close())
			require.ErrorIs(t, soon(t, failed), conn.ErrPollerClosed)

			p.Wake()
			for _, do := range []func() error{
				func() error { _, err := p.Wait(clock.Forever); return err },
				func() error { _, err := p.Wait(0); return err },
				func() error { _, err := p.Poll(); return err },
				func() error { return p.Add(c, 1, conn.Readable) },
				func() error { return p.Modify(c, 1, conn.Readable) },
				func() error { return p.Remove(c) },
				p.Close,
			} {
				err := do()
				require.ErrorIs(t, err, conn.ErrPollerClosed)
				require.True(t, errors.Is(err, os.ErrClosed) && errors.Is(err, net.ErrClosed))
			}
			_, err := c.Send([]byte("x"))
			require.NoError(t, err, "the connections stay open")
			require.NoError(t, c.Close())
		}
	})
}

// A Wait takes notice of it when it has to park somewhere else.
func TestASinglePollerIsAskedForOtherThingsDuringAWait(t *testing.T) {
	t.Parallel()
	p := newSinglePoller(t)
	seen := make(chan conn.Event, 1)
	waits := func() {
		events, _ := p.Wait(clock.Forever)
		seen <- events[0]
	}
	for i := range 100 {
		c, peer := pair(t, conn.Options{})
		let := func() {
			if i%8 == 0 {
				parked(t)
			}
		}
		go waits()
		let()
		require.NoError(t, p.Add(c, 1, conn.Readable))
		let()
		require.NoError(t, p.Modify(c, 2, conn.Hangup))
		let()
		require.NoError(t, p.Modify(c, 3, conn.Readable))
		let()
		require.NoError(t, p.Remove(c))
		let()
		require.NoError(t, p.Add(c, 4, conn.Readable))
		io.WriteString(peer, "+a\r\n")
		require.Equal(t, conn.Event{ID: 4, Ready: conn.Readable}, soon(t, seen))
		_, err := c.Receive()
		require.NoError(t, err)

		go waits()
		let()
		require.NoError(t, p.Modify(c, 5, conn.Readable|conn.Writable))
		event := soon(t, seen)
		if event == (conn.Event{ID: 4, Ready: conn.Readable}) { // the "+a" once more, as Wait may say
			go waits()
			event = soon(t, seen)
		}
		require.Equal(t, conn.Event{ID: 5, Ready: conn.Writable}, event)
		require.NoError(t, p.Remove(c))
		require.NoError(t, c.Close())
	}
}

// However the beginning of a Wait and that of the connection interleave. Each Wait has an earlier
// deadline than the one before, so that it sets it.
func TestNoReadinessIsLostWhileAConnectionComes(t *testing.T) {
	eachPoller(t, func(t *testing.T, newPoller func(tb testing.TB) *conn.Poller) {
		p := newPoller(t)
		c, peer := pair(t, conn.Options{})
		io.WriteString(peer, "+a\r\n")
		begin, seen := make(chan time.Duration), make(chan int)
		t.Cleanup(func() { close(begin) })
		go func() {
			for until := range begin {
				events, _ := p.Wait(until)
				seen <- len(events)
			}
		}()
		latest := clock.Now() + time.Hour
		for i := range time.Duration(20_000) {
			begin <- latest - i*time.Microsecond
			for range rand.IntN(200) {
				runtime.KeepAlive(p) // some nanoseconds
			}
			require.NoError(t, p.Add(c, 1, conn.Readable))
			require.Equal(t, 1, soon(t, seen))
			require.NoError(t, p.Remove(c))
		}
	})
}

func TestASinglePollerHasOneConnectionAtATime(t *testing.T) {
	t.Parallel()
	p := newSinglePoller(t)
	a, _ := pair(t, conn.Options{})
	b, _ := pair(t, conn.Options{})
	require.NoError(t, p.Add(a, 1, conn.Writable))
	require.Error(t, p.Add(b, 2, conn.Writable))
	require.Error(t, p.Modify(b, 2, conn.Writable))
	require.Error(t, p.Remove(b))
	require.Equal(t, uint64(1), wait(t, p).ID)
	require.NoError(t, p.Remove(a))
	require.NoError(t, p.Add(b, 2, conn.Writable))
	require.Equal(t, uint64(2), wait(t, p).ID)

	// One that was closed before makes room all the same.
	require.NoError(t, b.Close())
	require.Error(t, p.Remove(b))
	require.NoError(t, p.Add(a, 3, conn.Writable))
	require.Equal(t, uint64(3), wait(t, p).ID)
}

// A Poller that looks at the connection itself must not take away why it has ended.
func TestAResetKeepsItsCause(t *testing.T) {
	eachPoller(t, func(t *testing.T, newPoller func(tb testing.TB) *conn.Poller) {
		c, peer := pair(t, conn.Options{})
		p := newPoller(t)
		require.NoError(t, p.Add(c, 1, conn.Readable))
		require.NoError(t, peer.(*net.TCPConn).SetLinger(0))
		peer.Close()
		require.Equal(t, uint64(1), wait(t, p).ID)
		require.Len(t, poll(t, p), 1)
		require.Equal(t, uint64(1), wait(t, p).ID)
		_, err := c.Receive()
		require.Error(t, err)
		require.NotErrorIs(t, err, io.EOF)
	})
}

// The peer learns of the end at once, although the Poller had a copy of the descriptor.
func TestARemovedConnectionIsAlone(t *testing.T) {
	eachPoller(t, func(t *testing.T, newPoller func(tb testing.TB) *conn.Poller) {
		for _, waits := range []bool{false, true} {
			c, peer := pair(t, conn.Options{})
			p := newPoller(t)
			require.NoError(t, p.Add(c, 1, conn.Readable))
			done := make(chan struct{})
			if waits {
				go func() {
					defer close(done)
					p.Wait(clock.Forever)
				}()
				parked(t)
			} else {
				close(done)
			}
			require.NoError(t, p.Remove(c))
			require.NoError(t, c.Abort())
			_, err := peer.Read(make([]byte, 1))
			require.Error(t, err)
			p.Wake()
			soon(t, done)
		}
	})
}

func TestClosedConnectionsLeaveThePoller(t *testing.T) {
	t.Parallel()
	p := newPoller(t)
	for _, end := range []func(*conn.Conn) error{(*conn.Conn).Close, (*conn.Conn).Abort} {
		c, _ := pair(t, conn.Options{})
		require.NoError(t, p.Add(c, 1, conn.Writable))
		require.NotEmpty(t, poll(t, p))
		require.NoError(t, end(c))
		// Not at once while this process starts a child, as other tests do.
		require.Eventually(t, func() bool { return len(poll(t, p)) == 0 }, time.Minute, 5*time.Millisecond)
		require.Error(t, p.Add(c, 1, conn.Writable))
	}
}
