package redlock_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// Masters that have lost a lock are given it again by an extension, and say so too late for it. The lock is lost all the
// same: another may have had it in between. It is no matter for the next lock of that Mutex.
func TestLossThatIsToldTooLateIsALoss(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		for _, then := range []string{"extend", "unlock", "next"} {
			t.Run(fmt.Sprint(n, then), func(t *testing.T) {
				t.Parallel()
				masters := redlocktest.Start(t, n, redlocktest.WithLinks())
				c := openConfig(t, redlock.Config{Masters: masters.Addrs(), RoundTimeout: 2 * time.Second, StallTime: busy})
				m := c.NewMutex("k", time.Minute)
				require.NoError(t, m.Lock(t.Context()))
				for i := range n {
					masters.CutReplies(i)
					redlock.Says(t, masters, i, "DEL", "k")
				}
				require.ErrorIs(t, m.Extend(t.Context()), redlock.ErrNoQuorum)
				if then == "next" {
					require.NoError(t, m.Release())
				}
				for i := range n {
					masters.Heal(i)
				}
				answered := func(does func() error) (err error) {
					require.Eventually(t, func() bool {
						err = does()
						return !errors.Is(err, redlock.ErrNoQuorum)
					}, busy, 5*time.Millisecond, "the masters answer in time again")
					return err
				}
				switch then {
				case "extend":
					require.ErrorIs(t, answered(func() error { return m.Extend(t.Context()) }), redlock.ErrNotHeld)
				case "unlock":
					answered(func() error { _, err := c.Holders(t.Context(), "k"); return err })
					require.ErrorIs(t, m.Unlock(t.Context()), redlock.ErrNotHeld)
				case "next":
					require.NoError(t, answered(func() error { return m.TryLock(t.Context()) }))
					require.NoError(t, answered(func() error { return m.Extend(t.Context()) }))
					require.NotErrorIs(t, m.Unlock(t.Context()), redlock.ErrNotHeld)
				}
			})
		}
	}
}
