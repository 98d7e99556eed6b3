//go:build !race

package redlock

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/stretchr/testify/require"
)

// A model of permits, searched at random: clients and masters whose commands and replies are late or
// lost, attempts that are abandoned, slots that are lost to others and tried again elsewhere, keys that
// expire, locks that are extended, repaired and released on some masters only, masters that forget.
// The decisions are those of round.go.
//
// In no history may more than k hold a valid lock at the same time.

const permitTTL = 12 // ticks

// permitRules are what the algorithm does not do. The zero value is the algorithm.
type permitRules struct {
	counter  bool // a master says yes to up to k, and a majority of yes is a permit
	oneByOne bool // slots are tried one by one on each master, and all that are taken count together
	blind    bool // a release deletes whatever is in the slot
	forgive  bool // a master that has forgotten its keys votes at once
	steals   bool // an extend sets a slot that is another's
}

// A permitWorld is one history.
type permitWorld struct {
	*rand.Rand
	rules   permitRules
	k       int
	forgets bool // a master forgets now and then

	// How likely things are differs from history to history.
	slow, losses, patience, ticks int

	now     int
	masters []permitMaster
	clients []permitClient
	tokens  int

	taken, full int // locks; and moments at which all permits were held
	broken      string
}

type permitMaster struct {
	slots  []permitSlot // of a counter: the places
	barred int          // it is not asked before
}

type permitSlot struct{ token, ends int } // a token of 0: it is free

type permitClient struct {
	phase uint8
	token int
	slot  int
	first int // slot of the attempt
	round int // replies to another are late
	began int
	until int // the validity
	votes []mux.Vote
	wires []permitWire
}

type permitWire struct {
	slow, lossy bool
	commands    []permitCommand
	replies     []permitReply
}

type permitCommand struct {
	verb               uint8
	round, token, slot int
}

type permitReply struct {
	verb  uint8
	round int
	n     int64
}

func newPermitWorld(seed uint64, n, k int, w permitWorld) *permitWorld {
	w.Rand = rand.New(rand.NewPCG(seed, uint64(n*100+k)))
	w.k = k
	w.masters = make([]permitMaster, n)
	for i := range w.masters {
		w.masters[i].slots = make([]permitSlot, k)
	}
	w.clients = make([]permitClient, 2*k+1)
	w.slow, w.losses, w.patience, w.ticks = 1+w.IntN(20), 2+w.IntN(6), 2+w.IntN(40), 20+w.IntN(200)
	for i := range w.clients {
		c := &w.clients[i]
		c.votes, c.wires, c.slot = make([]mux.Vote, n), make([]permitWire, n), w.IntN(k)
		for i := range c.wires {
			c.wires[i].slow, c.wires[i].lossy = w.IntN(3) == 0, w.IntN(6) == 0
		}
	}
	return &w
}

// run goes on until something is broken or enough has happened.
func (w *permitWorld) run(steps int) {
	for ; steps > 0 && w.broken == ""; steps-- {
		switch at := w.IntN(w.ticks); {
		case at == 0:
			w.tick()
		case at < 1+w.ticks/4:
			w.act(&w.clients[w.IntN(len(w.clients))])
		default:
			w.deliver()
		}
	}
}

// deliver takes something from a wire, to its end or to nowhere.
func (w *permitWorld) deliver() {
	all := len(w.clients) * len(w.masters)
	for k, from := 0, w.IntN(all); k < all; k++ {
		at := (from + k) % all
		c, i := &w.clients[at/len(w.masters)], at%len(w.masters)
		wire := &c.wires[i]
		lost := wire.lossy && w.IntN(w.losses) == 0
		switch {
		case wire.slow && w.IntN(w.slow) > 0:
			continue
		case len(wire.replies) > 0:
			reply := wire.replies[0]
			wire.replies = wire.replies[1:]
			if !lost {
				w.hear(c, i, reply)
			}
		case len(wire.commands) > 0:
			command := wire.commands[0]
			wire.commands = wire.commands[1:]
			if !lost {
				w.serve(c, i, command)
			}
		default:
			continue
		}
		return
	}
}

func (w *permitWorld) tick() {
	w.now++
	for i := range w.masters {
		for j := range w.masters[i].slots {
			if s := &w.masters[i].slots[j]; s.token != 0 && w.now >= s.ends {
				*s = permitSlot{}
			}
		}
	}
	if w.forgets && w.IntN(6) == 0 { // it restarts without its memory
		i := w.IntN(len(w.masters))
		m := &w.masters[i]
		clear(m.slots)
		if !w.rules.forgive {
			m.barred = w.now + permitTTL
		}
		for c := range w.clients {
			wire := &w.clients[c].wires[i]
			wire.commands, wire.replies = nil, nil
		}
	}
}

// place returns where a command is to look: the slot that it names, or, of a counter, the place that
// the token has, or a free one.
func (w *permitWorld) place(m *permitMaster, command permitCommand) *permitSlot {
	if !w.rules.counter {
		return &m.slots[command.slot]
	}
	at := &m.slots[0]
	for i := range m.slots {
		switch s := &m.slots[i]; {
		case s.token == command.token:
			return s
		case s.token == 0:
			at = s
		}
	}
	return at
}

func (w *permitWorld) serve(c *permitClient, i int, command permitCommand) {
	m := &w.masters[i]
	if w.now < m.barred {
		return
	}
	s := w.place(m, command)
	reply := permitReply{verb: command.verb, round: command.round}
	set := permitSlot{command.token, w.now + permitTTL}
	switch command.verb {
	case verbAcquire:
		if s.token == 0 {
			*s, reply.n = set, 1
		}
	case verbExtend:
		switch {
		case s.token == command.token || w.rules.steals:
			*s, reply.n = set, 1
		case s.token == 0:
			*s, reply.n = set, replyRestored
		}
	case verbRelease:
		if s.token == command.token || w.rules.blind {
			*s = permitSlot{}
		}
	}
	c.wires[i].replies = append(c.wires[i].replies, reply)
}

// hear judges a reply as the kind does.
func (w *permitWorld) hear(c *permitClient, i int, reply permitReply) {
	if reply.round != c.round || reply.verb == verbRelease || w.now < w.masters[i].barred {
		return
	}
	c.votes[i] = mux.Vote{Verdict: mux.VerdictNo, Int: reply.n}
	if reply.n == 1 {
		c.votes[i].Verdict = mux.VerdictYes
	}
}

// ask sends a command to all masters, or to those that have said no.
func (w *permitWorld) ask(c *permitClient, phase, verb uint8, again bool) {
	c.round++
	c.phase = phase
	for i := range c.wires {
		if again && c.votes[i].Verdict != mux.VerdictNo {
			continue
		}
		c.votes[i] = mux.Vote{}
		c.wires[i].commands = append(c.wires[i].commands, permitCommand{verb, c.round, c.token, c.slot})
	}
}

func (w *permitWorld) act(c *permitClient) {
	now, until := time.Duration(w.now), time.Duration(c.began+permitTTL)
	t := count(c.votes, nil)
	switch c.phase {
	case idle:
		w.tokens++
		c.token, c.began, c.first = w.tokens, w.now, c.slot
		w.ask(c, acquiring, verbAcquire, false)
	case acquiring:
		switch reason := t.acquired(now, until); {
		case reason == nil:
			w.take(c)
		case w.rules.oneByOne && t.no > 0 && t.open == 0 && (c.slot+1)%w.k != c.first:
			c.slot = (c.slot + 1) % w.k
			w.ask(c, acquiring, verbAcquire, true)
		case reason == ErrHeld && t.open == 0:
			w.release(c)
			c.slot = w.IntN(w.k) // a look may have shown anything
		default:
			w.giveUp(c)
		}
	case holding:
		switch {
		case w.now >= c.until || w.IntN(4) == 0:
			w.release(c)
		default:
			c.began = w.now
			w.ask(c, extending, verbExtend, false)
		}
	case extending:
		switch t.extended(now, until, time.Duration(c.until)) {
		case nil:
			c.phase, c.until = holding, max(c.until, c.began+permitTTL)
			w.check()
		default:
			w.giveUp(c)
		}
	}
}

// giveUp ends a round that has not succeeded, at some time.
func (w *permitWorld) giveUp(c *permitClient) {
	if w.IntN(w.patience) == 0 {
		w.release(c)
	}
}

func (w *permitWorld) release(c *permitClient) {
	c.until = 0
	if w.IntN(8) == 0 { // it dies, and another takes its place
		c.round++
		c.phase = idle
		return
	}
	w.ask(c, idle, verbRelease, false)
}

func (w *permitWorld) take(c *permitClient) {
	c.phase, c.until = holding, c.began+permitTTL
	w.taken++
	w.check()
}

func (w *permitWorld) check() {
	holders := 0
	for i := range w.clients {
		if w.clients[i].until > w.now {
			holders++
		}
	}
	if holders == w.k {
		w.full++
	}
	if holders > w.k {
		w.broken = fmt.Sprintf("%d hold one of %d permits", holders, w.k)
	}
}

const permitSteps = 1500

func TestModelPermits(t *testing.T) {
	t.Parallel()
	histories := uint64(3000)
	if testing.Short() {
		histories = 200
	}
	seed := fenceSeed(t)
	for name, world := range map[string]permitWorld{
		"all remember":       {},
		"masters may forget": {forgets: true},
	} {
		for _, n := range []int{3, 5} {
			for _, k := range []int{2, 3} {
				t.Run(fmt.Sprintf("%s, N=%d, k=%d", name, n, k), func(t *testing.T) {
					t.Parallel()
					taken, full := 0, 0
					for i := range histories {
						w := newPermitWorld(seed+i, n, k, world)
						w.run(permitSteps)
						require.Empty(t, w.broken, "seed %d", seed+i)
						taken += w.taken
						full += w.full
					}
					require.Greater(t, taken, int(histories)/2, "the histories have not got far")
					require.Greater(t, full, int(histories)/20, "all permits were never held")
				})
			}
		}
	}
}

// Each rule is needed: without it some history is wrong.
func TestModelFindsTooManyHolders(t *testing.T) {
	t.Parallel()
	seed := fenceSeed(t)
	for name, world := range map[string]permitWorld{
		"a permit counter on each master, a majority of yes": {rules: permitRules{counter: true}},
		"slot keys set one by one, without a quorum each":    {rules: permitRules{oneByOne: true}},
		"a release deletes whatever is there":                {rules: permitRules{blind: true}},
		"an extend takes another's slot":                     {rules: permitRules{steals: true}},
		"a master that has forgotten votes":                  {rules: permitRules{forgive: true}, forgets: true},
	} {
		for _, n := range []int{3, 5} {
			for _, k := range []int{2, 3} {
				t.Run(fmt.Sprintf("%s, N=%d, k=%d", name, n, k), func(t *testing.T) {
					t.Parallel()
					for i := range uint64(50_000) {
						w := newPermitWorld(seed+i, n, k, world)
						if w.run(permitSteps); w.broken != "" {
							t.Logf("history %d: %s", i+1, w.broken)
							return
						}
					}
					t.Fatal("it was not found")
				})
			}
		}
	}
}
