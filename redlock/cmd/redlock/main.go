// Command redlock takes locks on independent Redis masters from a shell.
//
//	go run github.com/redburst/redburst/redlock/cmd/redlock@latest demo
//
// A subcommand has the file of its name (ls: list.go, version: main.go). That begins with its newX, which newRoot adds: the help, the flags,
// and a RunE that checks these and does the work. What goes wrong is a [failure], with an exit status and a remedy.
//
//	run, lead, hold          status, release, revoke      clients, fence      doctor, ui
//	   |         |                     |                        |                  |
//	   v         v                     v                        |                  v
//	process_*  acquire* --> status_lock, status_permits         |         doctor_inspection
//	             |                     +--------> ask <---------+                  |
//	             v                                 +---------> probe <-------------+
//	          masters <-- ls, ui, demo, status --watch, release, revoke, fence --reset-to
//
// A probe is connected to one master, and needs no majority. What masters opens is a redlock.Client of all of them, as
// masters_flags, files and variables name them.
//
//	main           the root, the version, and the exit status
//	args           the KEYs of a command line, and their completion
//	acquire*       what run, lead and hold have in common: the flags, taking and releasing the lock, who has it
//	               instead (_others), and the list of masters when it changes (_reread)
//	keyring        the passwords and certificates of a running command, when they change
//	monitor        what a running command says of its masters
//	process_*      the command that run and lead start, with all that it starts, for each system
//	signals        what a signal to us ends
//	status_*       who has a lock or a permit, as the masters' answers are counted; what --watch writes
//	ask            what each master says of a key
//	doctor_*       what is examined of a master (_inspection, _clock, _rights), and what is found
//	ui_*           who may see the page (_door), and what it shows (_state)
//	demo_*         the steps of the demo, and its masters
//	terminal       what people read on stdout; speech is for stderr, json for programs, text has the words of all
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/redburst/redburst/redlock/internal/clientname"
	"github.com/spf13/cobra"
)

// The exit statuses that are our own. Those of a lock lie between sysexits(3),
// which end at 78, and those of shells and timeout(1), which begin at 124, so
// that a command's own status is rarely taken for one of them.
const (
	exitNo       = 1  // status: the lock is free; doctor: something is wrong; demo: not as told
	exitUsage    = 64 // EX_USAGE
	exitIO       = 74 // EX_IOERR: the output cannot be written
	exitHeld     = 96
	exitNoQuorum = 97
	exitLost     = 98
	exitLifetime = 99  // the --max-lifetime is over
	exitNoExec   = 126 // as in shells: the command cannot be executed
	exitNoFile   = 127 // likewise: there is no such command
)

// These are set by the linker in released binaries.
var version, commit string

func main() {
	clientname.Program = clientname.Command
	if version != "" {
		clientname.Version = func() string { return version }
	}
	os.Exit(execute(newRoot()))
}

// A failure is an error with its exit status, and with what its reader can do.
type failure struct {
	status int
	err    error  // nil if the exit status says it all
	remedy string // may be empty
}

func (f *failure) Error() string {
	if f.err == nil {
		return fmt.Sprintf("exit status %d", f.status)
	}
	return f.err.Error()
}

func (f *failure) Unwrap() error { return f.err }

func usageError(remedy, format string, args ...any) error {
	return &failure{exitUsage, fmt.Errorf(format, args...), remedy}
}

// meant says what is like a command that other tools have.
var meant = map[string]string{
	"watch":  "'redlock status --watch KEY', or 'redlock ls --watch'",
	"list":   "'redlock ls'",
	"lock":   "'redlock run KEY -- COMMAND', or 'redlock hold KEY'",
	"unlock": "'redlock release KEY', or 'redlock revoke KEY', which has its holder stop first",
}

// execute runs the command line and returns the exit status.
func execute(root *cobra.Command) int {
	defer allSaid()
	cmd, err := root.ExecuteC()
	if err == nil {
		return 0
	}
	var f *failure
	if !errors.As(err, &f) { // it comes from cobra
		err = errors.New(strings.Join(strings.Fields(err.Error()), " ")) // which writes several lines
		f = &failure{exitUsage, err, fmt.Sprintf("'%s --help' shows how it is used", cmd.CommandPath())}
		var word string
		if fmt.Sscanf(err.Error(), "unknown command %q for", &word); meant[word] != "" {
			f.remedy = "did you mean " + meant[word] + "?"
		}
	}
	if f.err != nil {
		complain(f.err.Error(), f.remedy)
	}
	return f.status
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "redlock",
		Short: "Locks on independent Redis masters",
		Long: `redlock takes a lock on a majority of independent Redis masters (Redlock), so
that it outlives the failure of any minority of them.

A KEY is any text. Those of the examples begin with lock:, as in the ACL that
the documentation of the package conn has for a user who may only take locks.

All times that are written are in UTC. 'redlock completion --help' says how your
shell completes commands and keys.`,
		Example: `  redlock demo                                 see how it works
  export REDLOCK_MASTERS=redis-a:6379,redis-b:6379,redis-c:6379
  redlock doctor                               are these fit for locks?
  redlock run lock:report -- ./report.sh       one at a time on all hosts
  redlock status lock:report                   who holds it, and for how long?
  redlock ls 'lock:*'                          all locks, and who waits`,
		Version:       versionText(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("redlock {{.Version}}\n")
	root.Flags().Bool("version", false, "show the version") // without a -v, which means --verbose
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return unitError(err) })
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages", fmt.Sprintf(".FlagUsagesWrapped %d", width)))
	root.AddCommand(newDemo(), newRun(), newLead(), newHold(), newStatus(), newList(), newRelease(), newRevoke(), newFence(), newClients(), newDoctor(), newExplain(), newUI(), newVersion(), newMan())
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show the version",
		Example: "  redlock version",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := newTerminal(os.Stdout)
			out.printf("redlock %s\n", versionLine())
			return out.failure()
		},
	}
}

// versionLine is the version, the commit if it is known, and the version of Go that has built the command.
func versionLine() string {
	info, _ := debug.ReadBuildInfo()
	at := commit
	if at == "" && info != nil {
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" {
				at = setting.Value
			}
		}
	}
	if at = at[:min(12, len(at))]; at != "" {
		at = "commit " + at + ", "
	}
	return fmt.Sprintf("%s (%s%s)", versionText(), at, runtime.Version())
}

func versionText() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
