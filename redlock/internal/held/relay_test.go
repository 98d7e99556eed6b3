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
