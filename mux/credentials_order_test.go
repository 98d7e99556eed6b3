package mux_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp"
)

// A fickle vault gives out a password that the masters refuse, twice of three times. What it
// gives out is about to end. It never does so more often in a row, however many dials there were: the
// pause after a refusal doubles.
type fickle struct{ refused, taken, row atomic.Int64 }

func (v *fickle) ask(context.Context, string) (conn.Credentials, error) {
	c := conn.Credentials{Username: "ann", Password: conn.NewSecret("first"), Until: time.Now().Add(time.Millisecond)}
	if v.taken.Load() > 3 && v.row.Load() < 2 { // the first dials are served
		v.row.Add(1)
		v.refused.Add(1)
		c.Password = conn.NewSecret("wrong")
	} else {
		v.row.Store(0)
		v.taken.Add(1)
	}
	return c, nil
}

func (v *fickle) enough(refused int64) bool { return v.refused.Load() >= refused }

// echo sends texts until it is told to stop, and requires that each master answers each of
// them with that text.
func echo(t *testing.T, m *mux.Mux, name string, stop func() bool) {
	op := &mux.Op{All: true, Keep: true, Timeout: 20 * time.Second, Verdict: func(resp.Value) mux.Verdict { return mux.VerdictYes }}
	for k := 0; !stop(); k++ {
		id := fmt.Sprint(name, "-", k)
		op.Command = resp.AppendCommand(op.Command[:0], "ECHO", id)
		if err := m.Do(context.Background(), op); err != nil {
			t.Errorf("%s: %v", id, err)
			return
		}
		for i, v := range op.Votes {
			if !v.Reply.Is(id) {
				t.Errorf("%s: master %d answered %q (%v)", id, i, v.Reply.Raw(), v.Err)
				return
			}
		}
	}
}

// requireUndisturbed requires that no connection has ended and no vote has failed.
func requireUndisturbed(t *testing.T, m *mux.Mux) {
	t.Helper()
	for _, s := range m.Masters() {
		require.EqualValues(t, 1, s.Connects, "%v", s.Err)
		require.Zero(t, s.Failures)
	}
}

// Some servers lose the reply to a refused AUTH that was pipelined behind another command.
// From then on each reply would be taken for the next command's.
func TestEveryReplyIsItsOwnWhileCredentialsAreRefused(t *testing.T) {
	t.Parallel()
	for proto, args := range map[int][]string{3: nil, 2: {"--rename-command", "HELLO", ""}} {
		t.Run(fmt.Sprint("RESP", proto), func(t *testing.T) {
			t.Parallel()
			masters := startWithUser(t, 3, args...)
			vault := new(fickle)
			m := open(t, mux.Config{Masters: masters.Addrs(), BackoffMax: time.Millisecond, Conn: conn.Options{Credentials: vault.ask}})
			waitUp(t, m, 3)
			require.Equal(t, proto, m.Masters()[0].Server.Proto)
			deadline := time.Now().Add(patience)
			stop := func() bool { return t.Failed() || vault.enough(100) || time.Now().After(deadline) }
			var wg sync.WaitGroup
			for g := range 16 {
				wg.Go(func() { echo(t, m, fmt.Sprint(g), stop) })
			}
			conntest.AllEnd(t, "all are answered", &wg)
			require.True(t, vault.enough(100), "%d were refused", vault.refused.Load())
			requireUndisturbed(t, m)
		})
	}
}

// A ledger is a stream that counts the replies that are owed on it.
type ledger struct {
	io.ReadWriter
	mu       sync.Mutex
	out, in  *resp.Reader
	owed     int
	renewed  int // AUTH was written
	tooEarly int // ... while a reply was owed
}

func newLedger(s io.ReadWriter) *ledger {
	return &ledger{ReadWriter: s, out: resp.NewReader(1<<16, resp.Limits{}), in: resp.NewReader(1<<16, resp.Limits{})}
}

// frames calls back for each frame that r has once p was added to it.
func frames(r *resp.Reader, p []byte, each func(v resp.Value)) {
	r.Advance(copy(r.Free(len(p)), p))
	for v, err := r.Next(); err == nil; v, err = r.Next() {
		each(v)
	}
}

func (l *ledger) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, err := l.ReadWriter.Write(p)
	frames(l.out, p[:n], func(command resp.Value) {
		words := command.Elems()
		if name, _ := words.Next(); name.Is("AUTH") {
			l.renewed++
			if l.owed > 0 {
				l.tooEarly++
			}
		}
		l.owed++
	})
	return n, err
}

func (l *ledger) renewals() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.renewed
}

func (l *ledger) early() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tooEarly
}

func (l *ledger) Read(p []byte) (int, error) {
	n, err := l.ReadWriter.Read(p)
	l.mu.Lock()
	defer l.mu.Unlock()
	frames(l.in, p[:n], func(resp.Value) { l.owed-- })
	return n, err
}

// However busy the connections are, new credentials are written only when no reply is owed.
func TestCredentialsAreRenewedOnlyWhenNothingIsOwed(t *testing.T) {
	t.Parallel()
	masters := startWithUser(t, 2)
	vault := new(fickle)
	var mu sync.Mutex
	ledgers := map[string]*ledger{} // of the latest dial of each: one that was given up is renewed no more
	m := open(t, mux.Config{Masters: masters.Addrs(), BackoffMax: time.Millisecond, Conn: conn.Options{
		Credentials: vault.ask,
		Wrap: func(master string, s io.ReadWriter) io.ReadWriter {
			mu.Lock()
			defer mu.Unlock()
			l := newLedger(s)
			ledgers[master] = l
			return l
		},
	}})
	waitUp(t, m, 2)
	deadline := time.Now().Add(patience)
	stop := func() bool {
		mu.Lock()
		defer mu.Unlock()
		enough := true
		for _, l := range ledgers {
			enough = enough && l.renewals() >= 30
		}
		return t.Failed() || enough || time.Now().After(deadline)
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() { echo(t, m, fmt.Sprint(g), stop) })
	}
	conntest.AllEnd(t, "all are answered", &wg)
	mu.Lock()
	defer mu.Unlock()
	for _, l := range ledgers {
		require.GreaterOrEqual(t, l.renewals(), 30)
		require.Zero(t, l.early(), "of %d", l.renewals())
	}
	requireUndisturbed(t, m)
}

// A slowMaster answers ":1" to each command, but for VOTE slow, and keeps what it was asked.
// Its Mux renews its credentials once, when it is told to.
type slowMaster struct {
	*fakeMaster
	m     *mux.Mux
	slow  chan string   // the reply to VOTE slow
	auth  chan string   // the reply to AUTH
	turn  chan struct{} // the renewal may begin
	first string        // the reply to the first VOTE busy

	mu   sync.Mutex
	seen []string
}

func newSlowMaster(t *testing.T, cfg mux.Config) *slowMaster {
	s := &slowMaster{slow: make(chan string, 1), auth: make(chan string, 1), turn: make(chan struct{}), first: "-BUSY wait\r\n"}
	s.fakeMaster = newFake(t, "slow", func() script { return s.answer })
	t.Cleanup(func() { close(s.slow); close(s.auth) })
	var asked atomic.Int64
	cfg.Masters = []string{s.addr()}
	cfg.Conn.Credentials = func(ctx context.Context, _ string) (conn.Credentials, error) {
		c := conn.Credentials{Password: conn.NewSecret("p")}
		switch asked.Add(1) {
		case 1:
			c.Until = time.Now().Add(time.Millisecond)
		case 2:
			select {
			case <-s.turn:
			case <-ctx.Done():
				return c, ctx.Err()
			}
		}
		return c, nil
	}
	s.m = open(t, cfg)
	waitUp(t, s.m, 1)
	return s
}

func (s *slowMaster) answer(args []string) (string, bool) {
	s.mu.Lock()
	s.seen = append(s.seen, strings.Join(args[:min(len(args), 2)], " "))
	s.mu.Unlock()
	switch {
	case args[0] == "AUTH":
		return <-s.auth, true
	case args[1] == "slow":
		return <-s.slow, true
	case args[1] == "busy":
		defer func() { s.first = ":1\r\n" }()
		return s.first, true
	}
	return ":1\r\n", true
}

func (s *slowMaster) asked() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// owes waits until it owes so many replies, as far as the Mux knows.
func (s *slowMaster) owes(t *testing.T, n int) {
	t.Helper()
	eventually(t, fmt.Sprint(n, " replies are owed"), func() bool { return s.m.Masters()[0].Owed == n })
}

// hold has a renewal wait for the reply to an operation, VOTE slow.
func (s *slowMaster) hold(t *testing.T, op *mux.Op) {
	t.Helper()
	s.m.Post(op)
	s.turn <- struct{}{}
	s.owes(t, 2)
}

// What is queued while a renewal waits stays behind it, be it an operation, a fallback or a
// debt.
func TestNothingOvertakesARenewal(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare, during func(t *testing.T, s *slowMaster)
		reply           string
		want            []string
	}{
		"an operation": {
			during: func(t *testing.T, s *slowMaster) { s.m.Send(vote("next")) },
			reply:  ":1\r\n",
			want:   []string{"VOTE slow", "AUTH p", "VOTE next"},
		},
		"a fallback": {
			reply: "-NOSCRIPT no\r\n",
			want:  []string{"VOTE slow", "AUTH p", "VOTE again"},
		},
		"a debt": {
			prepare: func(t *testing.T, s *slowMaster) {
				op := vote("busy")
				op.Persist = time.Hour
				require.NoError(t, s.m.Do(t.Context(), op))
			},
			during: func(t *testing.T, s *slowMaster) { s.owes(t, 3) },
			reply:  ":1\r\n",
			want:   []string{"VOTE busy", "VOTE slow", "AUTH p", "VOTE busy"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSlowMaster(t, mux.Config{})
			if c.prepare != nil {
				c.prepare(t, s)
			}
			op := vote("slow")
			op.Verdict, op.Fallback = verdictOne, resp.AppendCommand(nil, "VOTE", "again")
			s.hold(t, op)
			if c.during != nil {
				c.during(t, s)
			}
			s.slow <- c.reply
			s.auth <- "+OK\r\n"
			require.NoError(t, s.m.Wait(t.Context(), op))
			require.True(t, granted(op))
			s.owes(t, 0)
			require.Equal(t, c.want, s.asked())
			require.EqualValues(t, 1, s.m.Masters()[0].Connects)
			require.NoError(t, s.m.Masters()[0].Err)
		})
	}
}

// A connection that ends while a renewal waits, or is not answered, takes it with it. The
// next connection begins with new credentials, and nothing is held back on it.
func TestConnectionThatEndsTakesItsRenewalWithIt(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{false, true} {
		t.Run(fmt.Sprint("told ", told), func(t *testing.T) {
			t.Parallel()
			s := newSlowMaster(t, mux.Config{})
			slow, behind := vote("slow"), vote("behind")
			s.hold(t, slow)
			s.m.Post(behind)
			if told {
				s.slow <- ":1\r\n"
				require.NoError(t, s.m.Wait(t.Context(), slow))
				eventually(t, "it is told", func() bool { return slices.Contains(s.asked(), "AUTH p") })
			}
			s.cut()
			require.NoError(t, s.m.Wait(t.Context(), behind))
			require.Equal(t, mux.VerdictFailed, behind.Votes[0].Verdict)
			if !told {
				require.NoError(t, s.m.Wait(t.Context(), slow))
				require.Equal(t, mux.VerdictFailed, slow.Votes[0].Verdict)
			}
			eventually(t, "it is back", func() bool { return s.m.Masters()[0].Connects == 2 })
			next := vote("next")
			require.NoError(t, s.m.Do(t.Context(), next))
			require.True(t, granted(next))
			want := uint64(2)
			if told {
				want = 1
			}
			require.Equal(t, want, s.m.Masters()[0].Failures, "a renewal is no vote")
			require.NotContains(t, s.asked(), "VOTE behind")
		})
	}
}

// Whoever answers a renewal before it was written cannot be trusted.
func TestRenewalIsNotAnsweredBeforeItIsWritten(t *testing.T) {
	t.Parallel()
	s := newSlowMaster(t, mux.Config{})
	op := vote("slow")
	s.hold(t, op)
	s.slow <- ":1\r\n+OK\r\n"
	require.NoError(t, s.m.Wait(t.Context(), op))
	require.True(t, granted(op))
	eventually(t, "it is redialled", func() bool { return s.m.Masters()[0].Connects == 2 })
	require.NotContains(t, s.asked(), "AUTH p")
}

// What is held back counts for the backlog.
func TestBacklogBehindARenewalIsBounded(t *testing.T) {
	t.Parallel()
	s := newSlowMaster(t, mux.Config{})
	s.hold(t, vote("slow"))
	big := &mux.Op{Command: resp.AppendCommand(nil, "VOTE", strings.Repeat("x", 1<<20))}
	for range 4 {
		s.m.Send(big)
	}
	op := vote("more")
	require.NoError(t, s.m.Do(t.Context(), op))
	require.False(t, granted(op))
	op.All = true
	require.NoError(t, s.m.Do(t.Context(), op))
	require.ErrorIs(t, op.Votes[0].Err, mux.ErrBacklog)
}

// Close waits neither for a renewal nor, for longer than it always does, for what it holds back.
func TestCloseEndsARenewalThatWaits(t *testing.T) {
	t.Parallel()
	s := newSlowMaster(t, mux.Config{})
	op, behind := vote("slow"), vote("behind")
	behind.Persist = time.Hour
	s.hold(t, op)
	s.m.Post(behind)
	closed := make(chan error, 1)
	go func() { closed <- s.m.Close() }()
	require.NoError(t, conntest.Soon(t, "it is closed", closed))
	require.ErrorIs(t, s.m.Wait(t.Context(), op), mux.ErrClosed)
	require.ErrorIs(t, s.m.Wait(t.Context(), behind), mux.ErrClosed)
}

// Close does not take back what a renewal has held up: a slow master gets its releases, as it
// would without the renewal.
func TestCloseSendsWhatARenewalHasHeldBack(t *testing.T) {
	t.Parallel()
	s := newSlowMaster(t, mux.Config{})
	release := vote("release")
	release.Persist = time.Hour
	s.hold(t, vote("slow"))
	s.m.Send(release)
	require.NoError(t, s.m.Close())
	s.slow <- "" // a reply would meet a connection that is closed
	s.auth <- ""
	eventually(t, "it is released", func() bool { return slices.Contains(s.asked(), "VOTE release") })
}

// A server that drops the reply to a refused AUTH is found out by the reply to HELLO.
func TestDroppedReplyToARenewalIsShown(t *testing.T) {
	t.Parallel()
	s := newSlowMaster(t, mux.Config{})
	op, behind := vote("slow"), vote("behind")
	s.hold(t, op)
	s.m.Post(behind)
	s.slow <- ":1\r\n"
	s.auth <- "" // and then comes HELLO's
	require.NoError(t, s.m.Wait(t.Context(), behind))
	require.True(t, granted(behind))
	eventually(t, "it is shown", func() bool { return s.m.Masters()[0].Err != nil })
	require.ErrorIs(t, s.m.Masters()[0].Err, conn.ErrRefused)
	require.EqualValues(t, 1, s.m.Masters()[0].Connects)
}
