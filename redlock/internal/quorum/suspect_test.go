//go:build !race

package quorum

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/stretchr/testify/require"
)

// A model of what a yes says: one lock A, whose acquire asks again where it was refused, and all others together, B,
// without time. A's key may vanish at any moment, by its TTL, a DEL or a restart. B takes any master that is free, and lets go when it likes. A's sets may wait anywhere: in
// its connection, or behind one that was given up, for ever. The decisions are those of internal/quorum/suspect.go and
// internal/quorum/tally.go. In no state that can be reached does a round of A succeed though another has had a quorum since A took
// the lock, and before the round began. (Until the stragglers' time is over, that counts from then on.)
//
// Every state is visited, but in the largest worlds, which have millions. The masters are alike, so they are sorted.

const suspectMost = 5 // masters

// A suspectWorld says how large it is, and which clause of the rule is left out.
type suspectWorld struct {
	n, rounds int
	adopts    bool // the token goes to another process, once
	restarts  bool // a master's process is another now and then
	drops     clause
	most      int // states that are looked at; 0 for all
}

type clause string

const (
	noClause       clause = ""
	noSuspects     clause = "the yes of suspects counts"
	answerClears   clause = "an answer ends the suspicion"
	anyRoundClears clause = "a round clears those that have answered since it began"
	breaksForget   clause = "a connection that ends is an answer"
	acquireIsNone  clause = "the acquire's stragglers are no suspects"
	repairIsNone   clause = "repairs make no suspects"
	lateIsSoon     clause = "a straggler may be late"
	repairSoon     clause = "a repair that is answered soon makes no suspect"
	adoptsBlindly  clause = "the next process knows nothing of suspects"
	asksTheOpen    clause = "the acquire asks a master again whose connection has ended without an answer"
	againIsNone    clause = "what the acquire has asked again, and was not answered, makes no suspects"
)

// A suspectMaster is a master, and what A's client knows of it.
type suspectMaster struct {
	val    uint8    // free, another's or A's
	way    uint8    // where a set of A is on the live connection
	lost   uint8    // sets behind connections that were given up
	vote   [2]uint8 // in each round of A
	trust  [2]bool  // it owed when the round began
	doubt  [2]uint8 // what the round thinks of its yes
	owing  bool
	never  bool
	sus    bool
	ended  bool // a connection has ended without the answer to a set
	isLate bool // the answer to the acquire was late
}

const ( // val
	free uint8 = iota
	others
	ours
)

const ( // way
	none uint8 = iota
	there
	back    // it was refused
	backYes // it was set
)

const ( // vote, beside late, sayYes, sayNo, sayGone
	noVote     uint8 = iota
	isYes            // it counts
	isGone           //
	isOthers         //
	isVoid           // a yes that does not count, or no answer
	earlier          // it was asked before the set that was sent after it
	askedAgain       // the acquire has asked it again, and has no answer yet
)

const ( // doubt
	believed uint8 = iota
	unless
	doubted
)

type suspectState struct {
	m      [suspectMost]suspectMaster
	held   bool // or else the acquire is under way
	soon   bool // the time for stragglers
	grown  bool // the sets have grown since the acquire
	handed uint8
	had    bool // another has had a quorum since A took the lock
	active [2]bool
	began  [2]bool // had, when the round began
	stale  [2]bool // the sets have grown since
	broken bool
}

func (w *suspectWorld) quorum() int { return Majority(w.n) }

// sets returns what A's client remembers.
func (w *suspectWorld) sets(s *suspectState) (all Sets) {
	for i := range w.n {
		if m := &s.m[i]; m.sus {
			all.suspect = all.suspect.With(i)
			if m.owing {
				all.owing = all.owing.With(i)
			}
			if m.never {
				all.never = all.never.With(i)
			}
		}
	}
	if s.grown {
		all.grown = 2
	}
	return all
}

// keep puts back what it remembers after a decision.
func (w *suspectWorld) keep(s *suspectState, all Sets) {
	if grown := w.sets(s).grown; all.grown != grown {
		s.grown = true
		s.stale = s.active
	}
	for i := range w.n {
		m := &s.m[i]
		m.owing, m.never, m.sus = all.owing.Has(i), all.never.Has(i), all.suspect.Has(i)
	}
}

// trust returns what the sets were when a round began.
func (w *suspectWorld) trust(s *suspectState, k int) (t Trust) {
	for i := range w.n {
		if s.m[i].trust[k] {
			t.owing = t.owing.With(i)
		}
	}
	if t.grown = w.sets(s).grown; s.stale[k] {
		t.grown--
	}
	return t
}

// hear is core.hear: what a mux says of those that owe.
func (w *suspectWorld) hear(s *suspectState, all *Sets) {
	var answered, soon, never mux.Set
	for i := range w.n {
		switch m := &s.m[i]; {
		case m.ended && w.drops != breaksForget:
			never = never.With(i)
		case m.way == none:
			answered = answered.With(i)
			if !m.isLate {
				soon = soon.With(i)
			}
		}
	}
	open, lost := all.Asks()
	grown := all.grown
	if w.drops == repairSoon {
		all.grown = 0
	}
	all.Heard(answered&(open.To|lost.To), soon&open.To, never&open.To)
	all.grown = grown
	if w.drops == answerClears {
		all.suspect &= all.owing
	}
}

// note notes whether another has a quorum.
func (w *suspectWorld) note(s *suspectState) {
	n := 0
	for i := range w.n {
		if s.m[i].val == others {
			n++
		}
	}
	s.had = s.had || s.held && !s.soon && n >= w.quorum()
}

// next calls visit with every state that can follow.
func (w *suspectWorld) next(s suspectState, visit func(suspectState)) {
	if s.soon {
		t := s
		t.soon = false
		w.note(&t)
		visit(t)
	}
	for i := range w.n {
		w.master(s, i, visit)
	}
	switch {
	case !s.held:
		w.acquire(s, visit)
		return
	case w.adopts && s.handed == 0 && !s.active[0] && !s.active[1]:
		t := s
		t.handed, t.grown = 1, false
		for i := range w.n {
			m := &t.m[i]
			if m.way == there {
				m.lost = min(m.lost+1, 2)
			}
			m.way, m.owing, m.never, m.sus, m.ended, m.isLate = none, false, false, false, false, false
		}
		visit(t)
	}
	for k := range w.rounds {
		switch {
		case s.active[k]:
			w.judge(s, k, visit)
		case k == 0 || s.active[0]: // by symmetry
			w.begin(s, k, visit)
		}
	}
}

// master goes on with a master.
func (w *suspectWorld) master(s suspectState, i int, visit func(suspectState)) {
	m := s.m[i]
	with := func(change func(t *suspectState, m *suspectMaster)) {
		t := s
		change(&t, &t.m[i])
		w.note(&t)
		visit(t)
	}
	switch m.val {
	case free:
		with(func(_ *suspectState, m *suspectMaster) { m.val = others })
		if m.lost > 0 {
			with(func(_ *suspectState, m *suspectMaster) { m.val = ours; m.lost-- })
		}
	default:
		with(func(_ *suspectState, m *suspectMaster) { m.val = free })
	}
	if m.lost > 0 && m.val != free {
		with(func(_ *suspectState, m *suspectMaster) { m.lost-- }) // it is refused
	}
	pass := func(m *suspectMaster) { // no answer will come to what was asked before it
		for k := range m.vote {
			if m.vote[k] == earlier {
				m.vote[k] = isVoid
			}
		}
	}
	switch m.way {
	case there:
		with(func(_ *suspectState, m *suspectMaster) {
			if m.way = back; m.val == free {
				m.val, m.way = ours, backYes
			}
			pass(m)
		})
	case back, backYes:
		if s.held { // otherwise it is the vote: see acquire
			with(func(t *suspectState, m *suspectMaster) {
				m.way = none
				m.isLate = m.isLate || !t.soon && w.drops != lateIsSoon && !(t.grown && w.drops == repairSoon)
			})
		}
	}
	if m.way != none {
		with(func(_ *suspectState, m *suspectMaster) {
			if m.way == there {
				m.lost = min(m.lost+1, 2)
			}
			m.way, m.ended = none, true
			pass(m)
		})
	}
	if w.restarts && s.held && (m.lost > 0 || m.ended) {
		with(func(_ *suspectState, m *suspectMaster) {
			m.lost, m.way, m.ended, m.isLate = 0, none, false, true // answered, and not soon
			pass(m)
		})
	}
	for k := range w.rounds {
		// An extension changes nothing here, so it is carried out and answered at once.
		if v := m.vote[k]; s.active[k] && (v == noVote && m.way == none || v == earlier) {
			with(func(_ *suspectState, m *suspectMaster) {
				m.vote[k] = [...]uint8{free: isGone, others: isOthers, ours: isYes}[m.val]
				void := m.doubt[k] == doubted || m.doubt[k] == unless && (m.ended || m.isLate)
				if m.vote[k] == isYes && void && w.drops != noSuspects {
					m.vote[k] = isVoid
				}
			})
		}
	}
}

// acquire goes on with the acquire: a vote is the answer to its set.
func (w *suspectWorld) acquire(s suspectState, visit func(suspectState)) {
	var answered mux.Set
	yes := 0
	for i := range w.n {
		m := s.m[i]
		open := m.vote[0] == noVote || m.vote[0] == askedAgain
		if !open || m.vote[0] == askedAgain && w.drops == againIsNone {
			answered = answered.With(i)
		}
		switch {
		case m.vote[0] == isYes:
			yes++
		case open && m.way >= back:
			t := s
			t.m[i].way, t.m[i].vote[0] = none, map[uint8]uint8{back: isOthers, backYes: isYes}[m.way]
			visit(t)
		case m.vote[0] == isOthers, open && m.ended && m.way == none && w.drops == asksTheOpen:
			t := s
			t.m[i].way, t.m[i].vote[0], t.m[i].ended = there, askedAgain, false
			visit(t)
		}
	}
	if yes < w.quorum() {
		return
	}
	t := s
	all := NewSets((1<<w.n-1)&^answered, 0, 0)
	if w.drops == acquireIsNone {
		all = Sets{}
	}
	t.held = true
	for i := range w.n {
		t.m[i].vote[0] = noVote
	}
	w.keep(&t, all)
	w.note(&t)
	visit(t)
}

func (w *suspectWorld) begin(s suspectState, k int, visit func(suspectState)) {
	all := w.sets(&s)
	w.hear(&s, &all)
	w.keep(&s, all)
	s.active[k], s.began[k], s.stale[k] = true, s.had, false
	suspect, but := all.Doubted()
	for i := range w.n {
		m := &s.m[i]
		m.trust[k] = all.Begin().owing.Has(i)
		switch m.doubt[k] = believed; {
		case but.To.Has(i):
			m.doubt[k] = unless
		case suspect.Has(i):
			m.doubt[k] = doubted
		}
	}
	visit(s)
}

func (w *suspectWorld) end(s *suspectState, k int) {
	s.active[k], s.began[k], s.stale[k] = false, false, false
	for i := range w.n {
		m := &s.m[i]
		m.vote[k], m.trust[k], m.doubt[k] = noVote, false, believed
	}
}

// judge ends a round, at any time.
func (w *suspectWorld) judge(s suspectState, k int, visit func(suspectState)) {
	t := s
	w.end(&t, k)
	visit(t) // it has failed, or its caller has given up
	votes := make([]mux.Vote, w.n)
	for i := range votes {
		votes[i] = map[uint8]mux.Vote{isYes: sayYes.vote(), isGone: sayGone.vote(), isOthers: sayNo.vote()}[s.m[i].vote[k]]
	}
	all, began := w.sets(&s), w.trust(&s, k)
	w.hear(&s, &all)
	if w.drops != noSuspects {
		Discount(votes, all.SuspectSince(began))
	}
	if Count(votes, mux.ErrTimeout).Extended(0, time.Second, time.Second) != nil {
		return
	}
	w.keep(&s, all)
	if s.began[k] && s.handed != 1 {
		s.broken = true
	}
	gone := SaidGone(votes)
	var on mux.Set
	switch {
	case s.handed == 1: // what was before is not the next process's claim
		s.handed, s.had, s.began = 2, false, [2]bool{}
		if w.drops != adoptsBlindly {
			all.Adopted(1<<w.n-1, SaidYes(votes), 0)
			for i := range w.n {
				s.m[i].ended = s.m[i].ended || all.never.Has(i)
			}
		}
		w.note(&s)
	case w.drops == anyRoundClears:
		began.owing = all.owing
		on = all.Succeeded(began, gone)
	default:
		on = all.Succeeded(began, gone)
	}
	w.keep(&s, all)
	w.end(&s, k)
	visit(s) // the repair is not sent
	if on == 0 {
		return
	}
	var sent mux.Set
	for i := range w.n {
		if m := &s.m[i]; on.Has(i) && m.way == none { // the model has room for one set on a connection
			sent = sent.With(i)
			m.way = there
			for k := range m.vote {
				if s.active[k] && m.vote[k] == noVote {
					m.vote[k] = earlier
				}
			}
		}
	}
	before := all
	if all.Sent(sent, 0, 0); w.drops == repairIsNone {
		all.owing, all.suspect = before.owing, before.suspect
	}
	w.keep(&s, all)
	visit(s)
}

// sorted returns the state with its masters in order.
func (w *suspectWorld) sorted(s suspectState) suspectState {
	if s.active[1] && !s.active[0] { // the only round is the first
		swap := func(a *[2]bool) { a[0], a[1] = a[1], a[0] }
		swap(&s.active)
		swap(&s.began)
		swap(&s.stale)
		for i := range w.n {
			m := &s.m[i]
			swap(&m.trust)
			m.vote[0], m.vote[1] = m.vote[1], m.vote[0]
			m.doubt[0], m.doubt[1] = m.doubt[1], m.doubt[0]
		}
	}
	slices.SortFunc(s.m[:w.n], func(a, b suspectMaster) int { return int(a.key()) - int(b.key()) })
	return s
}

func (m *suspectMaster) key() (k uint32) {
	for _, v := range []uint8{m.val, m.way, m.lost, m.vote[0], m.vote[1], m.doubt[0], m.doubt[1]} {
		k = k<<3 | uint32(v)
	}
	for _, b := range []bool{m.trust[0], m.trust[1], m.owing, m.never, m.sus, m.ended, m.isLate} {
		if k <<= 1; b {
			k |= 1
		}
	}
	return k
}

// A suspectKey is a state, packed.
type suspectKey [suspectMost + 1]uint32

func (s *suspectState) key() (k suspectKey) {
	for i := range s.m {
		k[i] = s.m[i].key()
	}
	rest := uint32(s.handed)
	for _, b := range []bool{s.held, s.soon, s.grown, s.had, s.active[0], s.active[1], s.began[0], s.began[1], s.stale[0], s.stale[1]} {
		if rest <<= 1; b {
			rest |= 1
		}
	}
	k[suspectMost] = rest
	return k
}

// search visits every state that can be reached, the nearest ones first, and returns how many there are, and in how many
// steps the rule is broken; 0 if it never is.
func (w *suspectWorld) search() (states, steps int) {
	first := suspectState{soon: true}
	for i := range w.n {
		first.m[i].way = there // the acquire
	}
	seen := map[suspectKey]struct{}{}
	for todo := []suspectState{first}; len(todo) > 0 && (w.most == 0 || len(seen) < w.most); {
		steps++
		var farther []suspectState
		broken := false
		for _, s := range todo {
			w.next(s, func(t suspectState) {
				t = w.sorted(t)
				broken = broken || t.broken
				key := t.key()
				if _, before := seen[key]; !before {
					seen[key] = struct{}{}
					farther = append(farther, t)
				}
			})
		}
		if broken {
			return len(seen), steps
		}
		todo = farther
	}
	return len(seen), 0
}

func TestModelOfSuspects(t *testing.T) {
	t.Parallel()
	worlds := map[string]suspectWorld{
		"one master, two rounds at once":     {n: 1, rounds: 2, adopts: true, restarts: true},
		"two masters, two rounds at once":    {n: 2, rounds: 2, adopts: true, restarts: true},
		"three masters":                      {n: 3, rounds: 1, restarts: true},
		"three masters, and another process": {n: 3, rounds: 1, adopts: true},
	}
	if os.Getenv("REDLOCK_SCALE") == "full" {
		const most = 1_000_000
		worlds["three masters, restarts, and another process"] = suspectWorld{n: 3, rounds: 1, adopts: true, restarts: true, most: most}
		worlds["three masters, two rounds at once"] = suspectWorld{n: 3, rounds: 2, most: most}
		worlds["five masters"] = suspectWorld{n: 5, rounds: 1, most: most}
	}
	for name, w := range worlds {
		t.Run(name, func(t *testing.T) {
			states, steps := w.search()
			require.Zero(t, steps)
			t.Log(states, "states")
		})
	}
}

// Each clause of the rule is needed: without it, a round succeeds that must not.
func TestModelOfSuspectsFindsWhatEachClauseIsFor(t *testing.T) {
	t.Parallel()
	for _, drops := range []clause{noSuspects, answerClears, anyRoundClears, breaksForget, acquireIsNone, repairIsNone, lateIsSoon,
		repairSoon, adoptsBlindly, asksTheOpen, againIsNone} {
		t.Run(string(drops), func(t *testing.T) {
			w := suspectWorld{n: 3, rounds: 1, adopts: drops == adoptsBlindly, drops: drops}
			states, steps := w.search()
			require.NotZero(t, steps, "not in %d states", states)
			t.Log(steps, "steps")
		})
	}
}

// Two rounds at once: the first has repaired b since the second began. The second may have b's yes from that repair, which
// may yet come late. It clears nothing, and repairs nothing.
func TestARoundThatBeganBeforeARepairSaysNothingOfIt(t *testing.T) {
	t.Parallel()
	const a, b, c = mux.Set(1), mux.Set(2), mux.Set(4)
	all := NewSets(0, 1, 2)
	for range 2 {
		second := all.Begin()
		require.Zero(t, all.SuspectSince(second))
		first := all.Begin()
		require.Equal(t, b, all.Succeeded(first, b))
		all.Sent(b, 3, 4)
		votes := []mux.Vote{sayYes.vote(), sayYes.vote(), sayNo.vote()}
		Discount(votes, all.SuspectSince(second))
		require.Equal(t, ErrNoQuorum, Count(votes, mux.ErrTimeout).Extended(0, 1, 1), "b's yes counts for nothing")
		require.Zero(t, all.Succeeded(second, c), "nor does it repair")
		require.Equal(t, b, all.suspect)
		suspect, _ := all.Doubted()
		require.Equal(t, b, suspect)

		third := all.Begin()
		all.Heard(b, b, 0)
		require.Zero(t, all.Succeeded(third, 0))
		require.Equal(t, b, all.suspect, "the third began before b had answered")
		require.Zero(t, all.owing)
		require.Zero(t, all.Succeeded(all.Begin(), 0))
		require.Zero(t, all.suspect, "it began after that")
	}
}

// A mux is asked for all that may be answered still: from the first set of these on, be it of an earlier repair.
func TestWhatIsOwedIsAskedForFromItsBeginning(t *testing.T) {
	s := NewSets(1<<0, 10, 20)
	asks := func(to, never mux.Set, first, last time.Duration) {
		t.Helper()
		open, lost := s.Asks()
		require.Equal(t, mux.Sent{To: to, First: first, Last: last}, open)
		require.Equal(t, never, lost.To)
	}
	asks(1<<0, 0, 10, 20)
	s.Sent(1<<1, 30, 40)
	asks(1<<0|1<<1, 0, 10, 40)
	s.Heard(1<<1, 0, 0)
	s.Sent(1<<2, 50, 60)
	asks(1<<0|1<<2, 0, 10, 60)
	s.Heard(1<<2, 0, 1<<0)
	s.Sent(1<<1, 70, 80) // nothing else can be answered
	asks(1<<1, 1<<0, 70, 80)
}

// A master of which no answer was expected any more, and that has answered, owes what it is sent from then on as any other.
func TestWhoHasAnsweredAfterAllIsAskedAbout(t *testing.T) {
	one := mux.Set(0).With(1)
	s := NewSets(one, 1, 2)
	for at := time.Duration(10); at < 30; at += 10 { // a second time, too
		s.Heard(0, 0, one)
		open, lost := s.Asks()
		require.Zero(t, open.To)
		require.Equal(t, one, lost.To)
		s.Heard(one, 0, 0)
		open, lost = s.Asks()
		require.Zero(t, open.To|lost.To)
		s.Sent(one, at, at+1)
		open, lost = s.Asks()
		require.Equal(t, mux.Sent{To: one, First: at, Last: at + 1}, open)
		require.Zero(t, lost.To)
	}
}
