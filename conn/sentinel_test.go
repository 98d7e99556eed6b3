package conn_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
)

// sentinelAt is a sentinel that names a master, or none if it is empty.
func sentinelAt(t *testing.T, master string) *scripted {
	answer := "*-1\r\n"
	if host, port, err := net.SplitHostPort(master); err == nil {
		answer = fmt.Sprintf("*2\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(host), host, len(port), port)
	}
	return script(t, map[string]string{"SENTINEL": answer, "AUTH": "+OK\r\n"})
}

// serverAs is a server in RESP2 with that role.
func serverAs(t *testing.T, role string) *scripted {
	info := "redis_version:5.0.7\r\nrun_id:" + role + "\r\n"
	return script(t, map[string]string{
		"HELLO": "-ERR unknown command\r\n",
		"INFO":  fmt.Sprintf("$%d\r\n%s\r\n", len(info), info),
		"ROLE":  fmt.Sprintf("*1\r\n$%d\r\n%s\r\n", len(role), role),
	})
}

func group(t *testing.T, sentinels ...string) conn.Address {
	a, err := conn.ParseAddress("sentinel://user:secret@" + strings.Join(sentinels, ",") + "/g")
	require.NoError(t, err)
	return a
}

func TestGroupsMasterIsFoundThoughSentinelsDisagree(t *testing.T) {
	t.Parallel()
	master, replica := serverAs(t, "master"), serverAs(t, "slave")
	new, old, unknowing := electedAt(t, master.addr, 8), electedAt(t, replica.addr, 7), sentinelAt(t, "")
	broken := script(t, map[string]string{"SENTINEL": "close", "AUTH": "+OK\r\n"})
	cluster := script(t, map[string]string{"HELLO": strings.ReplaceAll(hello, "$10\r\nstandalone", "$7\r\ncluster")})
	trusting := conn.Options{DialTimeout: patient, TrustAnySentinel: true}
	for name, c := range map[string]struct {
		of  []*scripted
		opt conn.Options
	}{
		"one is behind":            {[]*scripted{old, new, new}, conn.Options{DialTimeout: patient}},
		"one knows nothing":        {[]*scripted{new, new, unknowing}, conn.Options{DialTimeout: patient}},
		"one fails":                {[]*scripted{broken, new, new}, conn.Options{DialTimeout: patient}},
		"any: one is behind":       {[]*scripted{new, old}, trusting},
		"any: most are behind":     {[]*scripted{old, new, unknowing}, trusting},
		"any: others know nothing": {[]*scripted{unknowing, new, unknowing}, trusting},
		"any: others fail":         {[]*scripted{broken, new, broken}, trusting},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := conn.Dial(t.Context(), groupOf(t, c.of), c.opt)
			require.NoError(t, err)
			defer c.Close()
			require.Equal(t, master.addr, c.Server().Endpoint)
			require.Equal(t, "master", c.Server().Role)
		})
	}
	t.Run("preferred", func(t *testing.T) {
		for _, opt := range []conn.Options{{DialTimeout: patient}, trusting} {
			c, err := conn.Dial(t.Context(), groupOf(t, []*scripted{old, unknowing}).WithHint(master.addr), opt)
			require.NoError(t, err)
			c.Close()
		}
	})
	for name, c := range map[string]struct {
		of      *scripted
		want    string
		refused bool
	}{
		"unknown to all": {unknowing, "no sentinel knows a group named g", true},
		"only a replica": {old, "it is the slave of group g, and not its master", false},
		"all fail":       {broken, "sentinel " + broken.addr, false},
		"a cluster's":    {sentinelAt(t, cluster.addr), "a node of a Redis Cluster", true},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := conn.Dial(t.Context(), group(t, c.of.addr), conn.Options{DialTimeout: patient})
			require.ErrorContains(t, err, c.want)
			require.Equal(t, c.refused, errors.Is(err, conn.ErrRefused))
			require.NotContains(t, err.Error(), "secret")
		})
	}
}

// Most sentinels name a master that cannot be reached just now. The master that it has replaced
// still says that it is the master, and one sentinel believes it.
func TestMasterThatMostSentinelsHaveReplacedIsNotTried(t *testing.T) {
	t.Parallel()
	replaced := serverAs(t, "master")
	behind, gone := sentinelAt(t, replaced.addr), sentinelAt(t, "127.0.0.1:1")
	for range 20 {
		_, err := conn.Dial(t.Context(), groupOf(t, []*scripted{behind, gone, gone}), conn.Options{DialTimeout: patient})
		require.Error(t, err)
		require.NotErrorIs(t, err, conn.ErrRefused)
	}
	require.Empty(t, replaced.seen())
}

// All sentinels name another place than the known one, which is cut off from them and still says
// that it is the master. It is not tried, though the other place is of no use: the server there
// was restarted as a replica, or its address is malformed.
func TestReplacedMasterIsNotTriedThoughItsSuccessorIsOfNoUse(t *testing.T) {
	t.Parallel()
	odd := script(t, map[string]string{"SENTINEL": "*2\r\n$10\r\nredis/pod1\r\n$4\r\n6379\r\n", "AUTH": "+OK\r\n"})
	for name, says := range map[string]*scripted{"a replica": sentinelAt(t, serverAs(t, "slave").addr), "no address": odd} {
		t.Run(name, func(t *testing.T) {
			replaced := serverAs(t, "master")
			_, err := conn.Dial(t.Context(), groupOf(t, []*scripted{says, says, says}).WithHint(replaced.addr), conn.Options{DialTimeout: patient})
			require.Error(t, err)
			require.Empty(t, replaced.seen())
		})
	}
}

// Some sentinels give the address of the new master and some its name, as happens while they are
// switched to announcing names one by one. They name the same place.
func TestFailoverIsFollowedThoughSentinelsSpellItDifferently(t *testing.T) {
	t.Parallel()
	master := serverAs(t, "master")
	byIP, byName := electedAt(t, master.addr, 8), electedAt(t, named(master.addr), 8)
	away, behind := script(t, map[string]string{"SENTINEL": "close", "AUTH": "+OK\r\n"}), electedAt(t, "127.0.0.1:1", 7)
	for name, of := range map[string][]*scripted{
		"one is away":   {byIP, byName, away},
		"one is behind": {byIP, byIP, byName, byName, behind},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := conn.Dial(t.Context(), groupOf(t, of).WithHint("127.0.0.1:1"), conn.Options{DialTimeout: patient})
			require.NoError(t, err)
			c.Close()
		})
	}
	t.Run("the known spelling stays", func(t *testing.T) {
		for _, known := range []string{master.addr, named(master.addr)} {
			c, err := conn.Dial(t.Context(), groupOf(t, []*scripted{byIP, byName, away}).WithHint(known), conn.Options{DialTimeout: patient})
			require.NoError(t, err)
			require.Equal(t, known, c.Server().Endpoint)
			c.Close()
		}
	})
	t.Run("though all use another", func(t *testing.T) {
		c, err := conn.Dial(t.Context(), groupOf(t, []*scripted{byName, byName, byName}).WithHint(master.addr), conn.Options{DialTimeout: patient})
		require.NoError(t, err)
		require.Equal(t, master.addr, c.Server().Endpoint)
		c.Close()
	})
	t.Run("by who follows", func(t *testing.T) {
		all := []*publisher{newPublisher(t, master.addr), newPublisher(t, named(master.addr)), newPublisher(t, "127.0.0.1:1")}
		told := following(t, group(t, all[0].at, all[1].at, all[2].at), conn.Options{DialTimeout: patient})
		require.Contains(t, []string{master.addr, named(master.addr)}, soon(t, told))
		all[0].publish(t, "127.0.0.2:2")
		all[1].publish(t, "127.0.0.2:2")
		for to := soon(t, told); to != "127.0.0.2:2"; to = soon(t, told) {
			require.Contains(t, []string{master.addr, named(master.addr)}, to)
		}
	})
}

// named is a place on this machine by its name.
func named(addr string) string {
	return strings.Replace(addr, "127.0.0.1", "localhost", 1)
}

// electedAt is a sentinel that names a master, by an election with that number.
func electedAt(t *testing.T, master string, epoch int64) *scripted {
	s := sentinelAt(t, master)
	text := fmt.Sprint(epoch)
	s.answer("SENTINEL MASTER", fmt.Sprintf("*2\r\n$12\r\nconfig-epoch\r\n$%d\r\n%s\r\n", len(text), text))
	return s
}

// One sentinel of three names another server, with the latest election of all. It moves no
// client: no new one, and none that knows the master, even if the other sentinels are away. So its
// server is not even connected.
func TestOneSentinelAloneMovesNoMaster(t *testing.T) {
	t.Parallel()
	master, other := serverAs(t, "master"), serverAs(t, "master")
	honest, liar, unknowing := electedAt(t, master.addr, 7), electedAt(t, other.addr, 1<<40), sentinelAt(t, "")
	away := script(t, map[string]string{"SENTINEL": "close", "AUTH": "+OK\r\n"})
	for name, c := range map[string]struct {
		of    []*scripted
		known string
		want  string // empty if nothing can be connected
	}{
		"to a newcomer":                    {[]*scripted{liar, honest, honest}, "", master.addr},
		"to one that knows the master":     {[]*scripted{liar, honest, honest}, master.addr, master.addr},
		"one of the others is away":        {[]*scripted{liar, honest, away}, master.addr, master.addr},
		"both of the others are away":      {[]*scripted{liar, away, away}, master.addr, master.addr},
		"the master is away, too":          {[]*scripted{liar, honest, away}, "127.0.0.1:1", ""},
		"the master is away, and all else": {[]*scripted{liar, away, away}, "127.0.0.1:1", ""},
		"two name one each":                {[]*scripted{liar, electedAt(t, "127.0.0.1:9", 1<<40), away}, "127.0.0.1:1", ""},
		"to a newcomer, one is away":       {[]*scripted{liar, honest, away}, "", ""},
		"to a newcomer, both are away":     {[]*scripted{liar, away, away}, "", ""},
		"to a newcomer, one knows nothing": {[]*scripted{liar, honest, unknowing}, "", ""},
		"to a newcomer, both know nothing": {[]*scripted{liar, unknowing, unknowing}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			for range 5 { // in whichever order they answer
				c0, err := conn.Dial(t.Context(), groupOf(t, c.of).WithHint(c.known), conn.Options{DialTimeout: patient})
				if c.want == "" {
					require.ErrorContains(t, err, "2 of 3 sentinels must name the same master of group g")
					require.NotErrorIs(t, err, conn.ErrRefused, "the others may be back at any time")
					continue
				}
				require.NoError(t, err)
				require.Equal(t, c.want, c0.Server().Endpoint)
				c0.Close()
			}
			require.Empty(t, other.seen())
		})
	}
}

// The server's own word that it is no master ends its time. But who is the master then is not for
// one sentinel to say.
func TestMasterThatSaysItIsNoneIsLeftForWhatMostSentinelsName(t *testing.T) {
	t.Parallel()
	replica, master := serverAs(t, "slave"), serverAs(t, "master")
	away := script(t, map[string]string{"SENTINEL": "close", "AUTH": "+OK\r\n"})
	heard := electedAt(t, master.addr, 8)
	for name, of := range map[string][]*scripted{
		"the others are away":   {heard, away, away},
		"another has not heard": {heard, electedAt(t, replica.addr, 7), away},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := conn.Dial(t.Context(), groupOf(t, of).WithHint(replica.addr), conn.Options{DialTimeout: patient})
			require.ErrorIs(t, err, conn.ErrNotMaster)
			require.ErrorContains(t, err, "2 of 3 sentinels must name the same master")
		})
	}
	require.Empty(t, master.seen())
	c, err := conn.Dial(t.Context(), groupOf(t, []*scripted{heard, heard, away}).WithHint(replica.addr), conn.Options{DialTimeout: patient})
	require.NoError(t, err)
	require.Equal(t, master.addr, c.Server().Endpoint)
	c.Close()
	_, err = conn.Dial(t.Context(), groupOf(t, []*scripted{electedAt(t, replica.addr, 1)}), conn.Options{DialTimeout: patient})
	require.ErrorIs(t, err, conn.ErrNotMaster)
	require.NotErrorIs(t, err, conn.ErrRefused)
	_, err = conn.Dial(t.Context(), parse(t, replica.addr), conn.Options{DialTimeout: patient})
	require.ErrorIs(t, err, conn.ErrNotMaster)
	require.ErrorIs(t, err, conn.ErrRefused)
}

// Who has to know since when the server is the master believes a majority only, and of that the
// one that knows it for the shortest time.
func TestMasterForIsWhatMostSentinelsReport(t *testing.T) {
	t.Parallel()
	master := serverAs(t, "master")
	away := script(t, map[string]string{"SENTINEL": "close"})
	since := func(ms string) *scripted {
		s := sentinelAt(t, master.addr)
		s.answer("SENTINEL MASTER", fmt.Sprintf("*2\r\n$18\r\nrole-reported-time\r\n$%d\r\n%s\r\n", len(ms), ms))
		return s
	}
	long, short := since("9000000"), since("7000")
	for name, c := range map[string]struct {
		of   []*scripted
		opt  conn.Options
		hint string
		want time.Duration
	}{
		"the least":          {[]*scripted{long, short, away}, conn.Options{}, "", 7 * time.Second},
		"of no more than 0":  {[]*scripted{long, since("-9000000000000"), away}, conn.Options{}, "", 0},
		"not of a minority":  {[]*scripted{long, away, away}, conn.Options{}, master.addr, 0},
		"even if any may do": {[]*scripted{long, away, away}, conn.Options{TrustAnySentinel: true}, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			c.opt.DialTimeout = patient
			d, err := conn.Dial(t.Context(), groupOf(t, c.of).WithHint(c.hint), c.opt)
			require.NoError(t, err)
			defer d.Close()
			require.Equal(t, c.want, d.Server().MasterFor)
		})
	}
}

// Who reads the error learns who says what, and what to do.
func TestErrorSaysWhyThereIsNoMajority(t *testing.T) {
	t.Parallel()
	one, other := sentinelAt(t, "127.0.0.1:7"), sentinelAt(t, "127.0.0.1:8")
	long := script(t, map[string]string{"SENTINEL": fmt.Sprintf("*2\r\n$5000\r\n%s\r\n$1\r\n1\r\n", strings.Repeat("a", 5000))})
	a := groupOf(t, []*scripted{one, one, other, sentinelAt(t, ""), long})
	_, err := conn.Dial(t.Context(), a, conn.Options{DialTimeout: patient})
	require.Regexp(t, `: sentinel: 3 of 5 sentinels must name the same master of group g, but they say 127\.0\.0\.1:7 \(2 of them\), `+
		`127\.0\.0\.1:8 \(1 of them\), no such group \(1 of them\), nothing \(1 of them\): sentinel 127\.0\.0\.1:\d+: an answer that is no address \(.*TrustAnySentinel`, err)
	require.Less(t, len(err.Error()), 1000)
}

// groupOf is the address of a group with these sentinels, each under a name of its own.
func groupOf(t *testing.T, of []*scripted) conn.Address {
	var addrs []string
	for _, s := range of {
		addrs = append(addrs, conntest.Listen(t, forward(s.addr)))
	}
	return group(t, addrs...)
}

// forward passes a connection on.
func forward(to string) func(net.Conn) {
	return func(c net.Conn) {
		out, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		var copying sync.WaitGroup
		copying.Go(func() { copyBytes(out, c); out.Close() })
		copyBytes(c, out)
		c.Close()
		copying.Wait()
	}
}

func copyBytes(dst, src net.Conn) {
	buf := make([]byte, 512)
	for {
		n, err := src.Read(buf)
		if err != nil {
			return
		}
		dst.Write(buf[:n])
	}
}

// A guarded is a sentinel that demands a password.
type guarded struct {
	at     string
	demand string // its answer to who has not authenticated

	mu    sync.Mutex
	auths []string
}

// guardedSentinel starts one that says what s does to who has sent the AUTH that it wants.
func guardedSentinel(t *testing.T, s *scripted, demand, auth string) *guarded {
	g := &guarded{demand: demand}
	g.at = conntest.Listen(t, func(c net.Conn) {
		known := false
		conntest.Answer(c, func(args []string) (string, bool) {
			switch command := strings.Join(args, " "); {
			case args[0] == "AUTH":
				g.mu.Lock()
				defer g.mu.Unlock()
				g.auths = append(g.auths, command)
				if known = command == auth; known {
					return "+OK\r\n", true
				}
				return "-WRONGPASS not " + command + "\r\n", true
			case known && args[0] == "SUBSCRIBE":
				return subscribed, true
			case known:
				return s.script["SENTINEL"], true
			}
			return g.demand, true
		})
	})
	return g
}

func (g *guarded) told() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]string(nil), g.auths...)
}

const (
	noAuth = "-NOAUTH Authentication required.\r\n"
	noPerm = "-NOPERM this user has no permissions to run the 'sentinel' command\r\n"
)

// What is for the master is shown to no sentinel, whatever that demands: neither the password of
// the address, nor that of the options, nor a token.
func TestMastersCredentialsAreShownToNoSentinel(t *testing.T) {
	t.Parallel()
	master := serverAs(t, "master")
	token := conn.Options{DialTimeout: patient, Credentials: func(context.Context, string) (conn.Credentials, error) {
		return conn.Credentials{Username: "user", Password: conn.NewSecret("secret")}, nil
	}}
	for name, c := range map[string]struct {
		userinfo string
		opt      conn.Options
	}{
		"of the address":        {"user:secret@", conn.Options{DialTimeout: patient}},
		"of the options":        {"", conn.Options{DialTimeout: patient, Username: "user", Password: conn.NewSecret("secret")}},
		"a token":               {"", token},
		"the sentinels' is not": {"user:secret@", conn.Options{DialTimeout: patient, SentinelUsername: "watcher"}},
	} {
		t.Run(name, func(t *testing.T) {
			open := sentinelAt(t, master.addr)
			open.answer("SUBSCRIBE", subscribed)
			a := parse(t, "sentinel://"+c.userinfo+open.addr+"/g")
			d, err := conn.Dial(t.Context(), a, c.opt)
			require.NoError(t, err)
			d.Close()
			soon(t, following(t, a, c.opt))
			require.False(t, open.saw("AUTH"))
			require.False(t, open.saw("HELLO"))

			for _, demand := range []string{noAuth, noPerm} {
				g := guardedSentinel(t, open, demand, "AUTH watcher right")
				_, err = conn.Dial(t.Context(), parse(t, "sentinel://"+c.userinfo+g.at+"/g"), c.opt)
				require.Error(t, err)
				require.NotContains(t, err.Error(), "secret")
				if c.opt.SentinelUsername == "" {
					require.ErrorContains(t, err, "set SentinelPassword")
				}
				for _, auth := range g.told() {
					require.Equal(t, "AUTH watcher ", auth)
				}
			}
		})
	}
	require.True(t, master.saw("AUTH user secret"), "it is still shown to the master")
}

// A sentinel is told its own password if it demands one, and only then.
func TestSentinelsPassword(t *testing.T) {
	t.Parallel()
	master := serverAs(t, "master")
	open := sentinelAt(t, master.addr)
	opt := conn.Options{DialTimeout: patient, SentinelUsername: "watcher", SentinelPassword: conn.NewSecret("right")}
	c, err := conn.Dial(t.Context(), group(t, open.addr), opt)
	require.NoError(t, err)
	c.Close()
	require.False(t, open.saw("AUTH"))
	for _, demand := range []string{noAuth, noPerm} {
		g := guardedSentinel(t, open, demand, "AUTH watcher right")
		c, err = conn.Dial(t.Context(), group(t, g.at), opt)
		require.NoError(t, err)
		c.Close()
		require.Equal(t, []string{"AUTH watcher right"}, g.told())
		require.Equal(t, master.addr, soon(t, following(t, group(t, g.at), opt)))
	}
	wrong := guardedSentinel(t, open, noAuth, "AUTH other")
	_, err = conn.Dial(t.Context(), group(t, wrong.at), conn.Options{DialTimeout: patient, SentinelPassword: conn.NewSecret("hunter2")})
	require.ErrorContains(t, err, "AUTH: WRONGPASS")
	require.NotContains(t, err.Error(), "hunter2")
	require.Equal(t, []string{"AUTH hunter2"}, wrong.told(), "once on each connection")
	_, err = conn.Dial(t.Context(), group(t, wrong.at), conn.Options{DialTimeout: patient, SentinelPassword: conn.NewSecret("other")})
	require.NoError(t, err)
}

func TestFollowTellsOfEverySwitchOfItsGroup(t *testing.T) {
	t.Parallel()
	message := func(text string) string {
		return fmt.Sprintf("*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$%d\r\n%s\r\n", len(text), text)
	}
	answer := sentinelAt(t, "10.0.0.1:1").script["SENTINEL"]
	s := script(t, map[string]string{
		"AUTH":     "+OK\r\n",
		"SENTINEL": answer,
		"SUBSCRIBE": "*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n" +
			message("other 10.0.0.1 1 10.0.0.2 2") + message("g 10.0.0.1 1 10.0.0.2 2") +
			message("g nonsense") + message("g 10.0.0.2 2 ::1 3"),
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var told []string
	conn.FollowGroup(ctx, group(t, s.addr), conn.Options{DialTimeout: patient}, func(to string) {
		told = append(told, to)
		if len(told) == 3 {
			cancel()
		}
	})
	require.Equal(t, []string{"10.0.0.1:1", "10.0.0.2:2", "[::1]:3"}, told[:3])
}

// A publisher is a sentinel that says what the test wants.
type publisher struct {
	at string

	mu    sync.Mutex
	says  string // host:port
	subs  []net.Conn
	lost  bool
	tried bool // to connect, since it is lost
}

func newPublisher(t *testing.T, says string) *publisher {
	p := &publisher{says: says}
	p.at = conntest.Listen(t, func(c net.Conn) {
		p.mu.Lock()
		lost := p.lost
		p.tried = lost
		p.mu.Unlock()
		if lost {
			return
		}
		conntest.Answer(c, func(args []string) (string, bool) {
			p.mu.Lock()
			defer p.mu.Unlock()
			switch args[0] {
			case "SENTINEL":
				host, port, _ := net.SplitHostPort(p.says)
				return fmt.Sprintf("*2\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(host), host, len(port), port), true
			case "SUBSCRIBE":
				p.subs = append(p.subs, c)
				fmt.Fprint(c, subscribed) // before anything that is published
				return "", true
			}
			return "+OK\r\n", true
		})
	})
	return p
}

// publish waits until somebody listens, and says that the master has moved.
func (p *publisher) publish(tb testing.TB, to string) {
	until(tb, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.subs) > 0
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	text := strings.ReplaceAll("g "+p.says+" "+to, ":", " ")
	p.says = to
	for _, c := range p.subs {
		fmt.Fprintf(c, "*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$%d\r\n%s\r\n", len(text), text)
	}
}

// lose ends all connections for good, and returns when the client has noticed: when it tries to
// connect again.
func (p *publisher) lose(tb testing.TB) {
	p.mu.Lock()
	p.lost = true
	for _, c := range p.subs {
		c.Close()
	}
	p.mu.Unlock()
	until(tb, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.tried
	})
}

// What one sentinel of three publishes is told only when a second one says the same. What a
// sentinel has said counts no more when it is lost.
func TestFollowTellsWhatMostSentinelsSay(t *testing.T) {
	t.Parallel()
	const a, b, c = "10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3"
	all := []*publisher{newPublisher(t, a), newPublisher(t, a), newPublisher(t, a)}
	told := following(t, group(t, all[0].at, all[1].at, all[2].at), conn.Options{DialTimeout: patient})
	last := ""
	requireTold := func(want string) {
		t.Helper()
		got := soon(t, told)
		// The same is told again where two have agreed, then one of them changed its mind, and
		// only then the third was heard to say what they had said.
		for got == last {
			got = soon(t, told)
		}
		require.Equal(t, want, got)
		last = got
	}
	requireTold(a)
	all[0].publish(t, b) // alone
	all[1].publish(t, c) // likewise: nobody agrees with anybody
	all[2].publish(t, c)
	requireTold(c)
	all[0].lose(t) // which has said b
	all[2].publish(t, b)
	all[1].publish(t, a)
	all[2].publish(t, a)
	requireTold(a)
	require.Empty(t, told)
}

// following runs FollowGroup until the test ends, and returns what it tells.
func following(t *testing.T, a conn.Address, opt conn.Options) <-chan string {
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan string, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn.FollowGroup(ctx, a, opt, func(to string) { told <- to })
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return told
}

const subscribed = "*3\r\n$9\r\nsubscribe\r\n$14\r\n+switch-master\r\n:1\r\n"

// A question that fails once, or that the sentinel answers with an error for a while, is asked
// again. So a sentinel that accepts the subscription gets its vote in the end.
func TestFollowAsksAgainWhenAQuestionHasFailed(t *testing.T) {
	t.Parallel()
	const now = "10.0.0.2:2"
	away := script(t, map[string]string{"SUBSCRIBE": "close", "AUTH": "+OK\r\n"})
	for name, failure := range map[string]string{"reset": "close", "error": "-ERR not now\r\n"} {
		t.Run(name, func(t *testing.T) {
			well, failing := sentinelAt(t, now), sentinelAt(t, now)
			well.answer("SUBSCRIBE", subscribed)
			failing.answer("SUBSCRIBE", subscribed)
			answer := failing.answer("SENTINEL", failure)
			told := following(t, groupOf(t, []*scripted{well, failing, away}), conn.Options{DialTimeout: patient})
			until(t, func() bool { return failing.saw("SENTINEL") && well.saw("SENTINEL") })
			require.Empty(t, told)
			failing.answer("SENTINEL", answer)
			require.Equal(t, now, soon(t, told))
		})
	}
}

// An operator makes all sentinels monitor another master (SENTINEL REMOVE and MONITOR). They
// publish nothing about that.
func TestFollowAsksAgainWhileNothingIsPublished(t *testing.T) {
	conn.AskEvery(t, 10*time.Millisecond)
	const before, after = "10.0.0.1:1", "10.0.0.2:2"
	all := []*publisher{newPublisher(t, before), newPublisher(t, before), newPublisher(t, before)}
	told := following(t, group(t, all[0].at, all[1].at, all[2].at), conn.Options{DialTimeout: patient})
	require.Equal(t, before, soon(t, told))
	for _, p := range all {
		p.mu.Lock()
		p.says = after
		p.mu.Unlock()
	}
	for {
		if to := soon(t, told); to == after {
			return
		} else { // told again, where one was asked before the others
			require.Equal(t, before, to)
		}
	}
}

// Two of three agree, then they do not, then they agree on the same place again. It is told
// again.
func TestFollowTellsTheSameAgainAfterADisagreement(t *testing.T) {
	t.Parallel()
	const a, b = "10.0.0.1:1", "10.0.0.2:2"
	away := script(t, map[string]string{"SUBSCRIBE": "close", "AUTH": "+OK\r\n"})
	one, other := newPublisher(t, a), newPublisher(t, a)
	told := following(t, group(t, one.at, other.at, away.addr), conn.Options{DialTimeout: patient})
	require.Equal(t, a, soon(t, told))
	one.publish(t, b)
	one.publish(t, a)
	require.Equal(t, a, soon(t, told))
}

// A sentinel that publishes without end is hung up on, again and again, and does not outlast the
// context.
func TestFollowHangsUpOnASentinelThatPublishesWithoutEnd(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{}, 16)
	at := conntest.Listen(t, func(c net.Conn) {
		conntest.Answer(c, func(args []string) (string, bool) {
			if args[0] == "SENTINEL" {
				return "*2\r\n$9\r\n127.0.0.1\r\n$4\r\n6379\r\n", true
			}
			fmt.Fprint(c, subscribed)
			block := []byte(strings.Repeat("*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$5\r\nother\r\n", 1<<10))
			for {
				if _, err := c.Write(block); err != nil {
					ended <- struct{}{}
					return "", false
				}
			}
		})
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn.FollowGroup(ctx, group(t, at), conn.Options{DialTimeout: patient}, func(string) {})
	}()
	for range 3 {
		soon(t, ended)
	}
	cancel()
	soon(t, done)
}

func TestEndpointResolvesToItsAddresses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		endpoint, other string
		want            bool
	}{
		{"127.0.0.1:7", "127.0.0.1:7", true},
		{"localhost:7", "127.0.0.1:7", true},
		{"LOCALHOST.:7", "localhost:7", true},
		{"[::ffff:127.0.0.1]:7", "127.0.0.1:7", true},
		{"localhost:8", "127.0.0.1:7", false},
		{"127.0.0.1:7", "127.0.0.2:7", false},
		{"no-such-master.invalid:7", "no-such-master.invalid:7", false},
		{"127.0.0.1:7", "no-such-master.invalid:7", false},
		{"127.0.0.1:7", "", false},
		{"", "127.0.0.1:7", false},
		{"redis/pod1:7", "redis/pod1:7", false},
	} {
		require.Equal(t, c.want, conn.ResolvesTo(t.Context(), c.endpoint, c.other), "%s to %s", c.endpoint, c.other)
	}
}

// What a sentinel publishes is bounded like what it answers: no name of an address is so long.
func TestNoNameThatIsTooLongIsFollowed(t *testing.T) {
	t.Parallel()
	only := newPublisher(t, "127.0.0.1:1")
	told := following(t, group(t, only.at), conn.Options{DialTimeout: patient})
	require.Equal(t, "127.0.0.1:1", soon(t, told))
	only.publish(t, strings.Repeat("x", 1000)+":2")
	only.publish(t, "127.0.0.1:3")
	require.Equal(t, "127.0.0.1:3", soon(t, told))
}
