package resp

import (
	"bytes"
	"encoding/binary"
)

// Reader takes frames out of a stream of bytes that its caller feeds it. It is
// used by one goroutine at a time. The zero Reader has the default [Limits] and
// a buffer of 64 bytes, which grows.
type Reader struct {
	// The buffer. It has what was received and may still be needed; the rest of
	// its capacity is free space. All positions count from its beginning:
	//
	//	0 <= start <= head <= pos <= pos+seen <= len(buf) <= cap(buf)
	//
	// Next has returned [0, start).
	buf   []byte
	start int
	base  int64 // bytes of the stream that came before buf
	grown bool  // the buffer is larger than initial: cap(buf) > cap(initial)

	// The frame in progress. If begun is set, [start, head) has the attributes in
	// front of the frame and [head, pos) its complete tokens. If it is not set,
	// no byte from start on has been looked at, and head and pos mean nothing.
	mid   bool // begun is set, or err, or raised: the next frame is not for the fast paths
	begun bool // within a frame
	head  int
	pos   int
	n     int64 // what the frame's Value is to hold

	// The token in progress, which begins at pos. All are zero between tokens.
	seen int    // its bytes that were looked at: [pos, pos+seen)
	num  uint64 // its number, as far as the digits were seen
	body bool   // its header is complete, and num is the length of its payload

	// What the frame may still ask for. open has one entry for the frame itself
	// and one for each of its aggregates that is not complete: how many values
	// are still to come at that level, which is always one or more.
	//
	//	len(open)-1 <= limits.Depth
	//	elems <= limits.Elements
	open   []int64
	elems  int
	limits Limits
	own    Limits // limits of all frames but the one that Raise was called for
	once   Limits // ... and of that one
	raised bool   // it has not come yet

	skipped Skipped // the frame that is being skipped, or the last one that was
	beyond  beyond

	err *SyntaxError // why nothing more can be read; stays until Reset

	// What the buffer returns to.
	initial []byte // the buffer from NewReader, of length 0; nil in a zero Reader
	quiet   int    // fills of a grown buffer in a row for which initial was large enough
}

// shrinkAfter is the number of fills in a row that did not need a grown buffer
// before the reader gives it up. It is above one because frames that need the
// space again and again must not pay for a new buffer each time.
const shrinkAfter = 64

// NewReader returns a reader with a buffer of size bytes, or 64 if that is more.
//
// The buffer grows for frames that do not fit, to no more than twice what
// limits.Frame and the caller's reads need, however much a header announces.
// After 64 fills that ended with a frame and did not need the larger buffer, the
// reader returns to the initial one.
func NewReader(size int, limits Limits) *Reader {
	limits = limits.withDefaults()
	r := &Reader{
		limits:  limits,
		own:     limits,
		initial: make([]byte, 0, max(size, minLimit)),
		open:    make([]int64, 0, 1+min(limits.Depth, defaultDepth)),
	}
	r.Reset()
	return r
}

// Reset makes the reader ready for another stream: it forgets all bytes and any
// error, and returns to its initial buffer. Values that Next has returned become
// invalid.
func (r *Reader) Reset() {
	*r = Reader{limits: r.own, own: r.own, initial: r.initial, buf: r.initial, open: r.open[:0]}
}

// Raise has the next reply bounded by other limits: for that reply alone, and only if it begins with no attribute.
// The pushes in front of it, and all frames behind it, are bounded by the reader's own. Call it before the reply's
// first byte comes, or right after Next has returned the frame in front of it.
func (r *Reader) Raise(limits Limits) {
	if r.initial == nil {
		*r = *NewReader(0, Limits{})
	}
	r.once, r.raised, r.mid = limits.withDefaults(), true, true
}

// Skipped is what is known of the frame for which Next has just returned [ErrSkipped]. Another Next may change it.
func (r *Reader) Skipped() Skipped { return r.skipped }

// Free returns the free space behind the bytes received so far, of at least min
// bytes. The caller fills it from its beginning and tells [Reader.Advance] how
// far. The bytes may move, so all values that Next has returned become invalid.
//
// Call Next until it needs more bytes before you call Free: then compaction
// moves each byte at most once, and the buffer stays within its bounds.
func (r *Reader) Free(min int) []byte {
	held := len(r.buf)
	if r.start == held {
		r.base += int64(held)
		r.buf, r.start = r.buf[:0], 0
	}
	if r.grown || cap(r.buf)-len(r.buf) < min {
		r.makeRoom(min, held)
	}
	return r.buf[len(r.buf):cap(r.buf)]
}

// Advance tells the reader that the first n bytes of the space from [Reader.Free]
// were filled. It panics if n is negative or exceeds the free space.
func (r *Reader) Advance(n int) {
	if n < 0 {
		panic("resp: negative Advance")
	}
	r.buf = r.buf[:len(r.buf)+n]
}

// Offset is the number of bytes in the stream, since NewReader or Reset, up to
// the end of the last frame that Next has returned or skipped.
func (r *Reader) Offset() int64 {
	if r.beyond.left > 0 { // of the frame that is being skipped some is gone
		return r.base + int64(r.start) - r.skipped.Bytes
	}
	return r.base + int64(r.start)
}

// makeRoom is the slow part of Free. It makes room for min bytes: it moves what
// is still needed to the beginning of the buffer, or to a larger one. It gives up
// a larger buffer that was not needed. Held is the number of bytes in the buffer
// when Free was called.
func (r *Reader) makeRoom(min, held int) {
	if r.initial == nil {
		*r = *NewReader(0, Limits{})
	}
	switch {
	case held+min > cap(r.initial):
		r.quiet = 0
	case held > 0 && r.grown && len(r.buf) == 0:
		r.quiet++
	}
	rest := r.buf[r.start:]
	to := r.buf[:0]
	switch {
	case r.quiet >= shrinkAfter:
		to = r.initial
		r.grown, r.quiet = false, 0
	case cap(to)-len(r.buf) >= min:
		return
	case cap(to)-len(rest) < min:
		to = make([]byte, 0, max(2*cap(to), len(rest)+min))
		r.grown = true
	}
	r.buf = append(to, rest...)
	r.base += int64(r.start)
	r.head -= r.start
	r.pos -= r.start
	r.start = 0
}

// Next returns the next frame. A frame of kind [Push] is a message that answers
// no command; any other is a reply. The value is valid until the next Free or
// Reset.
//
// The error is [ErrNeedMore] if the frame is not complete yet. Next looks at each
// byte once, so a frame costs time in proportion to its length, however small the
// pieces in which it arrives. The error is [ErrSkipped] in the place of a frame that
// exceeds the limits, if Limits.Skip is set; nothing of such a frame is kept. Any other
// error is a [*SyntaxError], and Next returns it until Reset. It has returned all frames
// in front of the fault before.
func (r *Reader) Next() (Value, error) {
	// The most common replies need no look at the limits: +OK, $-1, an integer of one digit, and _.
	if b := r.buf[r.start:]; len(b) >= 4 && !r.mid {
		switch word := binary.LittleEndian.Uint32(b); {
		case word == '+'|'O'<<8|'K'<<16|'\r'<<24:
			if len(b) >= 5 && b[4] == '\n' {
				r.start += 5
				return Value{raw: b[:5:5], n: 1}, nil
			}
		case word == '$'|'-'<<8|'1'<<16|'\r'<<24:
			if len(b) >= 5 && b[4] == '\n' {
				r.start += 5
				return Value{raw: b[:5:5], n: -1}, nil
			}
		case word&^0x0f00 == ':'|'0'<<8|'\r'<<16|'\n'<<24 && byte(word>>8) <= '9':
			r.start += 4
			return Value{raw: b[:4:4], n: int64(word >> 8 & 0x0f)}, nil
		case word&0xff == ':':
			return r.nextInteger(b)
		case word&0xffffff == '_'|'\r'<<8|'\n'<<16:
			r.start += 3
			return Value{raw: b[:3:3], n: -1}, nil
		default:
			return r.nextText(b)
		}
	}
	return r.next()
}

// nextInteger takes an integer of at most 18 digits, so that it cannot overflow, which has no
// sign. It leaves all else to next.
func (r *Reader) nextInteger(b []byte) (Value, error) {
	n, at := int64(0), 1
	if len(b) >= 10 {
		if eight, ok := eightDigits(binary.LittleEndian.Uint64(b[1:])); ok {
			n, at = eight, 9
			if len(b) >= 18 {
				if eight, ok := eightDigits(binary.LittleEndian.Uint64(b[9:])); ok {
					n, at = n*1e8+eight, 17
				}
			}
		}
	}
	if b[1]-'1' <= 8 {
		for i, c := range b[at:min(len(b)-1, 20)] {
			if c -= '0'; c > 9 {
				if at += i; b[at] == '\r' && b[at+1] == '\n' {
					r.start += at + 2
					return Value{raw: b[: at+2 : at+2], n: n}, nil
				}
				break
			}
			n = n*10 + int64(c)
		}
	}
	return r.next()
}

// eightDigits is the number that the eight bytes of word make, of which the lowest comes first, if
// all of them are digits.
func eightDigits(word uint64) (n int64, ok bool) {
	// A byte is a digit if its upper half is 3, and still is when 6 is added.
	const upper = 0xf0f0f0f0f0f0f0f0
	if word&upper|(word+0x0606060606060606)&upper>>4 != 0x3333333333333333 {
		return 0, false
	}
	// Two neighbours at a time become one: digits, pairs of digits, and fours.
	word &= 0x0f0f0f0f0f0f0f0f
	word = word * (10<<8 + 1) >> 8 & 0x00ff00ff00ff00ff
	word = word * (100<<16 + 1) >> 16 & 0x0000ffff0000ffff
	return int64(word * (10_000<<32 + 1) >> 32), true
}

// nextText takes a string or an error at the beginning of b that is shorter than any limit. It
// leaves all else to next.
func (r *Reader) nextText(b []byte) (Value, error) {
	var n int64
	var size int
	switch Kind(b[0]) {
	case BulkString:
		n, size = consumeBulk(b)
	case SimpleString, SimpleError:
		n, size = 1, consumeLine(b)
	}
	if size == 0 {
		return r.next()
	}
	r.start += size
	return Value{raw: b[:size:size], n: n}, nil
}

// consumeLine takes a line of text that is shorter than any limit. The size is 0 for anything else.
func consumeLine(b []byte) (size int) {
	b = b[:min(len(b), minLimit)]
	end := bytes.IndexByte(b, '\n')
	if end < 1 || bytes.IndexByte(b[:end], '\r') != end-1 {
		return 0
	}
	return end + 1
}

// consumeBulk takes a bulk string that is shorter than any limit; n is where its payload begins.
// The size is 0 for anything else.
func consumeBulk(b []byte) (n int64, size int) {
	length, at := consumeLength(b)
	if end := at + int(length); at != 0 && end+2 <= min(len(b), minLimit) && b[end] == '\r' && b[end+1] == '\n' {
		return int64(at), end + 2
	}
	return 0, 0
}

// next goes on with the frame in progress, or begins one.
func (r *Reader) next() (Value, error) {
	if r.err != nil {
		return Value{}, r.err
	}
	if !r.begun {
		if r.start == len(r.buf) {
			return Value{}, ErrNeedMore
		}
		r.begin()
	}
	if r.beyond.left > 0 {
		return Value{}, r.skip()
	}
	// Nothing beyond limits.Frame bytes of a frame is ever looked at. So the fault
	// and its place are the same in whatever pieces the bytes arrive.
	b := r.buf
	if len(b)-r.start > r.limits.Frame {
		b = b[:r.start+r.limits.Frame]
	}
	for r.pos < len(b) {
		k := Kind(b[r.pos])
		naming := r.naming()
		if naming && !k.canName() {
			r.fail(0, BadPush)
			break
		}
		n, size := r.scan(b[r.pos:])
		if size == 0 {
			break
		}
		if naming && n < 0 {
			r.fail(0, BadPush)
			break
		}
		if len(r.open) == 1 {
			r.head, r.n = r.pos, n
		}
		r.pos += size
		r.seen, r.num, r.body = 0, 0, false
		if n > 0 && k.IsAggregate() {
			r.open = append(r.open, n)
		} else if r.close() {
			r.end(Kind(b[r.head]))
			r.start = r.pos
			return Value{raw: b[r.head:r.pos:r.pos], n: r.n}, nil
		}
	}
	if r.err == nil && r.beyond.left == 0 {
		if len(b)-r.start < r.limits.Frame {
			return Value{}, ErrNeedMore
		}
		r.exceed(len(b)-r.pos, TooLong)
	}
	if r.err != nil {
		return Value{}, r.err
	}
	return Value{}, r.skip()
}

// begin begins a frame.
func (r *Reader) begin() {
	r.mid, r.begun, r.head, r.pos = true, true, r.start, r.start
	r.open = append(r.open[:0], 1)
	r.elems = 0
	if k := Kind(r.buf[r.start]); r.raised && k != Push && k != Attribute {
		r.limits, r.raised = r.once, false
	}
}

// end ends a frame of a kind.
func (r *Reader) end(k Kind) {
	r.limits = r.own
	r.raised = r.raised && k == Push // a reply has come that began with an attribute
	r.mid, r.begun = r.raised, false
}

// naming reports whether the next token is the first element of a push, which
// names its kind, or an attribute in front of it.
func (r *Reader) naming() bool {
	return len(r.open) == 2 && r.open[1] == r.n && r.buf[r.head] == byte(Push)
}

// close counts a complete value, and the aggregates that this value completes.
// It reports whether the frame is complete.
func (r *Reader) close() bool {
	for top := len(r.open) - 1; ; top-- {
		r.open[top]--
		if r.open[top] > 0 {
			return false
		}
		if top == 0 {
			return true
		}
		r.open = r.open[:top]
	}
}

// exceed begins to skip the frame, which exceeds a limit at offset at of the token, or makes that a fault.
func (r *Reader) exceed(at int, fault Fault) {
	if r.limits.Skip == 0 {
		r.fail(at, fault)
		return
	}
	r.skipFrom(fault)
}

// fail makes a fault the reader's error. It lies at offset at of the token.
func (r *Reader) fail(at int, fault Fault) {
	r.err = &SyntaxError{Offset: r.base + int64(r.pos+at), Fault: fault}
}
