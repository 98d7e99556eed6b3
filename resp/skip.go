package resp

import "bytes"

// beyond is how far the frame was skipped that exceeds the limits. What is skipped is forgotten at once: the buffer has
// no more of it than the header of a token that is not complete.
type beyond struct {
	left int64  // values that are still to come, at all levels together; above 0 while a frame is skipped
	rest int64  // bytes of the payload that are still to come
	in   inside // the part of a token that begins the buffer
}

type inside uint8

const (
	header  inside = iota // a token begins
	payload               // rest bytes, and CR LF
	line                  // text without an end, and CR LF
)

// skipFrom begins to skip the frame in progress, from the token in progress on.
func (r *Reader) skipFrom(fault Fault) {
	s := Skipped{Fault: fault, Bytes: int64(r.pos - r.start)}
	var left int64
	for _, n := range r.open {
		left += n
	}
	left -= int64(len(r.open) - 1) // each aggregate that is open is among those to come one level up
	if len(r.open) > 1 && r.open[0] == 1 {
		s.Kind = Kind(r.buf[r.head])
	} // and otherwise the frame itself is still to come, behind its attributes
	r.skipped, r.beyond = s, beyond{left: left}
	r.start = r.pos
	r.seen, r.num, r.body = 0, 0, false
}

// skip goes on skipping. It returns ErrSkipped when the frame has ended. It decides by the bytes in the order of the
// stream alone, as the functions of scan.go do.
func (r *Reader) skip() error {
	for {
		r.pos = r.start
		b := r.buf[r.start:]
		room := int64(r.limits.Skip) - r.skipped.Bytes
		cut := int64(len(b)) > room
		if cut {
			b = b[:max(room, 0)]
		}
		size := r.skipToken(b, room)
		switch {
		case r.err != nil:
			return r.err
		case size == 0 && cut:
			r.fail(len(b), TooLong)
			return r.err
		case size == 0:
			return ErrNeedMore
		case r.beyond.left == 0:
			r.end(r.skipped.Kind)
			return ErrSkipped
		}
	}
}

// skipToken skips a token, or what is there of its text. The size is 0 if nothing can be skipped, or r.err is set. So
// many bytes may still be skipped as room says.
func (r *Reader) skipToken(b []byte, room int64) (size int) {
	s := &r.beyond
	switch s.in {
	case payload:
		if size = int(min(s.rest, int64(len(b)))); size > 0 {
			s.rest -= int64(size)
		} else if size = r.scanLineEnd(b, 0, BadLineEnd); size != 0 {
			s.left--
			s.in = header
		}
	case line:
		text := b
		if end := bytes.IndexByte(b, '\r'); end >= 0 {
			text = b[:end]
		}
		if at := bytes.IndexByte(text, '\n'); at >= 0 {
			r.fail(at, BadLineEnd)
			return 0
		}
		if size = len(text); size == 0 {
			if size = r.scanLineEnd(b, 0, BadLineEnd); size != 0 {
				s.left--
				s.in = header
			}
		}
	default:
		if len(b) > 0 {
			size = r.skipHeader(b, room)
		}
	}
	r.start += size
	r.skipped.Bytes += int64(size)
	return size
}

// skipHeader skips a whole token without a text, or the beginning of one with a text.
func (r *Reader) skipHeader(b []byte, room int64) (size int) {
	s := &r.beyond
	k := Kind(b[0])
	frame := r.skipped.Kind == 0 && s.left == 1 // the token is the frame's own, or an attribute in front of it
	var n int64
	switch k {
	case BulkString, BulkError, VerbatimString:
		if n, size = r.scanLength(b); size == 0 {
			return 0
		}
		if n > room-int64(size) {
			r.fail(1, TooLong)
			return 0
		}
		if n >= 0 {
			s.in, s.rest = payload, n
		} else {
			s.left--
		}
	case Array, Map, Set, Push, Attribute:
		if k == Push && !frame {
			r.fail(0, NestedPush)
			return 0
		}
		if n, size = r.scanLength(b); size == 0 {
			return 0
		}
		if k == Push && n == 0 {
			r.fail(1, BadPush)
			return 0
		}
		if n > room-s.left { // so that nothing overflows: no value is shorter than three bytes
			r.fail(1, TooMany)
			return 0
		}
		n = max(n, 0)
		if k == Map || k == Attribute {
			n += n
		}
		s.left += n
		if k != Attribute {
			s.left--
		}
	case SimpleString, SimpleError, Double, BigNumber:
		s.in, size = line, 1
	default: // these are short
		if _, size = r.scan(b); size == 0 {
			return 0
		}
		s.left--
	}
	if frame && k != Attribute {
		r.skipped.Kind = k
	}
	r.seen, r.num = 0, 0
	return size
}
