//go:build linux && !redburst_portable

package conn_test

import (
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/conn/conntest"
)

// A Wait that asks takes notice of all that a Wait takes notice of.
func TestABusyWaitTakesNotice(t *testing.T) {
	for kind, newPoller := range map[string]func(tb testing.TB) *conn.Poller{"any": newPoller, "single": newSinglePoller} {
		for name, c := range map[string]struct {
			until  func() time.Duration
			change func(t *testing.T, p *conn.Poller, peer io.Writer)
			events int
			err    error
		}{
			"of what arrives": {events: 1, change: func(t *testing.T, p *conn.Poller, peer io.Writer) { io.WriteString(peer, "+a\r\n") }},
			"of a Wake":       {change: func(t *testing.T, p *conn.Poller, peer io.Writer) { p.Wake() }},
			"of Close":        {change: func(t *testing.T, p *conn.Poller, peer io.Writer) { p.Close() }, err: conn.ErrPollerClosed},
			"of its deadline": {
				until:  func() time.Duration { return clock.Now() + 50*time.Millisecond },
				change: func(t *testing.T, p *conn.Poller, peer io.Writer) {},
			},
			"of the end of its busy time": {change: func(t *testing.T, p *conn.Poller, peer io.Writer) {
				p.SetBusy(0)
				conntest.Parked(t, 1, "(*Poller).Wait(", "conn_test.TestABusyWaitTakesNotice")
				p.Wake()
			}},
		} {
			t.Run(kind+", "+name, func(t *testing.T) {
				conn, peer := pair(t, conn.Options{})
				p := newPoller(t)
				require.NoError(t, p.Add(conn, 1, 1))
				p.SetBusy(clock.Forever)
				until := clock.Forever
				if c.until != nil {
					until = c.until()
				}
				over := make(chan error, 1)
				n := 0
				go func() {
					events, err := p.Wait(until)
					n = len(events)
					over <- err
				}()
				if c.until == nil {
					conntest.Inside(t, 1, "(*Poller).askAgain(", "conn_test.TestABusyWaitTakesNotice")
				}
				c.change(t, p, peer)
				require.ErrorIs(t, soon(t, over), c.err)
				require.Equal(t, c.events, n)
				if c.until != nil {
					require.GreaterOrEqual(t, clock.Now(), until)
				}
			})
		}
	}
}

// A Poller that is not busy, or not any more, parks.
func TestABusyTimeThatIsOverParks(t *testing.T) {
	t.Parallel()
	for _, busy := range []time.Duration{0, 1, clock.Now()} {
		p := newPoller(t)
		p.SetBusy(busy)
		over := make(chan error, 1)
		go func() {
			_, err := p.Wait(clock.Forever)
			over <- err
		}()
		conntest.Parked(t, 1, "(*Poller).Wait(", "conn_test.TestABusyTimeThatIsOverParks")
		p.Wake()
		require.NoError(t, soon(t, over))
	}
}

// While a Wait asks, those who wait for descriptors go on, also with the only processor of the runtime. The
// runtime polls for them every 10 ms without us, and Wait asks 25,000 times meanwhile if it has a CPU, and 3,700 times
// if it shares that with four others. They pass the ball every 500 times.
//
// It is not parallel: it sets the number of processors.
func TestABusyWaitLetsOthersGoOn(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	p := newPoller(t)
	asks := p.CountAsks()
	p.SetBusy(clock.Forever)
	over := make(chan error, 1)
	go func() {
		_, err := p.Wait(clock.Forever)
		over <- err
	}()
	there, away, err := os.Pipe()
	require.NoError(t, err)
	defer away.Close()
	back, home, err := os.Pipe()
	require.NoError(t, err)
	defer home.Close()
	go func() { io.Copy(home, there); there.Close() }()
	defer back.Close()
	played := make(chan error, 1)
	const passes = 200
	go func() {
		ball := make([]byte, 1)
		for range passes {
			if _, err := away.Write(ball); err != nil {
				played <- err
				return
			}
			if _, err := back.Read(ball); err != nil {
				played <- err
				return
			}
		}
		played <- nil
	}()
	require.NoError(t, soon(t, played))
	t.Logf("it has asked %d times in each pass", asks.Load()/passes)
	require.Less(t, asks.Load(), int64(passes*1_500))
	require.Empty(t, over, "it has asked all the time")
	p.Wake()
	require.NoError(t, soon(t, over))
}

func TestABusyWaitAllocatesNothing(t *testing.T) {
	for _, p := range []*conn.Poller{newPoller(t), newSinglePoller(t)} {
		c, _ := pair(t, conn.Options{})
		require.NoError(t, p.Add(c, 1, conn.Readable))
		require.Zero(t, testing.AllocsPerRun(20, func() {
			until := clock.Now() + time.Millisecond
			p.SetBusy(until)
			if _, err := p.Wait(until); err != nil {
				t.Error(err)
			}
		}))
	}
}

// What lets others go on is a descriptor, which Close frees.
//
// It is not parallel: it counts descriptors.
func TestABusyPollerLeavesNoDescriptor(t *testing.T) {
	before := sockets(t)
	for range 20 {
		p, err := conn.NewPoller()
		require.NoError(t, err)
		idle := sockets(t)
		until := clock.Now() + 5*time.Millisecond
		for p.SetBusy(clock.Forever); sockets(t) == idle; until = clock.Now() + 5*time.Millisecond {
			_, err := p.Wait(until)
			require.NoError(t, err)
		}
		require.NoError(t, p.Close())
	}
	require.LessOrEqual(t, sockets(t), before)
}
