package kind

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An entry says who waits, and for how long. What is no note says nothing.
func TestNoteOfAnEntry(t *testing.T) {
	waited, owner, known := ReadNote(AppendNote(nil, 1500*time.Millisecond, "svc-a@host-7:311"), EntryLife-time.Second)
	require.True(t, known)
	require.Equal(t, "svc-a@host-7:311", owner)
	require.Equal(t, 2500*time.Millisecond, waited)
	_, owner, known = ReadNote(AppendNote(nil, 0, ""), time.Hour)
	require.True(t, known)
	require.Empty(t, owner)
	for _, note := range []string{"", "me", " me", "-1 me", "9999999999999999999 me", "1e3 me"} {
		_, _, known = ReadNote([]byte(note), time.Second)
		require.False(t, known, note)
	}
	_, owner, known = ReadNote([]byte("5 \x1b[2Jme"), time.Second)
	require.True(t, known)
	require.Empty(t, owner, "no owner can have this name")
}
