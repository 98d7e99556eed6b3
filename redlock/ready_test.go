package redlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

var errTooLate = errors.New("the service was to be ready by now")

// A service starts while masters are away. Ready says why it is not ready, and when it is.
func TestReadySaysWhyAndWhen(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	masters.Kill(0)
	masters.Kill(1)
	c, err := redlock.New(redlock.Config{Masters: masters.Addrs(), DialTimeout: busy, StallTime: busy})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	for i, phase := range []string{"down", "down", "up"} {
		reaches(t, c, i, phase)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errTooLate)
	err = c.Ready(ctx)
	for _, is := range []error{redlock.ErrNoQuorum, context.Canceled, errTooLate} {
		require.ErrorIs(t, err, is)
	}
	require.NotErrorIs(t, err, redlock.ErrRefused)
	require.ErrorContains(t, err, "redlock: ready: too few masters answered (1 yes, 0 no, 2 failed")
	var e *redlock.RoundError
	require.ErrorAs(t, err, &e)
	require.Equal(t, string("ready"), e.Op)
	require.Equal(t, "no_quorum", redlock.Outcome(err))
	for i, v := range e.Votes {
		require.Equal(t, masters.Addr(i), v.Addr)
		require.Equal(t, i < 2, v.Err != nil)
	}

	ready := make(chan error, 1)
	go func() { ready <- c.Ready(context.Background()) }()
	masters.Restart(1)
	require.NoError(t, conntest.Soon(t, "two are a majority", ready))
	require.NoError(t, c.Ready(ctx), "it looks once")
	require.NoError(t, c.Do(t.Context(), "k", time.Minute, func(context.Context) error { return nil }))

	require.NoError(t, c.Close())
	err = c.Ready(t.Context())
	require.ErrorIs(t, err, redlock.ErrClosed)
	require.Equal(t, "closed", redlock.Outcome(err))
}

// A master that has restarted is connected, and has no vote: that is not ready.
func TestReadyCountsNoMasterInQuarantine(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	used(t, c, time.Minute)
	for i := range 2 {
		require.NoError(t, c.Ready(t.Context()))
		masters.Restart(i)
		reaches(t, c, i, "quarantined")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := c.Ready(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	var quarantine *mux.QuarantineError
	require.ErrorAs(t, err, &quarantine)
}

// Ready waits although so many refuse that nothing changes by itself, as somebody may change it. The error says so.
func TestReadyTellsOfRefusals(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3, redlocktest.WithArgs("--requirepass", "secret"))
	c, err := redlock.New(redlock.Config{Masters: masters.Addrs(), Password: redlock.NewSecret("wrong"), DialTimeout: busy})
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	for i := range 3 {
		reaches(t, c, i, "refused")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err = c.Ready(ctx)
	require.ErrorIs(t, err, redlock.ErrRefused)
	require.Equal(t, "refused", redlock.Outcome(err))
}
