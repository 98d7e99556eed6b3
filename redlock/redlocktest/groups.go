package redlocktest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	groupSentinels = 3
	// How long a sentinel waits for an answer until it thinks a server down.
	downAfter = 500 * time.Millisecond
	// A failover is over, or has failed, well within this.
	failoverTime = 60 * time.Second
)

// Groups are n independent groups of a master and a replica, numbered from 0, each
// of which is watched over by the same three sentinels. If a master is killed or
// frozen, its replica takes its place after about a second. All methods may be
// called by any number of goroutines at once.
//
// A method that cannot do what it was asked for ends the test.
type Groups struct {
	tb        TB
	group     *group
	servers   []*server // of group i the two at 2*i
	sentinels []*server
}

// StartGroups starts n groups on free ports of 127.0.0.1, without persistence, and
// returns when the sentinels know them and each other. They are closed when the test
// ends. Without a redis-server it does what [Start] does.
//
// Of the options it takes WithArgs alone, with none that sets a password, a port or a
// master.
func StartGroups(tb TB, n int, opts ...Option) *Groups {
	tb.Helper()
	needed(tb)
	g := &Groups{tb: tb}
	holdBlock()
	tb.Cleanup(g.close)
	if err := g.start(n, opts); err != nil {
		tb.Fatal(err)
	}
	return g
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
	if g.group, err = newGroup(); err != nil {
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
	}
	for j := range groupSentinels {
		s := newServer(bin, 2*n+j, g.group, options{})
		for i := range n {
			name := g.Name(i)
			s.sentinel += fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2\n", name, g.servers[2*i].port)
			s.sentinel += fmt.Sprintf("sentinel down-after-milliseconds %s %d\n", name, downAfter.Milliseconds())
			s.sentinel += fmt.Sprintf("sentinel failover-timeout %s 3000\n", name)
		}
		g.sentinels = append(g.sentinels, s)
		if err := s.startAnywhere(); err != nil {
			return err
		}
	}
	return wait(func() error {
		for i := range n {
			for j := range g.sentinels {
				if err := g.ready(j, i); err != nil {
					return err
				}
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
	if o.unix {
		return errors.New("redlocktest: groups do not listen on Unix sockets: leave out WithUnixSockets")
	}
	for _, arg := range o.args {
		name, _, _ := strings.Cut(arg, " ") // some versions of Redis split "--port 0"
		switch strings.ToLower(name) {
		case "--requirepass", "--masterauth":
			return fmt.Errorf("redlocktest: the sentinels know no password: leave out %s", name)
		case "--port", "--replicaof", "--slaveof":
			return fmt.Errorf("redlocktest: groups choose their ports and masters: leave out %s", name)
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

func (g *Groups) close() {
	var ending sync.WaitGroup
	var addrs []string
	for _, s := range append(g.sentinels, g.servers...) {
		addrs = append(addrs, s.addr())
		ending.Go(func() { s.kill() })
	}
	ending.Wait()
	if g.group != nil {
		g.group.close()
	}
	releaseBlock(addrs)
}

// Name returns the name by which the sentinels know group i.
func (g *Groups) Name(i int) string { return "group" + strconv.Itoa(i) }

// Addr returns the address of group i: sentinel://host:port,host:port,host:port/name.
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

// Master returns the host:port of the master of group i: of that one of its two
// servers which is up and says that it is, and which two sentinels name.
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

// Kill ends the master of group i as SIGKILL does, and returns when it is gone,
// which is before its replica takes its place.
func (g *Groups) Kill(i int) { g.find(i).kill() }

// Switch has the sentinels make the replica of group i its master, while the master
// is well, and returns when that is so.
func (g *Groups) Switch(i int) {
	was := g.find(i)
	g.must(i, "switch", wait(func() error {
		_, err := g.Sentinel(0, "SENTINEL", "FAILOVER", g.Name(i))
		if err != nil && strings.HasPrefix(err.Error(), "INPROG") {
			return nil // the answer to the first one came too late
		}
		return err
	}))
	g.Await(i, was.addr())
}

// Await returns when group i has a master other than the one at the given address.
func (g *Groups) Await(i int, other string) {
	g.must(i, "await a new master", wait(func() error {
		s, err := g.master(i)
		if err == nil && s.addr() == other {
			err = errors.New("it is still the master")
		}
		return err
	}))
}

// Restore starts those servers of group i that are down, as replicas of its master,
// and returns when the sentinels could make it fail over again.
func (g *Groups) Restore(i int) {
	master := g.find(i)
	for _, s := range g.servers[2*i : 2*i+2] {
		if s.pid() == 0 {
			g.must(i, "restart", s.restart())
		}
		if s != master {
			_, err := ask(s, time.Now().Add(startTime), "REPLICAOF", "127.0.0.1", strconv.Itoa(master.port))
			g.must(i, "make a replica", err)
		}
	}
	g.must(i, "await the replica", wait(func() error {
		for j := range g.sentinels {
			if err := g.ready(j, i); err != nil {
				return err
			}
		}
		return nil
	}))
}

// Do sends one command to the master of group i, as [Masters.Do] does. The error is
// [ErrDown] while the group has no master, as after Kill, and another one while it has
// one on which the sentinels do not agree.
func (g *Groups) Do(i int, args ...string) (any, error) {
	var reply any
	s, err := g.master(i)
	if err == nil {
		reply, err = do(s, args...)
	}
	return reply, asking(fmt.Sprintf("the master of group %d", i), err)
}

// Sentinel sends one command to a sentinel, as [Masters.Do] does.
func (g *Groups) Sentinel(j int, args ...string) (any, error) {
	reply, err := do(g.sentinels[j], args...)
	return reply, asking(fmt.Sprintf("sentinel %d", j), err)
}

// KillSentinel ends a sentinel as SIGKILL does; PauseSentinel and ResumeSentinel
// freeze it and let it go on.
func (g *Groups) KillSentinel(j int)   { g.must(j, "kill the sentinel", g.sentinels[j].kill()) }
func (g *Groups) PauseSentinel(j int)  { g.must(j, "pause the sentinel", g.sentinels[j].pause()) }
func (g *Groups) ResumeSentinel(j int) { g.must(j, "resume the sentinel", g.sentinels[j].resume()) }

func (g *Groups) must(i int, op string, err error) {
	if err != nil {
		g.tb.Helper()
		g.tb.Fatal(fmt.Errorf("redlocktest: %s of group %d: %w", op, i, err))
	}
}
