package resp_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/resp"
	"github.com/redburst/redburst/resp/resptest"
)

// requireNoAllocs is for the paths that are documented to allocate nothing. The
// race detector allocates on its own account, so under it f only has to run.
func requireNoAllocs(t *testing.T, name string, f func()) {
	t.Helper()
	got := testing.AllocsPerRun(100, f)
	if !raceEnabled {
		require.Zero(t, got, name)
	}
}

func TestReadingAllocatesNothing(t *testing.T) {
	r := resp.NewReader(64, resp.Limits{})
	for _, s := range resptest.Streams {
		for _, piece := range []int{len(s.Input), 1, 7} {
			read := func() {
				for at := 0; at < len(s.Input); {
					n := min(piece, len(s.Input)-at)
					r.Advance(copy(r.Free(n), s.Input[at:at+n]))
					at += n
					for {
						v, err := r.Next()
						if err == resp.ErrNeedMore {
							break
						}
						if err != nil {
							t.Fatal(err)
						}
						walk(v)
					}
				}
			}
			r.Reset()
			r.Free(2 * len(s.Input)) // no growth is measured
			requireNoAllocs(t, s.Name, read)
		}
	}
}

// walk asks a value everything that costs no allocation, and its elements too.
func walk(v resp.Value) (size int) {
	size = len(v.Raw()) + len(v.Bytes()) + len(v.Format()) + len(v.ErrorCode()) + v.Len()
	if v.Is("OK") || v.IsNull() || v.IsError() || v.Kind().IsAggregate() {
		size++
	}
	if _, ok := v.Int(); ok {
		size++
	}
	if _, ok := v.Float(); ok {
		size++
	}
	if _, ok := v.Bool(); ok {
		size++
	}
	for it := v.Elems(); ; {
		e, ok := it.Next()
		if !ok {
			return size
		}
		size += walk(e)
	}
}

func TestFloatOfManyDigitsAllocatesNothing(t *testing.T) {
	v := read(t, ",0.1234567890123456789012345678901234567890123456789012345678901234567890\r\n")
	requireNoAllocs(t, "Float", func() {
		if _, ok := v.Float(); !ok {
			t.Fatal("no double")
		}
	})
}

func TestFloatBeyondItsRangeAllocatesNothing(t *testing.T) {
	v := read(t, "$5\r\n1e999\r\n")
	requireNoAllocs(t, "Float", func() {
		if _, ok := v.Float(); ok {
			t.Fatal("a double")
		}
	})
}

func TestNeedingMoreAndErrorsThatStayAllocateNothing(t *testing.T) {
	r := newReader()
	feed(r, "*2\r\n$10\r\nabc")
	requireNoAllocs(t, "ErrNeedMore", func() {
		if _, err := r.Next(); err != resp.ErrNeedMore {
			t.Fatal(err)
		}
	})
	r.Reset()
	feed(r, "?")
	requireNoAllocs(t, "SyntaxError", func() {
		if _, err := r.Next(); err == resp.ErrNeedMore {
			t.Fatal(err)
		}
	})
}

func TestResetAllocatesNothing(t *testing.T) {
	r := newReader()
	requireNoAllocs(t, "Reset", func() {
		feed(r, "*2\r\n*1\r\n:1\r\n")
		if _, err := r.Next(); err != resp.ErrNeedMore {
			t.Fatal(err)
		}
		r.Reset()
	})
}

func TestAppendingAllocatesNothing(t *testing.T) {
	buf := make([]byte, 0, 4096)
	payload := []byte("payload")
	text := string(payload)
	n := int64(math.MinInt64)
	requireNoAllocs(t, "Append", func() {
		b := buf
		b = resp.AppendCommand(b, "SET", text, text, "NX", "PX", "10000")
		b = resp.AppendArray(b, 1000)
		b = resp.AppendBulk(b, payload)
		b = resp.AppendBulkString(b, text)
		b = resp.AppendBulkInt(b, n)
		b = resp.AppendSimpleString(b, text)
		b = resp.AppendError(b, "ERR \r\n")
		b = resp.AppendInt(b, n)
		b = resp.AppendNull(b)
		b = resp.AppendNullBulk(b)
		b = resp.AppendNullArray(b)
		b = resp.AppendBool(b, true)
		b = resp.AppendDouble(b, math.MaxFloat64)
		b = resp.AppendDouble(b, math.Inf(-1))
		b = resp.AppendBulkError(b, text)
		b = resp.AppendVerbatim(b, "txt", text)
		b = resp.AppendMap(b, 1)
		b = resp.AppendSet(b, 1)
		b = resp.AppendPush(b, 1)
		b = resp.AppendAttribute(b, 1)
		if len(b) == 0 || len(b) > cap(buf) {
			t.Fatal("the buffer of the test is too small")
		}
	})
}
