package redlock

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/internal/skew"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
	wire "github.com/tidwall/resp"
)

// These tests are about counters that nobody can believe: somebody wrote them, or a master lies.

// latest is the greatest fence that can be believed now.
func latest() uint64 { return uint64(time.Now().Add(round.FenceSkew).UnixMicro()) }

// far are counters that nobody can believe.
func far() map[string]string {
	return map[string]string{
		"almost the greatest": "9007199254740900",
		"the last but one":    "9007199254740990",
		"the greatest":        "9007199254740991",
		"beyond it":           "9223372036854774784",
		"two days ahead":      fmt.Sprint(time.Now().Add(48 * time.Hour).UnixMicro()),
		"no number":           "junk",
	}
}

// fencedKinds are the kinds with a fence.
var fencedKinds = map[string][]Option{
	"exclusive": {WithFence()},
	"several":   {WithFence(), WithKeys("other")},
	"shared":    {WithFence(), WithShared()},
}

func counterOf(t *testing.T, masters *redlocktest.Masters, i int, key string) string {
	t.Helper()
	s, _ := Says(t, masters, i, "GET", kind.CounterKey(key)).(string)
	return s
}

// One counter that nobody can believe is not given, is not raised on the others, and is mended by a
// writer's lock.
func TestACounterThatSomebodyWroteIsMended(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	for which, opts := range fencedKinds {
		for what, counter := range far() {
			key, last := which+", "+what, uint64(0)
			lock := func(opts ...Option) {
				m := c.NewMutex(key, 10*time.Second, opts...)
				require.NoError(t, m.TryLock(t.Context()), key)
				require.Greater(t, m.Fence(), last, key)
				require.LessOrEqual(t, m.Fence(), latest(), key)
				last = m.Fence()
				require.NoError(t, m.Unlock(t.Context()), key)
			}
			lock(opts...)
			Says(t, masters, 2, "SET", kind.CounterKey(key), counter)
			for range 10 {
				lock(opts...)
			}
			require.Eventually(t, func() bool {
				lock(fencedKinds["exclusive"]...)
				n, err := strconv.ParseUint(counterOf(t, masters, 2, key), 10, 64)
				return err == nil && n <= latest()
			}, hanging, 5*time.Millisecond, key)
			for i := range 2 {
				n, err := strconv.ParseUint(counterOf(t, masters, i, key), 10, 64)
				require.NoError(t, err)
				require.LessOrEqual(t, n, latest(), key)
			}
		}
	}
}

// Two keys whose counters somebody wrote, each on another master, cannot be taken together. Each alone can, also
// afterwards: what is wrong of one key does not become wrong of the other.
func TestACounterThatNobodyBelievesStaysThatOfItsKey(t *testing.T) {
	masters, c := started(t, 3)
	Says(t, masters, 0, "SET", kind.CounterKey("a"), "9007199254740900")
	Says(t, masters, 1, "SET", kind.CounterKey("b"), "9007199254740900")
	m := c.NewMutex("a", 10*time.Second, WithFence(), WithKeys("b"))
	require.ErrorIs(t, m.TryLock(t.Context()), ErrNoQuorum)
	require.Eventually(t, func() bool { // until the masters that are to be mended have answered in time
		for _, key := range []string{"a", "b"} {
			m := c.NewMutex(key, 10*time.Second, WithFence())
			require.NoError(t, m.TryLock(t.Context()), key)
			require.NoError(t, m.Unlock(t.Context()), key)
		}
		return m.TryLock(t.Context()) == nil
	}, hanging, 5*time.Millisecond)
}

// What a majority has and nobody can believe is not given either. The error says who has it, and what to do.
func TestCountersOfAMajorityThatNobodyBelieves(t *testing.T) {
	masters, c := started(t, 3)
	for which, opts := range fencedKinds {
		m := c.NewMutex(which, 10*time.Second, opts...)
		require.NoError(t, m.TryLock(t.Context()))
		require.NoError(t, m.Unlock(t.Context()))
		for i := range 2 {
			Says(t, masters, i, "SET", kind.CounterKey(which), "9007199254740900")
		}
		err := m.Lock(t.Context()) // which does not wait
		require.ErrorIs(t, err, ErrNoQuorum, which)
		require.ErrorContains(t, err, "'redlock fence'")
		said := "9007199254740901, "
		if which == "several" { // it does not say which of them
			said = "no number that can be a fence"
		}
		require.ErrorContains(t, err, masters.Addr(0)+", "+masters.Addr(1)+": NOFENCE its counter is "+said)
		require.ErrorContains(t, err, "ahead of this process's clock")
		require.Contains(t, counterOf(t, masters, 0, which), "90071992547409", "nobody knows what it should be")
		require.NoError(t, c.NewMutex(which, 10*time.Second).TryLock(t.Context()), "nothing of it is left, and a plain lock needs no number")
	}
}

// The lock goes on with the others, though the master that cannot be believed answers first.
func TestAVoteThatIsNotBelievedIsNotWaitedFor(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		const poisoned = 0
		r.set(func(m *fakeMaster) { m.counters["k"] = quorum.MaxFence - 7; m.delay /= 2 }, poisoned)
		m := c.NewMutex("k", ttl, WithFence())
		require.NoError(t, m.TryLock(t.Context()))
		require.LessOrEqual(t, m.Fence(), latest())
		require.Zero(t, c.Stats().FenceRaised, "the others have the same")
		token, fence := m.Token(), m.Fence()
		time.Sleep(10 * time.Millisecond)
		require.Contains(t, r.logs(poisoned), "mend k "+token)
		r.mu.Lock()
		require.EqualValues(t, fence, r.masters[poisoned].counters["k"])
		r.mu.Unlock()
		require.NoError(t, m.Unlock(t.Context()))
	})
}

// A counter that is written between the two rounds is no vote of the second.
func TestACounterThatIsWrittenBeforeItIsRaised(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		writes := func(m *fakeMaster) {
			m.vanish = func(args []string) bool {
				if args[1] == kind.RaiseScript.Hash {
					m.counters["k"] = quorum.MaxFence - 7
				}
				return false
			}
		}
		r.set(freeze, 2)
		r.set(func(m *fakeMaster) { m.counters["k"] = time.Now().Add(time.Hour).UnixMicro() }, 0)
		r.set(writes, 1)
		m := c.NewMutex("k", ttl, WithFence())
		err := m.TryLock(t.Context())
		require.ErrorIs(t, err, ErrNoQuorum)
		require.ErrorContains(t, err, "NOFENCE its counter is")
		r.set(thaw, 2)
		time.Sleep(10 * time.Millisecond)
		r.set(func(m *fakeMaster) { m.counters["k"] = 0 }, 1)
		require.NoError(t, m.TryLock(t.Context()))
		require.LessOrEqual(t, m.Fence(), latest())
	})
}

// Nor is it the fence of a lock that was handed over.
func TestAHandedOverLockBesideAWrittenCounter(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c, WithFence())
		time.Sleep(time.Millisecond) // until the straggler has it, too
		r.set(func(m *fakeMaster) { m.counters["k"] = quorum.MaxFence - 7; m.delay /= 2 }, 1)
		h := c.NewMutex("k", ttl, WithFence(), WithToken(m.Token()))
		require.NoError(t, h.Extend(t.Context()))
		require.Equal(t, m.Fence(), h.Fence())
		r.set(func(m *fakeMaster) { m.counters["k"] = quorum.MaxFence - 7 }, 0)
		h = c.NewMutex("k", ttl, WithFence(), WithToken(m.Token()))
		err := h.Extend(t.Context())
		require.ErrorIs(t, err, ErrNoQuorum)
		require.ErrorContains(t, err, "'redlock fence'")
		require.Zero(t, h.Fence())
	})
}

// A master that lies about the counter neither has a vote nor moves the others' counters.
func TestAMasterThatLiesAboutTheCounter(t *testing.T) {
	t.Parallel()
	asked := atomic.Int64{}
	numbers := []func() int64{ // the first is within the bounds
		func() int64 { return time.Now().Add(23 * time.Hour).UnixMicro() },
		func() int64 { return time.Now().Add(25 * time.Hour).UnixMicro() },
		func() int64 { return quorum.MaxFence - 7 },
		func() int64 { return math.MaxInt64 - 1023 },
	}
	liar := conntest.Listen(t, func(c net.Conn) {
		commands := wire.NewReader(c)
		for {
			v, _, err := commands.ReadValue()
			if err != nil {
				return
			}
			reply := "+OK\r\n"
			switch v.Array()[0].String() {
			case "HELLO":
				reply = "%3\r\n+version\r\n+7.0.15\r\n+mode\r\n+standalone\r\n+role\r\n+master\r\n"
			case "INFO":
				info := "run_id:abc\r\nuptime_in_seconds:99999999\r\nrole:master\r\n"
				reply = fmt.Sprintf("$%d\r\n%s\r\n", len(info), info)
			case "CONFIG":
				reply = "%0\r\n"
			case "DELEX", "DELIFEQ", "MSETEX":
				reply = "-ERR unknown command\r\n"
			case "EVALSHA", "EVAL":
				reply = fmt.Sprintf(":%d\r\n", numbers[asked.Add(1)%int64(len(numbers))]())
			}
			io.WriteString(c, reply)
		}
	})
	masters := redlocktest.Start(t, 2)
	c := opened(t, append([]string{liar}, masters.Addrs()...), nil)
	last, taken := uint64(0), 0
	require.Eventually(t, func() bool {
		m := c.NewMutex("k", 10*time.Second, WithFence())
		if err := m.TryLock(t.Context()); err != nil { // an honest one is late, on a busy machine
			require.ErrorIs(t, err, ErrNoQuorum)
			return false
		}
		taken++
		require.Greater(t, m.Fence(), last)
		last = m.Fence()
		require.LessOrEqual(t, last, latest())
		if err := m.Unlock(t.Context()); !errors.Is(err, ErrNoQuorum) { // likewise
			require.NoError(t, err)
		}
		return taken > 100 && asked.Load() > 200
	}, hanging, time.Microsecond)
	for i := range 2 {
		n, err := strconv.ParseUint(counterOf(t, masters, i, "k"), 10, 64)
		require.NoError(t, err)
		require.LessOrEqual(t, n, latest())
	}
}

// A client whose clock is a year back believes no counter. It is told so, and sets none back, though it may
// take a lock where a majority has forgotten its counter.
func TestAClockThatIsFarBack(t *testing.T) {
	masters, right := started(t, 3)
	m := right.NewMutex("k", 10*time.Second, WithFence())
	require.NoError(t, m.TryLock(t.Context()))
	require.NoError(t, m.Unlock(t.Context()))
	fence := m.Fence()
	require.NoError(t, m.TryLock(t.Context()))
	fence = m.Fence()
	require.Eventually(t, func() bool { return remember(t, masters, "k", fence) == 3 }, hanging, 5*time.Millisecond)
	require.NoError(t, m.Unlock(t.Context()))

	defer func() { skew.Set(0) }()
	skew.Set(-365 * 24 * time.Hour)
	var heard atomic.Bool // that a master believes no counter
	wrong := opened(t, masters.Addrs(), onEvent(EventRound, func(r *Event) {
		for _, v := range r.Votes {
			if r.Op == "lock" && v.Err != nil {
				heard.Store(true)
			}
		}
	}))
	n := wrong.NewMutex("k", 10*time.Second, WithFence())
	err := n.TryLock(t.Context())
	require.ErrorIs(t, err, ErrNoQuorum)
	require.ErrorContains(t, err, ", 8760h0m")
	require.ErrorContains(t, err, "If the clock is right, see 'redlock fence'")
	require.Equal(t, 3, remember(t, masters, "k", fence))

	require.Eventually(t, heard.Load, hanging, time.Millisecond)
	for heard.Store(false); !heard.Load(); { // it need not answer in time
		Says(t, masters, 0, "DEL", "{k}:fence")
		Says(t, masters, 1, "DEL", "{k}:fence")
		if n.TryLock(t.Context()) == nil {
			require.NoError(t, n.Unlock(t.Context()))
		}
		set := Says(t, masters, 2, "EXISTS", "k") // what it was told before is done
		require.Contains(t, []any{int64(0), int64(1)}, set)
	}
	SoonSays(t, masters, 2, int64(0), "EXISTS", "k") // the release has come after all
	got, err := strconv.ParseUint(counterOf(t, masters, 2, "k"), 10, 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, got, fence, "the master's own clock knows better")
}

// A client whose clock is far ahead moves no counter: nobody else would believe it afterwards.
func TestAClockThatIsFarAhead(t *testing.T) {
	defer func() { skew.Set(0) }()
	masters := redlocktest.Start(t, 3)
	right, wrong := opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)
	for which, opts := range fencedKinds {
		skew.Set(48 * time.Hour)
		err := wrong.NewMutex(which, 10*time.Second, opts...).Lock(t.Context())
		require.ErrorIs(t, err, ErrNoQuorum, which)
		require.ErrorContains(t, err, "NOFENCE the client's clock is far ahead of this master's", which)
		skew.Set(0)
		m := right.NewMutex(which, 10*time.Second, opts...)
		require.NoError(t, m.TryLock(t.Context()), which)
		require.LessOrEqual(t, m.Fence(), uint64(time.Now().UnixMicro()), which)
		require.NoError(t, m.Unlock(t.Context()))

		skew.Set(23 * time.Hour)
		require.NoError(t, wrong.NewMutex(which, 10*time.Second, opts...).TryLock(t.Context()), "that is no more than clocks differ")
		skew.Set(0)
		for i := range 3 {
			Says(t, masters, i, "DEL", which, "other")
		}
		require.NoError(t, m.TryLock(t.Context()), which)
		require.Greater(t, m.Fence(), uint64(time.Now().Add(22*time.Hour).UnixMicro()), which)
	}
}

// Readers hold a lock together, each with a number that may be greater than the others'. So none sets a
// counter back.
func TestAReaderMendsNothing(t *testing.T) {
	c, r := newFake(t, 3, Config{})
	mends, sent := false, 0
	c.round.Mux = &hookedRounds{Mux: r, sending: func(op *mux.Op) {
		require.True(t, mends, "nothing is sent")
		sent++
		require.Equal(t, mux.Set(0b10), op.Only, "the others have not said that the key is there")
		require.Empty(t, op.Fallback, "it could come after an extend")
	}}
	k := c.round.Take()
	defer c.round.Put(k)
	require.NotPanics(t, func() { // it is asked for a command that readers do not have
		c.round.Mend(c.NewMutex("k", ttl, WithShared(), WithFence()).spec(), k, 0b10)
	})
	c.round.Mend(c.NewMutex("k", ttl, WithFence()).spec(), k, 0)
	mends = true
	c.round.Mend(c.NewMutex("k", ttl, WithFence()).spec(), k, 0b10)
	require.Equal(t, 1, sent)
}

// A counter that is forgotten is behind the clock by then.
func TestCountersAreBelievedNoLongerThanTheyAreRemembered(t *testing.T) {
	for memory, believed := range map[time.Duration]time.Duration{0: 24 * time.Hour, 48 * time.Hour: 24 * time.Hour, time.Hour: time.Hour} {
		simulated(t, 3, Config{FenceMemory: memory}, func(t *testing.T, c *Client, r *fakeRounds) {
			for ahead, want := range map[time.Duration]error{believed - time.Minute: nil, believed + time.Minute: ErrNoQuorum} {
				r.set(func(m *fakeMaster) { m.counters["k"] = time.Now().Add(ahead).UnixMicro() }, 0, 1)
				m := c.NewMutex("k", ttl, WithFence())
				require.ErrorIs(t, m.TryLock(t.Context()), want, "%v %v", memory, ahead)
				require.Equal(t, want == nil, m.Unlock(t.Context()) == nil)
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
}
