package mux_test

import (
	"context"
	"fmt"
	"net"
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

// Four masters behave and the fifth does not: the four serve everybody, and nobody gets a
// wrong vote.
func TestAFaultyMasterCostsNobodyElseAnything(t *testing.T) {
	t.Parallel()
	discard := func(c net.Conn) {
		for buf := make([]byte, 4096); ; {
			if _, err := c.Read(buf); err != nil {
				return
			}
		}
	}
	for name, fifth := range map[string]func(t *testing.T) string{
		"accepts and never answers the handshake": func(t *testing.T) string {
			return conntest.Listen(t, discard)
		},
		"answers garbage": func(t *testing.T) string {
			return conntest.Listen(t, func(c net.Conn) { c.Write([]byte("SSH-2.0-OpenSSH_9.2\r\n")); discard(c) })
		},
		"is not there": nobodyAt,
		"closes after each reply": func(t *testing.T) string {
			return newFake(t, "closer", func() script {
				return func(args []string) (string, bool) {
					return fmt.Sprintf(":%d\r\n", ballot(args[1], 4)), false
				}
			}).addr()
		},
		"answers garbage after the handshake": func(t *testing.T) string {
			return newFake(t, "garbage", func() script {
				return func([]string) (string, bool) { return "?what\r\n", true }
			}).addr()
		},
		"answers twice": func(t *testing.T) string {
			return newFake(t, "twice", func() script {
				return func(args []string) (string, bool) {
					return fmt.Sprintf(":%d\r\n:1\r\n", ballot(args[1], 4)), true
				}
			}).addr()
		},
		"answers a byte per 10 ms": func(t *testing.T) string {
			f := newFake(t, "slow", steady(4))
			return conntest.Listen(t, func(c net.Conn) {
				out, err := net.Dial("tcp", f.addr())
				if err != nil {
					return
				}
				defer out.Close()
				go func() { pipe(out, c, newBudget(-1)); out.Close() }()
				one := make([]byte, 1)
				for n := 0; ; n++ {
					if _, err := out.Read(one); err != nil {
						return
					}
					if n > 400 { // the handshake is let through
						time.Sleep(10 * time.Millisecond)
					}
					if _, err := c.Write(one); err != nil {
						return
					}
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var addrs []string
			for i := range 4 {
				addrs = append(addrs, newFake(t, fmt.Sprint("good", i), steady(i)).addr())
			}
			addrs = append(addrs, fifth(t))
			// Dials time out again and again; Open would, too, on a busy machine.
			cfg := mux.Config{Masters: addrs, StallTime: 2 * time.Second, BusyPoll: busyPoll, Conn: conn.Options{DialTimeout: 200 * time.Millisecond}}
			var m *mux.Mux
			eventually(t, "a majority is connected", func() bool {
				var err error
				m, err = mux.Open(context.Background(), cfg)
				return err == nil
			})
			t.Cleanup(func() { m.Close() })
			eventually(t, "the four are up", func() bool { // the fifth may have been one of the majority
				for _, s := range m.Masters()[:4] {
					if s.Phase != mux.Up {
						return false
					}
				}
				return true
			})
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					op := &mux.Op{Verdict: verdictAnyInt, Timeout: time.Minute}
					for k := range 100 {
						id := fmt.Sprintf("%d-%d", g, k)
						op.Command = resp.AppendCommand(op.Command[:0], "VOTE", id)
						if err := m.Do(context.Background(), op); err != nil {
							t.Error(err)
						}
						won := granted(op)
						if name == "answers twice" {
							op.Votes = op.Votes[:4] // what it says cannot be told apart; what the others say can
						}
						checkVotes(t, op, id)
						if !won {
							t.Errorf("%s was lost: %v", id, op.Votes)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// The streams move one byte at a time, or find nothing to read or no room to write, or break
// at some byte. Every vote that is cast is the master's own, and every failed one says why.
func TestVotesAreRightOverABadStream(t *testing.T) {
	t.Parallel()
	for name, faults := range map[string]*conntest.Faults{
		"byte by byte":       {Most: 1, Idle: 0.3},
		"breaks on reading":  {Most: 7, Idle: 0.1, ResetRead: 700},
		"breaks on writing":  {Most: 7, Idle: 0.1, ResetWrite: 400},
		"breaks either side": {Most: 3, ResetRead: 900, ResetWrite: 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var addrs []string
			for i := range 3 {
				addrs = append(addrs, newFake(t, fmt.Sprint("bad", i), steady(i)).addr())
			}
			m := open(t, mux.Config{Masters: addrs, BackoffMin: time.Millisecond, BackoffMax: 2 * time.Millisecond,
				Conn: conn.Options{Wrap: faults.Wrap, DialTimeout: 30 * time.Second}, StallTime: 30 * time.Second, BusyPoll: busyPoll})
			var won atomic.Int64
			var wg sync.WaitGroup
			for g := range 4 {
				wg.Go(func() {
					op := &mux.Op{Verdict: verdictAnyInt, Timeout: time.Minute, All: true}
					for k := range 60 {
						id := fmt.Sprintf("%d-%d", g, k)
						op.Command = resp.AppendCommand(op.Command[:0], "VOTE", id)
						if err := m.Do(context.Background(), op); err != nil {
							t.Error(err)
						}
						checkVotes(t, op, id)
						if granted(op) {
							won.Add(1)
						} else if faults.ResetRead+faults.ResetWrite == 0 {
							t.Errorf("%s was lost: %v", id, op.Votes)
						}
					}
				})
			}
			wg.Wait()
			require.Positive(t, won.Load())
			require.Equal(t, faults.ResetRead+faults.ResetWrite > 0, faults.Resets() > 0)
		})
	}
}
