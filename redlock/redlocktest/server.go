package redlocktest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redburst/redburst/redlock/internal/processes"
)

var errPortTaken = errors.New("its port is taken")

// A server is a master that is a redis-server process.
type server struct {
	bin       string
	dir       string // its working directory, with its log
	socket    string // Unix socket, "" where there are none
	unix      bool   // the socket is the only address
	host      Host   // nil if it runs beside us
	sentinel  string // the configuration of a sentinel, which this is then; else ""
	args      []string
	secret    string // that it demands, in a file; empty for none
	password  string // that it demands in fact: the one in args wins
	group     *processes.Group
	libraries libraries

	// Made with the directory.
	preloads []preload
	clock    *clock // nil if it has ours
	disk     *disk  // nil if it has ours

	mu      sync.Mutex
	port    int                // chosen by startAnywhere, fixed from then on
	process *processes.Process // nil before the first start
	paused  bool
}

// redis-server has no Unix sockets on other systems, whatever the system has.
const unixSockets = processes.Supported

// lookup finds the server.
func lookup() (string, error) {
	bin, err := processes.RedisServer()
	if err != nil {
		return "", fmt.Errorf("redlocktest: %w; or use embedded masters", err)
	}
	return bin, nil
}

func newServer(bin string, i int, g *processes.Group, o options) *server {
	s := &server{
		bin: bin, dir: filepath.Join(g.Dir, strconv.Itoa(i)), unix: o.unix,
		args: o.args, secret: o.secret, password: cmp.Or(password(o.args), o.secret), group: g,
	}
	if o.hosts != nil {
		s.host = o.hosts[i]
	}
	if unixSockets {
		s.socket = filepath.Join(s.dir, "redis.sock")
	}
	return s
}

// password returns the value of the last --requirepass.
func password(args []string) (p string) {
	for i, arg := range args[:max(0, len(args)-1)] {
		if arg == "--requirepass" {
			p = args[i+1]
		}
	}
	return p
}

func (s *server) addr() string {
	if s.unix {
		return "unix://" + s.socket
	}
	return net.JoinHostPort(s.ip(), strconv.Itoa(s.port))
}

func (s *server) ip() string {
	if s.host != nil {
		return s.host.Addr().String()
	}
	return "127.0.0.1"
}

// control prefers the Unix socket. It lies in our own directory, so whoever
// answers there is certainly our server, and it has opened its port: it opens
// that one first. And it is there when the port speaks TLS or nothing at all.
func (s *server) control() (network, address, password string) {
	if s.socket != "" {
		return "unix", s.socket, s.password
	}
	return "tcp", localhost(s.port), s.password
}

func (s *server) pid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.process.Alive() {
		return 0
	}
	return s.process.PID()
}

func (s *server) state() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.process.Alive():
		return ErrDown
	case s.paused:
		return ErrPaused
	}
	return nil
}

// startAnywhere starts the server for the first time, on a port of its choice.
func (s *server) startAnywhere() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return err
	}
	if err := s.prepare(); err != nil {
		return err
	}
	for range portTries {
		switch {
		case s.host != nil:
			s.port = hostPort
		case !s.unix:
			giveBack(localhost(s.port)) // that of another process
			if s.port, err = freePort(); err != nil {
				return err
			}
		}
		if err = s.start(); !errors.Is(err, errPortTaken) {
			return err
		}
	}
	return err
}

// prepare makes what the preloaded libraries share with us.
func (s *server) prepare() (err error) {
	if s.libraries.clock != "" {
		if s.clock, err = newClock(s.libraries.clock, s.dir); err != nil {
			return err
		}
		s.preloads = append(s.preloads, s.clock.preload)
	}
	if s.libraries.disk != "" {
		if s.disk, err = newDisk(s.libraries.disk, s.dir); err != nil {
			return err
		}
		s.preloads = append(s.preloads, s.disk.preload)
	}
	return nil
}

// start starts the server on its port and waits until it answers.
func (s *server) start() error {
	args := []string{"--port", strconv.Itoa(s.port), "--bind", s.ip()}
	if s.host != nil {
		args = append(args, "--protected-mode", "no") // its clients are on other hosts
	}
	if s.socket != "" {
		args = append(args, "--unixsocket", s.socket)
	}
	text := s.sentinel
	if s.secret != "" { // all users of the machine see a command line
		text += "requirepass " + s.secret + "\n"
		if s.sentinel == "" {
			text += "masterauth " + s.secret + "\n"
		}
	}
	if text != "" {
		conf := filepath.Join(s.dir, "redis.conf") // which a sentinel rewrites
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			return err
		}
		args = slices.Insert(args, 0, conf)
	}
	if s.sentinel == "" {
		args = append(args, "--save", "", "--appendonly", "no")
		args = append(args, s.args...)
	} else {
		// Redis 7.0.1 to 7.0.5 takes what stands behind it for its value.
		args = append(args, "--sentinel")
	}
	cmd := exec.Command(s.bin, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C") // newer ones refuse a locale that is not installed
	cmd.Env = append(cmd.Env, preloadEnv(s.preloads)...)
	launch := cmd.Start
	if s.host != nil {
		launch = func() error { return s.host.Do(cmd.Start) }
	}
	var err error
	if s.process, err = s.group.Start(cmd, launch, filepath.Join(s.dir, "log")); err != nil {
		return err
	}
	s.paused = false
	if err = s.process.Await(startTime, s.answers); err == nil {
		return s.used()
	}
	s.end()
	if bytes.Contains(s.process.Log(), []byte("Could not create server TCP listening socket")) {
		return fmt.Errorf("%w: %s", errPortTaken, s.addr())
	}
	return err
}

// used is nil if the server has loaded all that is preloaded.
func (s *server) used() error {
	for _, p := range s.preloads {
		if err := p.used(); err != nil {
			return err
		}
	}
	return nil
}

// answers is nil if the server replies, be it with an error. One that still
// loads its data does not serve yet.
func (s *server) answers() error {
	_, err := ask(s, time.Now().Add(startTime), "PING")
	var refused ReplyError
	if errors.As(err, &refused) && !strings.HasPrefix(string(refused), "LOADING") {
		return nil
	}
	return err
}

func (s *server) pause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.process.Alive() {
		return ErrDown
	}
	if s.paused {
		return nil
	}
	if err := s.process.Stop(); errors.Is(err, os.ErrProcessDone) {
		return ErrDown
	} else if err != nil {
		return err
	}
	s.paused = true
	return nil
}

func (s *server) resume() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.process.Alive() {
		return ErrDown
	}
	if !s.paused {
		return nil
	}
	s.paused = false
	return s.process.Continue()
}

func (s *server) kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
	return nil
}

// end kills the process if it is alive and waits until it is gone.
func (s *server) end() {
	s.process.End()
	s.paused = false
}

func (s *server) restart() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end()
	return again(s.start)
}

// again repeats start while the port that a master left is still taken.
func again(start func() error) error {
	for deadline := time.Now().Add(startTime); ; time.Sleep(10 * time.Millisecond) {
		err := start()
		if !errors.Is(err, errPortTaken) || time.Now().After(deadline) {
			return err
		}
	}
}
