package quorum

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/resp/resptest"
	"github.com/stretchr/testify/require"
)

// The model of internal/quorum/guard.go without a RestartGuard: all states of a few masters and processes, each of which has a
// guard as it is in the code. The time stands still: no TTL ends, so that a lock that was taken is held, and who must
// wait for a TTL never votes. Two that hold the lock at once are a fault, and so is one who waits without a cause.

// A contactMaster is what a master has.
type contactMaster struct {
	up      bool
	run     int
	witness string
	holder  byte // 0 if the lock is free
}

// A contactProcess is a client. What it is sent comes in order, one queue for each master.
type contactProcess struct {
	started bool
	list    []int // the masters that its places lead to
	guard   Guard
	links   [3]contactLink
	asked   [3]bool // for the lock
	yes     [3]bool // it has said yes, which may be withheld
	counts  [3]bool
	holds   bool
}

type contactLink struct {
	up     bool
	run    int
	server conn.Server
	queue  []string // pushes and answers: "flush", "key", "=witness", "yes", "no"
	tracks bool
	sent   []byte // a question that the master has not carried out
}

type contact struct {
	masters [4]contactMaster
	procs   [2]contactProcess
	runs    int
	faults  int  // that may still happen
	prompt  bool // what befalls the first process happens first, too
}

const contactTTL = time.Hour

func (p *contactProcess) init() {
	g := &p.guard
	g.key = "{}:since"
	g.places = make([]place, 3)
	g.wall = func() time.Duration { return time.Hour * 24 * 365 * 56 }
	g.refusal = func(said string) string { return said }
	g.at = 1000 * time.Hour
}

// clone copies a state. The births' names go on from where they were.
func (m *contact) clone() *contact {
	c := &contact{masters: m.masters, runs: m.runs, faults: m.faults, prompt: m.prompt}
	for i := range m.procs {
		p, q := &m.procs[i], &c.procs[i]
		q.started, q.list, q.links, q.asked, q.yes, q.counts, q.holds = p.started, p.list, p.links, p.asked, p.yes, p.counts, p.holds
		for j := range q.links {
			q.links[j].queue = append([]string(nil), p.links[j].queue...)
		}
		q.init()
		q.guard.places = append([]place(nil), p.guard.places...)
		q.guard.inUse, q.guard.news, q.guard.at, q.guard.heeded = p.guard.inUse, p.guard.news, p.guard.at, p.guard.heeded
		q.guard.longest.Store(p.guard.longest.Load())
		q.guard.name = func() string { return string(rune('P' + i)) }
	}
	return c
}

// key is the state as bytes. It leaves out what follows from the rest.
func (m *contact) key() []byte {
	b := make([]byte, 0, 1024)
	flag := func(all ...bool) {
		for _, f := range all {
			if f {
				b = append(b, '1')
			} else {
				b = append(b, '0')
			}
		}
	}
	text := func(all ...string) {
		for _, s := range all {
			b = append(append(b, s...), '|')
		}
	}
	for i := range m.masters {
		a := &m.masters[i]
		flag(a.up)
		b = append(b, byte(a.run), a.holder)
		text(a.witness)
	}
	b = append(b, byte(m.faults))
	for i := range m.procs {
		p := &m.procs[i]
		flag(p.started, p.holds, p.guard.active(), p.guard.inUse)
		flag(p.asked[:]...)
		flag(p.yes[:]...)
		flag(p.counts[:]...)
		for j := range p.links {
			l, g := &p.links[j], &p.guard.places[j]
			flag(l.up, l.tracks, l.sent != nil, g.up, g.from == forgotNothing, g.lost != "", g.distrust, g.afresh, g.member, g.flushed != 0, g.settled, g.decided, g.told, g.unnamed, g.heard == "")
			b = append(b, byte(l.run), byte(g.reading), byte(g.number), byte(p.list[j]))
			text(l.queue...)
			text(g.text, g.wrote, g.had, g.birth)
		}
	}
	return b
}

// settle has the mux's part done: what is to be asked is sent, and what was withheld counts, or does not.
func (p *contactProcess) settle() {
	p.guard.News(p.guard.at)
	for j := range p.links {
		st := p.guard.Standing(j)
		l := &p.links[j]
		if !l.up {
			p.yes[j] = false
			continue
		}
		if st.Ask != nil {
			l.sent = st.Ask
		}
		barred := st.Until > p.guard.at
		if p.yes[j] && !st.Withheld {
			p.counts[j], p.yes[j] = !barred || p.counts[j], false
		}
	}
	n := 0
	for j := range p.counts {
		if p.counts[j] {
			n++
		}
	}
	p.holds = p.holds || n >= 2
}

// begin has a process take its first lock.
func (m *contact) begin(i int) {
	g := &m.procs[i].guard
	g.longest.Store(int64(contactTTL))
	g.at += 2 * flushedWithin
	g.heed(contactTTL, g.at)
	m.procs[i].settle()
}

// disconnect ends the connections to a master.
func (m *contact) disconnect(master int) {
	for i := range m.procs {
		p := &m.procs[i]
		for j := range p.links {
			if p.started && p.list[j] == master && p.links[j].up {
				p.links[j] = contactLink{}
				p.yes[j] = false // a vote that was not counted fails; one that was stays
				p.guard.Disconnected(j)
				p.settle()
			}
		}
	}
}

// change has a master's witness be another, and tells those that track it, but for the one who does it.
func (m *contact) change(master int, text, push string) {
	m.masters[master].witness = text
	for i := range m.procs {
		p := &m.procs[i]
		for j := range p.links {
			if l := &p.links[j]; p.started && l.up && p.list[j] == master && (l.tracks || push == "flush") {
				l.queue = append(l.queue, push)
				l.tracks = false
			}
		}
	}
}

// next returns all states that follow, with what has happened. What can happen at the master that is prompt happens first, in
// one order.
func (m *contact) next(fault func(m *contact, add func(string, *contact))) map[string]*contact {
	all := map[string]*contact{}
	add := func(what string, c *contact) { all[what] = c }
	for i := range m.procs {
		for j := range m.procs[i].links {
			if j != contactPrompt && (i != 0 || !m.prompt) {
				continue
			}
			if m.at(i, j, add); len(all) > 0 {
				return all
			}
		}
	}
	for i := range m.procs {
		p := &m.procs[i]
		name := string(rune('P' + i))
		if !p.started {
			continue
		}
		if !p.guard.active() {
			c := m.clone()
			c.begin(i)
			add(fmt.Sprint(name, " begins"), c)
		}
		for j := range p.links {
			if j != contactPrompt {
				m.at(i, j, add)
			}
		}
	}
	fault(m, add)
	return all
}

// contactPrompt is the master whose part is not looked at in each order.
const contactPrompt = 1

// at adds what a process and a master may do next.
func (m *contact) at(i, j int, add func(string, *contact)) {
	p, name := &m.procs[i], string(rune('P'+i))
	if !p.started {
		return
	}
	l, at := &p.links[j], p.list[j]
	master := &m.masters[at]
	switch {
	case !l.up && master.up && len(l.queue) == 0:
		c := m.clone()
		q := &c.procs[i]
		before := l.server
		now := conn.Server{Endpoint: fmt.Sprint("m", at), RunID: fmt.Sprint(master.run), Role: "master", Within: 1,
			Witness: master.witness, Witnessed: true, Tracking: true}
		if p.guard.places[j].known != 0 {
			before = p.guard.places[j].server
		}
		q.links[j] = contactLink{up: true, run: master.run, server: now, tracks: true}
		q.guard.Connected(j, before, now, q.guard.at)
		q.settle()
		add(fmt.Sprint(name, " connects ", at), c)
	case !l.up:
	default:
		if l.sent != nil { // the master carries it out; what it has told before is read first, and then the answer
			c := m.clone()
			q := &c.procs[i]
			args := contactArgs(l.sent)
			q.links[j].sent = nil
			if args[0] == "EVAL" && master.witness == args[4] {
				c.change(at, args[5], "key")
			}
			for _, what := range append(q.links[j].queue, "="+c.masters[at].witness) {
				q.read(j, what)
			}
			q.links[j].queue, q.links[j].tracks = nil, true
			q.settle()
			add(fmt.Sprint(at, " answers ", name), c)
		} else if len(l.queue) > 0 {
			c := m.clone()
			q := &c.procs[i]
			q.read(j, l.queue[0])
			q.links[j].queue = q.links[j].queue[1:]
			q.settle()
			add(fmt.Sprint(name, " reads ", l.queue[0], " of ", at), c)
		}
		if p.guard.active() && !p.asked[j] && l.sent == nil {
			c := m.clone()
			q := &c.procs[i]
			q.asked[j] = true
			answer := "no"
			if h := c.masters[at].holder; h == 0 || h == byte('P'+i) {
				c.masters[at].holder = byte('P' + i)
				answer = "yes"
			}
			// In quarantine it is asked nothing.
			if st := q.guard.Standing(j); st.Until > q.guard.at {
				return
			}
			q.links[j].queue = append(q.links[j].queue, answer)
			add(fmt.Sprint(name, " asks ", at, " for the lock"), c)
		}
	}
}

// read has a process read what a master has told it.
func (p *contactProcess) read(j int, what string) {
	switch what {
	case "flush":
		p.guard.Push(j, pushAll, p.guard.at)
	case "key":
		p.guard.Push(j, pushWitness, p.guard.at)
	case "yes":
		p.yes[j] = true
	case "no":
	default:
		s := p.links[j].server
		s.Witness = what[1:]
		p.guard.answer(j, s, p.guard.at)
	}
}

// contactArgs returns the words of the first of several commands that is no CLIENT.
func contactArgs(sent []byte) []string {
	for {
		first := resptest.Parse(sent)
		var args []string
		elems := first.Elems()
		for v, ok := elems.Next(); ok; v, ok = elems.Next() {
			args = append(args, string(v.Bytes()))
		}
		if args[0] != "CLIENT" {
			return args
		}
		sent = sent[len(first.Raw()):]
	}
}

// exploreContacts visits all states that follow from one, depth first, and returns how many there were. seen says what is
// wrong with one. Of a state that was seen its digest alone is kept.
func exploreContacts(from *contact, fault func(m *contact, add func(string, *contact)),
	seen func(m *contact, last bool) string) (states int, wrong string, path []string) {
	type visit struct {
		m     *contact
		depth int
		what  string
	}
	known := map[[16]byte]struct{}{}
	todo := []visit{{from, 0, ""}}
	for len(todo) > 0 {
		v := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		path = append(path[:v.depth], v.what)
		next := v.m.next(fault)
		if wrong := seen(v.m, len(next) == 0); wrong != "" {
			return len(known), wrong, path
		}
		for what, m := range next {
			h := fnv.New128a()
			h.Write(m.key())
			var k [16]byte
			h.Sum(k[:0])
			if _, is := known[k]; !is {
				known[k] = struct{}{}
				todo = append(todo, visit{m, v.depth + 1, what})
			}
		}
	}
	return len(known), "", nil
}

func newContact(down int, started ...int) *contact {
	m := &contact{runs: 3}
	for i := range 3 {
		m.masters[i] = contactMaster{up: i != down, run: i + 1}
	}
	for i := range m.procs {
		m.procs[i].init()
		m.procs[i].list = []int{0, 1, 2}
	}
	m = m.clone()
	for _, i := range started {
		m.procs[i].started = true
	}
	return m
}

// Nobody who starts masters and tries the library waits, also with one of them down, and if two processes begin at once.
func TestModelNobodyWaitsForNewMasters(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]*contact{
		"one is down": newContact(2, 0, 1),
		"all are up":  newContact(-1, 0),
	} {
		for i := range m.procs {
			m.begin(i)
		}
		n, wrong, path := exploreContacts(m, func(*contact, func(string, *contact)) {}, func(m *contact, last bool) string {
			for i := range m.procs {
				votes := 0
				for j := range m.procs[i].links {
					p := &m.procs[i].guard.places[j]
					if p.up && p.settled && m.procs[i].guard.inUse && p.from == forgotNothing {
						votes++
					}
				}
				if last && m.procs[i].started && votes < 2 {
					return fmt.Sprint(i, " waits")
				}
			}
			return ""
		})
		t.Log(name, n, "states")
		require.Empty(t, wrong, strings.Join(path, "\n"))
	}
}

// goes has a state go on, by what happens whose name begins so, until none of it is left.
func (m *contact) goes(t *testing.T, what ...string) *contact {
	t.Helper()
	for again := true; again; {
		again = false
		for name, next := range m.next(func(*contact, func(string, *contact)) {}) {
			if slices.ContainsFunc(what, func(w string) bool { return strings.Contains(name, w) }) {
				m, again = next, true
				break
			}
		}
	}
	return m
}

// forgets has a master be flushed, or be another process that has nothing.
func forgets(restarts bool, masters ...int) func(m *contact, add func(string, *contact)) {
	return func(m *contact, add func(string, *contact)) {
		for _, i := range masters {
			if m.faults == 0 {
				return
			}
			c := m.clone()
			c.faults--
			c.masters[i].holder = 0
			if restarts {
				c.runs++
				c.masters[i].run, c.masters[i].witness = c.runs, ""
				c.disconnect(i)
			} else {
				c.change(i, "", "flush")
			}
			add(fmt.Sprint(i, " forgets"), c)
		}
	}
}

// A master forgets all that it has, in its process or by a restart, at any moment: nobody has the lock beside another. One
// of the processes may have been connected before anybody used the masters, and be idle since.
func TestModelWhoHasForgottenGivesNoSecondLock(t *testing.T) {
	t.Parallel()
	for _, restarts := range []bool{false, true} {
		for name, first := range map[string]func() *contact{
			"one is idle": func() *contact {
				m := newContact(-1, 0, 1).goes(t, "connects")
				m.begin(0)
				return m.goes(t, " answers P", "P reads")
			},
			"one comes": func() *contact {
				m := newContact(-1, 0)
				m.begin(0)
				m = m.goes(t, "connects", "answers").goes(t, "reads")
				m.procs[1].started = true
				return m
			},
		} {
			m := first()
			m.faults, m.prompt = 1, true
			n, wrong, path := exploreContacts(m, forgets(restarts, 2), func(m *contact, _ bool) string {
				if m.procs[0].holds && m.procs[1].holds {
					return "two hold it"
				}
				return ""
			})
			t.Log(name, restarts, n, "states")
			require.Empty(t, wrong, name+strings.Join(path, "\n"))
		}
	}
}
