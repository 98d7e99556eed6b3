package processes

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// WriteProgram writes a file that is to be executed. Nothing is forked while it is open: a child would have it open, too,
// until it executes something itself, and Linux executes no file that is open for writing (ETXTBSY).
func WriteProgram(path string, text []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, text, 0o755)
}

// A Process is a member of a group.
type Process struct {
	cmd    *exec.Cmd
	log    string
	exited chan struct{} // closed when it is gone
}

// Start calls start, which starts cmd. The process is a member of the group, and writes to the file log, which is
// emptied first.
func (g *Group) Start(cmd *exec.Cmd, start func() error, log string) (*Process, error) {
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = file, file, g.member()
	if err := start(); err != nil {
		return nil, err
	}
	p := &Process{cmd, log, make(chan struct{})}
	go func() {
		cmd.Wait() // how it ended does not matter
		close(p.exited)
	}()
	return p, nil
}

// Await returns nil when ready does. It fails if the process ends before, or the limit has passed. The error has
// what the process has written.
func (p *Process) Await(limit time.Duration, ready func() error) error {
	began := time.Now()
	for p.Alive() {
		err := ready()
		if err == nil {
			return nil
		}
		waited := time.Since(began)
		if waited >= limit {
			return p.failed(fmt.Sprintf("does not serve: %v", err))
		}
		time.Sleep(min(time.Millisecond+waited/16, 20*time.Millisecond))
	}
	return p.failed("ended at once")
}

func (p *Process) failed(how string) error {
	return fmt.Errorf("%s %s; it says: %s", filepath.Base(p.cmd.Path), how, bytes.TrimSpace(p.Log()))
}

// Log returns the last of what the process has written.
func (p *Process) Log() []byte {
	text, _ := os.ReadFile(p.log)
	return text[max(0, len(text)-4000):]
}

// PID returns the id of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Alive reports whether the process has not ended. One that is nil has never begun.
func (p *Process) Alive() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// End kills the process if it is alive, and waits until it is gone.
func (p *Process) End() {
	if p.Alive() { // otherwise its id may be another's
		p.cmd.Process.Kill() // fails only if it has ended by itself
		<-p.exited
	}
}
