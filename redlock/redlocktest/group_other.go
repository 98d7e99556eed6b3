//go:build !unix

package redlocktest

import (
	"errors"
	"os"
	"syscall"
)

// redis-server has no Unix sockets here, whatever the system has.
const unixSockets = false

// A group is a directory, and nothing more where there are no process groups.
type group struct{ dir string }

func newGroup() (*group, error) {
	dir, err := os.MkdirTemp("", "redlocktest")
	return &group{dir}, err
}

func (g *group) member() *syscall.SysProcAttr { return nil }

func (g *group) close() { os.RemoveAll(g.dir) }

func stop(*os.Process) error {
	return errors.New("a redis-server can be paused on Unix only; embedded masters can be paused everywhere")
}

func cont(*os.Process) error { return nil }
