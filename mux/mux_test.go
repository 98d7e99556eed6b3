package mux_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/mux"
)

// A zero Mux has no masters. It says what it is, and stays unlocked.
func TestZeroMuxSaysWhatItIs(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, use := range map[string]func(m *mux.Mux){
		"Do":                   func(m *mux.Mux) { m.Do(ctx, vote("a")) },
		"Do, without commands": func(m *mux.Mux) { m.Do(ctx, new(mux.Op)) },
		"Post":                 func(m *mux.Mux) { m.Post(vote("a")) },
		"Wait":                 func(m *mux.Mux) { m.Wait(ctx, vote("a")) },
		"Send":                 func(m *mux.Mux) { m.Send(vote("a")) },
		"Forget":               func(m *mux.Mux) { m.Forget(vote("a")) },
		"Doubt":                func(m *mux.Mux) { m.ExtendQuarantine(1) },
		"Drain":                func(m *mux.Mux) { m.Drain() },
		"Close":                func(m *mux.Mux) { m.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			m := new(mux.Mux)
			for range 2 {
				require.PanicsWithValue(t, "mux: this Mux is a zero one: make it with New or Open", func() { use(m) })
			}
		})
	}
	m := new(mux.Mux)
	require.Zero(t, m.Len())
	require.Zero(t, m.RTT())
	require.Empty(t, m.Masters())
	require.Empty(t, m.AppendMasters(nil))
}

func TestOpThatWasNotPostedCannotBeWaitedFor(t *testing.T) {
	t.Parallel()
	m := open(t, mux.Config{Masters: []string{newFake(t, "steady", steady(0)).addr()}})
	op := vote("a")
	require.PanicsWithValue(t, "mux: Wait for an Op that was not posted", func() { m.Wait(t.Context(), op) })
	require.NoError(t, m.Do(t.Context(), op)) // and the Mux is usable
	require.True(t, op.Won())
}
