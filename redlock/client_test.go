package redlock

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func TestClosedClientSaysSo(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m, other := taken(t, c), c.NewMutex("other", ttl)
		require.NoError(t, c.Close())
		_, err := c.Holders(t.Context(), "k")
		for _, err := range []error{
			err, other.TryLock(t.Context()), other.Lock(t.Context()), m.Extend(t.Context()), m.Unlock(t.Context()),
			c.Do(t.Context(), "k", ttl, func(context.Context) error { return nil }),
		} {
			require.ErrorIs(t, err, ErrClosed)
			require.NotErrorIs(t, err, ErrNoQuorum)
		}
	})
}

// closingRounds are closed while somebody looks at a key.
type closingRounds struct{ round.Mux }

func (r closingRounds) AppendMasters(dst []mux.State) []mux.State { return append(dst, r.Masters()...) }

func (r closingRounds) Masters() []mux.State {
	all := r.Mux.Masters()
	for i := range all {
		all[i].Server = conn.Server{Tracking: true}
	}
	return all
}

func (r closingRounds) Wait(ctx context.Context, op *mux.Op) error {
	if op.Command == nil || op.Replies == 2 { // somebody sleeps, or looks
		return mux.ErrClosed
	}
	return r.Mux.Wait(ctx, op)
}

func (r closingRounds) Post(ops ...*mux.Op) {
	if ops[0].Command != nil {
		r.Mux.Post(ops...)
	}
}

func TestLockThatLooksWhileTheClientIsClosedSaysSo(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		taken(t, c)
		c.round.Mux = closingRounds{r}
		err := c.NewMutex("k", ttl).Lock(t.Context())
		require.ErrorIs(t, err, ErrClosed)
		require.NotErrorIs(t, err, ErrHeld)
	})
}

// An attempt that Close cuts short, and that fails therefore, leaves nothing behind.
func TestCloseLeavesNothingOfWhatItCutsShort(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for round := range 5 {
		c := openedWith(t, Config{Masters: masters.Addrs(), StallTime: time.Minute})
		if round == 4 { // what is frozen, and stays connected, hears of it when it thaws
			masters.Pause(2)
		}
		var attempts sync.WaitGroup
		var mu sync.Mutex
		var refused []string
		begun := make(chan struct{}, 1)
		for g := range 8 {
			attempts.Go(func() {
				for n := 0; ; n++ {
					key := fmt.Sprintf("%d-%d-%d", round, g, n)
					if err := c.NewMutex(key, time.Hour).TryLock(context.Background()); err != nil {
						mu.Lock()
						refused = append(refused, key)
						mu.Unlock()
						return
					}
					if n > 10 {
						select {
						case begun <- struct{}{}:
						default:
						}
					}
				}
			})
		}
		conntest.Soon(t, "attempts are under way", begun)
		require.NoError(t, c.Close())
		attempts.Wait()
		if round == 4 {
			masters.Resume(2)
		}
		require.Len(t, refused, 8)
		for _, key := range refused {
			for i := range 3 {
				SoonSays(t, masters, i, int64(0), "EXISTS", key)
			}
		}
	}
}

// Close waits for the attempts under way, and they do not wait for Close: an Observer that
// is called in one, as the context of that is another's KeepAlive, may try to take a lock.
func TestCloseAndAnAttemptDoNotWaitForEachOther(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		closed, lost := make(chan struct{}), make(chan error, 1)
		c.events.hook(EventLost, func(*Event) {
			go func() {
				c.Close()
				close(closed)
			}()
			for c.attempts.TryRLock() { // until it waits for the attempt
				c.attempts.RUnlock()
				runtime.Gosched()
			}
			lost <- c.NewMutex("other", ttl).TryLock(context.Background())
		})
		held, stop := taken(t, c).KeepAlive(t.Context())
		defer stop()
		c.round.Mux = &latecomer{Mux: r, late: func() { r.suspend(2 * ttl) }}
		require.Error(t, c.NewMutex("nested", ttl).TryLock(held))
		require.ErrorIs(t, conntest.Soon(t, "the nested attempt returns", lost), ErrClosed)
		conntest.Soon(t, "Close returns", closed)
	})
}
