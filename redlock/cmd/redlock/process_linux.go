package main

import "syscall"

// deathSignal makes the kernel kill the command when redlock is killed (SIGKILL): nobody
// would then renew its lock, or end it when the lock has expired. Linux ties that to
// the thread that starts the command.
func deathSignal(sys *syscall.SysProcAttr) { sys.Pdeathsig = syscall.SIGKILL }

// adoptOrphans makes us the parent of processes that the command leaves behind, so that
// we see at once when they end. Otherwise we would depend on when init reaps them.
func adoptOrphans() {
	const prSetChildSubreaper = 36
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
}
