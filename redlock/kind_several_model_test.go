//go:build !race

package redlock

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/redburst/redburst/redlock/internal/quorum"
)

// A severalModel has locks on several keys: clients want sets of keys that overlap. In no history has a key two
// holders. The masters are severalMasters.
type severalModel struct {
	*history
	keyMasters
	forgetful bool
}

// keyMasters have keys, which hold their locks' tokens.
type keyMasters []struct {
	severalMaster
	ends map[string]int
}

func newKeyMasters(n int) keyMasters {
	all := make(keyMasters, n)
	for i := range all {
		all[i].severalMaster, all[i].ends = severalMaster{}, map[string]int{}
	}
	return all
}

func (all keyMasters) expire(now int) {
	for _, m := range all {
		maps.DeleteFunc(m.severalMaster, func(key, _ string) bool { return now >= m.ends[key] })
	}
}

func (all keyMasters) forget(i int) { clear(all[i].severalMaster) }

func (all keyMasters) left(i int) string {
	if len(all[i].severalMaster) == 0 {
		return ""
	}
	return fmt.Sprint(all[i].severalMaster)
}

const (
	blindRelease mistake = "a release deletes what is another's"
	takesBack    mistake = "an extend takes back what is another's"
	prolongs     mistake = "an extend skips what is another's"
	skips        mistake = "what is taken is skipped"
)

// do has a master do a command, perhaps with a mistake.
func (all keyMasters) do(i, now int, c modelCommand, wrong mistake) (n int64) {
	m := all[i]
	had := maps.Clone(m.severalMaster)
	switch c.verb {
	case verbAcquire:
		if n = m.acquire(c.keys, c.token); wrong == skips && n == 0 {
			for _, key := range c.keys {
				n |= m.acquire([]string{key}, c.token)
			}
		}
	case verbExtend:
		n = m.extend(c.keys, c.token)
		for _, key := range c.keys {
			switch {
			case n != 0:
			case wrong == prolongs:
				m.repair([]string{key}, c.token)
			case wrong == takesBack:
				m.severalMaster[key] = c.token
			}
		}
		if n == 0 && (wrong == prolongs || wrong == takesBack) {
			n = 1
		}
	case verbRepair:
		n = m.repair(c.keys, c.token)
	case verbRelease:
		n = m.release(c.keys, c.token)
		for _, key := range c.keys {
			if wrong == blindRelease {
				delete(m.severalMaster, key)
			}
		}
	}
	for _, key := range c.keys {
		if m.severalMaster[key] == c.token && (had[key] != c.token || (c.verb == verbExtend || c.verb == verbRepair) && n > 0) {
			m.ends[key] = now + modelTicks
		}
	}
	return n
}

var severalSets = [][]string{{"a", "b"}, {"b", "c"}, {"a", "c"}, {"a", "b", "c"}, {"a"}, {"b"}, {"c"}}

const (
	oneByOne     mistake = "keys one by one, each with its own quorum"
	oneByOneLeft mistake = "keys one by one, and nothing is undone"
	leaves       mistake = "an attempt that fails is not undone"
)

func (m severalModel) begin(h *history) model {
	m.history, m.keyMasters = h, newKeyMasters(len(h.barred))
	h.forgets = m.forgetful
	h.people(3)
	return &m
}

func (m *severalModel) want(c *modelActor) {
	c.keys, c.at = severalSets[m.IntN(len(severalSets))], 0
	m.take(c)
}

// take asks for all keys, or for the next.
func (m *severalModel) take(c *modelActor) {
	all := c.keys
	if m.wrong == oneByOne || m.wrong == oneByOneLeft {
		c.keys = all[c.at : c.at+1]
		c.at++
	}
	c.began = m.now
	m.ask(c, acquiring, verbAcquire, 0)
	c.keys = all
}

func (m *severalModel) serve(i int, c modelCommand) int64 { return m.do(i, m.now, c, m.wrong) }

func (m *severalModel) took(c *modelActor, t quorum.Tally, why error) bool {
	switch {
	case why != nil && (m.wrong == leaves || m.wrong == oneByOneLeft):
		if m.IntN(m.patience) == 0 {
			c.round++
			c.phase = idle
		}
		return false
	case why == nil && 0 < c.at && c.at < len(c.keys):
		m.take(c)
		return false
	}
	return m.history.took(c, t, why)
}

func (m *severalModel) excludes(c *modelActor, others []*modelActor) bool {
	m.seen[beside]++
	return slices.ContainsFunc(others, func(o *modelActor) bool {
		return slices.ContainsFunc(c.keys, func(key string) bool { return slices.Contains(o.keys, key) })
	})
}

func (m *severalModel) tick() { m.expire(m.now) }

func TestModelEachKeyOfASetHasOneHolder(t *testing.T) {
	breaksNothing(t, 1000, map[moment]float64{published: .5, refused: .1, restored: .002, beside: .1},
		setting{name: "no master forgets", kind: severalModel{}},
		setting{name: "masters forget", kind: severalModel{forgetful: true}})
}

func TestModelFindsWhatBreaksSets(t *testing.T) {
	findsMistakes(t,
		setting{kind: severalModel{}, wrong: skips},
		setting{kind: severalModel{}, wrong: oneByOne, from: map[int]uint64{3: 2_003_086, 5: 354}},
		setting{kind: severalModel{}, wrong: oneByOneLeft, leaves: true},
		setting{kind: severalModel{}, wrong: leaves, leaves: true},
		setting{kind: severalModel{forgetful: true}, wrong: prolongs, from: map[int]uint64{3: 2_025_469, 5: 2_005_051}},
		setting{kind: severalModel{}, wrong: takesBack},
		setting{kind: severalModel{}, wrong: blindRelease})
}
