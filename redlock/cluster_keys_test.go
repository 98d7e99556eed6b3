package redlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/rights"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// All keys on a cluster, and with a prefix on any master: they begin with the prefix, and people see them without it.

// limited is the configuration for the only cluster and a user with the rights that are documented, of the locks and
// of who lists them. It may use no keys but those in the slot.
func limited(t *testing.T, clusters *redlocktest.Clusters) redlock.Config {
	t.Helper()
	user := []string{"ACL", "SETUSER", "locker", "on", ">password", "resetkeys", "-@all", "~" + locks + "*"}
	for _, line := range documentedACL(t) {
		if !strings.Contains(line.said, "Redis 8") && !strings.Contains(line.said, "Valkey 9") {
			user = append(user, slices.DeleteFunc(slices.Clone(line.rights), func(r string) bool { return r[0] == '~' })...)
		}
	}
	for j := range clusters.Nodes(0).N() {
		redlock.Says(t, clusters.Nodes(0), j, append(user, rights.Rules("", rights.Listing)...)...)
	}
	cfg := onClusters(clusters)
	cfg.Username, cfg.Password = "locker", redlock.NewSecret("password")
	return cfg
}

// requireInSlot requires that all keys of the only cluster are in the slot, but for those that were there before, and
// that no node has refused anything but what newer servers have.
func requireInSlot(t *testing.T, clusters *redlocktest.Clusters, before ...string) {
	t.Helper()
	for j := range clusters.Nodes(0).N() {
		keys := redlock.Says(t, clusters.Nodes(0), j, "KEYS", "*")
		for _, key := range keys.([]any) {
			if !slices.Contains(before, key.(string)) {
				require.Equal(t, lockSlot, conn.HashSlot(key.(string)), key)
				require.True(t, strings.HasPrefix(key.(string), locks), key)
			}
		}
		log := redlock.Says(t, clusters.Nodes(0), j, "ACL", "LOG")
		for _, entry := range log.([]any) {
			require.True(t, slices.ContainsFunc(entry.([]any), func(said any) bool {
				return slices.Contains(rights.Native.Commands, fmt.Sprint(said))
			}), "node %d has refused %v", j, entry)
		}
	}
}

// Each kind of lock does on a cluster what it does on other masters. All keys are in one slot, and people see them
// without the prefix. A node of the list may be gone, and the user has the documented rights only.
func TestEachKindWorksOnACluster(t *testing.T) {
	t.Parallel()
	clusters := redlocktest.StartClusters(t, 1, 3, orderedOnly)
	cfg := limited(t, clusters)
	cfg.Masters = []string{"cluster://127.0.0.1:1," + clusters.Nodes(0).Addr(2) + "," + clusters.Nodes(0).Addr(4)}
	a, b := openConfig(t, cfg), openConfig(t, cfg)
	ctx := t.Context()
	for name, c := range map[string]struct {
		opts   []redlock.Option
		others bool // another can have it, too
	}{
		"plain":          {},
		"fenced":         {opts: []redlock.Option{redlock.WithFence()}},
		"several":        {opts: []redlock.Option{redlock.WithKeys("more")}},
		"several fenced": {opts: []redlock.Option{redlock.WithKeys("further"), redlock.WithFence()}},
		"shared":         {opts: []redlock.Option{redlock.WithShared()}, others: true},
		"shared fenced":  {opts: []redlock.Option{redlock.WithShared(), redlock.WithFence()}, others: true},
		"permit":         {opts: []redlock.Option{redlock.WithPermits(2)}, others: true},
		"min hold":       {opts: []redlock.Option{redlock.WithMinHold(50 * time.Millisecond)}},
	} {
		t.Run(name, func(t *testing.T) {
			m, o := a.NewMutex(name, time.Minute, c.opts...), b.NewMutex(name, time.Minute, c.opts...)
			require.Equal(t, name, m.Key())
			require.NoError(t, m.TryLock(ctx))
			if err := o.TryLock(ctx); c.others {
				require.NoError(t, err)
				require.NoError(t, o.Unlock(ctx))
			} else {
				require.ErrorIs(t, err, redlock.ErrHeld)
				require.NotContains(t, err.Error(), locks)
				waiting := make(chan error, 1)
				go func() { waiting <- o.Lock(ctx) }() // in the queue between processes
				require.Eventually(t, func() bool { return b.Stats().Waiting > 0 }, busy, time.Millisecond)
				require.NoError(t, m.Extend(ctx))
				require.NoError(t, m.Unlock(ctx))
				require.NoError(t, <-waiting)
				require.NoError(t, o.Unlock(ctx))
				return
			}
			require.NoError(t, m.Extend(ctx))
			require.NoError(t, m.Unlock(ctx))
		})
	}
	m := a.NewMutex("watched", time.Minute, redlock.WithFence())
	require.NoError(t, m.TryLock(ctx))
	for leader, err := range b.Watch(ctx, "watched") {
		require.NoError(t, err)
		require.Equal(t, m.Fence(), leader.Fence)
		break
	}
	holders, err := redlock.OnEach(b, ctx, "watched", redlock.WithFence())
	require.NoError(t, err)
	require.Equal(t, m.Token(), holders[0].Token.Reveal())
	require.Equal(t, m.Fence(), holders[0].Fence)
	redlock.Refused(t, b.NewMutex("watched", time.Minute), "held by")
	for _, name := range []string{"a}:fence", "a}:line:x", "permits"} { // with the prefix it is one of those beside a lock
		require.ErrorContains(t, a.CheckMutex(name, time.Minute), "kept beside a lock")
	}
	requireInSlot(t, clusters)
	const gone = 5 // a replica leaves the cluster, is forgotten by the others, and is still in the list
	for j := range gone {
		redlock.Says(t, clusters.Nodes(0), j, "CLUSTER", "FORGET", clusters.ID(0, gone))
	}
	redlock.Says(t, clusters.Nodes(0), gone, "CLUSTER", "RESET", "HARD")
	cfg.Masters = []string{"cluster://" + clusters.Nodes(0).Addr(gone) + "," + clusters.Nodes(0).Addr(1) + "," + clusters.Nodes(0).Addr(2)}
	require.ErrorIs(t, openConfig(t, cfg).NewMutex("watched", time.Minute).TryLock(ctx), redlock.ErrHeld)
}

// A prefix must have a hash tag if there is a cluster, and must not be a name that is kept beside a lock.
func TestPrefixIsChecked(t *testing.T) {
	t.Parallel()
	for prefix, want := range map[string]string{
		"": `set Config.Prefix to one with a hash tag, such as "{locks}:"`, "app:": `such as "{locks}:app:"`, "{}": "hash tag",
		"{a}:fence": "kept beside a lock", "{a}:permit:": "kept beside a lock", "{a}:line:": "kept beside a lock",
		strings.Repeat("x", 600): "512 are the most",
	} {
		_, err := redlock.New(redlock.Config{Masters: []string{"cluster://a"}, Prefix: prefix})
		require.ErrorContains(t, err, want, prefix)
	}
	masters := redlocktest.Start(t, 1)
	c := openWith(t, masters, redlock.Config{Prefix: "app:"})
	m := c.NewMutex("k", time.Minute, redlock.WithKeys("b"), redlock.WithFence())
	require.NoError(t, m.TryLock(t.Context()))
	keys := redlock.Says(t, masters, 0, "KEYS", "*")
	require.ElementsMatch(t, []any{"app:k", "app:b", "{app:k}:fence", "{app:b}:fence", "{app:}:since"}, keys)
	require.ErrorIs(t, c.NewMutex("b", time.Minute).TryLock(t.Context()), redlock.ErrHeld)
}

// What waits, is told, lists and revokes on a cluster does so through the slot, too: the master's pushes name keys with
// the prefix, and scripts make up names from them. The keys of others are on the same node.
func TestAllAroundALockWorksOnACluster(t *testing.T) {
	t.Parallel()
	for _, shards := range []int{1, 3} {
		t.Run(fmt.Sprint(shards), func(t *testing.T) {
			t.Parallel()
			clusters := redlocktest.StartClusters(t, 1, shards, orderedOnly)
			cfg := limited(t, clusters)
			owner := clusters.Owner(0, lockSlot)
			others := []string{locks, "{locks}", "{locks}x", "x{locks}:y"}
			for i := 0; len(others) < 500; i++ { // SCAN goes on for more than one page
				if key := fmt.Sprint("lock:", i); shards == 1 || conn.HashSlot(key) < 1<<14/3 {
					others = append(others, key)
				}
			}
			for _, key := range others {
				redlock.Says(t, clusters.Nodes(0), owner, "SET", key, "AAAAAAAAAAAAAAAAAAAAAAAAAAA", "PX", "600000")
			}
			cfg.Owner = "a"
			a := openConfig(t, cfg)
			cfg.Owner = "b"
			b := openConfig(t, cfg)
			ctx := t.Context()
			const ttl = 10 * time.Minute // never renewed

			// The list has the locks behind the prefix, and who waits for them.
			for key, opts := range map[string][]redlock.Option{
				"plain": nil, "fenced": {redlock.WithFence()}, "one": {redlock.WithKeys("two")},
				"read": {redlock.WithShared()}, "read fenced": {redlock.WithShared(), redlock.WithFence()}, "gpu": {redlock.WithPermits(2)},
			} {
				take(t, a, key, opts...)
			}
			take(t, b, "gpu", redlock.WithPermits(2))
			waiting, stop := context.WithCancel(ctx)
			ended := make(chan error)
			for key, opts := range map[string][]redlock.Option{"plain": nil, "gpu": {redlock.WithPermits(2)}} {
				go func() { ended <- b.NewMutex(key, ttl, opts...).Lock(waiting) }()
				happens(t, func() bool {
					all := listed(t, a, key)
					l := all[key]
					if len(opts) > 0 {
						l = all[key+"%"]
					}
					return l.Waiting == 1 && l.Waiters[0].Owner == "b"
				}, "the list has who waits for %s", key)
			}
			all := listed(t, a, "")
			require.Equal(t, []string{"fenced", "gpu%", "one", "plain", "read", "read fenced", "two"}, keysOf(all))
			require.NotZero(t, all["fenced"].Fence)
			require.Equal(t, 1, all["read"].Readers)
			require.Equal(t, 2, all["gpu%"].Used)
			require.Equal(t, []string{"gpu%", "one", "plain"}, keysOf(listed(t, a, "[gop]*")), "a pattern is that of what people see")
			require.Equal(t, []string{"plain"}, keysOf(listed(t, a, "plain")))
			require.Empty(t, listed(t, a, "{locks}*"))
			stop()
			for range 2 {
				require.ErrorIs(t, <-ended, context.Canceled)
			}

			// Each kind is told of a loss, and of a revocation, and says so without the prefix.
			for key, c := range map[string]struct {
				opts []redlock.Option
				lose string
			}{
				"told":                {nil, "told"},
				"told fenced":         {[]redlock.Option{redlock.WithFence()}, "told fenced"},
				"told several":        {[]redlock.Option{redlock.WithKeys("told too")}, "told too"},
				"told permit":         {[]redlock.Option{redlock.WithPermits(1)}, "told permit}:permit:1/1"},
				"told several fenced": {[]redlock.Option{redlock.WithKeys("told also"), redlock.WithFence()}, "told also"},
			} {
				m := a.NewMutex(key, ttl, c.opts...)
				before := asked(t, clusters, owner)
				require.NoError(t, m.TryLock(ctx))
				held, stop := m.KeepAlive(ctx)
				happens(t, func() bool { return asked(t, clusters, owner) > before }, "the master is to notify of %s", key)
				redlock.Says(t, clusters.Nodes(0), owner, "DEL", locks+c.lose)
				<-held.Done()
				stop()
				require.ErrorIs(t, context.Cause(held), redlock.ErrNotHeld, key)
				require.NotContains(t, context.Cause(held).Error(), locks)
				require.ErrorIs(t, m.Unlock(ctx), redlock.ErrNotHeld)

				before = asked(t, clusters, owner)
				require.NoError(t, m.TryLock(ctx))
				held, stop = m.KeepAlive(ctx)
				happens(t, func() bool { return asked(t, clusters, owner) > before }, "the master is to notify of %s", key)
				var opts []redlock.Option
				if strings.Contains(c.lose, ":permit:") {
					opts = c.opts
				}
				require.NoError(t, b.Revoke(ctx, key, "why", opts...))
				<-held.Done()
				stop()
				require.ErrorIs(t, context.Cause(held), redlock.ErrRevoked, key)
				require.NotContains(t, context.Cause(held).Error(), locks)
				require.ErrorIs(t, m.Unlock(ctx), redlock.ErrRevoked)
				require.ErrorIs(t, b.Revoke(ctx, key, "why", opts...), redlock.ErrNotHeld)
			}
			r := a.NewMutex("read", ttl, redlock.WithShared())
			require.NoError(t, r.TryLock(ctx))
			require.NoError(t, b.Revoke(ctx, "read", "why", redlock.WithShared()))
			require.ErrorIs(t, r.Extend(ctx), redlock.ErrRevoked)
			require.ErrorIs(t, r.Unlock(ctx), redlock.ErrRevoked)

			// A writer that waits for readers keeps new ones out, and is told when the last has left.
			for _, opts := range [][]redlock.Option{nil, {redlock.WithFence()}} {
				key := fmt.Sprint("shelf", len(opts))
				reader := a.NewMutex(key, ttl, append(opts, redlock.WithShared())...)
				require.NoError(t, reader.TryLock(ctx))
				writer := b.NewMutex(key, ttl, opts...)
				wrote := make(chan error, 1)
				go func() { wrote <- writer.Lock(ctx) }()
				happens(t, func() bool {
					late := a.NewMutex(key, ttl, append(opts, redlock.WithShared())...)
					err := late.TryLock(ctx)
					late.Unlock(ctx)
					return errors.Is(err, redlock.ErrHeld)
				}, "the writer's intent keeps readers out")
				require.NoError(t, reader.Unlock(ctx))
				require.NoError(t, <-wrote)
				next := a.NewMutex(key, ttl, append(opts, redlock.WithShared())...)
				read := make(chan error, 1)
				go func() { read <- next.Lock(ctx) }()
				happens(t, func() bool { return listed(t, b, key)[key].Waiting == 1 }, "the reader waits in line")
				require.NoError(t, writer.Unlock(ctx))
				require.NoError(t, <-read)
				require.NoError(t, next.Unlock(ctx))
			}

			// Watch is told of each change.
			m := a.NewMutex("led", ttl, redlock.WithFence())
			seen, left := make(chan redlock.Leader), make(chan struct{})
			watching, end := context.WithCancel(ctx)
			go func() {
				defer close(left)
				for leader, err := range b.Watch(watching, "led") {
					if err != nil {
						panic(err)
					}
					seen <- redlock.LeaderOf(leader)
				}
			}()
			require.False(t, (<-seen).Held)
			for range 3 {
				require.NoError(t, m.TryLock(ctx))
				require.Equal(t, redlock.Leader{Held: true, Owner: "a", Fence: m.Fence()}, <-seen)
				require.NoError(t, m.Unlock(ctx))
				require.False(t, (<-seen).Held)
			}
			end()
			<-left

			// Who holds it is found with all that there is, and errors name it as people do.
			err := redlock.Refused(t, b.NewMutex("three", ttl, redlock.WithKeys("two")), "held by a on")
			require.NotContains(t, err.Error(), locks)
			holders, err := redlock.OnEach(b, ctx, "gpu", redlock.WithPermits(2))
			require.NoError(t, err)
			require.Len(t, holders, 2)
			holders, err = redlock.OnEach(b, ctx, "read fenced", redlock.WithShared(), redlock.WithFence())
			require.NoError(t, err)
			require.Equal(t, "a", holders[0].Owner())
			require.NotZero(t, holders[0].Fence)
			requireInSlot(t, clusters, others...)
		})
	}
}

// asked returns how often a node was asked for the values of locks that are kept alive. It then notifies of changes.
func asked(t *testing.T, clusters *redlocktest.Clusters, node int) int {
	t.Helper()
	return conntest.Calls(redlock.Says(t, clusters.Nodes(0), node, "INFO", "commandstats"), "exists")
}
