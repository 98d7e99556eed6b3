package story

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock/internal/record"
)

//go:embed page
var pageFiles embed.FS

// pageMark stands near the beginning of each page that HTML makes.
const pageMark = `<meta name="generator" content="redlock explain">`

// IsHTML reports whether a file that begins so was made by HTML. 1,024 bytes are enough.
func IsHTML(head []byte) bool { return bytes.Contains(head, []byte(pageMark)) }

// What a page carries at the most. A mail with it can be sent, and a phone draws it.
const (
	maxDrawn = 20_000
	maxBytes = 8 << 20 // of its events, about
	maxLines = 1_000   // of findings, and of the story of a key
)

// HTML returns one page that says what is remarkable, or of a key, the story, and draws the timeline. It asks nobody for
// anything, and is the same for the same story. What is too much for it, it says that it leaves out.
func (s *Story) HTML(key string) []byte {
	style, script := pageFile("page.css"), pageFile("page.js")
	d := s.drawn(key)
	p := pageText{
		Key: conn.Printable(key),
		// The page gets nothing from elsewhere, sends nothing there, and runs no script but its own.
		Policy: fmt.Sprintf("default-src 'none'; script-src '%s'; style-src '%s'; img-src data:; base-uri 'none'; form-action 'none'; "+
			"require-trusted-types-for 'script'; trusted-types 'none'", hashed(script), hashed(style)),
		Style:   template.HTML("<style>" + style + "</style>"),
		Script:  template.HTML("<script>" + script + "</script>"),
		Data:    template.HTML(`<script type="application/json" id="data">` + d.json() + "</script>"),
		Span:    s.span(d),
		Records: printable(s.Who()),
		Order:   printable(s.order()),
		LeftOut: d.leftOut(key),
	}
	p.addFindings(s, key, d)
	var lines []Line
	if key != "" {
		lines = s.Of(key)
	}
	if len(lines) > 0 {
		x := pageSection{Head: "The story", All: true}
		for _, l := range lines {
			x.add(l, key, d)
		}
		p.Sections = append(p.Sections, x)
	}
	if key != "" && len(d.Keys) == 0 {
		p.Nothing = fmt.Sprintf("Nobody has held or wanted %q here.", key)
	} else if len(p.Sections) == 0 {
		p.Nothing = "Nothing is remarkable."
	}
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, p); err != nil {
		panic(err) // it is our own
	}
	return b.Bytes()
}

var pageTemplate = template.Must(template.New("page").Parse(pageFile("page.html")))

func pageFile(name string) string {
	text, err := pageFiles.ReadFile("page/" + name)
	if err != nil {
		panic(err)
	}
	return strings.ReplaceAll(string(text), "\r\n", "\n") // a browser hashes it so
}

// hashed is how a policy names a script or a style that stands in the page.
func hashed(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

func printable(all []string) []string {
	out := make([]string, len(all))
	for i, text := range all {
		out[i] = conn.Printable(text)
	}
	return out
}

// A pageText is what stands in the page as text, also without scripts.
type pageText struct {
	Key, Policy, Span, LeftOut, Nothing string
	Style, Script, Data                 template.HTML
	Sections                            []pageSection
	Records, Order                      []string
}

// A pageSection is a list of sentences.
type pageSection struct {
	Head    string
	Alarm   bool
	All     bool // it is the whole story of a key
	Count   int
	LeftOut string
	Lines   []pageLine
}

type pageLine struct {
	At   int64 // on the page's clock
	Key  int   // its place in pageData.Keys, or -1
	Time string
	Text string
	Mark bool
}

// add adds a line, if there is room.
func (x *pageSection) add(l Line, key string, d *pageData) {
	if x.Count++; x.Count > maxLines {
		x.LeftOut = fmt.Sprintf("%s more of these are left out.", count(x.Count-maxLines, "sentence"))
		return
	}
	place, ok := d.keys[key]
	if !ok {
		place = -1
	}
	x.Lines = append(x.Lines, pageLine{d.time(l.At), place, l.At.Format(clockFormat), conn.Printable(l.Text), l.Mark && x.All})
}

// addFindings adds what is remarkable: first what must never be.
func (p *pageText) addFindings(s *Story, key string, d *pageData) {
	both, lost, rest := pageSection{Head: "Two had a lock at once", Alarm: true}, pageSection{Head: "Locks that were lost"}, pageSection{Head: "What else is remarkable"}
	all := s.Findings
	if key == "" {
		all = s.together()
	}
	for _, f := range all {
		if key != "" && !s.Concerns(f, key) {
			continue
		}
		x := &rest
		switch f.Matter {
		case Overlap, Late:
			x = &both
		case Loss:
			x = &lost
		}
		x.add(Line{At: f.At, Text: f.Text}, f.Key, d)
	}
	for _, x := range []pageSection{both, lost, rest} {
		if x.Count > 0 {
			p.Sections = append(p.Sections, x)
		}
	}
}

// Concerns reports whether a finding is about a key.
func (s *Story) Concerns(f Finding, key string) bool {
	return f.Key != "" && slices.ContainsFunc(s.Parties, func(p *Party) bool { return p.ofKey(f.Key, key) })
}

// span says when all that was.
func (s *Story) span(d *pageData) string {
	if d.End == 0 {
		return ""
	}
	from, to := time.UnixMicro(d.Zero).UTC(), time.UnixMicro(d.Zero+d.End).UTC()
	day := from.Format("2006-01-02")
	until := to.Format(clockFormat)
	if other := to.Format("2006-01-02"); other != day {
		until = other + " " + until
	}
	return fmt.Sprintf("%s, from %s to %s, in UTC.", day, from.Format(clockFormat), until)
}

// order says by what the times of the records were put together.
func (s *Story) order() (all []string) {
	clocks := s.clocks()
	for i, c := range clocks {
		if i == 0 {
			all = append(all, fmt.Sprintf("All times are by the wall clock of %s.", s.whose(c)))
		}
		if text := c.placed(clocks[0]); text != "" {
			all = append(all, fmt.Sprintf("The events of %s: %s", s.whose(c), text))
		}
	}
	return all
}

// whose names those whose events have the times of a clock.
func (s *Story) whose(c *Clock) string {
	var names []string
	for _, p := range s.Parties {
		if p.Clock == c {
			names = append(names, p.Name)
		}
	}
	if more := len(names) - 5; more > 1 {
		names = append(names[:5], fmt.Sprintf("%d others", more))
	}
	return list(names)
}

// placed says by what the events of a clock are where they are, beside those of another.
func (c *Clock) placed(first *Clock) string {
	off := ""
	if short := Short(c.Off); c.Off > 0 {
		off = fmt.Sprintf(" Its wall clock was %s ahead.", short)
	} else if c.Off < 0 {
		off = fmt.Sprintf(" Its wall clock was %s behind.", short)
	}
	switch {
	case c.Known:
		return fmt.Sprintf("the clocks of the masters place them, to within %s.%s", Short(slack+c.within), off)
	case c.Off != 0:
		return "fences place them, and no clock does. The order of locks with fences is right. When anything else was, and how long there was in between, is not known." + off
	case c != first:
		return "their own wall clock alone places them, as their record has no master in common with the others. If it is wrong, so is the order."
	}
	return ""
}

// A pageData is what the script draws. Its times are in microseconds since Zero. Other numbers are places in Keys, Masters,
// Parties and Texts.
type pageData struct {
	Zero    int64       `json:"zero"` // microseconds since 1970
	End     int64       `json:"end"`  // when all that is drawn is over
	Keys    []string    `json:"keys"`
	Masters []string    `json:"masters"`
	Texts   []string    `json:"texts"` // the first is empty
	Parties []pageParty `json:"parties"`
	Holds   []pageHold  `json:"holds"`
	Waits   []pageWait  `json:"waits"`
	Rounds  []pageRound `json:"rounds"`
	Seen    []pageSeen  `json:"seen"`
	Both    []pageBoth  `json:"both"`

	keys, masters, texts map[string]int
	parties              map[*Party]int
	bytes                int
	all, left            int // events
	cut                  time.Time
}

type pageParty struct {
	Name    string `json:"name"`
	Masters []int  `json:"masters"`
	End     int64  `json:"end"`              // of its record: what was later, it cannot know
	Placed  string `json:"placed,omitempty"` // by what its events are where they are
}

type pageVotes struct {
	Votes  string      `json:"votes,omitempty"`  // a letter for each master of the party: yes, no, failed, pending
	Errors map[int]int `json:"errors,omitempty"` // those of the masters that failed
}

type pageHold struct {
	Keys    []int  `json:"keys"`
	Party   int    `json:"party"`
	From    int64  `json:"from"`
	At      int64  `json:"at"`
	Until   int64  `json:"until"`
	Ended   int64  `json:"ended"`
	Told    int64  `json:"told,omitempty"`
	How     End    `json:"how"`
	Gap     bool   `json:"gap,omitempty"`          // events are missing: what became of it is not known
	Fence   uint64 `json:"fence,omitempty,string"` // a script's numbers have 53 bits
	Holders int    `json:"holders"`
	Detail  int    `json:"detail,omitempty"`
	pageVotes
}

type pageWait struct {
	Key   int    `json:"key"`
	Party int    `json:"party"`
	From  int64  `json:"from"`
	To    int64  `json:"to"`
	Said  string `json:"said"`
	By    int    `json:"by,omitempty"`
}

type pageRound struct {
	Keys   []int  `json:"keys"`
	Party  int    `json:"party"`
	From   int64  `json:"from"`
	At     int64  `json:"at"`
	Op     string `json:"op"`
	Said   string `json:"said"`
	Detail int    `json:"detail,omitempty"`
	pageVotes
}

type pageSeen struct {
	Master int    `json:"master"`
	Party  int    `json:"party"`
	At     int64  `json:"at"`
	Phase  string `json:"phase,omitempty"` // empty if it was asked who it is; "left" if the client has left it
	Run    int    `json:"run,omitempty"`
	Err    int    `json:"err,omitempty"`
}

// A pageBoth is a time in which two had a lock, or one went on after it.
type pageBoth struct {
	Key  int   `json:"key"`
	From int64 `json:"from"`
	To   int64 `json:"to"`
	Late bool  `json:"late,omitempty"`
	Text int   `json:"text"`
}

// A drawable is one of what can be drawn.
type drawable struct {
	rank  int // the less, the more it matters
	at    time.Time
	hold  *Hold
	wait  *Wait
	round *Round
	seen  *Seen
}

// drawn chooses what the page draws, of a key or of all.
func (s *Story) drawn(key string) *pageData {
	all := s.drawables(key)
	d := &pageData{Keys: []string{}, Masters: []string{}, Texts: []string{""}, Parties: []pageParty{}, Holds: []pageHold{}, Waits: []pageWait{},
		Rounds: []pageRound{}, Seen: []pageSeen{}, Both: []pageBoth{}, // none is null in JSON
		keys: map[string]int{}, masters: map[string]int{}, texts: map[string]int{"": 0}, parties: map[*Party]int{}, all: len(all)}
	for i, p := range s.Parties {
		d.parties[p] = i
		x := pageParty{Name: conn.Printable(p.Name), Masters: []int{}, Placed: p.Clock.placed(s.Parties[0].Clock)}
		for _, m := range p.Client.Masters {
			x.Masters = append(x.Masters, d.master(m))
		}
		d.Parties = append(d.Parties, x)
	}
	slices.SortStableFunc(all, func(a, b drawable) int { return cmp.Or(cmp.Compare(a.rank, b.rank), b.at.Compare(a.at)) })
	n := 0
	for n < len(all) && n < maxDrawn && d.bytes < maxBytes {
		d.count(all[n], key)
		n++
	}
	for _, x := range all[n:] {
		if x.at.After(d.cut) {
			d.cut = x.at
		}
	}
	d.left = len(all) - n
	all = all[:n]
	slices.SortStableFunc(all, func(a, b drawable) int { return a.at.Compare(b.at) })
	d.sortKeys()
	for _, x := range all {
		if from := x.from().UnixMicro(); d.Zero == 0 || from < d.Zero {
			d.Zero = from
		}
	}
	for _, x := range all {
		d.add(x, key)
	}
	for i, p := range s.Parties {
		d.Parties[i].End = max(0, min(d.time(p.tape.end()), d.End))
	}
	d.addBoth(s, key)
	return d
}

// drawables are all that can be drawn of a key, or of all.
func (s *Story) drawables(key string) (all []drawable) {
	held := map[*Hold]bool{}       // holds that findings are about
	tokens := map[[2]uint64]bool{} // theirs
	keys := map[string]bool{}      // likewise
	for _, f := range s.Findings {
		if f.Matter != Overlap && f.Matter != Late && f.Matter != Loss {
			continue
		}
		for _, h := range f.Holds {
			held[h], tokens[[2]uint64{uint64(h.Party.place), h.Token}] = true, true
			for _, name := range h.names() {
				keys[name] = true
			}
		}
	}
	rank := func(names []string, found bool, if0, if1, otherwise int) int {
		switch {
		case found:
			return if0
		case slices.ContainsFunc(names, func(name string) bool { return keys[name] }):
			return if1
		}
		return otherwise
	}
	of := func(p *Party, names ...string) bool { return len(p.ofOne(names, key)) > 0 }
	for _, h := range s.Holds {
		if of(h.Party, h.names()...) {
			all = append(all, drawable{rank: rank(h.names(), held[h], 0, 2, 3), at: h.Taken, hold: h})
		}
	}
	for _, w := range s.Waits {
		if of(w.Party, w.Key) {
			all = append(all, drawable{rank: rank([]string{w.Key}, false, 0, 2, 3), at: w.To, wait: w})
		}
	}
	for _, r := range s.Rounds {
		if names := r.names(); of(r.Party, names...) && !(r.Op == record.OpLock && r.Outcome == "ok") { // that is a hold
			found := r.Token != 0 && tokens[[2]uint64{uint64(r.Party.place), r.Token}]
			all = append(all, drawable{rank: rank(names, found, 0, 4, 5), at: r.At, round: r})
		}
	}
	for _, m := range s.Masters {
		all = append(all, drawable{rank: 1, at: m.At, seen: m})
	}
	return all
}

// names are the keys of a round, as the masters have them.
func (r *Round) names() []string {
	if len(r.Keys) > 0 {
		return r.Keys
	}
	return []string{r.Party.Client.Prefix + r.Key}
}

// ofOne leaves of names those that are a key's.
func (p *Party) ofOne(names []string, key string) (all []string) {
	for _, name := range names {
		if key == "" || p.ofKey(name, key) {
			all = append(all, name)
		}
	}
	return all
}

func (x drawable) from() time.Time {
	switch {
	case x.hold != nil:
		return minTime(x.hold.Taken, x.hold.From)
	case x.wait != nil:
		return x.wait.From
	case x.round != nil:
		return minTime(x.round.At, x.round.From)
	}
	return x.at
}

// count notes the keys of what is drawn, and how long it all is.
func (d *pageData) count(x drawable, key string) {
	d.bytes += 100
	name := func(names []string) {
		for _, name := range names {
			if _, ok := d.keys[name]; !ok {
				d.keys[name] = -1
				d.bytes += 2 * len(name)
			}
		}
	}
	votes := func(r *Round) {
		if r != nil {
			d.bytes += 2*len(r.Votes) + len(r.Detail)
			for _, v := range r.Votes {
				d.bytes += len(v.Err)
			}
		}
	}
	switch {
	case x.hold != nil:
		name(x.hold.Party.ofOne(x.hold.names(), key))
		votes(x.hold.First)
		d.bytes += len(x.hold.Detail)
	case x.wait != nil:
		name([]string{x.wait.Key})
	case x.round != nil:
		name(x.round.Party.ofOne(x.round.names(), key))
		votes(x.round)
	case x.seen != nil:
		d.bytes += len(x.seen.Err)
	}
}

func (d *pageData) sortKeys() {
	for name := range d.keys {
		d.Keys = append(d.Keys, name)
	}
	slices.Sort(d.Keys)
	for i, name := range d.Keys {
		d.keys[name] = i
		d.Keys[i] = conn.Printable(name)
	}
}

func (d *pageData) time(t time.Time) int64 {
	return t.UnixMicro() - d.Zero
}

// seenAt is time, of what the page must show.
func (d *pageData) seenAt(t time.Time) int64 {
	at := d.time(t)
	d.End = max(d.End, at)
	return at
}

func (d *pageData) text(text string) int {
	return place(&d.Texts, d.texts, text)
}

func (d *pageData) master(addr string) int {
	return place(&d.Masters, d.masters, addr)
}

// place returns the place of a text in a list, where it is put if it is new.
func place(all *[]string, places map[string]int, text string) int {
	at, ok := places[text]
	if !ok {
		at = len(*all)
		places[text] = at
		*all = append(*all, conn.Printable(text))
	}
	return at
}

func (d *pageData) places(names []string) (all []int) {
	for _, name := range names {
		all = append(all, d.keys[name])
	}
	return all
}

func (d *pageData) add(x drawable, key string) {
	switch {
	case x.hold != nil:
		h := x.hold
		p := pageHold{Keys: d.places(h.Party.ofOne(h.names(), key)), Party: d.parties[h.Party], From: d.time(h.From), At: d.seenAt(h.Taken), Until: d.time(h.Until),
			Ended: d.time(h.Ended), How: h.End, Gap: h.gap, Fence: h.Fence, Holders: h.Holders, Detail: d.text(h.Detail), pageVotes: d.votes(h.First)}
		if h.End != Open {
			d.seenAt(h.Ended)
		}
		if !h.Told.IsZero() {
			p.Told = d.seenAt(h.Told)
		}
		d.Holds = append(d.Holds, p)
	case x.wait != nil:
		w := x.wait
		d.Waits = append(d.Waits, pageWait{d.keys[w.Key], d.parties[w.Party], d.time(w.From), d.seenAt(w.To), w.Outcome, d.text(w.HeldBy)})
	case x.round != nil:
		r := x.round
		d.Rounds = append(d.Rounds, pageRound{d.places(r.Party.ofOne(r.names(), key)), d.parties[r.Party], d.time(r.From), d.seenAt(r.At), r.Op, r.Outcome, d.text(r.Detail), d.votes(r)})
	case x.seen != nil:
		m := x.seen
		p := pageSeen{Master: d.master(m.Key), Party: d.parties[m.Party], At: d.seenAt(m.At), Err: d.text(reason(m.Err, m.Key))}
		if m.alive() { // the end of a connection repeats which process it was with
			p.Run = d.text(m.RunID)
		}
		if m.Kind == record.KindMaster {
			p.Phase = m.Phase
			if closedWith(m) || replaced(m) {
				p.Phase = "left"
			}
		}
		d.Seen = append(d.Seen, p)
	}
}

func (d *pageData) votes(r *Round) (v pageVotes) {
	if r == nil {
		return v
	}
	letters := make([]byte, len(r.Votes))
	for i, x := range r.Votes {
		switch x.Verdict {
		case record.Yes:
			letters[i] = 'y'
		case record.No:
			letters[i] = 'n'
		case record.Pending:
			letters[i] = 'p'
		default:
			letters[i] = 'f'
			if v.Errors == nil {
				v.Errors = map[int]int{}
			}
			v.Errors[i] = d.text(reason(x.Err, r.master(i)))
		}
	}
	v.Votes = string(letters)
	return v
}

// addBoth adds when two had a lock.
func (d *pageData) addBoth(s *Story, key string) {
	for _, f := range s.Findings {
		if (f.Matter != Overlap && f.Matter != Late) || len(f.Holds) < 2 || len(d.Both) == maxLines || key != "" && !s.Concerns(f, key) {
			continue
		}
		place, ok := d.keys[f.Key]
		if !ok {
			continue
		}
		last := f.Holds[len(f.Holds)-1]
		until := last.Ended
		for _, h := range f.Holds[:len(f.Holds)-1] {
			if f.Matter == Late {
				until = minTime(until, h.Told)
			} else {
				until = minTime(until, h.Ended)
			}
		}
		d.Both = append(d.Both, pageBoth{place, d.time(last.Taken), max(d.time(until), d.time(last.Taken)), f.Matter == Late, d.text(f.Text)})
	}
}

// leftOut says what the page does not draw.
func (d *pageData) leftOut(key string) string {
	if d.left == 0 {
		return ""
	}
	text := fmt.Sprintf("The timeline has %d of %d events: what is about locks that two had or that were lost, what was seen of masters, and of all else the latest. "+
		"The last one that is left out was at %s.", d.all-d.left, d.all, d.cut.Format(clockFormat))
	if key == "" {
		text += " A page of one lock has more of it: redlock explain --key KEY --html FILE."
	}
	return text
}

// json is the data as it may stand in a page: it has no <, > or &.
func (d *pageData) json() string {
	text, err := json.Marshal(d)
	if err != nil {
		panic(err) // it is one of our types
	}
	return string(text)
}
