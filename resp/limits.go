package resp

import "math"

// Limits bound what one frame may ask of its reader. Attributes in front of the
// frame count. A field that is zero or negative means its default.
type Limits struct {
	Depth    int // aggregates inside one another; default 32
	Bulk     int // bytes of a payload or a line; default 64 KiB, at least 64, at most 512 MiB
	Elements int // elements of all the frame's aggregates together; default 65,536. A map's pair is two, an attribute is one more
	Frame    int // bytes of a whole frame; default 16 times Bulk, at least 64

	// Skip is how many bytes a frame beyond the other limits may have and still be skipped: see
	// [ErrSkipped]. It is at most 1 GiB. By default it is 0: such a frame is a [*SyntaxError].
	Skip int
}

const (
	defaultDepth    = 32
	defaultBulk     = 64 << 10
	defaultElements = 1 << 16

	maxBulk     = 512 << 20
	maxElements = math.MaxInt32
	maxSkip     = 1 << 30

	// No limit is lower than this. The fast paths of Next accept only what is
	// shorter, so they need not look at the limits.
	minLimit = 64
)

func (l Limits) withDefaults() Limits {
	if l.Depth <= 0 {
		l.Depth = defaultDepth
	}
	if l.Bulk <= 0 {
		l.Bulk = defaultBulk
	}
	l.Bulk = min(max(l.Bulk, minLimit), maxBulk)
	if l.Elements <= 0 {
		l.Elements = defaultElements
	}
	l.Elements = min(l.Elements, maxElements)
	if l.Frame <= 0 {
		l.Frame = int(min(int64(l.Bulk)*16, math.MaxInt))
	}
	l.Frame = max(l.Frame, minLimit)
	l.Skip = min(max(l.Skip, 0), maxSkip)
	return l
}
