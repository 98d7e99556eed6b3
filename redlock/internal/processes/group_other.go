//go:build !unix

package processes

import (
	"errors"
	"os"
	"syscall"
)

// Supported tells whether this system has process groups, and processes can be stopped.
const Supported = false

// A Group is a directory, and nothing more where there are no process groups.
type Group struct{ Dir string }

// NewGroup makes a directory, whose name begins with name.
func NewGroup(name string) (*Group, error) {
	dir, err := os.MkdirTemp("", name)
	return &Group{dir}, err
}

// member is nil: a new process needs nothing.
func (g *Group) member() *syscall.SysProcAttr { return nil }

// Close removes the directory.
func (g *Group) Close() { os.RemoveAll(g.Dir) }

// Stop fails.
func (p *Process) Stop() error {
	return errors.New("a redis-server can be paused on Unix only; embedded masters can be paused everywhere")
}

// Continue does nothing, as nothing is stopped.
func (p *Process) Continue() error { return nil }
