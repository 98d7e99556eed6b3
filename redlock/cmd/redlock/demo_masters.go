package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/redburst/redburst/redlock/internal/processes"
)

// demoServers are masters that the demo has started, numbered from 0.
type demoServers interface {
	Addrs() []string
	PID(i int) int // 0 if it is no process of its own
	Pause(i int) error
	Resume(i int) error
	Kill(i int) error
	Restart(i int) error
	Close()
}

// startEmbedded starts n masters inside this process. It is nil unless the command was built with the
// tag redburst_embedded: those who only use the command need no Redis in Go.
var startEmbedded func(n int, password string) (demoServers, error)

// redisServers are redis-servers that do not outlive this process.
type redisServers struct {
	bin     string
	conf    string // the file that has the password: all users of the machine see a command line
	group   *processes.Group
	servers []redisServer
}

type redisServer struct {
	port    int
	process *processes.Process // nil before the first start
}

func startRedisServers(n int, password string) (demoServers, error) {
	bin, err := processes.RedisServer()
	if err != nil {
		return nil, err
	}
	group, err := processes.NewGroup("redlock-demo")
	if err != nil {
		return nil, err
	}
	r := &redisServers{bin, filepath.Join(group.Dir, "redis.conf"), group, make([]redisServer, n)}
	if err := os.WriteFile(r.conf, []byte("requirepass "+password+"\n"), 0o600); err != nil {
		r.Close()
		return nil, err
	}
	errs := make([]error, n)
	var starting sync.WaitGroup
	for i := range n {
		starting.Go(func() {
			for range 10 { // another process can take a port that was free a moment ago
				if r.servers[i].port, errs[i] = freePort(); errs[i] == nil {
					errs[i] = r.start(i)
				}
				if errs[i] == nil || !strings.Contains(errs[i].Error(), "already in use") {
					return
				}
			}
		})
	}
	starting.Wait()
	if err := cmp.Or(errs...); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// freePort returns a port below those that systems give to outgoing connections: else a client that dials
// a killed master again could get the master's port as its own. It is none of redlocktest's.
func freePort() (port int, err error) {
	for range 100 {
		port = 12000 + rand.IntN(3000)
		var l net.Listener
		if l, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, err
}

// start starts a server and waits until it serves. It opens its Unix socket, which nobody else has, after
// its port.
func (r *redisServers) start(i int) (err error) {
	s := &r.servers[i]
	socket := filepath.Join(r.group.Dir, strconv.Itoa(i))
	cmd := exec.Command(r.bin, r.conf, "--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--unixsocket", socket,
		"--save", "", "--appendonly", "no")
	cmd.Dir = r.group.Dir
	cmd.Env = append(os.Environ(), "LC_ALL=C") // newer ones refuse a locale that is not installed
	if s.process, err = r.group.Start(cmd, cmd.Start, socket+".log"); err != nil {
		return err
	}
	return s.process.Await(demoLimit, func() error {
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
		}
		return err
	})
}

func (r *redisServers) Addrs() (all []string) {
	for _, s := range r.servers {
		all = append(all, fmt.Sprintf("127.0.0.1:%d", s.port))
	}
	return all
}

func (r *redisServers) PID(i int) int { return r.servers[i].process.PID() }

func (r *redisServers) Pause(i int) error { return r.servers[i].process.Stop() }

func (r *redisServers) Resume(i int) error { return r.servers[i].process.Continue() }

func (r *redisServers) Kill(i int) error {
	r.servers[i].process.End()
	return nil
}

func (r *redisServers) Restart(i int) error { return r.start(i) }

func (r *redisServers) Close() {
	for _, s := range r.servers {
		s.process.End()
	}
	r.group.Close()
}
