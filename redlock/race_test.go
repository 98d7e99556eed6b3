//go:build race

package redlock

// raceEnabled: the race detector makes sync.Pool forget, and everything slow.
const raceEnabled = true
