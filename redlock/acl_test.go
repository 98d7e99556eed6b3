package redlock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/rights"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
	"github.com/stretchr/testify/require"
)

// The package comment of conn says which rights a user needs. They are enough for the lock, the mux and
// the connection together, on each server.

// An aclLine is a line of the ACL in the package documentation of conn: rights, and what is
// said of them.
type aclLine struct {
	rights []string
	said   string
}

var (
	aclBegin = regexp.MustCompile(`(?m)^//\tACL SETUSER locker on >password resetkeys ~lock:\* -@all\n`)
	aclRow   = regexp.MustCompile(`^//\t    ((?:[+~]\S+ ?)*) *(.*)$`)
	aclSince = regexp.MustCompile(`(Redis|Valkey) (\d+\.\d+) and later`)
)

// documentedACL reads the lines from the documentation.
func documentedACL(t *testing.T) (lines []aclLine) {
	t.Helper()
	text, err := os.ReadFile("../conn/doc.go")
	require.NoError(t, err)
	at := aclBegin.FindIndex(text)
	require.NotNil(t, at, "the documentation has no ACL SETUSER")
	for row := range strings.Lines(string(text[at[1]:])) {
		m := aclRow.FindStringSubmatch(strings.TrimRight(row, "\n"))
		if m == nil {
			break
		}
		if m[1] != "" {
			lines = append(lines, aclLine{rights: strings.Fields(m[1])})
		}
		require.NotEmpty(t, lines)
		lines[len(lines)-1].said += " " + m[2]
	}
	return lines
}

// isFor reports whether a line is for this server, and whether it names servers at all.
func (l aclLine) isFor(product, version string) (ours, named bool) {
	all := aclSince.FindAllStringSubmatch(l.said, -1)
	for _, m := range all {
		if m[1] == product && !olderThan(version, m[2]) {
			return true, true
		}
	}
	return len(all) == 0, len(all) > 0
}

// olderThan compares versions such as 9.1.2 and 9.0.
func olderThan(version, than string) bool {
	number := func(s string) (n int) {
		for i, part := range strings.SplitN(s+".0", ".", 3) {
			if i < 2 {
				v, _ := strconv.Atoi(part)
				n = 1000*n + v
			}
		}
		return n
	}
	return number(version) < number(than)
}

// product returns the name and the version of the server.
func product(t *testing.T, masters *redlocktest.Masters) (name, version string) {
	t.Helper()
	v := redlock.Says(t, masters, 0, "INFO", "server")
	name = "Redis"
	for line := range strings.Lines(v.(string)) {
		switch key, value, _ := strings.Cut(strings.TrimSpace(line), ":"); key {
		case "redis_version":
			if version == "" {
				version = value
			}
		case "valkey_version":
			name, version = "Valkey", value
		}
	}
	return name, version
}

// called reports whether master i was asked for a command, such as "delex".
func called(t *testing.T, masters *redlocktest.Masters, i int, command string) bool {
	t.Helper()
	return strings.Contains(redlock.Says(t, masters, i, "INFO", "commandstats").(string), "cmdstat_"+command+":")
}

// A user with the documented rights, and no others, does all that a lock does. Nothing is
// missing, and no command is refused. The lines for newer servers may be left out: the scripts
// take the place of the commands.
func TestDocumentedACLIsEnough(t *testing.T) {
	t.Parallel()
	lines := documentedACL(t)
	probe := redlocktest.Start(t, 1)
	name, version := product(t, probe)
	var all, without, foreign []string
	for _, line := range lines {
		switch ours, named := line.isFor(name, version); {
		case !ours:
			foreign = append(foreign, line.rights...)
		case named:
			all = append(all, line.rights...)
		default:
			all, without = append(all, line.rights...), append(without, line.rights...)
		}
	}
	require.Contains(t, all, "+evalsha", "a mandatory line")
	require.Contains(t, all, "+role", "an optional line, and the last for every server")

	t.Run("lines for other servers are refused", func(t *testing.T) {
		require.Len(t, foreign, 3-(len(all)-len(without)), "three lines name servers")
		for _, right := range foreign {
			_, err := probe.Do(0, "ACL", "SETUSER", "x", right)
			require.ErrorContains(t, err, "Unknown command or category name in ACL", right)
		}
	})
	t.Run("all lines", func(t *testing.T) { serveWith(t, all, true) })
	t.Run("without the lines for newer servers", func(t *testing.T) { serveWith(t, without, len(all) == len(without)) })
}

// serveWith has a user with these rights lock, wait, extend, release and ask. Where the rights
// are complete, no master has refused anything.
func serveWith(t *testing.T, rights []string, complete bool) {
	masters := startACL(t, 3, strings.Join(rights, " "))
	name, version := product(t, masters)
	cfg := acl(masters)
	for i, addr := range cfg.Masters {
		cfg.Masters[i] = "redis://" + addr + "/1" // which needs SELECT
	}
	for i := range 3 { // as the master of a group it is asked for its ROLE, too
		at, err := conn.ParseAddress("sentinel://" + newSentinel(t, masters.Addr(i)).at + "/g")
		require.NoError(t, err)
		c, err := conn.Dial(t.Context(), at, conn.Options{Username: cfg.Username, Password: cfg.Password,
			Tracking: true, Probe: true, DialTimeout: busy})
		require.NoError(t, err)
		require.Empty(t, c.Server().Missing)
		require.True(t, c.Server().Tracking)
		require.NoError(t, c.Close())
	}

	holder, other := openUp(t, cfg), openUp(t, cfg) // two processes
	m := holder.NewMutex("lock:k", long)
	require.NoError(t, m.Lock(t.Context()))
	onAll := func() bool {
		all, err := redlock.OnEach(other, t.Context(), "lock:k")
		if err != nil {
			return false
		}
		for _, h := range all {
			if h.Token.Reveal() != m.Token() {
				return false
			}
		}
		return true
	}
	require.Eventually(t, onAll, time.Minute, 5*time.Millisecond)
	require.NoError(t, m.Extend(t.Context()))
	redlock.Confirmed(t, m)
	redlock.Says(t, masters, 1, "EVAL", "redis.call('SELECT', 1) return redis.call('DEL', 'lock:k')", "0")
	require.Eventually(t, func() bool { // an extension sets the key again, where it was told in time that it is gone
		return m.Extend(t.Context()) == nil && onAll()
	}, time.Minute, 5*time.Millisecond)

	next := other.NewMutex("lock:k", long)
	waited := make(chan error, 1)
	go func() { waited <- next.Lock(t.Context()) }()
	promising(t, masters, 1)
	require.NoError(t, m.Unlock(t.Context()))
	require.NoError(t, <-waited)
	require.NoError(t, next.Unlock(t.Context()))
	require.Eventually(t, func() bool { // the last master's answer may come after the decision
		all, err := redlock.OnEach(other, t.Context(), "lock:k")
		return err == nil && all[0].Token.IsZero() && all[1].Token.IsZero() && all[2].Token.IsZero()
	}, time.Minute, 5*time.Millisecond)

	fenced := other.NewMutex("lock:k", long, redlock.WithFence())
	require.NoError(t, fenced.TryLock(t.Context()))
	require.NoError(t, fenced.Extend(t.Context()))
	all, err := redlock.OnEach(other, t.Context(), "lock:k", redlock.WithFence())
	require.NoError(t, err)
	require.Equal(t, fenced.Fence(), max(all[0].Fence, all[1].Fence, all[2].Fence))
	require.NoError(t, fenced.Unlock(t.Context()))

	kept := other.NewMutex("lock:kept", long)
	require.NoError(t, kept.TryLock(t.Context()))
	_, stop := kept.KeepAlive(t.Context())
	for i := range 3 {
		require.Eventually(t, func() bool { return called(t, masters, i, "exists") }, time.Minute, 5*time.Millisecond)
		require.Eventually(t, func() bool { return other.Stats().Masters[i].Notifies }, time.Minute, 5*time.Millisecond)
	}
	stop()
	require.NoError(t, kept.Unlock(t.Context()))

	set := other.NewMutex("lock:k", long, redlock.WithKeys("lock:l"))
	require.NoError(t, set.Lock(t.Context()))
	require.NoError(t, set.Extend(t.Context()))
	require.NoError(t, set.Unlock(t.Context()))

	readers := []*redlock.Mutex{holder.NewMutex("lock:r", long, redlock.WithShared()), other.NewMutex("lock:r", long, redlock.WithShared())}
	for _, m := range readers {
		require.NoError(t, m.Lock(t.Context()))
		require.NoError(t, m.Extend(t.Context()))
	}
	writer := other.NewMutex("lock:r", long)
	wrote := make(chan error, 1)
	go func() { wrote <- writer.Lock(t.Context()) }()
	require.Eventually(t, func() bool { // it leaves its intent
		late := holder.NewMutex("lock:r", long, redlock.WithShared())
		if late.TryLock(t.Context()) == nil {
			late.Unlock(t.Context())
		}
		return called(t, masters, 0, "type")
	}, time.Minute, 10*time.Millisecond)
	for _, m := range readers {
		require.NoError(t, m.Unlock(t.Context()))
	}
	require.NoError(t, <-wrote)
	reader := holder.NewMutex("lock:r", long, redlock.WithShared())
	go func() { waited <- reader.Lock(t.Context()) }()
	require.Eventually(t, func() bool { // it stands in line
		for i := range 3 {
			v, err := masters.Do(i, "EVAL", "redis.call('SELECT', 1) return redis.call('EXISTS', '{lock:r}:line')", "0")
			if err == nil && v == int64(1) {
				return true
			}
		}
		return false
	}, time.Minute, 5*time.Millisecond)
	require.NoError(t, writer.Unlock(t.Context()))
	require.NoError(t, <-waited)
	require.NoError(t, reader.Unlock(t.Context()))

	permit := other.NewMutex("lock:k", long, redlock.WithPermits(1))
	require.NoError(t, permit.TryLock(t.Context()))
	require.NoError(t, permit.Extend(t.Context()))
	after := holder.NewMutex("lock:k", long, redlock.WithPermits(1))
	go func() { waited <- after.Lock(t.Context()) }()
	require.Eventually(t, func() bool { return holder.Stats().Waiting == 1 }, time.Minute, 5*time.Millisecond)
	require.ErrorIs(t, holder.NewMutex("lock:k", long, redlock.WithPermits(1)).TryLock(t.Context()), redlock.ErrHeld)
	require.NoError(t, permit.Unlock(t.Context()))
	require.NoError(t, <-waited)
	require.NoError(t, after.Unlock(t.Context()))

	for key, opts := range map[string][]redlock.Option{"lock:m": nil, "lock:n": {redlock.WithKeys("lock:o")}, "lock:p": {redlock.WithPermits(1)}} {
		left := other.NewMutex(key, long, append(opts, redlock.WithMinHold(2*long))...)
		require.NoError(t, left.TryLock(t.Context()))
		require.NoError(t, left.Unlock(t.Context()))
	}
	for leader, err := range holder.Watch(t.Context(), "lock:m") {
		require.NoError(t, err)
		require.True(t, leader.Held)
		break
	}

	var native []string
	switch {
	case name == "Redis" && !olderThan(version, "8.4"):
		native = []string{"delex", "msetex"}
	case name == "Valkey" && !olderThan(version, "9.0"):
		native = []string{"delifeq"}
		if !olderThan(version, "9.1") {
			native = append(native, "msetex")
		}
	}
	for i := range 3 {
		log := redlock.Says(t, masters, i, "ACL", "LOG")
		if complete {
			require.Empty(t, log, "what master %d has refused", i)
		} else {
			require.NotEmpty(t, log)
			for _, entry := range log.([]any) {
				require.True(t, slices.ContainsFunc(entry.([]any), func(said any) bool {
					command, _ := said.(string)
					return slices.Contains(native, command)
				}), "nothing else is refused: %v", entry)
			}
		}
		for _, command := range native {
			if complete {
				happens(t, func() bool { return called(t, masters, i, command) }, "master %d has used %s", i, command)
			}
		}
		require.True(t, called(t, masters, i, "set"))
		require.False(t, called(t, masters, i, "command"))
	}
}

// Whose user lacks a right is told which, and what it is for, also where the server does not name the command.
func TestTheErrorNamesTheRightThatIsMissing(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	all := append(rights.Rules("lock:*", rights.Lock, rights.Telling, rights.Restarts, rights.Fence, rights.Several, rights.Shared), "~lock:*")
	spared := map[string]string{ // what these steps do without
		"plain": "eval pttl", "minhold": "eval del", "fence": "eval pttl time", "several": "eval pttl", "shared": "eval pttl set del pexpire type",
	}
	if product, version := product(t, masters); !olderThan(version, map[string]string{"Redis": "8.4", "Valkey": "9.0"}[product]) {
		spared["plain"] += " evalsha pexpire" // it extends by a SET
		spared["minhold"] += " pexpire"
	}
	n := 0
	lacking := func(t *testing.T, rule string) *redlock.Client {
		n++
		user := "user" + strconv.Itoa(n)
		redlock.Says(t, masters, 0, append([]string{"ACL", "SETUSER", user, "on", ">password"}, all...)...)
		redlock.Says(t, masters, 0, "ACL", "SETUSER", user, "-"+rule)
		cfg := acl(masters)
		cfg.Username = user
		return openConfig(t, cfg)
	}
	for name, kind := range map[string]struct {
		needs []rights.Need
		opts  []redlock.Option
	}{
		"plain":   {nil, nil},
		"minhold": {nil, []redlock.Option{redlock.WithMinHold(long)}},
		"fence":   {[]rights.Need{rights.Fence}, []redlock.Option{redlock.WithFence()}},
		"several": {[]rights.Need{rights.Several}, []redlock.Option{redlock.WithKeys("lock:several:2")}},
		"shared":  {[]rights.Need{rights.Shared}, []redlock.Option{redlock.WithShared()}},
	} {
		for _, need := range append(kind.needs, rights.Lock) {
			for _, command := range need.Commands {
				if command == "script|load" || slices.Contains(strings.Fields(spared[name]), command) { // the first is told by Open
					continue
				}
				c := lacking(t, command)
				m := c.NewMutex("lock:"+name, long, kind.opts...)
				errs := []error{m.TryLock(t.Context()), m.Extend(t.Context()), m.Unlock(t.Context())}
				require.ErrorContains(t, errors.Join(errs...), "(the user lacks +"+command+", which is for ", name)
				masters.Flush(0)
			}
		}
	}
}

// Who shares the masters, with the documented rights on other keys, can neither read nor change what is kept of a lock. It
// hears of the lock's name.
func TestAUserOfOtherKeysCannotTouchALock(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	name, version := product(t, masters)
	rules := []string{"ACL", "SETUSER", "other", "on", ">password", "resetkeys", "~other:*", "-@all"}
	var commands []string
	for _, line := range documentedACL(t) {
		ours, _ := line.isFor(name, version)
		for _, right := range line.rights {
			if !ours {
				continue
			}
			rules = append(rules, strings.ReplaceAll(right, "lock:*", "other:*"))
			if command, ok := strings.CutPrefix(right, "+"); ok {
				commands = append(commands, command)
			}
		}
	}
	redlock.Says(t, masters, 0, rules...)
	said := func(args ...string) string {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", masters.Addr(0))
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.SetDeadline(time.Now().Add(busy)))
		_, err = c.Write(resp.AppendCommand(resp.AppendCommand(nil, "AUTH", "other", "password"), args...))
		require.NoError(t, err)
		r := bufio.NewReader(c)
		for _, want := range []string{"+OK\r\n", ""} {
			line, err := r.ReadString('\n')
			require.NoError(t, err)
			if want == "" {
				return line
			}
			require.Equal(t, want, line)
		}
		return ""
	}

	c := openConfig(t, redlock.Config{Masters: masters.Addrs()})
	reaches(t, c, 0, "up")
	for key, opts := range map[string][]redlock.Option{
		"lock:plain": nil, "lock:fenced": {redlock.WithFence()}, "lock:one": {redlock.WithKeys("lock:two"), redlock.WithFence()},
		"lock:shared": {redlock.WithShared()}, "lock:permits": {redlock.WithPermits(3)},
	} {
		take(t, c, key, opts...)
	}
	waiting := openConfig(t, redlock.Config{Masters: masters.Addrs()})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go waiting.NewMutex("lock:plain", long).Lock(ctx)
	redlock.Says(t, masters, 0, "SET", "{lock:shared}:writer", "1")
	beside := []string{"{lock:plain}:line", "{lock:permits}:permits", "{lock:fenced}:fence"}
	redlock.SoonSays(t, masters, 0, int64(len(beside)), append([]string{"EXISTS"}, beside...)...)
	all := redlock.Says(t, masters, 0, "KEYS", "*")
	keys := slices.DeleteFunc(strings.Fields(fmt.Sprint(all)), func(key string) bool { return strings.Contains(key, "{}:since") })
	require.GreaterOrEqual(t, len(keys), 10)
	for _, key := range keys {
		key = strings.Trim(key, "[]")
		for _, command := range commands {
			args := []string{strings.ToUpper(command), key}
			switch command {
			case "eval":
				args = []string{"EVAL", "return redis.call('DEL', '" + key + "')", "0"}
			case "info", "role", "time", "select", "evalsha", "script|load", "client|tracking", "client|caching", "cluster|slots", "cluster|info":
				continue // of no key
			case "zadd", "zrange", "zremrangebyscore":
				args = append(args, "0", "1")
			case "set", "pexpire", "pexpireat", "zrem", "zscore", "zrank", "delifeq":
				args = append(args, "1")
			case "delex":
				args = append(args, "IFEQ", "1")
			case "msetex":
				args = []string{"MSETEX", "1", key, "1"}
			}
			require.Regexp(t, "^-(NOPERM|ERR The user|ERR ACL failure)|^-ERR .*can't access at least one of the keys", said(args...), args)
		}
	}
	require.Equal(t, "$-1\r\n", said("GET", "other:k"))
	require.Equal(t, ":0\r\n", said("DEL", "{other:k}:line"))

	listens, err := new(net.Dialer).DialContext(t.Context(), "tcp", masters.Addr(0))
	require.NoError(t, err)
	defer listens.Close()
	require.NoError(t, listens.SetDeadline(time.Now().Add(busy)))
	_, err = listens.Write(resp.AppendCommand(resp.AppendCommand(nil, "HELLO", "3", "AUTH", "other", "password"), "CLIENT", "TRACKING", "ON", "BCAST"))
	require.NoError(t, err)
	heard := bufio.NewReader(listens)
	for line := ""; line != "+OK\r\n"; line, err = heard.ReadString('\n') {
		require.NoError(t, err)
	}
	take(t, c, "lock:secret")
	for line := ""; line != "lock:secret\r\n"; line, err = heard.ReadString('\n') {
		require.NoError(t, err)
	}
}
