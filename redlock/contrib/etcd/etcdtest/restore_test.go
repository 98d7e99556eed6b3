//go:build unix

package etcdtest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/redlock/contrib/etcd"
	"github.com/redburst/redburst/redlock/contrib/internal/secondtest"
)

// A cluster that is restored from a backup knows nothing of what was locked and unlocked since. Nobody relies on a
// lock that it has forgotten, and nobody keeps one there that was released.
func TestRestoreFromABackup(t *testing.T) {
	t.Parallel()
	c := start(t, 1)
	data := filepath.Join(c.processes.Dir, "m0")
	backup := filepath.Join(t.TempDir(), "backup")
	stopped := func(do func()) {
		c.Members[0].Kill()
		do()
		require.NoError(t, secondtest.StartAll(c.Members))
	}
	second := newSecond(t, c.Client(t), etcd.WithTTL(time.Minute))
	before := secondtest.MustLock(t, second, "before")
	stopped(func() { require.NoError(t, os.CopyFS(backup, os.DirFS(data))) })
	require.NoError(t, before.Unlock(secondtest.Background(t)))
	after := secondtest.MustLock(t, second, "after")
	stopped(func() {
		require.NoError(t, os.RemoveAll(data))
		require.NoError(t, os.CopyFS(data, os.DirFS(backup)))
	})

	_, err := second.TryLock(secondtest.Background(t), "any")
	require.ErrorContains(t, err, "has gone back")
	require.Error(t, after.Context().Err())
	require.ErrorContains(t, context.Cause(after.Context()), "has gone back")
	other := newSecond(t, c.Client(t))
	for _, key := range []string{"before", "after", "any"} {
		l, err := other.Lock(secondtest.Background(t), key)
		require.NoError(t, err)
		require.NoError(t, l.Unlock(secondtest.Background(t)))
		require.NoError(t, secondtest.MustLock(t, second, key).Unlock(secondtest.Background(t)), "of a new session")
	}
}
