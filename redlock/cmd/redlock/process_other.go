//go:build !unix || solaris || illumos || aix

package main

import (
	"os"
)

// A process is the running command. This system has no process groups to which a signal
// could be sent, so it is the command alone. It shares our console: Ctrl-C reaches it
// without our help.
type process struct {
	*os.Process
	ended <-chan result // gets one result, when the command has ended
}

// passedOn are the signals that do not end us while the command runs.
func passedOn() []os.Signal { return []os.Signal{os.Interrupt} }

func asksToEnd(s os.Signal) bool { return s == os.Interrupt }

// statusOf is the exit status that shells give to a process that was interrupted.
func statusOf(os.Signal) int { return 130 }

func startProcess(path string, argv, env []string, holds func() bool, _ chan<- os.Signal) (*process, error) {
	if !holds() {
		return nil, errOver
	}
	child, err := os.StartProcess(path, argv, &os.ProcAttr{Env: env, Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return nil, err
	}
	ended := make(chan result, 1)
	go func() {
		state, err := child.Wait()
		if err != nil {
			ended <- result{status: exitNoExec}
			return
		}
		ended <- result{status: state.ExitCode()}
	}()
	return &process{child, ended}, nil
}

// pass does nothing: the console tells the command itself.
func (p *process) pass(os.Signal) error { return nil }

// terminate ends the command: there is no way to ask it to.
func (p *process) terminate() error { return p.Kill() }

func (p *process) kill() error { return p.Kill() }

// What the command has started cannot be known here.
func (p *process) terminateStrays()        {}
func (p *process) gone() bool              { return true }
func (p *process) finish() (left []string) { return nil }
func (p *process) leave()                  {}
