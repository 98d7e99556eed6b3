package mux

import "github.com/redburst/redburst/conn"

// A flusher writes this many bursts before it leaves the rest to the driver: the first has
// its own commands, the second what others have queued meanwhile.
const maxBursts = 2

// outgoing is what a flusher writes to one master.
type outgoing struct {
	i       int
	l       *link
	buf     []byte // nil to go on with what the connection keeps
	left    int
	flushed bool
	err     error
}

// push has the queued commands written: by this goroutine, unless a running driver or
// another flusher will do it. If nobody drives, it arms the tick. It lets mu go.
func (m *Mux) push() {
	if m.dirty != 0 && !m.flushing && !m.holding && (m.parked || !m.driving) {
		m.flush()
	}
	if !m.driving {
		m.arm()
	}
}

// flush writes what is queued, with one write for each master and burst, until nothing is
// queued or until it has written its share of bursts. A parked driver is woken for the
// rest. It lets mu go.
func (m *Mux) flush() {
	m.flushing = true
	for bursts := 0; m.dirty != 0; bursts++ {
		if bursts >= maxBursts {
			if m.parked {
				m.poll.Wake()
			}
			break
		}
		n := 0
		for i := range m.slots {
			if !m.dirty.Has(i) {
				continue
			}
			s := &m.slots[i]
			o := &m.burst[n]
			n++
			o.i, o.l, o.buf = i, s.link, nil
			if !s.link.blocked {
				o.buf, s.queued, s.spare = s.queued, s.spare[:0], nil
				s.taken = len(o.buf)
			}
			s.link.pins++
		}
		m.dirty = 0
		m.mu.Unlock()
		for k := range m.burst[:n] {
			o := &m.burst[k]
			if o.buf != nil {
				o.flushed, o.err = o.l.c.Send(o.buf)
			} else {
				o.flushed, o.err = o.l.c.Flush()
			}
			o.left = o.l.c.Unsent()
		}
		m.mu.Lock()
		for k := range m.burst[:n] {
			m.sent(&m.burst[k])
		}
	}
	m.flushing = false
	if m.closed {
		m.released.Broadcast()
	}
}

// sent notes what a write has done.
func (m *Mux) sent(o *outgoing) {
	s, l := &m.slots[o.i], o.l
	if o.buf != nil && cap(o.buf) <= keepBuffer {
		s.spare = o.buf[:0]
	}
	o.l, o.buf = nil, nil
	l.pins--
	if s.link != l {
		l.close()
		return
	}
	if o.err != nil {
		m.lose(o.i, o.err)
		return
	}
	s.taken = o.left
	if o.flushed != l.blocked {
		return
	}
	l.blocked = !o.flushed
	want := conn.Readable
	if l.blocked {
		want |= conn.Writable
	} else if len(s.queued) > 0 {
		m.dirty = m.dirty.With(o.i)
	}
	if err := m.poll.Modify(l.c, l.id, want); err != nil {
		m.drop(o.i, err)
	}
}
