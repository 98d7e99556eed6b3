package redlock

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/line"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// closedInTime closes a client, and reports whether that took less time than it gives to what is still to
// be sent. On a busy machine it may not, and leave something. Then all masters forget what the pattern says,
// and the test is to try again.
func closedInTime(t *testing.T, masters *redlocktest.Masters, c *Client, pattern string) bool {
	t.Helper()
	began := time.Now()
	require.NoError(t, c.Close())
	if time.Since(began) < closeLinger {
		return true
	}
	time.Sleep(closeLinger) // what is under way arrives
	for i := range masters.N() {
		Says(t, masters, i, "EVAL", "for _, key in ipairs(redis.call('KEYS', '"+pattern+"')) do redis.call('DEL', key) end", "0")
	}
	return false
}

// A client that is closed while its goroutines wait leaves nothing of its queues on any master.
func TestClosedClientLeavesItsQueues(t *testing.T) {
	t.Parallel()
	masters, holds := started(t, 3)
	for n, try := 0, 0; n < 5; try++ {
		var keys []string // what comes late on a busy machine is in no later queue
		for _, key := range []string{"a", "b", "c", "d"} {
			keys = append(keys, fmt.Sprint(key, try))
			require.NoError(t, holds.NewMutex(keys[len(keys)-1], term30).Lock(t.Context()))
		}
		closes := opened(t, masters.Addrs(), nil)
		var ended []<-chan error
		for _, key := range keys {
			ended = append(ended, queuesUp(t, masters, closes.NewMutex(key, term30), 0))
			for range 5 {
				ended = append(ended, locks(t, closes.NewMutex(key, term30)))
			}
		}
		ended = append(ended, locks(t, closes.NewMutex(keys[0], term30, WithKeys(keys[1:3]...))))
		for i := range masters.N() { // whatever is left stays
			Says(t, masters, i, "EVAL", "for _, key in ipairs(redis.call('KEYS', '*:line*')) do redis.call('PERSIST', key) end", "0")
		}
		inTime := closedInTime(t, masters, closes, "*:line*")
		for _, e := range ended {
			require.ErrorIs(t, conntest.Soon(t, "it returns", e), ErrClosed)
		}
		if inTime {
			n++
			noQueue(t, masters)
		}
	}
}

// A client that is closed while a writer of it waits takes the writer's intent away: readers go on.
func TestClosedClientTakesItsIntentsAway(t *testing.T) {
	t.Parallel()
	masters, c := started(t, 3)
	reader, late := c.NewMutex("k", term30, WithShared()), c.NewMutex("k", term30, WithShared())
	require.NoError(t, reader.Lock(t.Context()))
	for n := 0; n < 5; {
		closes := opened(t, masters.Addrs(), nil)
		done := locks(t, closes.NewMutex("k", term30))
		require.Eventually(t, func() bool { // it leaves the intent when it sees readers come and go
			if late.TryLock(t.Context()) == nil {
				late.Unlock(t.Context())
			}
			return intents(t, masters, "k") == 3
		}, hanging, 10*time.Millisecond)
		for i := range 3 { // whatever is left stays
			Says(t, masters, i, "PERSIST", kind.IntentKey("k"))
		}
		inTime := closedInTime(t, masters, closes, "*:writer")
		require.ErrorIs(t, conntest.Soon(t, "it returns", done), ErrClosed)
		if inTime {
			n++
			require.Eventually(t, func() bool { return intents(t, masters, "k") == 0 }, hanging, 5*time.Millisecond)
		}
	}
}

// The entries of those who are the first live on, though they are too many for one operation.
func TestEntriesOfLongKeysLiveOn(t *testing.T) {
	t.Parallel()
	const n = 90
	masters := redlocktest.Start(t, 1)
	holds, waits := opened(t, masters.Addrs(), nil), opened(t, masters.Addrs(), nil)
	var ended []<-chan error
	ctx, cancel := context.WithCancel(t.Context())
	for i := range n {
		key := strings.Repeat(string(rune('a'+i%26))+string(rune('a'+i/26)), maxKey/2)
		require.NoError(t, holds.NewMutex(key, time.Minute).TryLock(t.Context()))
		done := make(chan error, 1)
		go func() { done <- waits.NewMutex(key, time.Minute).Lock(ctx) }()
		ended = append(ended, done)
	}
	alive := func() int {
		return len(Says(t, masters, 0, "KEYS", "*:alive").([]any))
	}
	require.Eventually(t, func() bool { return alive() == n }, time.Minute, 10*time.Millisecond)
	for tries := 5; ; tries-- { // those that nobody renews come again when their waiters look, and end each time
		time.Sleep(kind.EntryLife + line.EntryPause) // they would end meanwhile, on a real master
		if alive() == n {
			break
		}
		require.Positive(t, tries, "some are not renewed; a busy machine may be late now and then")
	}
	cancel()
	for _, done := range ended {
		require.ErrorIs(t, conntest.Soon(t, "it returns", done), context.Canceled)
	}
}
