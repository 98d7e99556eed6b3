package redlock

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A key of another library that does not expire is not revoked: nobody would ever take its tombstone away.
func TestAKeyWithoutExpiryIsNotRevoked(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		for _, prefix := range []string{"", "{of us}:"} {
			t.Run(fmt.Sprint(n, prefix), func(t *testing.T) {
				t.Parallel()
				masters := redlocktest.Start(t, n)
				c, err := Open(t.Context(), Config{Masters: masters.Addrs(), Prefix: prefix})
				require.NoError(t, err)
				defer c.Close()
				slot := kind.SlotKey(prefix+"p", 1, 2)
				for i := range n {
					comesUp(t, c, i)
					Says(t, masters, i, "MSET", prefix+"k", "theirs", slot, "theirs.1.2")
				}
				for range 2 {
					for name, opts := range map[string][]Option{"k": nil, "p": {WithPermits(2)}} {
						err := c.Revoke(t.Context(), name, "deploy", opts...)
						require.ErrorIs(t, err, ErrHeld, name)
						require.ErrorContains(t, err, "redlock release --force")
					}
					require.ErrorIs(t, c.Revoke(t.Context(), "k", "deploy", WithToken("theirs")), ErrHeld)
				}
				for i := range n {
					require.Equal(t, "theirs", Says(t, masters, i, "GET", prefix+"k"))
					require.Equal(t, "theirs.1.2", Says(t, masters, i, "GET", slot))
				}
				if n == 1 {
					return
				}
				for i := range 2 { // where a majority ends, the lock is revoked
					Says(t, masters, i, "PEXPIRE", prefix+"k", "60000")
				}
				require.NoError(t, c.Revoke(t.Context(), "k", "deploy"))
				require.Equal(t, "theirs", Says(t, masters, 2, "GET", prefix+"k"))
				for i := range 2 { // and where only one says no by then, for the token is gone on another
					Says(t, masters, i, "DEL", prefix+"k")
				}
				require.ErrorIs(t, c.Revoke(t.Context(), "k", "deploy", WithToken("theirs")), ErrNotHeld)
			})
		}
	}
}

// All readers, or permits, are revoked, and those that are not yet let go meanwhile. That is no failure: nobody holds the lock.
func TestWhoLetsGoWhileOthersAreRevoked(t *testing.T) {
	t.Parallel()
	for what, opt := range map[string]Option{"readers": WithShared(), "permits": WithPermits(3)} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			masters := redlocktest.Start(t, 3)
			all := openedTimes(t, 2, Config{Masters: masters.Addrs()})
			operator, c := all[0], all[1]
			for range 2 {
				var held []*Mutex
				for range 3 {
					held = append(held, c.NewMutex("k", time.Minute, opt))
					require.NoError(t, held[len(held)-1].TryLock(t.Context()))
				}
				kept := 0
				operator.events.hook(EventRound, func(e *Event) {
					if e.Op == opRevoke && e.Err == nil && kept == 0 {
						for _, m := range held {
							if m.Unlock(t.Context()) == nil {
								kept++
							}
						}
					}
				})
				require.NoError(t, operator.Revoke(t.Context(), "k", "deploy", opt))
				require.Equal(t, 2, kept, "one was revoked before the others let go")
				require.NoError(t, c.NewMutex("k", time.Minute).TryLock(t.Context()))
				require.ErrorIs(t, operator.Revoke(t.Context(), "k", "deploy", opt), ErrNotHeld, "nobody was there")
				for i := range 3 {
					Says(t, masters, i, "DEL", "k")
				}
			}
		})
	}
}

// What stands beside a name with a closing brace and no hash tag would stand beside another, too.
func TestNamesShareNothingBesideThem(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for key, prefixes := range map[string][]string{"t}:a": {"", "of "}, "a": {"t}:", "{}", "a{}}"}, "{}b": {""}} {
		for _, prefix := range prefixes {
			c, err := Open(t.Context(), Config{Masters: masters.Addrs(), Prefix: prefix, RoundTimeout: hanging})
			require.NoError(t, err)
			defer c.Close()
			for name, opts := range map[string][]Option{"fence": {WithFence()}, "permits": {WithPermits(2)}, "shared": {WithShared()},
				"several": {WithKeys("z"), WithFence()}} {
				require.ErrorIs(t, c.CheckMutex(key, time.Minute, opts...), errAmbiguous, "%s%s %s", prefix, key, name)
			}
			require.ErrorIs(t, c.CheckMutex("z", time.Minute, WithKeys(key), WithFence()), errAmbiguous)
			require.ErrorIs(t, c.Revoke(t.Context(), key, "why", WithPermits(2)), errAmbiguous)
			_, err = c.Holders(t.Context(), key, WithPermits(2))
			require.ErrorIs(t, err, errAmbiguous)
			_, err = c.Holders(t.Context(), key, WithFence())
			require.ErrorIs(t, err, errAmbiguous)
			_, ok := c.globalQueues.QueueMaster(prefix + key)
			require.False(t, ok)
			m, other := c.NewMutex(key, time.Minute), c.NewMutex(key, time.Minute) // of which nothing stands beside it
			require.NoError(t, m.TryLock(t.Context()))
			Refused(t, other, "")
			require.NoError(t, m.Unlock(t.Context()))
		}
	}
	for _, key := range []string{"{t}:a", "}x{t}", "a{", "a"} {
		require.False(t, kind.Ambiguous(key), key)
	}
}

// Symfony's Lock keeps the holders of a key in a sorted set as we keep readers, a writer too.
func TestReadersOfAnotherLibraryAreNotJoined(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			masters := redlocktest.Start(t, n)
			c, err := Open(t.Context(), Config{Masters: masters.Addrs(), RoundTimeout: 10 * time.Second})
			require.NoError(t, err)
			defer c.Close()
			for i := range n {
				comesUp(t, c, i)
			}
			readers := []*Mutex{c.NewMutex("k", time.Minute, WithShared()), c.NewMutex("k", time.Minute, WithShared(), WithFence())}
			for _, extra := range []string{"__write__", "another reader"} {
				for _, used := range readers { // ours have had it before
					require.NoError(t, used.TryLock(t.Context()))
					require.NoError(t, used.Unlock(t.Context()))
				}
				end := strconv.FormatInt(time.Now().Add(time.Hour).UnixMilli(), 10)
				for i := range n {
					Says(t, masters, i, "ZADD", "k", end, "theirs", end, extra)
					Says(t, masters, i, "PEXPIREAT", "k", end)
				}
				for _, reader := range readers {
					require.ErrorIs(t, reader.TryLock(t.Context()), ErrHeld)
					Refused(t, reader, "")
				}
				for i := range n {
					require.EqualValues(t, 2, Says(t, masters, i, "ZCARD", "k"))
					Says(t, masters, i, "DEL", "k")
				}
			}
			// A set of readers ends with its last one. Of what is still there, nothing is taken or deleted.
			board := [][]string{{"ZADD", "k", "1000", "a score"}, {"ZADD", "k", "4.5", "a score"}, {"ZADD", "k", "9e15", "a score"}}
			for _, set := range board {
				for _, reader := range readers {
					for i := range n {
						Says(t, masters, i, "DEL", "k")
					}
					require.NoError(t, reader.TryLock(t.Context()), set)
					Confirmed(t, reader)
					for i := range n {
						Says(t, masters, i, "DEL", "k")
						Says(t, masters, i, set...)
					}
					require.ErrorIs(t, reader.Extend(t.Context()), ErrNotHeld, set)
					require.ErrorIs(t, reader.Unlock(t.Context()), ErrNotHeld, set)
					require.ErrorIs(t, reader.TryLock(t.Context()), ErrHeld, set)
					require.ErrorIs(t, c.Revoke(t.Context(), "k", "it is to go", WithShared(), WithToken("a score")), map[bool]error{true: ErrHeld, false: ErrNotHeld}[set[2] == "9e15"], set)
					for i := range n {
						require.Equal(t, []any{"a score"}, Says(t, masters, i, "ZRANGE", "k", "0", "-1"), set)
						require.EqualValues(t, -1, Says(t, masters, i, "PTTL", "k"), set)
					}
				}
			}
		})
	}
}
