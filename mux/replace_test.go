package mux_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// The place of a dead master is given to another one, while operations go on. The hook is told that the newcomer
// is another server, although the client has never met it, and all connections have the new name.
func TestReplacedMasterHasAnotherInItsPlace(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 4)
	var g greetings
	var mu sync.Mutex
	var told []string
	m := open(t, mux.Config{Masters: masters.Addrs()[:3], Keeper: g.keeper(2), Conn: conn.Options{ClientName: "before"},
		OnState: func(_ int, s mux.State) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, s.Addr+" "+s.Phase.String())
		}})
	waitUp(t, m, 3)
	masters.Kill(2)
	stop := make(chan struct{})
	var running sync.WaitGroup
	for k := range 4 {
		running.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				op := acquire(fmt.Sprintf("k%d-%d", k, n), "t")
				if err := m.Do(context.Background(), op); err != nil || !granted(op) {
					t.Errorf("%v %v", err, op.Votes)
					return
				}
			}
		})
	}
	require.NoError(t, m.Replace(t.Context(), masters.Addr(2), "redis://"+masters.Addr(3), "after", false))
	waitUp(t, m, 3)
	close(stop)
	running.Wait()
	s := m.Masters()[2]
	require.Equal(t, masters.Addr(3), s.Addr)
	require.Equal(t, 2, g.count())
	before, now := g.at(1)
	require.Equal(t, conn.Server{Endpoint: masters.Addr(2)}, before)
	require.Equal(t, masters.Addr(3), now.Endpoint)
	op := acquire("another", "t")
	op.All = true
	require.NoError(t, m.Do(t.Context(), op))
	require.Equal(t, []mux.Verdict{mux.VerdictYes, mux.VerdictYes, mux.VerdictYes}, verdicts(op))
	for _, i := range []int{0, 1, 3} {
		eventually(t, "it knows the new name", func() bool {
			list := says(t, masters, i, "CLIENT", "LIST")
			return strings.Contains(list.(string), "name=after") && !strings.Contains(list.(string), "name=before")
		})
	}
	eventually(t, "all was told", func() bool {
		mu.Lock()
		defer mu.Unlock()
		down, up := slices.Index(told, masters.Addr(2)+" down"), slices.Index(told, masters.Addr(3)+" up")
		return down >= 0 && down < up
	})
}

// A place that is given away is dialled no more: neither by who dials it already, nor when the newcomer's
// connection ends. Nor does who has dialled the old master dial the newcomer, which would be refused as its own duplicate.
func TestReplacedMasterIsDialledNoMore(t *testing.T) {
	t.Parallel()
	var met, tried atomic.Int64 // connections to the newcomer, and to one that serves nobody
	old, other, newcomer := newFake(t, "a", steady(0)), newFake(t, "b", steady(1)), newFake(t, "c", func() script {
		met.Add(1)
		return steady(2)()
	})
	barred := conntest.Listen(t, func(c net.Conn) {
		tried.Add(1)
		c.Close()
	})
	m := open(t, mux.Config{Masters: []string{old.addr(), other.addr(), barred}, BackoffMin: time.Millisecond, BackoffMax: 2 * time.Millisecond})
	waitUp(t, m, 2)
	at := old.addr()
	old.stop()
	eventually(t, "it is dialled in vain", func() bool { return m.Masters()[0].Phase == mux.Down })
	require.NoError(t, m.Replace(t.Context(), at, newcomer.addr(), "", false))
	from := tried.Load()
	eventually(t, "another place is dialled again and again", func() bool { return tried.Load() >= from+20 })
	require.EqualValues(t, 1, met.Load())
	require.Equal(t, mux.Up, m.Masters()[0].Phase)
	l, err := net.Listen("tcp", at)
	require.NoError(t, err)
	defer l.Close()
	var dialled atomic.Int64
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			dialled.Add(1)
			c.Close()
		}
	}()
	for n := range 5 {
		newcomer.cut()
		eventually(t, "it is connected again", func() bool {
			s := m.Masters()[0]
			return s.Phase == mux.Up && s.Connects >= uint64(n+3)
		})
	}
	require.LessOrEqual(t, dialled.Load(), int64(1), "at most by who was about to")
	require.Equal(t, newcomer.addr(), m.Masters()[0].Server.Endpoint)
}

// What the old master was still to be sent undoes what it has done. It is nothing to the newcomer, which carries out nothing
// late that the old one was sent.
func TestReplacedMasterTakesItsDebtsAlong(t *testing.T) {
	t.Parallel()
	seen := make(chan []string, 10)
	old, newcomer := newFake(t, "a", silent), newFake(t, "b", func() script {
		return func(args []string) (string, bool) {
			seen <- args
			return ":1\r\n", true
		}
	})
	m := open(t, mux.Config{Masters: []string{old.addr()}})
	op := release("k", "t")
	m.Post(op)
	old.stop()
	m.Forget(op)
	eventually(t, "it is owed", func() bool { return m.Masters()[0].Debts == 1 })
	of := mux.Sent{To: 1, First: op.Started, Last: clock.Now()}
	_, _, never := m.Heard(of)
	require.Equal(t, mux.Set(1), never)
	require.NoError(t, m.Replace(t.Context(), old.addr(), newcomer.addr(), "", false))
	require.Zero(t, m.Masters()[0].Debts)
	answered, _, _ := m.Heard(of)
	require.Equal(t, mux.Set(1), answered)
	require.NoError(t, m.Do(t.Context(), vote("1")))
	require.Equal(t, "VOTE", conntest.Soon(t, "the first command", seen)[0])
}

// Whatever is wrong with a request is found before anything has changed.
func TestBadReplacementChangesNothing(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 7)
	groups := redlocktest.StartGroups(t, 1)
	inGroupToo := groups.Servers(0).Addr(groups.Master(0))
	groups.Switch(0)
	dead, frozen, replica, spare := masters.Addr(2), masters.Addr(3), masters.Addr(4), masters.Addr(5)
	list := []string{masters.Addr(0), masters.Addr(1), dead, frozen, groups.Addrs()[0]}
	m := open(t, mux.Config{Masters: list, Conn: conn.Options{DialTimeout: 2 * time.Second}})
	waitUp(t, m, 5)
	for k := range 3 { // who would make it a replica again
		groups.Sentinels().Pause(k)
	}
	c, err := net.Dial("tcp", inGroupToo)
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Write([]byte("REPLICAOF NO ONE\r\n"))
	require.NoError(t, err)
	_, err = c.Read(make([]byte, 10))
	require.NoError(t, err)
	host, port, _ := net.SplitHostPort(masters.Addr(0))
	says(t, masters, 4, "REPLICAOF", host, port)
	masters.Kill(2)
	masters.Pause(3)
	masters.Kill(6)
	eventually(t, "it is down", func() bool { return m.Masters()[2].Phase == mux.Down })
	inGroup := m.Masters()[4].Server.Endpoint
	for name, c := range map[string]struct {
		old, new string
		want     error
		says     string
	}{
		"not a member":                 {spare, spare, mux.ErrNotMember, ""},
		"another database of a member": {"redis://" + dead + "/3", spare, mux.ErrNotMember, ""},
		"a member already":             {dead, masters.Addr(0), mux.ErrDuplicate, ""},
		"... with another database":    {dead, "redis://" + masters.Addr(0) + "/3", mux.ErrDuplicate, ""},
		"... by another name":          {dead, "localhost:" + port, mux.ErrDuplicate, ""},
		"itself":                       {dead, dead, mux.ErrDuplicate, ""},
		"itself with another database": {dead, "redis://" + dead + "/3", mux.ErrDuplicate, ""},
		"the master of a group":        {dead, inGroup, mux.ErrDuplicate, ""},
		"a group":                      {dead, list[4], mux.ErrDuplicate, ""},
		"another group":                {dead, list[4] + "x", nil, "fixed place"},
		"a cluster":                    {dead, "cluster://" + spare, nil, "fixed place"},
		"the place of a group":         {list[4], spare, nil, "fixed place"},
		"no address":                   {dead, "http://x", nil, "the newcomer"},
		"of no address":                {"http://x", spare, nil, "the old master"},
		"a replica":                    {dead, replica, conn.ErrNotMaster, ""},
		"one that was in a group":      {dead, inGroupToo, mux.ErrDuplicate, ""},
		"a dead one":                   {dead, masters.Addr(6), nil, "connect"},
		"of one that answers":          {masters.Addr(1), spare, mux.ErrAnswers, ""},
		"of one that is frozen":        {frozen, spare, mux.ErrAnswers, ""},
	} {
		err := m.Replace(t.Context(), c.old, c.new, "changed", false)
		require.Error(t, err, name)
		if c.want != nil {
			require.ErrorIs(t, err, c.want, name)
		}
		require.ErrorContains(t, err, c.says, name)
		oneName(t, err)
	}
	var now []string
	for _, s := range m.Masters() {
		now = append(now, s.Addr)
	}
	require.Equal(t, conn.RedactAll(list), now)
	require.NotContains(t, says(t, masters, 0, "CLIENT", "LIST"), "changed")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, m.Replace(ctx, dead, spare, "", false), context.Canceled)
	m.Close()
	require.ErrorIs(t, m.Replace(t.Context(), dead, spare, "", false), mux.ErrClosed)
}

// Down is where nobody listens. A server that refuses whoever comes, or takes connections and says nothing, has not gone,
// whatever somebody says. Of all else nobody can tell, and then somebody has to say it: a place from which nothing
// comes back, a name that leads nowhere, and what stands in front of a server, which may take connections for it.
func TestOldMasterMustBeDown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		at    func(t *testing.T) string
		want  error // if nobody has said anything
		trust bool  // it is replaced if somebody says so
	}{
		"nobody listens": {nobodyAt, nil, true},
		"no socket":      {func(t *testing.T) string { return "unix://" + t.TempDir() + "/s" }, nil, true},
		"its socket is left": {func(t *testing.T) string {
			l, err := net.Listen("unix", t.TempDir()+"/s")
			require.NoError(t, err)
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			l.Close()
			return "unix://" + l.Addr().String()
		}, nil, true},
		"nothing comes back":  {func(t *testing.T) string { return conntest.Unreachable(t) }, mux.ErrMayAnswer, true},
		"its name is unknown": {func(t *testing.T) string { return "no-such-host.invalid:6379" }, mux.ErrMayAnswer, true},
		"a proxy ends it":     {func(t *testing.T) string { return conntest.Listen(t, func(c net.Conn) { c.Close() }) }, mux.ErrMayAnswer, true},
		"a proxy resets it": {func(t *testing.T) string {
			return conntest.Listen(t, func(c net.Conn) {
				c.(*net.TCPConn).SetLinger(0)
				c.Close()
			})
		}, mux.ErrMayAnswer, true},
		"it refuses us": {func(t *testing.T) string {
			return conntest.Listen(t, func(c net.Conn) {
				conntest.Answer(c, func([]string) (string, bool) { return "-NOAUTH Authentication required.\r\n", true })
			})
		}, mux.ErrAnswers, false},
		"it is frozen": {func(t *testing.T) string {
			return conntest.Listen(t, func(c net.Conn) { c.Read(make([]byte, 1)); <-t.Context().Done() })
		}, mux.ErrAnswers, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if runtime.GOOS == "windows" && (strings.Contains(name, "socket") || name == "nothing comes back") {
				t.Skip("it is hard to have there")
			}
			at, newcomer := c.at(t), newFake(t, "n", steady(0))
			m, err := mux.New(mux.Config{Masters: []string{at}, Conn: conn.Options{DialTimeout: time.Second}})
			require.NoError(t, err)
			t.Cleanup(func() { m.Close() })
			err = m.Replace(t.Context(), at, newcomer.addr(), "", false)
			if c.want == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, c.want)
			require.Equal(t, at, m.Masters()[0].Addr)
			err = m.Replace(t.Context(), at, newcomer.addr(), "", true)
			if c.trust {
				require.NoError(t, err)
				require.Equal(t, newcomer.addr(), m.Masters()[0].Addr)
			} else {
				require.ErrorIs(t, err, mux.ErrAnswers)
			}
		})
	}
}

// A server that cannot be dialled any more has not gone as long as it answers on the connection that there is. Its
// name may have been taken away first.
func TestOldMasterMustNotAnswerOnItsConnection(t *testing.T) {
	t.Parallel()
	old, newcomer := newFake(t, "a", steady(0)), newFake(t, "b", steady(0))
	at := old.addr()
	m := open(t, mux.Config{Masters: []string{at}, StallTime: 500 * time.Millisecond})
	old.l.Close()
	require.ErrorIs(t, m.Replace(t.Context(), at, newcomer.addr(), "", false), mux.ErrAnswers)
	require.Equal(t, mux.Up, m.Masters()[0].Phase)
	old.cut()
	require.NoError(t, m.Replace(t.Context(), at, newcomer.addr(), "", false))
}

// The old one is shown no password: another server may have its address by now.
func TestOldMasterIsShownNoPassword(t *testing.T) {
	t.Parallel()
	var told atomic.Bool
	refuses := conntest.Listen(t, func(c net.Conn) {
		conntest.Answer(c, func(args []string) (string, bool) {
			told.Store(told.Load() || slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, "secret") }))
			return "-NOAUTH Authentication required.\r\n", true
		})
	})
	// The Mux itself does not dial it: it never gets credentials.
	m, err := mux.New(mux.Config{Masters: []string{refuses}, Conn: conn.Options{Credentials: func(ctx context.Context, _ string) (conn.Credentials, error) {
		<-ctx.Done()
		return conn.Credentials{Password: conn.NewSecret("secret")}, ctx.Err()
	}}})
	require.NoError(t, err)
	defer m.Close()
	require.ErrorIs(t, m.Replace(t.Context(), "redis://:secret@"+refuses, "127.0.0.1:1", "", false), mux.ErrAnswers)
	require.False(t, told.Load())
}

// Of several calls for one place, one gives it away. The others find it given. A Mux can be closed meanwhile.
func TestPlaceIsGivenAwayOnce(t *testing.T) {
	t.Parallel()
	for range 20 {
		old := newFake(t, "old", steady(0))
		m := open(t, mux.Config{Masters: []string{old.addr()}})
		var newcomers []*fakeMaster
		for k := range 4 { // before the old one's port is free
			newcomers = append(newcomers, newFake(t, fmt.Sprint("new", k), steady(0)))
		}
		old.stop()
		var given atomic.Int64
		var all sync.WaitGroup
		for k, newcomer := range newcomers {
			all.Go(func() {
				switch err := m.Replace(context.Background(), old.addr(), newcomer.addr(), fmt.Sprint("n", k), false); {
				case err == nil:
					given.Add(1)
				default:
					require.ErrorIs(t, err, mux.ErrNotMember)
				}
			})
		}
		all.Wait()
		require.EqualValues(t, 1, given.Load())
		waitUp(t, m, 1)

		left := newFake(t, "left", steady(0))
		at := m.Masters()[0].Addr
		all.Go(func() { m.Replace(context.Background(), at, left.addr(), "", false) })
		m.Close()
		all.Wait()
	}
}

// What a Dialer says of a place is of whoever stands in between: also if it is refused, nobody knows whether the master is
// down. The server is asked through the Dialer, and may answer there alone.
func TestRefusalOfADialerDoesNotTellThatAMasterIsDown(t *testing.T) {
	t.Parallel()
	old, newcomer := newFake(t, "a", steady(0)), newFake(t, "b", steady(0))
	at := nobodyAt(t) // but for the Dialer
	var refuses atomic.Bool
	m := open(t, mux.Config{Masters: []string{at}, StallTime: 500 * time.Millisecond, Conn: conn.Options{
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address == at && refuses.Load() {
				return nil, fmt.Errorf("the proxy: %w: %w", syscall.ECONNREFUSED, conn.ErrNoListener)
			}
			if address == at {
				address = old.addr()
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}})
	require.ErrorIs(t, m.Replace(t.Context(), at, newcomer.addr(), "", true), mux.ErrAnswers)
	refuses.Store(true)
	old.stop()
	require.ErrorIs(t, m.Replace(t.Context(), at, newcomer.addr(), "", false), mux.ErrMayAnswer)
	require.Equal(t, at, m.Masters()[0].Addr)
	require.NoError(t, m.Replace(t.Context(), at, newcomer.addr(), "", true))
	require.Equal(t, newcomer.addr(), m.Masters()[0].Addr)
}

// A master that is back meanwhile, and was given another place, is not down. The newcomer's connection is given up.
func TestReplacedMasterThatHasAnotherPlaceByThen(t *testing.T) {
	t.Parallel()
	old, other := newFake(t, "a", steady(0)), newFake(t, "b", steady(1))
	late, faster := newFake(t, "late", steady(2)), newFake(t, "faster", steady(3))
	const first, second = "192.0.2.1:6379", "192.0.2.2:6379" // places of our own, which the Dialer knows
	var at sync.Map                                          // what is there
	at.Store(first, old.addr())
	at.Store(second, other.addr())
	begun, goOn := make(chan struct{}, 10), make(chan struct{})
	var open atomic.Int64 // connections to the late one
	m, err := mux.Open(t.Context(), patiently(mux.Config{Masters: []string{first, second}, Conn: conn.Options{
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			if there, is := at.Load(address); is {
				address = there.(string)
			}
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			if address == late.addr() && err == nil {
				open.Add(1)
				c = &closeCounter{Conn: c, open: &open}
				begun <- struct{}{}
				<-goOn
			}
			return c, err
		},
	}}))
	require.NoError(t, err)
	defer m.Close()
	waitUp(t, m, 2)
	at.Store(first, "127.0.0.1:1") // nobody listens there; another test may listen where they did
	at.Store(second, "127.0.0.1:1")
	old.stop()
	other.stop()
	done := make(chan error, 1)
	go func() { done <- m.Replace(context.Background(), first, late.addr(), "", true) }()
	conntest.Soon(t, "the newcomer is dialled", begun)
	require.NoError(t, m.Replace(t.Context(), first, faster.addr(), "", true))
	at.Store(first, newFake(t, "a", steady(0)).addr())
	require.NoError(t, m.Replace(t.Context(), second, first, "", true))
	close(goOn)
	require.ErrorIs(t, conntest.Soon(t, "the first call ends", done), mux.ErrAnswers)
	eventually(t, "the connection is closed", func() bool { return open.Load() == 0 })
	require.Equal(t, []string{faster.addr(), first}, []string{m.Masters()[0].Addr, m.Masters()[1].Addr})
}
