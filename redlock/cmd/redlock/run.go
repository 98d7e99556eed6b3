package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/spf13/cobra"
)

func newRun() *cobra.Command {
	var r runner
	cmd := &cobra.Command{
		Use:   "run [flags] KEY -- COMMAND [ARG]...",
		Short: "Run a command while holding a lock",
		Long: `run takes the lock, runs the command, and releases the lock when the command
has ended. It renews the lock while the command runs, so the TTL can be shorter
than the command takes: it is how long others wait if this machine dies.

So the command runs one at a time. That is not once: of three hosts that begin a
short one at the same time, each runs it, one after the other. It runs once in a
period with

  --no-wait      whoever finds the lock held skips it, and does not wait. Of
                 several that begin in the same moment one has it
  --min-hold D   after success the lock is left on the masters until D has
                 passed since it was taken, so whoever comes a little later
                 skips it, too. Make D clearly shorter than the period, and
                 longer than the clocks differ: 4m for a command of every 5
                 minutes. With 5m the next one would be skipped now and then.
  --quiet        whoever skips it says nothing, so cron sends no mail. The exit
                 status is the same.

After a failure of the command the lock is released at once, so that another may
try, or left as after success with --hold-on-error. A host that dies leaves it
for D, or for the TTL if that is longer.

If the lock is lost (the masters were flushed, or no majority could be reached
until its validity had passed), run ends the command and all that it started: by
SIGTERM at once, and by SIGKILL after --grace. On Linux that includes what has
left the process group (setsid, daemons); elsewhere it is the group alone. Where
run may not end a process, because that is another user's, it says which one. A
process can escape that forks and ends again and again, and one that /proc does
not show. systemd and containers end those, too, with all of the service.

--wait covers waiting for the lock and for enough masters. On a terminal, run
says whom it waits for, unless the lock is free within a moment. A minority of
the masters may be down; run mentions it only with -v. If a master can never
serve as it is configured (a replica, a node of a cluster, a wrong password),
run says so once on stderr and goes on without it.

A master that was started less than --restart-guard ago may have forgotten
locks. It does not vote until that time has passed; a longer --wait outlasts it.
The guard is the --ttl by default, or the --min-hold if that is longer: give the
longest of all in use on these masters. Masters that persist every write before
they answer, and come back with their disks, need not wait (--durable).

REDLOCK_FENCE in the command's environment is a number that is greater than that
of every earlier run under this KEY. Give it to what the command writes to: if
that refuses a number lower than one it has seen, a run that was paused for
longer than its lock was valid does no harm. The masters keep it in {KEY}:fence.
A user who may not use that key gets no number, and run says so; with --fence it
fails instead.

Three flags make it another kind of lock. They do not go together.

  --also KEY   a lock on several keys, all or none. It excludes whoever holds
               one of them. Its fence is greater than that of every earlier run
               under any of them. The order means nothing. At most 64 keys.
  --shared     a reader: any number of readers hold the lock together, or one
               run without --shared alone. A run that waits for readers goes
               before readers that come later. Needs Redis 5 or later.
  --permits N  one of N permits, so that N runs go on at a time. Everybody must
               give the same N. REDLOCK_PERMIT is the number of the permit, from
               1 to N: no two runs have the same one at a time.

A reader's fence lies between those of the writers before and after it. A run
with a permit has none.

The command has the stdin, stdout and stderr of run, a process group of its own,
and REDLOCK_KEY, REDLOCK_TOKEN and the REDLOCK_MASTERS that are in force in its
environment, too. Passwords are not: a redlock in the command needs its own
(--password-file). run passes signals on to the group. If a signal ends the
command, what it leaves behind is sent SIGTERM if it has left the group, and has
--grace to end before it is killed. The lock is kept until then. If the command
ends by itself, its background processes continue without the lock. Ctrl-C and
Ctrl-Z work as usual, but a suspended command loses its lock after the TTL, and
is ended when it is resumed.

If redlock itself is killed (SIGKILL), a shell that watches it (/bin/sh) kills
the process group of the command. Without a shell Linux kills the command alone,
and only if that has not changed its user. What has left the group goes on, and
so does a command of another user if redlock is not root. It has no lock after
the TTL. Where that matters, run redlock as a service of systemd, which ends all
that belongs to it.

If REDLOCK_MASTERS_FILE names the file with the masters, a SIGHUP makes run read
it again, and is not passed on. A master that is another one in the file now is
replaced while the lock is held. Shut the old one down for good first: run does
not replace one that still answers, or may do so, as nothing comes back from it.
If its machine is gone, say so in the file, with a line 'shut down: old:6379'.
run says what it has done, and why not. It replaces one at a time, as a newcomer
does not vote at first. The command's REDLOCK_MASTERS stays what it was.

Passwords and certificates may change in their files (--password-file, --cacert,
--cert, --key, and the file with the masters) while the lock is held. run looks
at them every second, when it connects, and at a SIGHUP, and uses what is new
for new connections. What cannot be read, or what a master refuses, changes
nothing, and run says so once: it uses what was there before.

Exit status: that of the command, 128+n if signal n ended it, or
   64  wrong usage
   96  the lock was held by another for the whole --wait (-E sets another)
   97  too few masters answered, or none of them within --wait
   98  the lock was lost, or revoked, while the command ran
   99  the --max-lifetime was over before the command had ended
  126  the command cannot be executed
  127  there is no such command
` + mastersHelp,
		Example: `  redlock run lock:report -- ./report.sh --all
  redlock run --no-wait lock:migrate -- sh -c './migrate && ./verify'
  */5 * * * *  redlock run -nq --min-hold 4m lock:stats -- stats # crontab: once
  */5 * * * *  redlock run -nq lock:cleanup -- cleanup   # one at a time
  redlock run --ttl 30s --wait 5m lock:deploy -- make deploy
  redlock run --also lock:b lock:a -- ./copy.sh        # both, or neither
  redlock run --shared lock:catalogue -- ./export.sh   # beside other readers
  redlock run --permits 4 lock:gpu -- ./train.sh       # up to four at a time
  redlock run lock:shell -- bash                       # hold it by hand`,
		Args: keyAndCommand,
		RunE: func(cmd *cobra.Command, args []string) error {
			if r.grace < 0 {
				return usageError("", "--grace cannot be below zero")
			}
			if r.holdOnError && r.minHold == 0 {
				return usageError("", "--hold-on-error says for how long only with --min-hold")
			}
			if err := r.checkFlags(cmd); err != nil {
				return err
			}
			return r.run(args[0], args[1:])
		},
	}
	cmd.SetFlagErrorFunc(commandFlagError)
	r.register(cmd)
	r.registerWait(cmd)
	r.registerKind(cmd)
	r.registerGrace(cmd)
	flags := cmd.Flags()
	flags.DurationVar(&r.lifetime, "max-lifetime", 0, "end the command and give the lock up after this time (default: never)")
	flags.DurationVar(&r.minHold, "min-hold", 0, "leave the lock after success until this time has passed since it was taken, so that the command runs once in it")
	flags.BoolVar(&r.holdOnError, "hold-on-error", false, "... also after a failure of the command")
	return cmd
}

// A runner runs a command under a lock.
type runner struct {
	acquirer
	grace       time.Duration
	holdOnError bool
	endsAll     bool // what the command leaves running is ended
}

func (r *runner) registerGrace(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&r.grace, "grace", 10*time.Second, "how long the command may take from SIGTERM to SIGKILL when the lock is lost")
}

func (r *runner) run(key string, argv []string) error {
	path, err := lookPath(argv[0])
	if err != nil {
		return err
	}
	client, err := r.acquire(key)
	if err != nil {
		return err
	}
	defer r.close(client)
	held, stop := r.mutex.KeepAlive(context.Background())
	defer stop()
	p, err := startProcess(path, argv, r.environment(key, r.mutex.Token(), r.mutex.Fence()), func() bool { return held.Err() == nil }, r.signals)
	var end result
	before := "the command was started"
	switch {
	case err == nil:
		end = r.supervise(p, held)
		before = fmt.Sprintf("the command ended, with status %d", end.status)
	case err != errOver:
		r.release(false)
		return &failure{exitNoExec, fmt.Errorf("%s: %w", argv[0], err), ""}
	}
	lost, still := context.Cause(held), r.mutex.Remaining() > 0
	revoked := errors.Is(lost, redlock.ErrRevoked) // then the next one is to have the lock when the command has ended
	released := r.release(err == nil && !revoked && (end.status == 0 || r.holdOnError))
	missed := errors.Is(released, redlock.ErrNotHeld) // which only the release has found out
	if lost == nil && missed {
		lost = released
	}
	still = still && !missed
	masters := client.Stats().Masters
	r.close(client) // then the monitor has seen everything
	switch {
	case errors.Is(lost, redlock.ErrMaxLifetime):
		remedy := ""
		if err == nil && !still {
			remedy = anotherToo
		}
		return &failure{exitLifetime, fmt.Errorf("the --max-lifetime of %v was over before %s", r.lifetime, before), remedy}
	case errors.Is(lost, redlock.ErrRevoked):
		remedy := ""
		if err == nil {
			remedy = afterRevocation(released)
		}
		return &failure{exitLost, fmt.Errorf("the lock was revoked before %s: %w", before, lost), remedy}
	case lost != nil:
		remedy := ""
		if err == nil {
			remedy = r.monitor.aftermath(lost, still, masters)
		}
		return &failure{exitLost, fmt.Errorf("the lock was lost before %s: %w", before, lost), remedy}
	case end.last != nil:
		allSaid()
		end.last()
	}
	return exitWith(end.status)
}

// errOver means that the command was not started, as the lock was over by then.
var errOver = errors.New("the lock is over")

// A result is how the command ended.
type result struct {
	status int    // as shells have it: its exit status, or 128+n for signal n
	last   func() // if not nil, ends ourselves in the same way
}

// environment returns the environment of the command. It has what the command can use the lock with, and
// no secrets of the masters. What a run around this one has set is not in it: that is of another lock.
func (r *runner) environment(key, token string, fence uint64) []string {
	ours := []string{"REDLOCK_KEY", "REDLOCK_TOKEN", "REDLOCK_FENCE", "REDLOCK_PERMIT", "REDLOCK_MASTERS", fileVariable, "REDLOCK_PREFIX", "REDLOCK_PASSWORD", "REDLOCK_SENTINEL_PASSWORD"}
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(ours, name)
	})
	set := r.inForce()
	env = append(env, "REDLOCK_MASTERS="+set.handedOn(), "REDLOCK_KEY="+key)
	if prefix := r.key(""); prefix != "" {
		env = append(env, "REDLOCK_PREFIX="+prefix)
	}
	return append(env, r.variables(token, fence)...)
}

// exitWith is nil for 0.
func exitWith(status int) error {
	if status == 0 {
		return nil
	}
	return &failure{status: status}
}

// lookPath finds the program, before the lock is taken for it.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil:
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", &failure{exitNoFile, fmt.Errorf("%s: command not found", name), ""}
	}
	return "", &failure{exitNoExec, fmt.Errorf("%s: cannot be executed: %w", name, err), ""}
}

// supervise returns when the command has ended. It ends it if the lock is lost. It serves the signals and the grace, so
// nothing that can block is done here: see speech.
func (r *runner) supervise(p *process, held context.Context) (end result) {
	defer p.leave()
	var (
		lost   = held.Done()    // nil once that is known
		asked  time.Time        // when somebody last asked it to end
		told   bool             // all of it was asked to end, also what has left its group
		over   bool             // it has ended, but perhaps not all that it has started
		killed bool             // all of it was killed
		kill   <-chan time.Time // when the grace is over
		look   <-chan time.Time // when to look again whether all is over
	)
	for {
		select {
		case s := <-r.signals:
			if r.rereads(s) {
				continue
			}
			if asksToEnd(s) {
				asked = time.Now()
			}
			r.check(p.pass(s))
		case <-lost:
			lost = nil
			kill = time.After(r.grace)
			var s signalled
			why := context.Cause(held)
			if errors.As(why, &s) { // which is passed on
				continue
			}
			err := p.terminate()
			told = true
			switch {
			case errors.Is(why, redlock.ErrMaxLifetime):
				complain(fmt.Sprintf("the --max-lifetime of %v is over: ending the command", r.lifetime), "")
			case errors.Is(why, redlock.ErrRevoked):
				complain("the lock is revoked: ending the command", "")
			default:
				complain("the lock is lost: ending the command", "")
			}
			r.check(err)
		case <-kill:
			r.check(p.kill())
			if killed = true; over {
				r.finish(p)
				return end
			}
		case end = <-p.ended:
			// If the signal was long ago, it was not meant to end the command: SIGHUP
			// often means to reload.
			unasked := lost != nil && held.Err() == nil && time.Since(asked) > r.grace
			switch {
			case unasked && !r.endsAll:
				return end
			case killed:
				r.finish(p)
				return end
			case p.gone():
				return end
			case unasked:
				r.check(p.terminate())
			case !told: // the group has got the signal that has asked
				p.terminateStrays()
			}
			over, look = true, time.After(0)
			if kill == nil {
				kill = time.After(r.grace)
			}
		case <-look:
			began := time.Now()
			if p.gone() {
				return end
			}
			look = time.After(10*time.Millisecond + 4*time.Since(began)) // a look at many processes takes time
		}
	}
}

// finish ends what is left of the command after the grace, and says what it cannot end.
func (r *runner) finish(p *process) {
	if left := p.finish(); len(left) > 0 {
		complain("what the command has started goes on, as it cannot be ended: "+strings.Join(left, ", "),
			"it is another user's, or hangs in the kernel: end it by hand")
	}
}

// check says if a signal could not be sent: the command runs as another user.
func (r *runner) check(err error) {
	if err != nil {
		complain(fmt.Sprintf("the command cannot be sent a signal: %v", err), "")
	}
}
