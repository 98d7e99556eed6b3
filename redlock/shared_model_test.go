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
// released on some masters only. The decisions are those of round.go and fence.go, and the masters
// are shelves (shared_fenced_test.go), which the scripts are compared with.
//
// In no history may a writer have a valid lock beside anybody else, or a number that is not above
// all before it, or a reader one that is not above that of each writer before it.

// sharedRules are what the algorithm relies on. The zero value is the algorithm.
type sharedRules struct {
	quorumOfTwo bool // two masters are enough for a reader
	overWriter  bool // a reader does not refuse a string
	wholeKey    bool // a reader's release deletes the key
	restoreOver bool // a reader is set again where a writer is
	ownEnd      bool // the key expires at the end of the reader that came last
	oneRound    bool // a reader's number is the greatest of a quorum, without a second round
	noCount     bool // the first reader on a master does not move its counter on
	lowRestore  bool // ... nor does one that is set again
}

// A sharedWorld is one history.
type sharedWorld struct {
	*rand.Rand
	rules sharedRules

	// How likely things are differs from history to history.
	slow, losses, patience, writers int
	deaf                            int   // a master that
	unheard                         uint8 // ... never gets this command
	ill                             int   // ... from this client, or from any

	now     int
	masters []fencedShelf
	clients []sharedClient
	tokens  int

	top, wroteTop uint64 // the greatest number that was published, and that of a writer

	together, wrote, restored, raised int // readers that met another; locks of writers; repairs; second rounds
	broken                            string
}

type sharedClient struct {
	phase  uint8
	writes bool
	token  string
	ttl    int
	round  int
	fence  uint64
	began  int
	until  int
	verb   uint8
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
	number uint64
}

func newSharedWorld(seed uint64, n int, rules sharedRules) *sharedWorld {
	w := &sharedWorld{Rand: rand.New(rand.NewPCG(seed, uint64(n))), rules: rules}
	w.masters, w.clients = make([]fencedShelf, n), make([]sharedClient, 4)
	w.deaf, w.unheard, w.ill = w.IntN(n), uint8(w.IntN(5)), w.IntN(2*len(w.clients))
	for i := range w.masters { // attempts that were abandoned before have moved single counters on
		w.masters[i].f = w.Uint64N(6)
	}
	w.slow, w.losses, w.patience, w.writers = 1+w.IntN(30), 2+w.IntN(6), 4+w.IntN(50), 1+w.IntN(5)
	for i := range w.clients {
		c := &w.clients[i]
		c.votes, c.wires = make([]mux.Vote, n), make([]sharedWire, n)
		for i := range c.wires {
			c.wires[i].slow, c.wires[i].lossy = w.IntN(3) == 0, w.IntN(3) == 0
		}
	}
	if rules.restoreOver || rules.lowRestore { // so much must come together that it is helped
		w.unheard, w.ill, w.slow = verbAcquire, 0, 100+w.IntN(400)
		for i := range w.clients {
			w.clients[i].wires[w.deaf] = sharedWire{slow: i == w.ill}
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
				if reply.n == 1 || reply.verb == verbAcquire && reply.n > 0 {
					c.votes[i].Verdict = mux.VerdictYes
				}
			}
		case len(wire.commands) > 0:
			command := wire.commands[0]
			wire.commands = wire.commands[1:]
			if !lost && !(i == w.deaf && command.verb == w.unheard && (w.ill == at/len(w.masters) || w.ill >= len(w.clients))) {
				reply := w.serve(&w.masters[i], command)
				wire.replies = append(wire.replies, fenceReply{command.verb, command.round, reply})
			}
		default:
			continue
		}
		return
	}
}

func (w *sharedWorld) serve(m *fencedShelf, c sharedCommand) (reply int64) {
	now, ttl := int64(w.now), int64(c.ttl)
	m.at(now)
	if c.writes {
		defer func() { m.moved = m.moved && reply <= 0 }()
		switch {
		case c.verb == verbAcquire && m.write(c.token, now, ttl) == 1:
			m.f++
			return int64(m.f)
		case c.verb == verbAcquire:
			return -int64(m.f)
		case c.verb == verbExtend && m.writer == c.token:
			m.expires, m.f = now+ttl, max(m.f, c.number)
			return 1
		case c.verb == verbExtend && m.write(c.token, now, ttl) == 1:
			m.f = max(m.f, c.number)
			return replyRestored
		case c.verb == verbRaise && m.writer == c.token:
			m.f = max(m.f, c.number)
			return 1
		case c.verb == verbRelease && m.writer == c.token:
			m.writer = ""
			return 1
		}
		return 0
	}
	if c.verb == verbAcquire && w.rules.overWriter || c.verb == verbExtend && w.rules.restoreOver {
		m.writer = ""
	}
	f := m.f
	switch c.verb {
	case verbAcquire:
		if reply = m.acquire(c.token, now, ttl, 0, 0); reply > 0 && w.rules.noCount {
			m.f = max(f, 1)
			reply = int64(m.f)
		}
	case verbExtend:
		if reply = m.extend(c.token, now, ttl, true, c.number); w.rules.lowRestore {
			m.f = max(f, c.number)
		}
	case verbRaise:
		reply = m.raise(c.token, now, c.number)
	case verbRelease:
		if reply = m.release(c.token, now); reply == 1 && w.rules.wholeKey {
			m.ends = nil
		}
	}
	if w.rules.ownEnd && (c.verb == verbAcquire || c.verb == verbExtend) && reply > 0 {
		m.expires = now + ttl
	}
	return reply
}

func (w *sharedWorld) ask(c *sharedClient, phase, verb uint8) {
	c.round++
	c.phase, c.verb = phase, verb
	clear(c.votes)
	for i := range c.wires {
		c.wires[i].commands = append(c.wires[i].commands, sharedCommand{verb, c.writes, c.round, c.token, c.ttl, c.fence})
	}
}

func (w *sharedWorld) act(c *sharedClient) {
	now, until := time.Duration(w.now), time.Duration(c.began+c.ttl)
	t := count(c.votes, nil)
	switch c.phase {
	case idle:
		w.tokens++
		c.token, c.began, c.ttl, c.fence = strconv.Itoa(w.tokens), w.now, 4+8*w.IntN(2), 0
		c.writes = w.IntN(5) < w.writers
		w.ask(c, acquiring, verbAcquire)
	case acquiring, raising:
		quorum := t.quorum()
		if w.rules.quorumOfTwo && !c.writes {
			quorum = 2
		}
		if t.acquired(now, until) != nil && (quorum > 2 || t.yes < 2 || now >= until) {
			w.giveUp(c)
			return
		}
		if c.phase == acquiring {
			fence, agreed := common(c.votes, quorum)
			if c.fence = fence; !agreed && (c.writes || !w.rules.oneRound) {
				w.raised++
				w.ask(c, raising, verbRaise)
				return
			}
		}
		c.phase, c.until = holding, c.began+c.ttl
		w.publish(c)
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

// publish gives a lock to its caller.
func (w *sharedWorld) publish(c *sharedClient) {
	if c.writes {
		w.wrote++
	}
	switch {
	case c.writes && c.fence <= w.top:
		w.broken = fmt.Sprintf("a writer has %d after %d", c.fence, w.top)
	case c.fence <= w.wroteTop:
		w.broken = fmt.Sprintf("a reader has %d after a writer with %d", c.fence, w.wroteTop)
	}
	if w.top = max(w.top, c.fence); c.writes {
		w.wroteTop = c.fence
	}
	w.check(c)
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
			together, wrote, restored, raised := 0, 0, 0, 0
			for i := range histories {
				w := newSharedWorld(seed+i, n, sharedRules{})
				w.run([]int{300, 2000}[i%2])
				require.Empty(t, w.broken, "seed %d", seed+i)
				together, wrote = together+w.together, wrote+w.wrote
				restored, raised = restored+w.restored, raised+w.raised
			}
			t.Logf("%d readers together, %d locks of writers, %d repairs, %d second rounds", together, wrote, restored, raised)
			require.Greater(t, together, int(histories)/2)
			require.Greater(t, wrote, int(histories)/2)
			require.Greater(t, restored, int(histories)/10)
			require.Greater(t, raised, int(histories)/10)
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
		"a reader's number in one round":         {oneRound: true},
		"a reader that does not count":           {noCount: true},
		"a reader is set again, and not counted": {lowRestore: true},
	} {
		sizes := []int{3, 5}
		if testing.Short() {
			if rules.restoreOver || rules.lowRestore { // so much must come together that it takes long
				continue
			}
			sizes = sizes[:1] // where it is found sooner
		}
		if rules.lowRestore { // among five masters it is not found in every 200,000 histories
			sizes = sizes[:1]
		}
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
