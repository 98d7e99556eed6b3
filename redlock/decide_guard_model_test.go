package redlock

import (
	"fmt"
	"hash/fnv"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/stretchr/testify/require"
)

// The model of decide_guard.go without a RestartGuard: all states of a few masters and processes, each of which has a
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
	guard   guard
	links   [3]contactLink
	asked   [3]bool // for the lock
	yes     [3]bool // it has said yes, which may be withheld
	counts  [3]bool
	holds   bool
	tries   bool
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
	faults  int // that may still happen
}

const contactTTL = time.Hour

func (p *contactProcess) init() {
	g := &p.guard
	g.key = "{}:since"
	g.places = make([]place, 3)
	g.wall = func() time.Duration { return time.Hour * 24 * 365 * 56 }
	g.refusal = func(said string) string { return said }
	g.longest.Store(int64(contactTTL))
	g.heeded = contactTTL
	g.at = 1000 * time.Hour
}

// clone copies a state. The births' names go on from where they were.
func (m *contact) clone() *contact {
	c := &contact{masters: m.masters, runs: m.runs, faults: m.faults}
	for i := range m.procs {
		p, q := &m.procs[i], &c.procs[i]
		q.started, q.list, q.links, q.asked, q.yes, q.counts, q.holds, q.tries = p.started, p.list, p.links, p.asked, p.yes, p.counts, p.holds, p.tries
		for j := range q.links {
			q.links[j].queue = append([]string(nil), p.links[j].queue...)
		}
		q.init()
		q.guard.places = append([]place(nil), p.guard.places...)
		q.guard.inUse, q.guard.news, q.guard.at = p.guard.inUse, p.guard.news, p.guard.at
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
		flag(p.started, p.holds, p.tries, p.guard.inUse)
		flag(p.asked[:]...)
		flag(p.yes[:]...)
		flag(p.counts[:]...)
		for j := range p.links {
			l, g := &p.links[j], &p.guard.places[j]
			flag(l.up, l.tracks, l.sent != nil, g.up, g.from == forgotNothing, g.lost != "", g.distrust, g.afresh, g.member, g.flushed != 0, g.settled, g.decided)
			b = append(b, byte(l.run), byte(g.reading), byte(g.number), byte(p.list[j]))
			text(l.queue...)
			text(g.text, g.wrote, g.had, g.birth)
		}
	}
	return b
}

// settle has the mux's part done: what is to be asked is sent, and what was withheld counts, or does not.
func (p *contactProcess) settle() {
	p.guard.News()
	for j := range p.links {
		st := p.guard.Standing(j)
		l := &p.links[j]
		if !l.up {
			p.yes[j], p.counts[j] = false, false
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

// next returns all states that follow, with what has happened.
func (m *contact) next(fault func(m *contact, add func(string, *contact))) map[string]*contact {
	all := map[string]*contact{}
	add := func(what string, c *contact) { all[what] = c }
	for i := range m.procs {
		p := &m.procs[i]
		name := string(rune('P' + i))
		if !p.started {
			continue
		}
		for j := range p.links {
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
				if p.tries && !p.asked[j] && l.sent == nil {
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
						continue
					}
					q.links[j].queue = append(q.links[j].queue, answer)
					add(fmt.Sprint(name, " asks ", at, " for the lock"), c)
				}
			}
		}
	}
	fault(m, add)
	return all
}

// read has a process read what a master has told it.
func (p *contactProcess) read(j int, what string) {
	switch what {
	case "flush":
		p.guard.push(j, contactNull, p.guard.at)
	case "key":
		p.guard.push(j, contactKey, p.guard.at)
	case "yes":
		p.yes[j] = true
	case "no":
	default:
		p.guard.answered(j, what[1:], false, p.guard.at)
	}
}

var (
	contactNull = parse([]byte("_\r\n"))
	contactKey  = parse([]byte("*1\r\n$8\r\n{}:since\r\n"))
)

// contactArgs returns the words of the first of several commands that is no CLIENT.
func contactArgs(sent []byte) []string {
	for {
		first := parse(sent)
		if args := words(first.Raw()); args[0] != "CLIENT" {
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
	for _, i := range started {
		m.procs[i].started = true
	}
	return m.clone()
}

// Nobody who starts masters and tries the library waits, also with one of them down, and if two processes begin at once.
func TestModelNobodyWaitsForNewMasters(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]*contact{
		"one is down": newContact(2, 0, 1),
		"all are up":  newContact(-1, 0),
	} {
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
