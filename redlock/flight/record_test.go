package flight

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/redburst/redburst/redlock/internal/record"
	"github.com/stretchr/testify/require"
)

// written returns the bytes of a record of n events, on a clock that goes on by a second with each.
func written(t *testing.T, n int) []byte {
	t.Helper()
	now := time.Duration(0)
	rec := newRecorder(t, Options{Size: minSize, clock: func(time.Duration) (boot, wall time.Duration) {
		now += time.Second
		return now, now
	}})
	for i := range n {
		e := redlock.Event{Kind: redlock.EventLost, Key: fmt.Sprint("key ", i), Err: errors.New("gone")}
		behind.OfEvent(&e).Token = []byte("token")
		rec.ring.record(0, &e)
	}
	return bytesOf(t, rec)
}

// One byte that is wrong costs the events of its page from there on, and nothing else.
func TestDamageIsSeen(t *testing.T) {
	t.Parallel()
	text := written(t, 2000)
	all := of(read(t, text), record.KindLost)
	require.Len(t, all, 2000)
	require.Equal(t, (&behind.Event{Token: []byte("token")}).TokenHash(), all[0].Token)
	for range 50 {
		at := record.HeadBytes + rand.N(len(text)-record.HeadBytes)
		damaged := bytes.Clone(text)
		damaged[at] ^= 1 << rand.N(8)
		r := read(t, damaged)
		kept := of(r, record.KindLost)
		for _, e := range kept {
			require.True(t, reflect.DeepEqual(all[e.Number-1], e), e)
		}
		if len(kept) < len(all) {
			require.NotZero(t, r.Torn+r.BadPages+int(r.Missing())+len(all)-len(kept))
		}
	}
	for i := range 50 {
		n := i * len(text) / 50
		r, err := record.Read(bytes.NewReader(text[:n]))
		if n < record.HeadBytes {
			require.ErrorIs(t, err, record.ErrNoRecord)
			continue
		}
		require.NoError(t, err)
		for _, e := range of(r, record.KindLost) {
			require.True(t, reflect.DeepEqual(all[e.Number-1], e), e)
		}
	}
}

func TestOtherFilesAreRefused(t *testing.T) {
	t.Parallel()
	text := written(t, 1)
	next := bytes.Clone(text)
	next[8] = 2
	_, err := record.Read(bytes.NewReader(next))
	require.ErrorIs(t, err, record.ErrNoRecord)
	require.ErrorContains(t, err, "version 2")
	for _, at := range []int{0, 12, 16, 20} {
		bad := bytes.Clone(text)
		bad[at] ^= 0x40
		_, err := record.Read(bytes.NewReader(bad))
		require.ErrorIs(t, err, record.ErrNoRecord)
	}
	foreign := bytes.Clone(text)
	foreign[0] = 'R'
	binary.LittleEndian.PutUint32(foreign[20:], crc32.Checksum(foreign[:20], record.Castagnoli))
	_, err = record.Read(bytes.NewReader(foreign))
	require.ErrorIs(t, err, record.ErrNoRecord)
	_, err = record.Read(bytes.NewReader(nil))
	require.ErrorIs(t, err, record.ErrNoRecord)
	huge := appendHead(nil, 1<<30)
	_, err = record.Read(bytes.NewReader(append(huge, make([]byte, record.HeadBytes)...)))
	require.ErrorIs(t, err, record.ErrNoRecord)
}

// The process was killed as it wrote the last event: each byte of that can be what was there before.
func TestTornEventIsNotRead(t *testing.T) {
	t.Parallel()
	text := written(t, 3)
	last := bytes.LastIndex(text, []byte("key 2"))
	for at := last - 8; at < last+5; at++ {
		torn := bytes.Clone(text)
		torn[at] ^= 1
		r := read(t, torn)
		require.Len(t, of(r, record.KindLost), 2, at-last)
		require.Equal(t, 1, r.Torn)
	}
}

// Whoever keeps all events can say how many they are at most.
func TestTrimKeepsTheLastEvents(t *testing.T) {
	t.Parallel()
	text := written(t, 5000)
	for _, most := range []int{0, 1, 2500, 4999, 5000, 9000} {
		r := read(t, text)
		r.Trim(most)
		kept := of(r, record.KindLost)
		require.NotEmpty(t, kept)
		require.EqualValues(t, 5000, kept[len(kept)-1].Number)
		require.EqualValues(t, 5000-len(kept), r.Overwritten())
		if most >= 2500 {
			require.LessOrEqual(t, len(kept), most)
		}
	}
}

// A head that claims the most costs no memory that the bytes behind it do not need.
func TestReadingAllocatesForWhatIsThere(t *testing.T) {
	head := append(appendHead(nil, record.MaxRing/pageBytes), make([]byte, record.HeadBytes)...)[:record.HeadBytes]
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10 {
		_, err := record.Read(bytes.NewReader(head))
		require.NoError(t, err)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(record.MaxRing/2))
}

// Texts and lists of any size leave room for the event.
func TestLargeEventsFit(t *testing.T) {
	t.Parallel()
	rec := newRecorder(t, Options{Size: minSize})
	long := string(bytes.Repeat([]byte("k"), 100<<10))
	e := redlock.Event{Kind: redlock.EventRound}
	more := behind.OfEvent(&e)
	for i := range 64 {
		more.Keys = append(more.Keys, fmt.Sprint(i, long))
		e.Votes = append(e.Votes, redlock.Vote{Verdict: "failed", Err: errors.New(fmt.Sprint(i, long))})
	}
	e.Key, e.Op = long, record.OpExtend
	for range 50 {
		rec.ring.record(0, &e)
	}
	r := read(t, bytesOf(t, rec))
	require.Zero(t, r.Missing())
	rounds := of(r, record.KindRound)
	require.NotEmpty(t, rounds)
	require.Len(t, rounds[0].Votes, 64)
	require.Len(t, rounds[0].Keys, 64)
	require.Len(t, rounds[0].Key, record.MaxText)
}

// A vote that was withheld until the timeout is not recorded as one that did not come: the master may have answered.
func TestAVoteThatWasWithheldHasItsReason(t *testing.T) {
	t.Parallel()
	rec := newRecorder(t, Options{})
	rec.ring.record(0, &redlock.Event{Kind: redlock.EventRound, Op: record.OpLock, Key: "k", Votes: []redlock.Vote{
		{Verdict: "yes", RTT: 5}, {Verdict: "pending", Err: errors.New("it may not vote yet")}, {Verdict: "pending"}}})
	rounds := of(read(t, bytesOf(t, rec)), record.KindRound)
	require.Equal(t, []record.Vote{{Verdict: record.Yes, RTT: 5}, {Verdict: record.Failed, Err: "it may not vote yet"}, {Verdict: record.Pending}}, rounds[0].Votes)
}

// Events that the Recorder was too slow for are counted in the record, with the time of the first and the last.
func TestRecordSaysWhatWasLeftOut(t *testing.T) {
	t.Parallel()
	rec := newRecorder(t, Options{})
	now := clock.Now()
	e := redlock.Event{Kind: behind.Dropped}
	*behind.OfEvent(&e) = behind.Event{Dropped: 1000, Started: now - time.Second, Boot: now}
	rec.ring.record(3, &e)
	left := of(read(t, bytesOf(t, rec)), record.KindDropped)
	require.Len(t, left, 1)
	require.Equal(t, uint64(1000), left[0].Dropped)
	require.Equal(t, 3, left[0].Client)
	require.Equal(t, now-time.Second, left[0].Began)
	require.Equal(t, now, left[0].Boot)
}
