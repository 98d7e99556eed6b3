//go:build unix

package secondtest

import (
	"fmt"
	"os/exec"
	"path/filepath"
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
	process   *processes.Process // nil before the first start
}

// Server makes a server, and does not start it. What it writes goes to a file of its name in Dir.
func (p *Processes) Server(name string, command func() *exec.Cmd, ready func() error) *Server {
	return &Server{Command: command, Ready: ready, processes: p, name: name}
}

// Begin starts the server and does not wait until it serves.
func (s *Server) Begin() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cmd := s.Command()
	s.process, err = s.processes.Start(cmd, cmd.Start, filepath.Join(s.processes.Dir, s.name+".log"))
	return err
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

// Await waits until the server serves.
func (s *Server) Await() error {
	if err := s.process.Await(time.Minute, s.Ready); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// Kill kills the server, as SIGKILL does.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process.End()
}

// Restart starts a server that was killed, and waits until it serves.
func (s *Server) Restart(t testing.TB) {
	require.NoError(t, s.Begin())
	require.NoError(t, s.Await())
}

// Pause stops the server, as SIGSTOP does, and returns when all of its threads have stopped.
func (s *Server) Pause(t testing.TB) { require.NoError(t, s.process.Stop()) }

// Resume lets a paused server go on.
func (s *Server) Resume() { s.process.Continue() }
