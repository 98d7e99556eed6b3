//go:build (linux || darwin || freebsd) && !redburst_portable

package flight

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// mapped says that files are mapped, and locked.
const mapped = true

func mapFile(f *os.File, size int) ([]byte, error) {
	return unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

func unmapFile(memory []byte) { unix.Munmap(memory) }

// lockFile keeps other processes from recording to the file, for as long as it is open.
func lockFile(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errors.New("another process records to it: put %p into the name, which is the process's id")
	}
	return err
}

// unlockFile is for a program that is being started: until then it has our files, and their locks.
func unlockFile(f *os.File) { unix.Flock(int(f.Fd()), unix.LOCK_UN) }
