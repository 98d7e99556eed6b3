package redlock

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/quorum"
)

// Nobody is in a hurry for a renewal, so the mux does not poll busily for it. It does for an Extend.
func TestRenewalsArePatient(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		m := taken(t, c)
		var patient []bool
		c.round.Mux = &hookedRounds{Mux: r, posting: func(op *mux.Op) { patient = append(patient, op.Patient) }}
		_, stop := m.KeepAlive(t.Context())
		defer stop()
		time.Sleep(ttl/quorum.RenewAfter + ttl/10)
		synctest.Wait()
		require.Equal(t, []bool{true}, patient)
		for range 3 { // the memory of the renewal is used again
			require.NoError(t, m.Extend(t.Context()))
		}
		require.Equal(t, []bool{true, false, false, false}, patient)
	})
}
