package resp

// Reader takes frames out of a stream of bytes that its caller feeds it. It is
// used by one goroutine at a time.
type Reader struct {
	// buf is what was received and not given back yet, the rest of its capacity
	// is free space. All positions are counted from its beginning:
	//
	//	0 <= start <= head <= pos <= pos+seen <= len(buf) <= cap(buf)
	//
	// [0, start) was returned by Next. If mid is set, then
	// [start, head) is the attributes in front of the frame,
	// [head, pos) is those of its tokens that are complete, and
	// [pos, pos+seen) is what has been looked at of the next one.
	// Otherwise no byte from start on has been looked at.
	buf   []byte
	start int
	base  int64 // bytes of the stream before buf
	mid   bool  // within a frame, or err is set
	grown bool  // buf is larger than initial
	body  bool  // the token's header is complete and num is its payload's length
	head  int
	pos   int
	seen  int
	num   uint64 // the token's number, as far as its digits were seen

	// open has one entry for the frame itself and one for every aggregate of it
	// that is not complete: how many values are still to come at that level,
	// always one or more.
	open  []int64
	elems int   // counted against limits.Elements
	n     int64 // what the frame's Value is to hold

	limits  Limits
	err     *SyntaxError // sticky
	initial []byte       // the buffer from NewReader; its length is 0
	quiet   int          // fillings of a grown buffer in a row for which the initial one would have done
}

// shrinkAfter is how many fillings in a row must have found no use for a grown
// buffer before it is given up: frames that need it again and again must not
// pay for a new one each time.
const shrinkAfter = 64

// NewReader returns a reader with a buffer of size bytes, or 64 if that is more.
//
// The buffer grows for frames that do not fit, to no more than twice what
// limits.Frame and the caller's reads need, however much a header announces.
// After it was filled and emptied 64 times in a row without need for its size,
// the reader goes back to the initial one.
func NewReader(size int, limits Limits) *Reader {
	limits = limits.withDefaults()
	r := &Reader{
		limits:  limits,
		initial: make([]byte, 0, max(size, minLimit)),
		open:    make([]int64, 0, 1+min(limits.Depth, defaultDepth)),
	}
	r.Reset()
	return r
}

// Reset makes the reader ready for another stream: it forgets all bytes and any
// error, and goes back to its initial buffer.
func (r *Reader) Reset() {
	*r = Reader{limits: r.limits, initial: r.initial, buf: r.initial, open: r.open[:0]}
}

// Free returns the free space behind the bytes received so far, of at least min
// bytes. The caller fills it from its beginning and tells [Reader.Advance] how
// far. All values returned by Next become invalid, as the bytes may move.
//
// Call Next until it needs more bytes before calling Free: each byte is then
// moved at most once for compaction, and the buffer stays within its bounds.
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

// Advance says that the first n bytes of Free's space were filled. It panics if
// that space had not as many.
func (r *Reader) Advance(n int) {
	if n < 0 {
		panic("resp: negative Advance")
	}
	r.buf = r.buf[:len(r.buf)+n]
}

// Offset is the number of bytes of the stream up to the end of the last frame
// returned.
func (r *Reader) Offset() int64 { return r.base + int64(r.start) }

// makeRoom is the rest of Free: it makes room for min bytes by moving what is
// still needed to the beginning of the buffer or to a larger one, and gives up
// a larger one that was not needed. The buffer held so many bytes when Free was
// called.
func (r *Reader) makeRoom(min, held int) {
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

// Next returns the next frame: a reply or, if its kind is Push, a message that
// no command asked for and that answers none. The value is valid until the next
// Free or Reset.
//
// The error is [ErrNeedMore] if the frame is not complete yet. What was looked
// at by then is not looked at again, so a frame costs time in proportion to its
// length, however small the pieces in which it arrives. Any other error is a
// [*SyntaxError], and stays: the reader returns it until Reset. Frames in front
// of it were returned before.
func (r *Reader) Next() (Value, error) {
	if !r.mid {
		b := r.buf[r.start:]
		n, size := consumeShort(b)
		if size == 0 {
			n, size = consumeDigit(b)
		}
		if size != 0 {
			r.start += size
			return Value{raw: b[:size:size], n: n}, nil
		}
	}
	return r.next()
}

// consumeShort takes the commonest replies without content: +OK, $-1 and _. The
// size is 0 for anything else.
func consumeShort(b []byte) (n int64, size int) {
	// NOTE: this has to stay inlinable, as consumeDigit.
	if len(b) >= 5 {
		switch string(b[:5]) {
		case "+OK\r\n":
			return 1, 5
		case "$-1\r\n":
			return -1, 5
		}
	}
	if len(b) >= 3 && string(b[:3]) == "_\r\n" {
		return -1, 3
	}
	return 0, 0
}

// consumeDigit takes an integer of one digit. The size is 0 for anything else.
func consumeDigit(b []byte) (n int64, size int) {
	if len(b) >= 4 && b[0] == ':' && b[1]-'0' <= 9 && b[2] == '\r' && b[3] == '\n' {
		return int64(b[1] - '0'), 4
	}
	return 0, 0
}

// next goes on with the frame in progress, or begins one.
func (r *Reader) next() (Value, error) {
	if r.err != nil {
		return Value{}, r.err
	}
	if !r.mid {
		if r.start == len(r.buf) {
			return Value{}, ErrNeedMore
		}
		r.mid, r.head, r.pos = true, r.start, r.start
		r.open = append(r.open[:0], 1)
		r.elems = 0
	}
	// Only limits.Frame bytes of a frame are ever looked at, so that what is
	// found wrong, and where, is the same in whatever pieces they arrive.
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
			r.start, r.mid = r.pos, false
			return Value{raw: b[r.head:r.pos:r.pos], n: r.n}, nil
		}
	}
	if r.err == nil {
		if len(b)-r.start < r.limits.Frame {
			return Value{}, ErrNeedMore
		}
		r.fail(len(b)-r.pos, TooLong)
	}
	return Value{}, r.err
}

// naming reports whether the next token is a push's first element, or an
// attribute in front of it.
func (r *Reader) naming() bool {
	return len(r.open) == 2 && r.open[1] == r.n && r.buf[r.head] == byte(Push)
}

// close counts a complete value, and the aggregates that it completes. It
// reports whether it completes the frame.
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

// fail makes the fault at an offset in the current token the reader's error.
func (r *Reader) fail(at int, fault Fault) {
	r.err = &SyntaxError{Offset: r.base + int64(r.pos+at), Fault: fault}
}
