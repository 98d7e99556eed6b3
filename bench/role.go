package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// The benchmark starts itself for what must not run in the measured process:
// the far masters' proxy, and who takes part in a hand-over.

// roleVar names the environment variable that tells a child its role.
const roleVar = "REDBURST_BENCH_ROLE"

// roles are what a child can be. Each reads its task from in and lives until
// in ends, so none outlives its parent.
var roles = map[string]func(in *bufio.Reader, out io.Writer) error{
	"candidate": serveCandidate,
	"far":       serveFar,
	"heir":      serveHeir,
	"runner":    serveRunner,
}

// playRole does a child's work, and reports false in the parent.
func playRole() bool {
	role, ok := roles[os.Getenv(roleVar)]
	if !ok {
		return false
	}
	if err := role(bufio.NewReader(os.Stdin), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// A child is a process in a role.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startChild(role string, task any) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(exe)}
	c.cmd.Env = append(os.Environ(), roleVar+"="+role)
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	if err := json.NewEncoder(c.in).Encode(task); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// tell sends the child one word, and hear returns the next it says.
func (c *child) tell(word string) error {
	_, err := fmt.Fprintln(c.in, word)
	return err
}

func (c *child) hear() (string, error) { return hear(c.out) }

func hear(r *bufio.Reader) (string, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	return line[:len(line)-1], nil
}

// readTask decodes the line that startChild sent.
func readTask(in *bufio.Reader, task any) error {
	line, err := hear(in)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(line), task)
}

// Close ends the child and waits for it.
func (c *child) Close() error {
	c.in.Close()
	return c.cmd.Wait()
}
