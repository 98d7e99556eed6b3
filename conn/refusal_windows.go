package conn

import (
	"errors"

	"golang.org/x/sys/windows"
)

// isRefusal reports whether a connection was refused.
func isRefusal(err error) bool { return errors.Is(err, windows.WSAECONNREFUSED) }
