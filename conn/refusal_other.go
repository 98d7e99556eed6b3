//go:build !windows

package conn

import (
	"errors"
	"syscall"
)

// isRefusal reports whether a connection was refused.
func isRefusal(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
