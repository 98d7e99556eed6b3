package mux_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp"
	"github.com/stretchr/testify/require"
)

// A linguist is a scripted master that has some commands, and notes what it is asked.
type linguist struct {
	*fakeMaster

	mu    sync.Mutex
	has   map[string]string // a command, and how it is answered with arguments
	asked []string          // first words, those of the handshake left out
}

func newLinguist(t *testing.T, id string, has map[string]string) *linguist {
	g := &linguist{has: has}
	g.fakeMaster = newFake(t, id, func() script {
		return func(args []string) (string, bool) {
			g.mu.Lock()
			defer g.mu.Unlock()
			answer, ok := g.has[args[0]]
			switch {
			case !ok:
				answer = "-ERR unknown command '" + args[0] + "', with args beginning with: \r\n"
			case len(args) == 1:
				return "-ERR wrong number of arguments for '" + strings.ToLower(args[0]) + "' command\r\n", true
			}
			if len(args) > 1 {
				g.asked = append(g.asked, args[0])
			}
			return answer, true
		}
	})
	return g
}

func (g *linguist) know(has map[string]string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.has = has
}

// was returns what it was asked since the last call.
func (g *linguist) was() (asked []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	asked, g.asked = g.asked, nil
	return asked
}

// deletion says the same in three ways.
func deletion() *mux.Op {
	return &mux.Op{
		Command:  resp.AppendCommand(nil, "EVALSHA", "hash"),
		Fallback: resp.AppendCommand(nil, "EVAL", "text"),
		Dialects: []mux.Dialect{
			{Needs: conn.DelEx, Command: resp.AppendCommand(nil, "DELEX", "k")},
			{Needs: conn.DelIfEq, Command: resp.AppendCommand(nil, "DELIFEQ", "k")},
		},
		Verdict: verdictOne,
		All:     true,
		Timeout: patience,
	}
}

const yes, unknownScript, notAllowed = ":1\r\n", "-NOSCRIPT No matching script\r\n", "-NOPERM this user has no permissions\r\n"

func TestEachMasterIsSpokenToInItsDialect(t *testing.T) {
	t.Parallel()
	all := []*linguist{
		newLinguist(t, "a", map[string]string{"EVALSHA": yes}),
		newLinguist(t, "b", map[string]string{"EVALSHA": yes, "DELEX": yes}),
		newLinguist(t, "c", map[string]string{"EVALSHA": yes, "DELIFEQ": yes}),
		newLinguist(t, "d", map[string]string{"EVALSHA": unknownScript, "EVAL": yes}),
	}
	var addrs []string
	for _, g := range all {
		addrs = append(addrs, g.addr())
	}
	for probing, want := range map[bool][][]string{
		true:  {{"EVALSHA"}, {"DELEX"}, {"DELIFEQ"}, {"EVALSHA", "EVAL"}},
		false: {{"EVALSHA"}, {"EVALSHA"}, {"EVALSHA"}, {"EVALSHA", "EVAL"}},
	} {
		m := open(t, mux.Config{Masters: addrs, Conn: conn.Options{Probe: probing}})
		waitUp(t, m, 4)
		op := deletion()
		require.NoError(t, m.Do(t.Context(), op))
		for i, g := range all {
			require.Equal(t, mux.VerdictYes, op.Votes[i].Verdict)
			require.Equal(t, want[i], g.was())
		}
	}
}

// The handshake cannot see that a user may not call a command, nor that a server understands
// another thing by it. Its first use shows it, and the fallback takes its place; from then on
// that connection is not asked in this way.
func TestADialectThatIsNotUnderstoodIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer      string // to the dialect
		want        mux.Verdict
		first, then []string // what the master is asked in the first round and in the second
	}{
		"forbidden":    {notAllowed, mux.VerdictYes, []string{"DELEX", "EVAL"}, []string{"EVALSHA"}},
		"syntax error": {"-ERR syntax error\r\n", mux.VerdictYes, []string{"DELEX", "EVAL"}, []string{"EVALSHA"}},
		"gone": {"-ERR unknown command 'DELEX'\r\n", mux.VerdictYes,
			[]string{"DELEX", "EVAL"}, []string{"EVALSHA"}},
		"no memory, for which the fallback has no use": {"-OOM command not allowed\r\n", mux.VerdictYes,
			[]string{"DELEX", "EVAL"}, []string{"DELEX", "EVAL"}},
		"a failure that is none of the dialect's": {"-LOADING dataset in memory\r\n", mux.VerdictFailed,
			[]string{"DELEX"}, []string{"DELEX"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newLinguist(t, "a", map[string]string{"EVALSHA": yes, "EVAL": yes, "DELEX": c.answer})
			m := open(t, mux.Config{Masters: []string{g.addr()}, Conn: conn.Options{Probe: true}})
			for _, asked := range [][]string{c.first, c.then} {
				op := deletion()
				require.NoError(t, m.Do(t.Context(), op))
				require.Equal(t, []mux.Verdict{c.want}, verdicts(op))
				require.Equal(t, asked, g.was())
			}
		})
	}
}

// A server that was replaced by an older one between two connections is asked as that one is.
// What is delivered to it then is the fallback.
func TestAServerLosesItsDialect(t *testing.T) {
	t.Parallel()
	g := newLinguist(t, "a", map[string]string{"EVALSHA": yes, "EVAL": yes, "DELEX": yes})
	m := open(t, mux.Config{Masters: []string{g.addr()}, Conn: conn.Options{Probe: true}})
	op := deletion()
	require.NoError(t, m.Do(t.Context(), op))
	require.Equal(t, []string{"DELEX"}, g.was())

	g.know(map[string]string{"EVALSHA": yes, "EVAL": yes})
	connects := m.Masters()[0].Connects
	g.cut()
	eventually(t, "it is connected again", func() bool { return m.Masters()[0].Connects > connects && m.Masters()[0].Phase == mux.Up })
	require.NoError(t, m.Do(t.Context(), op))
	require.Equal(t, []string{"EVALSHA"}, g.was())
}

func TestADebtIsDeliveredInNoDialect(t *testing.T) {
	t.Parallel()
	g := newLinguist(t, "a", map[string]string{"EVALSHA": yes, "EVAL": yes, "DELEX": ""}) // no answer
	m := open(t, mux.Config{Masters: []string{g.addr()}, Conn: conn.Options{Probe: true}})
	op := deletion()
	op.Persist = time.Minute
	m.Post(op)
	eventually(t, "it was asked", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.asked) == 1 })
	g.know(map[string]string{"EVALSHA": yes, "EVAL": yes})
	g.cut()
	require.NoError(t, m.Wait(t.Context(), op))
	eventually(t, "the debt is paid", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.asked) == 2 })
	require.Equal(t, []string{"DELEX", "EVAL"}, g.was())
}

// A dialect that is too long is refused, as a command is.
func TestADialectHasALimit(t *testing.T) {
	t.Parallel()
	g := newLinguist(t, "a", map[string]string{"EVALSHA": yes})
	m := open(t, mux.Config{Masters: []string{g.addr()}})
	op := deletion()
	op.Dialects[1].Command = make([]byte, 2<<20)
	require.ErrorIs(t, m.Do(t.Context(), op), mux.ErrTooLong)
	require.Empty(t, g.was())
}

// A tenancy is a lease that a test ends.
type tenancy struct {
	term atomic.Uint64
	asks atomic.Int64
}

func (l *tenancy) Holds(term uint64, now time.Duration) bool {
	l.asks.Add(1)
	return now > 0 && l.term.Load() == term
}

// The fallback can set again what a release has taken away, which was submitted meanwhile: so
// it is not sent once its lease has ended. The vote is no no then: the master has not said what it has.
func TestNoFallbackIsSentAfterItsLeaseHasEnded(t *testing.T) {
	t.Parallel()
	for held, want := range map[bool]mux.Verdict{true: mux.VerdictYes, false: mux.VerdictFailed} {
		release := make(chan struct{})
		g := newFake(t, "a", func() script {
			return func(args []string) (string, bool) {
				if args[0] == "EVALSHA" {
					<-release
					return unknownScript, true
				}
				return yes, true
			}
		})
		m := open(t, mux.Config{Masters: []string{g.addr()}})
		lease := new(tenancy)
		lease.term.Store(7)
		op := deletion()
		op.Lease, op.Epoch = lease, 7
		m.Post(op)
		if !held {
			lease.term.Store(8)
		}
		close(release)
		require.NoError(t, m.Wait(context.Background(), op))
		require.Equal(t, []mux.Verdict{want}, verdicts(op))
		require.EqualValues(t, 1, lease.asks.Load())
	}
}

// An OOM reply to an operation without a fallback is retried, as any transient error is.
func TestADialectWithoutAFallbackIsSentAgainWhenItsErrorPasses(t *testing.T) {
	t.Parallel()
	g := newLinguist(t, "a", map[string]string{"EVALSHA": yes, "DELEX": "-OOM command not allowed\r\n"})
	m := open(t, mux.Config{Masters: []string{g.addr()}, Conn: conn.Options{Probe: true}})
	op := deletion()
	op.Fallback, op.Persist = nil, time.Hour
	require.NoError(t, m.Do(t.Context(), op))
	require.Equal(t, []mux.Verdict{mux.VerdictFailed}, verdicts(op))
	var again []string
	eventually(t, "it is asked again", func() bool { again = append(again, g.was()...); return len(again) >= 2 })
	require.Equal(t, []string{"DELEX", "EVALSHA"}, again)
}
