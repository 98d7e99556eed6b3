package mux

// keepRing is the most elements for which an empty ring keeps its room.
const keepRing = 1 << 12

// A ring is a first-in first-out queue that allocates only to grow. What an outage has
// made it grow to is given back when it is empty.
type ring[T any] struct {
	buf  []T // len is a power of two, or 0
	head int
	n    int
}

func (r *ring[T]) len() int { return r.n }

func (r *ring[T]) push(v T) {
	if r.n == len(r.buf) {
		buf := make([]T, max(16, 2*len(r.buf)))
		k := copy(buf, r.buf[r.head:])
		copy(buf[k:], r.buf[:r.head])
		r.buf, r.head = buf, 0
	}
	r.buf[(r.head+r.n)&(len(r.buf)-1)] = v
	r.n++
}

// front returns the oldest element; the ring must not be empty. The pointer is
// valid until the next push or pop.
func (r *ring[T]) front() *T { return r.at(0) }

// at returns the k-th oldest element, under the same rules.
func (r *ring[T]) at(k int) *T { return &r.buf[(r.head+k)&(len(r.buf)-1)] }

func (r *ring[T]) pop() T {
	v := r.buf[r.head]
	var zero T
	r.buf[r.head] = zero
	r.head = (r.head + 1) & (len(r.buf) - 1)
	if r.n--; r.n == 0 && len(r.buf) > keepRing {
		r.buf, r.head = nil, 0
	}
	return v
}
