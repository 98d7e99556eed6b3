package mux_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
)

// cluster is a server that can never be the master of a lock.
func cluster(t *testing.T) string {
	masters := redlocktest.Start(t, 1, redlocktest.WithArgs("--cluster-enabled", "yes"))
	return masters.Addr(0)
}

// A minority that can never serve keeps the majority from nothing, and shows.
func TestRefusedMinorityIsTolerated(t *testing.T) {
	masters := redlocktest.Start(t, 2)
	var mu sync.Mutex
	var told []mux.State
	cfg := mux.Config{Masters: append(masters.Addrs(), cluster(t)), OnState: func(i int, s mux.State) {
		mu.Lock()
		defer mu.Unlock()
		if i == 2 {
			told = append(told, s)
		}
	}}
	m := open(t, cfg)
	eventually(t, "it is refused", func() bool { return m.Masters()[2].Phase == mux.Refused })
	s := m.Masters()[2]
	require.ErrorIs(t, s.Err, conn.ErrRefused)
	require.Equal(t, "refused", s.Phase.String())
	eventually(t, "it is told", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(told) == 1 && told[0].Phase == mux.Refused
	})
	waitUp(t, m, 2)
	op := acquire("k", "t")
	require.NoError(t, m.Do(t.Context(), op))
	require.True(t, op.Won())
	require.ErrorIs(t, op.Votes[2].Err, conn.ErrRefused)

	cfg.Strict = true
	_, err := mux.Open(t.Context(), patiently(cfg))
	require.ErrorIs(t, err, conn.ErrRefused)
	require.NotErrorIs(t, err, mux.ErrNoQuorum)
	require.ErrorContains(t, err, "Cluster")
}

// So many that no majority is left end Open at once.
func TestRefusedMajorityEndsOpenAtOnce(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	_, err := mux.Open(t.Context(), patiently(mux.Config{Masters: append(masters.Addrs(), cluster(t), cluster(t))}))
	require.ErrorIs(t, err, conn.ErrRefused)
	require.NotErrorIs(t, err, mux.ErrNoQuorum)
}

// One is refused and one is down: that may end.
func TestOpenWithoutMajorityMayBeTriedAgainThoughOneIsRefused(t *testing.T) {
	masters := redlocktest.Start(t, 2)
	masters.Kill(0)
	cfg := mux.Config{Masters: append(masters.Addrs(), cluster(t)), Conn: conn.Options{DialTimeout: 3 * time.Second}}
	_, err := mux.Open(t.Context(), cfg)
	require.ErrorIs(t, err, mux.ErrNoQuorum)
	require.ErrorContains(t, err, masters.Addr(0))
	require.ErrorContains(t, err, "Cluster")
}

// A context that ends before a majority has become impossible is its own reason.
func TestOpenThatItsContextEndsSaysSo(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	masters.Pause(0) // these do not answer, and nobody knows yet whether they will
	masters.Pause(1)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := mux.Open(ctx, patiently(mux.Config{Masters: masters.Addrs()}))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, mux.ErrNoQuorum)
	var open *mux.OpenError
	require.ErrorAs(t, err, &open)
	require.Len(t, open.Masters, 3)

	cancel()
	_, err = mux.Open(ctx, patiently(mux.Config{Masters: masters.Addrs()}))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, mux.ErrNoQuorum)

	masters.Kill(0)
	masters.Kill(1)
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	var seen sync.Map
	go func() {
		_, err := mux.Open(ctx, patiently(mux.Config{Masters: masters.Addrs(), OnState: func(i int, s mux.State) { seen.Store(i, s.Err) }}))
		ended <- err
	}()
	eventually(t, "both have failed", func() bool {
		a, _ := seen.Load(0)
		b, _ := seen.Load(1)
		return a != nil && b != nil
	})
	cancel()
	err = conntest.Soon(t, "Open ends", ended)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, mux.ErrNoQuorum)
}

// New waits for nobody, and serves as soon as a majority is there.
func TestNewConnectsInTheBackground(t *testing.T) {
	masters := redlocktest.Start(t, 3)
	for i := range 3 {
		masters.Kill(i)
	}
	m, err := mux.New(patiently(mux.Config{Masters: masters.Addrs()}))
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	op := acquire("k", "t")
	require.NoError(t, m.Do(t.Context(), op))
	require.False(t, op.Won())
	require.Zero(t, op.Asked)
	masters.Restart(0)
	masters.Restart(2)
	waitUp(t, m, 2)
	require.NoError(t, m.Do(t.Context(), op))
	require.True(t, op.Won())

	for name, list := range map[string][]string{"none": {}, "twice": {"a:1", "a:1"}, "malformed": {"http://a"}} {
		_, err := mux.New(mux.Config{Masters: list})
		require.Error(t, err, name)
	}
}

// Of two addresses of one server only one is ever asked.
func TestServerThatIsGivenTwiceVotesOnce(t *testing.T) {
	masters := redlocktest.Start(t, 2)
	_, port, _ := strings.Cut(masters.Addr(0), ":")
	cfg := patiently(mux.Config{Masters: append(masters.Addrs(), "localhost:"+port)})
	_, err := mux.Open(t.Context(), cfg)
	require.ErrorIs(t, err, mux.ErrDuplicate)
	m, err := mux.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	eventually(t, "one of them is refused", func() bool {
		s := m.Masters()
		return s[1].Phase == mux.Up && (s[0].Phase == mux.Refused && s[2].Phase == mux.Up || s[0].Phase == mux.Up && s[2].Phase == mux.Refused)
	})
	op := &mux.Op{Command: resp.AppendCommand(nil, "SET", "k", "t"), Judge: judgeOK, All: true}
	require.NoError(t, m.Do(t.Context(), op))
	yes, _, failed, _ := op.Count()
	require.Equal(t, []int{2, 1}, []int{yes, failed})
}

func TestConfigShowsNoPassword(t *testing.T) {
	cfg := mux.Config{Masters: []string{"redis://user:hunter2@127.0.0.1:1", "hunter2@@:"}, Conn: conn.Options{Password: "hunter2"}}
	good := cfg
	good.Masters = cfg.Masters[:1]
	m, err := mux.New(good)
	require.NoError(t, err)
	defer m.Close()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, text := range []string{fmt.Sprintf(verb, cfg), fmt.Sprintf(verb, &cfg), fmt.Sprintf(verb, m)} {
			require.NotContains(t, text, "hunter2")
			require.Contains(t, text, "127.0.0.1:1")
		}
	}
}

// A user who may not ask for INFO does not learn the run id. The same server under two names
// has one vote all the same.
func TestServerThatDoesNotSayWhoItIsVotesOnce(t *testing.T) {
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
