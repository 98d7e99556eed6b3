package resp

import (
	"bytes"
	"strings"
	"testing"
)

var sinkBytes []byte

const (
	benchKey   = "redlock:orders:42"
	benchToken = "wKq3xZ0fT2mVb8yNc5rHe1uJ"
	benchSHA   = "1b6453892473a467d07372d45eb05abc2031647a"
)

func BenchmarkAppendSet(b *testing.B) {
	buf := make([]byte, 0, 256)
	b.SetBytes(int64(len(appendSet(nil))))
	b.ReportAllocs()
	for b.Loop() {
		sinkBytes = appendSet(buf)
	}
}

func appendSet(dst []byte) []byte {
	dst = AppendArray(dst, 6)
	dst = AppendBulkString(dst, "SET")
	dst = AppendBulkString(dst, benchKey)
	dst = AppendBulkString(dst, benchToken)
	dst = AppendBulkString(dst, "NX")
	dst = AppendBulkString(dst, "PX")
	return AppendBulkInt(dst, 10_000)
}

func BenchmarkAppendEvalsha(b *testing.B) {
	buf := make([]byte, 0, 256)
	b.SetBytes(int64(len(appendEvalsha(nil))))
	b.ReportAllocs()
	for b.Loop() {
		sinkBytes = appendEvalsha(buf)
	}
}

func appendEvalsha(dst []byte) []byte {
	dst = AppendArray(dst, 6)
	dst = AppendBulkString(dst, "EVALSHA")
	dst = AppendBulkString(dst, benchSHA)
	dst = AppendBulkInt(dst, 1)
	dst = AppendBulkString(dst, benchKey)
	dst = AppendBulkString(dst, benchToken)
	return AppendBulkInt(dst, 10_000)
}

func BenchmarkNext(b *testing.B) {
	array := []byte("*100\r\n" + strings.Repeat("$5\r\nhello\r\n", 100))
	bulk := AppendBulk(nil, make([]byte, 16<<10))
	for _, bm := range []struct {
		name  string
		input []byte
		read  int
	}{
		{"OK", []byte("+OK\r\n"), 4096},
		{"Nil", []byte("$-1\r\n"), 4096},
		{"One", []byte(":1\r\n"), 4096},
		{"Error", []byte("-NOSCRIPT No matching script. Please use EVAL.\r\n"), 4096},
		{"Token", AppendBulkString(nil, benchToken), 4096},
		{"Hello", []byte(helloReply), 4096},
		{"Array100", array, 4096},
		{"Bulk16KiB/4KiBReads", bulk, 4096},
		{"Bulk16KiB/1ByteReads", bulk, 1},
		{"Bulk8KiB/1ByteReads", AppendBulk(nil, make([]byte, 8<<10)), 1},
		{"Array100/1ByteReads", array, 1},
	} {
		b.Run(bm.name, func(b *testing.B) {
			// The frame is there already and every iteration finds it in the
			// same place: what is measured is the reader, not the copying that
			// would take the place of a read.
			r := NewReader(4096, Limits{})
			copy(r.Free(len(bm.input)), bm.input)
			b.SetBytes(int64(len(bm.input)))
			b.ReportAllocs()
			for b.Loop() {
				var v Value
				err := ErrNeedMore
				for n := 0; err == ErrNeedMore; {
					r.Free(1)
					read := min(len(bm.input)-n, bm.read)
					r.Advance(read)
					n += read
					v, err = r.Next()
				}
				if len(v.Raw()) != len(bm.input) {
					b.Fatal(err)
				}
			}
		})
	}
}

// A burst of replies that came in with one read: Next alone.
func BenchmarkNextPipelined(b *testing.B) {
	input := bytes.Repeat([]byte("+OK\r\n"), 100)
	r := NewReader(4096, Limits{})
	b.SetBytes(int64(len(input)))
	b.ReportAllocs()
	for b.Loop() {
		r.Advance(copy(r.Free(len(input)), input))
		for range 100 {
			if v, err := r.Next(); !v.Is("OK") {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(100*b.N), "ns/frame")
}

func BenchmarkElems(b *testing.B) {
	for _, bm := range []struct{ name, input string }{
		{"Hello", helloReply},
		{"Array100", "*100\r\n" + strings.Repeat("$5\r\nhello\r\n", 100)},
	} {
		b.Run(bm.name, func(b *testing.B) {
			v := readOne(b, bm.input)
			b.SetBytes(int64(len(bm.input)))
			b.ReportAllocs()
			for b.Loop() {
				for it := v.Elems(); ; {
					if _, ok := it.Next(); !ok {
						break
					}
				}
			}
		})
	}
}

const helloReply = "%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n7.0.15\r\n" +
	"$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:12\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n" +
	"$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"

// readOne reads the one frame that input is.
func readOne(tb testing.TB, input string) Value {
	tb.Helper()
	r := NewReader(0, Limits{})
	r.Advance(copy(r.Free(len(input)), input))
	v, err := r.Next()
	if err != nil {
		tb.Fatalf("%q: %v", input, err)
	}
	if r.Buffered() != 0 {
		tb.Fatalf("%q: %d bytes left over", input, r.Buffered())
	}
	return v
}
