package redlock

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/tracking"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// keptFor returns a lock on "k" that is kept alive, and was held for some time.
func keptFor(t *testing.T, c *Client, held time.Duration, opts ...Option) (*Mutex, context.Context) {
	t.Helper()
	m := c.NewMutex("k", time.Minute, opts...)
	require.NoError(t, m.TryLock(t.Context()))
	ctx, stop := m.KeepAlive(t.Context())
	t.Cleanup(stop)
	time.Sleep(held)
	synctest.Wait()
	return m, ctx
}

// notifying runs a test on simulated masters that notify.
func notifying(t *testing.T, n int, f func(t *testing.T, c *Client, r *notifiedRounds)) {
	t.Helper()
	simulated(t, n, Config{}, func(t *testing.T, _ *Client, masters *fakeRounds) {
		c, r := another(t, masters, Config{})
		f(t, c, r)
	})
}

// forget has masters lose the key, and notify.
func forget(r *notifiedRounds, which ...int) {
	r.set(func(m *fakeMaster) { m.drop("k") }, which...)
}

// settle waits until what is done at once is done, long before a renewal is due.
func settle() {
	time.Sleep(time.Second)
	synctest.Wait()
}

func TestLossIsNotifiedOf(t *testing.T) {
	for name, opts := range map[string][]Option{
		"plain": nil, "fenced": {WithFence()}, "several": {WithKeys("l")},
	} {
		t.Run(name, func(t *testing.T) {
			notifying(t, 5, func(t *testing.T, c *Client, r *notifiedRounds) {
				_, ctx := keptFor(t, c, time.Second, opts...)
				forget(r, 0, 2, 4)
				after, why := lostBy(t, r.fakeRounds, ctx)
				require.ErrorIs(t, why, ErrNotHeld)
				require.Less(t, after, tracking.NotifyPause)
				require.EqualValues(t, 1, c.Stats().RenewalsNotified)
			})
		})
	}
}

func TestWhatAMinorityHasLostIsSetAgain(t *testing.T) {
	notifying(t, 5, func(t *testing.T, c *Client, r *notifiedRounds) {
		m, ctx := keptFor(t, c, time.Second)
		for range 5 { // again and again: the masters are asked behind each renewal
			forget(r, 1, 3)
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			require.Equal(t, 5, r.holders("k", m.Token()))
		}
		require.NoError(t, ctx.Err())
		require.EqualValues(t, 5, c.Stats().RenewalsNotified)
		require.Zero(t, c.Stats().RenewalsFailed)
	})
}

// A repair that is answered while another renewal is under way is confirmed when that is over: from then on the yes of who was
// repaired counts.
func TestARepairDuringARenewalIsConfirmed(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, _ *Client, masters *fakeRounds) {
		const ttl = 3 * time.Second
		c, r := another(t, masters, Config{RoundTimeout: ttl / 2})
		m := c.NewMutex("k", ttl)
		require.NoError(t, m.TryLock(t.Context()))
		ctx, stop := m.KeepAlive(t.Context())
		defer stop()
		delayed := func(d time.Duration, which ...int) { r.set(func(m *fakeMaster) { m.delay = d }, which...) }
		time.Sleep(500 * time.Millisecond)
		forget(r, 0)
		time.Sleep(gatherFor + 500*time.Microsecond) // the renewal was sent, and the repair was not
		delayed(ttl/3+200*time.Millisecond, 0)
		time.Sleep(ttl / 4)
		require.EqualValues(t, 1, c.Stats().Renewals)
		require.Equal(t, 1, Suspects(m))
		delayed(ttl/6, 1, 2, 3, 4)
		time.Sleep(ttl / 6)
		require.Equal(t, 5, r.holders("k", m.Token()))
		delayed(time.Millisecond, 0, 1, 2, 3, 4)
		time.Sleep(ttl / 4)
		require.Zero(t, Suspects(m))
		require.EqualValues(t, 3, c.Stats().Renewals)
		require.NoError(t, ctx.Err())
	})
}

// A master loses each key that it is given before it is asked the next time. Each renewal repairs it, and one more confirms
// that. What that one repairs is confirmed by none: the renewals would follow one another without a pause.
func TestWhatConfirmsARepairIsNotConfirmed(t *testing.T) {
	simulated(t, 5, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		const ttl = 3 * time.Second
		m := c.NewMutex("k", ttl)
		require.NoError(t, m.TryLock(t.Context()))
		ctx, stop := m.KeepAlive(t.Context())
		defer stop()
		r.set(func(m *fakeMaster) { m.deny = func([]string) string { m.drop("k"); return "" } }, 0)
		for n := range uint64(5) { // a third of the TTL each
			require.Eventually(t, func() bool { return c.Stats().Renewals == 2*n+1 }, ttl/2, time.Millisecond/2)
			time.Sleep(ttl / 4)
			synctest.Wait()
			require.Equal(t, 2*n+2, c.Stats().Renewals)
		}
		require.NoError(t, ctx.Err())
	})
}

// A repair that comes behind another's set ends what the masters have promised. They are asked again.
func TestARefusedRepairIsFollowedByAQuestion(t *testing.T) {
	notifying(t, 5, func(t *testing.T, c *Client, r *notifiedRounds) {
		_, ctx := keptFor(t, c, time.Second)
		r.set(func(m *fakeMaster) { m.stubborn = true }, 1)
		forget(r, 1)
		settle()
		require.NoError(t, ctx.Err())
		forget(r, 0, 2, 4)
		after, _ := lostBy(t, r.fakeRounds, ctx)
		require.Less(t, after, 50*time.Millisecond)
	})
}

// So does a recheck.
func TestARecheckIsFollowedByAQuestion(t *testing.T) {
	for name, opts := range map[string][]Option{"plain": nil, "several": {WithKeys("l")}} {
		t.Run(name, func(t *testing.T) {
			notifying(t, 5, func(t *testing.T, c *Client, r *notifiedRounds) {
				_, ctx := keptFor(t, c, time.Second, opts...)
				for range 2 {
					switches(c, 0)
					settle()
				}
				require.NoError(t, ctx.Err())
				forget(r, 0, 2, 4)
				after, _ := lostBy(t, r.fakeRounds, ctx)
				require.Less(t, after, 50*time.Millisecond)
			})
		})
	}
}

// Masters that lose the key one after the other, within a moment, are not set again in between.
func TestLossThatTakesAMoment(t *testing.T) {
	for name, before := range map[string]bool{"at once": false, "one more has lost it once": true} {
		t.Run(name, func(t *testing.T) {
			notifying(t, 5, func(t *testing.T, c *Client, r *notifiedRounds) {
				m, ctx := keptFor(t, c, notifyAfter/2)
				if before { // the question finds that, and the next renewal mends it
					r.set(func(m *fakeMaster) { delete(m.keys, "k") }, 3)
					time.Sleep(time.Minute / 2)
				}
				settle()
				require.Equal(t, 5, r.holders("k", m.Token()))
				for i := range 3 {
					forget(r, i)
					time.Sleep(5 * time.Millisecond)
				}
				lostBy(t, r.fakeRounds, ctx)
			})
		})
	}
}

// What was lost before the masters were asked is found when they are.
func TestLossBeforeTheQuestion(t *testing.T) {
	for _, lost := range []string{"k", "l", "m"} { // one of the keys, of which the lock has several
		notifying(t, 5, func(t *testing.T, c *Client, r *notifiedRounds) {
			var opts []Option
			if lost != "k" {
				opts = append(opts, WithKeys("l", "m"))
			}
			_, ctx := keptFor(t, c, notifyAfter/2, opts...)
			r.set(func(m *fakeMaster) { m.keys[lost] = fakeKey{"another's", m.r.clock() + time.Hour} }, 0, 1, 2)
			after, _ := lostBy(t, r.fakeRounds, ctx)
			require.Less(t, after, notifyAfter, lost)
		})
	}
}

func TestOwnWritesAreNoNews(t *testing.T) {
	notifying(t, 5, func(t *testing.T, c *Client, r *notifiedRounds) {
		m, ctx := keptFor(t, c, time.Second)
		time.Sleep(10 * time.Minute) // renewals
		synctest.Wait()
		sent := c.Stats().Renewals
		require.InDelta(t, 30, sent, 2)
		for range 10 {
			require.NoError(t, m.Extend(t.Context()))
			time.Sleep(30 * time.Millisecond)
		}
		settle()
		require.Equal(t, sent, c.Stats().Renewals)
		require.Zero(t, c.Stats().RenewalsNotified)
		forget(r, 0, 1, 2) // they were asked again
		lostBy(t, r.fakeRounds, ctx)
	})
}

// Of several KeepAlives of a lock, one has asked. When it is stopped, the others are notified all the same.
func TestOtherKeepAlivesAreNotified(t *testing.T) {
	for name, opts := range map[string][]Option{"plain": nil, "several": {WithKeys("l")}} {
		t.Run(name, func(t *testing.T) {
			notifying(t, 3, func(t *testing.T, c *Client, r *notifiedRounds) {
				m, first := keptFor(t, c, time.Second, opts...)
				other, stop := m.KeepAlive(t.Context())
				defer stop()
				settle()
				keepAliveOf(first).Stop()
				settle()
				forget(r, 0, 1)
				after, why := lostBy(t, r.fakeRounds, other)
				require.ErrorIs(t, why, ErrNotHeld)
				require.Less(t, after, tracking.NotifyPause)
			})
		})
	}
}

// A lock that is held for a short time costs no command more.
func TestShortLockAsksNothing(t *testing.T) {
	notifying(t, 3, func(t *testing.T, c *Client, r *notifiedRounds) {
		for _, held := range []time.Duration{0, time.Millisecond, notifyAfter - time.Millisecond} {
			before := r.ordered()
			m, _ := keptFor(t, c, held)
			require.NoError(t, m.Unlock(t.Context()))
			settle()
			require.Equal(t, 2, r.ordered()-before, "the lock and its release")
		}
		before := r.ordered()
		m, _ := keptFor(t, c, 2*notifyAfter)
		require.NoError(t, m.Unlock(t.Context()))
		settle()
		require.Equal(t, 3, r.ordered()-before, "... and the question")
	})
}

// A key that is changed without end costs a renewal in each pause. If nothing is wrong, the pause grows, until there was no
// change for a while.
func TestStormOfChangesIsLimited(t *testing.T) {
	for name, touch := range map[string]func(m *fakeMaster){
		"lost": func(m *fakeMaster) { m.drop("k") },
		"touched": func(m *fakeMaster) {
			before := m.seen()
			m.keys["k"] = fakeKey{m.keys["k"].token, m.keys["k"].expires + 1}
			m.tell(before)
		},
	} {
		t.Run(name, func(t *testing.T) {
			notifying(t, 5, func(t *testing.T, c *Client, r *notifiedRounds) {
				m, ctx := keptFor(t, c, time.Second)
				for range 2 {
					before := c.Stats().RenewalsNotified
					for range 2000 {
						r.set(touch, 0)
						time.Sleep(time.Millisecond)
					}
					sent, most := c.Stats().RenewalsNotified-before, uint64(2*time.Second/tracking.NotifyPause)
					if name == "touched" {
						most /= 2
						require.Greater(t, sent, most/8)
					}
					require.Positive(t, sent)
					require.LessOrEqual(t, sent, most+1)
					require.NoError(t, ctx.Err())
					time.Sleep(30 * time.Second)
				}
				before := c.Stats().RenewalsNotified
				for range 5 * 60 * 40 { // then the pause is as long as it can be, and no renewal is under way when a change comes
					r.set(touch, 0)
					time.Sleep(25 * time.Millisecond)
				}
				require.NoError(t, ctx.Err())
				require.LessOrEqual(t, c.Stats().RenewalsNotified-before, uint64(5*time.Minute/tracking.NotifyPause)+1)
				time.Sleep(m.spec().Term.TTL)
				forget(r, 0, 1, 2)
				after, _ := lostBy(t, r.fakeRounds, ctx)
				require.Less(t, after, tracking.NotifyPause, "a storm of five minutes is over after a TTL")
			})
		})
	}
}

// If a master loses all keys, the locks are not renewed all at once.
func TestFlushSpreadsTheRenewals(t *testing.T) {
	notifying(t, 5, func(t *testing.T, c *Client, r *notifiedRounds) {
		const n = 300
		for i := range n {
			m := c.NewMutex(fmt.Sprint("k", i), time.Minute)
			require.NoError(t, m.TryLock(t.Context()))
			_, stop := m.KeepAlive(t.Context())
			defer stop()
		}
		settle()
		r.mu.Lock()
		r.masters[0].keys = map[string]fakeKey{}
		c.tracking.Push(0, nil)
		r.mu.Unlock()
		time.Sleep(gatherFor + n*spreadEach/2)
		require.InDelta(t, n/2, c.Stats().RenewalsNotified, n/5)
		settle()
		require.EqualValues(t, n, c.Stats().RenewalsNotified)
		require.Equal(t, 5*n, r.keys())
	})
}

// A master that notifies without end makes one change for each lock, until somebody looks.
func TestEndlessNotificationsAreOneChange(t *testing.T) {
	notifying(t, 5, func(t *testing.T, c *Client, r *notifiedRounds) {
		for _, key := range []string{"k", "l"} {
			m := c.NewMutex(key, time.Minute)
			require.NoError(t, m.TryLock(t.Context()))
			_, stop := m.KeepAlive(t.Context())
			defer stop()
		}
		settle()
		for range 2 { // also after they were looked at
			require.NotPanics(t, func() { // a lock may not know a place in what was taken already
				r.hook(func() {
					for range 1000 {
						c.tracking.Push(0, nil)
					}
				})
			})
			sent := c.Stats().RenewalsNotified
			settle()
			require.Equal(t, sent+2, c.Stats().RenewalsNotified)
		}
	})
}

// What a master notifies of is a change if it has promised to, on the connection that it has now, and if it is one of the
// lock's own keys. A master that has lost all keys says so without a promise.
func TestWhatCountsAsAChange(t *testing.T) {
	notifying(t, 5, func(t *testing.T, c *Client, r *notifiedRounds) {
		m, _ := keptFor(t, c, time.Second)
		changed := func() mux.Set {
			return hidden[tracking.KeptLock](&m.hold, "keepAlives", "subscription", "KeptLock").Changed()
		}
		for _, other := range []string{"l", kind.IntentKey("k")} {
			r.hook(func() { c.tracking.Push(0, []byte(other)) })
			require.Zero(t, changed(), other)
		}
		r.hook(func() {
			c.tracking.Disconnected(1)
			c.tracking.Push(1, []byte("k"))
			c.tracking.Push(2, []byte("k"))
		})
		require.Equal(t, mux.Set(1<<2), changed())
		r.hook(func() { c.tracking.Push(1, nil) })
		require.Equal(t, mux.Set(1<<1|1<<2), changed())
		settle()
		require.Zero(t, changed(), "it was renewed")
	})
}

// Where masters cannot notify, or refuse to, nothing is as it would not be without.
func TestMastersThatCannotNotify(t *testing.T) {
	notifying(t, 3, func(t *testing.T, c *Client, r *notifiedRounds) {
		r.turn(&r.silent, true)
		_, ctx := keptFor(t, c, time.Second)
		require.Equal(t, 1, r.ordered())
		forget(r, 0, 1)
		after, _ := lostBy(t, r.fakeRounds, ctx)
		require.Greater(t, after, 10*time.Second)
	})
}

func TestRefusedQuestionIsNotRepeated(t *testing.T) {
	notifying(t, 3, func(t *testing.T, c *Client, r *notifiedRounds) {
		var refused [3]int
		for i := range refused {
			r.set(func(m *fakeMaster) {
				m.deny = func(args []string) string {
					if args[0] == "EXISTS" || args[1] == tracking.CompareScript.Hash { // which calls it
						refused[i]++
						return "NOPERM User locker has no permissions to run the command"
					}
					return ""
				}
			}, i)
		}
		keptFor(t, c, time.Hour)
		require.Equal(t, [3]int{2, 2, 2}, refused)
		require.Zero(t, c.held.Able())
		r.hook(func() { c.held.Connected(1) })
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, [3]int{2, 4, 2}, refused, "another server may be there, and nowhere else")
	})
}

// A tellingKeeper is a keeper that tells of connections.
type tellingKeeper struct {
	mux.Keeper
	connected chan<- int
}

func (k tellingKeeper) Connected(master int, before, now conn.Server, at time.Duration) {
	defer func() { k.connected <- master }()
	k.Keeper.Connected(master, before, now, at)
}

// What a master has refused on one connection it is asked again on the next: another server may be there.
func TestAMasterThatHasRefusedIsAskedOnItsNextConnection(t *testing.T) {
	masters := redlocktest.Start(t, 1)
	connected := make(chan int, 16)
	c, err := open(Config{Masters: masters.Addrs()}, func(cfg mux.Config) (*mux.Mux, error) {
		cfg.Keeper = tellingKeeper{cfg.Keeper, connected}
		return mux.New(cfg)
	})
	require.NoError(t, err)
	defer c.Close()
	conntest.Soon(t, "it is connected", connected)
	notifies := func() bool { return c.Stats().Masters[0].Notifies }
	require.Eventually(t, notifies, hanging, 5*time.Millisecond)
	Says(t, masters, 0, "ACL", "SETUSER", "default", "-exists")
	m := c.NewMutex("k", term30)
	require.NoError(t, m.TryLock(t.Context()))
	_, stop := m.KeepAlive(t.Context())
	defer stop()
	require.Eventually(t, func() bool { return !notifies() }, hanging, 5*time.Millisecond)
	Says(t, masters, 0, "ACL", "SETUSER", "default", "+exists")
	Says(t, masters, 0, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	conntest.Soon(t, "it is connected anew", connected)
	require.Eventually(t, notifies, hanging, 5*time.Millisecond)
}
