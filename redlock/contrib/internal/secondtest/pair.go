//go:build unix

package secondtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// pairTTL is that of the locks on the masters.
const pairTTL = 4 * time.Second

// A pair is masters, and the store behind them.
type pair struct {
	Store
	masters *redlocktest.Masters
	proxy   *Proxy
	through func(t testing.TB) Second // opens a Second whose traffic passes the proxy
}

// Pair tests locks on real masters with a store behind them. Each test has a store of its own, and a proxy.
func Pair(t *testing.T, open Opener) {
	for name, test := range map[string]func(*pair, *testing.T){
		"BothAreTakenAndGivenUp":           (*pair).bothAreTakenAndGivenUp,
		"OneHolderAtATime":                 (*pair).oneHolderAtATime,
		"TheStoreIsTheAuthority":           (*pair).theStoreIsTheAuthority,
		"ASessionThatEndsIsALoss":          (*pair).aSessionThatEndsIsALoss,
		"MastersThatAreDownGiveNothing":    (*pair).mastersThatAreDownGiveNothing,
		"AStoreThatIsDownGivesNothing":     (*pair).aStoreThatIsDownGivesNothing,
		"AStoreThatIsCutOffEndsTheContext": (*pair).aStoreThatIsCutOffEndsTheContext,
		"CancelledAtEveryPoint":            (*pair).cancelledAtEveryPoint,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &pair{masters: redlocktest.Start(t, 3)}
			p.Store, p.proxy, p.through = open(t)
			test(p, t)
		})
	}
}

// open opens a client, as another process has it.
func (p *pair) open(t testing.TB) *redlock.Client {
	c, err := redlock.Open(Background(t), redlock.Config{Masters: p.masters.Addrs()})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// awaitFree waits until neither the masters nor the store have anything of a key.
func (p *pair) awaitFree(t testing.TB, key string) {
	t.Helper()
	p.awaitMasters(t, key, 0)
	p.AwaitQueue(t, key, 0)
}

// awaitMasters waits until n masters have the key, or more if it is not 0: one that was connected late may have it or not.
func (p *pair) awaitMasters(t testing.TB, key string, n int) {
	t.Helper()
	there := int64(-1)
	// Its TTL would free it as well.
	right := func() bool { return there == int64(n) || n > 0 && there > int64(n) }
	for began := time.Now(); !right() && time.Since(began) < pairTTL*3/4; time.Sleep(5 * time.Millisecond) {
		there = 0
		for i := range p.masters.N() {
			if exists, err := p.masters.Do(i, "EXISTS", key); err == nil {
				there += exists.(int64)
			}
		}
	}
	require.True(t, right(), "%d masters have %q, and not %d", there, key, n)
}

func (p *pair) bothAreTakenAndGivenUp(t *testing.T) {
	second, other := p.Open(t), p.Open(t)
	m := p.open(t).NewMutex("k", pairTTL, redlock.WithSecond(second))
	require.NoError(t, m.TryLock(Background(t)))
	require.NotZero(t, m.Fence())
	first := m.Fence()
	p.awaitMasters(t, "k", 2)
	p.AwaitQueue(t, "k", 1)
	_, err := other.TryLock(Background(t), "k")
	require.ErrorIs(t, err, redlock.ErrHeld)
	require.NoError(t, m.Unlock(Background(t)))
	p.awaitFree(t, "k")

	// Who has the store's lock alone keeps all others out, and they keep nobody out of the masters'.
	l := MustLock(t, other, "k")
	require.Greater(t, l.Fence(), first)
	require.ErrorIs(t, m.TryLock(Background(t)), redlock.ErrHeld)
	p.awaitMasters(t, "k", 0)
	waited := make(chan error, 1)
	go func() { waited <- m.Lock(Background(t)) }()
	p.AwaitQueue(t, "k", 2)
	require.NoError(t, l.Unlock(Background(t)))
	require.NoError(t, <-waited)
	require.Greater(t, m.Fence(), l.Fence())
	require.NoError(t, m.Unlock(Background(t)))
	p.awaitFree(t, "k")
}

func (p *pair) oneHolderAtATime(t *testing.T) {
	clients := []*redlock.Client{p.open(t), p.open(t)}
	seconds := []Second{p.Open(t), p.Open(t)}
	var holders atomic.Int64
	var last atomic.Uint64
	var all sync.WaitGroup
	for i := range 10 {
		all.Go(func() {
			for range 5 {
				err := clients[i%2].Do(Background(t), "k", pairTTL, func(ctx context.Context) error {
					if holders.Add(1) != 1 {
						t.Error("two holders")
					}
					defer holders.Add(-1)
					fence := redlock.FenceFrom(ctx)
					if before := last.Swap(fence); before >= fence {
						t.Errorf("fence %d after %d", fence, before)
					}
					return ctx.Err()
				}, redlock.WithSecond(seconds[i%2]))
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	p.awaitFree(t, "k")
}

// theStoreIsTheAuthority has the masters lose what they know: they give the lock to a second client, who then waits for the
// store until the first has let go.
func (p *pair) theStoreIsTheAuthority(t *testing.T) {
	a := p.open(t).NewMutex("k", pairTTL, redlock.WithSecond(p.Open(t)))
	b := p.open(t).NewMutex("k", pairTTL, redlock.WithSecond(p.Open(t)))
	require.NoError(t, a.Lock(Background(t)))
	until := time.Now().Add(a.Remaining())
	for i := range p.masters.N() {
		p.masters.Flush(i)
	}
	require.ErrorIs(t, b.TryLock(Background(t)), redlock.ErrHeld)
	require.NoError(t, b.Lock(Background(t)))
	require.False(t, time.Now().Before(until), "%v before the first holder's validity ended", time.Until(until))
	require.Greater(t, b.Fence(), a.Fence())
	require.NoError(t, b.Unlock(Background(t)))
	a.Unlock(Background(t))
	p.awaitFree(t, "k")
}

func (p *pair) aSessionThatEndsIsALoss(t *testing.T) {
	m := p.open(t).NewMutex("k", time.Minute, redlock.WithSecond(p.Open(t)))
	require.NoError(t, m.Lock(Background(t)))
	ctx, stop := m.KeepAlive(Background(t))
	defer stop()
	p.awaitMasters(t, "k", 2)
	p.End(t)
	conntest.Soon(t, "the end of the context", ctx.Done())
	require.ErrorIs(t, context.Cause(ctx), redlock.ErrLost)
	require.ErrorIs(t, context.Cause(ctx), redlock.ErrSecond)
	t.Log(context.Cause(ctx))
	p.awaitFree(t, "k") // the masters' is released, too, long before its TTL
	require.ErrorIs(t, m.Unlock(Background(t)), redlock.ErrNotHeld)

	require.NoError(t, m.Lock(Background(t)))
	require.NoError(t, m.Unlock(Background(t)))
	p.awaitFree(t, "k")
}

func (p *pair) mastersThatAreDownGiveNothing(t *testing.T) {
	m := p.open(t).NewMutex("k", pairTTL, redlock.WithSecond(p.Open(t)))
	p.masters.Kill(0)
	p.masters.Kill(1)
	require.ErrorIs(t, m.TryLock(Background(t)), redlock.ErrNoQuorum)
	short, cancel := context.WithTimeout(Background(t), 300*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, m.Lock(short), context.DeadlineExceeded)
	p.AwaitQueue(t, "k", 0)
	p.masters.Restart(0)
	require.NoError(t, m.Lock(Background(t)))
	require.NoError(t, m.Unlock(Background(t)))
	p.AwaitQueue(t, "k", 0)
}

func (p *pair) aStoreThatIsDownGivesNothing(t *testing.T) {
	second := p.through(t)
	m := p.open(t).NewMutex("k", pairTTL, redlock.WithSecond(second))
	for _, fresh := range []bool{true, false} { // without a session, and with one
		p.proxy.Cut()
		began := time.Now()
		err := m.TryLock(Background(t))
		require.ErrorIs(t, err, redlock.ErrSecond)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
		t.Log(time.Since(began).Round(time.Millisecond), err)
		p.awaitMasters(t, "k", 0)
		short, cancel := context.WithTimeout(Background(t), 200*time.Millisecond)
		require.ErrorIs(t, m.Lock(short), context.DeadlineExceeded)
		cancel()
		p.awaitMasters(t, "k", 0)
		p.proxy.Reset()
		p.proxy.Heal()
		if fresh {
			require.Eventually(t, func() bool {
				err := m.TryLock(Background(t))
				return err == nil
			}, Patience, 20*time.Millisecond)
			require.NoError(t, m.Unlock(Background(t)))
		}
	}
	p.awaitFree(t, "k")
}

// aStoreThatIsCutOffEndsTheContext holds a lock whose masters are well, and cannot reach the store.
func (p *pair) aStoreThatIsCutOffEndsTheContext(t *testing.T) {
	m := p.open(t).NewMutex("k", time.Minute, redlock.WithSecond(p.through(t)))
	require.NoError(t, m.Lock(Background(t)))
	ctx, stop := m.KeepAlive(Background(t))
	defer stop()
	w := p.Watch(t, p.Open(t), "k") // in the store alone
	ended := make(chan time.Time, 1)
	context.AfterFunc(ctx, func() { ended <- time.Now() })
	p.proxy.Cut()
	defer p.proxy.Heal()
	taken := Taken(t, w)
	select {
	case end := <-ended:
		require.True(t, end.Before(taken), "the context ended %v too late", end.Sub(taken))
		t.Log("the context ended", taken.Sub(end), "before another had the lock:", context.Cause(ctx))
	default:
		require.Fail(t, "another has the lock, and the context has not ended")
	}
	require.ErrorIs(t, context.Cause(ctx), redlock.ErrSecond)
	p.awaitMasters(t, "k", 0)
}

// cancelledAtEveryPoint cancels Lock and TryLock at each chunk that passes between the Second and the store, in both
// directions, and at many moments of the rounds before and after.
func (p *pair) cancelledAtEveryPoint(t *testing.T) {
	client, second, direct := p.open(t), p.through(t), p.Open(t)
	warm := client.NewMutex("warm", pairTTL, redlock.WithSecond(second))
	require.NoError(t, warm.Lock(Background(t)))
	require.NoError(t, warm.Unlock(Background(t)))
	for _, fromServer := range []bool{false, true} {
		for _, waits := range []bool{false, true} {
			for n := 0; n < 100; n++ {
				key := fmt.Sprint("point", fromServer, waits, n)
				if waits {
					l := MustLock(t, direct, key)
					time.AfterFunc(3*time.Millisecond, func() { l.Unlock(context.Background()) })
				}
				ctx, cancel := context.WithCancel(Background(t))
				reached := p.proxy.Trap(n, fromServer, cancel)
				m := client.NewMutex(key, pairTTL, redlock.WithSecond(second))
				err := m.Lock(ctx)
				if err == nil {
					require.NoError(t, m.Unlock(Background(t)))
				} else {
					require.ErrorIs(t, err, context.Canceled)
				}
				p.awaitFree(t, key)
				cancel()
				if err == nil && !reached() {
					p.proxy.Trap(0, fromServer, nil)
					break
				}
			}
		}
	}
	for n := range 60 {
		key := fmt.Sprint("moment", n)
		ctx, cancel := context.WithTimeout(Background(t), time.Duration(n)*50*time.Microsecond)
		m := client.NewMutex(key, pairTTL, redlock.WithSecond(second))
		if err := m.TryLock(ctx); err == nil {
			require.NoError(t, m.Unlock(Background(t)))
		} else if !errors.Is(err, context.DeadlineExceeded) {
			require.NoError(t, err)
		}
		p.awaitFree(t, key)
		cancel()
	}
}
