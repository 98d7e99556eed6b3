//go:build !linux

package redlocktest

import (
	"errors"
	"time"
)

// A clock is a server's wall clock. There is none here.
type clock struct{}

var errNoClocks = errors.New("redlocktest: masters have clocks of their own on Linux only")

func compiler() (string, error)               { return "", errNoClocks }
func compileClock(string) (string, error)     { return "", errNoClocks }
func newClock(string, string) (*clock, error) { return nil, errNoClocks }
func (*clock) env() []string                  { return nil }
func (*clock) used() error                    { return nil }
func (*clock) jump(time.Duration) error       { return errNoClocks }
func (*clock) drift(float64) error            { return errNoClocks }
