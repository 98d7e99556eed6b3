//go:build unix

package processes

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Supported tells whether this system has process groups, and processes can be stopped.
const Supported = true

// A Group is a directory and a process group that do not outlive this process,
// however it ends.
//
// A shell leads the group and reads from a pipe that only this process can
// write to. When this process is gone the kernel closes the pipe, and the shell
// removes the directory and kills its group, itself included. No signal handler
// is involved, which SIGKILL would pass by and which would take signals away
// from the program. Nor is there a moment in which a server could be missed: a
// forked child still holds the pipe's end, and lets it go by its exec, when it
// is a member of the group. (Linux's Pdeathsig looks simpler, but it waits for
// the death of the thread that forked, and it is only Linux's.)
type Group struct {
	Dir    string
	leader *exec.Cmd
	pipe   io.Closer
}

const guard = `trap '' HUP INT TERM
read -r _line
rm -rf "$1"
kill -s KILL -- "-$$"`

// NewGroup makes a directory, whose name begins with name, and a process group.
func NewGroup(name string) (*Group, error) {
	dir, err := tempDir(name)
	if err != nil {
		return nil, err
	}
	g := &Group{Dir: dir, leader: exec.Command("sh", "-c", guard, "sh", dir)}
	g.leader.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if g.pipe, err = g.leader.StdinPipe(); err == nil {
		err = g.leader.Start()
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return g, nil
}

// tempDir makes a directory whose path is short enough for a Unix socket in it:
// that may have 104 bytes.
func tempDir(name string) (string, error) {
	parent, err := filepath.Abs(os.TempDir())
	if err != nil {
		return "", err
	}
	if len(parent) > 60 {
		parent = "/tmp"
	}
	return os.MkdirTemp(parent, name)
}

// member makes a new process a member of the group.
func (g *Group) member() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pgid: g.leader.Process.Pid}
}

// Close removes the directory and kills what is left of the group.
func (g *Group) Close() {
	g.pipe.Close()
	g.leader.Wait() // it was killed, by itself
	os.RemoveAll(g.Dir)
}

// Stop stops the process, and returns when all of its threads have stopped. If it has ended, the error is
// [os.ErrProcessDone].
func (p *Process) Stop() error { return Stop(p.cmd.Process) }

// Stop stops a child, as [Process.Stop] does.
func Stop(p *os.Process) error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(p.Pid, &status, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR:
		case err == syscall.ECHILD: // another wait has heard of its end
			return os.ErrProcessDone
		case err != nil:
			return os.NewSyscallError("wait4", err)
		case status.Stopped():
			return nil
		default:
			return os.ErrProcessDone
		}
	}
}

// Continue lets a stopped process go on.
func (p *Process) Continue() error { return p.cmd.Process.Signal(syscall.SIGCONT) }
