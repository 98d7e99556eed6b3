package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// deathSignal makes the kernel kill the command when redlock is killed (SIGKILL): nobody
// would then renew its lock, or end it when the lock has expired. Linux ties that to
// the thread that starts the command, and forgets it when the command changes its user.
func deathSignal(sys *syscall.SysProcAttr) { sys.Pdeathsig = syscall.SIGKILL }

// adoptOrphans makes us the parent of processes that the command leaves behind. So we see
// at once when they end, without depending on when init reaps them, and none of them gets
// out of our sight by leaving its parent, its group or its session.
func adoptOrphans() {
	const prSetChildSubreaper = 36
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
}

// hideSecrets keeps our environment and our memory, where passwords are, from processes of our user: /proc shows both to
// them, the command among them. One that may trace all processes, as those of root, sees them all the same. Nor is there a core dump.
func hideSecrets() {
	const prSetDumpable = 4
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
}

// A relative is a process below us: the command, or one that it has started, or that such
// a one has.
type relative struct {
	pid    int
	born   string // when, in ticks of the kernel; a later process can have the same pid
	name   string // of its program
	parent int
	group  int
	dead   bool // it has ended, and its parent has not asked for its status yet
}

func (r relative) String() string { return fmt.Sprintf("%d (%s)", r.pid, r.name) }

// relativeOf looks at a process.
func relativeOf(pid int) (r relative, ok bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat") // pid (name) state parent group ...
	begin, end := strings.IndexByte(string(text), '('), strings.LastIndexByte(string(text), ')')
	if err != nil || begin < 0 || end < begin {
		return relative{}, false
	}
	fields := strings.Fields(string(text[end+1:]))
	if len(fields) < 20 {
		return relative{}, false
	}
	r = relative{pid: pid, name: string(text[begin+1 : end]), born: fields[19]}
	r.parent, _ = strconv.Atoi(fields[1])
	r.group, _ = strconv.Atoi(fields[2])
	// The first thread of a process can end before the others.
	r.dead = fields[0] == "X" || fields[0] == "Z" && fields[17] == "1"
	return r, true
}

// below returns the living processes below us, without those that are to be spared and what
// is below these. It is one look while processes come and go: one that has just lost its
// parent can be missing. Without a /proc there are none.
func below(spared map[int]string) (all []relative) {
	self := os.Getpid()
	if name, err := os.Readlink("/proc/self"); err != nil || name != strconv.Itoa(self) { // it is of other pids
		return nil
	}
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	children := map[int][]relative{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if r, ok := relativeOf(pid); ok && spared[pid] != r.born {
			children[r.parent] = append(children[r.parent], r)
		}
	}
	for next := children[self]; len(next) > 0; next = next[1:] {
		next = append(next, children[next[0].pid]...)
		if !next[0].dead {
			all = append(all, next[0])
		}
	}
	return all
}

// present returns the processes that are below us, and when they were born. Those that they
// start later are not told apart from the command's once their parents have ended.
func present() map[int]string {
	all := map[int]string{}
	if _, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err == syscall.ECHILD {
		return all // without a look at all processes there are
	}
	for _, r := range below(nil) {
		all[r.pid] = r.born
	}
	return all
}

// send sends the process a signal. One that has ended needs none, nor does another that has
// its pid now.
func (r relative) send(s syscall.Signal) error {
	p, err := os.FindProcess(r.pid) // which holds on to it, where the kernel has pidfds
	if err != nil {
		return err
	}
	defer p.Release()
	if now, ok := relativeOf(r.pid); !ok || now.born != r.born {
		return nil
	}
	if err := p.Signal(s); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}
