//go:build unix

package secondtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/redlock/internal/processes"
)

// Processes is a directory and the servers that run in it. Neither outlives this process.
type Processes struct{ *processes.Group }

// NewProcesses makes a directory for servers.
func NewProcesses() (*Processes, error) {
	group, err := processes.NewGroup("secondtest")
	return &Processes{group}, err
}

// A Server is a process that can be killed and started again.
type Server struct {
	// Command makes the command that starts it.
	Command func() *exec.Cmd
	// Ready returns nil once it serves.
	Ready func() error

	processes *Processes
	name      string
	mu        sync.Mutex
	cmd       *exec.Cmd
	exited    chan struct{}
}

// Server makes a server, and does not start it. What it writes goes to a file of its name in Dir.
func (p *Processes) Server(name string, command func() *exec.Cmd, ready func() error) *Server {
	return &Server{Command: command, Ready: ready, processes: p, name: name}
}

// Begin starts the server and does not wait until it serves.
func (s *Server) Begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = s.Command()
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = s.processes.Member()
	if err := s.cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	s.exited = exited
	go func() {
		s.cmd.Wait()
		close(exited)
	}()
	return nil
}

// StartAll starts servers side by side, and waits until all of them serve.
func StartAll(servers []*Server) error {
	for _, s := range servers {
		if err := s.Begin(); err != nil {
			return err
		}
	}
	for _, s := range servers {
		if err := s.Await(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) log() string { return filepath.Join(s.processes.Dir, s.name+".log") }

// Await waits until the server serves.
func (s *Server) Await() error {
	var err error
	for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = s.Ready(); err == nil {
			return nil
		}
		select {
		case <-s.exited:
			return fmt.Errorf("%s has ended: %s", s.name, s.tail())
		default:
		}
	}
	return fmt.Errorf("%s does not serve: %w: %s", s.name, err, s.tail())
}

func (s *Server) tail() string {
	text, _ := os.ReadFile(s.log())
	return strings.TrimSpace(string(text[max(0, len(text)-4000):]))
}

// Kill kills the server, as SIGKILL does.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cmd.Process.Kill()
	<-s.exited
}

// Restart starts a server that was killed, and waits until it serves.
func (s *Server) Restart(t testing.TB) {
	require.NoError(t, s.Begin())
	require.NoError(t, s.Await())
}

// Pause stops the server, as SIGSTOP does, and returns when all of its threads have stopped.
func (s *Server) Pause(t testing.TB) { require.NoError(t, processes.Stop(s.cmd.Process)) }

// Resume lets a paused server go on.
func (s *Server) Resume() { processes.Continue(s.cmd.Process) }
