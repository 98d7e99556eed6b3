package mux_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
)

// tokens gives out credentials that hold for a time each, and counts how often.
type tokens struct {
	lasts time.Duration // 0 for ever
	given atomic.Int64

	mu       sync.Mutex
	password string
	err      error
}

func (s *tokens) set(password string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.password, s.err = password, err
}

func (s *tokens) ask(context.Context, string) (conn.Credentials, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given.Add(1)
	c := conn.Credentials{Username: "ann", Password: conn.NewSecret(s.password)}
	if s.lasts != 0 {
		c.Until = time.Now().Add(s.lasts)
	}
	return c, s.err
}

// startWithUser starts masters that serve the user ann, with the password "first", alone.
func startWithUser(t *testing.T, n int, args ...string) *redlocktest.Masters {
	t.Helper()
	file := filepath.Join(t.TempDir(), "users.acl")
	text := "user default on nopass ~* +@all\nuser ann on >first ~* +@all\n"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return redlocktest.Start(t, n, redlocktest.WithArgs(append(args, "--aclfile", file)...))
}

// auths is how often a master was sent AUTH, which no handshake in RESP3 sends.
func auths(t *testing.T, masters *redlocktest.Masters, i int) int {
	t.Helper()
	return conntest.Calls(says(t, masters, i, "INFO", "commandstats"), "AUTH")
}

// What a connection was given to begin with runs out, and it lives on what it was given since.
func TestCredentialsAreRenewedBeforeTheyEnd(t *testing.T) {
	t.Parallel()
	masters := startWithUser(t, 3)
	vault := &tokens{lasts: 200 * time.Millisecond, password: "first"}
	m := open(t, mux.Config{Masters: masters.Addrs(), Conn: conn.Options{Credentials: vault.ask}})
	waitUp(t, m, 3)
	acl := func(rule string) {
		for i := range 3 {
			says(t, masters, i, "ACL", "SETUSER", "ann", rule)
		}
	}
	acl(">second")
	vault.set("second", nil)
	acl("<first")
	for i := range 3 {
		before := auths(t, masters, i)
		eventually(t, "it is renewed, again and again", func() bool { return auths(t, masters, i) >= before+3 })
	}
	op := &mux.Op{Command: resp.AppendCommand(nil, "ACL", "WHOAMI"), All: true, Keep: true, Verdict: func(v resp.Value) mux.Verdict {
		if v.Is("ann") {
			return mux.VerdictYes
		}
		return mux.VerdictNo
	}}
	require.NoError(t, m.Do(t.Context(), op))
	yes, _, _, _ := count(op)
	require.Equal(t, 3, yes)
	for _, s := range m.Masters() {
		require.Equal(t, mux.Up, s.Phase)
		require.NoError(t, s.Err)
		require.EqualValues(t, 1, s.Connects)
		require.Zero(t, s.Failures)
	}
}

// New credentials are asked for when at least half of the old ones' time has passed, and
// before it is over: once at least, as a busy machine may be late.
func TestRenewalComesInTheSecondHalf(t *testing.T) {
	t.Parallel()
	const lasts = 300 * time.Millisecond
	masters := startWithUser(t, 1)
	var early, inTime atomic.Int64
	var until time.Time // one goroutine after the other asks
	open(t, mux.Config{Masters: masters.Addrs(), Conn: conn.Options{
		Credentials: func(context.Context, string) (conn.Credentials, error) {
			if left := time.Until(until); !until.IsZero() && left > 0 {
				inTime.Add(1)
				if left > lasts/2 {
					early.Add(1)
				}
			}
			until = time.Now().Add(lasts)
			return conn.Credentials{Username: "ann", Password: conn.NewSecret("first"), Until: until}, nil
		},
	}})
	eventually(t, "it is in time", func() bool { return inTime.Load() >= 3 })
	require.Zero(t, early.Load())
}

// However many masters there are, and however slowly they answer, only one at a time is told
// new credentials.
func TestMastersTakeTurnsAtNewCredentials(t *testing.T) {
	t.Parallel()
	const n = 5
	var mu sync.Mutex
	under, most, told := 0, 0, [n]int{}
	var addrs []string
	for i := range n {
		addrs = append(addrs, newFake(t, fmt.Sprint("turn", i), func() script {
			return func(args []string) (string, bool) {
				mu.Lock()
				under++
				most = max(most, under)
				mu.Unlock()
				time.Sleep(20 * time.Millisecond) // the master takes its time
				mu.Lock()
				defer mu.Unlock()
				under--
				told[i]++
				return "+OK\r\n", true
			}
		}).addr())
	}
	vault := &tokens{lasts: 200 * time.Millisecond, password: "p"}
	open(t, mux.Config{Masters: addrs, Conn: conn.Options{Credentials: vault.ask}})
	eventually(t, "all have had their turns", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, times := range told {
			if times < 3 {
				return false
			}
		}
		return true
	})
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, 1, most)
}

// A master that does not take the new credentials, or a vault that has none, is shown, and
// the connection goes on. The next try may go well.
func TestRefusedRenewalIsShownAndEndsNothing(t *testing.T) {
	t.Parallel()
	masters := startWithUser(t, 3)
	vault := &tokens{lasts: 200 * time.Millisecond, password: "first"}
	var mu sync.Mutex
	var news []mux.State // of master 0
	m := open(t, mux.Config{Masters: masters.Addrs(), Conn: conn.Options{Credentials: vault.ask}, OnState: func(i int, s mux.State) {
		mu.Lock()
		defer mu.Unlock()
		if i == 0 {
			news = append(news, s)
		}
	}})
	waitUp(t, m, 3)
	require.NoError(t, m.Do(t.Context(), acquire("k", "t")))
	shown := func(what string, is func(error) bool) {
		t.Helper()
		for i := range 3 {
			eventually(t, what, func() bool { return is(m.Masters()[i].Err) })
		}
		op := acquire(what, "t")
		op.All = true
		require.NoError(t, m.Do(t.Context(), op))
		yes, _, _, _ := count(op)
		require.Equal(t, 3, yes, what)
	}
	vault.set("hunter2hunter2", nil)
	shown("the master's refusal", func(err error) bool { return errors.Is(err, conn.ErrRefused) })
	s := m.Masters()[0]
	require.ErrorContains(t, s.Err, masters.Addr(0))
	require.ErrorContains(t, s.Err, "WRONGPASS")
	require.NotContains(t, s.Err.Error(), "hunter2")
	sealed := errors.New("the vault is sealed")
	vault.set("first", sealed)
	shown("the vault's error", func(err error) bool { return errors.Is(err, sealed) })
	vault.set("first", nil)
	shown("none", func(err error) bool { return err == nil })
	for i, s := range m.Masters() {
		require.Equal(t, mux.Up, s.Phase)
		require.EqualValues(t, 1, s.Connects)
		require.Zero(t, s.Failures)
		require.EqualValues(t, 4, keysOn(t, masters, i))
	}
	eventually(t, "it is told", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(news) == 4
	})
	for i, is := range []func(error) bool{
		func(err error) bool { return err == nil },
		func(err error) bool { return errors.Is(err, conn.ErrRefused) },
		func(err error) bool { return errors.Is(err, sealed) },
		func(err error) bool { return err == nil },
	} {
		require.Equal(t, mux.Up, news[i].Phase)
		require.True(t, is(news[i].Err), "%d: %v", i, news[i].Err)
	}
}

// A master that is in quarantine is told new credentials, too, and its refusal is shown when
// it votes again.
func TestRefusedRenewalIsShownAfterAQuarantine(t *testing.T) {
	t.Parallel()
	masters := startWithUser(t, 1)
	vault := &tokens{lasts: 100 * time.Millisecond, password: "first"}
	m := open(t, mux.Config{Masters: masters.Addrs(), Conn: conn.Options{Credentials: vault.ask},
		Keeper: keeps(func(int, conn.Server, conn.Server) (time.Duration, string) { return 2 * time.Second, "new" })})
	vault.set("wrong", nil)
	eventually(t, "it is tried", func() bool { return auths(t, masters, 0) >= 2 })
	eventually(t, "it votes", func() bool { return m.Masters()[0].Phase == mux.Up })
	require.ErrorIs(t, m.Masters()[0].Err, conn.ErrRefused)
}

// A master that hangs when it is its turn keeps the others from theirs only until its
// connection is reset. That is so whether nobody calls, or somebody waits without an end.
func TestHungMasterDoesNotKeepItsTurn(t *testing.T) {
	t.Parallel()
	for _, driven := range []bool{false, true} {
		t.Run(fmt.Sprint("driven ", driven), func(t *testing.T) {
			t.Parallel()
			masters := startWithUser(t, 3)
			vault := &tokens{lasts: 300 * time.Millisecond, password: "first"}
			m := open(t, mux.Config{Masters: masters.Addrs(), StallTime: 2 * time.Second, Conn: conn.Options{Credentials: vault.ask}})
			waitUp(t, m, 3)
			if driven {
				var listener sync.WaitGroup
				ctx, leave := context.WithCancel(context.Background())
				defer listener.Wait()
				defer leave()
				listener.Go(func() { m.Do(ctx, &mux.Op{}) })
			}
			masters.Pause(0)
			eventually(t, "it is found out", func() bool { return m.Masters()[0].Phase == mux.Stalled })
			for i := 1; i < 3; i++ {
				before := auths(t, masters, i)
				eventually(t, "the others have their turns", func() bool { return auths(t, masters, i) >= before+2 })
			}
			masters.Resume(0)
			waitUp(t, m, 3)
			before := auths(t, masters, 0)
			eventually(t, "it has its turns again", func() bool { return auths(t, masters, 0) >= before+2 })
			require.Zero(t, m.Masters()[0].Failures, "an answer that is owed to nobody is no vote")
		})
	}
}

// Whoever gives out credentials that are over already, or none at all, is not asked without
// a pause.
func TestRenewalsPause(t *testing.T) {
	t.Parallel()
	const pause = 30 * time.Millisecond
	masters := startWithUser(t, 1)
	for _, c := range []struct {
		name string
		fail bool
		asks int64
		took time.Duration // at least
	}{
		{"over", false, 11, 9 * pause},
		{"none", true, 6, (1 + 1 + 2 + 4 + 8) * pause}, // it doubles
	} {
		t.Run(c.name, func(t *testing.T) {
			var asked atomic.Int64
			begun := time.Now()
			open(t, mux.Config{Masters: masters.Addrs(), BackoffMax: pause, Conn: conn.Options{
				Credentials: func(context.Context, string) (conn.Credentials, error) {
					over := conn.Credentials{Username: "ann", Password: conn.NewSecret("first"), Until: begun.Add(-time.Second)}
					if asked.Add(1) > 1 && c.fail {
						return over, errors.New("none")
					}
					return over, nil
				},
			}})
			eventually(t, "it is asked", func() bool { return asked.Load() >= c.asks })
			require.GreaterOrEqual(t, time.Since(begun), c.took)
		})
	}
}

// Whoever is asked for new credentials and does not answer is given up after the dial
// timeout, and that is shown.
func TestHangingVaultIsGivenUp(t *testing.T) {
	t.Parallel()
	masters := startWithUser(t, 3)
	var asked atomic.Int64
	m := open(t, mux.Config{Masters: masters.Addrs(), Conn: conn.Options{
		DialTimeout: 3 * time.Second,
		Credentials: func(ctx context.Context, _ string) (conn.Credentials, error) {
			if asked.Add(1) > 3 {
				<-ctx.Done()
				return conn.Credentials{}, ctx.Err()
			}
			return conn.Credentials{Username: "ann", Password: conn.NewSecret("first"), Until: time.Now().Add(time.Second)}, nil
		},
	}})
	waitUp(t, m, 3)
	eventually(t, "it is shown", func() bool { return errors.Is(m.Masters()[0].Err, context.DeadlineExceeded) })
	require.Equal(t, mux.Up, m.Masters()[0].Phase)
	require.NoError(t, m.Do(t.Context(), acquire("k", "t")))
}

// Whoever panics when asked for credentials has none to give: a dial fails, a renewal is
// shown, and the next try may go well.
func TestPanicOfAVaultIsItsError(t *testing.T) {
	t.Parallel()
	masters := startWithUser(t, 1)
	var asked atomic.Int64
	m, err := mux.New(patiently(mux.Config{Masters: masters.Addrs(), Conn: conn.Options{
		Credentials: func(context.Context, string) (conn.Credentials, error) {
			if asked.Add(1) != 3 {
				panic("the vault")
			}
			return conn.Credentials{Username: "ann", Password: conn.NewSecret("first"), Until: time.Now().Add(time.Millisecond)}, nil
		},
	}}))
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	waitUp(t, m, 1)
	eventually(t, "it is shown", func() bool { return m.Masters()[0].Err != nil })
	s := m.Masters()[0]
	require.Equal(t, mux.Up, s.Phase)
	require.ErrorContains(t, s.Err, "the vault")
	require.EqualValues(t, 1, s.Connects)
	op := acquire("k", "t")
	require.NoError(t, m.Do(t.Context(), op))
	require.True(t, granted(op))
}

// Credentials are not in the way of the commands of callers, nor these in theirs: each
// operation gets the reply that is its own.
func TestRenewalsStandInOrderWithEveryCommand(t *testing.T) {
	t.Parallel()
	const n = 3
	var addrs []string
	var renewed, between atomic.Int64
	for i := range n {
		addrs = append(addrs, newFake(t, fmt.Sprint("order", i), func() script {
			within := false // an operation of two commands
			return func(args []string) (string, bool) {
				if args[0] == "AUTH" {
					renewed.Add(1)
					if within {
						between.Add(1)
					}
					return "+OK\r\n", true
				}
				within = !within
				return fmt.Sprintf(":%d\r\n", ballot(args[1], i)), true
			}
		}).addr())
	}
	vault := &tokens{lasts: 10 * time.Millisecond, password: "p"}
	m := open(t, mux.Config{Masters: addrs, BackoffMax: time.Millisecond, Conn: conn.Options{Credentials: vault.ask}})
	waitUp(t, m, n)
	op := &mux.Op{Verdict: verdictBallot, All: true, Replies: 2}
	for k := 0; k < conntest.Many(300, 5000) || renewed.Load() < 50; k++ {
		id := fmt.Sprint(k)
		op.Command = resp.AppendCommand(resp.AppendCommand(op.Command[:0], "VOTE", "skipped"), "VOTE", id)
		require.NoError(t, m.Do(t.Context(), op))
		checkVotes(t, op, id)
	}
	require.Zero(t, between.Load())
	for _, s := range m.Masters() {
		require.EqualValues(t, 1, s.Connects)
		require.Zero(t, s.Failures)
	}
}

// Credentials that do not end are asked for once for each connection, and not again if those
// before them did end.
func TestCredentialsThatDoNotEndAreNotRenewed(t *testing.T) {
	t.Parallel()
	masters := startWithUser(t, 3)
	forever := &tokens{password: "first"}
	m := open(t, mux.Config{Masters: masters.Addrs(), Conn: conn.Options{Credentials: forever.ask}})
	waitUp(t, m, 3)
	var asked atomic.Int64
	last := open(t, mux.Config{Masters: masters.Addrs()[2:], Conn: conn.Options{
		Credentials: func(context.Context, string) (conn.Credentials, error) {
			c := conn.Credentials{Username: "ann", Password: conn.NewSecret("first")}
			if asked.Add(1) == 1 {
				c.Until = time.Now().Add(100 * time.Millisecond)
			}
			return c, nil
		},
	}})
	waitUp(t, last, 1)
	eventually(t, "it is renewed", func() bool { return auths(t, masters, 2) == 1 })
	brief := &tokens{lasts: 100 * time.Millisecond, password: "first"}
	other := open(t, mux.Config{Masters: masters.Addrs()[:1], Conn: conn.Options{Credentials: brief.ask}})
	waitUp(t, other, 1)
	eventually(t, "time has passed", func() bool { return brief.given.Load() >= 10 })
	require.EqualValues(t, 3, forever.given.Load())
	require.EqualValues(t, 2, asked.Load())
	require.Zero(t, auths(t, masters, 1))
	require.Equal(t, 1, auths(t, masters, 2))
}

// Close ends what asks for credentials, and does not wait for a master's answer to them.
func TestCloseEndsARenewal(t *testing.T) {
	goroutines := runtime.NumGoroutine()
	asked := make(chan struct{}, 1)
	told := make(chan struct{}, 1)
	f := newFake(t, "silent", func() script {
		return func([]string) (string, bool) {
			told <- struct{}{}
			return "", true
		}
	})
	first := true
	hanging := func(ctx context.Context, _ string) (conn.Credentials, error) {
		if first {
			first = false
			return conn.Credentials{Password: conn.NewSecret("p"), Until: time.Now().Add(time.Millisecond)}, nil
		}
		asked <- struct{}{}
		<-ctx.Done()
		return conn.Credentials{}, ctx.Err()
	}
	brief := func(context.Context, string) (conn.Credentials, error) {
		return conn.Credentials{Password: conn.NewSecret("p"), Until: time.Now().Add(time.Millisecond)}, nil
	}
	for _, c := range []struct {
		ask   func(context.Context, string) (conn.Credentials, error)
		begun chan struct{}
	}{{hanging, asked}, {brief, told}} {
		m, err := mux.Open(t.Context(), patiently(mux.Config{Masters: []string{f.addr()}, Conn: conn.Options{Credentials: c.ask}}))
		require.NoError(t, err)
		select {
		case <-c.begun:
		case <-time.After(patience):
			t.Fatal("nothing was renewed")
		}
		require.NoError(t, m.Close())
		require.NoError(t, m.Close())
	}
	f.stop()
	eventually(t, "goroutines are gone", func() bool { return runtime.NumGoroutine() <= goroutines })
}
