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

// A Server is a process that can be killed and started again.
type Server struct {
	Group *processes.Group // of which it is one: what it writes goes to a file of its name in Dir
	Name  string
	// Command makes the command that starts it.
	Command func() *exec.Cmd
	// Ready returns nil once it serves.
	Ready func() error

	mu      sync.Mutex
	process *processes.Process // nil before the first start
}

// Begin starts the server and does not wait until it serves.
func (s *Server) Begin() (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	cmd := s.Command()
	s.process, err = s.Group.Start(cmd, cmd.Start, filepath.Join(s.Group.Dir, s.Name+".log"))
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
		return fmt.Errorf("%s: %w", s.Name, err)
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
