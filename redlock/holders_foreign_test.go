package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/redlock/internal/tracking"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// What others keep under a lock's name, and beside it: its size and its type are theirs to choose.

// large is longer than a reply may be.
var large = strings.Repeat("v", 100<<10)

// foreign are commands that keep something large at a key.
var foreign = map[string]func(key string) []string{
	"string":     func(key string) []string { return []string{"SET", key, large} },
	"hash":       func(key string) []string { return []string{"HSET", key, "f", large} },
	"sorted set": func(key string) []string { return []string{"ZADD", key, "1e15", large} },
}

// An arena is a client, some masters, one of which may be silent, and a lock of the client that must not suffer.
type foreignArena struct {
	*testing.T
	masters  *redlocktest.Masters
	prefix   string
	silent   bool
	patience time.Duration // of a Lock that is refused: enough for an attempt
	c        *Client
	innocent context.Context
}

// inForeignArenas runs a test with one and three masters, with a prefix, and with a master that is silent.
func inForeignArenas(t *testing.T, test func(a *foreignArena)) {
	for name, c := range map[string]struct {
		n      int
		prefix string
		silent bool
	}{
		"one master":               {n: 1},
		"three, and a prefix":      {n: 3, prefix: "{of us}:"},
		"three, and one is silent": {n: 3, silent: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &foreignArena{T: t, masters: redlocktest.Start(t, c.n), prefix: c.prefix, silent: c.silent, patience: 100 * time.Millisecond}
			var err error
			a.c, err = Open(t.Context(), Config{Masters: a.masters.Addrs(), Prefix: c.prefix, StallTime: time.Hour, DialTimeout: 10 * time.Second,
				RoundTimeout: map[bool]time.Duration{true: 500 * time.Millisecond, false: 10 * time.Second}[c.silent]})
			require.NoError(t, err)
			defer a.c.Close()
			for i := range c.n {
				comesUp(t, a.c, i)
			}
			m := a.c.NewMutex("innocent", time.Minute)
			require.NoError(t, m.TryLock(t.Context()))
			Confirmed(t, m) // or two do not make a quorum
			held, stop := m.KeepAlive(t.Context())
			defer stop()
			if a.innocent = held; c.silent {
				a.patience = 2 * time.Second
				a.masters.Pause(2)
				defer a.masters.Resume(2)
			}
			test(a)
			require.NoError(t, held.Err(), context.Cause(held))
			require.Eventually(t, func() bool { return m.Extend(t.Context()) == nil }, hanging, time.Millisecond) // a busy machine makes a round late
			for _, s := range a.c.round.Mux.Masters() {
				require.EqualValues(t, 1, s.Connects, "the connection to %s has ended: %v", s.Addr, s.Err)
			}
		})
	}
}

// put keeps something at a key on all masters that are not silent, in the place of what is there.
func (a *foreignArena) put(what func(key string) []string, key string) {
	a.Helper()
	const instead = `redis.call('DEL', KEYS[1])
return redis.call(unpack(ARGV))`
	for i := range a.masters.N() {
		if !a.silent || i != 2 {
			Says(a.T, a.masters, i, append([]string{"EVAL", instead, "1", key}, what(key)...)...)
		}
	}
}

// clean takes the key away.
func (a *foreignArena) clean(key string) {
	for i := range a.masters.N() {
		if !a.silent || i != 2 {
			Says(a.T, a.masters, i, "DEL", key)
		}
	}
}

var foreignKinds = map[string][]Option{
	"plain": nil, "fence": {WithFence()}, "several": {WithKeys("z")}, "several with a fence": {WithKeys("z"), WithFence()},
	"permits": {WithPermits(1)}, "shared": {WithShared()}, "shared with a fence": {WithShared(), WithFence()}, "least time": {WithMinHold(time.Millisecond)},
}

// A holder whose lock somebody has overwritten is told, and Unlock says so. The objects are used again.
func TestLargeValueInThePlaceOfALock(t *testing.T) {
	t.Parallel()
	inForeignArenas(t, func(a *foreignArena) {
		t := a.T
		for name, opts := range foreignKinds {
			m := a.c.NewMutex("k", time.Minute, opts...)
			for of, value := range foreign {
				if a.silent && of != "string" {
					continue // each takes the time of some rounds
				}
				key := a.prefix + "k"
				if m.spec().Slotted != nil {
					key = m.spec().Slotted.(interface{ Names() []string }).Names()[0]
				}
				for round := range 2 {
					about := fmt.Sprint(name, ", ", of, ", ", round)
					require.NoError(t, m.TryLock(t.Context()), about)
					held, stop := m.KeepAlive(t.Context())
					if round > 0 && m.spec().Notifiable() { // the masters were asked to notify
						require.Eventually(t, func() bool {
							mu := renewerMu(a.c)
							mu.Lock()
							defer mu.Unlock()
							s := hidden[tracking.KeptLock](&m.hold, "keepAlives", "subscription", "KeptLock") // which the renewer's goroutine sets
							if s == nil {
								return false
							}
							return s.Promised().Len() >= quorum.Majority(len(a.c.masters))
						}, hanging, time.Millisecond, about)
					}
					a.put(value, key)
					if m.spec().Notifiable() { // it is told long before it would be renewed
						select {
						case <-held.Done():
						case <-time.After(15 * time.Second):
							require.FailNow(t, "it is not told", about)
						}
						require.ErrorIs(t, context.Cause(held), ErrLost, about)
					}
					require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld, about)
					stop()
					a.clean(key)
				}
			}
		}
	})
}

// Who meets such a value on the way to a lock is refused, and whoever asks is told what it is.
func TestLargeValueInTheWayOfALock(t *testing.T) {
	t.Parallel()
	inForeignArenas(t, func(a *foreignArena) {
		t := a.T
		for of, value := range foreign {
			key := a.prefix + "k"
			a.put(value, key)
			for name, opts := range foreignKinds {
				about := name + ", " + of
				m := a.c.NewMutex("k", 10*time.Second, opts...)
				if m.spec().Slotted != nil || m.spec().Reader && of == "sorted set" {
					continue // another key, or what only another reader tells from a reader
				}
				a.refused(t.Context(), m.TryLock, "", about)
				says := "held by another"
				if of == "string" && !m.spec().Reader {
					says = "a key that is no lock (string of 102400 bytes)"
				}
				a.refused(t.Context(), m.Lock, says, about)
				require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld, about)
			}
			holders, err := OnEach(a.c, t.Context(), "k", WithFence())
			require.NoError(t, err)
			require.Equal(t, census.Unknown, holders[0].Token)
			require.Equal(t, map[bool]int64{true: 100 << 10}[of == "string"], holders[0].Size)
			require.ErrorIs(t, a.c.Revoke(t.Context(), "k", "it is to go"), ErrNotHeld)
			for leader, err := range a.c.Watch(t.Context(), "k") {
				require.NoError(t, err)
				require.Equal(t, Leader{Held: true}, LeaderOf(leader))
				require.Equal(t, kindOther, leader.Kind)
				break
			}
			found := false
			for lock, err := range a.c.Locks(t.Context(), "k") {
				if !a.silent {
					require.NoError(t, err)
				}
				found = found || lock.Kind == kindOther
			}
			require.True(t, found, of)
			a.clean(key)
		}
	})
}

// A hand-over asks whether the lock is there. The answer is no, as with a small value.
func TestLargeValueDuringAHandOver(t *testing.T) {
	t.Parallel()
	inForeignArenas(t, func(a *foreignArena) {
		t := a.T
		for name, opts := range map[string][]Option{"plain": nil, "fence": {WithFence()}, "several": {WithKeys("z")}} {
			m, next := a.c.NewMutex("k", 10*time.Second, opts...), a.c.NewMutex("k", 10*time.Second, opts...)
			for of, value := range foreign {
				about := name + ", " + of
				require.NoError(t, m.TryLock(t.Context()), about)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					if next.Lock(ctx) == nil {
						next.Unlock(t.Context())
					}
				}()
				require.Eventually(t, func() bool { return !a.c.localQueues.Empty(m.spec().Names()) }, hanging, time.Millisecond, about)
				a.put(value, a.prefix+"k")
				require.ErrorIs(t, m.Unlock(t.Context()), ErrNotHeld, about)
				cancel()
				conntest.Soon(t, "the next one ends", ended)
				a.clean(a.prefix + "k")
			}
		}
	})
}

// refused has a Lock wait in vain until it says of the key what the masters are to say of it. On a busy machine that takes long.
func (a *foreignArena) refused(ctx context.Context, lock func(context.Context) error, says, about string) {
	a.Helper()
	var err error
	for patience := a.patience; patience < hanging && (!errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), says)); patience *= 2 {
		short, cancel := context.WithTimeout(ctx, patience)
		err = lock(short)
		cancel()
	}
	require.ErrorIs(a, err, ErrHeld, about)
	require.ErrorContains(a, err, says, about)
}

// What stands beside a lock can be anything, too. No connection ends, and nobody has a lock by it.
func TestLargeValuesBesideALock(t *testing.T) {
	t.Parallel()
	inForeignArenas(t, func(a *foreignArena) {
		t := a.T
		for end, opts := range map[string][]Option{"fence": {WithFence()}, "permits": {WithPermits(2)}, "line": nil, "writer": {WithShared()}} {
			for of, value := range foreign {
				key := "{k}:" + end
				if a.prefix != "" {
					key = a.prefix + "k}:" + end // it has a tag of its own
				}
				about := end + ", " + of
				a.put(value, key)
				if end == "line" && of == "sorted set" { // and it seems to wait there
					a.put(func(key string) []string { return []string{"SET", key, ""} }, key+":"+large+":alive")
				}
				m := a.c.NewMutex("k", 10*time.Second, opts...)
				if err := m.TryLock(t.Context()); err == nil {
					other := a.c.NewMutex("k", 10*time.Second)
					if m.spec().Slotted == nil {
						a.refused(t.Context(), other.Lock, "held by", about)
					} else {
						ctx, cancel := context.WithTimeout(t.Context(), a.patience)
						other.Lock(ctx)
						cancel()
					}
					require.NoError(t, m.Unlock(t.Context()), about)
					other.Unlock(t.Context())
				} else if end == "line" {
					require.NoError(t, err, about)
				}
				_, err := a.c.Holders(t.Context(), "k", opts...)
				require.NoError(t, err)
				if of == "sorted set" && !a.silent { // the queues of other keys are used as before
					for i := range 50 { // on each master
						_, used := a.c.globalQueues.QueueMaster(fmt.Sprint(a.prefix, i))
						require.True(t, used, about)
					}
				}
				for range a.c.Locks(t.Context(), "k") {
				}
				a.clean(key)
				a.clean(a.prefix + "k")
			}
		}
	})
}

// The values of keys are compared on the master.
func TestValuesAreComparedOnTheMaster(t *testing.T) {
	t.Parallel()
	ask := Asker(t, redlocktest.Start(t, 1))
	ask("MSET", "ours", "t", "alike", "t", "theirs", "u", "long", "t"+large, "revoked", kind.Tombstone("t", "why"), "not", kind.Tombstone("t", large), "k", "3")
	ask("ZADD", "set", "1", "t-1", "2", "t-2", "3", "u")
	run := func(s script.Script, keys []string, args ...string) any {
		return ask(append(append([]string{"EVAL", s.Text, fmt.Sprint(len(keys))}, keys...), args...)...)
	}
	for keys, want := range map[string]any{
		"ours": int64(1), "ours alike": int64(1), "theirs": int64(0), "ours theirs": int64(0), "ours none": int64(0), "set": int64(0),
		"long": int64(0), "ours revoked": kind.Tombstone("t", "why"), "not": int64(0),
	} {
		require.Equal(t, want, run(kind.ReadScript, strings.Fields(keys), "t"), keys)
	}
	require.Equal(t, []any{int64(1), int64(0), int64(1), int64(0)},
		run(tracking.CompareScript, []string{"ours", "ours", "theirs", "alike", "set"}, "1", "t", "2", "t", "1", "t", "1", "t"))
	require.Equal(t, int64(1), run(kind.FirstScript, []string{"set"}, "t-"))
	require.Equal(t, int64(1), run(kind.FirstScript, []string{"none"}, "t-"))
	require.Equal(t, int64(0), run(kind.FirstScript, []string{"set"}, "t-1"))
	ask("ZREM", "set", "t-1")
	require.Equal(t, int64(0), run(kind.FirstScript, []string{"set"}, "t-"))
	for key, want := range map[string]mux.Verdict{"k": mux.VerdictYes, "none": mux.VerdictYes, "theirs": mux.VerdictNo, "long": mux.VerdictNo, "set": mux.VerdictNo} {
		var r kind.Request
		kind.NewPermits("p", time.Minute, 3).Agrees(&r)
		args := words(r.Fallback)
		args[3] = key
		require.Equal(t, want == mux.VerdictYes, ask(args...) == int64(1), key)
	}
}

// noLocks are commands that make a key which is no lock, by what the errors call it.
var noLocks = map[string]func(key string) []string{
	"hash":       func(key string) []string { return []string{"HSET", key, "f", "v"} },
	"list":       func(key string) []string { return []string{"RPUSH", key, "v"} },
	"set":        func(key string) []string { return []string{"SADD", key, "v"} },
	"sorted set": func(key string) []string { return []string{"ZADD", key, "9e15", "v"} },
	"stream":     func(key string) []string { return []string{"XADD", key, "1-1", "f", "v"} },
}

// Whoever meets a key that is no lock is told so, in one sentence. It is nobody's: it is not taken, and nothing deletes it.
func TestAKeyThatIsNoLockIsCalledSo(t *testing.T) {
	t.Parallel()
	inForeignArenas(t, func(a *foreignArena) {
		t, ctx := a.T, a.Context()
		for of, value := range noLocks {
			sentence := "a key that is no lock (" + of + ")"
			for name, opts := range foreignKinds {
				if a.silent && (of != "hash" || name != "plain" && name != "shared") {
					continue // each takes the time of some rounds
				}
				about := name + ", " + of
				m := a.c.NewMutex("k", time.Minute, opts...)
				at := a.prefix + "k"
				if m.spec().Slotted != nil {
					at = m.spec().Slotted.(interface{ Names() []string }).Names()[0]
				}
				stays := func() {
					t.Helper()
					for i := range a.masters.N() {
						if !a.silent || i != 2 {
							require.EqualValues(t, 1, Says(t, a.masters, i, "EXISTS", at), about)
							require.EqualValues(t, -1, Says(t, a.masters, i, "PTTL", at), about)
						}
					}
				}

				// It comes in the place of a lock that is held.
				for _, finish := range map[string]func() error{
					"extend": func() error { return m.Extend(ctx) },
					"unlock": func() error { return m.Unlock(ctx) },
				} {
					require.NoError(t, m.TryLock(ctx), about)
					if !a.silent {
						Confirmed(t, m)
					}
					a.put(value, at)
					err := finish()
					require.ErrorIs(t, err, ErrNotHeld, about)
					require.ErrorContains(t, err, "not held: a key that is no lock (0 yes", about)
					m.Unlock(ctx)
					stays()
					a.clean(at)
				}

				// It is there before.
				a.put(value, at)
				require.ErrorIs(t, m.TryLock(ctx), ErrHeld, about)
				a.refused(ctx, m.Lock, "held by "+sentence, about)
				require.ErrorIs(t, m.Unlock(ctx), ErrNotHeld, about)
				info, err := a.c.Holders(ctx, "k", opts...)
				require.NoError(t, err)
				require.True(t, info.Held, about)
				if m.spec().Slotted != nil || m.spec().Reader || of != "sorted set" {
					require.Equal(t, sentence, info.Holders[0].more.Other, about)
				} else { // which holds the readers of a lock, too
					require.Equal(t, "readers, or "+sentence, info.Holders[0].more.Other, about)
				}
				err = a.c.Revoke(ctx, "k", "it is to go", opts...)
				require.ErrorIs(t, err, ErrNotHeld, about)
				require.ErrorContains(t, err, sentence, about)
				stays()
				a.clean(at)
			}
			if a.silent && of != "hash" {
				continue
			}
			a.put(value, a.prefix+"k")
			for lock, err := range a.c.Watch(ctx, "k") {
				require.NoError(t, err)
				require.Contains(t, lock.Holders[0].more.Other, sentence)
				break
			}
			for lock, err := range a.c.Locks(ctx, "k") {
				if err == nil {
					require.Equal(t, sentence, lock.Holders[0].more.Other)
					require.Equal(t, kindOther, lock.Kind)
				}
			}
			for what, do := range map[string]func(ctx context.Context) error{
				"do": func(ctx context.Context) error {
					return a.c.Do(ctx, "k", time.Minute, func(context.Context) error { return nil })
				},
				"acquire": func(ctx context.Context) error {
					_, _, err := a.c.Acquire(ctx, "k", time.Minute)
					return err
				},
			} {
				a.refused(ctx, do, "held by "+sentence, what)
			}
			a.clean(a.prefix + "k")
			if a.masters.N() > 1 && !a.silent { // a minority decides nothing
				Says(t, a.masters, 0, value(a.prefix+"k")...)
				m := a.c.NewMutex("k", time.Minute)
				require.NoError(t, m.TryLock(ctx), of)
				require.NoError(t, m.Extend(ctx), of)
				require.NoError(t, m.Unlock(ctx), of)
				require.EqualValues(t, 1, Says(t, a.masters, 0, "EXISTS", a.prefix+"k"), of)
				require.NoError(t, m.TryLock(ctx), of)
				a.clean(a.prefix + "k")
				Says(t, a.masters, 0, value(a.prefix+"k")...)
				err := m.Extend(ctx)
				require.ErrorIs(t, err, ErrNotHeld, of)
				require.NotContains(t, err.Error(), "no lock", of)
				a.clean(a.prefix + "k")
			}
		}
	})
}
