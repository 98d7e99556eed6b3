package mux_test

import (
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/mux"
)

// A scriptedSentinel knows where the master of the group g is, and publishes nothing.
type scriptedSentinel struct {
	*fakeMaster
	master atomic.Pointer[fakeMaster]
	byName atomic.Bool // it says localhost
	asked  atomic.Int64
}

func newSentinel(t *testing.T, master *fakeMaster) *scriptedSentinel {
	s := new(scriptedSentinel)
	s.master.Store(master)
	s.fakeMaster = newFake(t, "sentinel", func() script {
		return func(args []string) (string, bool) {
			switch {
			case args[0] == "SUBSCRIBE":
				return "*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n", true
			case args[1] == "GET-MASTER-ADDR-BY-NAME":
				host, port, _ := net.SplitHostPort(s.master.Load().addr())
				if s.byName.Load() {
					host = "localhost"
				}
				s.asked.Add(1)
				return fmt.Sprintf("*2\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(host), host, len(port), port), true
			}
			return "*0\r\n", true
		}
	})
	return s
}

func (s *scriptedSentinel) group() string { return "sentinel://" + s.addr() + "/g" }

// member starts a server that has a role, and answers all else with reply.
func member(t *testing.T, id string, role *atomic.Value, reply string, seen func(args []string)) *fakeMaster {
	return newFake(t, id, func() script {
		return func(args []string) (string, bool) {
			if args[0] == "ROLE" {
				role := role.Load().(string)
				return fmt.Sprintf("*1\r\n$%d\r\n%s\r\n", len(role), role), true
			}
			seen(args)
			return reply, true
		}
	})
}

func hasRole(role string) *atomic.Value {
	var v atomic.Value
	v.Store(role)
	return &v
}

const readOnly = "-READONLY You can't write against a read only replica.\r\n"

// A master that takes no writes any more has become a replica, though no sentinel has said
// so yet. Its connection is dropped before the operation is decided, and persistent
// operations go to the new master.
func TestReadOnlyMasterOfAGroupIsLeft(t *testing.T) {
	t.Parallel()
	delivered := make(chan []string, 10)
	role := hasRole("master")
	was := member(t, "a", role, readOnly, func([]string) {})
	is := member(t, "b", hasRole("master"), ":1\r\n", func(args []string) { delivered <- args })
	sentinel := newSentinel(t, was)
	var switches atomic.Int64
	m := open(t, mux.Config{Masters: []string{sentinel.group()}, OnSwitch: func(int) { switches.Add(1) }})
	eventually(t, "who follows the group has asked, too", func() bool { return sentinel.asked.Load() >= 2 })
	role.Store("slave")
	sentinel.master.Store(is)

	op := release("k", "t")
	op.Command = op.Fallback
	require.NoError(t, m.Do(t.Context(), op))
	var said *mux.ReplyError
	require.ErrorAs(t, op.Votes[0].Err, &said)
	require.Equal(t, "READONLY", said.Code)
	require.EqualValues(t, 1, switches.Load())
	require.Equal(t, "EVAL", conntest.Soon(t, "the release is delivered", delivered)[0])
	eventually(t, "it is connected", func() bool {
		s := m.Masters()[0]
		return s.Phase == mux.Up && s.Server.Endpoint == is.addr()
	})
}

// The usual failover: the master is gone, and so is its connection, when the sentinels name another. That is told at once, though the
// other cannot be connected yet, and once.
func TestASwitchOfAMasterThatIsDownIsTold(t *testing.T) {
	t.Parallel()
	server := func(id string, role *atomic.Value) *fakeMaster {
		return member(t, id, role, ":1\r\n", func([]string) {})
	}
	was := server("0", hasRole("master"))
	sentinel := newSentinel(t, was)
	var switches atomic.Int64
	m := open(t, mux.Config{Masters: []string{sentinel.group()}, OnSwitch: func(int) { switches.Add(1) }})
	waitUp(t, m, 1)
	for n := int64(1); n <= 3; n++ {
		role := hasRole("slave")
		is := server(fmt.Sprint(n), role)
		was.stop()
		eventually(t, "it is down", func() bool { return m.Masters()[0].Phase != mux.Up })
		sentinel.master.Store(is)
		sentinel.cut()
		eventually(t, "it is told", func() bool { return switches.Load() == n })
		role.Store("master")
		eventually(t, "the other is connected", func() bool {
			s := m.Masters()[0]
			return s.Phase == mux.Up && s.Server.Endpoint == is.addr()
		})
		require.Equal(t, n, switches.Load())
		was = is
	}
}

// The connection to a master with a fixed place is dropped, too. But no other server is the
// master then, so there is no switch to tell of.
func TestReadOnlyMasterOfNoGroupIsNoSwitch(t *testing.T) {
	t.Parallel()
	f := member(t, "a", hasRole("master"), readOnly, func([]string) {})
	m := open(t, mux.Config{Masters: []string{f.addr()}, OnSwitch: func(int) { t.Error("a switch") }})
	op := vote("a")
	require.NoError(t, m.Do(t.Context(), op))
	require.ErrorContains(t, op.Votes[0].Err, "READONLY")
	eventually(t, "it is connected anew", func() bool { return m.Masters()[0].Connects == 2 })
}

// The sentinels begin to call the master by its name. It is the same server, so its
// connection stays, and a redial is no switch either.
func TestMasterThatIsOnlyCalledOtherwiseIsNotLeft(t *testing.T) {
	t.Parallel()
	was := member(t, "a", hasRole("master"), ":1\r\n", func([]string) {})
	is := member(t, "b", hasRole("master"), ":1\r\n", func([]string) {})
	sentinel := newSentinel(t, was)
	var switches atomic.Int64
	m := open(t, mux.Config{Masters: []string{sentinel.group()}, OnSwitch: func(int) { switches.Add(1) }})
	askedAgain := func() {
		t.Helper()
		n := sentinel.asked.Load()
		sentinel.cut()
		eventually(t, "it is asked again", func() bool { return sentinel.asked.Load() > n })
	}
	eventually(t, "who follows the group has asked, too", func() bool { return sentinel.asked.Load() >= 2 })
	sentinel.byName.Store(true)
	askedAgain()
	askedAgain() // by then the first answer has been told
	require.EqualValues(t, 1, m.Masters()[0].Connects)
	was.cut()
	eventually(t, "it is connected again", func() bool { s := m.Masters()[0]; return s.Connects == 2 && s.Phase == mux.Up })
	require.Equal(t, was.addr(), m.Masters()[0].Server.Endpoint)
	require.Zero(t, switches.Load())
	sentinel.byName.Store(false)
	sentinel.master.Store(is)
	askedAgain()
	eventually(t, "the other is connected", func() bool {
		s := m.Masters()[0]
		return s.Phase == mux.Up && s.Server.Endpoint == is.addr()
	})
	require.EqualValues(t, 1, switches.Load())
}
