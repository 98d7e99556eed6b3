//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock/redlocktest"
)

// Ways in which a master forgets, beside those of plan.go. It is harmed until it may vote again.
const (
	// It says before and afterwards that it persists each write before it answers, and has lost its disk in between.
	newDisk fault = "disk lost by a durable master"
	// Nobody's connection ends.
	flushKeys fault = "keys flushed"
	// It says that it was started an hour ago.
	bootClock fault = "clock stepped at boot"
	// It keeps its disk. What it replays is refused, perhaps, to the user that replays it.
	withACL fault = "restarted with the deployed ACL"
)

// forgetting are ways in which a master forgets that the clients know of by themselves.
var forgetting = []fault{kill, demote, newDisk, flushKeys, bootClock, withACL, replaced}

// lookTime is for how long a master that is to look durable does so before it is killed.
const lookTime = 300 * time.Millisecond

// preparation is how long it takes, mostly, until the master forgets.
func (f fault) preparation() time.Duration {
	if f == newDisk || f == withACL {
		return lookTime
	}
	return 0
}

// forget has a master forget in some way. It is false if ctx has ended.
func (n *nemesis) forget(ctx context.Context, s strike) bool {
	i := s.Target
	switch s.Fault {
	case demote:
		n.demote(ctx, i, s.For-n.quarantine)
	case flushKeys:
		n.forgets()
		n.insist(ctx, i, "FLUSHALL")
	case replaced:
		n.forgets()
		n.replace(ctx, i)
	case kill:
		n.forgets()
		n.killServer(n.server(i))
		if sleep(ctx, s.For-n.quarantine) {
			n.restart(n.server(i))
		}
	case newDisk:
		n.lookDurable(ctx, i)
		n.forgets()
		n.killServer(n.server(i))
		n.boot(i, func() { n.insist(ctx, i, "CONFIG", "SET", "appendfsync", "always") })
		n.lookAsBefore(ctx, i)
	case bootClock:
		n.forgets()
		n.killServer(n.server(i))
		n.servers.Jump(n.server(i), -time.Hour)
		n.boot(i, func() { n.servers.Jump(n.server(i), time.Hour) })
	case withACL:
		n.lookDurable(ctx, i)
		n.forgets()
		n.restartWithACL(ctx, i)
		n.lookAsBefore(ctx, i)
	}
	return ctx.Err() == nil
}

// lookDurable has a master say that it persists each write before it answers, and has all clients hear of it.
func (n *nemesis) lookDurable(ctx context.Context, i int) {
	n.insist(ctx, i, "CONFIG", "SET", "appendfsync", "always")
	n.endConnections(ctx, i)
	sleep(ctx, lookTime)
}

// lookAsBefore ends that, when the clients are connected again: each write takes time.
func (n *nemesis) lookAsBefore(ctx context.Context, i int) {
	sleep(ctx, time.Second)
	n.insist(ctx, i, "CONFIG", "SET", "appendfsync", "everysec")
}

// masterArgs make a master answer BUSY soon while a script runs. It is silent before. It writes what it does to a
// file, and has it on its disk a second later, which is no promise to remember anything.
var masterArgs = redlocktest.WithArgs("--lua-time-limit", "20", "--appendonly", "yes", "--appendfsync", "everysec")

// killServer kills a server, and takes from it what it has written: it was not on its disk yet.
func (n *nemesis) killServer(server int) {
	dir, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", n.servers.PID(server)))
	if err != nil {
		panic(err)
	}
	n.servers.Kill(server)
	for _, name := range []string{"appendonlydir", "appendonly.aof"} { // since Redis 7, and before
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			panic(err)
		}
	}
}

func (n *nemesis) restart(server int) {
	n.starting.Lock()
	defer n.starting.Unlock()
	n.servers.Restart(server)
}

// boot restarts a master, and prepares it before any client reaches it.
func (n *nemesis) boot(i int, prepare func()) {
	open := n.traffic.impose(strike{Fault: refuse, Target: i})
	n.restart(n.server(i))
	prepare()
	open()
}

// Users are those of all servers of a storm. The user blind may do all that a client does, and is not told whether the
// master was restarted.
type users struct {
	file     string
	password string // of all of them
	deployed string // the line of the user default that we deploy
}

const (
	blindUser = "blind"
	adminUser = "admin"

	defaultRights = "default on ~* &* +@all" // and the password
)

// newUsers writes the file.
func newUsers(file, password string) (u users, err error) {
	u.file, u.password = file, password
	if u.deployed, err = deployedDefault(); err != nil {
		return u, err
	}
	return u, u.write("user " + u.defaultUser())
}

func (u users) defaultUser() string { return defaultRights + " >" + u.password }

func (u users) write(line string) error {
	text := line + "\n"
	for user, rights := range map[string]string{blindUser: "+@all -info", adminUser: "+@all"} {
		text += fmt.Sprintf("user %s on >%s ~* &* %s\n", user, u.password, rights)
	}
	return os.WriteFile(u.file, []byte(text), 0o600)
}

func (u users) option() redlocktest.Option { return redlocktest.WithArgs("--aclfile", u.file) }

// deployedDefault returns the line of the user default in the ACL that we deploy. It is empty if we are not started
// within the source.
func deployedDefault() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "redlock", "contrib", "deploy", "users.acl"))
		switch {
		case err == nil:
			for line := range strings.Lines(string(text)) {
				if strings.HasPrefix(line, "user default ") {
					return strings.TrimSpace(line), nil
				}
			}
			return "", errors.New("the deployed ACL has no user default")
		case dir == filepath.Dir(dir):
			return "", nil
		}
	}
}

// restartWithACL restarts a master with its disk, and with the user default that we deploy while it replays it.
func (n *nemesis) restartWithACL(ctx context.Context, i int) {
	open := n.traffic.impose(strike{Fault: refuse, Target: i})
	defer open()
	n.starting.Lock()
	defer n.starting.Unlock()
	server := n.server(i)
	if err := n.users.write(n.users.deployed); err != nil {
		panic(err)
	}
	n.servers.Restart(server)
	if err := n.users.write("user " + n.users.defaultUser()); err != nil {
		panic(err)
	}
	socket := fmt.Sprintf("/proc/%d/cwd/redis.sock", n.servers.PID(server))
	c, err := net.Dial("unix", socket)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	admin := foreignMaster{conn: c, in: bufio.NewReader(c)}
	for _, command := range [][]string{{"AUTH", adminUser, n.users.password}, append([]string{"ACL", "SETUSER"}, strings.Fields(n.users.defaultUser())...)} {
		if said, err := admin.do(time.Now().Add(patience), command...); err != nil || said != "+OK" {
			panic(fmt.Sprintf("%s: %s, %v", command[0], said, err))
		}
	}
	n.insist(ctx, i, "CONFIG", "SET", "appendfsync", "always")
}

// demote makes a master a replica for so long, and then a master again that has forgotten its keys,
// as happens when an operator, or a Sentinel, is wrong about it.
//
// It ends all connections, as Sentinel does: whoever connects after that sees that the master is a
// replica, or was one. So no key is forgotten before.
func (n *nemesis) demote(ctx context.Context, i int, long time.Duration) {
	if long > 0 {
		n.beReplica(ctx, i)
		n.endConnections(ctx, i)
		n.forgets()
		n.serveAsReplica(ctx, i, long)
		n.beMaster(ctx, i)
		n.endConnections(ctx, i)
	} else {
		n.demoteBriefly(ctx, i)
		n.forgets()
	}
	n.insist(ctx, i, "FLUSHALL")
}

// demoteBriefly makes a master a replica for a moment, so that most clients do not see it. Some go on
// using their connections when others see already that it was one, and no longer than these keep
// it from voting on account of the clocks (restartGuard). If that took long, it does so again.
func (n *nemesis) demoteBriefly(ctx context.Context, i int) {
	for began := clock.Now() - clockSpread; clock.Now()-began > clockSpread/2 && ctx.Err() == nil; {
		began = clock.Now()
		n.beReplica(ctx, i)
		n.beMaster(ctx, i)
		n.endConnections(ctx, i)
	}
}

// serveAsReplica has a replica take writes for so long, and drop them as one does that synchronizes
// with its master. Whoever counts its vote gives a lock to two.
func (n *nemesis) serveAsReplica(ctx context.Context, i int, long time.Duration) {
	n.insist(ctx, i, "CONFIG", "SET", "replica-read-only", "no")
	for end := clock.Now() + long; clock.Now() < end && ctx.Err() == nil; {
		n.insist(ctx, i, "FLUSHALL")
		sleep(ctx, min(50*time.Millisecond, end-clock.Now()))
	}
	n.insist(ctx, i, "CONFIG", "SET", "replica-read-only", "yes")
}

// beReplica makes a master the replica of nobody who is there, so that it keeps its keys.
func (n *nemesis) beReplica(ctx context.Context, i int) {
	n.insist(ctx, i, "REPLICAOF", "127.0.0.1", "1")
}

func (n *nemesis) beMaster(ctx context.Context, i int) { n.insist(ctx, i, "REPLICAOF", "NO", "ONE") }

func (n *nemesis) endConnections(ctx context.Context, i int) {
	n.insist(ctx, i, "CLIENT", "KILL", "SKIPME", "yes")
}
