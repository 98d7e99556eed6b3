package resp_test

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/resp"
	"github.com/redburst/redburst/resp/resptest"
)

func newReader() *resp.Reader { return resp.NewReader(64, resp.Limits{}) }

func TestStreamsAreReadToTheirEnd(t *testing.T) {
	t.Parallel()
	for _, s := range resptest.Streams {
		t.Run(s.Name, func(t *testing.T) {
			want := resptest.Result{Values: s.Want, Offset: int64(len(s.Input)), Err: resp.ErrNeedMore}
			require.Equal(t, want, resptest.Read(newReader(), s.Input, resptest.Whole))
			require.Equal(t, want, resptest.Read(newReader(), s.Input, resptest.Bytewise))
			for cut := 1; cut < len(s.Input); cut++ {
				sizes := []int{cut, 0}
				next := func() (n int) { n, sizes = sizes[0], sizes[1:]; return n }
				require.Equal(t, want, resptest.Read(newReader(), s.Input, next), "cut at %d", cut)
			}
		})
	}
}

// What is there of a frame is not enough for anything, up to its last byte.
func TestEveryTruncatedStreamNeedsMore(t *testing.T) {
	t.Parallel()
	for _, s := range resptest.Streams {
		for n := range len(s.Input) {
			got := resptest.Read(newReader(), s.Input[:n], resptest.Whole)
			require.Equal(t, resp.ErrNeedMore, got.Err, "%q", s.Input[:n])
			require.LessOrEqual(t, got.Offset, int64(n))
			require.Equal(t, s.Want[:len(got.Values)], append([]string{}, got.Values...), "%q", s.Input[:n])
		}
	}
}

func TestHostileStreamsAreRefusedWhereTheyAreAtFault(t *testing.T) {
	t.Parallel()
	for _, h := range resptest.HostileStreams {
		t.Run(h.Name, func(t *testing.T) {
			want := &resp.SyntaxError{Offset: h.Offset, Fault: h.Fault}
			whole := resptest.Read(newReader(), h.Input, resptest.Whole)
			require.Equal(t, error(want), whole.Err)
			require.Equal(t, whole, resptest.Read(newReader(), h.Input, resptest.Bytewise))
			rng := rand.New(rand.NewPCG(1, 2))
			for range 10 {
				size := func() int { return 1 + rng.IntN(1+rng.IntN(len(h.Input))) }
				require.Equal(t, whole, resptest.Read(newReader(), h.Input, size))
			}
		})
	}
}

// A reader must not wait for more once it has the byte at fault, or the stream
// of a server that has nothing more to say would hang.
func TestFaultIsFoundWithTheByteAtFault(t *testing.T) {
	t.Parallel()
	for _, h := range resptest.HostileStreams {
		n := h.Offset + 1
		switch h.Fault {
		case resp.BadDouble, resp.BadNumber, resp.BadVerbatim:
			continue // these are judged when they are complete
		case resp.TooLong, resp.TooMany, resp.TooDeep, resp.NestedPush:
			continue // so are the headers of these
		case resp.BadPush:
			if strings.Contains(h.Input, ">0") || strings.Contains(h.Input, "$-1") {
				continue // and these
			}
		case resp.BadLineEnd:
			n = min(n+1, int64(len(h.Input))) // CR and LF are looked at together behind a payload
		}
		got := resptest.Read(newReader(), h.Input[:n], resptest.Whole)
		require.Equal(t, error(&resp.SyntaxError{Offset: h.Offset, Fault: h.Fault}), got.Err, h.Name)
	}
}

// Integers that are whole in the buffer are read eight digits at a time. Whatever is in the place
// of a digit, and whatever follows, they say the same as byte by byte, and as strconv.
func TestIntegersReadTheSameWholeAndByteByByte(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		digits := make([]byte, 1+rng.IntN(20))
		for i := range digits {
			digits[i] = byte('0' + rng.IntN(10))
		}
		if rng.IntN(2) == 0 {
			digits[rng.IntN(len(digits))] = byte(rng.IntN(256))
		}
		text := string(digits)
		stream := ":" + text + []string{"\r\n", "\r\n", "\r\n+OK\r\n", "\r", "\rx", "", "\n"}[rng.IntN(7)]
		require.Equal(t, resptest.Read(newReader(), stream, resptest.Bytewise),
			resptest.Read(newReader(), stream, resptest.Whole), "%q", stream)

		r := newReader()
		feed(r, stream)
		v, _ := r.Next()
		if n, ok := v.Int(); ok {
			want, err := strconv.ParseInt(stream[1:strings.Index(stream, "\r")], 10, 64)
			require.NoError(t, err, "%q", stream)
			require.Equal(t, want, n, "%q", stream)
		}
	}
}

func TestSyntaxErrorStaysUntilReset(t *testing.T) {
	t.Parallel()
	r := newReader()
	feed(r, "+OK\r\n:1x\r\n+OK\r\n")
	v, err := r.Next()
	require.NoError(t, err)
	require.True(t, v.Is("OK"), "a frame in front of the fault is not lost")
	for range 3 {
		v, err = r.Next()
		require.Zero(t, v)
		require.Equal(t, error(&resp.SyntaxError{Offset: 7, Fault: resp.BadInteger}), err)
		require.ErrorIs(t, err, resp.BadInteger)
		require.NotErrorIs(t, err, resp.BadLength)
		require.NotErrorIs(t, err, resp.ErrNeedMore)
		require.EqualError(t, err, "resp: malformed integer at offset 7")
		feed(r, "+OK\r\n")
	}
	require.Equal(t, int64(5), r.Offset())

	r.Reset()
	require.Zero(t, r.Buffered())
	require.Zero(t, r.Offset())
	_, again := r.Next()
	require.Equal(t, resp.ErrNeedMore, again)
	require.EqualError(t, err, "resp: malformed integer at offset 7", "an error outlives the reset")
	feed(r, "+OK\r\n")
	v, err = r.Next()
	require.NoError(t, err)
	require.True(t, v.Is("OK"))
}

func TestStreamedTypesAreToldApartFromNonsense(t *testing.T) {
	t.Parallel()
	got := resptest.Read(newReader(), "$?\r\n", resptest.Whole)
	require.ErrorIs(t, got.Err, resp.Streamed)
	var se *resp.SyntaxError
	require.True(t, errors.As(got.Err, &se))
	require.Equal(t, int64(1), se.Offset)
}

func TestBufferedCountsWhatWasNotReturned(t *testing.T) {
	t.Parallel()
	r := newReader()
	feed(r, "+OK\r\n*2\r\n:1\r\n")
	require.Equal(t, 13, r.Buffered())
	_, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, 8, r.Buffered())
	_, err = r.Next()
	require.Equal(t, resp.ErrNeedMore, err)
	require.Equal(t, 8, r.Buffered())
	require.Equal(t, int64(5), r.Offset())
	feed(r, ":2\r\n")
	v, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, 2, v.Len())
	require.Zero(t, r.Buffered())
	require.Equal(t, int64(17), r.Offset())
}

// A header may announce what it likes: memory is for bytes that arrived.
func TestBufferGrowsWithTheBytesNotWithTheHeader(t *testing.T) {
	t.Parallel()
	limits := resp.Limits{Bulk: 512 << 20, Elements: 1 << 30}
	for _, header := range []string{"$536870912\r\n", "*1073741824\r\n", "%536870912\r\n"} {
		r := resp.NewReader(64, limits)
		feed(r, header)
		_, err := r.Next()
		require.Equal(t, resp.ErrNeedMore, err)
		require.LessOrEqual(t, cap(r.Free(1)), 64)
	}
}

func TestBufferIsBoundedByTheFrame(t *testing.T) {
	t.Parallel()
	r := resp.NewReader(64, resp.Limits{Bulk: 1000, Frame: 2000})
	stream := "*900\r\n" + strings.Repeat("+x\r\n", 900)
	for {
		require.NotEmpty(t, stream, "the frame is longer than the limit")
		free := r.Free(10)
		require.LessOrEqual(t, r.Buffered()+len(free), 2*(2000+10))
		n := copy(free[:10], stream)
		r.Advance(n)
		stream = stream[n:]
		if _, err := r.Next(); err != resp.ErrNeedMore {
			require.ErrorIs(t, err, resp.TooLong)
			return
		}
	}
}

func TestGrownBufferIsGivenUp(t *testing.T) {
	t.Parallel()
	r := resp.NewReader(256, resp.Limits{})
	big := "$10000\r\n" + strings.Repeat("x", 10000) + "\r\n"
	read := func(s string) {
		feed(r, s)
		v, err := r.Next()
		require.NoError(t, err)
		require.Equal(t, s, string(v.Raw()))
	}
	for range 200 {
		read("+OK\r\n")
		read(big)
		require.Greater(t, len(r.Free(1)), 256, "a frame that needs it comes often")
	}
	fillings := 0
	for ; len(r.Free(1)) > 256; fillings++ {
		require.Less(t, fillings, 1000)
		read("+OK\r\n")
	}
	require.Equal(t, 64, fillings)
	read("+OK\r\n")
	read(big)
}

// Idle calls of Free, as of a caller whose socket has nothing, are no fillings.
func TestGrownBufferIsKeptWhileNothingArrives(t *testing.T) {
	t.Parallel()
	r := resp.NewReader(256, resp.Limits{})
	r.Free(1000)
	for range 1000 {
		require.Greater(t, len(r.Free(1)), 256)
	}
}

func TestFreeHasTheRoomAskedFor(t *testing.T) {
	t.Parallel()
	r := newReader()
	for _, n := range []int{0, 1, 63, 64, 65, 1000, 1, 100_000} {
		require.GreaterOrEqual(t, len(r.Free(n)), n)
	}
	require.Panics(t, func() { r.Advance(len(r.Free(1)) + 1) })
	require.Panics(t, func() { r.Advance(-1) })
}

// Bytes that arrive in the middle of a frame may move those already there, and
// any byte of it may be the last of the buffer, where the position is its length
// (redis 8378). The frame must not notice.
func TestFramesSurviveCompactionAndGrowth(t *testing.T) {
	t.Parallel()
	var stream strings.Builder
	for i := range 300 {
		stream.WriteString("*3\r\n+" + strings.Repeat("a", i%70) + "\r\n$-1\r\n|1\r\n+k\r\n+v\r\n$5\r\nhello\r\n")
	}
	want := resptest.Read(resp.NewReader(1<<20, resp.Limits{}), stream.String(), resptest.Whole)
	require.Len(t, want.Values, 300)
	for size := 1; size < 200; size++ {
		require.Equal(t, want, resptest.Read(newReader(), stream.String(), func() int { return size }))
	}
}

func feed(r *resp.Reader, s string) { r.Advance(copy(r.Free(len(s)), s)) }

func TestZeroReaderHasTheDefaults(t *testing.T) {
	t.Parallel()
	for _, s := range resptest.Streams {
		want := resptest.Read(resp.NewReader(0, resp.Limits{}), s.Input, resptest.Whole)
		for _, size := range []func() int{resptest.Whole, resptest.Bytewise} {
			var r resp.Reader
			require.Equal(t, want, resptest.Read(&r, s.Input, size), s.Name)
			r.Reset()
			require.Equal(t, want, resptest.Read(&r, s.Input, size), s.Name)
		}
	}
	var r resp.Reader
	_, err := r.Next()
	require.Equal(t, resp.ErrNeedMore, err)
	require.Zero(t, r.Offset())
	require.Empty(t, r.Free(0))
	r.Advance(0)
	r.Reset()
	feed(&r, "+OK\r\n")
	v, err := r.Next()
	require.NoError(t, err)
	require.True(t, v.Is("OK"))
}
