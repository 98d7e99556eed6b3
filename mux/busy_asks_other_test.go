//go:build !linux || redburst_portable

package mux_test

const busyPoll = 0
