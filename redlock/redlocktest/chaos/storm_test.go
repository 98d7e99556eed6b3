//go:build linux

package main

import (
	"errors"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// mute are masters that answer nothing.
type mute struct{ roaming }

func (mute) N() int                         { return 1 }
func (mute) Do(int, ...string) (any, error) { return nil, errors.New("no answer") }
func (mute) end(int)                        {}

func TestAnErrorAfterAStormHidesNoViolation(t *testing.T) {
	p := &process{name: "client-1", journal: filepath.Join(t.TempDir(), "client-1"), cmd: exec.Command("true"), gone: make(chan struct{})}
	require.NoError(t, p.cmd.Run())
	close(p.gone)
	a := &arena{roaming: mute{}, traffic: mute{}, resource: newResource(false), fleet: &fleet{all: []*process{p}}}
	f, _, _, err := a.verdict(t.Context(), trial{}, 0)
	require.NoError(t, err)
	require.Equal(t, []string{
		"client-1: the end of its records is missing",
		"keys: no answer",
		"explain: client-1 has ended by itself, and left no flight record",
	}, f.Violations)
}
