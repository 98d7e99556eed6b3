package redlocktest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// A side is a client or a master in simulated time. It sends through a pipe, and
// notes what it gets: bytes, "end" or "reset".
type side struct {
	*io.PipeReader
	sending *io.PipeWriter
	began   time.Time
	deaf    bool // it has closed its connection

	mu     sync.Mutex
	got    []event
	closed bool // by the link
}

type event struct {
	what string
	at   time.Duration
}

func newSide() *side {
	s := &side{began: time.Now()}
	s.PipeReader, s.sending = io.Pipe()
	return s
}

func (s *side) send(text string) { s.sending.Write([]byte(text)) }

func (s *side) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, event{what, time.Since(s.began)})
}

func (s *side) Write(p []byte) (int, error) {
	if s.deaf {
		return 0, net.ErrClosed
	}
	s.note(string(p))
	return len(p), nil
}

func (s *side) CloseWrite() error   { s.note("end"); return nil }
func (s *side) SetLinger(int) error { s.note("reset"); return nil }

func (s *side) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.PipeReader.Close()
}

// events returns what has been got once nothing more happens by itself.
func (s *side) events() []event {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got
}

// simulated runs a test with one connection over a link, which has the given weather
// before the connection is made.
func simulated(t *testing.T, before weather, test func(t *testing.T, l *link, client, master *side)) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{changed: make(chan struct{}), passages: make(map[*passage]struct{}), weather: before}
		client, master := newSide(), newSide()
		l.running.Go(func() {
			l.serve(client, func(context.Context) (half, error) {
				master.note("made")
				return master, nil
			})
		})
		defer func() {
			l.reset()
			l.running.Wait()
			require.Empty(t, l.passages)
		}()
		test(t, l, client, master)
	})
}

func (l *link) setDelay(d time.Duration) { l.change(func(w *weather) { w.delay = d }) }

// fromEach runs a test for each direction. The one who sends is from.
func fromEach(t *testing.T, before weather, test func(t *testing.T, l *link, d direction, from, to *side)) {
	t.Run("requests", func(t *testing.T) {
		simulated(t, before, func(t *testing.T, l *link, client, master *side) {
			synctest.Wait()
			master.got = nil // that it was made
			test(t, l, toMaster, client, master)
		})
	})
	t.Run("replies", func(t *testing.T) {
		simulated(t, before, func(t *testing.T, l *link, client, master *side) {
			synctest.Wait()
			test(t, l, toClients, master, client)
		})
	})
}

func TestDelaysDoNotAddUp(t *testing.T) {
	t.Parallel()
	fromEach(t, weather{delay: 10 * ms}, func(t *testing.T, l *link, _ direction, from, to *side) {
		var want []event
		for i := range 1000 {
			if i >= 500 {
				time.Sleep(ms)
			}
			text := fmt.Sprint(i, ";")
			from.send(text)
			want = append(want, event{text, time.Since(from.began) + 10*ms})
		}
		time.Sleep(10 * ms)
		require.Equal(t, want, to.events())
	})
}

func TestDelayIsOfWhatIsSentFromThenOn(t *testing.T) {
	t.Parallel()
	fromEach(t, weather{}, func(t *testing.T, l *link, _ direction, from, to *side) {
		from.send("a")
		synctest.Wait()
		l.setDelay(10 * ms)
		from.send("b")
		synctest.Wait()
		l.setDelay(20 * ms)
		from.send("c")
		synctest.Wait()
		l.setDelay(0)
		from.send("d")
		require.Equal(t, []event{{"a", 0}}, to.events())
		time.Sleep(20 * ms)
		from.send("e")
		require.Equal(t, []event{{"a", 0}, {"b", 10 * ms}, {"c", 20 * ms}, {"d", 20 * ms}, {"e", 20 * ms}}, to.events(), "in order")
	})
}

func TestEndsArriveBehindWhatCameBefore(t *testing.T) {
	t.Parallel()
	fromEach(t, weather{delay: 10 * ms}, func(t *testing.T, l *link, _ direction, from, to *side) {
		from.send("a")
		from.sending.Close()
		time.Sleep(20 * ms)
		require.Equal(t, []event{{"a", 10 * ms}, {"end", 10 * ms}}, to.events())
		to.send("b")
		time.Sleep(20 * ms)
		require.Equal(t, event{"b", 30 * ms}, from.events()[len(from.got)-1], "the other direction goes on")
		require.Len(t, l.passages, 1)
		to.sending.Close()
		time.Sleep(20 * ms)
		require.Equal(t, event{"end", 50 * ms}, from.events()[len(from.got)-1])
		require.Empty(t, l.passages, "both have ended it")
		require.True(t, from.closed && to.closed)
		require.NotContains(t, fmt.Sprint(from.got, to.got), "reset")
	})
}

func TestResetsArriveBehindWhatCameBefore(t *testing.T) {
	t.Parallel()
	fromEach(t, weather{delay: 10 * ms}, func(t *testing.T, l *link, _ direction, from, to *side) {
		from.send("a")
		from.sending.CloseWithError(errors.New("reset"))
		time.Sleep(20 * ms)
		require.Equal(t, []event{{"a", 10 * ms}, {"reset", 10 * ms}}, to.events())
		require.Empty(t, l.passages)
	})
}

// Who sends to one that has closed its connection is told by a reset.
func TestWhatIsRefusedIsAnsweredWithAReset(t *testing.T) {
	t.Parallel()
	fromEach(t, weather{delay: 10 * ms}, func(t *testing.T, l *link, d direction, from, to *side) {
		to.sending.Close()
		time.Sleep(time.Second)
		to.deaf = true
		from.send("a")
		from.send("b")
		time.Sleep(20 * ms)
		last := len(from.events()) - 1
		require.Equal(t, event{"reset", time.Second + 20*ms}, from.got[last])
		require.Equal(t, "end", from.got[last-1].what)
		require.Empty(t, l.passages)
	})
}

func TestCutKeepsEverythingUntilHealed(t *testing.T) {
	t.Parallel()
	for _, end := range []error{io.EOF, errors.New("reset")} {
		fromEach(t, weather{}, func(t *testing.T, l *link, d direction, from, to *side) {
			l.change(func(w *weather) { w.cut[d] = true })
			from.send("a")
			time.Sleep(time.Hour)
			from.send("b")
			from.sending.CloseWithError(end)
			time.Sleep(time.Hour)
			require.Empty(t, to.events())
			to.send("c")
			time.Sleep(time.Hour)
			require.Equal(t, event{"c", 2 * time.Hour}, from.events()[len(from.got)-1], "the other direction is not cut")

			l.change(func(w *weather) { w.cut[d] = false })
			want := []event{{"a", 3 * time.Hour}, {"b", 3 * time.Hour}, {"end", 3 * time.Hour}}
			if end != io.EOF {
				want[2].what = "reset"
			}
			require.Equal(t, want, to.events())
		})
	}
}

func TestCutDoesNotSaveTheDelay(t *testing.T) {
	t.Parallel()
	fromEach(t, weather{delay: 10 * ms}, func(t *testing.T, l *link, d direction, from, to *side) {
		from.send("a")
		l.change(func(w *weather) { w.cut[d] = true })
		time.Sleep(ms)
		l.change(func(w *weather) { w.cut[d] = false })
		time.Sleep(time.Hour)
		require.Equal(t, []event{{"a", 10 * ms}}, to.events())
	})
}

func TestConnectionIsMadeWhenRequestsCanPass(t *testing.T) {
	t.Parallel()
	simulated(t, weather{cut: [2]bool{true, false}}, func(t *testing.T, l *link, client, master *side) {
		time.Sleep(time.Hour)
		require.Empty(t, master.events())
		l.change(func(w *weather) { w.cut[toMaster] = false })
		client.send("a")
		require.Equal(t, []event{{"made", time.Hour}, {"a", time.Hour}}, master.events())
	})
}

func TestRefusalIsAReply(t *testing.T) {
	t.Parallel()
	for _, w := range []weather{{delay: 10 * ms}, {delay: 10 * ms, cut: [2]bool{false, true}}} {
		synctest.Test(t, func(t *testing.T) {
			l := &link{changed: make(chan struct{}), passages: make(map[*passage]struct{}), weather: w}
			client := newSide()
			l.running.Go(func() {
				l.serve(client, func(context.Context) (half, error) { return nil, errors.New("refused") })
			})
			if w.cut[toClients] {
				time.Sleep(time.Hour)
				require.Empty(t, client.events())
				l.change(func(w *weather) { w.cut[toClients] = false })
			}
			l.running.Wait()
			want := 10 * ms
			if w.cut[toClients] {
				want = time.Hour
			}
			require.Equal(t, []event{{"reset", want}}, client.got)
			require.Empty(t, l.passages)
		})
	}
}

func TestBreakResetsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	for _, w := range []weather{{}, {delay: time.Hour}, {cut: [2]bool{true, true}}} {
		simulated(t, w, func(t *testing.T, l *link, client, master *side) {
			synctest.Wait()
			go client.send("a")
			synctest.Wait()
			l.change(func(w *weather) { w.broken = true })
			require.Equal(t, "reset", client.events()[len(client.got)-1].what)
			require.Empty(t, l.passages)
			another := newSide()
			l.serve(another, nil)
			require.Equal(t, []event{{"reset", 0}}, another.events())
		})
	}
}

// A connection may be accepted while the link is closed.
func TestNothingIsCarriedAfterClose(t *testing.T) {
	l, err := newLink("127.0.0.1:0")
	require.NoError(t, err)
	l.close()
	late := newSide()
	l.serve(late, func(context.Context) (half, error) { panic("no way to the master") })
	require.True(t, late.closed)
	require.Equal(t, "reset", late.got[0].what)
}

// A link holds no more than a lane can, and loses nothing.
func TestSenderWaitsForRoom(t *testing.T) {
	t.Parallel()
	fromEach(t, weather{}, func(t *testing.T, l *link, d direction, from, to *side) {
		l.change(func(w *weather) { w.cut[d] = true })
		text := make([]byte, 5*laneSize/2)
		for i := range text {
			text[i] = byte(i * i >> 8)
		}
		sent := 0
		go func() {
			for rest := text; len(rest) > 0; rest = text[sent:] {
				n, _ := from.sending.Write(rest[:min(len(rest), 1000)])
				sent += n
			}
			from.sending.Close()
		}()
		synctest.Wait()
		require.GreaterOrEqual(t, sent, laneSize-1000)
		require.Less(t, sent, laneSize+3000, "one piece is on its way, and one was refused room")
		l.change(func(w *weather) { w.cut[d] = false })
		var got strings.Builder
		for _, e := range to.events() {
			got.WriteString(e.what)
		}
		require.True(t, string(text)+"end" == got.String())
	})
}

// roundTrip sends a PING over an open connection and waits for the answer.
func roundTrip(t *testing.T, c net.Conn) {
	t.Helper()
	ping(t, c)
	c.SetReadDeadline(time.Now().Add(patience))
	buf := make([]byte, len("+PONG\r\n"))
	_, err := io.ReadFull(c, buf)
	require.NoError(t, err)
	require.Equal(t, "+PONG\r\n", string(buf))
}

// ended waits for the end of a connection, and returns io.EOF or an error for a reset.
// It is nil if there is no end.
func ended(c net.Conn) error {
	c.SetReadDeadline(time.Now().Add(patience))
	for buf := make([]byte, 64); ; {
		_, err := c.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return err
		}
	}
}

// wasReset waits for the reset of a connection.
func wasReset(t *testing.T, c net.Conn) {
	t.Helper()
	err := ended(c)
	require.Error(t, err)
	require.NotErrorIs(t, err, io.EOF)
}

func mustDo(t *testing.T, m *Masters, args ...string) any {
	t.Helper()
	reply, err := m.Do(0, args...)
	require.NoError(t, err)
	return reply
}

const setToV = "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$1\r\nv\r\n"

func TestCutHoldsRequestsOrRepliesOrBoth(t *testing.T) {
	t.Parallel()
	forEachLinkedKind(t, func(t *testing.T, start func(int) *Masters) {
		m := start(2)
		other := connect(t, m.Addr(1))
		for _, cut := range []struct {
			by   func(int)
			done bool // although nobody is told
		}{{m.Cut, false}, {m.CutRequests, false}, {m.CutReplies, true}} {
			mustDo(t, m, "DEL", "key")
			c := connect(t, m.Addr(0))
			roundTrip(t, c)
			cut.by(0)
			_, err := io.WriteString(c, setToV)
			require.NoError(t, err)
			if cut.done {
				eventually(t, func() bool { return mustDo(t, m, "GET", "key") == "v" }, "it is done")
			}
			require.Empty(t, replies(c, 20*ms))
			if !cut.done {
				require.Nil(t, mustDo(t, m, "GET", "key"))
			}
			roundTrip(t, other)
			m.Heal(0)
			require.Equal(t, "+OK\r\n", replies(c, patience), "late, but it comes")
			require.Equal(t, "v", mustDo(t, m, "GET", "key"))
			roundTrip(t, c)
		}
	})
}

// What has answered is not known to anybody, and its connection is gone: the worst that a network does to a request.
func TestAnswersAreLostWithTheirConnections(t *testing.T) {
	t.Parallel()
	forEachLinkedKind(t, func(t *testing.T, start func(int) *Masters) {
		m := start(1)
		for range 20 {
			mustDo(t, m, "DEL", "key")
			c := connect(t, m.Addr(0))
			roundTrip(t, c)
			m.CutReplies(0)
			_, err := io.WriteString(c, setToV)
			require.NoError(t, err)
			eventually(t, func() bool { return mustDo(t, m, "GET", "key") == "v" }, "it is done")
			m.Reset(0)
			m.Heal(0)
			wasReset(t, c)
			roundTrip(t, connect(t, m.Addr(0)))
		}
	})
}

// A request arrives behind a cut when its client has given up the connection, in whichever way, and has a new one.
func TestARequestOutlivesItsConnection(t *testing.T) {
	t.Parallel()
	forEachLinkedKind(t, func(t *testing.T, start func(int) *Masters) {
		m := start(1)
		for i := range 20 {
			mustDo(t, m, "DEL", "key")
			c := connect(t, m.Addr(0))
			roundTrip(t, c)
			m.CutRequests(0)
			_, err := io.WriteString(c, setToV)
			require.NoError(t, err)
			if i%2 == 1 {
				require.NoError(t, c.(*net.TCPConn).SetLinger(0)) // it ends in a reset
			}
			require.NoError(t, c.Close())
			require.Nil(t, mustDo(t, m, "GET", "key"))
			m.Heal(0)
			roundTrip(t, connect(t, m.Addr(0)))
			eventually(t, func() bool { return mustDo(t, m, "GET", "key") == "v" }, "it comes late")
		}
	})
}

func TestNobodySeesAnEndThroughACut(t *testing.T) {
	t.Parallel()
	forEachLinkedKind(t, func(t *testing.T, start func(int) *Masters) {
		m := start(1)
		open := connect(t, m.Addr(0))
		roundTrip(t, open)
		leaving := connect(t, m.Addr(0))
		roundTrip(t, leaving)
		connected := func() int { // without those that ask, of which the master may not have seen the end yet
			list := mustDo(t, m, "CLIENT", "LIST").(string)
			return strings.Count(list, "\n") - strings.Count(list, " cmd=client")
		}
		if m.PID(0) != 0 { // a miniredis has no such list
			eventually(t, func() bool { return connected() == 2 }, "nobody else is connected")
		}
		m.Cut(0)
		require.NoError(t, leaving.Close())
		late := connect(t, m.Addr(0))
		ping(t, late)
		if m.PID(0) != 0 {
			require.Equal(t, 2, connected())
		}
		m.Kill(0)
		open.SetReadDeadline(time.Now().Add(20 * ms))
		_, err := open.Read(make([]byte, 1))
		require.ErrorContains(t, err, "timeout")
		m.Heal(0)
		require.Error(t, ended(open))
		wasReset(t, late) // refused by the master, or accepted by it and reset
		m.Restart(0)
		roundTrip(t, connect(t, m.Addr(0)))
	})
}

func TestDelayIsAddedBothWays(t *testing.T) {
	t.Parallel()
	forEachLinkedKind(t, func(t *testing.T, start func(int) *Masters) {
		m := start(1)
		c := connect(t, m.Addr(0))
		m.Delay(0, 20*ms)
		began := time.Now()
		roundTrip(t, c)
		require.GreaterOrEqual(t, time.Since(began), 40*ms)
		m.Delay(0, time.Hour)
		m.Delay(0, -time.Second)
		roundTrip(t, c)
		m.Delay(0, 20*ms)
		m.Cut(0)
		m.Heal(0)
		began = time.Now()
		roundTrip(t, c)
		require.GreaterOrEqual(t, time.Since(began), 40*ms, "a Delay stays")
	})
}

func TestBreakAndReset(t *testing.T) {
	t.Parallel()
	forEachLinkedKind(t, func(t *testing.T, start func(int) *Masters) {
		m := start(1)
		c := connect(t, m.Addr(0))
		roundTrip(t, c)
		m.Reset(0)
		wasReset(t, c)

		c = connect(t, m.Addr(0))
		roundTrip(t, c)
		m.Break(0)
		wasReset(t, c)
		require.True(t, down(m.Addr(0)))
		mustDo(t, m, "PING") // past the link
		m.Reset(0)
		require.True(t, down(m.Addr(0)), "still broken")
		m.Heal(0)
		c = connect(t, m.Addr(0))
		roundTrip(t, c)

		m.CutRequests(0)
		m.CutReplies(0)
		ping(t, c)
		m.Reset(0)
		wasReset(t, c)
		c = connect(t, m.Addr(0))
		ping(t, c)
		require.Empty(t, replies(c, 20*ms), "still cut")
		m.Heal(0)
		require.Equal(t, "+PONG\r\n", replies(c, patience))
	})
}

func TestLinksLeadToTheRestartedMaster(t *testing.T) {
	t.Parallel()
	forEachLinkedKind(t, func(t *testing.T, start func(int) *Masters) {
		m := start(1)
		addr := m.Addr(0)
		require.NotEqual(t, addr, m.masters[0].addr())
		c := connect(t, addr)
		roundTrip(t, c)
		m.Restart(0)
		require.Error(t, ended(c))
		require.Equal(t, addr, m.Addr(0))
		roundTrip(t, connect(t, addr))
	})
}

// What is kept, or late, does not keep Close waiting, nor is it left behind.
func TestCloseEndsTrafficThatWaits(t *testing.T) {
	for name, hinder := range map[string]func(m *Masters){
		"cut":     func(m *Masters) { m.Cut(0) },
		"delayed": func(m *Masters) { m.Delay(0, time.Hour) },
		"broken":  func(m *Masters) { m.Break(0) },
		"paused":  func(m *Masters) { m.Pause(0) },
	} {
		t.Run(name, func(t *testing.T) {
			requireNothingLeft(t, func() {
				m, err := RunEmbedded(1, WithLinks())
				require.NoError(t, err)
				open, err := net.Dial("tcp", m.Addr(0))
				require.NoError(t, err)
				defer open.Close()
				roundTrip(t, open)
				hinder(m)
				all := []net.Conn{open}
				if fresh, err := net.Dial("tcp", m.Addr(0)); err == nil { // it may be reset already
					defer fresh.Close()
					all = append(all, fresh)
				}
				for _, c := range all {
					c.Write([]byte("*1\r\n$4\r\nPING\r\n"))
				}
				m.links[0].close()
				require.Empty(t, m.links[0].passages)
				m.Close()
				m.Close()
				require.True(t, refuses(m.Addr(0)))
				for _, c := range all {
					require.Error(t, ended(c))
				}
			})
		})
	}
}

func TestLinksMayBeUsedConcurrently(t *testing.T) {
	t.Parallel()
	m := Embedded(t, 1, WithLinks())
	var all sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				c, err := net.Dial("tcp", m.Addr(0))
				if err != nil {
					continue
				}
				c.SetDeadline(time.Now().Add(ms))
				for err == nil {
					c.Write([]byte("*1\r\n$4\r\nPING\r\n"))
					_, err = c.Read(make([]byte, 64))
				}
				c.Close()
			}
		})
	}
	for i := range 200 {
		for _, f := range []func(int){m.Cut, m.Heal, m.CutRequests, m.CutReplies, m.Reset, m.Break, m.Heal, m.Restart} {
			f(0)
		}
		m.Delay(0, time.Duration(i)*10*time.Microsecond)
	}
	close(done)
	all.Wait()
	roundTrip(t, connect(t, m.Addr(0)))
}

func TestOperationsOnLinksNeedLinks(t *testing.T) {
	t.Parallel()
	for _, f := range []func(*Masters){
		func(m *Masters) { m.Delay(0, ms) }, func(m *Masters) { m.Cut(0) }, func(m *Masters) { m.CutRequests(0) },
		func(m *Masters) { m.CutReplies(0) }, func(m *Masters) { m.Break(0) }, func(m *Masters) { m.Reset(0) },
		func(m *Masters) { m.Heal(0) },
	} {
		said := told(func(tb *fakeTB) {
			f(Embedded(tb, 1))
			t.Error("not reached")
		})
		require.Contains(t, said.fatal, "master 0 (")
		require.Contains(t, said.fatal, "start the masters with WithLinks")
	}
}

func TestOptionsThatDoNotGoTogetherAreRefused(t *testing.T) {
	t.Parallel()
	_, err := Run(1, WithUnixSockets(), WithLinks())
	require.ErrorContains(t, err, "Unix sockets")
	for _, o := range []Option{WithUnixSockets(), WithArgs("--appendonly", "yes")} {
		_, err = RunEmbedded(1, o)
		require.ErrorContains(t, err, "embedded masters have neither arguments nor Unix sockets")
	}
}
