package tracking

import (
	"testing"
	"unsafe"

	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/resp/resptest"
	"github.com/stretchr/testify/require"
)

// listens returns a listener that has subscribed to keys.
func listens(t *testing.T, r *Registry, slots, threshold int, keys ...string) *Listener {
	l := new(Listener)
	l.Init(r)
	l.Listen(slots, threshold, keys...)
	t.Cleanup(l.End)
	return l
}

// registry returns one in which nobody sleeps, so that it needs no Mux.
func registry() *Registry {
	r := new(Registry)
	r.Init(new(round.Core))
	return r
}

func TestWatchersAreNotifiedOfTheirKey(t *testing.T) {
	r := registry()
	k, j := listens(t, r, 1, 1, "k"), listens(t, r, 1, 1, "j")
	toldOf := func(push string) (of []string) {
		Invalidated(resptest.Parse([]byte(push)), func(key []byte) { r.Push(0, key) })
		for i, l := range []*Listener{k, j} {
			if l.TakeNotified() {
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
	k.End()
	require.Equal(t, []string{"j"}, toldOf(">2\r\n$10\r\ninvalidate\r\n_\r\n"))
}

// Masters that are lost can be the last that are needed, as they notify of nothing any more.
func TestWaiterIsNotifiedOfLostMasters(t *testing.T) {
	r := registry()
	l := listens(t, r, 1, 2, "k")
	r.Disconnected(0)
	require.False(t, l.TakeNotified())
	r.Disconnected(1)
	require.True(t, l.TakeNotified())
	for range 3 { // anew, when they are back
		l.Listen(1, 2, "k")
		r.Disconnected(2)
		require.False(t, l.TakeNotified())
	}
}

// A waiter for a lock is notified when a majority has changed its key, and of no other key.
func TestWaiterIsNotifiedOfItsKey(t *testing.T) {
	r := registry()
	l := listens(t, r, 1, 2, "k")
	r.Push(0, []byte("k"))
	r.Push(1, []byte("l"))
	require.False(t, l.TakeNotified())
	r.Push(1, []byte("k"))
	require.True(t, l.TakeNotified())
	l.Listen(1, 2, "k")
	r.Push(1, []byte("k"))
	require.False(t, l.TakeNotified(), "it has begun anew")
}

// A waiter for a permit is notified of each slot, and of no lock with another number of them.
func TestWaiterForAPermitIsNotifiedOfItsSlots(t *testing.T) {
	r := registry()
	l := listens(t, r, 3, 2, "{k}:permit:")
	changed := func(slot string) {
		for master := range 2 {
			r.Push(master, []byte("{k}:permit:"+slot))
		}
	}
	for _, another := range []string{"2/4", "2/2", "1/1"} {
		changed(another)
		require.False(t, l.TakeNotified(), another)
	}
	changed("2/3")
	require.True(t, l.TakeNotified())
	for _, slot := range []string{"1/3", "2/3", "3/3"} { // one master says so, and another says nothing any more
		l.Listen(3, 2, "{k}:permit:")
		r.Push(0, []byte("{k}:permit:"+slot))
		require.False(t, l.TakeNotified(), slot)
		r.Disconnected(1)
		require.True(t, l.TakeNotified(), slot)
	}
}

// Several may want to be told of one key, some of other keys, too. Whoever leaves takes nobody along, and may use the memory
// of its keys again.
func TestNobodyEndsTheSubscriptionOfAnother(t *testing.T) {
	r := registry()
	for gone := range 3 {
		memory := [3][]byte{[]byte("k"), []byte("k"), []byte("k")}
		var all [3]*Listener
		for i := range all {
			all[i] = listens(t, r, 1, 1, unsafe.String(&memory[i][0], 1), string(rune('l'+i)))
		}
		all[gone].End()
		memory[gone][0] = 'z'
		r.Push(0, []byte("k"))
		for i, l := range all {
			require.Equal(t, i != gone, l.TakeNotified(), "%d, without %d", i, gone)
			l.End()
		}
		require.Empty(t, r.Keys())
	}
}
