// Package resptest has what the tests of package resp and of its users share:
// tables of good and of hostile streams, and a way to compare what was read. It is
// for the tests of this module, and promises nothing.
package resptest

import (
	"strconv"
	"strings"

	"github.com/redburst/redburst/resp"
)

// Result is everything that a reader says about a stream.
type Result struct {
	Values []string // each frame, as by Dump or DumpSkipped
	Offset int64    // bytes of the stream that the frames took
	Err    error    // why there are no more: resp.ErrNeedMore or a *resp.SyntaxError
}

// Read feeds a stream to a reader in pieces and takes out every frame. It calls
// size for the number of bytes in each piece; a number below 1 means all the rest.
func Read(r *resp.Reader, stream string, size func() int) Result {
	var res Result
	for {
		v, err := r.Next()
		if err == nil {
			res.Values = append(res.Values, Dump(v))
			continue
		}
		if err == resp.ErrSkipped {
			res.Values = append(res.Values, DumpSkipped(r.Skipped()))
			continue
		}
		if err != resp.ErrNeedMore || stream == "" {
			res.Offset, res.Err = r.Offset(), err
			return res
		}
		n := size()
		if n < 1 || n > len(stream) {
			n = len(stream)
		}
		r.Advance(copy(r.Free(n), stream[:n]))
		stream = stream[n:]
	}
}

// Parse reads one frame, which must be whole.
func Parse(b []byte) resp.Value {
	r := resp.NewReader(len(b), resp.Limits{})
	r.Advance(copy(r.Free(len(b)), b))
	v, err := r.Next()
	if err != nil {
		panic(err)
	}
	return v.Clone()
}

// Whole is a size for Read: the stream in one piece.
func Whole() int { return 0 }

// Bytewise is a size for Read: the stream byte by byte.
func Bytewise() int { return 1 }

// Dump is a value as text: its type byte, and then its payload in quotes, or null,
// or its elements in brackets.
func Dump(v resp.Value) string {
	return string(appendDump(nil, v))
}

// DumpSkipped is a frame that was skipped as text: its type byte, and how many bytes it has.
func DumpSkipped(s resp.Skipped) string {
	return string(s.Kind) + "skipped" + strconv.FormatInt(s.Bytes, 10)
}

func appendDump(dst []byte, v resp.Value) []byte {
	dst = append(dst, byte(v.Kind()))
	switch {
	case v.IsNull():
		return append(dst, "null"...)
	case !v.Kind().IsAggregate():
		if f := v.Format(); f != nil {
			dst = append(append(dst, f...), ':')
		}
		return strconv.AppendQuote(dst, string(v.Bytes()))
	}
	dst = append(dst, '[')
	sep := ""
	for it := v.Elems(); ; sep = " " {
		e, ok := it.Next()
		if !ok {
			return append(dst, ']')
		}
		dst = appendDump(append(dst, sep...), e)
	}
}

// nest is depth aggregates inside one another, each opened by the same header.
func nest(header string, depth int, inner string) string {
	return strings.Repeat(header, depth) + inner
}

func zeros(n int) string { return strings.Repeat("0", n) }
