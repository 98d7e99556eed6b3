//go:build unix && !solaris && !illumos && !aix

package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

// A process is the running command, with all that it has started.
//
// It is a process group of its own, so that a signal reaches the whole of it:
// a shell that is told to end does not tell its children. But a terminal has one
// foreground group at a time, which is ours at first. So
//
//   - Ctrl-C reaches us, and the rest of the job that we are part of: a script,
//     the other commands of a pipeline. We pass it on.
//   - When the command wants to read from the terminal, the kernel stops it
//     (SIGTTIN). We notice that, lend it the terminal and let it go on. From then
//     on Ctrl-C reaches the command alone. If it dies of Ctrl-C, we pass that on to
//     the rest of the job.
//   - When the command is suspended (Ctrl-Z), we suspend ourselves and the rest of
//     the job, so that the shell takes over. The lock is not renewed meanwhile. If
//     the job is resumed too late, we end the command before it can go on.
type process struct {
	group int           // the group's id, which is the command's process id
	ended <-chan result // gets one result, when the command itself has ended
	holds func() bool   // reports whether the lock is still ours

	spared map[int]string // processes below us that it has nothing to do with, and when they were born
	guard  *guard         // nil without a shell, or when it is over
	empty  bool           // nothing is left of the group: its id can become that of another

	tty  int  // a descriptor of the controlling terminal, -1 without one
	lent bool // the command's group is in the terminal's foreground
}

// passedOn are the signals that we pass on to the command. Those that were ignored when
// we started, because of nohup(1) for example, stay ignored by both.
func passedOn() (all []os.Signal) {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGALRM, syscall.SIGWINCH} {
		if !signal.Ignored(s) {
			all = append(all, s)
		}
	}
	// Writing to a pipe that nobody reads must not end us while the command runs.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return all
}

// asksToEnd reports whether a signal usually ends the process that gets it.
func asksToEnd(s os.Signal) bool {
	switch s {
	case syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM:
		return true
	}
	return false
}

// statusOf is the exit status that shells give to a process that s has ended.
func statusOf(s os.Signal) int { return 128 + int(s.(syscall.Signal)) }

// startProcess starts the program at path, or returns errOver if holds reports, at the last moment, that the lock is not
// ours any more. From then on, signals also receives those that matter only while a command runs (SIGTSTP).
func startProcess(path string, argv, env []string, holds func() bool, signals chan<- os.Signal) (*process, error) {
	adoptOrphans()
	spared := present() // whoever became us by an exec may have had children
	guard := startGuard()
	if guard != nil {
		if r, ok := relativeOf(guard.pid); ok {
			spared[guard.pid] = r.born
		}
	}
	hideSecrets()
	tty, err := syscall.Open("/dev/tty", syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NOCTTY, 0)
	if err != nil {
		tty = -1 // a service, or a cron job
	}
	ended := make(chan result, 1)
	p := &process{ended: ended, holds: holds, spared: spared, guard: guard, tty: tty}
	if tty >= 0 {
		signal.Notify(signals, syscall.SIGTSTP)
	}
	started := make(chan error)
	go p.run(path, argv, env, started, ended)
	err = <-started
	switch {
	case guard == nil:
	case err != nil:
		guard.close()
	default:
		fmt.Fprintln(guard, p.group)
	}
	return p, err
}

// A guard is a shell that kills the command's group when we are killed (SIGKILL): then the kernel
// closes our end of its pipe. deathSignal alone would spare the children of the command, and a
// command that has changed its user.
type guard struct {
	*os.File // what it reads
	pid      int
}

// guarding kills the group whose number it reads, unless it is told afterwards that this is over.
const guarding = `trap '' HUP INT QUIT TERM
read -r group && ! read -r over && kill -s KILL -- "-$group"`

// startGuard returns nil if there is no shell.
func startGuard() *guard {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil
	}
	defer r.Close()
	files := []uintptr{r.Fd(), null.Fd(), null.Fd()}
	// It ends a little later than we do, and must not keep a file or a flock(1) of our caller until then.
	for range highest() - 2 {
		files = append(files, ^uintptr(0)) // which closes it
	}
	// A session of its own keeps the signals of a terminal away from it.
	pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", guarding}, &syscall.ProcAttr{
		Dir: "/", Files: files, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		w.Close()
		return nil
	}
	return &guard{w, pid}
}

// highest is the greatest descriptor that we have; at least 9, which is as far as most shells go.
func highest() int {
	last := 9
	dir, err := os.Open("/dev/fd")
	if err != nil {
		return last
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil {
			last = max(last, fd)
		}
	}
	return last
}

func (g *guard) close() {
	g.Close()
	go syscall.Wait4(g.pid, nil, 0, nil) // or it is a zombie until we run another command
}

// leave lets what is left of the command outlive us.
func (p *process) leave() {
	if p.guard != nil {
		fmt.Fprintln(p.guard, "over")
		p.guard.close()
		p.guard = nil
	}
}

// run starts the command and waits for its end.
func (p *process) run(path string, argv, env []string, started chan<- error, ended chan<- result) {
	runtime.LockOSThread() // see deathSignal
	defer func() {
		if p.tty >= 0 {
			syscall.Close(p.tty)
		}
	}()
	sys := &syscall.SysProcAttr{Setpgid: true}
	deathSignal(sys)
	signal.Reset(syscall.SIGTTOU) // which an earlier command has had us ignore
	if !p.holds() {               // the latest look that there can be
		started <- errOver
		return
	}
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: sys})
	p.group = pid
	// The kernel stops a process in the background that takes the terminal, or writes to one that is set to tostop,
	// unless it ignores this signal.
	signal.Ignore(syscall.SIGTTOU)
	started <- os.NewSyscallError("exec", err)
	if err != nil {
		return
	}
	for {
		var status syscall.WaitStatus
		who, err := syscall.Wait4(-1, &status, syscall.WUNTRACED, nil)
		switch {
		case err == syscall.EINTR, err == nil && who != pid: // an orphan: see adoptOrphans
			continue
		case err == nil && status.Stopped():
			p.stopped(status.StopSignal())
			continue
		}
		lent := p.lent
		if lent {
			p.takeTerminal()
		}
		switch {
		case !status.Signaled():
			ended <- result{status: status.ExitStatus()}
		case status.Signal() == syscall.SIGINT && p.tty >= 0:
			ended <- result{statusOf(syscall.SIGINT), func() { dieOfInterrupt(lent) }}
		default:
			ended <- result{status: statusOf(status.Signal())}
		}
		return
	}
}

// pass sends a signal to the whole group, if there is one still.
func (p *process) pass(s os.Signal) error {
	if p.empty {
		return nil
	}
	err := syscall.Kill(-p.group, s.(syscall.Signal))
	if err == syscall.ESRCH {
		return nil
	}
	return err
}

// terminate asks all of it to end.
func (p *process) terminate() error {
	err := p.pass(syscall.SIGTERM)
	p.pass(syscall.SIGCONT) // a stopped process does not act on SIGTERM
	p.terminateStrays()
	return err
}

// terminateStrays asks what has left the group to end.
func (p *process) terminateStrays() {
	for _, r := range below(p.spared) {
		if r.group != p.group {
			r.send(syscall.SIGTERM)
			r.send(syscall.SIGCONT)
		}
	}
}

// kill kills all of it that there is now.
func (p *process) kill() error {
	err := p.pass(syscall.SIGKILL)
	for _, r := range below(p.spared) {
		r.send(syscall.SIGKILL)
	}
	return err
}

// gone reports whether nothing of it is left. Call it only after the command itself has
// ended.
func (p *process) gone() bool {
	for {
		if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != nil || pid <= 0 {
			break
		}
	}
	if !p.empty && syscall.Kill(-p.group, 0) == syscall.ESRCH {
		p.empty = true
		p.leave() // nor may the guard kill another group
	}
	// A second look finds what was missing in the first one.
	return p.empty && len(below(p.spared)) == 0 && len(below(p.spared)) == 0
}

// finish kills what is left, also what that starts meanwhile, and returns what it cannot end.
// Call it only after the command itself has ended.
func (p *process) finish() (left []string) {
	for began := time.Now(); !p.gone(); time.Sleep(10 * time.Millisecond) {
		left = nil
		denied := true
		for _, r := range below(p.spared) {
			left = append(left, r.String())
			denied = r.send(syscall.SIGKILL) == syscall.EPERM && denied
		}
		switch late := time.Since(began) > killTime; {
		case len(left) > 0 && (denied || late):
			return left
		case late:
			return []string{fmt.Sprintf("process group %d", p.group)}
		}
	}
	return nil
}

// killTime is for how long a process that is killed may take to end: it gives its memory back first.
const killTime = 5 * time.Second

// stopped is called when the command was stopped by a signal.
func (p *process) stopped(s syscall.Signal) {
	switch s {
	case syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGTSTP:
	default:
		return // somebody has stopped it on purpose, and may let it go on
	}
	if p.tty < 0 {
		return
	}
	served, err := foreground(p.tty)
	switch {
	case err != nil:
	case s == syscall.SIGTSTP:
		p.suspend()
	case served == syscall.Getpgrp():
		if setForeground(p.tty, p.group) == nil {
			p.lent = true
			p.pass(syscall.SIGCONT)
		}
	case served == p.group:
		p.pass(syscall.SIGCONT)
	default: // we are in the background as well
		p.suspend()
	}
}

// suspend stops us, as the command was stopped, and returns when the job is resumed.
func (p *process) suspend() {
	resumed := make(chan os.Signal, 1)
	signal.Notify(resumed, syscall.SIGCONT)
	defer signal.Stop(resumed)
	who := os.Getpid()
	if p.lent { // then the terminal has not stopped the others of the job
		p.takeTerminal()
		who = 0
	}
	// Not SIGTSTP: once caught, Go does not give back its default action. Not SIGSTOP:
	// it would stop us even if there is no shell that could resume us.
	syscall.Kill(who, syscall.SIGTTIN)
	select {
	case <-resumed:
	case <-time.After(100 * time.Millisecond):
	}
	if p.holds() {
		p.pass(syscall.SIGCONT)
	}
}

// takeTerminal puts our own group into the terminal's foreground again.
func (p *process) takeTerminal() {
	setForeground(p.tty, syscall.Getpgrp())
	p.lent = false
}

// dieOfInterrupt ends us as Ctrl-C does, so that a script ends, too, when its command
// was interrupted. An exit status of 130 alone would not achieve that. If the terminal
// was lent, the rest of the job has not got the Ctrl-C yet.
func dieOfInterrupt(lent bool) {
	signal.Reset(syscall.SIGINT)
	if lent {
		syscall.Kill(0, syscall.SIGINT)
	} else {
		syscall.Kill(os.Getpid(), syscall.SIGINT)
	}
	time.Sleep(time.Second) // it comes soon, but another thread may get it
}

// foreground is the process group in the foreground of a terminal.
func foreground(tty int) (group int, err error) {
	var id int32
	err = ioctl(tty, syscall.TIOCGPGRP, &id)
	return int(id), err
}

func setForeground(tty, group int) error {
	id := int32(group)
	return ioctl(tty, syscall.TIOCSPGRP, &id)
}

func ioctl(fd int, request uintptr, arg *int32) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(arg))); errno != 0 {
		return os.NewSyscallError("ioctl", errno)
	}
	return nil
}
