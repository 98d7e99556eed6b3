//go:build !race

package redlock

import (
	"fmt"
	"slices"
	"testing"

	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
)

// A sharedModel has readers and writers with fences. In no history has a writer a valid lock beside
// anybody else, or a number that is not above all before it, or a reader one that is not above that of each writer
// before it. The masters are shelves (kind_shared_fenced_test.go).
type sharedModel struct {
	*history
	masters       []fencedShelf
	writers       int    // of five that come
	top, wroteTop uint64 // the greatest number that was published, and that of a writer
}

const (
	quorumOfTwo mistake = "a reader quorum of two"
	overWriter  mistake = "a reader that does not refuse a writer"
	wholeKey    mistake = "a release that deletes the whole key"
	extendOver  mistake = "a reader is extended over a writer"
	ownEnd      mistake = "the key ends with the last that came"
	oneRound    mistake = "a reader's number in one round"
	noCount     mistake = "a reader that does not count"
)

func (m sharedModel) begin(h *history) model {
	m.history = h
	for range h.barred { // attempts that were abandoned before have moved single counters on
		m.masters = append(m.masters, fencedShelf{f: h.Uint64N(6)})
	}
	m.writers = 1 + h.IntN(5)
	h.people(4)
	if m.wrong == extendOver { // so much must come together that it is helped
		m.unheard, m.ill, m.slow = verbAcquire, 0, 100+m.IntN(400)
		for i := range m.clients {
			m.clients[i].wires[m.deaf] = modelWire{slow: i == m.ill}
		}
	}
	return &m
}

func (m *sharedModel) want(c *modelActor) {
	c.ttl = modelTicks - 8*m.IntN(2)
	c.writes = m.IntN(5) < m.writers
	m.ask(c, acquiring, verbAcquire, 0)
}

func (m *sharedModel) serve(i int, c modelCommand) (reply int64) {
	s, now, ttl := &m.masters[i], int64(m.now), int64(c.ttl)
	s.at(now)
	if c.writes {
		defer func() { s.moved = s.moved && reply <= 0 }()
		switch {
		case c.verb == verbAcquire && s.write(c.token, now, ttl) == 1:
			s.f++
			return int64(s.f)
		case c.verb == verbAcquire:
			return -int64(s.f)
		case c.verb == verbExtend && s.writer == c.token:
			s.expires, s.f = now+ttl, max(s.f, c.number)
			return 1
		case c.verb == verbExtend && !s.taken():
			return kind.Gone
		case c.verb == verbRepair && s.write(c.token, now, ttl) == 1:
			s.f = max(s.f, c.number)
			return 1
		case c.verb == verbRaise && s.writer == c.token:
			s.f = max(s.f, c.number)
			return int64(s.f)
		case c.verb == verbRelease && s.writer == c.token:
			s.writer = ""
			return 1
		}
		return 0
	}
	if c.verb == verbAcquire && m.wrong == overWriter || c.verb == verbExtend && m.wrong == extendOver {
		s.writer = ""
	}
	f := s.f
	switch c.verb {
	case verbAcquire:
		if reply = s.acquire(c.token, now, ttl, 0, 0); reply > 0 && m.wrong == noCount {
			s.f = max(f, 1)
			reply = int64(s.f)
		}
	case verbExtend:
		if reply = s.extend(c.token, now, ttl, c.number); reply < 0 && m.wrong == extendOver {
			reply = s.repair(c.token, now, ttl, c.number)
		}
	case verbRepair:
		reply = s.repair(c.token, now, ttl, c.number)
	case verbRaise:
		reply = s.raise(c.token, now, c.number)
	case verbRelease:
		if reply = s.release(c.token, now); reply == 1 && m.wrong == wholeKey {
			s.ends = nil
		}
	}
	if m.wrong == ownEnd && (c.verb == verbAcquire || c.verb == verbExtend || c.verb == verbRepair) && reply > 0 {
		s.expires = now + ttl
	}
	return reply
}

func (m *sharedModel) took(c *modelActor, t quorum.Tally, why error) bool {
	needed := t.Quorum()
	if m.wrong == quorumOfTwo && !c.writes && t.Yes >= 2 && m.now < c.began+c.ttl {
		needed, why = 2, nil
	}
	return m.history.took(c, t, why) && m.fenced(c, needed, m.wrong == oneRound && !c.writes)
}

func (m *sharedModel) publish(c *modelActor) {
	switch {
	case c.writes && c.fence <= m.top:
		m.broken = fmt.Sprintf("a writer has %d after %d", c.fence, m.top)
	case c.fence <= m.wroteTop:
		m.broken = fmt.Sprintf("a reader has %d after a writer with %d", c.fence, m.wroteTop)
	}
	if m.top = max(m.top, c.fence); c.writes {
		m.seen[wrote]++
		m.wroteTop = c.fence
	}
}

func (m *sharedModel) excludes(c *modelActor, others []*modelActor) bool {
	m.seen[beside]++
	return c.writes || slices.ContainsFunc(others, func(o *modelActor) bool { return o.writes })
}

func (m *sharedModel) forget(i int) { m.masters[i] = fencedShelf{} }

func (m *sharedModel) left(i int) string {
	s := &m.masters[i]
	if s.at(int64(m.now)); !s.taken() {
		return ""
	}
	return fmt.Sprint(s.writer, s.ends)
}

func TestModelReadersExcludeWriters(t *testing.T) {
	breaksNothing(t, 500, map[moment]float64{beside: .5, wrote: .5, restored: .005, raised: .1},
		setting{name: "readers and writers", kind: sharedModel{}})
}

func TestModelFindsWhatBreaksSharing(t *testing.T) {
	findsMistakes(t,
		setting{kind: sharedModel{}, wrong: quorumOfTwo, from: map[int]uint64{5: 0}}, // of three that is a majority
		setting{kind: sharedModel{}, wrong: overWriter},
		setting{kind: sharedModel{}, wrong: wholeKey},
		setting{kind: sharedModel{}, wrong: extendOver, from: map[int]uint64{3: 32_305, 5: 8268}},
		setting{kind: sharedModel{}, wrong: ownEnd, from: map[int]uint64{3: 2_001_797, 5: 831}},
		setting{kind: sharedModel{}, wrong: oneRound},
		setting{kind: sharedModel{}, wrong: noCount})
}
