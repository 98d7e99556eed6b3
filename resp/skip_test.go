package resp_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/resp"
	"github.com/redburst/redburst/resp/resptest"
)

// narrow are limits that the frames of these tests exceed.
var narrow = resp.Limits{Depth: 2, Bulk: 64, Elements: 8, Frame: 100, Skip: 1 << 20}

func TestFrameBeyondTheLimitsIsSkippedToItsEnd(t *testing.T) {
	t.Parallel()
	x := func(n int) string { return strings.Repeat("x", n) }
	for _, tt := range []struct {
		name, frame string
		want        resp.Skipped
	}{
		{"bulk", "$100\r\n" + x(100) + "\r\n", resp.Skipped{Kind: resp.BulkString, Fault: resp.TooLong}},
		{"bulk that looks like frames", "$100\r\n" + strings.Repeat("+OK\r\n", 20) + "\r\n", resp.Skipped{Kind: resp.BulkString, Fault: resp.TooLong}},
		{"line", "-" + x(100) + "\r\n", resp.Skipped{Kind: resp.SimpleError, Fault: resp.TooLong}},
		{"push with a long key", ">2\r\n$10\r\ninvalidate\r\n*1\r\n$100\r\n" + x(100) + "\r\n", resp.Skipped{Kind: resp.Push, Fault: resp.TooLong}},
		{"push with a long name", ">2\r\n$100\r\n" + x(100) + "\r\n*1\r\n$1\r\nk\r\n", resp.Skipped{Kind: resp.Push, Fault: resp.TooLong}},
		{"push with many keys", ">2\r\n+invalidate\r\n*9\r\n" + strings.Repeat("$1\r\nk\r\n", 9), resp.Skipped{Kind: resp.Push, Fault: resp.TooMany}},
		{"array of too much", "*3\r\n" + strings.Repeat("$40\r\n"+x(40)+"\r\n", 3), resp.Skipped{Kind: resp.Array, Fault: resp.TooLong}},
		{"array of arrays", "*2\r\n*2\r\n:1\r\n*2\r\n_\r\n*-1\r\n#t\r\n", resp.Skipped{Kind: resp.Array, Fault: resp.TooDeep}},
		{"array whose elements follow what is too long", "*4\r\n$100\r\n" + x(100) + "\r\n*1\r\n*1\r\n*1\r\n:7\r\n%1\r\n+a\r\n,1.5\r\n$-1\r\n", resp.Skipped{Kind: resp.Array, Fault: resp.TooLong}},
		{"map", "%5\r\n" + strings.Repeat("+a\r\n:1\r\n", 5), resp.Skipped{Kind: resp.Map, Fault: resp.TooMany}},
		{"with an attribute in front", "|1\r\n+a\r\n:1\r\n$100\r\n" + x(100) + "\r\n", resp.Skipped{Kind: resp.BulkString, Fault: resp.TooLong}},
		{"with a long attribute in front", "|1\r\n$100\r\n" + x(100) + "\r\n+v\r\n>2\r\n+m\r\n:1\r\n", resp.Skipped{Kind: resp.Push, Fault: resp.TooLong}},
		{"with a long attribute among others", "|1\r\n+a\r\n:1\r\n|1\r\n$100\r\n" + x(100) + "\r\n|1\r\n+b\r\n:2\r\n_\r\n|0\r\n:5\r\n", resp.Skipped{Kind: resp.Integer, Fault: resp.TooLong}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, size := range []func() int{resptest.Whole, resptest.Bytewise, func() int { return 7 }} {
				r := resp.NewReader(0, narrow)
				stream := "+OK\r\n" + tt.frame + ":1\r\n" + tt.frame
				got := resptest.Read(r, stream, size)
				tt.want.Bytes = int64(len(tt.frame))
				skipped := resptest.DumpSkipped(tt.want)
				require.Equal(t, resptest.Result{Values: []string{`+"OK"`, skipped, `:"1"`, skipped}, Offset: int64(len(stream)), Err: resp.ErrNeedMore}, got)
				require.Equal(t, tt.want, r.Skipped())
			}
			r := resp.NewReader(0, narrow)
			for n := range len(tt.frame) { // nothing of it is a frame, up to its last byte
				feed(r, tt.frame[n:n+1])
				_, err := r.Next()
				require.Equal(t, map[bool]error{true: resp.ErrSkipped, false: resp.ErrNeedMore}[n == len(tt.frame)-1], err)
			}
		})
	}
}

// What is malformed in a frame that is skipped ends the stream: nobody can tell where the next frame begins.
func TestFaultInAFrameThatIsSkipped(t *testing.T) {
	t.Parallel()
	long := "$100\r\n" + strings.Repeat("x", 100) + "\r\n"
	for in, want := range map[string]resp.SyntaxError{
		"*2\r\n" + long + "?1\r\n":                     {Offset: 112, Fault: resp.BadKind},
		"*2\r\n" + long + ">1\r\n+m\r\n":               {Offset: 112, Fault: resp.NestedPush},
		"*2\r\n" + long + "$?\r\n":                     {Offset: 113, Fault: resp.Streamed},
		"*2\r\n" + long + "+a\nb\r\n":                  {Offset: 114, Fault: resp.BadLineEnd},
		"*2\r\n" + long + "+a\rb\r\n":                  {Offset: 115, Fault: resp.BadLineEnd},
		"*2\r\n" + long + "*-2\r\n":                    {Offset: 114, Fault: resp.BadLength},
		"*2\r\n" + long + ":1x\r\n":                    {Offset: 114, Fault: resp.BadInteger},
		"$100\r\n" + strings.Repeat("x", 101) + "\r\n": {Offset: 106, Fault: resp.BadLineEnd},
		"*2\r\n" + long + "*9223372036854775807\r\n":   {Offset: 113, Fault: resp.TooMany},
		"*2\r\n" + long + "%4611686018427387904\r\n":   {Offset: 113, Fault: resp.TooMany},
	} {
		for _, size := range []func() int{resptest.Whole, resptest.Bytewise} {
			r := resp.NewReader(0, narrow)
			require.Equal(t, error(&want), resptest.Read(r, in+"+OK\r\n+OK\r\n", size).Err, "%q", in)
			_, err := r.Next()
			require.Equal(t, error(&want), err, "it stays")
			r.Reset()
			require.Equal(t, []string{`+"OK"`}, resptest.Read(r, "+OK\r\n", size).Values)
		}
	}
}

func TestSkippingHasALimit(t *testing.T) {
	t.Parallel()
	x := func(n int) string { return strings.Repeat("x", n) }
	l := narrow
	l.Skip = 300
	for _, tt := range []struct {
		within, beyond string
		offset         int64
	}{
		{"$292\r\n" + x(292) + "\r\n", "$295\r\n" + x(295) + "\r\n", 1},
		{"+" + x(297) + "\r\n", "+" + x(298) + "\r\n", 300},
		{"*2\r\n*2\r\n*1\r\n" + "$279\r\n" + x(279) + "\r\n", "*2\r\n*2\r\n*1\r\n$300\r\n", 13},
		{"*99\r\n" + strings.Repeat("_\r\n", 98), "*99\r\n" + strings.Repeat("_\r\n", 99), 300},
	} {
		for _, size := range []func() int{resptest.Whole, resptest.Bytewise} {
			require.Equal(t, resp.ErrNeedMore, resptest.Read(resp.NewReader(0, l), tt.within, size).Err)
			require.Equal(t, error(&resp.SyntaxError{Offset: tt.offset, Fault: resp.TooLong}), resptest.Read(resp.NewReader(0, l), tt.beyond, size).Err)
		}
	}
}

// What is skipped costs no memory, however long it is, and however the bytes come.
func TestSkippingAllocatesNothing(t *testing.T) {
	long := "*3\r\n$70000\r\n" + strings.Repeat("x", 70_000) + "\r\n:1\r\n+" + strings.Repeat("y", 70_000) + "\r\n"
	r := resp.NewReader(4096, resp.Limits{Skip: 1 << 20})
	skipped := 0
	requireNoAllocs(t, "skip", func() {
		for at := 0; at < len(long); {
			n := min(len(long)-at, 4096)
			r.Advance(copy(r.Free(n), long[at:at+n]))
			at += n
			if _, err := r.Next(); err == resp.ErrSkipped {
				skipped++
			} else if err != resp.ErrNeedMore {
				t.Fatal(err)
			}
		}
	})
	require.Equal(t, 101, skipped)
}

func TestRaisedLimitsHoldForOneReply(t *testing.T) {
	t.Parallel()
	x := strings.Repeat("x", 100)
	long, push := "$100\r\n"+x+"\r\n", ">2\r\n+m\r\n$100\r\n"+x+"\r\n"
	raise := resp.Limits{Bulk: 200, Frame: 300, Skip: 1 << 20}
	for _, size := range []func() int{resptest.Whole, resptest.Bytewise} {
		for _, own := range []resp.Limits{narrow, {Bulk: 64, Skip: 1 << 20}} {
			for stream, want := range map[string][]string{
				long + long:                               {`$"` + x + `"`, "$skipped108"},
				push + long + long:                        {">skipped116", `$"` + x + `"`, "$skipped108"},
				">1\r\n+m\r\n" + long + push:              {`>[+"m"]`, `$"` + x + `"`, ">skipped116"},
				":1\r\n" + long:                           {`:"1"`, "$skipped108"},
				"+OK\r\n" + long:                          {`+"OK"`, "$skipped108"},
				"$201\r\n" + x + x + "x\r\n" + long:       {"$skipped209", "$skipped108"},
				"|1\r\n+a\r\n:1\r\n:1\r\n" + long:         {`:"1"`, "$skipped108"},
				"|1\r\n+a\r\n:1\r\n>1\r\n+m\r\n" + long:   {`>[+"m"]`, `$"` + x + `"`},
				"|1\r\n+a\r\n:1\r\n" + push + long + long: {">skipped128", `$"` + x + `"`, "$skipped108"},
			} {
				r := resp.NewReader(0, own)
				r.Raise(raise)
				require.Equal(t, want, resptest.Read(r, stream, size).Values, "%q", stream)
				r.Reset()
				require.Equal(t, []string{"$skipped108"}, resptest.Read(r, long, size).Values, "after a reset")
				r.Raise(raise)
				r.Reset()
				require.Equal(t, []string{"$skipped108"}, resptest.Read(r, long, size).Values, "after a reset before the reply")
			}
		}
	}
}
