package redlocktest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redburst/redburst/redlock/internal/aged"
	"github.com/redburst/redburst/redlock/internal/processes"
	"testing"
)

const (
	groupSentinels = 3
	// How long a sentinel waits for an answer before it takes a server for down.
	downAfter = 500 * time.Millisecond
	// A failover is over, or has failed, well within this.
	failoverTime = 60 * time.Second
)

// Groups are n independent groups of a master and a replica, numbered from 0. The
// same three sentinels watch over all of them. If a master is killed or frozen, its
// replica takes its place after about a second. All methods may be called by several
// goroutines at once. Groups come from [StartGroups] and [RunGroups]; the zero value has none.
//
// A method that fails ends the test with Fatal. If there is no test, it panics with the error.
type Groups struct {
	tb        testing.TB // nil without a test
	group     *processes.Group
	servers   []*server // of group i the two at 2*i
	sentinels []*server
	closing   sync.Once
}

// StartGroups starts n groups on free ports of 127.0.0.1, without persistence, and
// returns when the sentinels know them and each other. They are closed when the test
// ends. If no redis-server is installed, the test is skipped or fails, as by [Start].
//
// The options for groups are WithPassword, and WithArgs without arguments that set a password, a
// port or a master.
func StartGroups(tb testing.TB, n int, opts ...Option) *Groups {
	tb.Helper()
	needed(tb)
	g, err := RunGroups(n, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	g.tb = tb
	tb.Cleanup(g.Close)
	return g
}

// RunGroups is [StartGroups] without a test. The caller must call [Groups.Close]. A missing redis-server is an error
// that says what to install.
func RunGroups(n int, opts ...Option) (*Groups, error) {
	g := &Groups{}
	holdBlock()
	if err := g.start(n, opts); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

func (g *Groups) start(n int, opts []Option) (err error) {
	o := chosen(opts)
	if err := groupable(o); err != nil {
		return err
	}
	bin, err := lookup()
	if err != nil {
		return err
	}
	if g.group, err = processes.NewGroup("redlocktest"); err != nil {
		return err
	}
	args := o.args
	for i := range 2 * n {
		o.args = slices.Clone(args)
		if i%2 == 1 {
			o.args = append(o.args, "--replicaof", "127.0.0.1", strconv.Itoa(g.servers[i-1].port))
		}
		o.args = append(o.args, "--repl-diskless-sync-delay", "0")
		s := newServer(bin, i, g.group, o)
		g.servers = append(g.servers, s)
		if err := s.startAnywhere(); err != nil {
			return err
		}
		if i%2 == 0 {
			grow(s)
		}
	}
	for j := range groupSentinels {
		s := newServer(bin, 2*n+j, g.group, options{secret: o.secret})
		for i := range n {
			name := g.Name(i)
			s.sentinel += fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2\n", name, g.servers[2*i].port)
			s.sentinel += fmt.Sprintf("sentinel down-after-milliseconds %s %d\n", name, downAfter.Milliseconds())
			s.sentinel += fmt.Sprintf("sentinel failover-timeout %s 3000\n", name)
			if o.secret != "" {
				s.sentinel += fmt.Sprintf("sentinel auth-pass %s %s\n", name, o.secret)
			}
		}
		g.sentinels = append(g.sentinels, s)
		if err := s.startAnywhere(); err != nil {
			return err
		}
	}
	return wait(func() error {
		for i := range n {
			if err := g.Ready(i); err != nil {
				return err
			}
		}
		return nil
	})
}

// groupable is nil, or says which option would keep the servers of a group and the
// sentinels from reaching each other. They would be waited for in vain.
func groupable(o options) error {
	if o.links {
		return errors.New("redlocktest: there are no links in front of groups: leave out WithLinks")
	}
	if o.clocks {
		return errors.New("redlocktest: groups have no clocks of their own: leave out WithClocks")
	}
	if o.disks {
		return errors.New("redlocktest: groups have no disks of their own: leave out WithDisks")
	}
	if o.hosts != nil {
		return errors.New("redlocktest: groups run beside the test: leave out WithHosts")
	}
	if o.unix {
		return errors.New("redlocktest: groups do not listen on Unix sockets: leave out WithUnixSockets")
	}
	for _, arg := range o.args {
		name, _, _ := strings.Cut(arg, " ") // some versions of Redis split "--port 0"
		switch strings.ToLower(name) {
		case "--requirepass", "--masterauth":
			return fmt.Errorf("redlocktest: the sentinels know no password but that of WithPassword: leave out %s", name)
		case "--port", "--replicaof", "--slaveof":
			return fmt.Errorf("redlocktest: groups choose their ports and masters: leave out %s", name)
		}
	}
	return nil
}

// Ready is nil if the sentinels can make group i fail over: they know each other, and a replica that is in step. The
// error says what is missing.
func (g *Groups) Ready(i int) error {
	for j := range g.sentinels {
		if err := g.ready(j, i); err != nil {
			return err
		}
	}
	return nil
}

// ready says what a sentinel lacks to make a group fail over.
func (g *Groups) ready(sentinel, i int) error {
	peers, err := g.Sentinel(sentinel, "SENTINEL", "SENTINELS", g.Name(i))
	if all, _ := peers.([]any); err == nil && len(all) != groupSentinels-1 {
		err = fmt.Errorf("sentinel %d knows %d others", sentinel, len(all))
	}
	if err != nil {
		return err
	}
	replicas, err := g.Sentinel(sentinel, "SENTINEL", "REPLICAS", g.Name(i))
	if err != nil {
		return err
	}
	if text := fmt.Sprint(replicas); !strings.Contains(text, "master-link-status ok") {
		return fmt.Errorf("group %d has no replica in step: %s", i, text)
	}
	return nil
}

// wait repeats do until it succeeds.
func wait(do func() error) error {
	for deadline := time.Now().Add(failoverTime); ; time.Sleep(20 * time.Millisecond) {
		err := do()
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// Close kills all servers and sentinels, paused ones too, and removes their files. It returns when they are gone.
// Further calls do nothing; no other method may be called after it. Groups that belong to a test close when it ends.
func (g *Groups) Close() { g.closing.Do(g.close) }

func (g *Groups) close() {
	var ending sync.WaitGroup
	var addrs []string
	for _, s := range append(g.sentinels, g.servers...) {
		addrs = append(addrs, s.addr())
		ending.Go(func() { s.kill() })
	}
	ending.Wait()
	if g.group != nil {
		g.group.Close()
	}
	releaseBlock(addrs)
}

// N returns the number of groups.
func (g *Groups) N() int { return len(g.servers) / 2 }

// Name returns the name by which the sentinels know group i.
func (g *Groups) Name(i int) string { return "group" + strconv.Itoa(i) }

// Addr returns the address of group i, as redlock.Config.Masters takes it:
// sentinel://host:port,host:port,host:port/name.
func (g *Groups) Addr(i int) string {
	var all []string
	for _, s := range g.sentinels {
		all = append(all, s.addr())
	}
	return "sentinel://" + strings.Join(all, ",") + "/" + g.Name(i)
}

// Addrs returns the addresses of all groups.
func (g *Groups) Addrs() (all []string) {
	for i := range len(g.servers) / 2 {
		all = append(all, g.Addr(i))
	}
	return all
}

// Master returns the host:port of the master of group i. It waits for up to a minute
// until one of the group's two servers says that it is the master and two sentinels
// agree.
func (g *Groups) Master(i int) string { return g.find(i).addr() }

// find waits until there is a master: a busy machine may keep servers and sentinels
// from saying so at once.
func (g *Groups) find(i int) (s *server) {
	g.must(i, "find the master", wait(func() (err error) {
		s, err = g.master(i)
		return err
	}))
	return s
}

// master is what find finds. The error is ErrDown if no server can be a master: each is
// down or a replica.
func (g *Groups) master(i int) (*server, error) {
	reason := ErrDown
	for _, s := range g.servers[2*i : 2*i+2] {
		role, err := ask(s, time.Now().Add(time.Second), "ROLE")
		if err != nil {
			if !errors.Is(s.state(), ErrDown) {
				reason = fmt.Errorf("%s does not tell its role: %v", s.addr(), err)
			}
			continue
		}
		if all, _ := role.([]any); len(all) == 0 || all[0] != "master" {
			continue
		}
		reason = errors.New("the sentinels do not agree yet")
		named := 0
		for j := range g.sentinels {
			at, err := g.Sentinel(j, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", g.Name(i))
			if err == nil && fmt.Sprint(at) == fmt.Sprintf("[127.0.0.1 %d]", s.port) {
				named++
			}
		}
		if named >= 2 {
			return s, nil
		}
	}
	return nil, reason
}

// Kill ends the master of group i as SIGKILL does, and returns when it is gone. Its
// replica takes its place later; [Groups.Await] waits for that.
func (g *Groups) Kill(i int) { g.find(i).kill() }

// Restart starts the servers of group i again that are down. They have no data. Each says that it is a master, until the
// sentinels make it a replica.
func (g *Groups) Restart(i int) {
	for _, s := range g.servers[2*i : 2*i+2] {
		if errors.Is(s.state(), ErrDown) {
			s.mu.Lock()
			if at := slices.Index(s.args, "--replicaof"); at >= 0 { // with its host and port
				s.args = slices.Delete(s.args, at, at+3)
			}
			s.mu.Unlock()
			g.must(i, "restart", s.restart())
		}
	}
}

// Switch makes the sentinels promote the replica of group i although its master is
// well, and returns when the replica is the master.
func (g *Groups) Switch(i int) {
	was := g.find(i)
	aged.Remove(runID(was)) // it lacks locks when it is the master again
	g.must(i, "switch", wait(func() error {
		_, err := g.Sentinel(0, "SENTINEL", "FAILOVER", g.Name(i))
		if err != nil && strings.HasPrefix(err.Error(), "INPROG") {
			return nil // the answer to the first one came too late
		}
		return err
	}))
	g.Await(i, was.addr())
}

// Await returns when group i has a master other than the one at the given host:port.
// It fails after a minute.
func (g *Groups) Await(i int, other string) {
	g.must(i, "await a new master", wait(func() error {
		s, err := g.master(i)
		if err == nil && s.addr() == other {
			err = errors.New("it is still the master")
		}
		return err
	}))
}

// Do sends one command to the master of group i, as [Masters.Do] does. While the group
// has no master, as after Kill, the error wraps [ErrDown]. While the sentinels do not
// agree on the master, it is another one.
func (g *Groups) Do(i int, args ...string) (any, error) {
	var reply any
	s, err := g.master(i)
	if err == nil {
		reply, err = do(s, args...)
	}
	return reply, asking(fmt.Sprintf("the master of group %d", i), err)
}

// FindMaster returns which of the two servers of group i is the master now, 0 or 1. It does not wait: the error says why
// there is none.
func (g *Groups) FindMaster(i int) (j int, err error) {
	s, err := g.master(i)
	if err != nil {
		return 0, err
	}
	return slices.Index(g.servers[2*i:2*i+2], s), nil
}

// DoAt sends one command to server j of group i, 0 or 1, as [Masters.Do] does.
func (g *Groups) DoAt(i, j int, args ...string) (any, error) {
	reply, err := do(g.servers[2*i+j], args...)
	return reply, asking(fmt.Sprintf("server %d of group %d", j, i), err)
}

// Sentinel sends one command to sentinel j, 0 to 2, as [Masters.Do] does.
func (g *Groups) Sentinel(j int, args ...string) (any, error) {
	reply, err := do(g.sentinels[j], args...)
	return reply, asking(fmt.Sprintf("sentinel %d", j), err)
}

// KillSentinel ends sentinel j as SIGKILL does. It stays down.
func (g *Groups) KillSentinel(j int) { g.mustSentinel(j, "kill", g.sentinels[j].kill()) }

// PauseSentinel freezes sentinel j until [Groups.ResumeSentinel].
func (g *Groups) PauseSentinel(j int) { g.mustSentinel(j, "pause", g.sentinels[j].pause()) }

// ResumeSentinel lets a paused sentinel j go on.
func (g *Groups) ResumeSentinel(j int) { g.mustSentinel(j, "resume", g.sentinels[j].resume()) }

func (g *Groups) must(i int, op string, err error) {
	if err != nil {
		g.fail(fmt.Errorf("redlocktest: %s of group %d: %w", op, i, err))
	}
}

func (g *Groups) mustSentinel(j int, op string, err error) {
	if err != nil {
		g.fail(fmt.Errorf("redlocktest: %s sentinel %d: %w", op, j, err))
	}
}

func (g *Groups) fail(err error) {
	if g.tb == nil {
		panic(err)
	}
	g.tb.Helper()
	g.tb.Fatal(err)
}
