package main

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

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
var startEmbedded func(n int) (demoServers, error)

// redisServers are redis-servers that do not outlive this process.
type redisServers struct {
	bin     string
	group   *processes.Group
	servers []redisServer
}

type redisServer struct {
	port    int
	process *os.Process
	exited  chan struct{}
}

func startRedisServers(n int) (demoServers, error) {
	bin, err := processes.RedisServer()
	if err != nil {
		return nil, err
	}
	group, err := processes.NewGroup("redlock-demo")
	if err != nil {
		return nil, err
	}
	r := &redisServers{bin, group, make([]redisServer, n)}
	errs := make([]error, n)
	var starting sync.WaitGroup
	for i := range n {
		starting.Go(func() {
			if r.servers[i].port, errs[i] = freePort(); errs[i] == nil {
				errs[i] = r.start(i)
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
func (r *redisServers) start(i int) error {
	s := &r.servers[i]
	socket, logfile := filepath.Join(r.group.Dir, strconv.Itoa(i)), filepath.Join(r.group.Dir, strconv.Itoa(i)+".log")
	log, err := os.Create(logfile)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(r.bin, "--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--unixsocket", socket,
		"--save", "", "--appendonly", "no")
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = r.group.Dir, log, log, r.group.Member()
	cmd.Env = append(os.Environ(), "LC_ALL=C") // newer ones refuse a locale that is not installed
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		cmd.Wait()
		close(exited)
	}()
	s.process, s.exited = cmd.Process, exited
	for {
		if c, err := net.Dial("unix", socket); err == nil {
			return c.Close()
		}
		select {
		case <-exited:
			text, _ := os.ReadFile(logfile)
			return fmt.Errorf("%s ended at once; it says: %s", filepath.Base(r.bin), bytes.TrimSpace(text))
		case <-time.After(time.Millisecond):
		}
	}
}

func (r *redisServers) Addrs() (all []string) {
	for _, s := range r.servers {
		all = append(all, fmt.Sprintf("127.0.0.1:%d", s.port))
	}
	return all
}

func (r *redisServers) PID(i int) int { return r.servers[i].process.Pid }

func (r *redisServers) Pause(i int) error { return processes.Stop(r.servers[i].process) }

func (r *redisServers) Resume(i int) error { return processes.Continue(r.servers[i].process) }

func (r *redisServers) Kill(i int) error {
	r.servers[i].process.Kill() // fails only if it has ended by itself
	<-r.servers[i].exited
	return nil
}

func (r *redisServers) Restart(i int) error { return r.start(i) }

func (r *redisServers) Close() {
	for i, s := range r.servers {
		if s.process != nil {
			r.Kill(i)
		}
	}
	r.group.Close()
}
