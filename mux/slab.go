package mux

import "math/bits"

// How many flights are made at once, how many that nobody uses are kept for reuse, and with
// how many bytes in each one's text.
const (
	minSlab   = 1 << 4
	maxSlab   = 1 << 7
	maxPooled = 1 << 9
	keepText  = 2 << 10
	minText   = 1 << 7
)

// flights are all flights of a Mux. While a master hangs it owes more and more of them, and
// they are made in slabs, so that hardly an operation allocates. What an outage has made grow
// is given back slab by slab, as soon as nobody uses one of its flights.
type flights struct {
	first, last *slab // with free flights. Those that nobody uses at all are the last
	made        int   // flights, in all slabs
	unused      int   // ... in slabs that nobody uses
}

// A slab is flights that were made at once.
type slab struct {
	flights    []flight
	free       *flight // linked by next
	used       int
	rest       []byte // memory for their texts that none has yet
	cut        int    // bytes of such memory so far
	prev, next *slab  // in flights
}

// take returns a flight that nobody uses.
func (fs *flights) take() *flight {
	s := fs.first
	if s == nil {
		s = fs.grow()
	}
	if s.used == 0 {
		fs.unused -= len(s.flights)
	}
	s.used++
	f := s.free
	if s.free = f.next; s.free == nil {
		fs.unlink(s)
	}
	f.next = nil
	return f
}

// give takes a flight back.
func (fs *flights) give(f *flight) {
	f.op, f.verdict, f.onReply, f.lease = nil, nil, nil, nil
	if cap(f.text) > keepText {
		f.text = nil
	}
	s := f.slab
	if s.free != nil {
		fs.unlink(s)
	}
	f.next, s.free = s.free, f
	n := len(s.flights)
	switch s.used--; {
	case s.used > 0:
		fs.linkFirst(s)
	case fs.unused+n <= maxPooled:
		fs.unused += n
		fs.linkLast(s)
	default:
		fs.made -= n
	}
}

// grow makes a slab: the more flights there are, the larger.
func (fs *flights) grow() *slab {
	s := &slab{flights: make([]flight, min(max(fs.made, minSlab), maxSlab))}
	for i := range s.flights {
		f := &s.flights[i]
		f.slab = s
		f.next, s.free = s.free, f
	}
	fs.made += len(s.flights)
	fs.unused += len(s.flights)
	fs.linkLast(s)
	return s
}

func (fs *flights) linkFirst(s *slab) {
	if s.next = fs.first; s.next == nil {
		fs.last = s
	} else {
		s.next.prev = s
	}
	fs.first = s
}

func (fs *flights) linkLast(s *slab) {
	if s.prev = fs.last; s.prev == nil {
		fs.first = s
	} else {
		s.prev.next = s
	}
	fs.last = s
}

func (fs *flights) unlink(s *slab) {
	if s.prev == nil {
		fs.first = s.next
	} else {
		s.prev.next = s.next
	}
	if s.next == nil {
		fs.last = s.prev
	} else {
		s.next.prev = s.prev
	}
	s.prev, s.next = nil, nil
}

// room returns memory for a text of n bytes: of the slab's, which is made for half of the
// flights at once, unless that would be more than the flights may keep.
func (s *slab) room(n int) []byte {
	size := max(minText, 1<<bits.Len(uint(n-1)))
	if size > keepText || s.cut+size > len(s.flights)*keepText {
		return make([]byte, 0, n)
	}
	if len(s.rest) < size {
		s.rest = make([]byte, size*len(s.flights)/2)
	}
	text := s.rest[:0:size]
	s.rest = s.rest[size:]
	s.cut += size
	return text
}
