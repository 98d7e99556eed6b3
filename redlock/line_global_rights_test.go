package redlock_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// queueRights returns the documented rights without those for newer servers, of them those that every
// user has whose masters notify of changes, and those that the queue between processes needs beside.
func queueRights(t *testing.T) (all, every, queue []string) {
	t.Helper()
	into := &every
	for _, l := range documentedACL(t) {
		switch _, named := l.isFor("", ""); {
		case named:
			continue
		case strings.Contains(l.said, "those who wait, in several processes, have"):
			into = &queue
		case strings.Contains(l.said, "tells waiters"), strings.Contains(l.said, "restarted"):
			into = &every
		case strings.Contains(l.said, "optional"), strings.Contains(l.said, "only for a database"):
			into = new([]string)
		}
		all, *into = append(all, l.rights...), append(*into, l.rights...) // also of a row that goes on
	}
	require.Contains(t, every, "+client|tracking")
	require.Contains(t, queue, "+zrank")
	require.Contains(t, queue, "~{lock:*}:line*")
	return all, every, queue
}

// refusals returns how often masters have refused something, and what. That a user may not keep readers
// from a lock is left out, and so are commands that some servers have and a script replaces.
func refusals(t *testing.T, masters *redlocktest.Masters) (n int, what []string) {
	t.Helper()
	for i := range masters.N() {
		v := redlock.Says(t, masters, i, "ACL", "LOG")
		for _, entry := range v.([]any) {
			said := map[string]any{}
			for pair := range slices.Chunk(entry.([]any), 2) {
				said[pair[0].(string)] = pair[1]
			}
			native := []string{"delex", "delifeq", "msetex"}
			if object := said["object"].(string); !strings.HasSuffix(object, ":writer") && !slices.Contains(native, object) {
				n, what = n+int(said["count"].(int64)), append(what, object)
			}
		}
	}
	return n, what
}

// queueUp has each of these wait for its lock, and release it. It returns who has had it. If they are to
// wait in the queue: each comes when the one before is there.
func queueUp(t *testing.T, masters *redlocktest.Masters, ms []*redlock.Mutex, queue bool) <-chan int {
	t.Helper()
	took := make(chan int, len(ms))
	for i, m := range ms {
		go func() {
			if m.Lock(t.Context()) == nil {
				took <- i
				m.Unlock(t.Context())
			}
		}()
		if queue {
			require.Eventually(t, func() bool { return entriesOf(t, masters) > i }, time.Minute, 5*time.Millisecond)
		}
	}
	return took
}

// entriesOf returns how many entries the longest queue has that any master has.
func entriesOf(t *testing.T, masters *redlocktest.Masters) (most int) {
	t.Helper()
	for i := range masters.N() {
		queues := redlock.Says(t, masters, i, "KEYS", "*:line")
		for _, queue := range queues.([]any) {
			most = max(most, int(redlock.Says(t, masters, i, "ZCARD", queue.(string)).(int64)))
		}
	}
	return most
}

// The documented rights are enough for the queue, for locks of every kind that wait in it. Of those that
// are said to be for the queue none can be missed.
func TestDocumentedACLIsEnoughForTheQueue(t *testing.T) {
	t.Parallel()
	all, every, queue := queueRights(t)
	plain := map[string][]redlock.Option{"plain": nil}
	serve := func(name string, rights []string, kinds map[string][]redlock.Option, complete bool) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			masters := startACL(t, 3, strings.Join(rights, " "))
			clients := fourWith(t, acl(masters))
			for kind, opts := range kinds {
				holder := clients[0].NewMutex("lock:"+kind, long, opts...)
				require.NoError(t, holder.TryLock(t.Context()))
				var ms []*redlock.Mutex
				for _, c := range clients[1:] {
					ms = append(ms, c.NewMutex("lock:"+kind, long, opts...))
				}
				enter := complete || name == "without +zrem" // which only those need who leave
				took := queueUp(t, masters, ms, enter)
				if !enter {
					require.Eventually(t, func() bool { n, _ := refusals(t, masters); return n > 0 }, time.Minute, 10*time.Millisecond)
				}
				require.NoError(t, holder.Unlock(t.Context()))
				var order []int
				for range ms {
					order = append(order, conntest.Soon(t, "all have the lock", took))
				}
				if complete {
					require.Equal(t, []int{0, 1, 2}, order, kind)
				}
			}
			n, what := refusals(t, masters)
			if complete {
				require.Zero(t, n, what)
			} else {
				require.Eventually(t, func() bool { n, _ := refusals(t, masters); return n > 0 }, time.Minute, 10*time.Millisecond)
			}
		})
	}
	serve("for all kinds", all, map[string][]redlock.Option{"plain": nil, "fenced": {redlock.WithFence()},
		"several": {redlock.WithKeys("lock:l")}, "permit": {redlock.WithPermits(1)}}, true)
	serve("alone", slices.Concat(every, queue), plain, true)
	for _, right := range queue {
		serve("without "+right, slices.Concat(every, remove(queue, right)), plain, false)
	}
}

func remove(rights []string, right string) []string {
	return slices.DeleteFunc(slices.Clone(rights), func(r string) bool { return r == right })
}

// fourWith opens four clients for which all of three masters are up.
func fourWith(t *testing.T, cfg redlock.Config) (clients []*redlock.Client) {
	t.Helper()
	for range 4 {
		clients = append(clients, openUp(t, cfg))
	}
	return clients
}

// Where the user may not wait in the queue, everybody has the lock all the same, and nobody asks for
// it again and again.
func TestUserWithoutTheQueuesRights(t *testing.T) {
	t.Parallel()
	_, every, queue := queueRights(t)
	for name, has := range map[string][]string{"none": nil, "not the keys": remove(queue, "~{lock:*}:line*"), "not a command": remove(queue, "+zrank")} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			masters := startACL(t, 3, strings.Join(slices.Concat(every, has), " "))
			clients := fourWith(t, acl(masters))
			for range 2 {
				holder := clients[0].NewMutex("lock:k", long)
				require.NoError(t, holder.Lock(t.Context()))
				var ms []*redlock.Mutex
				for _, c := range clients[1:] {
					ms = append(ms, c.NewMutex("lock:k", long))
				}
				took := queueUp(t, masters, ms, false)
				time.Sleep(4500 * time.Millisecond) // time to ask again and again: entries are renewed every second
				require.NoError(t, holder.Unlock(t.Context()))
				for range ms {
					conntest.Soon(t, "all have the lock", took)
				}
			}
			n, what := refusals(t, masters)
			require.NotZero(t, n)
			waiters := len(clients) // the holder, too, if it finds the key contended the second time
			require.LessOrEqual(t, n, 2*2*waiters, "each asks once, or twice if the answer is late, and leaves: %v", what)
		})
	}
}
