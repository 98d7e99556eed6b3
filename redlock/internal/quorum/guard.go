package quorum

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp"
)

// A Guard decides which masters must not vote because they may have forgotten locks.
//
// The rule is Redlock's own ("Performance, crash recovery and fsync"): an instance that comes back takes
// part again when every lock that it may have held has expired. In Redlock the instance has to stay away
// by itself. Here the client does not count its vote.
//
// Since when a master has forgotten nothing its [witness] says. There is one rule for restarts, new disks, spares,
// newcomers, failovers and flushes: a master votes when its process has been known for the guard. That is
// Config.RestartGuard, or else the longest TTL that this client uses. Two need not wait:
//
//   - With Config.Durable, a master of which only the process is new. It needs to be born for that long.
//   - Without a RestartGuard, one that was the first there. No lock is taken before more than half of the masters have
//     a witness that says that the list is used. So if one of each such half was reached and none says so, no lock was
//     taken, and a master that has no witness then has forgotten none. With a RestartGuard, its uptime counts.
//
// A list is used as soon as any witness says so, or this client remembers. If all masters that it has known were
// flushed at once (flushedWithin), in the processes that it knew, the list is a new one: so a test suite does it. One
// of them that is down, or was restarted, is none that was flushed.
//
// Who has no right to the witness goes by what it has seen itself, and by the uptime. Where it may be read and cannot be
// written, as on a disk that is full, what was read counts: a master that voted before does so still.
//
// All but Use is called with the mux locked, and is pure: it is given the time.
type Guard struct {
	restart time.Duration            // Config.RestartGuard
	durable bool                     // Config.Durable
	key     string                   // of the witness
	refusal func(said string) string // for Server.Missing
	unknown string                   // why a master has no vote whose process is new to all

	longest atomic.Int64 // the longest TTL that the client uses
	raised  func()       // called with each longer TTL; may be nil
	raising sync.Mutex   // held while raised is called; no hook takes it
	used    atomic.Int64 // longest, once raised has returned

	places []place
	inUse  bool          // this client has found more than half of the masters marked as used
	seen   bool          // ... or one, which may be down by now
	news   bool          // something has happened since News
	heeded time.Duration // longest, at the last News
	at     time.Duration // of the latest event
	again  time.Duration // when News is to be asked again; 0 if it need not be
	wall   func() time.Duration
	name   func() string // a name that nothing else has
}

// flushedWithin is how far apart the flushes of all masters are if they are one: a command to each takes its time, and a
// master that has no CPU tells of it late.
const flushedWithin = 3 * time.Second

// AskAgain is after how long a witness that could not be read or written is tried again, and one that hangs is not
// waited for.
const AskAgain = time.Second

// forgotNothing is when a master has forgotten something that has forgotten nothing.
const forgotNothing = -clock.Forever

// uptimeError is the most by which a server can overstate its uptime, which it computes from two times in whole
// seconds.
const uptimeError = time.Second

// A reading is what is known of a master's witness on its connection.
type reading uint8

const (
	witnessUnread  reading = iota // it was not read, or has changed since
	witnessAsked                  // a question is under way
	witnessRead                   // it was read, and its change will be told
	witnessRefused                // the master lets us not, or cannot tell itself from others
)

// A place is what a guard knows of one master. Times are on the clock of the process.
type place struct {
	// On its connection.
	up       bool
	met      time.Duration // when it was made
	server   conn.Server   // what it has said
	reading  reading
	text     string // the witness; empty if there is none
	w        witness
	ok       bool          // text is one
	since    time.Duration // w's, as it was read
	born     time.Duration
	wanted   witness       // what is to stand there
	decided  bool          // ... if that is known
	settled  bool          // ... and it stands there
	wrote    string        // what is being written
	refused  time.Duration // when it was last refused though it may be read; 0 if it was not
	ask      []byte        // to be sent
	asked    []inquiry     // ... or sent, and not answered
	sent     time.Duration // when the witness was last asked for
	unnamed  bool          // it is to say who it is: it has lost all that it had, or the witness names it otherwise
	heard    string        // the witness that named it otherwise when it has said so last
	told     bool          // the witness has changed, or all was lost, since it was read
	swept    bool          // all was lost since it was read
	forgot   bool          // it may have forgotten what it has said yes to, and the mux is to be told
	failed   time.Duration // when it answered with an error first; 0 if it did not
	missing  string        // to be shown
	distrust bool          // we know that it may have forgotten locks, and the witness may not
	afresh   bool          // all were flushed: what others have left there meanwhile does not count

	// Beyond it.
	from    time.Duration // it may have forgotten what was before; forgotNothing if it has forgotten nothing
	why     string        // ... and why
	known   time.Duration // this process has been known to us since then, without a break in what it tells
	lost    string        // ... and only since then, as we have seen ourselves; empty if we met it then
	own     time.Duration // from, by our own word alone
	member  bool          // we have known it to have a witness
	had     string        // the process whose witness we have known to stand
	number  int64         // the most births that we have known of it
	birth   string        // ... and the latest
	flushed time.Duration // when its witness was gone, as far as is known; 0 if it was not
}

// Init makes the guard of a client that has so many masters, with the key of their witnesses. wall is the wall clock, and
// name makes names that nothing else has.
func (g *Guard) Init(masters int, restart time.Duration, durable bool, with conn.Options, wall func() time.Duration, name func() string) {
	g.restart, g.durable, g.key, g.refusal = restart, durable, with.Witness, with.WithoutWitness
	g.places = make([]place, masters)
	long := "long"
	if restart > 0 {
		long = fmt.Sprintf("the RestartGuard, %v", restart)
	}
	g.unknown = "nobody has known its process for " + long + ": it was started, flushed, or put in the place of another"
	g.wall, g.name = wall, name
}

// OnRaise sets what is called with each longer TTL. It comes before the first Use.
func (g *Guard) OnRaise(raised func()) { g.raised = raised }

// Use notes a TTL. A master that was connected before this client used such a long TTL may have forgotten locks of
// other clients that did.
//
// When Use returns, no such master votes. So a second caller with the same TTL waits for the first.
func (g *Guard) Use(ttl time.Duration) {
	if int64(ttl) <= g.used.Load() {
		return
	}
	g.raising.Lock()
	defer g.raising.Unlock()
	if int64(ttl) <= g.used.Load() {
		return
	}
	g.longest.Store(int64(ttl)) // for masters that are connected from now on
	if g.raised != nil {
		g.raised() // for masters that are connected already
	}
	g.used.Store(int64(ttl))
}

func (g *Guard) LongestTTL() time.Duration {
	return max(time.Duration(g.longest.Load()), g.restart)
}

// Connected is [mux.Keeper]'s.
func (g *Guard) Connected(i int, before, now conn.Server, at time.Duration) {
	p := &g.places[i]
	g.at, g.news = at, true
	lost := forgot(before, now)
	was := *p
	*p = place{up: true, server: now, met: at}
	if now.Group != "" || before.Endpoint == "" || before.Endpoint == now.Endpoint { // it is no other's place
		p.member, p.had, p.number, p.birth = was.member, was.had, was.number, was.birth
	}
	switch {
	case before.Endpoint == "" && lost == "":
		p.known, p.own = at, forgotNothing
		if g.restart > 0 {
			p.own, p.why = g.byUptime(now, at)
		}
		p.from = p.own
	case lost != "":
		p.lose(lost, at)
		p.distrust = !differ(before.RunID, now.RunID)
	default:
		p.known, p.own, p.from, p.why, p.lost, p.flushed, p.refused = was.known, was.own, was.from, was.why, was.lost, was.flushed, was.refused
		if p.had == "" { // no witness tells that it was not flushed in between
			p.known = at
		}
	}
	switch {
	case now.Witnessed && (now.RunID == "" || now.Cluster && now.Epoch == ""): // it would name nobody
		p.reading = witnessRefused
	case now.Witnessed && !now.WitnessChanged:
		g.read(p, now.Witness, false)
	case now.Witnessed:
		p.told, p.unnamed = true, true
	case !now.Witnessed:
		p.reading = witnessRefused
	}
	p.refused = 0
	g.step()
}

// lose notes that a master may have forgotten locks, as we have seen ourselves.
func (p *place) lose(why string, at time.Duration) {
	p.known, p.own, p.from, p.why, p.lost = at, at, at, why, why
	p.had = "" // what has become of the witness is no flush
	p.forgot = true
}

// Disconnected notes that a connection has ended.
func (g *Guard) Disconnected(i int) {
	g.places[i].up, g.news = false, true
	g.step()
}

// Push heeds a push: the witness may have changed, or, if the key is nil, all that the master had was lost. So it is by a
// FLUSHALL, and by a master that was a replica for a moment, and has got what another had.
func (g *Guard) Push(i int, key []byte, at time.Duration) {
	p, all := &g.places[i], key == nil
	if !p.up || !all && string(key) != g.key {
		return
	}
	g.at, g.news = at, true
	p.told = true
	if all {
		p.unnamed, p.swept, p.forgot, p.known = true, true, true, at
	}
	switch {
	case p.reading == witnessRead:
		p.reading = witnessUnread
	case p.reading == witnessRefused && all && p.member: // it was not refused before
		g.wasFlushed(p)
		p.reading = witnessUnread
	case p.reading == witnessAsked && p.wrote != "" && all: // what is being written may find nothing there once more
		p.distrust = true
		g.wasFlushed(p)
	}
	g.step()
}

// Answered is [mux.Keeper]'s.
func (g *Guard) Answered(i int, v resp.Value, at time.Duration) {
	text := string(v.Bytes())
	if v.IsError() {
		text = conn.ErrorCode(v) // the rest may quote anything
	}
	g.answered(i, text, v.IsError(), at)
}

func (g *Guard) answered(i int, text string, failed bool, at time.Duration) {
	p := &g.places[i]
	q := p.asked[0]
	if p.asked = p.asked[1:]; q == asksNothing {
		return
	}
	g.at, g.news = at, true
	if q == asksWitness {
		g.toldWitness(p, text, failed)
	} else {
		p.toldWho(text, failed, at)
	}
	g.step()
}

// toldWho takes what a server says of itself now.
func (p *place) toldWho(text string, failed bool, at time.Duration) {
	now := p.server
	now.Heed([]byte(text))
	why := forgot(p.server, now)
	switch {
	case failed:
		why = "it has lost its keys, and does not say whether it was a replica (INFO, CLUSTER INFO)"
	case now.Role != "master":
		why = "it is a replica"
	}
	if p.server = now; why != "" {
		p.lose(why, at)
		p.distrust = true
	}
}

// toldWitness takes the answer to the question for the witness.
func (g *Guard) toldWitness(p *place, text string, failed bool) {
	wrote := p.wrote
	p.wrote = ""
	switch {
	case failed && p.failed == 0: // it may pass
		p.reading, p.failed = witnessUnread, g.at
		g.lookAgain()
	case failed:
		if p.told && (p.member || g.inUse || p.swept) { // nobody knows what has become of it
			g.wasFlushed(p)
		}
		p.reading, p.missing = witnessRefused, g.refusal(text)
	case wrote != "" && text == p.text: // nobody was faster, and yet it does not stand there
		if p.refused == 0 {
			p.missing = g.refusal("it may be read, and not written")
		}
		p.reading, p.refused = witnessRead, g.at
		g.lookAgain()
	default:
		p.refused, p.failed = 0, 0
		g.read(p, text, wrote != "" && text == wrote)
	}
}

// read takes what a witness says; ours says that we have written it.
func (g *Guard) read(p *place, text string, ours bool) {
	if text == "" && p.refused == 0 { // it may have had one since it was last read
		p.known = g.at
	}
	p.reading, p.text, p.told = witnessRead, text, false
	p.w, p.ok = parseWitness(text)
	g.seen = g.seen || p.ok && p.w.used && !p.afresh
	if p.ok && p.w.run == p.server.RunID && !p.w.names(p.server) && text != p.heard { // another may know better: two would write in turn for ever
		p.unnamed, p.heard = true, text
	}
	switch {
	case p.had == "" || p.had != p.server.RunID || ours || p.ok && p.w.birth == p.birth:
	case p.ok && !p.w.first && !p.swept: // that is no flush, which may be one of all: two who differ about it would write in turn
		p.lose("another client has found that it may have forgotten locks", g.at)
		p.flushed = 0
	default:
		g.wasFlushed(p)
	}
	p.swept = false
	c := g.clocks(p)
	p.since, p.born = g.at-c.age(p.w.since), g.at-c.age(p.w.born)
	if p.flushed != 0 && p.ok && !ours { // it was before another has left this: who was idle reads of many flushes at once
		_, most := c.ages(p.w.born)
		p.flushed = min(p.flushed, g.at-most)
	}
	if ours && (!p.w.first || p.afresh) {
		p.distrust = false
	}
}

// wasFlushed notes that a master's witness is gone, and the locks may be. The others may be gone by now, too, though
// nobody has read so: they are asked.
func (g *Guard) wasFlushed(p *place) {
	for i := range g.places {
		if o := &g.places[i]; g.restart == 0 && o != p && o.reading == witnessRead && o.member && !g.justFlushed(o) {
			o.reading = witnessUnread
		}
	}
	if g.restart == 0 {
		g.lookAgain()
	}
	p.member, p.had, p.flushed, p.known, p.own, p.lost = true, "", g.at, g.at, g.at, "it was flushed, or its witness was deleted"
}

// lookAgain has News be asked a little later, by the next Standing.
func (g *Guard) lookAgain() { g.again = g.at + AskAgain + time.Millisecond }

func (g *Guard) clocks(p *place) clocks {
	return clocks{wall: g.wall(), ahead: p.server.Ahead, within: p.server.Within, known: p.server.Within != 0}
}

// News is [mux.Keeper]'s.
func (g *Guard) News(now time.Duration) bool {
	longest := time.Duration(g.longest.Load())
	if over := g.again != 0 && now >= g.again; over || longest != g.heeded {
		if over {
			g.again = 0
		}
		g.heed(longest, now)
		if slices.ContainsFunc(g.places, func(p place) bool { return g.unsure(&p) }) {
			g.lookAgain()
		}
	}
	news := g.news
	g.news = false
	return news
}

// heed notes a longer TTL. Who takes the first lock reads again what was not there when it was connected, if that was a
// while ago: a client that is idle is told of nothing. It is not read again at once, so that of new masters the slowest
// is still the first there, too.
func (g *Guard) heed(longest, at time.Duration) {
	for i := range g.places {
		if p := &g.places[i]; !g.active() && p.reading == witnessRead && p.text == "" && at-p.met > AskAgain {
			p.reading = witnessUnread
		}
	}
	g.heeded, g.news, g.at = longest, true, at
	g.step()
}

// active reports whether this client takes locks. One that does not writes nothing.
func (g *Guard) active() bool { return g.heeded > 0 }

// step decides what is to stand in the witnesses, and since when the masters have forgotten nothing.
func (g *Guard) step() {
	g.noteFlush()
	for i := range g.places {
		p := &g.places[i]
		if p.refused != 0 && p.decided && !p.told { // what was decided is not to be seen there
			continue
		}
		p.decided, p.settled = false, false
		if p.up && p.reading == witnessRead && !p.unnamed {
			g.decide(p)
			p.settled = p.decided && p.ok && p.w == p.wanted
		}
	}
	all, used := g.standing()
	if used >= g.quorum() {
		g.inUse = true
	}
	for i := range g.places {
		p := &g.places[i]
		if p.decided && !p.wanted.used && all >= g.quorum() { // locks may be taken from now on
			p.wanted.used, p.settled = true, false
		}
		switch {
		case !p.up || !g.active() || len(p.asked) > 0:
		case p.unnamed || p.reading == witnessUnread && (p.failed == 0 || g.at-p.failed > AskAgain):
			if p.ask = nil; p.unnamed {
				p.ask, p.asked = appendWho(nil, nil, &p.server)
			}
			if p.unnamed = false; p.reading != witnessRefused {
				p.ask, p.asked = appendRead(p.ask, p.asked, g.key, p.server.Tracking)
				p.reading, p.sent = witnessAsked, g.at
			}
		case p.settled:
			p.member, p.had, p.number, p.birth, p.afresh = true, p.server.RunID, p.w.number, p.w.birth, false
		case p.decided && p.reading == witnessRead && (p.refused == 0 || g.at-p.refused > AskAgain):
			p.wrote = p.wanted.String()
			p.ask, p.asked = appendWrite(nil, g.key, p.text, p.wrote, p.server.Tracking)
			p.reading = witnessAsked
		}
	}
}

func (g *Guard) quorum() int { return Majority(len(g.places)) }

// standing counts the masters that have a witness of their process, and those that say that the list is used. One that
// does not let us see or write it is taken for one of both.
func (g *Guard) standing() (all, used int) {
	for i := range g.places {
		switch p := &g.places[i]; {
		case !p.up:
		case p.reading == witnessRefused, p.decided && p.refused != 0 && !p.settled:
			all, used = all+1, used+1
		case p.settled:
			all++
			if p.w.used {
				used++
			}
		}
	}
	return all, used
}

// unused returns how many masters were reached, how many of them say by themselves whether the list is used, and
// whether none says that it is. A promoted replica without a witness does not say it: it has what it was told of before.
func (g *Guard) unused() (reached, sure int, none bool) {
	none = !g.inUse && !g.seen
	for i := range g.places {
		p := &g.places[i]
		if !p.up {
			continue
		}
		if p.reading != witnessUnread && p.reading != witnessAsked {
			reached++
			if p.ok || p.server.ReplID2 == "" {
				sure++
			}
		}
		if !p.afresh && p.ok && p.w.used {
			none = false
		}
	}
	return reached, sure, none
}

// learning reports whether a master is about to say whether the list is used. One that hangs is not waited for for long.
func (g *Guard) learning() bool {
	return slices.ContainsFunc(g.places, func(p place) bool {
		return p.up && p.failed == 0 && (p.reading == witnessUnread || p.reading == witnessAsked && p.wrote == "" && g.at-p.sent <= AskAgain)
	})
}

// noteFlush finds out whether all masters were flushed at once.
func (g *Guard) noteFlush() {
	n, anew := 0, false
	for i := range g.places {
		p := &g.places[i]
		switch {
		case !p.member:
		case !g.justFlushed(p):
			return
		default:
			n++
			anew = anew || p.lost != ""
		}
	}
	if g.restart > 0 || !anew || n < len(g.places)-g.quorum()+1 {
		return
	}
	g.inUse, g.seen = false, false
	for i := range g.places {
		if p := &g.places[i]; p.member {
			p.had, p.afresh, p.distrust, p.lost, p.own = "", true, false, "", forgotNothing
		}
	}
}

func (g *Guard) justFlushed(p *place) bool { return p.flushed != 0 && g.at-p.flushed <= flushedWithin }

// unsure reports whether it may turn out in a moment that all masters were flushed, and not this one alone.
func (g *Guard) unsure(p *place) bool { return g.restart == 0 && p.lost != "" && g.justFlushed(p) }

// flushing reports whether another master is asked what has become of its witness.
func (g *Guard) flushing() bool {
	return slices.ContainsFunc(g.places, func(p place) bool {
		return p.up && p.member && !g.justFlushed(&p) && (p.reading == witnessUnread || p.reading == witnessAsked)
	})
}

// decide decides what is to stand on a master whose witness was read, if that is known.
func (g *Guard) decide(p *place) {
	if g.unsure(p) && g.flushing() {
		return
	}
	reached, sure, none := g.unused()
	// Who has met it after it was flushed, and did not know that the list is used, has made it the first there.
	late := p.ok && p.w.first && p.lost != "" && !p.afresh && !none && g.restart == 0
	names := p.ok && !p.distrust && !late && p.w.names(p.server)
	c := g.clocks(p)
	w, since, born := p.w, p.known, p.born
	bear := func() { w.number, w.birth, born = max(w.number, p.number)+1, g.name(), p.known }
	switch {
	case p.afresh && !(names && w.first):
		w = witness{number: w.number, first: true}
		bear()
	case names:
		since = p.since
	case p.ok:
		w.first = false
		// What it denies, its next process may not: then the birth tells that it has forgotten locks, or was told of others.
		if p.server.Unexpected || p.distrust || late || Denial(&p.server) != "" {
			bear()
		}
	case !none:
		w = witness{used: true}
		bear()
	case reached > len(g.places)-g.quorum():
		if g.restart == 0 && g.learning() {
			g.lookAgain()
			return
		}
		w = witness{first: sure > len(g.places)-g.quorum()}
		bear()
		since, _ = g.byUptime(p.server, p.met)
		switch { // else others would take a flush of a moment ago for one of before that
		case !g.remembers(p):
		case p.server.Cluster: // whose copies lack nothing
			born = p.met - max(0, p.server.Uptime-uptimeError)
		default:
			born = since
		}
	default:
		return
	}
	if p.birth != "" && (w.number < p.number || w.number == p.number && w.birth != p.birth) { // it has gone back to what it was
		bear()
	}
	// By a clock that is wrong, others would wait until theirs is as far.
	if anew := names && w.since.off() && c.agree(); !names || anew {
		w.setProcess(p.server)
		w.since = c.stamp(g.at - since)
		if anew {
			w.born = c.stamp(g.at - born)
		}
	}
	if w.birth != p.w.birth {
		w.born = c.stamp(g.at - born)
	}
	w.used = w.used || !none
	p.wanted, p.decided = w, true

	p.from, p.why = min(since, p.known), p.lost
	switch {
	case w.first && p.lost != "": // others may believe it
		p.from = p.known
	case w.first && g.restart == 0:
		p.from = forgotNothing
	case g.remembers(p):
		p.from = min(p.from, born)
	}
	if p.why == "" {
		p.why = g.unknown
	}
}

// Standing is [mux.Keeper]'s.
func (g *Guard) Standing(i int) (st mux.Standing) {
	p := &g.places[i]
	st.Ask, st.Replies, st.Missing = p.ask, len(p.asked), p.missing
	st.Forgot, st.Again = p.forgot, g.again
	p.ask, p.missing, p.forgot = nil, "", false
	if !p.up {
		return st
	}
	from, why := p.from, p.why
	if p.reading == witnessRefused {
		from = p.own
		st.Withheld = g.active() && (p.unnamed || len(p.asked) > 0) // it is to say who it is
	} else {
		st.Withheld = g.active() && !((p.settled || p.decided && p.refused != 0) && g.inUse)
	}
	if p.reading != witnessRefused && g.unsure(p) { // it may be the first of a new list in a moment, and is asked
		st.Withheld = g.active()
		return st
	}
	if longest := g.LongestTTL(); from != forgotNothing && longest > 0 {
		st.Until, st.Why = clock.After(from, longest), why
	}
	return st
}

// remembers reports whether a master keeps its memory in a restart: as the operator says, and nothing that it says
// itself denies.
func (g *Guard) remembers(p *place) bool {
	return g.durable && g.restart > 0 && Denial(&p.server) == ""
}

// Denial returns what a master says for which Config.Durable is not believed of it; empty if it says nothing of the kind.
// What a copy was told when it was one is not known; a promoted one has its master's birth. Of a cluster it was declared
// that its copies lack nothing.
func Denial(s *conn.Server) string {
	switch {
	case s.RunID == "":
		return "it does not say who it is (run_id)"
	case s.Cluster:
		return ""
	case s.NoAOF:
		return "it has no append-only file (aof_enabled:0)"
	case s.ReplID2 != "":
		return "it was a replica of another before (master_replid2)"
	case s.Group != "":
		return "Sentinel may put a copy in its place"
	}
	return ""
}

// byUptime is the rule for a master's first connection where no witness tells.
//
// Of a cluster's node nothing tells for how long it has had the slot. That it was no replica since its start, as far as
// it remembers, tells too little: the slot of a shard that is dead can be given to it without the keys
// (redis-cli --cluster fix).
func (g *Guard) byUptime(now conn.Server, at time.Duration) (from time.Duration, why string) {
	age := max(0, now.Uptime-uptimeError)
	watched := now.Group != "" // by sentinels, or clients
	if watched {
		age = min(age, now.MasterFor)
	}
	switch {
	case !watched && now.ReplID2 != "": // it does not say when it was promoted
		return at, "it was a replica of another before (master_replid2)"
	case now.RunID == "":
		return at, "it does not say when it was started"
	case watched:
		return at - age, fmt.Sprintf("it is the master, or was started, since %v, as far as is known", age.Round(time.Second))
	}
	return at - age, fmt.Sprintf("it was started %v ago", now.Uptime)
}

// forgot is the rule for a master that is connected again, by this client's own word. It returns why the master may have
// forgotten locks; empty if it has forgotten none, or was not known.
func forgot(before, now conn.Server) (why string) {
	switch {
	case before.Role != "" && before.Role != "master":
		return "it was a replica in between"
	case before.Endpoint == "":
		return ""
	case before.Endpoint != now.Endpoint: // it may be the same server, but lacks what the others granted meanwhile
		return fmt.Sprintf("it has taken the place of %s", before.Endpoint)
	case now.Cluster && (now.Epoch == "" || now.Epoch != before.Epoch):
		return "the slot may have been another's in between (CLUSTER INFO)"
	case now.RunID == "" || before.RunID == "":
		return "it does not say whether it was restarted (INFO)"
	case now.RunID != before.RunID:
		return "it was restarted"
	case differ(before.ReplID, now.ReplID) && now.Group != "":
		return "it has become the master again"
	case differ(before.ReplID, now.ReplID) && now.ReplID2 != "":
		return "it was a replica in between"
	}
	return ""
}

// differ reports whether two identities are known and differ.
func differ(a, b string) bool {
	return a != "" && b != "" && a != b
}
