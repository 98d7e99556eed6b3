package fuzz

import (
	"encoding/binary"
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/resp"
)

// FuzzAppend takes its input as a program that says which values to append.
func FuzzAppend(f *testing.F) {
	for op := range byte(ops) {
		f.Add([]byte{op, 3, 'a', '\r', '\n', op, 200, 1, 2, 3, 4, 5, 6, 7, 8})
		f.Add([]byte{opArray, 2, op, 4, 0xff, 0xf0, 0, 0, 0, 0, 0, 0, opMap, 1, op, op, 9})
	}
	f.Fuzz(func(t *testing.T, program []byte) {
		w := writer{program: program}
		for len(w.program) > 0 {
			w.push()
		}
		got, err := frames(w.stream, resp.Limits{Elements: 1 << 30, Frame: 1 << 30})
		require.Equal(t, resp.ErrNeedMore, err)
		size := 0
		for _, v := range got {
			w.check(t, v)
			size += len(v.Raw())
		}
		require.Empty(t, w.want)
		require.Equal(t, len(w.stream), size+w.attributes)
	})
}

const (
	opSimpleString = iota
	opError
	opInt
	opBulk
	opBulkString
	opBulkInt
	opNull
	opNullBulk
	opNullArray
	opBool
	opDouble
	opBigNumber
	opBulkError
	opVerbatim
	opCommand
	opArray
	opMap
	opSet
	opAttribute
	ops
)

// A writer appends what its program says, and notes what the reader must return.
type writer struct {
	program    []byte
	stream     []byte
	want       []func(t *testing.T, v resp.Value) // of each value, in the order of their beginnings
	depth      int
	attributes int // bytes of attributes at the top level
}

func (w *writer) byte() (b byte) {
	if len(w.program) > 0 {
		b, w.program = w.program[0], w.program[1:]
	}
	return b
}

func (w *writer) text() string {
	n := min(int(w.byte()), len(w.program))
	text := string(w.program[:n])
	w.program = w.program[n:]
	return text
}

func (w *writer) int() int64 {
	var b [8]byte
	w.program = w.program[copy(b[:], w.program):]
	return int64(binary.BigEndian.Uint64(b[:]))
}

func (w *writer) expect(k resp.Kind, f func(t *testing.T, v resp.Value)) {
	w.want = append(w.want, func(t *testing.T, v resp.Value) {
		require.Equal(t, k, v.Kind())
		f(t, v)
	})
}

func (w *writer) expectBytes(k resp.Kind, s string) {
	w.expect(k, func(t *testing.T, v resp.Value) { require.Equal(t, s, string(v.Bytes())) })
}

func (w *writer) expectNull(k resp.Kind) {
	w.expect(k, func(t *testing.T, v resp.Value) { require.True(t, v.IsNull()) })
}

func (w *writer) expectLen(k resp.Kind, n int) {
	w.expect(k, func(t *testing.T, v resp.Value) { require.Equal(t, n, v.Len()) })
}

// check compares a value and its elements with the first notes.
func (w *writer) check(t *testing.T, v resp.Value) {
	require.NotEmpty(t, w.want)
	w.want[0](t, v)
	w.want = w.want[1:]
	for _, e := range elems(v) {
		w.check(t, e)
	}
}

// push appends a push, in one of eight cases, or else a value.
func (w *writer) push() {
	if len(w.program) > 0 && w.program[0] >= 0xe0 {
		n := 1 + int(w.byte()%4)
		w.stream = resp.AppendPush(w.stream, n)
		w.expectLen(resp.Push, n)
		w.depth++
		w.append([]byte{opSimpleString, opBulk, opBulkString, opVerbatim}[w.byte()%4]) // its name
		w.depth--
		w.values(n - 1)
		return
	}
	w.value()
}

func (w *writer) values(n int) {
	w.depth++
	for range n {
		w.value()
	}
	w.depth--
}

func (w *writer) value() { w.append(w.byte() % ops) }

func (w *writer) append(op byte) {
	switch op {
	case opSimpleString, opError:
		s := w.text()
		line := strings.NewReplacer("\r", " ", "\n", " ").Replace(s)
		if op == opError {
			w.stream = resp.AppendError(w.stream, s)
			w.expectBytes(resp.SimpleError, line)
		} else {
			w.stream = resp.AppendSimpleString(w.stream, s)
			w.expectBytes(resp.SimpleString, line)
		}
	case opInt:
		n := w.int()
		w.stream = resp.AppendInt(w.stream, n)
		w.expect(resp.Integer, func(t *testing.T, v resp.Value) {
			got, ok := v.Int()
			require.True(t, ok)
			require.Equal(t, n, got)
		})
	case opBulk:
		s := w.text()
		w.stream = resp.AppendBulk(w.stream, []byte(s))
		w.expectBytes(resp.BulkString, s)
	case opBulkString:
		s := w.text()
		w.stream = resp.AppendBulkString(w.stream, s)
		w.expectBytes(resp.BulkString, s)
	case opBulkInt:
		n := w.int()
		w.stream = resp.AppendBulkInt(w.stream, n)
		w.expect(resp.BulkString, func(t *testing.T, v resp.Value) {
			got, ok := v.BigInt()
			require.True(t, ok)
			require.Equal(t, big.NewInt(n).String(), got.String())
		})
	case opNull:
		w.stream = resp.AppendNull(w.stream)
		w.expectNull(resp.Null)
	case opNullBulk:
		w.stream = resp.AppendNullBulk(w.stream)
		w.expectNull(resp.BulkString)
	case opNullArray:
		w.stream = resp.AppendNullArray(w.stream)
		w.expectNull(resp.Array)
	case opBool:
		b := w.byte()%2 == 1
		w.stream = resp.AppendBool(w.stream, b)
		w.expect(resp.Boolean, func(t *testing.T, v resp.Value) {
			got, ok := v.Bool()
			require.True(t, ok)
			require.Equal(t, b, got)
		})
	case opDouble:
		f := math.Float64frombits(uint64(w.int()))
		w.stream = resp.AppendDouble(w.stream, f)
		w.expect(resp.Double, func(t *testing.T, v resp.Value) {
			got, ok := v.Float()
			require.True(t, ok)
			if f != f {
				require.True(t, math.IsNaN(got))
			} else {
				require.Equal(t, math.Float64bits(f), math.Float64bits(got))
			}
		})
	case opBigNumber:
		n := new(big.Int).SetBytes([]byte(w.text()))
		if w.byte()%2 == 1 {
			n.Neg(n)
		}
		w.stream = resp.AppendBigNumber(w.stream, n)
		w.expect(resp.BigNumber, func(t *testing.T, v resp.Value) {
			got, ok := v.BigInt()
			require.True(t, ok)
			require.Zero(t, n.Cmp(got))
		})
	case opBulkError:
		s := w.text()
		w.stream = resp.AppendBulkError(w.stream, s)
		w.expectBytes(resp.BulkError, s)
	case opVerbatim:
		format := string([]byte{w.byte(), w.byte(), w.byte()})
		s := w.text()
		w.stream = resp.AppendVerbatim(w.stream, format, s)
		w.expect(resp.VerbatimString, func(t *testing.T, v resp.Value) {
			require.Equal(t, format, string(v.Format()))
			require.Equal(t, s, string(v.Bytes()))
		})
	case opCommand:
		args := strings.Split(w.text(), "x")
		w.stream = resp.AppendCommand(w.stream, args...)
		w.expectLen(resp.Array, len(args))
		for _, arg := range args {
			w.expectBytes(resp.BulkString, arg)
		}
	default:
		w.aggregate(op)
	}
}

func (w *writer) aggregate(op byte) {
	n := int(w.byte())
	if n >= 250 {
		n *= 10 // lengths of four digits, in the program's own time
	}
	if w.depth >= 20 {
		n = 0
	}
	n = min(n, len(w.program)) // each element takes a byte of the program
	switch op {
	case opArray:
		w.stream = resp.AppendArray(w.stream, n)
		w.expectLen(resp.Array, n)
		w.values(n)
	case opSet:
		w.stream = resp.AppendSet(w.stream, n)
		w.expectLen(resp.Set, n)
		w.values(n)
	case opMap:
		w.stream = resp.AppendMap(w.stream, n/2)
		w.expectLen(resp.Map, n/2*2)
		w.values(n / 2 * 2)
	case opAttribute:
		// The writer writes an attribute, and the reader must return nothing of it.
		wanted, begin := len(w.want), len(w.stream)
		w.stream = resp.AppendAttribute(w.stream, n/2)
		w.depth++
		w.values(n / 2 * 2)
		w.depth--
		w.want = w.want[:wanted]
		if w.depth == 0 {
			w.attributes += len(w.stream) - begin
		}
		w.value()
	}
}

// FuzzReencode writes what was read, in the form of the Append functions. It must
// read the same again, and a second writing must not change the bytes.
func FuzzReencode(f *testing.F) {
	for _, s := range streams(f) {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		all, _ := frames(stream, resp.Limits{})
		for _, v := range all {
			written := encode(nil, v)
			again, err := frames(written, resp.Limits{})
			require.Equal(t, resp.ErrNeedMore, err)
			require.Len(t, again, 1)
			requireSame(t, v, again[0])
			require.Equal(t, written, encode(nil, again[0]))
		}
	})
}

func encode(dst []byte, v resp.Value) []byte {
	n, s := v.Len(), string(v.Bytes())
	switch v.Kind() {
	case resp.SimpleString:
		return resp.AppendSimpleString(dst, s)
	case resp.SimpleError:
		return resp.AppendError(dst, s)
	case resp.Integer:
		i, _ := v.Int()
		return resp.AppendInt(dst, i)
	case resp.BulkString:
		if v.IsNull() {
			return resp.AppendNullBulk(dst)
		}
		return resp.AppendBulkString(dst, s)
	case resp.Null:
		return resp.AppendNull(dst)
	case resp.Boolean:
		b, _ := v.Bool()
		return resp.AppendBool(dst, b)
	case resp.Double:
		f, _ := v.Float()
		return resp.AppendDouble(dst, f)
	case resp.BigNumber:
		i, _ := v.BigInt()
		return resp.AppendBigNumber(dst, i)
	case resp.BulkError:
		return resp.AppendBulkError(dst, s)
	case resp.VerbatimString:
		return resp.AppendVerbatim(dst, string(v.Format()), s)
	case resp.Array:
		if v.IsNull() {
			return resp.AppendNullArray(dst)
		}
		dst = resp.AppendArray(dst, n)
	case resp.Map:
		dst = resp.AppendMap(dst, n/2)
	case resp.Set:
		dst = resp.AppendSet(dst, n)
	case resp.Push:
		dst = resp.AppendPush(dst, n)
	}
	for _, e := range elems(v) {
		dst = encode(dst, e)
	}
	return dst
}

// requireSame compares values, not the text that numbers were sent in.
func requireSame(t *testing.T, a, b resp.Value) {
	require.Equal(t, a.Kind(), b.Kind())
	require.Equal(t, a.IsNull(), b.IsNull())
	switch a.Kind() {
	case resp.Integer:
		i, _ := a.Int()
		j, _ := b.Int()
		require.Equal(t, i, j)
	case resp.Double:
		f, _ := a.Float()
		g, _ := b.Float()
		require.True(t, f == g || f != f && g != g, "%v, %v", f, g)
	case resp.BigNumber:
		i, _ := a.BigInt()
		j, _ := b.BigInt()
		require.Zero(t, i.Cmp(j))
	default:
		require.Equal(t, a.Bytes(), b.Bytes())
		require.Equal(t, a.Format(), b.Format())
	}
	x, y := elems(a), elems(b)
	require.Len(t, y, len(x))
	for i := range x {
		requireSame(t, x[i], y[i])
	}
}
