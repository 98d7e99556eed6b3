package main

import (
	"errors"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/redburst/redburst/redlock"
	"github.com/stretchr/testify/require"
)

// redsync's lock is revoked, too: its extension fails on a majority, even one that sets keys again where they are gone,
// as the tombstone is there. Its release does not know the tombstone, so that ends with its TTL. An extension that
// sets keys again can then bring a lock back which has ended, if nobody has taken it meanwhile, revoked or not.
func TestInteropRedsyncsLockIsRevoked(t *testing.T) {
	const reason = "deploy of version 2"
	for name, opts := range map[string][]redsync.Option{
		"as it is":                 nil,
		"with its SetNX on extend": {redsync.WithSetNXOnExtend()},
	} {
		t.Run(name, func(t *testing.T) {
			_, client, rs := interop(t, nil)
			const expiry = 3 * time.Second
			theirs := rs.NewMutex("key", append(opts, redsync.WithExpiry(expiry))...)
			var ok bool
			var err error
			for range 10 { // on a busy machine its lock may have ended
				require.NoError(t, theirs.LockContext(t.Context()))
				if ok, err = theirs.ExtendContext(t.Context()); !ok {
					continue
				}
				if err = client.Revoke(t.Context(), "key", reason); !errors.Is(err, redlock.ErrNotHeld) {
					break
				}
			}
			require.NoError(t, err)
			require.True(t, ok)
			until := theirs.Until()
			ok, err = theirs.ExtendContext(t.Context())
			require.False(t, ok)
			require.Error(t, err)
			ok, _ = theirs.UnlockContext(t.Context())
			require.False(t, ok)
			lock, err := client.Holders(t.Context(), "key")
			require.NoError(t, err)
			for _, h := range lock.Holders {
				if time.Now().Before(until) {
					require.True(t, h.Revoked, "its release does not know it")
					require.Equal(t, theirs.Value(), h.Token.Reveal())
				}
			}
			ours := client.NewMutex("key", lockTTL)
			require.NoError(t, ours.Lock(t.Context()))
			require.False(t, time.Now().Before(until), "not before its validity has ended")
			require.NoError(t, ours.Extend(t.Context()))
		})
	}
}
