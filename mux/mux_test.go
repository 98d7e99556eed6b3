package mux_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
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
		"Judge":                func(m *mux.Mux) { m.Judge() },
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

func TestConfigShowsNoPassword(t *testing.T) {
	t.Parallel()
	cfg := mux.Config{Masters: []string{"redis://user:hunter2@127.0.0.1:1", "hunter2@@:"}, Conn: conn.Options{Password: conn.NewSecret("hunter2")}}
	good := cfg
	good.Masters = cfg.Masters[:1]
	m, err := mux.New(good)
	require.NoError(t, err)
	defer m.Close()
	for _, verb := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, text := range []string{fmt.Sprintf(verb, cfg), fmt.Sprintf(verb, &cfg), fmt.Sprintf(verb, m)} {
			require.NotContains(t, text, "hunter2")
			require.Contains(t, text, "127.0.0.1:1")
		}
	}
}
