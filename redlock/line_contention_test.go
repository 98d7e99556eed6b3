package redlock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A client that comes to a key which was refused to somebody a moment ago waits in the queue first, where
// the masters can notify: those who have waited for longer are in front of it.
func TestContendedKeyIsLookedAtFirst(t *testing.T) {
	for name, c := range map[string]struct {
		contended, silent bool
		first             string
	}{
		"contended":                        {true, false, "enter"},
		"contended, and nobody can tell":   {true, true, "SET"},
		"not contended, as far as we know": {false, false, "SET"},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, client *Client, r *fakeRounds) {
				masters := &notifiedRounds{fakeRounds: r, client: client, silent: c.silent}
				client.round.Mux = masters
				if c.contended {
					client.looks.NoteRefused(client.now(), "k")
				}
				since := r.now()
				require.NoError(t, client.NewMutex("k", ttl).Lock(t.Context()))
				require.Equal(t, c.first, masters.first)
				if c.first == "SET" {
					require.Equal(t, time.Millisecond, r.now()-since, "it has waited")
				}
			})
		})
	}
}

// A key that was contended while its holder had it is so when that releases it, however long ago it was. One that
// was contended only before is not.
func TestContendedKeyIsSoWhenItIsReleased(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		for _, opts := range [][]Option{nil, {WithKeys("l")}} {
			for _, before := range []bool{true, false} {
				m := c.NewMutex("k", time.Hour, opts...)
				if before {
					c.looks.NoteRefused(c.now(), m.spec().Names()...)
					time.Sleep(time.Millisecond)
				}
				require.NoError(t, m.TryLock(t.Context()))
				if !before {
					ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					require.ErrorIs(t, c.NewMutex("k", ttl).Lock(ctx), ErrHeld)
					cancel()
				}
				time.Sleep(contendedFor)
				require.False(t, c.looks.Contended(c.now(), m.spec().Names()...))
				require.NoError(t, m.Unlock(t.Context()))
				require.Equal(t, !before, c.looks.Contended(c.now(), "k"))
				time.Sleep(contendedFor)
			}
		}
	})
}

// On a hot key, the one who looks and finds it free loses the race for it again and again.
// It must not pause longer and longer, as it does where masters refuse to write:
// nobody else pauses for longer than it has to.
func TestWhoLosesRacesDoesNotSettleForLong(t *testing.T) {
	for name, c := range map[string]struct {
		races bool // another is faster; if not, the masters refuse to write
		at    time.Duration
		above bool
	}{
		"lost races":     {true, 30 * 20 * time.Millisecond, false},
		"refused writes": {false, 20 * pollMax, true},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, client *Client, r *fakeRounds) {
				looks := 0
				tracked := &notifiedRounds{fakeRounds: r, client: client}
				tracked.looked = func() {
					if looks++; looks > 30 {
						r.set(func(m *fakeMaster) { m.refusal = "" }, all(3)...)
						return
					}
					r.set(func(m *fakeMaster) {
						if m.refusal = "OOM command not allowed"; c.races { // until the attempt has come
							m.refusal = ""
							m.keys["k"] = fakeKey{"another's", r.clock() + 1500*time.Microsecond}
						}
					}, all(3)...)
				}
				client.round.Mux = tracked
				client.looks.NoteRefused(client.now(), "k")
				since := r.now()
				require.NoError(t, client.NewMutex("k", ttl).Lock(t.Context()))
				require.Equal(t, 31, looks)
				if took := r.now() - since; c.above {
					require.Greater(t, took, c.at)
				} else {
					require.Less(t, took, c.at)
				}
			})
		})
	}
}
