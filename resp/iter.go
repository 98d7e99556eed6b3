package resp

import "bytes"

// Iter walks the elements of an aggregate. It reads the frame's own bytes,
// allocates nothing, and is valid as long as the [Value] that it came from. A copy
// of it goes on from the same place. The zero Iter has no elements.
//
// Next skips over what an element contains. So to walk a frame with all its nested
// elements costs its length times its depth.
type Iter struct {
	rest []byte // what is left of the frame: the remaining elements, well-formed, and attributes among them
	left int    // elements to come
}

// Next returns the next element, or false after the last one.
func (it *Iter) Next() (Value, bool) {
	if it.left == 0 {
		return Value{}, false
	}
	it.left--
	v, size := first(it.rest)
	it.rest = it.rest[size:]
	return v, true
}

// first returns the first value of b, which is well-formed, and the number of
// bytes up to its end, attributes in front of it included.
func first(b []byte) (v Value, size int) {
	head := 0
	for b[head] == byte(Attribute) {
		head += extent(b[head:])
	}
	b = b[head:]
	n, size := token(b)
	if Kind(b[0]).IsAggregate() && n > 0 {
		size = extent(b)
	}
	return Value{raw: b[:size:size], n: n}, head + size
}

// extent is the size of the frame at the beginning of b, which is well-formed.
// It counts only how many values are still to come: the last one ends at the same
// place, whichever of the open aggregates each belongs to.
func extent(b []byte) (size int) {
	for left := int64(1); left > 0; left-- {
		n, s := token(b[size:])
		switch k := Kind(b[size]); {
		case k == Attribute && size > 0:
			left += n + 1 // an attribute among the elements is no element
		case k.IsAggregate() && n > 0:
			left += n
		}
		size += s
	}
	return size
}

// token reads a scalar, or the header of an aggregate, at the beginning of b,
// which is well-formed. n is what a Value holds for it.
func token(b []byte) (n int64, size int) {
	switch Kind(b[0]) {
	case SimpleString, SimpleError, Double, BigNumber, Boolean:
		return 1, bytes.IndexByte(b, '\n') + 1
	case Null:
		return -1, 3
	}
	n, size = number(b)
	switch Kind(b[0]) {
	case Map, Attribute:
		n += n // bounded by Limits.Elements when the frame was read
	case BulkString, BulkError, VerbatimString:
		if n < 0 {
			break
		}
		off := size
		size += int(n) + 2
		n = int64(off)
		if b[0] == byte(VerbatimString) {
			n += 4
		}
	}
	return n, size
}

// number reads the integer or length of a well-formed header at the beginning
// of b, and the header's size.
func number(b []byte) (n int64, size int) {
	i, neg := 1, false
	switch b[1] {
	case '-':
		i, neg = 2, true
	case '+':
		i = 2
	}
	for ; b[i] != '\r'; i++ {
		n = n*10 + int64(b[i]-'0') // the least integer overflows here to itself
	}
	if neg {
		n = -n
	}
	return n, i + 2
}
