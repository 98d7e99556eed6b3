//go:build !race

package redlock

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/stretchr/testify/require"
)

// The harness of the models that are searched at random. The decisions are those of the library: internal/quorum/tally.go
// and internal/quorum/fence.go. Clients, wires and masters are simulated, with a clock of ticks, and without goroutines: the seed
// alone decides what happens. So the race detector has nothing to find in them.
//
// A history has clients that take a lock, extend it, release it, give up or die. Each has a wire to each master.
// On a wire, commands and replies keep their order. They are late or lost, and a master can be
// deaf to one kind of command. A master can restart without its memory: then its wires lose
// what is on them, and nobody asks it for a TTL. How likely all this is differs from history to history. In
// some of them a release is a debt: it is delivered at last, so nothing is left when all have let go.
//
// A model says what a kind adds to that: what a client asks for, what a master's memory is and what it does with a
// command, what a client does with an answer, and which locks exclude each other. Its masters are the
// references that the scripts are compared with in other tests.
//
// A kind's sound settings must break nothing. Each mistake must be found: a model that finds no fault
// is worth nothing. Usually that search begins near a history that shows it, so it is short and ends in the same way
// each time. If histories are asked for, it begins anywhere.

// A model is one history of a kind.
type model interface {
	want(c *modelActor)                                   // c.keys and so on, of a client that begins
	serve(master int, command modelCommand) (reply int64) // what a master does
	judge(c *modelActor, master int, reply modelReply) mux.Verdict
	took(c *modelActor, t quorum.Tally, why error) bool // reports whether an acquire is over, and the lock is to be published
	publish(c *modelActor)
	extended(c *modelActor)
	excludes(c *modelActor, others []*modelActor) bool // of locks that are valid at the same time
	tick()
	mayForget(master int) bool
	forget(master int)
	left(master int) string // the locks on a master
}

// A modelKind begins the histories of a model.
type modelKind interface {
	begin(h *history) model
}

// A mistake is what an implementation could do wrong. The empty one is none.
type mistake string

// A history is what happens with one seed. It has what most models do in the same way.
type history struct {
	*rand.Rand
	model model
	wrong mistake

	forgets bool // masters restart without their memory
	passes  bool // locks are given to a next holder under their token

	// How likely things are.
	pace     int  // steps of a tick
	slow     int  // of so many looks at a slow wire, one finds something
	losses   int  // a lossy wire loses one of so many
	patience int  // of so many looks at a round that has not succeeded, one gives it up
	mortal   bool // clients die, and their releases are lost
	deaf     int  // a master that
	unheard  verb // ... never gets this command
	ill      int  // ... of this client, or of any

	now     int
	clients []modelActor
	barred  []int // by master: nobody asks it before
	tokens  int

	seen     [moments]int
	broken   string
	leftOver bool     // ... only since something is left
	notes    []string // what happened, if it is asked for; else nil
}

type phase = uint8

// Beside those of the search.
const (
	raising  phase = extending + 1 + iota // the second round of a lock with a fence
	passing                               // the round that passes one on
	revoking                              // an operator revokes a lock
)

type verb uint8

const (
	verbAcquire verb = iota
	verbRaise
	verbExtend
	verbRelease
	verbMend
	verbPass
	verbs

	// No master is deaf to these.
	verbRevoke // of some histories only
	verbRepair
)

func (v verb) String() string {
	return [...]string{"acquire", "raise", "extend", "release", "mend", "pass", "", "revoke", "repair"}[v]
}

// A moment is what must happen often enough, or the histories are worth nothing.
type moment int

const (
	published moment = iota
	raised           // second rounds
	passed           // locks that were given to a next holder under their token
	restored         // keys that were set again
	refused          // attempts that were given up
	beside           // locks that were valid beside others
	wrote            // locks of writers
	revocations
	moments
)

func (m moment) String() string {
	return [moments]string{"published", "raised", "passed", "restored", "refused", "beside", "wrote", "revocations"}[m]
}

type modelActor struct {
	id           int
	phase        phase
	round        int  // replies to another are late
	verb         verb // ... and its command
	token        string
	began        int // T1
	ttl          int
	until        int // the validity, of the lock that it holds
	keys         []string
	writes       bool
	fence        uint64
	votes        []mux.Vote
	wires        []modelWire // to each master
	forgotten    mux.Set     // who has forgotten the round
	hint, offset uint64      // the greatest number that it has seen, and how far its clock is ahead
	heard        mux.Set     // who has said that the key is there
	sets         quorum.Sets
	trust        quorum.Trust
	owes         mux.Set     // who has not answered a set
	setRounds    map[int]int // by master: the round of the latest set
	at           int         // a key that it takes, of several
}

func (c *modelActor) valid(now int) bool {
	return (c.phase == holding || c.phase == extending) && c.until > now
}

// A modelWire has what is on its way, in order.
type modelWire struct {
	slow, lossy bool
	commands    []modelCommand
	replies     []modelReply
}

type modelCommand struct {
	verb   verb
	writes bool
	round  int
	token  string
	keys   []string
	ttl    int
	number uint64
}

type modelReply struct {
	verb  verb
	round int
	n     int64
}

// modelTicks is a TTL.
const modelTicks = 12

func newHistory(seed uint64, n int, wrong mistake, kind modelKind) *history {
	h := &history{Rand: rand.New(rand.NewPCG(seed, uint64(n))), wrong: wrong, barred: make([]int, n)}
	h.pace, h.slow, h.losses, h.patience = 20+h.IntN(60), 1+h.IntN(30), 2+h.IntN(6), 2+h.IntN(80)
	h.mortal = h.IntN(3) > 0
	h.deaf, h.unheard = h.IntN(n), verb(h.IntN(int(verbPass)))
	h.model = kind.begin(h)
	return h
}

// people begins with so many clients.
func (h *history) people(n int) {
	h.clients, h.ill = make([]modelActor, n), h.IntN(2*n)
	for i := range h.clients {
		c := &h.clients[i]
		c.id, c.votes, c.wires, c.setRounds = i, make([]mux.Vote, len(h.barred)), make([]modelWire, len(h.barred)), map[int]int{}
		for i := range c.wires {
			c.wires[i].slow, c.wires[i].lossy = h.IntN(3) == 0, h.IntN(4) == 0
		}
	}
}

// run goes on until something is broken or enough has happened, and has all let go then.
func (h *history) run() {
	for steps := []int{200, 1500}[h.IntN(2)]; steps > 0 && h.broken == ""; steps-- {
		switch at := h.IntN(h.pace); {
		case at == 0:
			h.now++
			h.model.tick()
			if i := h.IntN(len(h.barred)); h.forgets && h.IntN(10) == 0 && h.model.mayForget(i) {
				h.restart(i)
			}
		case at < 1+h.pace/5:
			h.act(&h.clients[h.IntN(len(h.clients))])
		default:
			h.deliver()
		}
	}
	if h.broken != "" || h.mortal {
		return
	}
	for i := range h.clients {
		if c := &h.clients[i]; c.phase != idle {
			h.ask(c, idle, verbRelease, 0)
		}
	}
	for h.slow = 1; h.deliver(); {
	}
	for i := range h.barred {
		if left := h.model.left(i); left != "" {
			h.leftOver = true
			h.broken = fmt.Sprintf("%s is left on master %d", left, i)
		}
	}
}

// restart has a master lose its memory. Nobody listens to it until all locks that it may have known
// are over.
func (h *history) restart(i int) {
	h.barred[i] = h.now + modelTicks
	for c := range h.clients {
		o := &h.clients[c]
		wire := &o.wires[i]
		wire.replies = nil
		wire.commands = slices.DeleteFunc(wire.commands, func(c modelCommand) bool { return h.mortal || c.verb != verbRelease })
		o.forgotten, o.owes = o.forgotten.With(i), o.owes.Without(i)
	}
	h.note("master %d forgets", i)
	h.model.forget(i)
}

// deliver takes something from a wire, to its end or to nowhere. It reports whether there was anything.
func (h *history) deliver() (more bool) {
	all := len(h.clients) * len(h.barred)
	for k, from := 0, h.IntN(all); k < all; k++ {
		at := (from + k) % all
		c, i := &h.clients[at/len(h.barred)], at%len(h.barred)
		wire := &c.wires[i]
		if len(wire.replies)+len(wire.commands) == 0 {
			continue
		}
		more = true
		if wire.slow && h.IntN(h.slow) > 0 {
			continue
		}
		lost := wire.lossy && h.IntN(h.losses) == 0
		if len(wire.replies) > 0 && (len(wire.commands) == 0 || h.IntN(2) == 0) {
			reply := wire.replies[0]
			wire.replies = wire.replies[1:]
			if !lost {
				h.hear(c, i, reply)
			}
			return true
		}
		command := wire.commands[0]
		wire.commands = wire.commands[1:]
		lost = lost || i == h.deaf && command.verb == h.unheard && (h.ill == c.id || h.ill >= len(h.clients))
		debt := command.verb == verbRelease && !h.mortal
		if debt || !lost && h.now >= h.barred[i] {
			n := h.model.serve(i, command)
			wire.replies = append(wire.replies, modelReply{command.verb, command.round, n})
			if h.notes != nil {
				h.note("master %d: %v %d of client %d: %d", i, command.verb, command.round, c.id, n)
			}
		}
		return true
	}
	return more
}

func (h *history) hear(c *modelActor, i int, reply modelReply) {
	verdict := h.model.judge(c, i, reply)
	if (reply.verb == verbAcquire || reply.verb == verbRepair) && reply.round == c.setRounds[i] {
		c.owes = c.owes.Without(i)
	}
	if reply.verb == verbRepair && reply.n == 1 {
		h.seen[restored]++
	}
	if reply.round == c.round && reply.verb == c.verb && h.now >= h.barred[i] { // that of a mend has another verb
		c.votes[i] = mux.Vote{Verdict: verdict, Int: reply.n}
	}
}

// ask sends a command to all masters.
func (h *history) ask(c *modelActor, phase phase, verb verb, number uint64) {
	h.askOf(c, phase, verb, number, func(int) bool { return true })
}

func (h *history) askOf(c *modelActor, phase phase, verb verb, number uint64, whom func(master int) bool) {
	c.round++
	c.phase, c.verb, c.forgotten = phase, verb, 0
	for i := range c.wires {
		if whom(i) {
			c.votes[i] = mux.Vote{}
			h.send(c, i, verb, number)
		}
	}
	if h.notes != nil {
		h.note("client %d: %v %d, %s of %v, %d", c.id, verb, c.round, c.token, c.keys, number)
	}
}

func (h *history) send(c *modelActor, i int, verb verb, number uint64) {
	if verb == verbAcquire || verb == verbRepair {
		c.owes, c.setRounds[i] = c.owes.With(i), c.round
	}
	c.wires[i].commands = append(c.wires[i].commands, modelCommand{verb, c.writes, c.round, c.token, c.keys, c.ttl, number})
}

func (h *history) act(c *modelActor) {
	now, until := time.Duration(h.now), time.Duration(c.began+c.ttl)
	if c.phase == extending || c.phase == passing {
		suspect, unless := c.sets.Doubted()
		quorum.Discount(c.votes, suspect|unless.To)
	}
	t := quorum.Count(c.votes, nil)
	switch c.phase {
	case idle:
		h.tokens++
		c.owes = 0
		c.token, c.began, c.ttl, c.fence = strconv.Itoa(h.tokens), h.now, modelTicks, 0
		h.model.want(c)
	case acquiring, raising:
		if h.model.took(c, t, t.Acquired(now, until)) {
			c.phase, c.until = holding, c.began+c.ttl
			c.sets = quorum.NewSets(c.owes, 0, 0)
			h.seen[published]++
			h.note("client %d has it until %d, number %d", c.id, c.until, c.fence)
			h.model.publish(c)
			h.check(c)
		}
	case passing:
		if h.model.took(c, t, t.Acquired(now, min(until, time.Duration(c.until)))) {
			c.phase, c.until = holding, c.began+c.ttl
			c.sets.Succeeded(c.trust, 0)
			h.seen[passed]++
			h.note("client %d has it from itself until %d, number %d", c.id, c.until, c.fence)
			h.model.publish(c)
			h.check(c)
		}
	case holding:
		if h.passes && h.now < c.until && h.IntN(3) == 0 {
			c.began, c.heard = h.now, 0
			h.trusts(c)
			h.ask(c, passing, verbPass, c.fence+1)
			return
		}
		if h.now >= c.until || h.IntN(3) == 0 {
			h.release(c)
			return
		}
		c.began = h.now
		h.trusts(c)
		h.ask(c, extending, verbExtend, c.fence)
	case extending:
		if t.Extended(now, until, time.Duration(c.until)) != nil {
			h.giveUp(c)
			return
		}
		c.phase, c.until = holding, c.began+c.ttl
		h.note("client %d has it until %d", c.id, c.until)
		h.model.extended(c)
		on := c.sets.Succeeded(c.trust, quorum.SaidGone(c.votes))
		c.round++
		for i := range c.wires {
			if on.Has(i) {
				h.send(c, i, verbRepair, c.fence)
			}
		}
		c.sets.Sent(on, 0, 0)
		h.check(c)
	case revoking:
		h.model.(interface {
			revoked(*modelActor, quorum.Tally)
		}).revoked(c, t)
	}
}

// trusts has a client look who owes it no answer any more.
func (h *history) trusts(c *modelActor) {
	open, never := c.sets.Asks()
	c.sets.Heard((open.To|never.To)&^c.owes, 0, 0)
	c.trust = c.sets.Begin()
}

// giveUp ends a round that has not succeeded, at some time.
func (h *history) giveUp(c *modelActor) {
	if h.IntN(h.patience) == 0 {
		h.seen[refused]++
		h.release(c)
	}
}

func (h *history) release(c *modelActor) {
	if h.mortal && h.IntN(8) == 0 { // it dies, and another takes its place
		h.note("client %d dies", c.id)
		c.round++
		c.phase = idle
		return
	}
	h.ask(c, idle, verbRelease, 0)
}

// check looks who else has a valid lock.
func (h *history) check(c *modelActor) {
	var others []*modelActor
	for i := range h.clients {
		if o := &h.clients[i]; o != c && o.valid(h.now) {
			others = append(others, o)
		}
	}
	if len(others) > 0 && h.model.excludes(c, others) {
		h.broken = fmt.Sprintf("client %d has a valid lock beside %d others", c.id, len(others))
	}
}

func (h *history) note(format string, args ...any) {
	if h.notes != nil {
		h.notes = append(h.notes, fmt.Sprintf("%4d ", h.now)+fmt.Sprintf(format, args...))
	}
}

// What most models do.

func (h *history) took(c *modelActor, _ quorum.Tally, why error) bool {
	if why != nil {
		h.giveUp(c)
	}
	return why == nil
}

// judge is what a kind does with a reply: the acquire of a lock with a fence, and its second round, reply the number.
func (*history) judge(_ *modelActor, _ int, reply modelReply) mux.Verdict {
	if reply.n == 1 || reply.n > 0 && (reply.verb == verbAcquire || reply.verb == verbRaise || reply.verb == verbPass) {
		return mux.VerdictYes
	}
	return mux.VerdictNo
}

func (*history) publish(*modelActor) {}

func (*history) extended(*modelActor) {}

func (*history) tick() {}

func (*history) mayForget(int) bool { return true }

// fenced is what took is of a lock with a fence: without a quorum that agrees on a number, there is a second round.
func (h *history) fenced(c *modelActor, needed int, oneRound bool) bool {
	if c.phase == acquiring || c.phase == passing {
		fence, agreed := quorum.Common(c.votes, needed)
		if c.fence = fence; !agreed && !oneRound {
			h.seen[raised]++
			h.ask(c, raising, verbRaise, fence)
			return false
		}
	}
	return true
}

// A setting is a kind in some circumstances.
type setting struct {
	name   string // that of the mistake, if it is empty
	kind   modelKind
	wrong  mistake
	leaves bool           // the mistake is that something is left
	from   map[int]uint64 // by number of masters: the seed near which the mistake is found; 3 and 5 masters, if it is nil
}

func (s setting) each(t *testing.T, f func(t *testing.T, n int)) {
	if s.from == nil {
		s.from = map[int]uint64{3: 0, 5: 0}
	}
	for n := range s.from {
		t.Run(fmt.Sprintf("%s, N=%d", cmp.Or(s.name, string(s.wrong)), n), func(t *testing.T) {
			t.Parallel()
			f(t, n)
		})
	}
}

func (s setting) history(seed uint64, n int) *history { return newHistory(seed, n, s.wrong, s.kind) }

// breaksNothing runs histories of each setting. Of some moments there must be so many, on average, in a history.
func breaksNothing(t *testing.T, usually int, least map[moment]float64, settings ...setting) {
	t.Parallel()
	for _, s := range settings {
		s.each(t, func(t *testing.T, n int) {
			var seen [moments]int
			first, histories := seeds(t, usually)
			for i := range histories {
				h := s.history(first+i, n)
				if h.run(); h.broken != "" {
					t.Fatal(s.story(t, first+i, n))
				}
				for m := range seen {
					seen[m] += h.seen[m]
				}
			}
			for m := range moments {
				t.Logf("%d %v", seen[m], m)
				if histories > 1 {
					require.GreaterOrEqual(t, float64(seen[m]), least[m]*float64(histories), "the histories have not got far: %v", m)
				}
			}
		})
	}
}

// story runs a history again, and describes it.
func (s setting) story(t *testing.T, seed uint64, n int) string {
	h := s.history(seed, n)
	h.notes = []string{}
	h.run()
	return fmt.Sprintf("%s\n%s\nRun it again: %s", strings.Join(h.notes[max(0, len(h.notes)-100):], "\n"), h.broken, again(t, seed))
}

// findsMistakes requires that with each mistake some history is wrong.
func findsMistakes(t *testing.T, settings ...setting) {
	t.Parallel()
	for _, s := range settings {
		s.each(t, func(t *testing.T, n int) {
			first, chosen := seeds(t, 0)
			if chosen == 0 {
				first = s.from[n]
			}
			for i := range uint64(500_000) {
				h := s.history(first+i, n)
				if h.run(); h.broken != "" && h.leftOver == s.leaves {
					t.Logf("history %d: %s", i+1, h.broken)
					return
				}
			}
			t.Fatal("it was not found")
		})
	}
}
