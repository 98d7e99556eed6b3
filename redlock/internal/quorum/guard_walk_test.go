package quorum

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/stretchr/testify/require"
)

// A walk is a fleet to which anything happens, in any order. It remembers who may have taken locks, and what masters have
// really forgotten.
type walk struct {
	fleet
	*rand.Rand
	restart time.Duration
	durable bool
	full    bool // disks can be full: what is to be written is refused then
	masters []walked
	ttls    []time.Duration // of each process; 0 if it takes no locks
	skews   []time.Duration // of the processes' clocks
	gone    []bool          // processes that have ended
	said    []string        // what has happened
	wrong   string
}

// A walked master is what is true of one.
type walked struct {
	started, masterSince time.Duration
	skew                 time.Duration
	witness              []string                        // what has stood there
	taken                map[time.Duration]time.Duration // for each TTL, when a lock that it has was taken last
	lost                 map[time.Duration]time.Duration // ... and when such a lock ends that it has forgotten
	hangs                bool
	promoted             int
	copied               string // what stands there since it is a copy, which nobody has seen
}

func (w *walk) says(format string, args ...any) {
	w.said = append(w.said, fmt.Sprintf("%v ", w.now-1000*time.Hour)+fmt.Sprintf(format, args...))
}

// forgets has a master forget its locks.
func (w *walk) forgets(i int) {
	m := &w.masters[i]
	for ttl, at := range m.taken {
		m.lost[ttl] = max(m.lost[ttl], at+ttl)
	}
	clear(m.taken)
}

// votes reports whether a process counts a master's yes now. Nothing that the guard would tell is taken.
func (w *walk) votes(p, i int) bool {
	g := w.guards[p]
	at := g.places[i]
	st := g.Standing(i)
	g.places[i] = at
	return at.up && !st.Withheld && st.Until <= w.now
}

// locks has all processes that can take a lock take one. None may believe a master that has forgotten one.
func (w *walk) locks() {
	for p, ttl := range w.ttls {
		if ttl == 0 || w.gone[p] {
			continue
		}
		var with []int
		for i := range w.masters {
			if w.votes(p, i) && !w.masters[i].hangs {
				with = append(with, i)
			}
		}
		for _, i := range with {
			for of, until := range w.masters[i].lost {
				if of <= w.guards[p].LongestTTL() && w.now < until && w.wrong == "" && !w.full {
					w.wrong = fmt.Sprintf("%v: process %d believes master %d, which has forgotten a lock until %v", w.now-1000*time.Hour, p, i, until-1000*time.Hour)
				}
			}
		}
		if len(with) >= Majority(len(w.masters)) {
			for _, i := range with {
				w.masters[i].taken[ttl] = w.now
			}
		}
	}
}

// goOn has masters answer, in any order, and News be asked where it is due, until there is nothing left to say; or, if not
// all of it is to be, for a few answers.
func (w *walk) goOn(all bool) {
	for n := 0; ; n++ {
		if n > 2000 {
			w.wrong = "they ask and write in turn for ever"
			return
		}
		var with [][2]int
		for p, g := range w.guards {
			if w.gone[p] {
				continue
			}
			g.News(w.now)
			for i := range w.masters {
				if g.places[i].up && g.places[i].ask != nil && !w.masters[i].hangs {
					with = append(with, [2]int{p, i})
				}
			}
		}
		if len(with) == 0 || !all && n > 2 {
			break
		}
		of := with[w.IntN(len(with))]
		w.speak(of[0], of[1])
		w.locks()
	}
	w.locks()
}

func (w *walk) begin(ttl time.Duration, to ...int) {
	skew := w.skew(4)
	p := w.add(w.restart, w.durable, skew)
	w.ttls, w.skews, w.gone = append(w.ttls, 0), append(w.skews, skew), append(w.gone, false)
	w.says("process %d begins, ttl %v, skew %v, to %v", p, ttl, skew, to)
	w.meet(p, to...)
	w.use(p, ttl)
}

// skew is by how much a clock is wrong. One of so many is.
func (w *walk) skew(oneOf int) time.Duration {
	if w.IntN(oneOf) > 0 {
		return 0
	}
	return time.Duration(w.IntN(2*3600)-3600) * time.Second
}

func (w *walk) use(p int, ttl time.Duration) {
	if ttl > w.ttls[p] {
		w.guards[p].Use(ttl)
		w.guards[p].News(w.now)
		w.ttls[p] = ttl
	}
}

// meet connects a process to masters.
func (w *walk) meet(p int, to ...int) {
	for _, i := range to {
		m, s := &w.masters[i], &w.servers[i]
		if w.guards[p].places[i].up || m.hangs {
			continue
		}
		s.Uptime = (w.now - m.started).Truncate(time.Second)
		if s.Group != "" {
			s.MasterFor = w.now - max(m.started, m.masterSince)
		}
		s.Ahead = m.skew - w.skews[p]
		w.link(p, i)
	}
}

// some returns some of n, in any order.
func (w *walk) some(n int) []int {
	return w.Perm(n)[:w.IntN(n+1)]
}

// onward lets time pass, in the steps in which it is asked for news.
func (w *walk) onward(d time.Duration) {
	w.goOn(true)
	for end := w.now + d; w.now < end && w.wrong == ""; {
		next := end
		for p, g := range w.guards {
			if g.again > w.now && !w.gone[p] {
				next = min(next, g.again)
			}
		}
		w.now = min(next, w.now+5*time.Second)
		w.goOn(true)
	}
}

// tell reports whether, of the masters other than one, a majority tells everybody of locks that were taken, or nobody has taken
// one. What more of them forget nobody can know.
func (w *walk) tell(but int) bool {
	tell, any := 0, false
	for i, s := range w.servers {
		of, ok := parseWitness(s.Witness)
		any = any || len(w.masters[i].taken)+len(w.masters[i].lost) > 0
		if i != but && ok && of.used && s.Witness != w.masters[i].copied {
			tell++
		}
	}
	return !any || tell >= Majority(len(w.servers))
}

// happen has one thing happen.
func (w *walk) happen() {
	n := len(w.masters)
	i := w.IntN(n)
	m, s := &w.masters[i], &w.servers[i]
	p := w.IntN(len(w.guards))
	what := w.IntN(16)
	if forgets := []int{0, 1, 2, 4, 5, 6, 13}; slices.Contains(forgets, what) && !w.tell(i) {
		return
	}
	switch what {
	case 0, 1: // restarted, with its disk or without
		// A copy of another's disk tells nothing of itself, unless somebody has seen it.
		disk := w.IntN(2) == 0 && (s.Witness == "" || s.Witness != m.copied)
		w.fleet.restart(i, disk)
		s.ReplID2, m.started = "", w.now
		kept := disk && w.durable && !s.NoAOF
		if !kept {
			w.forgets(i)
		}
		if disk && !kept && len(m.witness) > 0 && w.IntN(3) == 0 { // what was saved some time ago
			s.Witness = m.witness[w.IntN(len(m.witness))]
		}
		w.says("master %d restarts, with its disk: %v, kept: %v", i, disk, kept)
	case 2: // flushed, which a master that tracks nothing does not tell
		if !s.Tracking {
			return
		}
		w.forgets(i)
		w.write(i, "", pushAll)
		w.says("master %d is flushed", i)
		if w.restart == 0 {
			w.locks()
			w.onward(flushedWithin + time.Second) // else it may be all that are
		}
	case 3: // all are, at once
		hangs := func(m walked) bool { return m.hangs }
		tellsNothing := func(s conn.Server) bool { return !s.Tracking }
		if w.restart != 0 || slices.ContainsFunc(w.masters, hangs) || slices.ContainsFunc(w.servers, tellsNothing) {
			return
		}
		w.says("all are flushed")
		for i := range w.masters {
			clear(w.masters[i].taken)
			clear(w.masters[i].lost)
			w.write(i, "", pushAll)
		}
		w.onward(flushedWithin + time.Second)
	case 4: // it was a replica for a moment, of a master that has had nothing, or something else
		w.forgets(i)
		m.promoted++
		s.ReplID2, s.ReplID = s.ReplID, fmt.Sprintf("%sp%d", s.ReplID, m.promoted)
		text := ""
		if w.IntN(2) == 0 {
			text = w.servers[(i+1)%n].Witness
		}
		w.says("master %d was a replica", i)
		if !s.Tracking || w.IntN(2) == 0 {
			w.cutAll(i)
		}
		m.copied = text
		w.write(i, text, pushAll)
	case 5: // a spare takes its place
		w.cutAll(i)
		w.forgets(i)
		old := *s
		m.promoted++
		s.Endpoint, s.RunID, s.ReplID, s.ReplID2 = fmt.Sprint(s.Endpoint, "s"), fmt.Sprintf("spare%d-%d", i, m.promoted), fmt.Sprintf("spares%d-%d", i, m.promoted), ""
		s.Witness, m.started, m.skew, m.witness = "", w.now-time.Duration(w.IntN(1000))*time.Second, 0, nil
		for p := range w.guards {
			w.linked[p][i] = conn.Server{Endpoint: old.Endpoint}
		}
		w.says("master %d is replaced", i)
	case 6: // a stranger writes to the witness, or deletes it
		w.says("master %d has a stranger's witness", i)
		w.write(i, []string{"", "x", "1 a b"}[w.IntN(3)], pushWitness)
		if w.restart == 0 {
			w.onward(flushedWithin + time.Second)
		}
	case 7: // of who has lost all, nothing is left by then that tells the next process: that is not looked at
		if !w.full {
			return
		}
		w.refuse = !w.refuse
		w.says("writes are refused: %v", w.refuse)
	case 8:
		m.hangs = !m.hangs
		w.says("master %d hangs: %v", i, m.hangs)
	case 9:
		w.says("process %d is cut off from master %d", p, i)
		w.cut(p, i)
	case 10:
		if len(w.guards) < 6 {
			w.begin([]time.Duration{0, fleetTTL, fleetTTL, 2 * fleetTTL}[w.IntN(4)], w.some(n)...)
		}
	case 11:
		if len(w.guards) > 1 && w.IntN(2) == 0 {
			w.says("process %d ends", p)
			for i := range w.masters {
				w.cut(p, i)
			}
			w.gone[p] = true
		}
	case 12:
		w.says("process %d uses a longer TTL", p)
		if !w.gone[p] {
			w.use(p, []time.Duration{fleetTTL, 2 * fleetTTL}[w.IntN(2)])
		}
	case 13: // a copy takes its place, which lacks what came last
		w.cutAll(i)
		w.forgets(i)
		m.promoted++
		s.RunID, s.ReplID, s.ReplID2 = fmt.Sprintf("copy%d-%d", i, m.promoted), fmt.Sprintf("copies%d-%d", i, m.promoted), s.ReplID
		m.started, m.masterSince = w.now-time.Duration(w.IntN(1000))*time.Second, w.now
		m.copied = s.Witness
		w.says("a copy of master %d is promoted", i)
	case 14, 15:
		d := []time.Duration{10 * time.Millisecond, time.Second, 5 * time.Second, 20 * time.Second, 40 * time.Second, 10 * time.Minute}[w.IntN(6)]
		w.onward(d)
	}
	for p := range w.guards { // who is cut off comes back, at once or later
		if !w.gone[p] && w.IntN(2) == 0 {
			w.meet(p, w.some(n)...)
		}
	}
	w.goOn(w.IntN(2) == 0)
	for i := range w.masters {
		if m, s := &w.masters[i], &w.servers[i]; s.Witness != "" && !slices.Contains(m.witness, s.Witness) {
			m.witness = append(m.witness, s.Witness)
		}
	}
}

// Whatever happens to masters and processes, in any order: nobody believes a master that has forgotten a lock which could be
// valid, and when all has been quiet for long enough, everybody believes all.
func TestWhateverHappensNobodyBelievesAMasterThatHasForgotten(t *testing.T) {
	t.Parallel()
	const seed, walks = 1, 400
	for n := range walks {
		w := &walk{fleet: *newFleet(3 + 2*(n%2)), Rand: rand.New(rand.NewPCG(seed, uint64(n)))}
		switch w.IntN(3) {
		case 1:
			w.restart = fleetGuard
		case 2:
			w.restart, w.durable = fleetGuard, true
		}
		w.full = w.IntN(4) == 0
		groups := w.IntN(3) == 0
		for i := range w.servers {
			m := walked{started: w.now - w.servers[i].Uptime, taken: map[time.Duration]time.Duration{}, lost: map[time.Duration]time.Duration{}}
			m.skew = w.skew(5)
			w.servers[i].NoAOF, w.servers[i].Tracking = w.IntN(4) == 0, w.IntN(4) > 0
			if groups { // sentinels watch them
				w.servers[i].Group = fmt.Sprint("group", i)
			}
			w.masters = append(w.masters, m)
		}
		w.begin(fleetTTL, w.some(len(w.servers))...)
		for range 40 {
			if w.happen(); w.wrong != "" {
				break
			}
		}
		w.refuse = false
		for i := range w.masters {
			w.masters[i].hangs = false
		}
		for p := range w.guards {
			if !w.gone[p] {
				w.meet(p, w.Perm(len(w.masters))...)
			}
		}
		w.onward(5 * time.Minute)
		for p := range w.guards {
			for i := range w.masters {
				if w.ttls[p] != 0 && !w.gone[p] && w.wrong == "" && !w.votes(p, i) {
					w.wrong = fmt.Sprintf("process %d does not believe master %d", p, i)
				}
			}
		}
		require.Empty(t, w.wrong, "walk %d of seed %d: %d masters, restart guard %v, durable %v\n%s", n, seed, len(w.masters), w.restart, w.durable,
			strings.Join(w.said, "\n"))
	}
}
