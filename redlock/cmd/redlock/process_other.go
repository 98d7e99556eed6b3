//go:build !unix || solaris || illumos || aix

package main

import "os"

// A process is the command under way. Where there are no process groups that a
// signal could be sent to, that is the command itself, which shares our console:
// Ctrl-C reaches it without our help.
type process struct {
	*os.Process
	ended <-chan result // told once, when the command has ended
}

// A result is how the command ended.
type result struct {
	status int
	last   func() // if not nil, how we are to end ourselves
}

// passedOn are the signals that we hear of and that do not end us.
func passedOn() []os.Signal { return []os.Signal{os.Interrupt} }

func asksToEnd(s os.Signal) bool { return s == os.Interrupt }

// statusOf is a shell's exit status of who was interrupted.
func statusOf(os.Signal) int { return 130 }

func startProcess(path string, argv, env []string, _ func() bool, _ chan<- os.Signal) (*process, error) {
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

// gone is true: what the command has started cannot be known.
func (p *process) gone() bool { return true }
