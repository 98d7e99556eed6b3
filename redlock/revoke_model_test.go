//go:build !race

package redlock

import (
	"maps"
	"slices"
	"testing"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/quorum"
)

// A revokeModel has locks on one key or several, or permits, and an operator who revokes some of them. In no history
// has a lock that was revoked a valid lock beside it, and none is extended by a round that began after the operator
// was told that it is revoked.
type revokeModel struct {
	*history
	keyMasters
	k         int // permits; 0 for sets of keys
	forgetful bool
	done      map[string]int // by token: the last round of its holder before it was revoked
}

// A tombstone of a model is this, and the token.
const modelTombstone = "revoked:"

const (
	deletesKeys mistake = "a revocation deletes the key"
	endsEarly   mistake = "a tombstone ends before the key would have ended"
	nextDeletes mistake = "a release deletes the tombstone of another"
	overwrites  mistake = "an extend overwrites its tombstone"
	fewRevoke   mistake = "a revocation of a minority"
)

func (m revokeModel) begin(h *history) model {
	m.history, m.keyMasters, m.done = h, newKeyMasters(len(h.barred)), map[string]int{}
	h.forgets = m.forgetful
	h.people(max(2*m.k+1, 3) + 1)
	return &m
}

// operator returns the client that takes no lock.
func (m *revokeModel) operator() *modelActor { return &m.clients[len(m.clients)-1] }

func (m *revokeModel) want(c *modelActor) {
	if c != m.operator() {
		if c.keys = severalSets[m.IntN(len(severalSets))]; m.k > 0 {
			c.keys = []string{string(rune('a' + m.IntN(m.k)))}
		}
		m.ask(c, acquiring, verbAcquire, 0)
		return
	}
	var held []*modelActor
	for i := range m.clients {
		if o := &m.clients[i]; o.phase == holding || o.phase == extending {
			held = append(held, o)
		}
	}
	if len(held) == 0 {
		return
	}
	o := held[m.IntN(len(held))]
	at := m.IntN(len(o.keys))
	c.token, c.keys, c.ttl = o.token, o.keys[at:at+1], 0
	m.ask(c, revoking, verbRevoke, 0)
}

func (m *revokeModel) serve(i int, c modelCommand) int64 {
	s, dead := m.keyMasters[i], modelTombstone+c.token
	switch c.verb {
	case verbRevoke:
		key := c.keys[0]
		if v := s.severalMaster[key]; v != c.token && v != dead {
			return 0
		}
		s.severalMaster[key] = dead
		switch {
		case m.wrong == deletesKeys:
			delete(s.severalMaster, key)
			return 1
		case m.wrong == endsEarly:
			s.ends[key] = min(s.ends[key], m.now+1)
		}
		return int64(s.ends[key] - m.now)
	case verbRelease:
		maps.DeleteFunc(s.severalMaster, func(key, v string) bool {
			return slices.Contains(c.keys, key) && (v == dead || m.wrong == nextDeletes && len(v) > len(modelTombstone))
		})
	case verbExtend, verbRepair:
		for _, key := range c.keys {
			if m.wrong == overwrites && s.severalMaster[key] == dead {
				s.severalMaster[key] = c.token
			}
		}
	}
	return m.do(i, m.now, c, m.wrong)
}

func (m *revokeModel) judge(c *modelActor, i int, reply modelReply) mux.Verdict {
	if reply.verb == verbRevoke && reply.n > 0 {
		return mux.VerdictYes
	}
	return m.history.judge(c, i, reply)
}

// revoked is what the operator does with its votes.
func (m *revokeModel) revoked(c *modelActor, t quorum.Tally) {
	if why := t.Released(false, false); why != nil && !(m.wrong == fewRevoke && t.Yes > 0) {
		if m.IntN(m.patience) == 0 {
			c.round++
			c.phase = idle
		}
		return
	}
	for i := range m.clients[:len(m.clients)-1] {
		if o := &m.clients[i]; o.token == c.token && o.phase != idle {
			m.done[c.token] = o.round
			m.seen[revocations]++
		}
	}
	c.phase = idle
}

func (m *revokeModel) extended(c *modelActor) {
	if last, is := m.done[c.token]; is && c.round > last {
		m.broken = "a lock was extended after it was revoked"
	}
}

func (m *revokeModel) excludes(c *modelActor, others []*modelActor) bool {
	m.seen[beside]++
	return slices.ContainsFunc(others, func(o *modelActor) bool {
		return slices.ContainsFunc(c.keys, func(key string) bool { return slices.Contains(o.keys, key) })
	})
}

func (m *revokeModel) tick() { m.expire(m.now) }

func TestModelRevocations(t *testing.T) {
	breaksNothing(t, 1000, map[moment]float64{published: .5, revocations: .05, restored: .001},
		setting{name: "keys", kind: revokeModel{}},
		setting{name: "keys, masters forget", kind: revokeModel{forgetful: true}},
		setting{name: "permits", kind: revokeModel{k: 2}},
		setting{name: "permits, masters forget", kind: revokeModel{k: 2, forgetful: true}})
}

func TestModelFindsWhatBreaksRevocations(t *testing.T) {
	findsMistakes(t,
		setting{kind: revokeModel{}, wrong: deletesKeys},
		setting{kind: revokeModel{}, wrong: endsEarly},
		setting{kind: revokeModel{}, wrong: nextDeletes},
		setting{kind: revokeModel{}, wrong: overwrites},
		setting{kind: revokeModel{}, wrong: fewRevoke})
}
