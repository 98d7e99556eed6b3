package mux_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
)

// reads is an operation that reads a key.
func reads(key string) *mux.Op {
	return &mux.Op{Command: resp.AppendCommand(nil, "GET", key), All: true, Timeout: 10 * time.Second,
		Verdict: func(resp.Value) mux.Verdict { return mux.VerdictYes }}
}

// A reply that is too long is a failed vote, and no more: the connection lives, and so do the operations before and
// behind it. Neither is its Verdict called, nor OnReply, nor is its Fallback sent.
func TestReplyBeyondTheLimitsCostsAVote(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		for name, long := range map[string]string{"string": strings.Repeat("x", 100<<10), "exactly one byte": strings.Repeat("x", 64<<10+1)} {
			t.Run(fmt.Sprint(n, " masters/", name), func(t *testing.T) {
				t.Parallel()
				masters := redlocktest.Start(t, n)
				m := open(t, mux.Config{Masters: masters.Addrs(), StallTime: time.Hour})
				waitUp(t, m, n)
				for i := range n {
					says(t, masters, i, "SET", "long", long)
				}
				for range 3 {
					before, behind := reads("short"), reads("short")
					op := reads("long")
					op.Keep = true
					op.Fallback = resp.AppendCommand(nil, "SET", "fallback", "1")
					op.Verdict = func(v resp.Value) mux.Verdict { panic("there is nothing to judge") }
					op.OnReply = func(int, resp.Value) { panic("there is nothing to tell") }
					m.Post(before, op, behind)
					require.NoError(t, m.Wait(t.Context(), before))
					require.NoError(t, m.Wait(t.Context(), op))
					require.NoError(t, m.Wait(t.Context(), behind))
					for i := range n {
						require.Equal(t, mux.VerdictYes, before.Votes[i].Verdict)
						require.Equal(t, mux.VerdictYes, behind.Votes[i].Verdict)
						require.Equal(t, mux.VerdictFailed, op.Votes[i].Verdict)
						require.ErrorIs(t, op.Votes[i].Err, resp.TooLong)
						require.EqualError(t, op.Votes[i].Err, fmt.Sprintf("mux: the reply exceeds the limits: bulk string of %d bytes (resp: too many bytes)", len(long)+len(fmt.Sprint(len(long)))+5))
						require.Equal(t, int64(0), says(t, masters, i, "EXISTS", "fallback"))
					}
				}
				for _, s := range m.Masters() {
					require.Equal(t, uint64(1), s.Connects)
				}
			})
		}
	}
}

// Of several replies to one operation, any may be too long. The last is judged.
func TestFirstOfTwoRepliesIsBeyondTheLimits(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	m := open(t, mux.Config{Masters: masters.Addrs(), StallTime: time.Hour})
	says(t, masters, 0, "SET", "long", strings.Repeat("x", 1<<20))
	op := reads("long")
	op.Command = resp.AppendCommand(op.Command, "GET", "short")
	op.Replies = 2
	require.NoError(t, m.Do(t.Context(), op))
	require.Equal(t, mux.VerdictYes, op.Votes[0].Verdict)
}

// Another tenant may have the master send pushes about keys with long names to our connection. They cost nothing: the
// replies around them are matched, and the pushes behind them are told.
func TestPushBeyondTheLimitsIsLeftOut(t *testing.T) {
	t.Parallel()
	long := "$70000\r\n" + strings.Repeat("k", 70_000) + "\r\n"
	pushes := ">2\r\n$10\r\ninvalidate\r\n*1\r\n" + long + ">2\r\n$10\r\ninvalidate\r\n*1\r\n$5\r\nshort\r\n" + ">1\r\n" + long
	for name, l := range map[string]resp.Limits{"": {}, "a byte more would be too much": {Skip: 70_041}} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, "pushes", func() script {
				return func([]string) (string, bool) { return pushes + "+OK\r\n" + pushes, true }
			})
			told := make(chan string, 100)
			m := open(t, mux.Config{Masters: []string{f.addr()}, StallTime: time.Hour, Conn: conn.Options{Limits: l}, OnPush: func(_ int, v resp.Value) { told <- string(v.Raw()) }})
			for range 5 {
				op := reads("a")
				require.NoError(t, m.Do(t.Context(), op))
				require.Equal(t, mux.VerdictYes, op.Votes[0].Verdict)
			}
			for range 5 {
				require.Contains(t, conntest.Soon(t, "the short push", told), "short")
			}
			require.Equal(t, uint64(1), m.Masters()[0].Connects)
		})
	}
}

// What a Keeper asks is answered, or the connection ends: it would wait for the answer for ever, and the master's votes with it.
func TestAnswerToAKeeperBeyondTheLimitsEndsTheConnection(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	says(t, masters, 0, "SET", "long", strings.Repeat("x", 100<<10))
	k := votesAtOnce()
	heard, ended := make(chan string, 100), make(chan error, 100)
	k.heard = func(_ int, v resp.Value) { heard <- string(v.Bytes()) }
	m := open(t, mux.Config{Masters: masters.Addrs(), StallTime: time.Hour, Keeper: k, OnState: func(_ int, s mux.State) {
		if s.Phase != mux.Up && s.Err != nil {
			ended <- s.Err
		}
	}})
	for range 2 {
		waitUp(t, m, 1)
		for _, key := range []string{"short", "long"} {
			k.stand(m, 0, mux.Standing{Ask: resp.AppendCommand(nil, "GET", key), Replies: 1})
			if key == "short" {
				require.Empty(t, conntest.Soon(t, "it is told", heard))
			}
		}
		require.ErrorIs(t, conntest.Soon(t, "the connection ends", ended), resp.TooLong)
	}
	waitUp(t, m, 1)
	require.NoError(t, m.Do(t.Context(), vote("a")))
	require.Empty(t, heard)
}

// What has no end is not skipped without end, in bytes or in time.
func TestSkippingEnds(t *testing.T) {
	t.Parallel()
	begin := "$100000000\r\n" + strings.Repeat("x", 100_000)
	for name, c := range map[string]struct {
		cfg    mux.Config
		answer string
		want   error
	}{
		"bytes":          {mux.Config{Conn: conn.Options{Limits: resp.Limits{Skip: 1 << 20}}}, begin, resp.TooLong},
		"time":           {mux.Config{StallTime: 100 * time.Millisecond}, begin, mux.ErrStalled},
		"time of a push": {mux.Config{StallTime: 100 * time.Millisecond}, ">1\r\n" + begin, mux.ErrStalled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, "endless", func() script {
				return func([]string) (string, bool) { return c.answer, true }
			})
			ended := make(chan error, 100)
			c.cfg.Masters = []string{f.addr()}
			c.cfg.OnState = func(_ int, s mux.State) {
				if s.Phase != mux.Up && s.Err != nil {
					ended <- s.Err
				}
			}
			m := open(t, c.cfg)
			m.Do(t.Context(), vote("a"))
			require.ErrorIs(t, conntest.Soon(t, "the connection ends", ended), c.want)
		})
	}
}
