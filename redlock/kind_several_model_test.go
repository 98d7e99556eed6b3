//go:build !race

package redlock

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/stretchr/testify/require"
)

// A model of locks on several keys, searched at random: clients that want sets of keys which
// overlap, and masters whose commands and replies are late or lost, attempts that are abandoned,
// keys that expire, locks that are extended and repaired, masters that restart without their
// memory. The decisions are those of round.go, and the masters are severalMasters
// (kind_several_test.go), which the scripts are compared with.
//
// In no history has a key two holders, and nothing is left when all have let go.

const severalTTL = 12 // ticks

// severalRules are mistakes. The zero value is the algorithm.
type severalRules struct {
	skips     bool // an acquire sets what is free, and skips what is taken
	oneByOne  bool // each key is taken in a round of its own, with its own quorum, and the last counts
	leaves    bool // ... and an attempt that fails is not undone
	prolongs  bool // an extend prolongs what is ours, and skips what is another's
	takesBack bool // an extend sets keys again, whosever they are
	blind     bool // a release deletes all keys, whosever they are
}

// A severalWorld is one history.
type severalWorld struct {
	*rand.Rand
	rules  severalRules
	forget bool // masters restart without their memory
	mortal bool // clients die, and release nothing

	// How likely things are differs from history to history.
	slow, losses, patience int

	now     int
	masters []severalNode
	clients []severalClient
	tokens  int

	published, refused, restored int
	broken                       string
}

type severalNode struct {
	severalMaster
	ends   map[string]int
	barred int // it is not asked before
}

type severalClient struct {
	phase uint8
	keys  []string
	at    int // the key that is being taken, of those that are taken one by one
	round int
	token string
	began int
	until int
	votes []mux.Vote
	wires []severalWire
}

type severalWire struct {
	slow, lossy bool
	commands    []severalCommand
	replies     []severalReply
}

type severalCommand struct {
	verb  uint8
	round int
	token string
	keys  []string
}

type severalReply struct {
	round int
	n     int64
}

var severalSets = [][]string{{"a", "b"}, {"b", "c"}, {"a", "c"}, {"a", "b", "c"}, {"a"}, {"b"}, {"c"}}

func newSeveralWorld(seed uint64, n int, w severalWorld) *severalWorld {
	w.Rand = rand.New(rand.NewPCG(seed, uint64(n)))
	w.masters, w.clients = make([]severalNode, n), make([]severalClient, 3)
	w.slow, w.losses, w.patience = 1+w.IntN(30), 2+w.IntN(6), 4+w.IntN(100)
	w.mortal = w.IntN(2) == 0
	for i := range w.masters {
		w.masters[i] = severalNode{severalMaster{}, map[string]int{}, 0}
	}
	for i := range w.clients {
		c := &w.clients[i]
		c.votes, c.wires = make([]mux.Vote, n), make([]severalWire, n)
		for i := range c.wires {
			c.wires[i].slow, c.wires[i].lossy = w.IntN(3) == 0, w.IntN(5) == 0
		}
	}
	return &w
}

// run goes on until something is broken or enough has happened, and has all let go then.
func (w *severalWorld) run(steps int) {
	for ; steps > 0 && w.broken == ""; steps-- {
		switch at := w.IntN(40); {
		case at == 0:
			w.tick()
		case at < 8:
			w.act(&w.clients[w.IntN(len(w.clients))])
		default:
			w.deliver()
		}
	}
	if w.broken != "" || w.mortal {
		return
	}
	for i := range w.clients {
		if c := &w.clients[i]; c.phase != idle {
			w.ask(c, idle, verbRelease, c.keys)
		}
	}
	for w.deliver() {
	}
	for i := range w.masters {
		if len(w.masters[i].severalMaster) > 0 {
			w.broken = fmt.Sprintf("%v is left on master %d", w.masters[i].severalMaster, i)
		}
	}
}

// deliver takes something from a wire, to its end or to nowhere. A release is never lost: it is a
// debt.
func (w *severalWorld) deliver() (more bool) {
	all := len(w.clients) * len(w.masters)
	for k, from := 0, w.IntN(all); k < all; k++ {
		at := (from + k) % all
		c, i := &w.clients[at/len(w.masters)], at%len(w.masters)
		wire := &c.wires[i]
		if len(wire.replies)+len(wire.commands) == 0 {
			continue
		}
		more = true
		if wire.slow && w.IntN(w.slow) > 0 {
			continue
		}
		lost := wire.lossy && w.IntN(w.losses) == 0
		if len(wire.replies) > 0 {
			reply := wire.replies[0]
			wire.replies = wire.replies[1:]
			if !lost {
				w.hear(c, i, reply)
			}
			return true
		}
		command := wire.commands[0]
		wire.commands = wire.commands[1:]
		if !lost || command.verb == verbRelease {
			w.serve(c, i, command)
		}
		return true
	}
	return more
}

func (w *severalWorld) tick() {
	w.now++
	for i := range w.masters {
		m := &w.masters[i]
		maps.DeleteFunc(m.severalMaster, func(key, _ string) bool { return w.now >= m.ends[key] })
	}
	if w.forget && w.IntN(10) == 0 { // nobody listens to it until all locks that it may have known are over
		m := &w.masters[w.IntN(len(w.masters))]
		clear(m.severalMaster)
		m.barred = w.now + severalTTL
	}
}

func (w *severalWorld) serve(c *severalClient, i int, command severalCommand) {
	m := &w.masters[i]
	if w.now < m.barred && command.verb != verbRelease {
		return
	}
	n := int64(0)
	had := maps.Clone(m.severalMaster)
	switch command.verb {
	case verbAcquire:
		if n = m.acquire(command.keys, command.token); w.rules.skips && n == 0 {
			for _, key := range command.keys {
				n |= m.acquire([]string{key}, command.token)
			}
		}
	case verbExtend:
		n = m.extend(command.keys, command.token, true)
		for _, key := range command.keys {
			switch {
			case n > 0:
			case w.rules.prolongs:
				m.extend([]string{key}, command.token, true)
			case w.rules.takesBack:
				m.severalMaster[key] = command.token
			}
		}
		if w.rules.prolongs || w.rules.takesBack {
			n = max(n, 1)
		}
	case verbRelease:
		n = m.release(command.keys, command.token)
		for _, key := range command.keys {
			if w.rules.blind {
				delete(m.severalMaster, key)
			}
		}
	}
	for _, key := range command.keys {
		if m.severalMaster[key] == command.token && (had[key] != command.token || command.verb == verbExtend && n > 0) {
			m.ends[key] = w.now + severalTTL
		}
	}
	c.wires[i].replies = append(c.wires[i].replies, severalReply{command.round, n})
}

// hear judges a reply as the kind does.
func (w *severalWorld) hear(c *severalClient, i int, reply severalReply) {
	if reply.round != c.round || w.now < w.masters[i].barred {
		return
	}
	c.votes[i] = mux.Vote{Verdict: mux.VerdictNo, Int: reply.n}
	if reply.n == 1 {
		c.votes[i].Verdict = mux.VerdictYes
	}
}

// ask sends a command to all masters.
func (w *severalWorld) ask(c *severalClient, phase, verb uint8, keys []string) {
	c.round++
	c.phase = phase
	clear(c.votes)
	for i := range c.wires {
		c.wires[i].commands = append(c.wires[i].commands, severalCommand{verb, c.round, c.token, keys})
	}
}

func (w *severalWorld) act(c *severalClient) {
	now, until := time.Duration(w.now), time.Duration(c.began+severalTTL)
	t := count(c.votes, nil)
	switch c.phase {
	case idle:
		w.tokens++
		c.token, c.keys, c.at = strconv.Itoa(w.tokens), severalSets[w.IntN(len(severalSets))], 0
		w.take(c)
	case acquiring:
		switch err := t.acquired(now, until); {
		case err == nil && w.rules.oneByOne && c.at < len(c.keys):
			w.take(c)
		case err == nil:
			w.publish(c)
		case w.IntN(w.patience) > 0:
		case w.rules.leaves:
			w.refused++
			c.round++
			c.phase = idle
		default:
			w.refused++
			w.release(c)
		}
	case holding:
		switch {
		case w.now >= c.until || w.IntN(3) == 0:
			w.release(c)
		default:
			c.began = w.now
			w.ask(c, extending, verbExtend, c.keys)
		}
	case extending:
		switch err := t.extended(now, until, time.Duration(c.until)); {
		case err == nil:
			w.restored += t.restored
			c.phase, c.until = holding, c.began+severalTTL
		case w.IntN(w.patience) == 0:
			w.release(c)
		}
	}
}

// take asks for all keys, or for the next.
func (w *severalWorld) take(c *severalClient) {
	c.began = w.now
	keys := c.keys
	if w.rules.oneByOne {
		keys = c.keys[c.at : c.at+1]
		c.at++
	}
	w.ask(c, acquiring, verbAcquire, keys)
}

func (w *severalWorld) release(c *severalClient) {
	if w.mortal && w.IntN(8) == 0 { // it dies, and another takes its place
		c.round++
		c.phase = idle
		return
	}
	w.ask(c, idle, verbRelease, c.keys)
}

// publish gives a lock to its caller.
func (w *severalWorld) publish(c *severalClient) {
	c.phase, c.until = holding, c.began+severalTTL
	w.published++
	for i := range w.clients {
		o := &w.clients[i]
		if o == c || o.phase != holding && o.phase != extending || o.until <= w.now {
			continue
		}
		for _, key := range c.keys {
			if slices.Contains(o.keys, key) {
				w.broken = "two hold " + key
			}
		}
	}
}

func TestModelEachKeyOfASetHasOneHolder(t *testing.T) {
	t.Parallel()
	histories := uint64(15_000)
	if testing.Short() {
		histories = 1000
	}
	seed := fenceSeed(t)
	for name, world := range map[string]severalWorld{"no master forgets": {}, "masters forget": {forget: true}} {
		for _, n := range []int{3, 5} {
			t.Run(fmt.Sprintf("%s, N=%d", name, n), func(t *testing.T) {
				t.Parallel()
				published, refused, restored := 0, 0, 0
				for i := range histories {
					w := newSeveralWorld(seed+i, n, world)
					w.run([]int{200, 1000}[i%2])
					require.Empty(t, w.broken, "seed %d", seed+i)
					published += w.published
					refused += w.refused
					restored += w.restored
				}
				require.Greater(t, published, int(histories)/2, "the histories have not got far")
				require.Greater(t, refused, int(histories)/10, "nobody was in another's way")
				require.Positive(t, restored, "nothing was set again")
			})
		}
	}
}

// Each rule is needed: without it some history is wrong.
func TestModelFindsWhatBreaksSets(t *testing.T) {
	t.Parallel()
	seed := fenceSeed(t)
	for name, world := range map[string]severalWorld{
		"what is taken is skipped":                  {rules: severalRules{skips: true}},
		"keys one by one, each with its own quorum": {rules: severalRules{oneByOne: true}},
		"keys one by one, and nothing is undone":    {rules: severalRules{oneByOne: true, leaves: true}},
		"an attempt that fails is not undone":       {rules: severalRules{leaves: true}},
		"an extend skips what is another's":         {rules: severalRules{prolongs: true}, forget: true},
		"an extend takes back what is another's":    {rules: severalRules{takesBack: true}},
		"a release deletes what is another's":       {rules: severalRules{blind: true}},
	} {
		if testing.Short() && world.rules.prolongs { // it takes long
			continue
		}
		sizes := []int{3, 5}
		if testing.Short() || world.rules.prolongs { // where it is found sooner
			sizes = sizes[:1]
		}
		for _, n := range sizes {
			t.Run(fmt.Sprintf("%s, N=%d", name, n), func(t *testing.T) {
				t.Parallel()
				for i := range uint64(500_000) {
					w := newSeveralWorld(seed+i, n, world)
					if w.run(1000); w.broken != "" {
						t.Logf("history %d: %s", i+1, w.broken)
						return
					}
				}
				t.Fatal("it was not found")
			})
		}
	}
}
