package resp

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

// AppendCommand appends a command: an array of bulk strings. Without args it is one that a server does not answer.
func AppendCommand(dst []byte, args ...string) []byte {
	dst = AppendArray(dst, len(args))
	for _, arg := range args {
		dst = AppendBulkString(dst, arg)
	}
	return dst
}

// AppendArray appends the header of an array of n elements. The caller appends
// these after it, one by one. A command is such a header, and then its name and
// arguments as bulk strings. AppendArray panics if n is negative.
func AppendArray(dst []byte, n int) []byte { return appendLength(dst, Array, n) }

// AppendBulk appends a bulk string.
func AppendBulk(dst, b []byte) []byte {
	dst = appendLength(dst, BulkString, len(b))
	dst = append(dst, b...)
	return append(dst, '\r', '\n')
}

// AppendBulkString appends a bulk string.
func AppendBulkString(dst []byte, s string) []byte {
	return appendBulk(dst, BulkString, s)
}

// AppendBulkInt appends n in decimal as a bulk string, which is how a command
// takes its numbers.
func AppendBulkInt(dst []byte, n int64) []byte {
	size := 1
	if n < 0 {
		size = 2
	}
	for m := n / 10; m != 0; m /= 10 {
		size++
	}
	dst = appendLength(dst, BulkString, size)
	dst = strconv.AppendInt(dst, n, 10)
	return append(dst, '\r', '\n')
}

// AppendSimpleString appends a simple string. A simple string cannot hold CR or
// LF: a space replaces each, as in the replies of Redis.
func AppendSimpleString(dst []byte, s string) []byte { return appendLine(dst, SimpleString, s) }

// AppendError appends a simple error, whose first word is its code. A simple
// error cannot hold CR or LF: a space replaces each, as in the replies of Redis.
func AppendError(dst []byte, s string) []byte { return appendLine(dst, SimpleError, s) }

// AppendInt appends an integer.
func AppendInt(dst []byte, n int64) []byte {
	dst = strconv.AppendInt(append(dst, byte(Integer)), n, 10)
	return append(dst, '\r', '\n')
}

// AppendNull appends RESP3's null.
func AppendNull(dst []byte) []byte { return append(dst, "_\r\n"...) }

// AppendNullBulk appends RESP2's null bulk string.
func AppendNullBulk(dst []byte) []byte { return append(dst, "$-1\r\n"...) }

// AppendNullArray appends RESP2's null array.
func AppendNullArray(dst []byte) []byte { return append(dst, "*-1\r\n"...) }

// AppendBool appends a boolean.
func AppendBool(dst []byte, b bool) []byte {
	if b {
		return append(dst, "#t\r\n"...)
	}
	return append(dst, "#f\r\n"...)
}

// AppendDouble appends a double with the fewest digits that tell it from every
// other float64.
func AppendDouble(dst []byte, f float64) []byte {
	switch {
	case math.IsInf(f, 1):
		return append(dst, ",inf\r\n"...)
	case math.IsInf(f, -1):
		return append(dst, ",-inf\r\n"...)
	case math.IsNaN(f):
		return append(dst, ",nan\r\n"...)
	}
	dst = strconv.AppendFloat(append(dst, byte(Double)), f, 'g', -1, 64)
	return append(dst, '\r', '\n')
}

// AppendBigNumber appends a big number. It allocates, for its digits. It panics if n is nil.
func AppendBigNumber(dst []byte, n *big.Int) []byte {
	if n == nil {
		panic("resp: no big number")
	}
	dst = n.Append(append(dst, byte(BigNumber)), 10)
	return append(dst, '\r', '\n')
}

// AppendBulkError appends a bulk error, whose first word is its code. Unlike a
// simple error it may hold any byte.
func AppendBulkError(dst []byte, s string) []byte { return appendBulk(dst, BulkError, s) }

// AppendVerbatim appends a verbatim string. Redis knows the formats txt and mkd.
// AppendVerbatim panics if the format has not three bytes.
func AppendVerbatim(dst []byte, format, s string) []byte {
	if len(format) != 3 {
		panic("resp: the format of a verbatim string has three bytes")
	}
	dst = appendLength(dst, VerbatimString, 4+len(s))
	dst = append(dst, format...)
	dst = append(dst, ':')
	dst = append(dst, s...)
	return append(dst, '\r', '\n')
}

// AppendMap appends the header of a map. A pair is a key and a value. It panics
// if pairs is negative.
func AppendMap(dst []byte, pairs int) []byte { return appendLength(dst, Map, pairs) }

// AppendSet appends the header of a set of n elements. It panics if n is
// negative.
func AppendSet(dst []byte, n int) []byte { return appendLength(dst, Set, n) }

// AppendPush appends the header of a push of n elements. The first is a string
// that names the push's kind. It panics if n is not positive.
func AppendPush(dst []byte, n int) []byte {
	if n == 0 {
		panic("resp: a push has a name")
	}
	return appendLength(dst, Push, n)
}

// AppendAttribute appends the header of an attribute. A pair is a key and a
// value. After the pairs comes the value that the attribute belongs to. It panics
// if pairs is negative.
func AppendAttribute(dst []byte, pairs int) []byte { return appendLength(dst, Attribute, pairs) }

func appendBulk(dst []byte, k Kind, s string) []byte {
	dst = appendLength(dst, k, len(s))
	dst = append(dst, s...)
	return append(dst, '\r', '\n')
}

func appendLength(dst []byte, k Kind, n int) []byte {
	if uint(n) < 10 {
		return append(dst, byte(k), '0'+byte(n), '\r', '\n')
	}
	return appendLongLength(dst, k, n)
}

func appendLongLength(dst []byte, k Kind, n int) []byte {
	if uint(n) < 100 {
		return append(dst, byte(k), '0'+byte(n/10), '0'+byte(n%10), '\r', '\n')
	}
	if n < 0 {
		panic("resp: negative length")
	}
	dst = strconv.AppendInt(append(dst, byte(k)), int64(n), 10)
	return append(dst, '\r', '\n')
}

func appendLine(dst []byte, k Kind, s string) []byte {
	dst = append(dst, byte(k))
	at := len(dst)
	dst = append(dst, s...)
	if strings.ContainsAny(s, "\r\n") {
		for i, c := range dst[at:] {
			if c == '\r' || c == '\n' {
				dst[at+i] = ' '
			}
		}
	}
	return append(dst, '\r', '\n')
}
