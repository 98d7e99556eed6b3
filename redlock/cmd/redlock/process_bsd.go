//go:build unix && !linux && !solaris && !illumos && !aix

package main

import "syscall"

// These do nothing where they cannot be asked for.
func deathSignal(*syscall.SysProcAttr) {}
func adoptOrphans()                    {}
