package resp

import (
	"strconv"
	"strings"
)

// AppendCommand appends a command: an array of bulk strings.
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
func AppendBulkString(dst []byte, s string) []byte { return appendBulk(dst, s) }

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

// AppendError appends a simple error, whose first word is its code. A simple
// error cannot hold CR or LF: a space replaces each, as in the replies of Redis.
func AppendError(dst []byte, s string) []byte { return appendLine(dst, s) }

func appendBulk(dst []byte, s string) []byte {
	dst = appendLength(dst, BulkString, len(s))
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

func appendLine(dst []byte, s string) []byte {
	dst = append(dst, byte(SimpleError))
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
