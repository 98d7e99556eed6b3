//go:build !race

package redlock

import (
	"fmt"
	"slices"
	"testing"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/quorum"
)

// A fenceModel has locks with fences. In no history is a lock published whose number is not above all before it.
// The masters are counters (kind_fenced_test.go).
type fenceModel struct {
	*history
	masters []fenceMaster

	hints     bool // acquires have hints, by the clients' clocks
	differ    int  // ticks by which the clients' clocks differ at most
	forgetful bool // a master forgets now and then, if enough others remember
	writes    bool // somebody writes a number that nobody can believe, always to the same master
	mends     bool // each new holder sets back all counters, be they too far ahead or not
	blanks    bool // all masters forget at once, now and then
	passes    bool // holders give their lock to a next one of the same process

	top     uint64  // the greatest number that was published
	knowing mux.Set // who is to remember it, for all that its holder knows
	knew    mux.Set // ... or has done so
}

type fenceMaster struct {
	counter
	ends int // of the key
}

const (
	greatest   mistake = "the greatest of a quorum, in one round"
	anywhere   mistake = "a write-back to any quorum"
	staleRaise mistake = "published before it is raised"
	plainHint  mistake = "a counter that is not moved on"
	lowRestore mistake = "a key is set again without its number"
	lowExtend  mistake = "an extend without the number"
	believes   mistake = "what somebody wrote is believed"
	mendsLate  mistake = "set back at a master that has not answered"
	freePass   mistake = "a pass that does not move the counter on"
	fewKnew    mistake = "a majority of few forgets nothing"
)

// A number that is further ahead of a client's clock than modelSkew is not believed. What is written is
// modelFar or more.
const modelSkew, modelFar = 10_000_000, 1 << 50

func (m fenceModel) begin(h *history) model {
	m.history = h
	h.forgets, h.passes = m.forgetful, m.passes
	for range h.barred { // attempts that were abandoned before have moved single counters on
		m.masters = append(m.masters, fenceMaster{counter: counter{f: h.Uint64N(6)}})
	}
	h.people(3)
	for i := range h.clients {
		h.clients[i].offset = h.Uint64N(uint64(m.differ + 1))
	}
	return &m
}

// today is a client's clock.
func (m *fenceModel) today(c *modelActor) uint64 { return (uint64(m.now) + c.offset) * 1000 }

func (m *fenceModel) want(c *modelActor) {
	hint := uint64(0)
	if m.hints {
		c.hint = max(m.today(c), c.hint+1)
		hint = c.hint
	}
	c.heard = 0
	m.ask(c, acquiring, verbAcquire, hint)
}

func (m *fenceModel) serve(i int, c modelCommand) (n int64) {
	s, had := &m.masters[i], m.masters[i].token
	switch c.verb {
	case verbAcquire:
		if m.wrong == plainHint && had == "" {
			s.token, s.f = c.token, max(s.f, c.number)
			n = int64(s.f)
		} else {
			n = s.acquire(c.token, c.number)
		}
	case verbRaise:
		if m.wrong == anywhere {
			s.f = max(s.f, c.number)
			n = int64(s.f)
		} else {
			n = s.raise(c.token, c.number)
		}
	case verbExtend:
		if m.wrong == lowExtend {
			c.number = 0
		}
		if n = s.extend(c.token, c.number); n > 0 {
			s.ends = m.now + modelTicks
		}
	case verbRepair:
		if m.wrong == lowRestore {
			c.number = 0
		}
		n = s.repair(c.token, c.number)
	case verbPass:
		f := s.f
		if n = s.pass(c.token, c.number); n > 0 {
			s.ends = m.now + modelTicks
		}
		if m.wrong == freePass {
			s.f = f
		}
	case verbRelease:
		n = s.release(c.token)
	case verbMend:
		if had == c.token {
			s.f = c.number
		}
	}
	if had == "" && s.token != "" {
		s.ends = m.now + modelTicks
	}
	return n
}

func (m *fenceModel) judge(c *modelActor, i int, reply modelReply) mux.Verdict {
	n := uint64(max(reply.n, -reply.n))
	believed := m.wrong == believes || n <= m.today(c)+modelSkew
	if reply.verb == verbAcquire && believed {
		c.hint = max(c.hint, n)
	}
	verdict := m.history.judge(c, i, reply)
	if reply.verb == verbRepair && reply.n == 1 && reply.round == c.setRounds[i] && c.fence == m.top {
		m.knowing, m.knew = m.knowing.With(i), m.knew.With(i)
	}
	if verdict == mux.VerdictYes && reply.round == c.round && (reply.verb == verbAcquire || reply.verb == verbRaise) {
		c.heard = c.heard.With(i)
	}
	if verdict == mux.VerdictYes && !believed {
		return mux.VerdictFailed
	}
	return verdict
}

func (m *fenceModel) took(c *modelActor, t quorum.Tally, why error) bool {
	took := m.history.took(c, t, why) && m.fenced(c, t.Quorum(), m.wrong == greatest)
	return took || why == nil && m.wrong == staleRaise
}

// publish also sets back counters: those of masters where the lock is, if each that has answered is told.
func (m *fenceModel) publish(c *modelActor) {
	for i := range c.wires {
		if m.mends && (m.wrong == mendsLate || c.heard.Has(i)) {
			m.send(c, i, verbMend, c.fence)
		}
	}
	switch {
	case c.fence >= modelFar:
		m.broken = "what somebody wrote was published"
	case c.fence <= m.top:
		m.broken = fmt.Sprintf("%d was published after %d", c.fence, m.top)
	}
	m.top, m.knowing, m.knew = c.fence, 0, 0
	m.extended(c)
}

// extended notes who has said that it remembers the fence of the last holder.
func (m *fenceModel) extended(c *modelActor) {
	if c.fence != m.top {
		return
	}
	for i, v := range c.votes {
		knows := v.Verdict == mux.VerdictYes
		if c.verb == verbAcquire || c.verb == verbPass {
			knows = uint64(v.Int) == c.fence
		}
		if knows && !c.forgotten.Has(i) {
			m.knowing, m.knew = m.knowing.With(i), m.knew.With(i)
		}
	}
}

func (*fenceModel) excludes(*modelActor, []*modelActor) bool { return true }

func (m *fenceModel) tick() {
	for i := range m.masters {
		if s := &m.masters[i]; s.token != "" && m.now >= s.ends {
			s.token = ""
		}
	}
	switch {
	case m.writes && m.IntN(10) == 0:
		m.masters[0].f = modelFar + m.Uint64N(1000)
	case m.blanks && m.IntN(50) == 0:
		for i := range m.masters {
			m.restart(i)
		}
	}
}

// mayForget reports whether a majority of all masters will remember the last lock without one, and that one is
// none of a lock that is being taken.
func (m *fenceModel) mayForget(i int) bool {
	needed := quorum.Majority(len(m.masters))
	if m.wrong == fewKnew {
		needed = quorum.Majority(m.knew.Len())
	}
	return (m.knowing&^(1<<i)).Len() >= needed && !slices.ContainsFunc(m.clients, func(c modelActor) bool {
		return (c.phase == acquiring || c.phase == raising || c.phase == passing) && c.votes[i].Verdict == mux.VerdictYes
	})
}

func (m *fenceModel) forget(i int) {
	m.masters[i] = fenceMaster{}
	m.knowing &^= 1 << i
}

func (m *fenceModel) left(i int) string { return m.masters[i].token }

func TestModelFencesGrow(t *testing.T) {
	breaksNothing(t, 200, map[moment]float64{published: .5, raised: .01},
		setting{name: "without hints", kind: fenceModel{}},
		setting{name: "with hints", kind: fenceModel{hints: true, differ: 5}},
		setting{name: "with hints, clocks far apart", kind: fenceModel{hints: true, differ: 1000}},
		setting{name: "a minority forgets", kind: fenceModel{forgetful: true}},
		setting{name: "hints, a minority forgets", kind: fenceModel{hints: true, differ: 1000, forgetful: true}},
		setting{name: "somebody writes", kind: fenceModel{hints: true, differ: 5, writes: true}},
		setting{name: "somebody writes, and holders set back", kind: fenceModel{hints: true, differ: 5, writes: true, mends: true}},
		setting{name: "holders set back", kind: fenceModel{mends: true}},
		setting{name: "holders set back, and a minority forgets", kind: fenceModel{hints: true, differ: 1000, mends: true, forgetful: true}},
		setting{name: "passed on", kind: fenceModel{passes: true}},
		setting{name: "passed on, with hints, and a minority forgets", kind: fenceModel{passes: true, hints: true, differ: 1000, forgetful: true}},
		setting{name: "passed on, somebody writes, and holders set back", kind: fenceModel{passes: true, hints: true, differ: 5, writes: true, mends: true}},
		setting{name: "hints, all forget", kind: fenceModel{hints: true, differ: modelTicks - 1, blanks: true}})
}

func TestModelFindsWhatBreaksTheFence(t *testing.T) {
	findsMistakes(t,
		setting{wrong: greatest, kind: fenceModel{}},
		setting{name: "the greatest of a quorum, with hints", wrong: greatest, kind: fenceModel{hints: true, differ: 999}, from: map[int]uint64{3: 1631, 5: 1_001_118}},
		setting{wrong: anywhere, kind: fenceModel{}, from: map[int]uint64{3: 1_006_157, 5: 17_930}},
		setting{wrong: staleRaise, kind: fenceModel{}},
		setting{wrong: plainHint, kind: fenceModel{hints: true, differ: 999}},
		setting{wrong: lowRestore, kind: fenceModel{forgetful: true}, from: map[int]uint64{3: 1_004_839}},
		setting{wrong: lowExtend, kind: fenceModel{forgetful: true}, from: map[int]uint64{3: 230, 5: 1_003_241}},
		setting{wrong: believes, kind: fenceModel{hints: true, differ: 5, writes: true}},
		setting{wrong: mendsLate, kind: fenceModel{mends: true}, from: map[int]uint64{3: 20_250, 5: 6755}},
		setting{wrong: freePass, kind: fenceModel{passes: true}},
		setting{name: "the greatest of a quorum, passed on", wrong: greatest, kind: fenceModel{passes: true}},
		setting{wrong: fewKnew, kind: fenceModel{forgetful: true}, from: map[int]uint64{5: 749}}, // a majority of two is both
		setting{name: "all forget, and there are no hints", kind: fenceModel{blanks: true}},
		setting{name: "all forget, with clocks too far apart", kind: fenceModel{blanks: true, hints: true, differ: 10 * modelTicks}})
}
