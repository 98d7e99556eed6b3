package held

import (
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/stretchr/testify/require"
)

// nearMasters are masters of which the round trip is asked, and who has answered: nobody has.
type nearMasters struct{ round.Mux }

func (nearMasters) RTT() time.Duration { return time.Millisecond }

func (nearMasters) Heard(mux.Sent) (answered, soon, never mux.Set) { return 0, 0, 0 }

func TestARelayOfThePoolIsAsNew(t *testing.T) {
	all := &relays{core: &Core{Round: &round.Core{Mux: nearMasters{}}, Now: func() time.Duration { return time.Hour }}}
	s := &round.Spec{Traits: &round.Ordinary}
	fresh := all.begin(s, []byte("token"))
	used := all.begin(s, []byte("another"))
	again := (*relay)(nil)
	for again != used { // a pool may drop what is put
		conntest.Soil(used, "of", "run", "line.onDecided", "line.asking", "lease")
		used.drop()
		again = all.begin(s, []byte("token"))
	}
	require.Empty(t, conntest.Differs(used, fresh,
		"waiting", "sharing", "last", "running", "lease", // a relay is dropped when they are empty, or over
		"sets", "before", "switches", "handed.Counting", // give sets them
		"trust", "round", "line.Call", "line.name", // as they are asked
	))
}

// A hold takes over what it is given unless it has a lock that is valid for longer, or that others rely on.
func TestWhatAHoldHasIsNotGivenAway(t *testing.T) {
	const now = time.Hour
	for name, c := range map[string]struct {
		has  func(h *Lock)
		want bool
	}{
		"nothing":                    {func(*Lock) {}, true},
		"a lock that ends then":      {func(h *Lock) { h.until = now + 2*time.Second }, true},
		"a lock that ends later":     {func(h *Lock) { h.until = now + 2*time.Second + 1 }, false},
		"a lock that is kept":        {func(h *Lock) { h.keepAlives = new(KeepAlive) }, false},
		"a lock with its second one": {func(h *Lock) { h.backing = new(backing) }, false},
		"one of several that is held": {func(h *Lock) {
			h.spec.Traits, h.until, *h.tokenText = &round.Traits{Reader: true}, now+1, []byte("other")
		}, false},
		"one that another process has handed over": {func(h *Lock) { h.Know("other") }, true},
		"one that was lost, and was to stay": {func(h *Lock) {
			h.until, h.lost, h.shown, h.told, h.staysUntil, h.lingersUntil = now-1, true, true, toldLoss|toldGone, 2*now, 2*now
		}, true},
	} {
		h := newHold()
		c.has(h)
		before := string(*h.tokenText)
		r := &relay{token: []byte("token"), fence: 7, until: now + 2*time.Second}
		had, ok := h.receive(r, now)
		require.Equal(t, c.want, ok, name)
		if !c.want {
			require.Equal(t, before, string(*h.tokenText), name)
			require.Zero(t, h.pins, name)
			continue
		}
		require.Equal(t, before, string(had.token), "what is to be given back")
		fresh := newHold()
		_, ok = fresh.receive(r, now)
		require.True(t, ok)
		require.Equal(t, "token", string(h.token()))
		require.Empty(t, conntest.Differs(h, fresh, "tokenText", "lease"), name)
	}
}

// A relay whose lock is lost, be it for its holder alone, gives it to nobody any more.
func TestARelayThatIsOverGivesNothing(t *testing.T) {
	const now, until = time.Hour, time.Hour + 2*time.Second
	for name, ends := range map[string]func(r *relay, h *Lock){
		"lost":               func(r *relay, _ *Lock) { r.lost.Store(true) },
		"lost by who has it": func(_ *relay, h *Lock) { h.lose([]byte("token"), now) },
		"over":               func(r *relay, _ *Lock) { r.over = true },
	} {
		h := newHold()
		r := &relay{of: &relays{core: &Core{}}, spec: &h.spec, token: []byte("token"), until: until}
		r.running.Store(true) // no goroutine is begun
		require.True(t, r.give(new(release), until, 0), name)
		_, ok := h.receive(r, now)
		require.True(t, ok)
		ends(r, h)
		require.False(t, r.give(new(release), until, 0), name)
		require.Len(t, r.waiting, 1)
	}
}
