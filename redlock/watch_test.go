package redlock

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The lock is released just after a waiter has read the key, and the masters tell of it
// before the waiter has their answers, which say that it is held.
func TestChangeWhileAWaiterLooksIsNotLost(t *testing.T) {
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		holder := taken(t, newClient(Config{}, r, r.now)) // another process
		masters := &trackedRounds{fakeRounds: r, client: c}
		masters.looked = func() {
			masters.looked = nil
			require.NoError(t, holder.Unlock(context.Background()))
			masters.tell(all(3)...)
		}
		c.rounds = masters
		since := r.now()
		require.NoError(t, c.NewMutex("k", ttl).Lock(t.Context()))
		require.Nil(t, masters.looked, "it has not looked")
		require.Less(t, r.now()-since, 100*time.Millisecond, "it has slept until the key's TTL had passed")
	})
}

// Who comes to a key that was refused to somebody a moment ago looks first, where the
// masters can tell: those who were told of its release are in front of it.
func TestContendedKeyIsLookedAtFirst(t *testing.T) {
	for name, c := range map[string]struct {
		contended, silent bool
		first             string
	}{
		"contended":                        {true, false, "look"},
		"contended, and nobody can tell":   {true, true, "SET"},
		"not contended, as far as we know": {false, false, "SET"},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, client *Client, r *fakeRounds) {
				masters := &trackedRounds{fakeRounds: r, client: client, silent: c.silent}
				client.rounds = masters
				if c.contended {
					client.watches.noteRefused("k", client.now())
				}
				since := r.now()
				require.NoError(t, client.NewMutex("k", ttl).Lock(t.Context()))
				require.Equal(t, c.first, masters.asked[0])
				if c.first == "SET" {
					require.Equal(t, time.Millisecond, r.now()-since, "it has waited")
				}
			})
		})
	}
}
