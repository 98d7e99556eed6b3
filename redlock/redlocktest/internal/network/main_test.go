//go:build linux

package network_test

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// aloneEnv is set in the environment of the process that runs the tests.
const aloneEnv = "REDBURST_NETWORK_ALONE"

// TestMain runs the tests in a process that has a namespace of its own, so that it can be a node,
// and what the tests use within this process is in that one.
func TestMain(m *testing.M) {
	runAsAnother()
	if os.Getenv(aloneEnv) == "" {
		program, err := os.Executable()
		if err != nil {
			panic(err)
		}
		alone := exec.Command(program, os.Args[1:]...)
		alone.Env = append(os.Environ(), aloneEnv+"=yes")
		alone.Stdin, alone.Stdout, alone.Stderr = os.Stdin, os.Stdout, os.Stderr
		alone.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		if alone.Start() == nil {
			alone.Wait()
			os.Exit(alone.ProcessState.ExitCode())
		}
		fmt.Fprintln(os.Stderr, "it is not permitted to run the tests in a network namespace")
	}
	os.Exit(m.Run())
}
