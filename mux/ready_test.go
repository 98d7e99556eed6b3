package mux_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// over is a context that has ended: with it, Ready only looks.
func over() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// Ready is told of each way in which a master gets its vote, and looks at nothing until then.
func TestReadyWaitsUntilAMajorityCanVote(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		until mux.Standing // the standing of the masters 0 and 1 before
		why   string
	}{
		"quarantined": {mux.Standing{Until: 1 << 62, Why: "it was told to wait"}, "it was told to wait"},
		"withheld":    {mux.Standing{Withheld: true}, "has not answered yet whether it may vote"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			masters := redlocktest.Start(t, 3)
			k := votesAtOnce()
			m := open(t, mux.Config{Masters: masters.Addrs(), Keeper: k})
			waitUp(t, m, 3)
			states, err := m.Ready(over())
			require.NoError(t, err)
			require.Len(t, states, 3)
			for range 2 { // also a Mux whose masters have had their votes before
				k.stand(m, 0, c.until)
				_, err = m.Ready(over())
				require.NoError(t, err, "two of three are a majority")
				k.stand(m, 1, c.until)
				states, err = m.Ready(over())
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorContains(t, states[0].Err, c.why)
				require.ErrorContains(t, states[1].Err, c.why)
				require.NoError(t, states[2].Err)

				ready := make(chan error, 2)
				for range 2 {
					go func() { _, err := m.Ready(context.Background()); ready <- err }()
				}
				select {
				case err := <-ready:
					t.Fatal("it has returned before any master could vote:", err)
				case <-time.After(20 * time.Millisecond):
				}
				k.stand(m, 1, mux.Standing{})
				for range 2 {
					require.NoError(t, conntest.Soon(t, "a majority can vote", ready))
				}
			}
		})
	}
}

// Met waits for who is about to say whether it may vote, if a majority may come of it: a quarantine may end by what another
// master says.
func TestMetWaitsWhileAMajorityMayComeOfIt(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	k := votesAtOnce()
	m := open(t, mux.Config{Masters: masters.Addrs(), Keeper: k})
	waitUp(t, m, 3)
	votes, asked, barred := mux.Standing{}, mux.Standing{Withheld: true}, mux.Standing{Until: 1 << 62, Why: "it was told to wait"}
	for _, c := range []struct {
		standings [3]mux.Standing
		waits     bool
	}{
		{[...]mux.Standing{votes, votes, asked}, false},
		{[...]mux.Standing{votes, votes, barred}, false},
		{[...]mux.Standing{votes, asked, asked}, true},
		{[...]mux.Standing{votes, asked, barred}, true},
		{[...]mux.Standing{asked, barred, barred}, true},
		{[...]mux.Standing{asked, asked, barred}, true},
		{[...]mux.Standing{votes, barred, barred}, false},
		{[...]mux.Standing{barred, barred, barred}, false},
	} {
		for i, st := range c.standings {
			k.stand(m, i, st)
		}
		require.Equal(t, c.waits, m.Met(over()) != nil, "%+v", c)
	}
	k.stand(m, 0, asked)
	met := make(chan error, 1)
	go func() { met <- m.Met(context.Background()) }()
	masters.Kill(1)
	masters.Kill(2)
	require.NoError(t, conntest.Soon(t, "no majority can come of it", met))
}

func TestReadyWaitsForMastersThatAreAway(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	masters.Kill(0)
	masters.Kill(1)
	m, err := mux.New(patiently(mux.Config{Masters: masters.Addrs()}))
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	waitUp(t, m, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	states, err := m.Ready(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Error(t, states[0].Err)
	require.Error(t, states[1].Err)
	require.NoError(t, states[2].Err)

	ready := make(chan error, 1)
	go func() { _, err := m.Ready(context.Background()); ready <- err }()
	masters.Restart(0)
	require.NoError(t, conntest.Soon(t, "the second master is back", ready))
}

// Close and Drain end it at once, whatever the masters are like.
func TestReadyEndsWithTheMux(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(m *mux.Mux){"drained": (*mux.Mux).Drain, "closed": func(m *mux.Mux) { m.Close() }} {
		t.Run(name, func(t *testing.T) {
			m, err := mux.New(patiently(mux.Config{Masters: []string{"127.0.0.1:1", "127.0.0.1:2"}}))
			require.NoError(t, err)
			t.Cleanup(func() { m.Close() })
			ready := make(chan error, 1)
			go func() { _, err := m.Ready(context.Background()); ready <- err }()
			end(m)
			require.Equal(t, mux.ErrClosed, conntest.Soon(t, "it ends", ready))
			_, err = m.Ready(over())
			require.Equal(t, mux.ErrClosed, err)
		})
	}
}
