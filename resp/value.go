package resp

import (
	"bytes"
	"math"
	"math/big"
	"strconv"
	"unsafe"
)

// Value is one frame, or one element of an aggregate.
//
// A Value borrows the buffer of the [Reader] that it came from, and so does every
// slice that its methods return. It is valid until that reader's next Free or
// Reset; [Value.Clone] outlives the buffer. Slices have no capacity beyond their
// length, so to append to one copies it. The zero Value has no kind and no
// content.
//
// Each typed accessor reads its own RESP3 type, and also the form in which Redis
// sends the same reply over RESP2. So callers need not ask which version the
// server speaks.
type Value struct {
	// raw is the frame from its first byte to its last. It is well-formed, as only
	// the reader and the iterator make values. Its capacity is its length.
	raw []byte

	// n is the integer itself for Integer, the number of elements for an
	// aggregate, -1 for null, and the offset of the payload in raw for the
	// rest. One field for all of them keeps Value at four words, which is as
	// much as the compiler keeps in registers.
	n int64
}

// Kind is the type that the server sent: a null may be a Null, a BulkString or an
// Array. It is 0 for the zero Value.
func (v Value) Kind() Kind {
	if len(v.raw) == 0 {
		return 0
	}
	return Kind(v.raw[0])
}

// Raw is the value as the server sent it, with its line ends and without any
// attributes in front of it.
func (v Value) Raw() []byte { return v.raw }

// IsNull reports whether the value is null: the null of RESP3, or a bulk string or
// array of length -1, which are the nulls of RESP2.
func (v Value) IsNull() bool { return v.n < 0 && v.raw[0] != ':' }

// IsError reports whether the value is an error reply.
func (v Value) IsError() bool {
	return len(v.raw) > 0 && (v.raw[0] == '-' || v.raw[0] == '!')
}

// Bytes is the value's payload: the text of a string, an error or a number; t or
// f for a boolean; the text after the format for a verbatim string. It is nil for
// nulls and aggregates.
func (v Value) Bytes() []byte {
	off := v.n
	switch v.Kind() {
	case 0, Array, Map, Set, Push:
		return nil
	case Integer:
		off = 1
	}
	if off < 0 {
		return nil
	}
	end := len(v.raw) - 2
	return v.raw[off:end:end]
}

// Is reports whether the value is a simple or bulk string that reads s.
func (v Value) Is(s string) bool {
	k := v.Kind()
	return (k == SimpleString || k == BulkString) && v.n >= 0 && string(v.raw[v.n:len(v.raw)-2]) == s
}

// Int is the value of an Integer; any other kind is false. It does not convert
// strings: Redis sends its integers as integers in both versions.
func (v Value) Int() (int64, bool) {
	if v.Kind() != Integer {
		return 0, false
	}
	return v.n, true
}

// Float is the value of a Double, or of a simple or bulk string that reads like
// one; anything else is false. It is infinite only if the text says inf: a number
// beyond the range of float64 is no double. A number that is too small for float64
// is 0.
func (v Value) Float() (float64, bool) {
	switch v.Kind() {
	case Double, SimpleString, BulkString:
	default:
		return 0, false
	}
	b := v.Bytes()
	if checkDouble(b) >= 0 {
		return 0, false
	}
	if isNaN(b) { // strconv knows only some of them
		return math.NaN(), true
	}
	if len(b) > maxFloatText {
		var short [maxFloatText + 32]byte
		b = shortenFloat(short[:0], b)
	}
	// This is safe because the bytes outlive the call and nobody writes to them
	// meanwhile. A string conversion would allocate for numbers over 32 bytes.
	f, _ := strconv.ParseFloat(unsafe.String(&b[0], len(b)), 64)
	return f, true
}

// Bool is the value of a Boolean, or of an Integer that is 0 or 1. For anything
// else ok is false.
func (v Value) Bool() (value, ok bool) {
	switch v.Kind() {
	case Boolean:
		return v.raw[1] == 't', true
	case Integer:
		return v.n == 1, v.n == 0 || v.n == 1
	}
	return false, false
}

// BigInt is the value of a BigNumber or an Integer, or of a simple or bulk string
// that reads like one; anything else is false. It allocates; [Value.Bytes] has the
// digits without that.
func (v Value) BigInt() (*big.Int, bool) {
	switch v.Kind() {
	case BigNumber, Integer, SimpleString, BulkString:
	default:
		return nil, false
	}
	b := v.Bytes()
	if checkBigNumber(b) >= 0 {
		return nil, false
	}
	return new(big.Int).SetString(string(b), 10)
}

// Format is the format of a verbatim string: three bytes, such as txt or mkd. It
// is nil for any other kind.
func (v Value) Format() []byte {
	if v.Kind() != VerbatimString {
		return nil
	}
	return v.raw[v.n-4 : v.n-1 : v.n-1]
}

// ErrorCode is the first word of an error reply, such as NOSCRIPT or ERR. It is
// nil for any other kind.
func (v Value) ErrorCode() []byte {
	if !v.IsError() {
		return nil
	}
	b := v.Bytes()
	if i := bytes.IndexByte(b, ' '); i >= 0 {
		return b[:i:i]
	}
	return b
}

// Len is the number of elements of an aggregate, and 0 for any other kind. A map
// has two for each pair, as many as the array that RESP2 sends in its place.
func (v Value) Len() int {
	if !v.Kind().IsAggregate() || v.n < 0 {
		return 0
	}
	return int(v.n)
}

// Elems walks the elements of an aggregate. Those of a map are key, value, key,
// value. Any other kind has none.
func (v Value) Elems() Iter {
	n := v.Len()
	if n == 0 {
		return Iter{}
	}
	return Iter{rest: v.raw[bytes.IndexByte(v.raw, '\n')+1:], left: n}
}

// Clone is a copy of the value in memory of its own. It allocates.
func (v Value) Clone() Value { return v.CloneTo(nil) }

// CloneTo is [Value.Clone] with memory of the caller. If buf has the capacity, the copy is at its
// beginning, and CloneTo allocates nothing. The copy is valid until buf is written to.
func (v Value) CloneTo(buf []byte) Value {
	if n := len(v.raw); v.raw != nil {
		if cap(buf) < n {
			buf = make([]byte, n)
		}
		buf = buf[:n:n]
		copy(buf, v.raw)
		v.raw = buf
	}
	return v
}
