package main

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/stretchr/testify/require"
)

// All commands write times in UTC, wherever they run.
func TestTimesAreInUTC(t *testing.T) {
	here := time.Local
	t.Cleanup(func() { time.Local = here })
	time.Local = time.FixedZone("elsewhere", 5*3600)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	require.Equal(t, "2026-01-01 22:04:05 UTC", timeText(at))
	require.Equal(t, "2026-01-01 22:04 UTC", clockText(at))
	require.Regexp(t, `^\d\d:\d\d UTC$`, clockText(time.Now()))
	e := newWatchEvent("k", redlock.LockInfo{}, nil)
	require.Contains(t, e.String(), " UTC  k: ")
	text, err := json.Marshal(e)
	require.NoError(t, err)
	require.Regexp(t, `"time":"[^"]*Z"`, string(text))
}
