//go:build unix && !linux && !solaris && !illumos && !aix

package main

import "syscall"

// These systems offer none of these: they do nothing.
func deathSignal(*syscall.SysProcAttr) {}
func adoptOrphans()                    {}
func hideSecrets()                     {}

// A relative is a process that the command has started. Here we do not know of any.
type relative struct {
	born  string
	group int
}

func present() map[int]string              { return map[int]string{} }
func relativeOf(int) (r relative, ok bool) { return relative{}, false }
func below(map[int]string) []relative      { return nil }
func (relative) send(syscall.Signal) error { return nil }
func (relative) String() string            { return "" }
