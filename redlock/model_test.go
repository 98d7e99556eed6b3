//go:build !race

package redlock

import (
	"hash/maphash"
	"slices"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/stretchr/testify/require"
)

// A model of the algorithm, searched state by state: two clients and three
// masters, on which everything that can be late is: commands wait at a master for
// as long as the search likes, clients look at the votes when it likes, keys
// expire early by the drift that is allowed for, a master crashes. The decisions
// are those of internal/quorum/tally.go. In no state that can be reached may both clients have a
// lock that is valid.
//
// A search has no goroutines, so it runs without the race detector, which makes it slow.

const (
	modelMasters = 3
	modelTTL     = 3 // ticks
	modelDrift   = 1
	modelQueue   = 3 // commands of one client that can wait at one master
)

// A ballot is what a master says in a round.
type ballot uint8

const (
	sayYes ballot = iota
	sayNo
	late
	sayGone // it has lost the key
)

func (b ballot) vote() mux.Vote {
	switch b {
	case sayYes:
		return mux.Vote{Verdict: mux.VerdictYes, Int: 1}
	case sayNo:
		return mux.Vote{Verdict: mux.VerdictNo}
	case sayGone:
		return mux.Vote{Verdict: mux.VerdictNo, Int: kind.Gone}
	}
	return mux.Vote{}
}

// A world says which of the algorithm's assumptions and rules hold.
type world struct {
	attempts, extends [2]uint8 // of each client
	crashes           uint8

	drift        time.Duration // that is allowed for
	downFor      uint8         // ticks after which a crashed master may be back, empty
	blindRelease bool          // a release deletes the key, whosever it is
	lateT1       bool          // the validity is counted from the decision
}

type modelState struct {
	masters [modelMasters]modelMaster
	clients [2]modelClient
	crashes uint8
}

type modelMaster struct {
	holder uint8 // token: client*16 + attempt + 1; 0 if the key is free
	left   uint8 // ticks until it expires
	early  bool  // it was made to expire a tick too early
	down   uint8 // ticks until it is back, plus one; 0 if it is up
	queue  [2][modelQueue]uint8
	vote   [2]ballot // of each client's round; late while it has not come
}

type modelClient struct {
	phase, attempt, extended uint8
	age                      uint8 // ticks since the round began
	left                     uint8 // ticks of validity
	interrupted              bool  // the other has taken the lock since
}

const ( // phases
	idle uint8 = iota
	acquiring
	holding
	extending
)

const ( // commands: kind, token's attempt above, and whether a vote is still wanted
	cmdSet uint8 = iota + 1
	cmdExtend
	cmdRelease
	cmdStale = 16
)

func (w *world) term() quorum.Term { return quorum.Term{TTL: modelTTL, Drift: w.drift} }

// violated reports whether both clients have a valid lock, or one that goes on
// with its lock has lost it to the other in between.
func (s *modelState) violated() bool {
	a, b := &s.clients[0], &s.clients[1]
	return a.left > 0 && (b.left > 0 || a.interrupted) || b.left > 0 && b.interrupted
}

// key packs a state, the same for all states that differ only in the order of
// the masters, which are alike.
func (s *modelState) key() [modelMasters + 1]uint64 {
	var key [modelMasters + 1]uint64
	for i := range s.masters {
		m := &s.masters[i]
		k := uint64(m.holder)<<4 | uint64(m.left)<<2
		if m.early {
			k |= 1
		}
		k = k<<3 | uint64(m.down)
		for c := range m.queue {
			k = k<<3 | uint64(m.vote[c])
			for _, cmd := range m.queue[c] {
				k = k<<5 | uint64(cmd)
			}
		}
		key[i] = k
	}
	slices.Sort(key[:modelMasters])
	for _, c := range s.clients {
		k := uint64(c.phase)<<2 | uint64(c.attempt)
		if k <<= 1; c.interrupted {
			k |= 1
		}
		key[modelMasters] = key[modelMasters]<<16 | k<<8 | uint64(c.extended)<<6 | uint64(c.age)<<3 | uint64(c.left)
	}
	key[modelMasters] = key[modelMasters]<<8 | uint64(s.crashes)
	return key
}

// send queues a command to all masters; false if one has no room for it.
func (s *modelState) send(client int, cmd uint8) bool {
	cmd |= s.clients[client].attempt << 2
	for i := range s.masters {
		q := &s.masters[i].queue[client]
		at := slices.Index(q[:], 0)
		if at < 0 {
			return false
		}
		for k := range q[:at] {
			q[k] |= cmdStale
		}
		q[at] = cmd
		s.masters[i].vote[client] = late
	}
	return true
}

// repair queues a set to each master that has said that the key is gone; false if one has no room for it.
func (s *modelState) repair(client int) bool {
	for i := range s.masters {
		q := &s.masters[i].queue[client]
		at := slices.Index(q[:], 0)
		switch {
		case s.masters[i].vote[client] != sayGone:
		case at < 0:
			return false
		default:
			q[at] = cmdSet | s.clients[client].attempt<<2 | cmdStale
		}
	}
	return true
}

func (s *modelState) votes(client int) []mux.Vote {
	votes := make([]mux.Vote, modelMasters)
	for i := range votes {
		votes[i] = s.masters[i].vote[client].vote()
	}
	return votes
}

// next calls visit with every state that can follow.
func (w *world) next(s modelState, visit func(modelState)) {
	for c := range s.clients {
		w.clientSteps(s, c, visit)
	}
	for i := range s.masters {
		w.masterSteps(s, i, visit)
	}
	// A tick.
	for i := range s.masters {
		m := &s.masters[i]
		if m.left > 0 {
			if m.left--; m.left == 0 {
				m.holder, m.early = 0, false
			}
		}
		if m.down > 1 {
			m.down--
		}
	}
	for i := range s.clients {
		c := &s.clients[i]
		if c.left > 0 {
			c.left--
		}
		if c.phase == acquiring || c.phase == extending {
			c.age = min(c.age+1, modelTTL)
		}
	}
	visit(s)
}

func (w *world) clientSteps(s modelState, i int, visit func(modelState)) {
	c := &s.clients[i]
	release := func(s modelState) { // whatever was, it is over
		c := &s.clients[i]
		if !s.send(i, cmdRelease|cmdStale) {
			return
		}
		*c = modelClient{attempt: c.attempt}
		visit(s)
	}
	begin := func(s modelState, phase, cmd uint8) {
		if s.send(i, cmd) {
			s.clients[i].phase, s.clients[i].age = phase, 0
			visit(s)
		}
	}
	switch c.phase {
	case idle:
		if c.attempt < w.attempts[i] {
			s.clients[i].attempt++
			begin(s, acquiring, cmdSet)
		}
	case acquiring:
		now, until := time.Duration(c.age), w.term().Until(0)
		if w.lateT1 {
			now = 0
		}
		if quorum.Count(s.votes(i), mux.ErrTimeout).Acquired(now, until) == nil {
			s.clients[i].phase, s.clients[i].left = holding, uint8(until-now)
			s.clients[i].age = 0
			s.clients[1-i].interrupted = s.clients[1-i].phase >= holding
			visit(s)
		} else {
			release(s) // given up, at any time
		}
	case holding:
		if c.extended < w.extends[i] && c.left > 0 {
			e := s
			e.clients[i].extended++
			begin(e, extending, cmdExtend)
		}
		release(s)
	case extending:
		now, until := time.Duration(c.age), w.term().Until(0)
		t := quorum.Count(s.votes(i), mux.ErrTimeout)
		limit := now + time.Duration(c.left)
		switch t.Extended(now, until, limit) {
		case nil:
			e := s
			e.clients[i].phase, e.clients[i].left, e.clients[i].age = holding, max(c.left, uint8(until-now)), 0
			if e.repair(i) {
				visit(e)
			}
		case ErrNotHeld:
			release(s)
		}
		e := s // no answer: the lock is what it was before
		e.clients[i].phase, e.clients[i].age = holding, 0
		visit(e)
		release(s)
	}
}

func (w *world) masterSteps(s modelState, i int, visit func(modelState)) {
	m := &s.masters[i]
	if m.down == 0 && s.crashes < w.crashes {
		e := s
		e.crashes++
		crashed := &e.masters[i]
		crashed.holder, crashed.left, crashed.early = 0, 0, false
		crashed.down = w.downFor + 1
		visit(e)
	}
	if m.down == 1 {
		e := s
		e.masters[i].down = 0
		visit(e)
	}
	if m.down > 0 {
		return
	}
	if m.left > 0 && !m.early { // its clock gains a tick on ours, once in a key's life
		e := s
		k := &e.masters[i]
		k.early = true
		if k.left--; k.left == 0 {
			k.holder, k.early = 0, false
		}
		visit(e)
	}
	for c := range s.clients {
		cmd := m.queue[c][0]
		if cmd == 0 {
			continue
		}
		e := s
		w.serve(&e.masters[i], c, cmd)
		visit(e)
	}
}

// serve has a master do a client's next command.
func (w *world) serve(m *modelMaster, client int, cmd uint8) {
	q := &m.queue[client]
	copy(q[:], q[1:])
	q[modelQueue-1] = 0
	token := uint8(client)<<4 + cmd&^cmdStale>>2 + 1
	vote := sayNo
	switch cmd & 3 {
	case cmdSet:
		if m.holder == 0 {
			m.holder, m.left, m.early = token, modelTTL, false
			vote = sayYes
		}
	case cmdExtend:
		switch m.holder {
		case token:
			m.left, m.early = modelTTL, false
			vote = sayYes
		case 0:
			vote = sayGone
		}
	case cmdRelease:
		if m.holder == token || w.blindRelease {
			m.holder, m.left, m.early = 0, 0, false
		}
	}
	if cmd&cmdStale == 0 {
		m.vote[client] = vote
	}
}

// search visits every state that can be reached, the nearest ones first, and returns how
// many there are and whether exclusion is broken in one. It stops there: such a state is
// near, if there is one.
func (w *world) search() (states int, broken bool) {
	seed, seen := maphash.MakeSeed(), map[uint64]struct{}{} // by hash: in one of a million searches two are taken for one
	for todo := []modelState{{}}; len(todo) > 0 && !broken; {
		farther := make([]modelState, 0, 2*len(todo))
		for _, s := range todo {
			w.next(s, func(e modelState) {
				broken = broken || e.violated()
				key, before := e.key(), len(seen)
				if seen[maphash.Comparable(seed, key)] = struct{}{}; len(seen) > before {
					farther = append(farther, e)
				}
			})
		}
		todo = farther
	}
	return len(seen), broken
}

var (
	once  = [2]uint8{1, 1}
	never = [2]uint8{}
	first = [2]uint8{1, 0} // only the first client
	twice = [2]uint8{2, 1} // ... the first twice
)

func sound(attempts, extends [2]uint8, crashes uint8) world {
	return world{attempts: attempts, extends: extends, crashes: crashes, drift: modelDrift, downFor: modelTTL}
}

func TestModelKeepsExclusion(t *testing.T) {
	t.Parallel()
	worlds := map[string]world{
		"contention":         sound(once, never, 0),
		"a crash":            sound(once, never, 1),
		"an extend":          sound(once, first, 0),
		"a second attempt":   sound(twice, never, 0),
		"an extend, a crash": sound(once, first, 1),
	}
	if _, n := seeds(t, 0); n == 0 { // histories are not asked for, and this takes longer than all others
		delete(worlds, "an extend, a crash")
	}
	for name, w := range worlds {
		t.Run(name, func(t *testing.T) {
			states, broken := w.search()
			require.False(t, broken)
			require.Greater(t, states, 100_000, "the search has not got far")
		})
	}
}

// A search that finds nothing is worth something only if it finds what is there.
func TestModelFindsWhatBreaksExclusion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		world
		change func(w *world)
	}{
		"a master is back at once, without its keys": {sound(once, never, 1), func(w *world) { w.downFor = 0 }},
		"drift is not allowed for":                   {sound(once, never, 0), func(w *world) { w.drift = 0 }},
		"time spent on the round is not counted":     {sound(once, never, 0), func(w *world) { w.lateT1 = true }},
		"a release deletes whatever is there":        {sound(twice, never, 0), func(w *world) { w.blindRelease = true }},
	} {
		t.Run(name, func(t *testing.T) {
			c.change(&c.world)
			_, broken := c.search()
			require.True(t, broken)
		})
	}
}
