package redlock

import (
	"testing"
	"time"
	"unsafe"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp/resptest"
	"github.com/stretchr/testify/require"
)

// listens returns a listener that has subscribed to keys.
func listens(t *testing.T, c *Client, slots, threshold int, keys ...string) *listener {
	l := new(listener)
	l.init(&c.core)
	l.listen(slots, threshold, keys...)
	t.Cleanup(l.end)
	return l
}

// pushes has a client take a push.
func (ns *notices) pushes(master int, push string) {
	invalidated(resptest.Parse([]byte(push)), func(key []byte) { ns.push(master, key) })
}

// A master whose connection has ended does not notify of what it has promised. So watchers look again.
func TestWatchersAreNotifiedOfADisconnect(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := opened(t, masters.Addrs(), nil)
	l := listens(t, c, 1, 1, "k")
	require.False(t, l.takeNotified())
	masters.Kill(1)
	require.Eventually(t, func() bool { return c.round.Mux.Masters()[1].Phase != mux.Up }, hanging, 5*time.Millisecond)
	require.True(t, l.takeNotified())
}

func TestWatchersAreNotifiedOfTheirKey(t *testing.T) {
	c, _ := newFake(t, 3, Config{})
	k, j := listens(t, c, 1, 1, "k"), listens(t, c, 1, 1, "j")
	toldOf := func(push string) (of []string) {
		c.notices.pushes(0, push)
		for i, l := range []*listener{k, j} {
			if l.takeNotified() {
				of = append(of, "kj"[i:i+1])
			}
		}
		return of
	}
	for range 2 { // each change
		require.Equal(t, []string{"k"}, toldOf(">2\r\n$10\r\ninvalidate\r\n*2\r\n$1\r\nx\r\n$1\r\nk\r\n"))
		require.Equal(t, []string{"k", "j"}, toldOf(">2\r\n$10\r\ninvalidate\r\n_\r\n"), "FLUSHALL")
	}
	require.Empty(t, toldOf(">2\r\n$10\r\ninvalidate\r\n*2\r\n$1\r\nx\r\n_\r\n"))
	require.Empty(t, toldOf(">2\r\n$7\r\nmessage\r\n*1\r\n$1\r\nk\r\n"))
	k.end()
	require.Equal(t, []string{"j"}, toldOf(">2\r\n$10\r\ninvalidate\r\n_\r\n"))
}

// Masters that are lost can be the last that are needed, as they notify of nothing any more.
func TestWaiterIsNotifiedOfLostMasters(t *testing.T) {
	c, _ := newFake(t, 3, Config{})
	l := listens(t, c, 1, 2, "k")
	c.notices.disconnected(0)
	require.False(t, l.takeNotified())
	c.notices.disconnected(1)
	require.True(t, l.takeNotified())
	for range 3 { // anew, when they are back
		l.listen(1, 2, "k")
		c.notices.disconnected(2)
		require.False(t, l.takeNotified())
	}
}

// A waiter for a lock is notified when a majority has changed its key, and of no other key.
func TestWaiterIsNotifiedOfItsKey(t *testing.T) {
	c, _ := newFake(t, 3, Config{})
	l := listens(t, c, 1, 2, "k")
	c.notices.push(0, []byte("k"))
	c.notices.push(1, []byte("l"))
	require.False(t, l.takeNotified())
	c.notices.push(1, []byte("k"))
	require.True(t, l.takeNotified())
	l.listen(1, 2, "k")
	c.notices.push(1, []byte("k"))
	require.False(t, l.takeNotified(), "it has begun anew")
}

// A waiter for a permit is notified of each slot, and of no lock with another number of them.
func TestWaiterForAPermitIsNotifiedOfItsSlots(t *testing.T) {
	c, _ := newFake(t, 3, Config{})
	l := listens(t, c, 2, 2, "{k}:permit:")
	changed := func(slot string) {
		for master := range 2 {
			c.notices.push(master, []byte("{k}:permit:"+slot))
		}
	}
	changed("2/3")
	require.False(t, l.takeNotified())
	changed("2/2")
	require.True(t, l.takeNotified())
}

// Several may want to be told of one key, some of other keys, too. Whoever leaves takes nobody along, and may use the memory
// of its keys again.
func TestNobodyEndsTheSubscriptionOfAnother(t *testing.T) {
	c, _ := newFake(t, 3, Config{})
	for gone := range 3 {
		memory := [3][]byte{[]byte("k"), []byte("k"), []byte("k")}
		var all [3]*listener
		for i := range all {
			all[i] = listens(t, c, 1, 1, unsafe.String(&memory[i][0], 1), string(rune('l'+i)))
		}
		all[gone].end()
		memory[gone][0] = 'z'
		c.notices.push(0, []byte("k"))
		for i, l := range all {
			require.Equal(t, i != gone, l.takeNotified(), "%d, without %d", i, gone)
			l.end()
		}
		require.Empty(t, c.notices.byKey)
	}
}
