//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func TestADoubledMasterTakesThePlaceOfAnother(t *testing.T) {
	masters, direct := []string{"a", "b", "c", "d", "e"}, []string{"A", "B", "C", "D", "E"}
	seen := make(map[string]int)
	for seed := range uint64(100) {
		list := doubled(masters, direct, seed)
		require.Equal(t, list, doubled(masters, direct, seed))
		changed := 0
		for i := range list {
			if list[i] == masters[i] {
				continue
			}
			changed++
			seen[list[i]]++
			require.NotEqual(t, direct[i], list[i], "it stands there already")
			require.Contains(t, direct, list[i])
		}
		require.Equal(t, 1, changed)
	}
	require.Len(t, seen, len(direct))
	require.Equal(t, "a", masters[0], "they are the stranger's, too")
}

func TestADoubledMasterIsConnectedOnce(t *testing.T) {
	redlocktest.Start(t, 0) // skips, or fails, where there is no Redis
	locks := []lockable{{Kind: plain, Keys: []string{"a"}, TTL: minute}}
	a, err := newArena(masterCount, locks, clientConfig{Name: "one", Doubled: true}, false, nil)
	require.NoError(t, err)
	defer a.close()
	stranger := redlock.Config{Masters: a.fleet.config.Masters}
	_, err = redlock.Open(t.Context(), stranger)
	require.ErrorContains(t, err, "NOAUTH", "other users of the machine take no part")
	c := &client{clientConfig: a.fleet.config, opened: make(chan struct{})}
	c.journal, err = openJournal(filepath.Join(t.TempDir(), "journal"))
	require.NoError(t, err)
	defer c.journal.file.Close()
	c.open()
	defer c.lock.Close()
	require.Equal(t, ok, c.whole())
	refused := 0
	for _, s := range c.lock.Stats().Masters {
		if strings.Contains(s.Err, mux.ErrDuplicate.Error()) {
			refused++
		}
	}
	require.Equal(t, 1, refused)
	c.Doubled = false
	m := c.lock.NewMutex("a", minute)
	require.Eventually(t, func() bool { // an answer may be owed before
		return strings.Contains(c.missing(m), mux.ErrDuplicate.Error())
	}, patience, ms)
}

// What it opens in vain is collected. The file of its log must not be closed then: the next file that it opens would be
// written to by the log.
func TestALogOutlivesWhatWasOpenedInVain(t *testing.T) {
	t.Setenv("GOGC", "1")
	a, err := newArena(masterCount, []lockable{violated(plain, "k")}, clientConfig{Holder: true}, false, nil)
	require.NoError(t, err)
	defer a.close()
	for i := range masterCount {
		a.masters.Break(i)
	}
	p, err := a.fleet.start(0)
	require.NoError(t, err)
	log := fmt.Sprintf("/proc/%d/fd/%d", p.cmd.Process.Pid, logFile)
	pipe, err := os.Readlink(log)
	require.NoError(t, err)
	require.NoError(t, a.await(t.Context(), func(seen []outcomeCounts) bool {
		inVain := 0
		for _, n := range seen[0][opOpen] {
			inVain += n
		}
		return inVain >= 3
	}))
	for i := range masterCount {
		a.masters.Heal(i)
	}
	require.NoError(t, a.await(t.Context(), func(seen []outcomeCounts) bool { return all(seen, opTry, ok) }))
	now, err := os.Readlink(log)
	require.NoError(t, err)
	require.Equal(t, pipe, now)
}
