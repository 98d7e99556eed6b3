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
// It borrows the buffer of the [Reader] it came from, as does everything taken
// out of it without copying, and is valid until that reader's next Free or
// Reset. [Value.Clone] outlives the buffer. Slices have no capacity beyond their
// length: to append to one is to copy it. The zero Value is none of the kinds and
// has no content.
//
// Each typed accessor reads its own RESP3 type and the form in which Redis
// sends the same reply over RESP2, so callers need not ask which one is spoken.
type Value struct {
	// raw is the frame, first byte to last, and well-formed: only the reader
	// and the iterator make values. Its capacity is its length.
	raw []byte

	// n is the integer itself for Integer, the number of elements for an
	// aggregate, -1 for null, and the offset of the payload in raw for the
	// rest. One field for all of them keeps Value at four words, which is as
	// much as the compiler holds in registers.
	n int64
}

// Kind is the type the value was sent as: a null may be a Null, a BulkString
// or an Array. It is 0 for the zero Value.
func (v Value) Kind() Kind {
	if len(v.raw) == 0 {
		return 0
	}
	return Kind(v.raw[0])
}

// Raw is the value as it was sent, line ends included, without any attributes
// in front of it.
func (v Value) Raw() []byte { return v.raw }

// IsNull reports whether the value is RESP3's null, or one of RESP2's, which
// are a bulk string and an array of length -1.
func (v Value) IsNull() bool { return v.n < 0 && v.raw[0] != ':' }

// IsError reports whether the value is an error reply.
func (v Value) IsError() bool {
	return len(v.raw) > 0 && (v.raw[0] == '-' || v.raw[0] == '!')
}

// Bytes is the value's payload: the text of a string, an error or a number; t
// or f for a boolean; for a verbatim string, the text behind its format. It is
// nil for nulls and aggregates.
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

// Int is the value of an Integer. Strings that look like one are not converted:
// what Redis sends as an integer it sends so in both protocols.
func (v Value) Int() (int64, bool) {
	if v.Kind() != Integer {
		return 0, false
	}
	return v.n, true
}

// Float is the value of a Double, or of a simple or bulk string that reads like
// one. It is infinite only where the text says inf: a number beyond the range of
// float64 is no double. One that is too small for it is 0.
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
	if b[len(b)-1] == 'n' { // nan and the -nan that strconv does not know
		return math.NaN(), true
	}
	// The bytes outlive the call and nobody writes to them meanwhile. A string
	// conversion would allocate for numbers over 32 bytes.
	f, _ := strconv.ParseFloat(unsafe.String(&b[0], len(b)), 64)
	return f, true
}

// Bool is the value of a Boolean, or of an Integer that is 0 or 1.
func (v Value) Bool() (value, ok bool) {
	switch v.Kind() {
	case Boolean:
		return v.raw[1] == 't', true
	case Integer:
		return v.n == 1, v.n == 0 || v.n == 1
	}
	return false, false
}

// BigInt is the value of a BigNumber or an Integer, or of a simple or bulk
// string that is one. It allocates; Bytes has the digits.
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

// Format is the format of a verbatim string, txt or mkd, and nil for any other
// kind.
func (v Value) Format() []byte {
	if v.Kind() != VerbatimString {
		return nil
	}
	return v.raw[v.n-4 : v.n-1 : v.n-1]
}

// ErrorCode is the first word of an error reply, such as NOSCRIPT or ERR, and
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

// Len is the number of an aggregate's elements, keys and values of a map
// counted each, and 0 for any other kind. So a map has the same length as the
// array that takes its place in RESP2.
func (v Value) Len() int {
	if !v.Kind().IsAggregate() || v.n < 0 {
		return 0
	}
	return int(v.n)
}

// Elems walks an aggregate's elements; a map's are key, value, key, value. Any
// other kind has none.
func (v Value) Elems() Iter {
	n := v.Len()
	if n == 0 {
		return Iter{}
	}
	return Iter{rest: v.raw[bytes.IndexByte(v.raw, '\n')+1:], left: n}
}

// Clone is a copy of the value in memory of its own.
func (v Value) Clone() Value {
	if v.raw != nil {
		raw := make([]byte, len(v.raw))
		copy(raw, v.raw)
		v.raw = raw
	}
	return v
}
