// Package story makes of flight records what has happened: who held which lock when, who waited for it, and what is
// remarkable about that. It decides, and makes a page of it. It neither reads files nor prints.
//
// # Time
//
// The records are of several hosts, whose wall clocks can be minutes apart, and can be set meanwhile. Within a record, order is
// that of the clock since boot. Records of one boot share it. Between others, the masters are the common measure: each record says by
// how much the clock of a master, which is known by its run id, was ahead when it was connected. Where two records have no master
// in common, fences order the locks of a key, and the wall clocks place the rest.
package story

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock/internal/record"
)

// A Source is a record, and where it is from.
type Source struct {
	Name   string
	Record *record.Record
}

// A Story is what has happened, on one clock.
type Story struct {
	Parties  []*Party
	Holds    []*Hold // by the time when they were taken
	Waits    []*Wait // by their end
	Rounds   []*Round
	Masters  []*Seen // what was seen of masters, by time
	Findings []Finding

	tapes    []*tape
	seenOf   map[string][]*Seen // by serverOf
	aliases  map[string]string  // one address for each server, by those at which a process was seen
	roundsOf map[name][]*Round  // attempts and releases, by key, by time
	names    map[string]string  // of servers, by their addresses
	found    map[subject]int
	leftOut  map[Matter]int // findings
	spent    int
	texts    int // of so many findings, the size is counted
	size     int // ... in bytes
}

// A Party is a client of a record.
type Party struct {
	Name    string // for people, and of no other party
	Source  string
	About   *record.About
	Client  record.Client
	Clock   *Clock
	Skipped uint64 // events that its record has no more

	tape     *tape
	place    int        // in About.Clients
	places   [][]tenure // of each place in the list, who has had it
	database string     // of the masters
	last     time.Time

	dropped     uint64    // events that were never in its record
	droppedFrom time.Time // ... when the first of them happened
}

// A tape is a record that is told.
type tape struct {
	name     string
	record   *record.Record
	clock    *Clock
	parties  []*Party
	leftOut  int           // clients
	untold   int           // so many events at the beginning
	fromBoot time.Duration // when the first was that is told
	before   *record.Event
	jumps    [][2]*record.Event // between which its wall clock was set
	last     time.Duration      // since boot, of its latest event: what was after that, it cannot know
}

func (t *tape) end() time.Time { return t.clock.at(t.last) }

// A tenure is from when on a master has had a place.
type tenure struct {
	boot time.Duration
	addr string
}

// A Clock is that of all records of one boot of a host.
type Clock struct {
	Host string
	// Off is by how much its wall clock was ahead of the story's when the first record began.
	Off time.Duration
	// Known says that masters, or fences, say so. If it is false, the wall clock is believed.
	Known bool

	root   *Clock        // the first one of those that masters have put together with this one
	within time.Duration // by how much the clock can be wrong all the same
	origin time.Duration // the story's time, since 1970, less that since boot
	ahead  map[string][]reading
}

// A reading is by how much a master's clock was ahead of the one since boot.
type reading struct {
	boot, ahead time.Duration // at the least
	within      time.Duration // how much more at the most
}

// at is the story's time.
func (c *Clock) at(boot time.Duration) time.Time { return time.Unix(0, int64(c.origin+boot)).UTC() }

// A Round is one of a party, on the story's clock.
type Round struct {
	*record.Event
	Party    *Party
	From, At time.Time
	gaps     int // how many there were before it, in its record
}

// Yes returns the masters that said yes.
func (r *Round) Yes() (all []string) {
	for i, v := range r.Votes {
		if v.Verdict == record.Yes {
			all = append(all, r.master(i))
		}
	}
	return all
}

// master returns the master whose vote is in a place.
func (r *Round) master(i int) string { return r.Party.masterAt(i, r.Boot) }

func (p *Party) masterAt(i int, boot time.Duration) string {
	if i >= len(p.places) {
		return "?"
	}
	all := p.places[i]
	for n := len(all) - 1; n > 0; n-- {
		if all[n].boot <= boot {
			return all[n].addr
		}
	}
	return all[0].addr
}

// listAt returns a party's masters as of a time since boot, of its own clock.
func (p *Party) listAt(boot time.Duration) (all []string) {
	for i := range p.places {
		all = append(all, p.masterAt(i, boot))
	}
	return all
}

// An End says how a hold ended.
type End string

// The Ends.
const (
	Released   End = "released"
	Lost       End = "lost"
	Expired    End = "expired" // its validity has ended
	HandedOver End = "handed over"
	Open       End = "" // the record does not say
)

// A Hold is a lock that a party had.
type Hold struct {
	Party   *Party
	Key     string   // as the masters have it
	Keys    []string // of a lock on several keys, all
	Token   uint64   // a hash
	Fence   uint64
	Holders int // how many can have it: 0 for readers

	From, Taken time.Time // when its round began, and was decided
	Until       time.Time // the end of its validity, as the last round has left it
	Ended       time.Time // when it stopped to claim the lock, at the latest Until
	End         End
	Told        time.Time           // when it was told of the loss, or has released it; zero if neither
	First       *Round              // the one that has taken it; nil for one that was handed over
	Last        *Round              // the last that has taken or extended it, also before a hand-over; nil if that is not known
	Freed       *Round              // the first round that has released it; nil if that is not known
	Failed      *Round              // the round that has found it lost; nil if there is none
	Detail      string              // of the loss
	rounds      []*Round            // on it, by this party, but for its release
	said        map[string][]ballot // what each master has said in these; see ballots
	voters      []string            // the masters of these
	sure        time.Time           // until when its party shows that it relied on it: until then at the least
	sureBy      *record.Event       // ... by this; nil if it is by Last
	toldGaps    int                 // how many gaps there were before what Told is of
	told        bool                // its party was told of the loss, so that it has given back what was left of it
	letGo       time.Time           // zero if the record does not say
	before      bool                // the client gave it back as it was lost, a little before its record says so
	unlocked    bool                // its holder has let it go, and not the client
	gap         bool                // events are missing from the record since the last that it has of it
	gaps        int                 // how many there were before it
	Revoked     bool
}

// A Wait is one Lock that has waited.
type Wait struct {
	Party    *Party
	Key      string
	From, To time.Time
	Outcome  string
	HeldBy   string
}

// Seen is what a party has seen of a master.
type Seen struct {
	*record.Event
	Party *Party
	At    time.Time
	gaps  int  // how many there were before it, in its record
	fresh bool // what it says of the master's clock is of a handshake of its own: the events of one connection repeat it
}

// Tell makes the story. wait is from when on a wait is remarkable.
func Tell(sources []Source, wait time.Duration) *Story {
	s := &Story{}
	clocks := map[string]*Clock{}
	for _, source := range sources {
		s.read(source, clocks)
	}
	s.name()
	s.setClocks()
	for _, t := range s.tapes {
		s.follow(t)
	}
	slices.SortStableFunc(s.Holds, func(a, b *Hold) int { return a.Taken.Compare(b.Taken) })
	s.fences()
	s.passed()
	for _, h := range s.Holds {
		h.settle()
	}
	slices.SortStableFunc(s.Waits, func(a, b *Wait) int { return a.To.Compare(b.To) })
	slices.SortStableFunc(s.Rounds, func(a, b *Round) int { return a.At.Compare(b.At) })
	slices.SortStableFunc(s.Masters, func(a, b *Seen) int { return a.At.Compare(b.At) })
	s.judge(wait)
	return s
}

// What is told of a record at the most, the last of it. 16 MiB have some 200,000 events. A record that somebody has made to harm us could
// fill the memory: a byte of it can become 40.
const (
	maxEvents  = 1_000_000
	maxMemory  = 256 << 20
	maxParties = 1_000 // a Recorder has no more
)

// weight is about how much memory an event takes.
func weight(e *record.Event) int {
	n := 700 + 24*len(e.Keys) + 56*len(e.Votes) + len(e.Key) + len(e.Detail) + len(e.Err) + len(e.RunID)
	for _, key := range e.Keys {
		n += len(key)
	}
	return n
}

// read makes the parties of a record, and takes what it says of clocks, and of who has had which place.
func (s *Story) read(source Source, clocks map[string]*Clock) {
	about := &source.Record.About
	boot := cmp.Or(about.Boot, source.Name)
	c := clocks[boot]
	if c == nil {
		c = &Clock{Host: about.Host, origin: time.Duration(about.Began.UnixNano()) - about.BeganBoot, ahead: map[string][]reading{}}
		clocks[boot] = c
	}
	source.Record.Trim(maxEvents)
	clients := about.Clients[:min(len(about.Clients), maxParties)]
	t := &tape{name: source.Name, record: source.Record, clock: c, leftOut: about.LeftOut + len(about.Clients) - len(clients), last: about.BeganBoot}
	s.tapes = append(s.tapes, t)
	for i, client := range clients {
		p := &Party{Name: cmp.Or(client.Owner, client.Name, about.Program), Source: source.Name, About: about, Client: client, Clock: c,
			tape: t, place: i, Skipped: source.Record.Overwritten() + source.Record.Missing()}
		for k, m := range client.Masters {
			p.places = append(p.places, []tenure{{addr: m}})
			if db := database(m); k == 0 || db == p.database {
				p.database = db
			} else {
				p.database = "of " + client.List // each its own
			}
		}
		t.parties = append(t.parties, p)
	}
	s.Parties = append(s.Parties, t.parties...)
	total, weights := 0, []int32{}
	seen := map[sight]record.Event{}
	for e := range source.Record.Events() {
		w := weight(e)
		total += w
		weights = append(weights, int32(w))
		t.jumped(e)
		t.last = max(t.last, e.Boot)
		if e.Kind != record.KindMaster && e.Kind != record.KindAsked {
			continue
		}
		if fresh(seen, e) {
			c.ahead[e.RunID] = append(c.ahead[e.RunID], reading{e.Boot, wallAhead(e), e.Within})
		}
		if e.Kind == record.KindMaster && e.Client < len(t.parties) && e.Place >= 0 && e.Place < len(t.parties[e.Client].places) {
			p := t.parties[e.Client]
			if p.masterAt(e.Place, e.Boot) != e.Key && len(p.places[e.Place]) < maxTenures {
				p.places[e.Place] = append(p.places[e.Place], tenure{e.Boot, e.Key})
			}
		}
	}
	for total > maxMemory {
		total -= int(weights[t.untold])
		t.untold++
	}
}

// maxTenures is how often one place can be given to another master.
const maxTenures = 100

// database is the database of a master's address.
func database(addr string) string {
	a, err := conn.ParseAddress(addr)
	if err != nil {
		return "0"
	}
	return strconv.Itoa(a.Database())
}

// A sight is what one client sees of one master.
type sight struct {
	client int
	addr   string
}

// fresh reports whether an event has a reading of a master's clock of its own, and notes it.
func fresh(seen map[sight]record.Event, e *record.Event) bool {
	if e.Ahead == 0 || e.RunID == "" {
		return false
	}
	if e.Kind == record.KindAsked {
		return true
	}
	at := sight{e.Client, e.Key}
	x, ok := seen[at]
	seen[at] = record.Event{RunID: e.RunID, Ahead: e.Ahead, Within: e.Within, Uptime: e.Uptime}
	return !ok || x.RunID != e.RunID || x.Ahead != e.Ahead || x.Within != e.Within || x.Uptime != e.Uptime
}

// wallAhead is by how much the master's clock is ahead of the one since boot.
func wallAhead(e *record.Event) time.Duration {
	return time.Duration(e.Wall.UnixNano()) - e.Boot + e.Ahead
}

// name gives the parties names that differ.
func (s *Story) name() {
	count := map[string]int{}
	for _, p := range s.Parties {
		count[p.Name]++
	}
	taken, next := map[string]bool{}, map[string]int{}
	for _, p := range s.Parties {
		name := p.Name
		if count[name] > 1 {
			name += " of " + p.Source
		}
		p.Name = name
		for taken[p.Name] { // one record has both, or it is given twice
			next[name] = max(next[name]+1, 2)
			p.Name = fmt.Sprintf("%s (%d)", name, next[name])
		}
		taken[p.Name] = true
	}
}

// clocks returns those of the parties, each once.
func (s *Story) clocks() (all []*Clock) {
	for _, p := range s.Parties {
		if !slices.Contains(all, p.Clock) {
			all = append(all, p.Clock)
		}
	}
	return all
}

// setClocks puts the clocks together: each that has masters in common with one that is set goes by these.
func (s *Story) setClocks() {
	var set []*Clock
	unset := s.clocks()
	for len(unset) > 0 {
		best, by, n := 0, difference{}, 0
		for i, c := range unset {
			for _, other := range set {
				if diffs := other.differences(c); len(diffs) > n {
					best, by, n = i, diffs[len(diffs)/2], len(diffs)
				}
			}
		}
		c := unset[best]
		c.root = c
		if n > 0 {
			c.root = by.from.root
			// by is the story's time less this one's.
			c.Off, c.Known, c.within = -by.by, true, by.within
			c.origin += by.by
		}
		set = append(set, c)
		unset = slices.Delete(unset, best, best+1)
	}
}

// A difference is by how much the story's time is ahead of a wall clock, and by how much that can be wrong.
type difference struct {
	by, within time.Duration
	from       *Clock
}

// differences returns by how much the story's time is ahead of the wall clock of d, by each master that both know.
func (c *Clock) differences(d *Clock) (all []difference) {
	for run, mine := range c.ahead {
		if theirs := d.ahead[run]; len(theirs) > 0 {
			// The master's time is boot + ahead on both. c's boot is at c.origin of the story.
			m, t := mine[0], theirs[0]
			all = append(all, difference{(c.origin - m.ahead - m.within/2) - (d.origin - t.ahead - t.within/2), c.within + (m.within+t.within)/2, c})
		}
	}
	slices.SortFunc(all, func(a, b difference) int { return cmp.Compare(a.by, b.by) })
	return all
}

// A following is what is known of a party while its record is read.
type following struct {
	party *Party
	holds map[uint64]*Hold   // by token, those that go on
	given map[uint64][]*Hold // by token, those that have handed it over, and whose release is still to be told; nil for one that is not known
	open  map[string][]*Hold // by key, those that may be lost
	gaps  *int               // how many there were in the record
	story *Story
}

// add adds a hold, which an event has begun.
func (x *following) add(h *Hold) {
	h.Party, h.gaps = x.party, *x.gaps
	x.holds[h.Token] = h
	x.story.Holds = append(x.story.Holds, h)
	x.open[h.Key] = append(x.open[h.Key], h)
	if len(x.open[h.Key]) > maxOpen {
		x.open[h.Key] = slices.DeleteFunc(x.open[h.Key], func(h *Hold) bool { return !h.mayBeLost() })
		x.open[h.Key] = x.open[h.Key][max(len(x.open[h.Key])-maxOpen, 0):]
	}
}

// follow follows what the parties of a record have done.
func (s *Story) follow(t *tape) {
	all := make([]*following, len(t.parties))
	gaps, next := 0, uint64(0)
	seen := map[sight]record.Event{}
	n := 0
	for e := range t.record.Events() {
		untold := n < t.untold
		if n++; n == t.untold+1 {
			t.fromBoot = e.Boot
		}
		if next > 0 && e.Number != next {
			gaps++
		}
		next = e.Number + 1
		if untold {
			fresh(seen, e)
		}
		if e.Client >= len(all) || untold {
			continue
		}
		if all[e.Client] == nil {
			all[e.Client] = &following{t.parties[e.Client], map[uint64]*Hold{}, map[uint64][]*Hold{}, map[string][]*Hold{}, &gaps, s}
		}
		all[e.Client].event(e, seen)
	}
	for i, x := range all {
		t.parties[i].Skipped += uint64(t.untold)
		if x == nil {
			continue
		}
		for _, h := range x.holds {
			if h.End == Open && !h.letGo.IsZero() { // the answers to its release are not in the record
				h.Told = h.letGo
				h.end(Released, h.letGo)
			}
			h.gap = h.End == Open && h.known() < gaps
			if h.End == Open && !h.Until.After(t.end()) {
				h.end(Expired, h.Until)
			} else if h.End == Open {
				h.Ended = h.Until
			}
		}
	}
}

func (x *following) event(e *record.Event, seen map[sight]record.Event) {
	s, p := x.story, x.party
	at := p.Clock.at(e.Boot)
	p.last = laterTime(p.last, at)
	key := p.Client.Prefix + e.Key
	switch e.Kind {
	case record.KindRound:
		e.Keys = slices.DeleteFunc(e.Keys, func(name string) bool { return name == "" }) // there was no room for it
		r := &Round{Event: e, Party: p, From: at, At: at, gaps: *x.gaps}
		if e.Began > 0 {
			r.From = p.Clock.at(e.Began)
		}
		s.Rounds = append(s.Rounds, r)
		x.round(r, key)
		if h := x.holds[r.Token]; h != nil && r.Token != 0 && r.Op != record.OpUnlock {
			h.rounds = append(h.rounds, r)
		}
	case record.KindHandedOver:
		h := &Hold{Key: key, Token: e.Token, Fence: e.Fence, Holders: 1, From: at, Taken: at, Until: at.Add(e.Validity)}
		before := x.holds[e.Token]
		if before != nil {
			before.end(HandedOver, minTime(minTime(at, before.Told), before.letGo))
			before.sureBy = e
			h.Last, h.Keys, h.rounds = before.Last, before.Keys, before.rounds
		}
		if before == nil || before.Freed == nil {
			x.given[e.Token] = append(x.given[e.Token], before)
		}
		x.add(h)
	case record.KindLetGo:
		if h := x.holds[e.Token]; h != nil && h.End == Open && !(e.GivenBack && at.After(h.Until)) {
			h.letGo, h.unlocked = minTime(at, h.letGo), h.unlocked || !e.GivenBack
			h.sureBy, h.toldGaps = e, *x.gaps
		}
	case record.KindLost:
		h := x.holds[e.Token]
		if e.Token == 0 {
			h = lostOf(x.open[key], *x.gaps, at)
		}
		if h != nil && h.mayBeLost() && !h.told && e.Outcome != "closed" && e.Outcome != "max_lifetime" {
			h.Told, h.Detail, h.Revoked, h.told, h.toldGaps = at, e.Detail, e.Outcome == "revoked", true, *x.gaps
			if h.sureBy == nil {
				h.sureBy = e
			}
			h.end(Lost, at)
			h.before = strings.Contains(e.Detail, "the second lock failed")
		}
	case record.KindWaited:
		s.Waits = append(s.Waits, &Wait{Party: p, Key: key, From: at.Add(-e.Waited), To: at, Outcome: e.Outcome, HeldBy: e.Detail})
	case record.KindDropped:
		if *x.gaps++; p.dropped == 0 {
			p.droppedFrom = p.Clock.at(e.Began)
		}
		p.dropped += e.Dropped
		p.Skipped += e.Dropped
	case record.KindMaster, record.KindAsked:
		s.Masters = append(s.Masters, &Seen{Event: e, Party: p, At: at, gaps: *x.gaps, fresh: fresh(seen, e)})
	}
}

// known is how many gaps there were before the last that the record has of it.
func (h *Hold) known() int {
	if h.Last != nil {
		return max(h.gaps, h.Last.gaps)
	}
	return h.gaps
}

// settle says until when a holder shows that it relied on its lock.
func (h *Hold) settle() {
	switch {
	case h.End == Released || h.End == Lost || h.End == HandedOver && h.sureBy != nil:
		h.sure = h.Ended
	case h.Last != nil && h.Last.At.After(h.Taken):
		h.sure = minTime(h.Last.At, h.Ended)
	default:
		h.sure = h.Taken
	}
}

// lostOf returns the hold of a key that a party was told of as lost, if the record does not name it. It is one of which a round has found
// that; otherwise the one that was taken last, and of several that one party may have at once, the one whose validity ends next to that. If
// events are missing since, it may be one of which the record knows nothing.
func lostOf(open []*Hold, gaps int, at time.Time) (best *Hold) {
	found := func(h *Hold) bool { return h.Failed != nil && !h.told }
	for _, h := range open {
		switch {
		case !h.mayBeLost(), h.gaps != gaps, h.told && h.Holders != 1, best != nil && found(best) && !found(h):
		case best == nil, found(h) && !found(best), best.Holders == 1 && h.Taken.After(best.Taken),
			best.Holders != 1 && h.Until.Sub(at).Abs() < best.Until.Sub(at).Abs():
			best = h
		}
	}
	return best
}

// maxOpen is how many holds of one key a party can be told of as lost.
const maxOpen = 256

// mayBeLost reports whether a party can still be told that a hold is lost.
func (h *Hold) mayBeLost() bool {
	return h.letGo.IsZero() && h.End != Released && h.End != HandedOver
}

func minTime(a, b time.Time) time.Time {
	if !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// end ends a hold: with its validity at the latest.
func (h *Hold) end(how End, at time.Time) {
	if h.End != Open {
		return
	}
	h.End, h.Ended = how, minTime(at, h.Until)
}

func (x *following) round(r *Round, key string) {
	h := x.holds[r.Token]
	switch r.Op {
	case record.OpLock:
		if r.Outcome != "ok" {
			return
		}
		until := r.At.Add(r.Validity)
		if h != nil && h.First == nil && r.From.Before(h.From) { // the masters were asked again, which is told before
			h.First, h.From, h.Taken, h.Until, h.Fence = r, r.From, r.At, laterTime(h.Until, until), cmp.Or(r.Fence, h.Fence)
			return
		}
		x.add(&Hold{Key: key, Keys: r.Keys, Token: r.Token, Fence: r.Fence, Holders: r.Holders, From: r.From, Taken: r.At, Until: until, First: r, Last: r})
	case record.OpExtend, record.OpRenew, record.OpRecheck:
		switch {
		case r.Outcome == "ok" && h == nil: // it was taken elsewhere, or before the record begins
			x.add(&Hold{Key: key, Keys: r.Keys, Token: r.Token, Fence: r.Fence, Holders: r.Holders, From: r.From, Taken: r.At, Until: r.At.Add(r.Validity), Last: r})
		case r.Outcome == "ok" && r.Validity > 0 && h.End == Open:
			h.Until, h.Last = r.At.Add(r.Validity), r
		case h != nil && !h.unlocked && (r.Outcome == "not_held" || r.Outcome == "revoked"): // and not one that has met its release
			h.lost(r, minTime(r.At, h.letGo))
		}
	case record.OpUnlock:
		if given := x.given[r.Token]; len(given) > 0 { // each has one release, in this order
			h, x.given[r.Token] = given[0], given[1:]
		}
		if h == nil {
			return
		}
		h.Freed = cmp.Or(h.Freed, r)
		from := minTime(r.From, h.letGo)
		if r.Outcome == "not_held" || r.Outcome == "revoked" {
			h.lost(r, from) // the holder has let go by then
			h.Told = minTime(from, h.Told)
		} else if h.End == Open {
			if h.Told = from; h.letGo.IsZero() {
				h.toldGaps = r.gaps
			}
			h.end(Released, from)
		}
	}
}

// lost notes the round that has found the loss, and when the lock was given up at the latest.
func (h *Hold) lost(r *Round, at time.Time) {
	if h.Failed == nil {
		h.Failed, h.Revoked = r, h.Revoked || r.Outcome == "revoked"
		h.Detail = cmp.Or(h.Detail, r.Detail)
	}
	if h.Told.IsZero() {
		h.Told, h.toldGaps = r.At, r.gaps
	}
	h.end(Lost, at)
	h.Ended = minTime(h.Ended, at) // a context is told after the round
}

// excludes reports whether two of a key may not be at a time. Of permits, that is for tooMany to say.
func (h *Hold) excludes(o *Hold) bool {
	return !(h.Holders == 0 && o.Holders == 0) && h.Holders <= 1 && o.Holders <= 1 && h.Token != o.Token
}

func (h *Hold) names() []string {
	if len(h.Keys) > 0 {
		return h.Keys
	}
	return []string{h.Key}
}

// fences moves clocks where fences show that they are wrong. Those that masters have put together move together, by whatever
// it takes; and beside each other by no more than the masters' clocks allow for.
func (s *Story) fences() {
	byKey := s.byKey()
	for _, all := range byKey {
		slices.SortStableFunc(all, func(a, b *Hold) int { return cmp.Compare(a.Fence, b.Fence) })
	}
	clocks := s.clocks()
	together, alone := map[*Clock]time.Duration{}, map[*Clock]time.Duration{} // by how much those of a root move, and one
	moves := func(c *Clock) time.Duration { return together[c.root] + alone[c] }
	keys := slices.SortedFunc(maps.Keys(byKey), name.compare)
	for range clocks {
		moved := false
		for _, key := range keys {
			all := byKey[key]
			for i := 1; i < len(all); i++ {
				a, b := all[i-1], all[i]
				x, y := a.Party.Clock, b.Party.Clock
				if a.Fence == 0 || a.Fence == b.Fence || x == y {
					continue
				}
				by := a.orderedFrom().Add(moves(x)).Sub(b.Taken.Add(moves(y))) + time.Microsecond
				switch {
				case by <= 0:
					continue
				case x.root != y.root && y.root != clocks[0]:
					together[y.root] += by
				case x.root != y.root:
					together[x.root] -= by
				case alone[y]-alone[x]+by <= slack+x.within+y.within: // the masters' clocks say no more
					alone[y] += by
				default:
					continue // the masters have forgotten a fence
				}
				moved = true
			}
		}
		if !moved {
			break
		}
	}
	for _, c := range clocks {
		if by := moves(c); by != 0 {
			s.move(c, by)
		}
	}
}

// orderedFrom is when a lock was not yet taken by one with a greater fence. Several can have permits, or read, at once: the later
// one may have been told first.
func (h *Hold) orderedFrom() time.Time {
	if h.Holders == 1 {
		return h.Taken
	}
	return h.From
}

// passed ends the holds of those who have passed their lock on with its token: with the release by the one who has it then.
func (s *Story) passed() {
	released := map[uint64]*Hold{}
	for _, h := range s.Holds { // by the time when they were taken
		if h.End == Released && h.Token != 0 {
			released[h.Token] = h
		}
	}
	for _, h := range s.Holds {
		r := released[h.Token]
		if r == nil || r.Party == h.Party || r.Ended.Before(h.Taken) || h.End != Open && h.End != Expired {
			continue
		}
		if r.Ended.Before(h.Ended) {
			h.End, h.Ended, h.gap = HandedOver, r.Ended, false
		}
	}
}

// A name is a key's, as the masters have it, in a database.
type name struct{ database, key string }

func (n name) compare(o name) int {
	return cmp.Or(strings.Compare(n.key, o.key), strings.Compare(n.database, o.database))
}

// byKey returns the holds of each key.
func (s *Story) byKey() map[name][]*Hold {
	all := map[name][]*Hold{}
	for _, h := range s.Holds {
		for _, key := range h.names() {
			n := name{h.Party.database, key}
			if of := all[n]; len(of) == 0 || of[len(of)-1] != h { // a record that somebody has made up may name one twice
				all[n] = append(of, h)
			}
		}
	}
	return all
}

// move moves all that goes by a clock.
func (s *Story) move(c *Clock, by time.Duration) {
	c.origin += by
	c.Off -= by
	for _, h := range s.Holds {
		if h.Party.Clock == c {
			for _, t := range []*time.Time{&h.From, &h.Taken, &h.Until, &h.Ended, &h.Told, &h.letGo} {
				if !t.IsZero() {
					*t = t.Add(by)
				}
			}
		}
	}
	for _, w := range s.Waits {
		if w.Party.Clock == c {
			w.From, w.To = w.From.Add(by), w.To.Add(by)
		}
	}
	for _, r := range s.Rounds {
		if r.Party.Clock == c {
			r.From, r.At = r.From.Add(by), r.At.Add(by)
		}
	}
	for _, m := range s.Masters {
		if m.Party.Clock == c {
			m.At = m.At.Add(by)
		}
	}
	for _, p := range s.Parties {
		if p.Clock == c {
			p.last = p.last.Add(by)
		}
	}
	slices.SortStableFunc(s.Holds, func(a, b *Hold) int { return a.Taken.Compare(b.Taken) })
}

// ofKey reports whether a hold, wait or round is about a key, as people or as the masters know it.
func (p *Party) ofKey(onMasters, key string) bool {
	return onMasters == key || strings.TrimPrefix(onMasters, p.Client.Prefix) == key
}
