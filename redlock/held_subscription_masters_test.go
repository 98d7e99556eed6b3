package redlock_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// On real masters, whose order of replies and pushes is what the subscriptions of kept locks rest on.

// A lock whose renewal is due long after the test has given up.
const neverRenewed = time.Hour

func happens(t *testing.T, cond func() bool, what string, args ...any) {
	t.Helper()
	require.Eventually(t, cond, time.Minute, 5*time.Millisecond, append([]any{what}, args...)...)
}

// promising waits until all masters have promised to notify of so many keys, and of the witness.
func promising(t *testing.T, masters *redlocktest.Masters, keys int) {
	t.Helper()
	happens(t, func() bool {
		for i := range masters.N() {
			stats, err := masters.Do(i, "INFO", "stats")
			if err != nil || !strings.Contains(stats.(string), fmt.Sprintf("tracking_total_keys:%d\r\n", keys+1)) {
				return false
			}
		}
		return true
	}, "the masters promise to notify of %d keys", keys)
}

// on does the same on some masters at once.
func on(t *testing.T, masters *redlocktest.Masters, which []int, args ...string) {
	var all sync.WaitGroup
	for _, i := range which {
		all.Go(func() {
			if _, err := masters.Do(i, args...); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// lostNow changes the key on some masters, and waits until the loss is noticed. If the machine is so busy that they
// are changed one by one, the client may set the key again in between: then it is lost at the next time.
func lostNow(t *testing.T, held context.Context, masters *redlocktest.Masters, which []int, change ...string) {
	t.Helper()
	happens(t, func() bool {
		on(t, masters, which, change...)
		select {
		case <-held.Done():
			return true
		case <-time.After(time.Second):
			return false
		}
	}, "the loss is noticed")
	require.ErrorIs(t, context.Cause(held), redlock.ErrLost)
	require.ErrorIs(t, context.Cause(held), redlock.ErrNotHeld)
}

func TestMastersNotifyOfALoss(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts []redlock.Option
		key  string
		keys int
	}{
		"plain":              {nil, "k", 1},
		"fenced":             {[]redlock.Option{redlock.WithFence()}, "k", 1},
		"several":            {[]redlock.Option{redlock.WithKeys("l", "m")}, "m", 3},
		"several and fenced": {[]redlock.Option{redlock.WithKeys("l", "m"), redlock.WithFence()}, "l", 3},
		"permit":             {[]redlock.Option{redlock.WithPermits(1)}, "{k}:permit:1/1", 1},
		"min hold":           {[]redlock.Option{redlock.WithMinHold(2 * neverRenewed)}, "k", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			masters, client := started(t, 5)
			for _, change := range [][]string{{"DEL", c.key}, {"SET", c.key, "another's"}, {"FLUSHALL"}} {
				m := client.NewMutex("k", neverRenewed, c.opts...)
				require.NoError(t, m.TryLock(t.Context()))
				held, stop := m.KeepAlive(t.Context())
				promising(t, masters, c.keys)
				lostNow(t, held, masters, []int{0, 2, 4}, change...)
				stop()
				require.Error(t, m.Unlock(t.Context()))
				on(t, masters, []int{0, 1, 2, 3, 4}, "FLUSHALL")
			}
		})
	}
}

func TestMastersNotifyOfWhatAMinorityHasLost(t *testing.T) {
	t.Parallel()
	masters, client := started(t, 5)
	m := client.NewMutex("k", neverRenewed)
	require.NoError(t, m.TryLock(t.Context()))
	redlock.Confirmed(t, m) // or those that are left are too few
	held, stop := m.KeepAlive(t.Context())
	defer stop()
	for n := range 3 {
		promising(t, masters, 1)
		on(t, masters, []int{1, 3}, "DEL", "k")
		happens(t, func() bool { return keysOn(t, masters) == 5 }, "the key is set again, time %d", n+1)
	}
	promising(t, masters, 1) // a renewal asks again
	require.NoError(t, held.Err())
	require.NoError(t, m.Unlock(t.Context()))
}

// Renewals, extends, releases and hand-overs of this client are no news, whatever the order in which the masters
// reply and push.
func TestMastersNotifyOfOwnWritesInVain(t *testing.T) {
	t.Parallel()
	masters, client := started(t, 3)
	const ttl = 10 * time.Second
	m := client.NewMutex("k", ttl, redlock.WithFence())
	require.NoError(t, m.TryLock(t.Context()))
	held, stop := m.KeepAlive(t.Context())
	defer stop()
	happens(t, func() bool { return client.Stats().Renewals >= 2 }, "it is renewed")
	for range 3 {
		promising(t, masters, 1)
		require.NoError(t, m.Extend(t.Context()))
	}
	promising(t, masters, 1)
	require.NoError(t, held.Err())
	require.Zero(t, client.Stats().RenewalsNotified)
	require.NoError(t, m.Unlock(t.Context()))
	for range 3 { // handed over between goroutines
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if err := client.Do(t.Context(), "l", neverRenewed, func(context.Context) error {
					promising(t, masters, 1)
					return nil
				}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
	}
	require.Zero(t, client.Stats().RenewalsNotified)
}

// Readers change each other's key with each renewal. They do not ask, or they would renew without end.
func TestReadersDoNotAsk(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for range 2 {
		client := openOn(t, masters, nil)
		m := client.NewMutex("k", 10*time.Second, redlock.WithShared())
		require.NoError(t, m.TryLock(t.Context()))
		_, stop := m.KeepAlive(t.Context())
		defer stop()
		defer func() {
			happens(t, func() bool { return client.Stats().Renewals >= 2 }, "it is renewed")
			require.Zero(t, client.Stats().RenewalsNotified)
			require.False(t, called(t, masters, 0, "exists"))
		}()
	}
}

// askedAgain is what a master says that was asked for its keys by two connections, or more. Each question is two calls.
var askedAgain = regexp.MustCompile(`cmdstat_exists:calls=([4-9]|\d\d)`)

// A master that was restarted, or only out of reach, is asked again.
func TestNewConnectionsAreAsked(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3, redlocktest.WithLinks())
	client := openOn(t, masters, nil)
	m := client.NewMutex("k", neverRenewed)
	require.NoError(t, m.TryLock(t.Context()))
	held, stop := m.KeepAlive(t.Context())
	defer stop()
	promising(t, masters, 1)
	for i := range 3 {
		masters.Reset(i)
		reaches(t, client, i, "up")
	}
	promising(t, masters, 1)
	for i := range 2 {
		// The former connection's promise may be in the table still: until a command changes the key, the new
		// connection has promised, too, or has not.
		happens(t, func() bool {
			v, err := masters.Do(i, "INFO", "commandstats")
			return err == nil && askedAgain.MatchString(v.(string))
		}, "master %d is asked again", i)
	}
	settled(t, client)
	lostNow(t, held, masters, []int{0, 1}, "DEL", "k")
}

// Without the rights, masters do not notify, and Stats says which. The rest is as it would be.
func TestStatsTellWhichMastersNotify(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rights  string
		notify  bool
		refusal bool
	}{
		"with the rights":  {lockRights + " +client|tracking +client|caching +exists", true, false},
		"without tracking": {lockRights + " +exists", false, false},
		"without caching":  {lockRights + " +client|tracking +exists", false, false},
		"without exists":   {lockRights + " +client|tracking +client|caching", false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			masters := startACL(t, 3, c.rights)
			client := openUp(t, acl(masters))
			m := client.NewMutex("lock:k", 10*time.Second)
			require.NoError(t, m.TryLock(t.Context()))
			held, stop := m.KeepAlive(t.Context())
			defer stop()
			happens(t, func() bool { return client.Stats().Renewals >= 2 }, "it is renewed")
			settled(t, client)
			for i, s := range client.Stats().Masters {
				require.Equal(t, c.notify, s.Notifies, i)
			}
			require.NoError(t, held.Err())
			log := redlock.Says(t, masters, 0, "ACL", "LOG")
			if c.refusal {
				require.Len(t, log, 2) // by the question, and by its script
				for _, entry := range log.([]any) {
					require.Contains(t, entry, int64(1), "it is not asked again")
				}
			}
			require.NoError(t, m.Unlock(t.Context()))
		})
	}
}
