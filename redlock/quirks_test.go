package redlock_test

import (
	"context"
	"crypto/sha1"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
	"github.com/stretchr/testify/require"
	wire "github.com/tidwall/resp"
)

// Masters that are not quite a Redis: hosters rename what they do not want to be called, and other servers run scripts in
// another way.

// lacking starts masters that do not know these commands.
func lacking(t *testing.T, n int, commands ...string) *redlocktest.Masters {
	t.Helper()
	var args []string
	for _, command := range commands {
		args = append(args, "--rename-command", command, "renamed-"+strings.ToLower(command))
	}
	return redlocktest.Start(t, n, redlocktest.WithArgs(args...))
}

// Hosters rename what they do not want to be called. A lock needs few commands.
func TestLockNeedsNoOptionalCommand(t *testing.T) {
	t.Parallel()
	for _, commands := range [][]string{
		{"CONFIG"}, {"CLIENT"}, {"INFO"}, {"HELLO"}, {"COMMAND"},
		{"HELLO", "CLIENT", "CONFIG", "INFO", "ROLE", "COMMAND", "PING"},
		// What hosters say that they forbid, as of November 2026. Amazon ElastiCache:
		// https://docs.aws.amazon.com/AmazonElastiCache/latest/dg/ClientConfig.RestrictedCommands.html
		{"BGREWRITEAOF", "BGSAVE", "CONFIG", "DEBUG", "MIGRATE", "REPLICAOF", "SAVE", "SLAVEOF", "SHUTDOWN", "SYNC"},
		// Google Memorystore for Redis, which so has no tracking:
		// https://cloud.google.com/memorystore/docs/redis/product-constraints
		{"ACL", "BGREWRITEAOF", "BGSAVE", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DEBUG", "LASTSAVE", "MIGRATE", "MONITOR",
			"OBJECT", "SHUTDOWN", "REPLICAOF", "SAVE"},
	} {
		t.Run(strings.Join(commands, ","), func(t *testing.T) {
			t.Parallel()
			masters := lacking(t, 3, commands...)
			cfg := redlock.Config{Masters: masters.Addrs(), RoundTimeout: busy}
			holder, other := openUp(t, cfg), openUp(t, cfg)
			m, next := holder.NewMutex("k", long), other.NewMutex("k", long)
			on := func(text string) func() bool { // every master
				token := redlock.NewSecret(text)
				return func() bool {
					all, err := redlock.OnEach(other, t.Context(), "k")
					return err == nil && all[0].Token == token && all[1].Token == token && all[2].Token == token
				}
			}
			require.NoError(t, m.Lock(t.Context()))
			require.Eventually(t, on(m.Token()), time.Minute, 5*time.Millisecond)
			redlock.Confirmed(t, m)
			masters.Flush(1)
			require.Eventually(t, func() bool { // an extension sets the key again, where it was told in time that it is gone
				return m.Extend(t.Context()) == nil && on(m.Token())()
			}, time.Minute, 5*time.Millisecond)
			waited := make(chan error, 1)
			go func() { waited <- next.Lock(t.Context()) }()
			require.Eventually(t, func() bool { return other.Stats().Waiting == 1 }, time.Minute, 5*time.Millisecond)
			require.NoError(t, m.Unlock(t.Context()))
			require.NoError(t, <-waited)
			require.NoError(t, next.Unlock(t.Context()))
			require.Eventually(t, on(""), time.Minute, 5*time.Millisecond)
		})
	}
}

// Native commands, where the server has them, do not replace all scripts.
func TestMastersWithoutScriptsAreRefused(t *testing.T) {
	t.Parallel()
	masters := lacking(t, 3, "SCRIPT")
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("it tries for ever"))
	defer cancel()
	_, err := redlock.Open(ctx, redlock.Config{Masters: masters.Addrs(), DialTimeout: busy})
	require.ErrorIs(t, err, conn.ErrRefused)
	require.ErrorContains(t, err, "SCRIPT LOAD: ERR unknown command")
	require.ErrorContains(t, err, "use a master that can run Lua scripts")
	require.NoError(t, ctx.Err())
}

// Dragonfly runs scripts in another way than Redis and Valkey do, as of August 2026:
//
//   - A script must touch only what is among its KEYS, unless it begins with a comment that asks for more:
//     https://www.dragonflydb.io/docs/managing-dragonfly/scripting
//   - Its Lua is 5.4, and a number that a script returns is not cut to an integer for a client with RESP3: EvalSerializer
//     in https://github.com/dragonflydb/dragonfly/blob/main/src/server/main_service.cc
//
// So each master here has a proxy before it, which puts some Lua around each script. The Lua looks at the keys of each
// command, and at what the script returns.

// allowUndeclared is the comment. It must be the first line.
const allowUndeclared = "--!df flags=allow-undeclared-keys\n"

// quirksSeen is a list, on each master, of what Dragonfly would do in another way. What a pcall hides is there, too.
const quirksSeen = "quirks"

const onlyDeclared = `local redis = (function(real)
local declared = {}
for _, key in ipairs(KEYS) do declared[key] = true end
local function refusal(name, ...)
  local args, last = {...}, 1
  if name == 'MGET' or name == 'EXISTS' or name == 'DEL' then last = #args end
  if name == 'TIME' then last = 0 end
  for i = 1, last do
    if not declared[args[i]] then
      real.call('RPUSH', '` + quirksSeen + `', name .. ' ' .. args[i])
      return 'script tried accessing undeclared key, key: ' .. args[i]
    end
  end
end
return setmetatable({
  call = function(...)
    local why = refusal(...)
    if why then error(why) end
    return real.call(...)
  end,
  pcall = function(...)
    local why = refusal(...)
    if why then return {err = 'ERR ' .. why} end
    return real.pcall(...)
  end,
}, {__index = real})
end)(redis)
`

// onlyIntegers is the Lua around the text of a script.
var onlyIntegers = [2]string{`local returned = (function()
`, `
end)()
local function look(v)
  if type(v) == 'table' then
    for _, each in ipairs(v) do look(each) end
  elseif type(v) == 'number' and v ~= math.floor(v) then
    server.call('RPUSH', '` + quirksSeen + `', 'returned ' .. v)
  end
end
look(returned)
return returned`}

// dragonflies starts masters that run scripts as Dragonfly does. If always is true, they do not know the comment.
func dragonflies(t *testing.T, n int, always bool) (masters *redlocktest.Masters, addrs []string) {
	t.Helper()
	masters = redlocktest.Start(t, n)
	guarded := func(text string) string {
		before := onlyDeclared
		if strings.HasPrefix(text, allowUndeclared) && !always {
			before = ""
		}
		return "local server = redis\n" + before + onlyIntegers[0] + text + onlyIntegers[1]
	}
	var hashes sync.Map // by the hash that a client knows
	rewrite := func(args []string) []string {
		switch name := strings.ToUpper(args[0]); {
		case name == "SCRIPT" && len(args) == 3 && strings.EqualFold(args[1], "LOAD"):
			text := guarded(args[2])
			hashes.Store(fmt.Sprintf("%x", sha1.Sum([]byte(args[2]))), fmt.Sprintf("%x", sha1.Sum([]byte(text))))
			args[2] = text
		case name == "EVAL":
			args[1] = guarded(args[1])
		case name == "EVALSHA":
			if hash, ok := hashes.Load(args[1]); ok {
				args[1] = hash.(string)
			}
		}
		return args
	}
	for _, addr := range masters.Addrs() {
		addrs = append(addrs, rewriting(t, addr, rewrite))
	}
	return masters, addrs
}

// rewriting starts a proxy that changes the commands to a master.
func rewriting(t *testing.T, master string, rewrite func(args []string) []string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", master)
			if err != nil {
				c.Close()
				continue
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := to.Read(buf)
					if err != nil {
						return
					}
					if _, err := c.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
			go func() {
				defer to.Close()
				for commands := wire.NewReader(c); ; {
					v, _, err := commands.ReadValue()
					if err != nil || len(v.Array()) == 0 {
						return
					}
					var args []string
					for _, arg := range v.Array() {
						args = append(args, arg.String())
					}
					if _, err := to.Write(resp.AppendCommand(nil, rewrite(args)...)); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// Every kind of lock, its waiters and who looks at them can do with that.
func TestScriptsRunOnDragonfly(t *testing.T) {
	t.Parallel()
	masters, addrs := dragonflies(t, 3, false)
	clients := make([]*redlock.Client, 3)
	for i := range clients {
		clients[i] = openConfig(t, redlock.Config{Masters: addrs, RoundTimeout: busy, StallTime: busy})
		for j := range 3 {
			reaches(t, clients[i], j, "up")
		}
	}
	holder, other, third := clients[0], clients[1], clients[2]
	waiters := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return queued(masters) == n || len(quirks(masters)) > 0 }, time.Minute, 5*time.Millisecond)
		require.Empty(t, quirks(masters))
	}
	for name, opts := range map[string][]redlock.Option{
		"plain":          nil,
		"several":        {redlock.WithKeys("and", "more")},
		"shared":         {redlock.WithShared()},
		"permits":        {redlock.WithPermits(1)},
		"fence":          {redlock.WithFence()},
		"several fenced": {redlock.WithFence(), redlock.WithKeys("and", "more")},
		"shared fenced":  {redlock.WithFence(), redlock.WithShared()},
	} {
		m := holder.NewMutex(name, long, opts...)
		require.NoError(t, m.TryLock(t.Context()), name)
		redlock.Confirmed(t, m)
		settled(t, holder)
		deleteLocks(t, masters, 1)
		require.NoError(t, m.Extend(t.Context()), name)
		_, err := other.Holders(t.Context(), name, opts...)
		require.NoError(t, err, name)

		waits := opts
		if strings.HasPrefix(name, "shared") {
			waits = nil // readers wait for no reader
		}
		next := other.NewMutex(name, long, waits...)
		waited, gone := make(chan error, 1), make(chan error, 1)
		go func() { waited <- next.Lock(t.Context()) }()
		waiters(1)
		ctx, leave := context.WithCancel(t.Context())
		go func() { gone <- third.NewMutex(name, long, waits...).Lock(ctx) }()
		waiters(2)
		for _, err := range other.Locks(t.Context(), "*") {
			require.NoError(t, err, name)
		}
		leave()
		require.ErrorIs(t, <-gone, context.Canceled, name)
		require.NoError(t, m.Unlock(t.Context()), name)
		require.NoError(t, <-waited, name)
		require.NoError(t, other.Revoke(t.Context(), name, "to see it", append(waits, redlock.WithToken(next.Token()))...), name)
		require.Error(t, next.Extend(t.Context()), name)
		next.Release()
		settled(t, other)
	}
	require.Empty(t, quirks(masters))
}

// queued returns how many wait in the masters' queues. One who waits for several keys is in several.
func queued(masters *redlocktest.Masters) int {
	ids := map[string]bool{}
	for i := range masters.Addrs() {
		keys, _ := masters.Do(i, "KEYS", "*:alive")
		all, _ := keys.([]any)
		for _, key := range all {
			id := strings.TrimSuffix(key.(string), ":alive")
			ids[id[strings.LastIndexByte(id, ':'):]] = true
		}
	}
	return len(ids)
}

// quirks returns what was seen of them.
func quirks(masters *redlocktest.Masters) (all []any) {
	for i := range masters.Addrs() {
		seen, _ := masters.Do(i, "LRANGE", quirksSeen, "0", "-1")
		some, _ := seen.([]any)
		all = append(all, some...)
	}
	return all
}

// A master that refuses undeclared keys whatever a script asks for has no queue. Waiters are notified all the same.
func TestWaitersNeedNoUndeclaredKeys(t *testing.T) {
	t.Parallel()
	_, addrs := dragonflies(t, 3, true)
	var clients []*redlock.Client
	for range 3 {
		c := openConfig(t, redlock.Config{Masters: addrs, RoundTimeout: busy, StallTime: busy})
		for j := range 3 {
			reaches(t, c, j, "up")
		}
		clients = append(clients, c)
	}
	m := clients[0].NewMutex("k", long)
	require.NoError(t, m.Lock(t.Context()))
	waited := make(chan error, 2)
	for _, c := range clients[1:] {
		go func() {
			next := c.NewMutex("k", long)
			err := next.Lock(t.Context())
			next.Release()
			waited <- err
		}()
		require.Eventually(t, func() bool { return c.Stats().Waiting == 1 }, time.Minute, 5*time.Millisecond)
	}
	require.NoError(t, m.Unlock(t.Context()))
	require.NoError(t, <-waited)
	require.NoError(t, <-waited)
}

// A proxy or a serverless endpoint hides its nodes: it says that it is a cluster, and is one place with all slots. Some
// answer CLUSTER SLOTS and CLUSTER INFO so, and some know no CLUSTER at all.
func TestOneEndpointIsAWholeCluster(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string]map[string]string{
		"it names itself": {
			"SLOTS": "{{0, 16383, {'127.0.0.1', %s, string.rep('0', 40)}}}",
			"INFO":  "'cluster_state:ok\\r\\ncluster_my_epoch:0\\r\\n'",
		},
		"it knows no CLUSTER": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clusters := redlocktest.StartClusters(t, 1, 1)
			ports := make(chan string, 1)
			port := sync.OnceValue(func() string { return <-ports })
			addr := rewriting(t, clusters.Nodes(0).Addr(0), func(args []string) []string {
				if !strings.EqualFold(args[0], "CLUSTER") {
					return args
				}
				if answer, ok := answers[strings.ToUpper(args[1])]; ok {
					return []string{"EVAL", "return " + strings.ReplaceAll(answer, "%s", port()), "0"}
				}
				return []string{"no-such-command"}
			})
			_, p, err := net.SplitHostPort(addr)
			require.NoError(t, err)
			ports <- p
			cfg := redlock.Config{Masters: []string{"cluster://" + addr}, Prefix: locks, RoundTimeout: busy, DialTimeout: busy, StallTime: busy}
			a, b := openConfig(t, cfg), openConfig(t, cfg)
			endpointDoesItAll(t, a, b)
			settled(t, a)
			settled(t, b)
			requireInSlot(t, clusters)
			cfg.Masters = []string{"redis://" + addr}
			_, err = redlock.Open(t.Context(), cfg)
			require.ErrorContains(t, err, "write cluster://")
		})
	}
}

// endpointDoesItAll takes locks of each kind with two clients, and does to them all that can be done.
func endpointDoesItAll(t *testing.T, a, b *redlock.Client) {
	t.Helper()
	ctx := t.Context()
	for name, opts := range map[string][]redlock.Option{
		"plain":         nil,
		"several":       {redlock.WithKeys("and", "more")},
		"shared":        {redlock.WithShared()},
		"permit":        {redlock.WithPermits(1)},
		"fenced":        {redlock.WithFence()},
		"shared fenced": {redlock.WithFence(), redlock.WithShared()},
	} {
		m := a.NewMutex(name, long, opts...)
		require.NoError(t, m.TryLock(ctx), name)
		require.NoError(t, m.Extend(ctx), name)
		if strings.HasPrefix(name, "shared") {
			reader := b.NewMutex(name, long, opts...)
			require.NoError(t, reader.TryLock(ctx), name)
			require.NoError(t, reader.Unlock(ctx), name)
			opts = opts[:len(opts)-1] // who writes waits
		}
		next := b.NewMutex(name, long, opts...)
		require.ErrorIs(t, next.TryLock(ctx), redlock.ErrHeld, name)
		waited := make(chan error, 1)
		go func() { waited <- next.Lock(ctx) }()
		require.Eventually(t, func() bool { // it stands in the line
			for c, err := range a.Locks(ctx, name) {
				if err == nil && c.Key == name && c.Waiting == 1 {
					return true
				}
			}
			return false
		}, time.Minute, 5*time.Millisecond, name)
		require.NoError(t, m.Unlock(ctx), name)
		require.NoError(t, <-waited, name)
		if next.Fence() > 0 {
			require.Greater(t, next.Fence(), m.Fence(), name)
		}
		held, stop := next.KeepAlive(ctx)
		require.NoError(t, a.Revoke(ctx, name, "to see it", append(opts, redlock.WithToken(next.Token()))...), name)
		<-held.Done()
		require.ErrorIs(t, context.Cause(held), redlock.ErrRevoked, name)
		stop()
		next.Release()
	}
	m := a.NewMutex("watched", long)
	require.NoError(t, m.TryLock(ctx))
	for leader, err := range b.Watch(ctx, "watched") {
		require.NoError(t, err)
		require.NotZero(t, leader)
		break
	}
	require.NoError(t, m.Unlock(ctx))
}
