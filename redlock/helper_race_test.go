//go:build race

package redlock

func init() { Raced = true }
