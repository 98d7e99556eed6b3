package main

import "syscall"

// deathSignal has the command killed when redlock is killed (SIGKILL), since
// nobody would renew its lock then, nor end it when the lock has run out. Linux
// binds that to the thread which starts the command.
func deathSignal(sys *syscall.SysProcAttr) { sys.Pdeathsig = syscall.SIGKILL }

// adoptOrphans makes us the parent of what the command leaves behind, so that we
// see at once when that has ended, and not when somebody else's init has looked.
func adoptOrphans() {
	const prSetChildSubreaper = 36
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
}
