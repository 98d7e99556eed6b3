//go:build !race

package redlock

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/quorum"
)

// A permitModel has permits: each is a slot, which is a key. A client tries one, and then another. In no history
// do more than k hold a valid lock at the same time.
type permitModel struct {
	*history
	keyMasters
	k         int
	forgetful bool
	slots     []string
}

const (
	counts     mistake = "a permit counter on each master, a majority of yes"
	slotBySlot mistake = "slot keys set one by one, without a quorum each"
	forgive    mistake = "a master that has forgotten votes"
)

func (m permitModel) begin(h *history) model {
	m.history, m.keyMasters = h, newKeyMasters(len(h.barred))
	for i := range m.k {
		m.slots = append(m.slots, strconv.Itoa(i))
	}
	h.forgets = m.forgetful
	h.people(2*m.k + 1)
	for i := range h.clients {
		m.choose(&h.clients[i])
	}
	return &m
}

// choose has a client try any slot: a look may have shown anything.
func (m *permitModel) choose(c *modelActor) { m.slot(c, m.IntN(m.k)) }

func (m *permitModel) slot(c *modelActor, at int) { c.at, c.keys = at, m.slots[at:at+1] }

func (m *permitModel) want(c *modelActor) {
	c.fence = uint64(c.at) // where the attempt began
	m.ask(c, acquiring, verbAcquire, 0)
}

func (m *permitModel) serve(i int, c modelCommand) int64 {
	if m.wrong == counts { // the token's place, or a free one
		at := max(0, slices.IndexFunc(m.slots, func(slot string) bool { return m.keyMasters[i].severalMaster[slot] == "" }))
		if its := slices.IndexFunc(m.slots, func(slot string) bool { return m.keyMasters[i].severalMaster[slot] == c.token }); its >= 0 {
			at = its
		}
		c.keys = m.slots[at : at+1]
	}
	return m.do(i, m.now, c, m.wrong)
}

func (m *permitModel) took(c *modelActor, t quorum.Tally, why error) bool {
	switch {
	case m.wrong == slotBySlot && why != nil && t.No > 0 && t.Open == 0 && uint64(c.at+1)%uint64(m.k) != c.fence:
		m.slot(c, (c.at+1)%m.k)
		m.askOf(c, acquiring, verbAcquire, 0, func(i int) bool { return c.votes[i].Verdict == mux.VerdictNo })
		return false
	case why == ErrHeld && t.Open == 0:
		m.seen[refused]++
		m.release(c)
		m.choose(c)
		return false
	}
	return m.history.took(c, t, why)
}

func (m *permitModel) excludes(c *modelActor, others []*modelActor) bool {
	if len(others)+1 == m.k {
		m.seen[beside]++
	}
	return len(others) >= m.k
}

func (m *permitModel) tick() { m.expire(m.now) }

func (m *permitModel) forget(i int) {
	m.keyMasters.forget(i)
	if m.wrong == forgive {
		m.barred[i] = 0
	}
}

func TestModelPermits(t *testing.T) {
	breaksNothing(t, 500, map[moment]float64{published: .5, beside: .05},
		setting{name: "k=2", kind: permitModel{k: 2}},
		setting{name: "k=3", kind: permitModel{k: 3}},
		setting{name: "masters may forget, k=2", kind: permitModel{k: 2, forgetful: true}},
		setting{name: "masters may forget, k=3", kind: permitModel{k: 3, forgetful: true}})
}

func TestModelFindsTooManyHolders(t *testing.T) {
	var all []setting
	for _, k := range []int{2, 3} {
		for _, wrong := range []mistake{counts, slotBySlot, blindRelease, takesBack, forgive} {
			all = append(all, setting{name: fmt.Sprintf("%s, k=%d", wrong, k), kind: permitModel{k: k, forgetful: wrong == forgive}, wrong: wrong})
		}
	}
	findsMistakes(t, all...)
}
