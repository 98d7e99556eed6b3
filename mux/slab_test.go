package mux

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/conntest"
)

// Whatever the order in which flights are taken and given back, none is two operations' at
// once, and none loses its text to another.
func TestNoFlightIsTakenTwice(t *testing.T) {
	t.Parallel()
	for range conntest.Many(4, 20) {
		var m Mux
		var taken []*flight
		texts := map[*flight][]byte{}
		most := 1 + rand.IntN(3000)
		for range 20_000 {
			if rand.IntN(most) >= len(taken) {
				op := &Op{Fallback: bytes.Repeat([]byte{byte(rand.N(256))}, rand.IntN(2*minText))}
				if rand.IntN(100) == 0 {
					op.Fallback = bytes.Repeat(op.Fallback, 30)
				}
				f := m.takeFlight(op, time.Second)
				require.Zero(t, f.refs)
				_, twice := texts[f]
				require.False(t, twice)
				f.refs = 1
				texts[f] = op.Fallback
				taken = append(taken, f)
				continue
			}
			k := rand.IntN(len(taken))
			f := taken[k]
			taken[k] = taken[len(taken)-1]
			taken = taken[:len(taken)-1]
			require.True(t, bytes.Equal(texts[f], f.text))
			delete(texts, f)
			m.unref(f)
		}
		require.GreaterOrEqual(t, m.flights.made, len(taken))
		for _, f := range taken {
			require.True(t, bytes.Equal(texts[f], f.text))
			m.unref(f)
		}
		require.Equal(t, m.flights.made, m.flights.unused, "nobody uses one")
		require.LessOrEqual(t, m.flights.unused, maxPooled)
	}
}

// What an outage has made grow is given back, though a few are in use all the time.
func TestFlightsOfAnOutageAreGivenBack(t *testing.T) {
	var m Mux
	release := &Op{Fallback: make([]byte, keepText)}
	var taken []*flight
	take := func() {
		f := m.takeFlight(release, time.Second)
		f.refs = 1
		taken = append(taken, f)
	}
	give := func() {
		m.unref(taken[0])
		taken = taken[1:]
	}
	inUse := func() (s runtime.MemStats) {
		runtime.GC()
		runtime.ReadMemStats(&s)
		return s
	}
	before := inUse()
	const outage = 20_000
	for range outage {
		take()
	}
	during := inUse()
	require.Greater(t, during.HeapAlloc-before.HeapAlloc, uint64(outage*keepText))
	require.Less(t, during.Mallocs-before.Mallocs, uint64(outage/10), "they are made in slabs")
	for k := 0; len(taken) > 1; k++ { // the time after it, when there are others
		if give(); k%3 == 0 {
			take()
		}
	}
	for range 10 * maxPooled {
		take()
		give()
	}
	taken = append([]*flight(nil), taken...)
	require.LessOrEqual(t, m.flights.made, maxPooled+2*maxSlab)
	after := inUse()
	require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(3*maxPooled*keepText))
	runtime.KeepAlive(&m)
}
