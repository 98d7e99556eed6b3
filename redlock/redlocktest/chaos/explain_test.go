//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/flight"
	"github.com/redburst/redburst/redlock/internal/story"
	"github.com/stretchr/testify/require"
)

// A client that was killed before its record had a head is named, and the others are judged. One that was not killed
// has a record.
func TestAClientWithoutARecordIsMissing(t *testing.T) {
	dir := t.TempDir()
	client := func(name string, record func(path string)) *process {
		p := &process{name: name, journal: filepath.Join(dir, name), cmd: exec.Command("true"), killed: true}
		require.NoError(t, p.cmd.Run())
		record(p.journal + flightSuffix)
		return p
	}
	whole := func(path string) {
		r, err := flight.New(flight.Options{File: path})
		require.NoError(t, err)
		require.NoError(t, r.Close())
	}
	file := func(text []byte) func(string) {
		return func(path string) { require.NoError(t, os.WriteFile(path, text, 0o600)) }
	}
	first := client("whole", whole)
	text, err := os.ReadFile(first.journal + flightSuffix)
	require.NoError(t, err)
	a := &arena{fleet: &fleet{all: []*process{first,
		client("none", func(string) {}), client("empty", file(nil)), client("begun", file(text[:4])), client("half", file(text[:30])),
		client("zeros", file(make([]byte, 1<<16))), client("whole-too", whole)}}}
	_, missing, err := a.explain()
	require.NoError(t, err)
	require.Equal(t, []string{"none", "empty", "begun", "half", "zeros"}, missing)

	a.fleet.all[1].killed = false
	_, _, err = a.explain()
	require.ErrorContains(t, err, "none has ended by itself")
}

// A finding tells of what was planted if it has the masters, the time and grounds, and is certain.
func TestAFindingTellsOfWhatWasPlanted(t *testing.T) {
	at := time.Now().Add(-time.Minute)
	on := planted{masters: []string{"a:1", "b:1"}, at: at}
	good := story.Finding{Matter: story.Overlap, At: at.Add(time.Second), Masters: []string{"b:1"}, Grounds: make([]story.Ground, 1)}
	require.True(t, on.tells(good))
	for name, change := range map[string]func(f *story.Finding){
		"another, too":  func(f *story.Finding) { f.Masters = []string{"b:1", "c:1"} },
		"nobody":        func(f *story.Finding) { f.Masters = nil },
		"perhaps":       func(f *story.Finding) { f.Maybe = true },
		"before it was": func(f *story.Finding) { f.At = at.Add(-time.Second) },
		"to come":       func(f *story.Finding) { f.At = at.Add(time.Hour) },
		"no grounds":    func(f *story.Finding) { f.Grounds = nil },
	} {
		f := good
		change(&f)
		require.False(t, on.tells(f), name)
	}
	require.False(t, planted{at: at}.tells(good), "it is no master's fault")
	good.Masters = nil
	require.True(t, planted{at: at}.tells(good))
}
