//go:build linux

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/redburst/redburst/redlock/internal/processes"
	"github.com/stretchr/testify/require"
)

// mute are masters that answer nothing.
type mute struct{ roaming }

func (mute) N() int                         { return 1 }
func (mute) Do(int, ...string) (any, error) { return nil, errors.New("no answer") }
func (mute) end(int)                        {}

// ended are clients of one program, which has ended by itself.
func ended(t *testing.T, program string) *fleet {
	p := &process{name: "client-1", journal: filepath.Join(t.TempDir(), "client-1"), cmd: exec.Command(program)}
	p.gone = make(chan struct{})
	p.cmd.Run() // how it ends is in the ProcessState
	close(p.gone)
	return &fleet{all: []*process{p}}
}

func TestAnErrorAfterAStormHidesNoViolation(t *testing.T) {
	a := &arena{roaming: mute{}, traffic: mute{}, resource: newResource(false), fleet: ended(t, "true")}
	f, _, _, err := a.verdict(t.Context(), trial{}, 0)
	require.NoError(t, err)
	require.Equal(t, []string{
		"client-1: the end of its records is missing",
		"keys: no answer",
		"no lock was taken",
		"explain: client-1 has ended by itself, and left no flight record",
	}, f.Violations)
}

func TestTheDeathOfAClientIsNotWhatWasPlanted(t *testing.T) {
	a := &arena{resource: newResource(false), fleet: ended(t, "false")}
	_, err := a.finish(t.Context(), trial{})
	require.EqualError(t, err, "client-1 died: exit status 1\n")
}

func TestWhatIsKeptOutlivesTheArena(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	g, err := processes.NewGroup("a")
	require.NoError(t, err)
	a := &arena{group: g, dir: g.Dir}
	require.NoError(t, os.WriteFile(filepath.Join(a.dir, "records"), nil, 0o600))
	dir := a.keep()
	defer os.RemoveAll(dir)
	a.close()
	require.FileExists(t, filepath.Join(dir, "records"))
	require.NoDirExists(t, a.dir)
}
