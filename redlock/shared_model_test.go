//go:build !race

package redlock

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/stretchr/testify/require"
)

// A model of shared locks, searched at random: readers and writers whose commands and replies are
// late or lost, attempts that are abandoned, terms that end, locks that are extended, repaired and
// released on some masters only. The decisions are those of round.go, and the masters are shelves
// (shared_test.go), which the scripts are compared with. Writers are plain locks.
//
// In no history may a writer have a valid lock beside anybody else.

// sharedRules are what the algorithm relies on. The zero value is the algorithm.
type sharedRules struct {
	quorumOfTwo bool // two masters are enough for a reader
	overWriter  bool // a reader does not refuse a string
	wholeKey    bool // a reader's release deletes the key
	restoreOver bool // a reader is set again where a writer is
	ownEnd      bool // the key expires at the end of the reader that came last
}

// A sharedWorld is one history.
type sharedWorld struct {
	*rand.Rand
	rules sharedRules

	// How likely things are differs from history to history.
	slow, losses, patience, writers int

	now     int
	masters []shelf
	clients []sharedClient
	tokens  int

	together, wrote, restored int // readers that met another; locks of writers; repairs
	broken                    string
}

type sharedClient struct {
	phase  uint8
	writes bool
	token  string
	ttl    int
	round  int
	began  int
	until  int
	votes  []mux.Vote
	wires  []sharedWire
}

// A sharedWire has what is on its way to a master, and back, in order.
type sharedWire struct {
	slow, lossy bool
	commands    []sharedCommand
	replies     []fenceReply
}

type sharedCommand struct {
	verb   uint8
	writes bool
	round  int
	token  string
	ttl    int
}

func newSharedWorld(seed uint64, n int, rules sharedRules) *sharedWorld {
	w := &sharedWorld{Rand: rand.New(rand.NewPCG(seed, uint64(n))), rules: rules}
	w.masters, w.clients = make([]shelf, n), make([]sharedClient, 4)
	w.slow, w.losses, w.patience, w.writers = 1+w.IntN(30), 2+w.IntN(6), 4+w.IntN(50), 1+w.IntN(5)
	for i := range w.clients {
		c := &w.clients[i]
		c.votes, c.wires = make([]mux.Vote, n), make([]sharedWire, n)
		for i := range c.wires {
			c.wires[i].slow, c.wires[i].lossy = w.IntN(3) == 0, w.IntN(3) == 0
		}
	}
	return w
}

func (w *sharedWorld) run(steps int) {
	for ; steps > 0 && w.broken == ""; steps-- {
		switch at := w.IntN(60); {
		case at == 0:
			w.now++
		case at < 12:
			w.act(&w.clients[w.IntN(len(w.clients))])
		default:
			w.deliver()
		}
	}
}

func (w *sharedWorld) deliver() {
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
			if !lost && reply.round == c.round {
				c.votes[i] = mux.Vote{Verdict: mux.VerdictNo, Int: reply.n}
				if reply.n == 1 {
					c.votes[i].Verdict = mux.VerdictYes
				}
			}
		case len(wire.commands) > 0:
			command := wire.commands[0]
			wire.commands = wire.commands[1:]
			if !lost {
				reply := w.serve(&w.masters[i], command)
				wire.replies = append(wire.replies, fenceReply{command.verb, command.round, reply})
			}
		default:
			continue
		}
		return
	}
}

func (w *sharedWorld) serve(m *shelf, c sharedCommand) (reply int64) {
	now, ttl := int64(w.now), int64(c.ttl)
	m.at(now)
	if c.writes {
		switch {
		case c.verb == verbAcquire:
			return m.write(c.token, now, ttl)
		case c.verb == verbExtend && m.writer == c.token:
			m.expires = now + ttl
			return 1
		case c.verb == verbExtend && m.write(c.token, now, ttl) == 1:
			return replyRestored
		case c.verb == verbRelease && m.writer == c.token:
			m.writer = ""
			return 1
		}
		return 0
	}
	if c.verb == verbAcquire && w.rules.overWriter || c.verb == verbExtend && w.rules.restoreOver {
		m.writer = ""
	}
	switch c.verb {
	case verbAcquire:
		reply = m.acquire(c.token, now, ttl, 0)
	case verbExtend:
		reply = m.extend(c.token, now, ttl, true)
	case verbRelease:
		if reply = m.release(c.token, now); reply == 1 && w.rules.wholeKey {
			m.ends = nil
		}
	}
	if w.rules.ownEnd && c.verb != verbRelease && reply > 0 {
		m.expires = now + ttl
	}
	return reply
}

func (w *sharedWorld) ask(c *sharedClient, phase, verb uint8) {
	c.round++
	c.phase = phase
	clear(c.votes)
	for i := range c.wires {
		c.wires[i].commands = append(c.wires[i].commands, sharedCommand{verb, c.writes, c.round, c.token, c.ttl})
	}
}

func (w *sharedWorld) act(c *sharedClient) {
	now, until := time.Duration(w.now), time.Duration(c.began+c.ttl)
	t := count(c.votes, nil)
	switch c.phase {
	case idle:
		w.tokens++
		c.token, c.began, c.ttl = strconv.Itoa(w.tokens), w.now, 4+8*w.IntN(2)
		c.writes = w.IntN(5) < w.writers
		w.ask(c, acquiring, verbAcquire)
	case acquiring:
		few := w.rules.quorumOfTwo && !c.writes && t.yes >= 2 && now < until
		if t.acquired(now, until) != nil && !few {
			w.giveUp(c)
			return
		}
		c.phase, c.until = holding, c.began+c.ttl
		w.check(c)
	case holding:
		if w.now >= c.until || w.IntN(3) == 0 {
			w.release(c)
			return
		}
		c.began = w.now
		w.ask(c, extending, verbExtend)
	case extending:
		if t.extended(now, until, time.Duration(c.until)) != nil {
			w.giveUp(c)
			return
		}
		w.restored += t.restored
		c.phase, c.until = holding, c.began+c.ttl
		w.check(c)
	}
}

func (w *sharedWorld) giveUp(c *sharedClient) {
	if w.IntN(w.patience) == 0 {
		w.release(c)
	}
}

func (w *sharedWorld) release(c *sharedClient) {
	if w.IntN(8) == 0 { // it dies, and another takes its place
		c.round++
		c.phase = idle
		return
	}
	w.ask(c, idle, verbRelease)
}

// check looks who else has a valid lock.
func (w *sharedWorld) check(c *sharedClient) {
	if c.writes {
		w.wrote++
	}
	for i := range w.clients {
		o := &w.clients[i]
		if o == c || o.phase != holding && o.phase != extending || o.until <= w.now {
			continue
		}
		if w.together++; c.writes || o.writes {
			w.broken = fmt.Sprintf("%s (writes: %t) beside %s (writes: %t)", c.token, c.writes, o.token, o.writes)
		}
	}
}

func TestModelReadersExcludeWriters(t *testing.T) {
	t.Parallel()
	histories := uint64(20_000)
	if testing.Short() {
		histories = 1000
	}
	seed := fenceSeed(t)
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprintf("N=%d", n), func(t *testing.T) {
			t.Parallel()
			together, wrote, restored := 0, 0, 0
			for i := range histories {
				w := newSharedWorld(seed+i, n, sharedRules{})
				w.run([]int{300, 2000}[i%2])
				require.Empty(t, w.broken, "seed %d", seed+i)
				together, wrote, restored = together+w.together, wrote+w.wrote, restored+w.restored
			}
			t.Logf("%d readers together, %d locks of writers, %d repairs", together, wrote, restored)
			require.Greater(t, together, int(histories)/2)
			require.Greater(t, wrote, int(histories)/2)
			require.Greater(t, restored, int(histories)/10)
		})
	}
}

// Each rule is needed: without it some history is wrong.
func TestModelFindsWhatBreaksSharing(t *testing.T) {
	t.Parallel()
	seed := fenceSeed(t)
	for name, rules := range map[string]sharedRules{
		"a reader quorum of two":                 {quorumOfTwo: true},
		"a reader that does not refuse a writer": {overWriter: true},
		"a release that deletes the whole key":   {wholeKey: true},
		"a reader is set again over a writer":    {restoreOver: true},
		"the key ends with the last that came":   {ownEnd: true},
	} {
		sizes := []int{3, 5}
		if rules.quorumOfTwo { // of three that is a majority
			sizes = []int{5}
		}
		for _, n := range sizes {
			t.Run(fmt.Sprintf("%s, N=%d", name, n), func(t *testing.T) {
				t.Parallel()
				for i := range uint64(200_000) {
					w := newSharedWorld(seed+i, n, rules)
					if w.run(2000); w.broken != "" {
						t.Logf("history %d: %s", i+1, w.broken)
						return
					}
				}
				t.Fatal("it was not found")
			})
		}
	}
}
