//go:build !race

package redlock

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/stretchr/testify/require"
)

// A model of the fence, searched at random: clients and masters whose commands and replies are
// late or lost, attempts that are abandoned, keys that expire, locks that are extended, repaired
// and released on some masters only, masters that forget. The decisions are those of round.go and
// fence.go, and the masters are counters (fence_test.go), which the scripts are compared with.
//
// In no history may a lock that is published have a number that is not above all before it.

const fenceTTL = 12 // ticks

// fenceRules are what the algorithm relies on. The zero value is the algorithm.
type fenceRules struct {
	greatest   bool // the greatest number of a quorum is the fence, without a second round
	anywhere   bool // the second round raises counters also where the key is gone, and that counts
	lowRestore bool // a key is set again without its number
	lowExtend  bool // ... nor does an extend carry it
	plainHint  bool // a counter becomes the hint, and is not moved on if it is beyond that
	staleRaise bool // the fence is published when a quorum has sent its numbers, before it is raised
	believes   bool // a number that is too far ahead is believed
	mendsLate  bool // a counter is set back also at a master that has not answered before the lock was published
	fewTook    bool // a majority of those that took part is to remember, be it none of all masters
}

// A fenceWorld is one history.
type fenceWorld struct {
	*rand.Rand
	rules   fenceRules
	hints   bool // acquires have hints, by the clients' clocks
	forgets bool // a master forgets now and then, if enough others remember
	writes  bool // somebody writes a number that nobody can believe, always to the same master
	mends   bool // each new holder sets back all counters, be they too far ahead or not
	blanks  bool // all masters forget at once, now and then
	apart   int  // ticks by which the clients' clocks differ at most

	// How likely things are differs from history to history.
	slow, losses, patience int
	deaf                   int   // a master that
	unheard                uint8 // ... never gets this command

	now     int
	masters []fenceMaster
	clients []fenceClient
	tokens  int

	top     uint64  // the greatest number that was published
	knowing mux.Set // who is to remember it, for all that its holder knows
	took    mux.Set // ... or has done so

	published, raised int
	broken            string
}

type fenceMaster struct {
	counter
	ends   int // of the key
	barred int // it is not asked before
}

type fenceClient struct {
	phase     uint8
	offset    int    // of its clock
	last      uint64 // the greatest number it has seen
	round     int    // replies to another are late
	verb      uint8  // ... and its command
	token     string
	began     int // T1
	until     int // the validity, of the lock that it holds
	fence     uint64
	votes     []mux.Vote
	wires     []fenceWire // to each master
	forgotten mux.Set     // who has forgotten the round
	heard     mux.Set     // who has said that the key is there
}

// A fenceWire has what is on its way, in order.
type fenceWire struct {
	slow     bool
	lossy    bool
	commands []fenceCommand
	replies  []fenceReply
}

type fenceCommand struct {
	verb   uint8
	round  int
	token  string
	number uint64
}

type fenceReply struct {
	verb  uint8
	round int
	n     int64
}

const (
	verbAcquire uint8 = iota
	verbRaise
	verbExtend
	verbRelease
	verbMend
)

// A number that is further ahead of a client's clock than modelSkew is not believed. What is written is
// modelFar or more.
const modelSkew, modelFar = 10_000_000, 1 << 50

const raising uint8 = extending + 1 // a phase beside those of the other model

func newFenceWorld(seed uint64, n int, w fenceWorld) *fenceWorld {
	w.Rand = rand.New(rand.NewPCG(seed, uint64(n)))
	w.masters = make([]fenceMaster, n)
	w.deaf, w.unheard = w.IntN(n), uint8(w.IntN(5))
	for i := range w.masters { // attempts that were abandoned before have moved single counters on
		w.masters[i].f = w.Uint64N(6)
	}
	w.clients = make([]fenceClient, 3)
	w.slow, w.losses, w.patience = 1+w.IntN(30), 2+w.IntN(6), 4+w.IntN(100)
	for i := range w.clients {
		c := &w.clients[i]
		c.votes, c.wires = make([]mux.Vote, n), make([]fenceWire, n)
		if w.apart > 0 {
			c.offset = w.IntN(w.apart)
		}
		for i := range c.wires {
			c.wires[i].slow, c.wires[i].lossy = w.IntN(3) == 0, w.IntN(5) == 0
		}
	}
	return &w
}

// run goes on until something is broken or enough has happened.
func (w *fenceWorld) run(steps int) {
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
}

// deliver takes something from a wire, to its end or to nowhere.
func (w *fenceWorld) deliver() {
	all := len(w.clients) * len(w.masters)
	for k, from := 0, w.IntN(all); k < all; k++ {
		at := (from + k) % all
		c, i := &w.clients[at/len(w.masters)], at%len(w.masters)
		lost := c.wires[i].lossy && w.IntN(w.losses) == 0
		switch wire := &c.wires[i]; {
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
			if !lost && !(i == w.deaf && command.verb == w.unheard) {
				w.serve(c, i, command)
			}
		default:
			continue
		}
		return
	}
}

func (w *fenceWorld) tick() {
	w.now++
	for i := range w.masters {
		if m := &w.masters[i]; m.token != "" && w.now >= m.ends {
			m.token = ""
		}
	}
	switch i := w.IntN(len(w.masters)); {
	case w.forgets && w.IntN(10) == 0 && w.mayForget(i):
		w.forget(i)
	case w.writes && w.IntN(10) == 0:
		w.masters[0].f = modelFar + w.Uint64N(1000)
	case w.blanks && w.IntN(50) == 0:
		for i := range w.masters {
			w.forget(i)
		}
	}
}

// mayForget reports whether a master may forget, since a majority of all masters will remember the
// last lock, and none forgets one that is being taken.
func (w *fenceWorld) mayForget(i int) bool {
	for c := range w.clients {
		c := &w.clients[c]
		if (c.phase == acquiring || c.phase == raising) && c.votes[i].Verdict == mux.VerdictYes {
			return false
		}
	}
	needed := majority(len(w.masters))
	if w.rules.fewTook {
		needed = majority(w.took.Len())
	}
	return (w.knowing &^ (1 << i)).Len() >= needed
}

// forget has a master restart without its memory. Nobody listens to it until all locks that it
// may have known are over.
func (w *fenceWorld) forget(i int) {
	w.masters[i] = fenceMaster{barred: w.now + fenceTTL}
	w.knowing &^= 1 << i
	for c := range w.clients {
		o := &w.clients[c]
		o.wires[i] = fenceWire{slow: o.wires[i].slow, lossy: o.wires[i].lossy}
		o.forgotten = o.forgotten.With(i)
	}
}

func (w *fenceWorld) serve(c *fenceClient, i int, command fenceCommand) {
	m := &w.masters[i]
	if w.now < m.barred {
		return
	}
	reply := fenceReply{verb: command.verb, round: command.round}
	had := m.token
	switch command.verb {
	case verbAcquire:
		if f := m.f; w.rules.plainHint && m.token == "" {
			m.token, m.f = command.token, max(f, command.number)
			reply.n = int64(m.f)
		} else {
			reply.n = m.acquire(command.token, command.number)
		}
	case verbRaise:
		if w.rules.anywhere {
			m.f, reply.n = max(m.f, command.number), 1
		} else {
			reply.n = m.raise(command.token, command.number)
		}
	case verbExtend:
		number := command.number
		if w.rules.lowExtend || w.rules.lowRestore && m.token == "" {
			number = 0
		}
		if reply.n = m.extend(command.token, true, number); reply.n > 0 {
			m.ends = w.now + fenceTTL
		}
	case verbRelease:
		m.release(command.token)
	case verbMend:
		if m.token == command.token {
			m.f = command.number
		}
		return
	}
	if had == "" && m.token != "" {
		m.ends = w.now + fenceTTL
	}
	c.wires[i].replies = append(c.wires[i].replies, reply)
}

// hear judges a reply as the kind does.
func (w *fenceWorld) hear(c *fenceClient, i int, reply fenceReply) {
	if reply.verb == verbAcquire {
		if n := uint64(max(reply.n, -reply.n)); w.believed(c, n) {
			c.last = max(c.last, n)
		}
	}
	if reply.round != c.round || reply.verb == verbRelease || w.now < w.masters[i].barred {
		return
	}
	yes := reply.n == 1
	if reply.verb == verbAcquire || reply.verb == verbRaise {
		if yes = reply.n > 0; yes {
			c.heard = c.heard.With(i)
		}
	}
	c.votes[i] = mux.Vote{Verdict: mux.VerdictNo, Int: reply.n}
	switch {
	case yes && !w.believed(c, uint64(reply.n)):
		c.votes[i].Verdict = mux.VerdictFailed
	case yes:
		c.votes[i].Verdict = mux.VerdictYes
	}
}

func (w *fenceWorld) believed(c *fenceClient, n uint64) bool {
	return w.rules.believes || n <= uint64(w.now+c.offset)*1000+modelSkew
}

// ask sends a command to all masters.
func (w *fenceWorld) ask(c *fenceClient, phase, verb uint8, number uint64) {
	c.round++
	c.phase, c.verb = phase, verb
	c.forgotten = 0
	clear(c.votes)
	for i := range c.wires {
		c.wires[i].commands = append(c.wires[i].commands, fenceCommand{verb, c.round, c.token, number})
	}
}

func (w *fenceWorld) act(c *fenceClient) {
	now, until := time.Duration(w.now), time.Duration(c.began+fenceTTL)
	t := count(c.votes, nil)
	switch c.phase {
	case idle:
		w.tokens++
		c.token, c.began, c.fence, c.heard = strconv.Itoa(w.tokens), w.now, 0, 0
		hint := uint64(0)
		if w.hints {
			hint = max(uint64(w.now+c.offset)*1000, c.last+1)
			c.last = hint
		}
		w.ask(c, acquiring, verbAcquire, hint)
	case acquiring:
		if t.acquired(now, until) != nil {
			w.giveUp(c)
			return
		}
		fence, agreed := common(c.votes, t.quorum())
		if c.fence = fence; agreed || w.rules.greatest {
			w.publish(c)
			return
		}
		w.raised++
		w.ask(c, raising, verbRaise, fence)
		if w.rules.staleRaise {
			w.publish(c)
		}
	case raising:
		if t.acquired(now, until) != nil {
			w.giveUp(c)
			return
		}
		w.publish(c)
	case holding:
		switch {
		case w.now >= c.until || w.IntN(3) == 0:
			w.release(c)
		default:
			c.began = w.now
			w.ask(c, extending, verbExtend, c.fence)
		}
	case extending:
		switch t.extended(now, until, time.Duration(c.until)) {
		case nil:
			c.phase, c.until = holding, c.began+fenceTTL
			w.know(c)
		default:
			w.giveUp(c)
		}
	}
}

// giveUp ends a round that has not succeeded, at some time.
func (w *fenceWorld) giveUp(c *fenceClient) {
	if w.IntN(w.patience) == 0 {
		w.release(c)
	}
}

func (w *fenceWorld) release(c *fenceClient) {
	if w.IntN(8) == 0 { // it dies, and another takes its place
		c.round++
		c.phase = idle
		return
	}
	w.ask(c, idle, verbRelease, 0)
}

// publish gives a lock to its caller.
func (w *fenceWorld) publish(c *fenceClient) {
	c.phase, c.until = holding, c.began+fenceTTL
	w.published++
	if c.fence >= modelFar {
		w.broken = "what somebody wrote was published"
	}
	for i := range c.wires {
		if w.mends && (w.rules.mendsLate || c.heard.Has(i)) {
			c.wires[i].commands = append(c.wires[i].commands, fenceCommand{verbMend, c.round, c.token, c.fence})
		}
	}
	for i := range w.clients {
		if o := &w.clients[i]; o != c && (o.phase == holding || o.phase == extending) && o.until > w.now {
			w.broken = "two hold the lock"
		}
	}
	if c.fence <= w.top {
		w.broken = fmt.Sprintf("%d was published after %d", c.fence, w.top)
	}
	w.top, w.knowing, w.took = c.fence, 0, 0
	w.know(c)
}

// know notes who has said that it remembers the fence of the last holder.
func (w *fenceWorld) know(c *fenceClient) {
	if c.fence != w.top {
		return
	}
	for i, v := range c.votes {
		knows := v.Verdict == mux.VerdictYes || v.Int == replyRestored
		if c.verb == verbAcquire {
			knows = uint64(v.Int) == c.fence
		}
		if knows && !c.forgotten.Has(i) {
			w.knowing, w.took = w.knowing.With(i), w.took.With(i)
		}
	}
}

var soundWorlds = map[string]fenceWorld{
	"without hints":                            {},
	"with hints":                               {hints: true, apart: 5},
	"with hints, clocks far apart":             {hints: true, apart: 1000},
	"a minority forgets":                       {forgets: true},
	"hints, a minority forgets":                {hints: true, apart: 1000, forgets: true},
	"somebody writes":                          {hints: true, apart: 5, writes: true},
	"somebody writes, and holders set back":    {hints: true, apart: 5, writes: true, mends: true},
	"holders set back":                         {mends: true},
	"holders set back, and a minority forgets": {hints: true, apart: 1000, mends: true, forgets: true},
	"hints, all forget":                        {hints: true, apart: fenceTTL, blanks: true},
}

// fenceSeed is where the histories of a test begin.
func fenceSeed(t *testing.T) uint64 {
	seed := rand.Uint64()
	if s := os.Getenv("REDLOCK_SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
	}
	return seed
}

// How long a history is. What goes wrong without forgetting goes wrong early.
const fenceSteps, fenceStepsShort = 1500, 200

func TestModelFencesGrow(t *testing.T) {
	t.Parallel()
	histories := uint64(15_000)
	if testing.Short() {
		histories = 1000
	}
	seed := fenceSeed(t)
	for name, world := range soundWorlds {
		for _, n := range []int{3, 5} {
			t.Run(fmt.Sprintf("%s, N=%d", name, n), func(t *testing.T) {
				t.Parallel()
				published, raised := 0, 0
				for i := range histories {
					w := newFenceWorld(seed+i, n, world)
					w.run([]int{fenceStepsShort, fenceSteps}[i%2])
					require.Empty(t, w.broken, "seed %d", seed+i)
					published += w.published
					raised += w.raised
				}
				require.Greater(t, published, int(histories)/2, "the histories have not got far")
				require.Greater(t, raised, int(histories)/100, "no second round was needed")
			})
		}
	}
}

// Each rule is needed: without it some history is wrong.
func TestModelFindsWhatBreaksTheFence(t *testing.T) {
	t.Parallel()
	seed := fenceSeed(t)
	for name, world := range map[string]fenceWorld{
		"the greatest of a quorum, in one round":     {rules: fenceRules{greatest: true}},
		"the greatest of a quorum, with hints":       {rules: fenceRules{greatest: true}, hints: true, apart: 1000},
		"a write-back to any quorum":                 {rules: fenceRules{anywhere: true}},
		"published before it is raised":              {rules: fenceRules{staleRaise: true}},
		"a counter that is not moved on":             {rules: fenceRules{plainHint: true}, hints: true, apart: 1000},
		"a key is set again without its number":      {rules: fenceRules{lowRestore: true}, forgets: true},
		"an extend without the number":               {rules: fenceRules{lowExtend: true}, forgets: true},
		"what somebody wrote is believed":            {rules: fenceRules{believes: true}, hints: true, apart: 5, writes: true},
		"set back at a master that has not answered": {rules: fenceRules{mendsLate: true}, mends: true},
		"a majority of few forgets nothing":          {rules: fenceRules{fewTook: true}, forgets: true},
		"all forget, and there are no hints":         {blanks: true},
		"all forget, with clocks too far apart":      {blanks: true, hints: true, apart: 10 * fenceTTL},
	} {
		sizes := []int{3, 5}
		if testing.Short() {
			sizes = sizes[:1] // where it is found sooner
		}
		if world.rules.fewTook { // a majority of two is both
			sizes = []int{5}
		}
		for _, n := range sizes {
			t.Run(fmt.Sprintf("%s, N=%d", name, n), func(t *testing.T) {
				t.Parallel()
				steps := fenceSteps
				if world.rules.anywhere {
					steps = fenceStepsShort
				}
				for i := range uint64(500_000) {
					w := newFenceWorld(seed+i, n, world)
					if w.run(steps); w.broken != "" {
						t.Logf("history %d: %s", i+1, w.broken)
						return
					}
				}
				t.Fatal("it was not found")
			})
		}
	}
}
