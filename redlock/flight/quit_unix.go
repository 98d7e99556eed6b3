//go:build unix

package flight

import "syscall"

const quitSignal = syscall.SIGQUIT
