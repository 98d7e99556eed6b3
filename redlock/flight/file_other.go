//go:build !(linux || darwin || freebsd) || redburst_portable

package flight

import (
	"errors"
	"os"
)

// mapped says that files are mapped, and locked.
const mapped = false

func mapFile(*os.File, int) ([]byte, error) { return nil, errors.ErrUnsupported }

func unmapFile([]byte) {}

// lockFile does nothing: two processes must not be given one file.
func lockFile(*os.File) error { return nil }

func unlockFile(*os.File) {}
