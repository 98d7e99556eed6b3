package resp

import (
	"errors"
	"strconv"
)

// ErrNeedMore is what [Reader.Next] returns if the bytes received so far end
// before the frame does. It is no failure: feed more bytes and call Next again.
var ErrNeedMore = errors.New("resp: need more bytes")

// ErrSkipped is what [Reader.Next] returns in the place of a frame that exceeds the reader's [Limits], if
// Limits.Skip has room for it. It comes when the last byte of the frame has come, and the frames behind it
// follow. [Reader.Skipped] says what the frame was.
var ErrSkipped = errors.New("resp: a frame beyond the limits was skipped")

// Skipped is what is known of a frame that was skipped.
type Skipped struct {
	Kind  Kind  // of the frame
	Fault Fault // the limit that it exceeds: TooDeep, TooLong or TooMany
	Bytes int64 // of the frame, with the attributes in front of it
}

// SyntaxError says that the stream is not RESP, or exceeds the reader's
// [Limits]. The rest of the stream cannot be read, so close the connection that
// it came from.
type SyntaxError struct {
	Offset int64 // bytes of the stream, since NewReader or Reset, before the one at fault
	Fault  Fault // what is wrong there; errors.Is finds it too
}

// Error says what is wrong and at which offset, as in "resp: malformed length at
// offset 7".
func (e *SyntaxError) Error() string {
	return "resp: " + e.Fault.text() + " at offset " + strconv.FormatInt(e.Offset, 10)
}

// Unwrap makes errors.Is(err, resp.TooLong) and the like work.
func (e *SyntaxError) Unwrap() error { return e.Fault }

// Fault is the reason of a [SyntaxError]. It is an error only so that [errors.Is]
// can look for it: nothing in this package returns a Fault by itself. The zero Fault is none.
type Fault uint8

// The faults.
const (
	BadKind     Fault = iota + 1 // a first byte that begins no frame
	BadLength                    // a length that is not digits, or a negative one that is not null
	BadInteger                   // an integer that is not an optional sign and digits
	BadDouble                    // a double that is not a decimal number within float64, inf or nan
	BadNumber                    // a big number that is not an optional sign and digits
	BadBoolean                   // a boolean other than t and f
	BadVerbatim                  // a verbatim string without its three-byte format and colon
	BadLineEnd                   // something else where CR LF has to be, or one of them inside a line
	Overflow                     // a length or an integer beyond 64 bits
	Streamed                     // a streamed string or aggregate, which this package does not read
	NestedPush                   // a push inside another frame
	BadPush                      // a push whose first element is no string, or that has none
	TooDeep                      // aggregates nested beyond Limits.Depth
	TooLong                      // a payload or a line beyond Limits.Bulk, or a frame beyond Limits.Frame, or Limits.Skip
	TooMany                      // a frame with more elements than Limits.Elements, or than can fit in Limits.Skip
)

// Error is the name of the fault, as in "resp: malformed length".
func (f Fault) Error() string { return "resp: " + f.text() }

func (f Fault) text() string {
	switch f {
	case BadKind:
		return "unknown type byte"
	case BadLength:
		return "malformed length"
	case BadInteger:
		return "malformed integer"
	case BadDouble:
		return "malformed double, or one beyond float64,"
	case BadNumber:
		return "malformed big number"
	case BadBoolean:
		return "malformed boolean"
	case BadVerbatim:
		return "malformed verbatim string"
	case BadLineEnd:
		return "misplaced or missing CR LF"
	case Overflow:
		return "number beyond 64 bits"
	case Streamed:
		return "streamed type, which is not supported,"
	case NestedPush:
		return "push inside another frame"
	case BadPush:
		return "push without a name"
	case TooDeep:
		return "aggregates nested too deep"
	case TooLong:
		return "too many bytes"
	case TooMany:
		return "too many elements"
	}
	return "no fault"
}
