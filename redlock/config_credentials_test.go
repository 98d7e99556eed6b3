package redlock_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/stretchr/testify/require"
)

// A lock outlives the credentials with which it was taken: while they are renewed, while the
// masters refuse the new ones, and when they take them again. No right but those of the locks
// is needed.
func TestLockOutlivesItsCredentials(t *testing.T) {
	t.Parallel()
	masters := startACL(t, 3, lockRights)
	var mu sync.Mutex
	password, told := "password", map[string]string{} // what was last told of a master
	give := func(p string) {
		mu.Lock()
		defer mu.Unlock()
		password = p
	}
	c := openConfig(t, redlock.Config{
		Masters:      masters.Addrs(),
		RoundTimeout: busy,
		StallTime:    busy,
		Credentials: func(context.Context) (redlock.Credentials, error) {
			mu.Lock()
			defer mu.Unlock()
			return redlock.Credentials{Username: "locker", Password: redlock.NewSecret(password), Until: time.Now().Add(2 * time.Second)}, nil
		},
		Observers: onEvent(redlock.EventMaster, func(e *redlock.Event) {
			m := *e.Master
			mu.Lock()
			defer mu.Unlock()
			told[m.Addr] = string(m.Phase) + " " + m.Err
		}),
	})
	for i := range 3 {
		reaches(t, c, i, "up")
	}
	m := c.NewMutex("lock:k", time.Minute)
	require.NoError(t, m.TryLock(t.Context()))
	held, stop := m.KeepAlive(t.Context())
	defer stop()
	holds := func() {
		t.Helper()
		require.NoError(t, held.Err())
		require.NoError(t, m.Extend(t.Context()))
		other := c.NewMutex("lock:other", time.Minute)
		require.NoError(t, other.TryLock(t.Context()))
		require.NoError(t, other.Unlock(t.Context()))
		require.Positive(t, m.Remaining())
		for _, s := range c.Stats().Masters {
			require.Equal(t, redlock.PhaseUp, s.Phase)
			require.Zero(t, s.Failures)
		}
	}
	shown := func(what string) {
		t.Helper()
		for i := range 3 {
			require.Eventually(t, func() bool {
				mu.Lock()
				defer mu.Unlock()
				s := c.Stats().Masters[i]
				return !strings.Contains(s.Err, "hunter2") && strings.Contains(s.Err, what) && (what == "") == (s.Err == "") && told[s.Addr] == string(s.Phase)+" "+s.Err
			}, time.Minute, 5*time.Millisecond, "%q", what)
		}
	}
	for i := range 3 {
		require.Eventually(t, func() bool { return calls(t, masters, i, "AUTH") >= 2 }, time.Minute, 5*time.Millisecond)
	}
	holds()
	shown("")
	give("hunter2hunter2")
	shown("WRONGPASS")
	holds()
	give("password")
	shown("")
	holds()
}
