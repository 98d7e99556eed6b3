package fuzz

import (
	"bytes"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/resp"
	"github.com/redburst/redburst/resp/resptest"
)

func FuzzNext(f *testing.F) {
	for _, s := range streams(f) {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		for _, l := range limits {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r := resp.NewReader(64, l)
			for rest := stream; ; {
				v, err := r.Next()
				if err == nil {
					ask(v)
					continue
				}
				if err == resp.ErrSkipped {
					continue
				}
				if err != resp.ErrNeedMore || len(rest) == 0 {
					break
				}
				n := copy(r.Free(1), rest)
				r.Advance(n)
				rest = rest[n:]
			}
			runtime.ReadMemStats(&after)
			// The buffer doubles, and the count includes every smaller one. The
			// constant is for the reader itself and for what the fuzzing engine
			// does in other goroutines.
			if got, most := after.TotalAlloc-before.TotalAlloc, uint64(4*len(stream)+64<<10); got > most {
				t.Fatalf("%d bytes of input made it allocate %d, more than %d", len(stream), got, most)
			}
		}
	})
}

// ask calls every method of a value that does not allocate.
func ask(v resp.Value) {
	v.Int()
	if f, ok := v.Float(); math.IsInf(f, 0) && !bytes.HasSuffix(v.Bytes(), []byte("inf")) || v.Kind() == resp.Double && !ok {
		panic("a double is infinite that does not say so, or has no value")
	}
	v.Bool()
	v.Is("OK")
	if v.IsNull() && (v.Bytes() != nil || v.Len() != 0) {
		panic("a null has content")
	}
	if v.IsError() && !bytes.HasPrefix(v.Bytes(), v.ErrorCode()) {
		panic("an error does not begin with its code")
	}
	if f := v.Format(); f != nil && len(f) != 3 {
		panic("a format has other than three bytes")
	}
	n := 0
	for it := v.Elems(); ; n++ {
		e, ok := it.Next()
		if !ok {
			break
		}
		if n == 0 && v.Kind() == resp.Push && !isName(e) {
			panic("a push has no name")
		}
		if e.Kind() == resp.Push || e.Kind() == resp.Attribute {
			panic("an element is a push or an attribute")
		}
		ask(e)
	}
	if n != v.Len() || n == 0 && v.Kind() == resp.Push {
		panic("an aggregate has more or fewer elements than it says, or than it needs")
	}
}

// isName reports whether a value is a string, as the first element of a push has to be.
func isName(v resp.Value) bool {
	switch v.Kind() {
	case resp.SimpleString, resp.BulkString, resp.VerbatimString:
		return !v.IsNull()
	}
	return false
}

func FuzzSplit(f *testing.F) {
	for i, s := range streams(f) {
		f.Add([]byte(s), []byte{byte(i), 3, byte(i >> 4)})
	}
	f.Fuzz(func(t *testing.T, stream, sizes []byte) {
		i := 0
		bySizes := func() int {
			if len(sizes) == 0 {
				return 0
			}
			i++
			return 1 + int(sizes[i%len(sizes)])
		}
		for _, l := range limits {
			want := resptest.Read(resp.NewReader(len(stream), l), string(stream), resptest.Whole)
			require.Equal(t, want, resptest.Read(resp.NewReader(0, l), string(stream), bySizes))
			require.Equal(t, want, resptest.Read(resp.NewReader(0, l), string(stream), resptest.Bytewise))
		}
	})
}

// A frame that exceeds narrow limits is skipped, whatever the pieces in which it comes: the frames before it and behind
// it are those that wide limits find, and what is said of it is true.
func FuzzBeyond(f *testing.F) {
	for i, s := range streams(f) {
		f.Add([]byte(s), []byte{byte(i), 3, byte(i >> 4)})
	}
	f.Fuzz(func(t *testing.T, stream, sizes []byte) {
		wide := resp.NewReader(len(stream), resp.Limits{Depth: 1 << 20, Bulk: 1 << 20, Elements: 1 << 20, Frame: 16 << 20})
		wide.Advance(copy(wide.Free(len(stream)), stream))
		i := 0
		bySizes := func() int {
			if len(sizes) == 0 {
				return 1
			}
			i++
			return 1 + int(sizes[i%len(sizes)])
		}
		narrow := resptest.Read(resp.NewReader(0, resp.Limits{Depth: 2, Bulk: 64, Elements: 4, Frame: 80, Skip: 1 << 20}), string(stream), bySizes)
		for at, from := 0, int64(0); ; at++ {
			v, err := wide.Next()
			if err != nil {
				if err == resp.ErrNeedMore {
					require.Len(t, narrow.Values, at)
				}
				return
			}
			require.Greater(t, len(narrow.Values), at, "%v", narrow.Err)
			if whole := resptest.Dump(v); narrow.Values[at] != whole {
				require.Equal(t, resptest.DumpSkipped(resp.Skipped{Kind: v.Kind(), Bytes: wide.Offset() - from}), narrow.Values[at])
				require.True(t, len(v.Raw()) > 64 || v.Len() > 0 || wide.Offset()-from > int64(len(v.Raw())), "%s is within the limits", whole)
			}
			from = wide.Offset()
		}
	})
}

func FuzzSkip(f *testing.F) {
	for _, s := range streams(f) {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		all, _ := frames(stream, resp.Limits{})
		for _, v := range all {
			checkSkips(t, v)
		}
	})
}

// checkSkips reads the bytes after an aggregate's header as frames. They must be
// the elements that the iterator finds by skipping.
func checkSkips(t *testing.T, v resp.Value) {
	if v.Len() == 0 {
		return
	}
	body := v.Raw()[bytes.IndexByte(v.Raw(), '\n')+1:]
	want, err := frames(body, resp.Limits{})
	require.Equal(t, resp.ErrNeedMore, err)
	got := elems(v)
	require.Len(t, got, v.Len())
	require.Len(t, want, v.Len())
	for i := range want {
		require.Equal(t, want[i], got[i])
		checkSkips(t, got[i])
	}
}
