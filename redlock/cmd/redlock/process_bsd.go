//go:build unix && !linux && !solaris && !illumos && !aix

package main

import "syscall"

// These systems offer neither: both do nothing.
func deathSignal(*syscall.SysProcAttr) {}
func adoptOrphans()                    {}
