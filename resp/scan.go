package resp

import (
	"bytes"
	"math"
	"strconv"
)

// The functions of this file scan the token at the beginning of b, which is
// everything received from the token's first byte on. They return a size of 0
// if the token is not complete, or if it is at fault; then r.err is set. They
// keep in r.seen, r.num and r.body where they stopped, and the next call, with
// more bytes, goes on from there. A size of 0 can also mean that the token exceeds
// a limit, and that its frame is skipped: then r.beyond.left is above 0.
//
// They decide by the bytes in the order of the stream, never by how many have
// arrived. So the error does not depend on how the stream was cut.

// scan scans a scalar, or the header of an aggregate. n is what the Value is to
// hold.
func (r *Reader) scan(b []byte) (n int64, size int) {
	switch k := Kind(b[0]); k {
	case BulkString, BulkError, VerbatimString:
		return r.scanBulk(b)
	case Array, Map, Set, Push, Attribute:
		n, size = r.scanLength(b)
		if size == 0 || n < 0 {
			return n, size
		}
		return r.enter(k, n, size)
	case SimpleString, SimpleError:
		return 1, r.scanLine(b)
	case Integer:
		return r.scanInteger(b)
	case Null:
		return -1, r.scanLineEnd(b, 1, BadLineEnd)
	case Boolean:
		if len(b) > 1 && b[1] != 't' && b[1] != 'f' {
			r.fail(1, BadBoolean)
			return 0, 0
		}
		return 1, r.scanLineEnd(b, 2, BadBoolean)
	case Double:
		size = r.scanLine(b)
		if size != 0 {
			if at := checkDouble(b[1 : size-2]); at >= 0 {
				r.fail(1+at, BadDouble)
				return 0, 0
			}
		}
		return 1, size
	case BigNumber:
		size = r.scanLine(b)
		if size != 0 {
			if at := checkBigNumber(b[1 : size-2]); at >= 0 {
				r.fail(1+at, BadNumber)
				return 0, 0
			}
		}
		return 1, size
	case ';', '.':
		r.fail(0, Streamed)
	default:
		r.fail(0, BadKind)
	}
	return 0, 0
}

// enter counts the n elements, or pairs, of an aggregate against the limits. It
// returns the number of elements, and the size of the header, which is 0 if there
// are too many.
func (r *Reader) enter(k Kind, n int64, size int) (int64, int) {
	top := len(r.open) - 1
	if k == Push {
		switch {
		case top > 0:
			r.fail(0, NestedPush)
			return 0, 0
		case n == 0:
			r.fail(1, BadPush)
			return 0, 0
		}
	}
	if top >= r.limits.Depth {
		r.exceed(0, TooDeep)
		return 0, 0
	}
	room := int64(r.limits.Elements - r.elems)
	if k == Attribute {
		room-- // it counts, or attributes without end would be within the limits
	}
	pairs := k == Map || k == Attribute
	if pairs {
		room >>= 1 // doubling n before it is known to be small could overflow
	}
	if n > room {
		r.exceed(1, TooMany)
		return 0, 0
	}
	if k == Attribute {
		r.open[top]++ // it is none of the values still to come at this level
		r.elems++
	}
	if pairs {
		n += n
	}
	r.elems += int(n)
	return n, size
}

// scanBulk scans a length and that many bytes.
func (r *Reader) scanBulk(b []byte) (n int64, size int) {
	off, length := r.seen, int(r.num)
	if !r.body {
		n, off = r.scanLength(b)
		if off == 0 || n < 0 {
			return n, off
		}
		// Compared so that nothing can overflow.
		if n > int64(r.limits.Bulk) || n > int64(r.limits.Frame-(r.pos-r.start)-off-2) {
			r.exceed(1, TooLong)
			return 0, 0
		}
		length = int(n)
	}
	if length > len(b)-off-2 {
		r.body, r.seen, r.num = true, off, uint64(length)
		return 0, 0
	}
	if b[0] == byte(VerbatimString) {
		switch {
		case length < 4:
			r.fail(1, BadVerbatim)
			return 0, 0
		case b[off+3] != ':':
			r.fail(off+3, BadVerbatim)
			return 0, 0
		}
		return int64(off) + 4, r.scanLineEnd(b, off+length, BadLineEnd)
	}
	return int64(off), r.scanLineEnd(b, off+length, BadLineEnd)
}

// scanLength scans a header line with a length, which is -1 for null.
func (r *Reader) scanLength(b []byte) (n int64, size int) {
	if n, size := consumeLength(b); size != 0 {
		return n, size
	}
	if len(b) < 2 {
		return 0, 0
	}
	switch b[1] {
	case '-':
		if b[0] != byte(BulkString) && b[0] != byte(Array) {
			r.fail(1, BadLength)
			return 0, 0
		}
		if len(b) > 2 && b[2] != '1' {
			r.fail(2, BadLength)
			return 0, 0
		}
		return -1, r.scanLineEnd(b, 3, BadLength)
	case '?':
		r.fail(1, Streamed)
		return 0, 0
	}
	size = r.scanDigits(b, 1, math.MaxInt64, BadLength)
	return int64(r.num), size
}

// consumeLength takes a length of one or two digits, as nearly all have, if bytes
// follow its line. The size is 0 for anything else.
func consumeLength(b []byte) (n int64, size int) {
	// NOTE: this has to stay inlinable.
	if len(b) >= 5 && b[1]-'0' <= 9 {
		if b[2] == '\r' && b[3] == '\n' {
			return int64(b[1] - '0'), 4
		}
		if b[1] != '0' && b[2]-'0' <= 9 && b[3] == '\r' && b[4] == '\n' {
			return int64(b[1]-'0')*10 + int64(b[2]-'0'), 5
		}
	}
	return 0, 0
}

// scanInteger scans a line with an integer.
func (r *Reader) scanInteger(b []byte) (n int64, size int) {
	if len(b) < 2 {
		return 0, 0
	}
	switch b[1] {
	case '-':
		size = r.scanDigits(b, 2, -math.MinInt64, BadInteger)
		return -int64(r.num), size
	case '+':
		size = r.scanDigits(b, 2, math.MaxInt64, BadInteger)
	default:
		size = r.scanDigits(b, 1, math.MaxInt64, BadInteger)
	}
	return int64(r.num), size
}

// scanDigits scans a number of at most max, from the given offset to the end of
// its line, into r.num. It refuses a leading zero, so max bounds the length of the
// line too.
func (r *Reader) scanDigits(b []byte, from int, max uint64, fault Fault) (size int) {
	i, num := r.seen, r.num
	if i < from {
		i = from
	}
	for ; i < len(b); i++ {
		d := uint64(b[i] - '0')
		if d > 9 {
			if i == from {
				r.fail(i, fault)
				return 0
			}
			break
		}
		if num == 0 && i > from {
			r.fail(i, fault)
			return 0
		}
		if num > (max-d)/10 {
			r.fail(i, Overflow)
			return 0
		}
		num = num*10 + d
	}
	r.seen, r.num = i, num
	return r.scanLineEnd(b, i, fault)
}

// scanLine scans a line of text.
func (r *Reader) scanLine(b []byte) (size int) {
	from := max(r.seen, 1)
	// The payload and the CR behind it.
	text := b[from:min(len(b), r.limits.Bulk+2)]
	end := bytes.IndexByte(text, '\r')
	if end >= 0 {
		text = text[:end]
	}
	if at := bytes.IndexByte(text, '\n'); at >= 0 {
		r.fail(from+at, BadLineEnd)
		return 0
	}
	r.seen = from + len(text)
	if end >= 0 {
		return r.scanLineEnd(b, r.seen, BadLineEnd)
	}
	if r.seen == r.limits.Bulk+2 {
		r.exceed(r.limits.Bulk+1, TooLong)
	}
	return 0
}

// scanLineEnd scans the CR LF at the given offset, which ends the token. If
// another byte stands where CR should, that is the given fault.
func (r *Reader) scanLineEnd(b []byte, at int, fault Fault) (size int) {
	switch {
	case len(b) > at && b[at] != '\r':
		r.fail(at, fault)
		return 0
	case len(b) < at+2:
		return 0
	case b[at+1] != '\n':
		r.fail(at+1, BadLineEnd)
		return 0
	}
	return at + 2
}

// checkDouble returns the offset of the first byte at which b ceases to be the
// text of a double, or -1 if it is one. If the number is beyond float64, the
// offset is 0.
func checkDouble(b []byte) int {
	if string(b) == "inf" || string(b) == "-inf" || isNaN(b) {
		return -1
	}
	i := skipSign(b, 0)
	digits := func() bool {
		from := i
		for i < len(b) && b[i]-'0' <= 9 {
			i++
		}
		return i > from
	}
	if !digits() {
		return i
	}
	if i < len(b) && b[i] == '.' {
		i++
		if !digits() {
			return i
		}
	}
	mantissa := i
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i = skipSign(b, i+1)
		if !digits() {
			return i
		}
	}
	if i < len(b) {
		return i
	}
	// A short text without an exponent is never beyond float64.
	if (mantissa < len(b) || len(b) >= len(float64Limit)) && isBeyondFloat64(b, mantissa) {
		return 0
	}
	return -1
}

// isNaN reports whether b is one of the texts that C libraries print of what is no number: nan, -nan, NAN, nan(0x7).
func isNaN(b []byte) bool {
	if len(b) > 0 && b[0] == '-' {
		b = b[1:]
	}
	if len(b) < 3 || b[0]|0x20 != 'n' || b[1]|0x20 != 'a' || b[2]|0x20 != 'n' {
		return false
	}
	if b = b[3:]; len(b) == 0 {
		return true
	}
	if b[0] != '(' || b[len(b)-1] != ')' || len(b) == 1 {
		return false
	}
	for _, c := range b[1 : len(b)-1] {
		if c != '_' && c-'0' > 9 && c|0x20-'a' > 'z'-'a' {
			return false
		}
	}
	return true
}

// float64Limit is 2^1024 - 2^970, the least number that rounds to infinity.
const float64Limit = "17976931348623158079372897140530341507993413271003782693617377898044496829276475094664901797758720709633" +
	"02864166928879109465555478519404026306574886715058206819089020007083836762738548458177115317644757302700" +
	"69855571366959622842914819860834936475292719074168444365510704342711559699508093042880177904174497792"

// maxFloatText is how long a number may be so that strconv reads it right: of more digits in front of the point it
// loses the magnitude, and it takes an exponent above 9,999 for a smaller one.
const maxFloatText = 800

// shortenFloat appends a number of any length so that strconv reads it: no more digits decide how it rounds.
func shortenFloat(dst, b []byte) []byte {
	mantissa := bytes.IndexAny(b, "eE")
	if mantissa < 0 {
		mantissa = len(b)
	}
	first, point := magnitude(b, mantissa)
	if b[0] == '-' {
		dst = append(dst, '-')
	}
	dst = append(dst, "0."...)
	if first < 0 {
		return append(dst, '0')
	}
	most := len(dst) + maxFloatText - 1
	for i, c := range b[first:mantissa] {
		if len(dst) == most {
			if bytes.ContainsAny(b[first+i:mantissa], "123456789") {
				dst = append(dst, '1') // above a half that the others may be
			}
			break
		}
		if c != '.' {
			dst = append(dst, c)
		}
	}
	return strconv.AppendInt(append(dst, 'e'), point, 10)
}

// magnitude returns where the first digit of a number is that is not 0, and how far behind the beginning of that the
// decimal point is; first is -1 if there is none. Mantissa is the number of bytes in front of the exponent, sign
// included.
func magnitude(b []byte, mantissa int) (first int, point int64) {
	first = -1
	fraction := false
	for i := skipSign(b, 0); i < mantissa; i++ {
		switch {
		case b[i] == '.':
			fraction = true
		case first < 0 && b[i] == '0':
			if fraction {
				point--
			}
		default:
			if first < 0 {
				first = i
			}
			if !fraction {
				point++
			}
		}
	}
	if first >= 0 && mantissa < len(b) {
		exponent := int64(0)
		for _, c := range b[skipSign(b, mantissa+1):] {
			if exponent <= 2*maxBulk { // no text has enough zeros to outweigh more
				exponent = exponent*10 + int64(c-'0')
			}
		}
		if b[mantissa+1] == '-' {
			exponent = -exponent
		}
		point += exponent
	}
	return first, point
}

// isBeyondFloat64 reports whether a number rounds to infinity. strconv would know too, but it allocates an error to
// say so.
func isBeyondFloat64(b []byte, mantissa int) bool {
	first, point := magnitude(b, mantissa)
	if first < 0 {
		return false
	}
	if whole := int64(len(float64Limit)); point != whole {
		return point > whole
	}
	at := 0
	for _, c := range b[first:mantissa] {
		switch {
		case c == '.':
			continue
		case at == len(float64Limit) || c > float64Limit[at]:
			return true
		case c < float64Limit[at]:
			return false
		}
		at++
	}
	return at == len(float64Limit)
}

// checkBigNumber returns the offset of the first byte at which b ceases to be the
// text of a big number, or -1 if it is one.
func checkBigNumber(b []byte) int {
	i := skipSign(b, 0)
	from := i
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	if i == from || i < len(b) {
		return i
	}
	return -1
}

func skipSign(b []byte, i int) int {
	if i < len(b) && (b[i] == '-' || b[i] == '+') {
		i++
	}
	return i
}
