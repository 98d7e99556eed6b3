package redlock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// The votes of an error are its caller's, though others of the queue get the same.
func TestVotesOfAnErrorAreNotShared(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 3)
	c := opened(t, masters.Addrs(), nil)
	for i := range 3 {
		Says(t, masters, i, "SET", "k", "another's")
	}
	var all sync.WaitGroup
	for range 50 {
		for i := range 3 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(2+i)*time.Millisecond)
				defer cancel()
				var e *RoundError
				if errors.As(c.NewMutex("k", ttl).Lock(ctx), &e) {
					for i := range e.Votes {
						e.Votes[i].Err = nil // the race detector sees it
					}
				}
			})
		}
		time.Sleep(3 * time.Millisecond) // the next come while these give up
	}
	all.Wait()
}

// Whichever operation fails, and whoever looks at the error.
func TestTokenGetsIntoNoError(t *testing.T) {
	var seen []string
	observer := onEvent(EventRound, func(r *Event) {
		for _, v := range r.Votes {
			if v.Err != nil {
				seen = append(seen, v.Err.Error())
			}
		}
	})
	simulated(t, 3, Config{Owner: "me", Observers: observer}, func(t *testing.T, c *Client, r *fakeRounds) {
		quote := func(m *fakeMaster) {
			m.deny = func(args []string) string { return "ERR I do not understand " + strings.Join(args, " ") }
		}
		m := c.NewMutex("k", ttl)
		r.set(quote, 0, 1)
		attempt := m.TryLock(t.Context())
		r.set(func(m *fakeMaster) { m.deny = nil }, all(3)...)
		time.Sleep(10 * time.Millisecond)
		m = taken(t, c)
		token := m.Token()
		r.set(quote, 0, 1)
		extend := m.Extend(t.Context())
		c.NewMutex("other", ttl).TryLock(t.Context()) // with a token of its own
		unlock := m.Unlock(t.Context())
		for _, err := range []error{attempt, extend, unlock} {
			require.ErrorIs(t, err, ErrNoQuorum)
			require.NotContains(t, err.Error(), token[len("me/"):])
			var reply *mux.ReplyError
			require.ErrorAs(t, err, &reply)
			require.NotRegexp(t, `me/[^.]`, reply.Message)
		}
		require.NotEmpty(t, seen)
		for _, text := range seen {
			require.NotRegexp(t, `me/[^.]`, text)
		}
	})
}
