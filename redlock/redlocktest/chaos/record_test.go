//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/redburst/redburst/redlock"
	"github.com/stretchr/testify/require"
)

func TestJournalOfAKilledClientIsReadToItsLastWholeRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	records, err := readJournal(path)
	require.NoError(t, err, "it has not begun yet")
	require.Empty(t, records)

	j, err := openJournal(path)
	require.NoError(t, err)
	defer j.file.Close()
	want := []record{{T: 1, Op: opTry, Key: "k", Outcome: "held"}, {T: 2, Op: opLook, Hold: 3, Until: 4}}
	for _, r := range want {
		j.add(r)
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for end := range text {
		require.NoError(t, os.WriteFile(path, text[:end], 0o600))
		records, err := readJournal(path)
		require.NoError(t, err)
		require.Equal(t, want[:len(records)], append([]record{}, records...))
	}

	require.NoError(t, os.WriteFile(path, []byte("{}\n{\n"), 0o600))
	_, err = readJournal(path)
	require.Error(t, err)
}

func TestErrorsHaveNames(t *testing.T) {
	live := context.Background()
	ended, cancel := context.WithCancel(live)
	cancel()
	require.Equal(t, "ok", name(live, nil))
	require.Equal(t, "held", name(live, fmt.Errorf("lock: %w", redlock.ErrHeld)))
	require.Equal(t, "lost+not held", name(live, errors.Join(redlock.ErrNotHeld, redlock.ErrLost)))
	require.Equal(t, "no quorum+cancelled", name(ended, errors.Join(context.Canceled, redlock.ErrNoQuorum)))
	require.Equal(t, `"EOF"`, name(live, errors.New("EOF")))
	require.Equal(t, `"context canceled"`, name(live, context.Canceled), "the context has not ended")
}

func TestCounterStopsAWriterWhoHasReadAnOldCount(t *testing.T) {
	c, err := newFileCounter(filepath.Join(t.TempDir(), "counter"))
	require.NoError(t, err)
	for want := range 3 {
		n, err := c.read()
		require.NoError(t, err)
		require.Equal(t, want, n)
		written, err := c.increment(n)
		require.NoError(t, err)
		require.True(t, written)
		for old := range n + 1 {
			written, err = c.increment(old)
			require.NoError(t, err)
			require.False(t, written)
		}
	}
}
