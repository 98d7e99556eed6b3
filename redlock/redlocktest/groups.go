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
	servers   []*Masters // by group
	sentinels *Masters
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
	g, err := startGroups(tb, n, opts)
	return tied(tb, g, err)
}

// RunGroups is [StartGroups] without a test. The caller must call [Groups.Close]. A missing redis-server is an error
// that says what to install.
func RunGroups(n int, opts ...Option) (*Groups, error) { return startGroups(nil, n, opts) }

func startGroups(tb testing.TB, n int, opts []Option) (*Groups, error) {
	g := &Groups{tb: tb, sentinels: noServers(tb, "sentinel")}
	if err := g.start(n, opts); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// noServers are servers of groups or clusters, to which these are added.
func noServers(tb testing.TB, what string) *Masters {
	holdBlock()
	return &Masters{tb: tb, what: what}
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
	o.args = append(o.args, "--repl-diskless-sync-delay", "0")
	watched := ""
	for i := range n {
		m, port := noServers(g.tb, "server"), 0
		g.servers = append(g.servers, m)
		for j := range 2 {
			s := newServer(bin, 2*i+j, g.group, o)
			m.masters = append(m.masters, s)
			if j == 1 {
				s.args = append(slices.Clone(o.args), "--replicaof", "127.0.0.1", strconv.Itoa(port))
			}
			if err := s.startAnywhere(); err != nil {
				return err
			}
			s.args = o.args // when it is started again, it is a master until the sentinels make it a replica
			port = m.masters[0].(*server).port
		}
		name := groupName(i)
		watched += fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d 2\n", name, port)
		watched += fmt.Sprintf("sentinel down-after-milliseconds %s %d\n", name, downAfter.Milliseconds())
		watched += fmt.Sprintf("sentinel failover-timeout %s 3000\n", name)
		if o.secret != "" {
			watched += fmt.Sprintf("sentinel auth-pass %s %s\n", name, o.secret)
		}
		grow(m.masters[0])
	}
	for j := range groupSentinels {
		s := newServer(bin, 2*n+j, g.group, options{secret: o.secret})
		s.sentinel = watched
		g.sentinels.masters = append(g.sentinels.masters, s)
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
	for j := range groupSentinels {
		peers, err := g.sentinels.Do(j, "SENTINEL", "SENTINELS", groupName(i))
		if all, _ := peers.([]any); err == nil && len(all) != groupSentinels-1 {
			err = fmt.Errorf("sentinel %d knows %d others", j, len(all))
		}
		if err != nil {
			return err
		}
		replicas, err := g.sentinels.Do(j, "SENTINEL", "REPLICAS", groupName(i))
		if err != nil {
			return err
		}
		if text := fmt.Sprint(replicas); !strings.Contains(text, "master-link-status ok") {
			return fmt.Errorf("group %d has no replica in step: %s", i, text)
		}
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
func (g *Groups) Close() {
	g.closing.Do(func() { closeAll(g.group, append(g.servers, g.sentinels)...) })
}

// closeAll closes servers, and then what their processes have in common, if that is there.
func closeAll(group *processes.Group, all ...*Masters) {
	var ending sync.WaitGroup
	for _, m := range all {
		ending.Go(m.Close)
	}
	ending.Wait()
	if group != nil {
		group.Close()
	}
}

func groupName(i int) string { return "group" + strconv.Itoa(i) }

// Addrs returns the addresses of all groups, as redlock.Config.Masters takes them:
// sentinel://host:port,host:port,host:port/group0, /group1 and so on.
func (g *Groups) Addrs() (all []string) {
	for i := range g.servers {
		all = append(all, "sentinel://"+strings.Join(g.sentinels.Addrs(), ",")+"/"+groupName(i))
	}
	return all
}

// Servers returns the two servers of group i.
func (g *Groups) Servers(i int) *Masters { return g.servers[i] }

// Sentinels returns the three sentinels.
func (g *Groups) Sentinels() *Masters { return g.sentinels }

// Master returns which of the servers of group i is the master: 0 or 1. It waits for up to a minute
// until one says so that is not excluded, and two sentinels agree.
func (g *Groups) Master(i int, except ...int) (j int) {
	err := wait(func() (err error) {
		if j, err = g.FindMaster(i); err == nil && slices.Contains(except, j) {
			err = fmt.Errorf("it is still server %d", j)
		}
		return err
	})
	if err != nil {
		fail(g.tb, fmt.Errorf("redlocktest: find the master of group %d: %w", i, err))
	}
	return j
}

// FindMaster is [Groups.Master] without the wait: the error says why there is none now. It is
// [ErrDown] if no server can be a master: each is down or a replica.
func (g *Groups) FindMaster(i int) (int, error) {
	reason := ErrDown
	for j, s := range g.servers[i].masters {
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
		for k := range groupSentinels {
			at, err := g.sentinels.Do(k, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", groupName(i))
			if err == nil && fmt.Sprint(at) == "["+strings.Replace(s.addr(), ":", " ", 1)+"]" {
				named++
			}
		}
		if named >= 2 {
			return j, nil
		}
	}
	return 0, reason
}

// Switch makes the sentinels promote the replica of group i although its master is
// well, and returns when the replica is the master.
func (g *Groups) Switch(i int) {
	was := g.Master(i)
	aged.Remove(runID(g.servers[i].masters[was])) // it lacks locks when it is the master again
	err := wait(func() error {
		_, err := g.sentinels.Do(0, "SENTINEL", "FAILOVER", groupName(i))
		if err != nil && strings.HasPrefix(err.Error(), "INPROG") {
			return nil // the answer to the first one came too late
		}
		return err
	})
	if err != nil {
		fail(g.tb, fmt.Errorf("redlocktest: switch group %d: %w", i, err))
	}
	g.Master(i, was)
}
