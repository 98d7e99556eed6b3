package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/census"
)

// A state is what can be said of a lock.
type state string

const (
	held    state = "held"
	free    state = "free"
	unknown state = "unknown" // it depends on the masters that did not say
)

// A lockStatus is the count of what the masters say about a lock.
type lockStatus struct {
	key      string
	state    state
	leader   *census.Claim // of those that most masters name, the first
	answered int
	quorum   int
	fence    uint64 // the greatest that a majority remembers, be it another on some; 0 if none does
	answers  []answer

	waiters []redlock.LockWaiter // in line, in their order; the first
	since   time.Time            // about when it was taken; zero if nothing says so

	readers []*census.Claim // all that a master names, by their names
	sharing int             // those of them that hold the lock
	shared  time.Duration   // until the last of these is gone
}

// lockStatus asks the masters who holds the lock on a key.
func (s *masterSet) lockStatus(ctx context.Context, key string) *lockStatus {
	return newLockStatus(key, s.holders(ctx, key))
}

func newLockStatus(key string, all []answer) *lockStatus {
	t := census.NewTally(len(all))
	s := &lockStatus{key: key, answers: all, quorum: t.Quorum()}
	for i, a := range all {
		if a.Err != nil {
			continue
		}
		s.answered++
		t.Add(i, a.row)
		if len(a.row.Waiters) > len(s.waiters) { // mostly on one master alone
			s.waiters = nil
			for _, w := range a.row.Waiters {
				s.waiters = append(s.waiters, redlock.LockWaiter{Owner: w.Owner, Waited: w.Waited, Reader: w.Reader})
			}
		}
	}
	s.fence, s.leader = t.Fence(), t.Leader()
	for _, c := range t.Claims {
		if c.Reader {
			s.readers = append(s.readers, c)
		}
	}
	slices.SortFunc(s.readers, func(a, b *census.Claim) int {
		return cmp.Or(cmp.Compare(a.Owner(), b.Owner()), cmp.Compare(a.Token.Reveal(), b.Token.Reveal()))
	})
	for _, r := range s.readers {
		if r.Held() {
			s.sharing++
			s.shared = max(s.shared, r.Lasts())
		}
	}
	switch {
	case s.leader.Held():
		s.state = held
		s.since = t.Since(time.Now())
	case t.Open():
		s.state = unknown
	default:
		s.state = free
	}
	return s
}

// left is for how long the lock is held unless it is renewed; it is below 0 for ever.
func (s *lockStatus) left() time.Duration {
	switch {
	case s.state != held:
		return 0
	case s.sharing > 0:
		return s.shared
	}
	return s.leader.Lasts()
}

// holder says who holds the lock.
func (s *lockStatus) holder() string {
	if s.sharing > 0 {
		return readersText(s.sharing)
	}
	return ownerText(s.leader.Holder)
}

func readersText(n int) string {
	if n >= census.MostReaders {
		return fmt.Sprintf("at least %d readers", n)
	}
	return plural(n, "reader")
}

// answersText says how many masters answered. If they are enough, and the state is unknown, they differ.
func (s *lockStatus) answersText() string {
	differ := ""
	if s.answered >= s.quorum {
		differ = ", and differ"
	}
	return fmt.Sprintf("%d of %s answered%s", s.answered, plural(len(s.answers), "master"), differ)
}

// tooFew says that the masters that answered leave it open who holds the lock.
func (s *lockStatus) tooFew() string {
	are := "are"
	if s.quorum == 1 {
		are = "is"
	}
	if s.answered >= s.quorum {
		are = "that agree are"
	}
	return fmt.Sprintf("%s; %d %s needed", s.answersText(), s.quorum, are)
}

// unsure is the error of who needs to know who holds the lock.
func (s *lockStatus) unsure() error {
	return &failure{exitNoQuorum, fmt.Errorf("%s to tell who holds %q", s.tooFew(), s.key), doctorRemedy}
}

// nameless is who holds a lock, or waits for it, and has left no name.
const nameless = "somebody who left no name"

// ownerText says who holds a lock, or what its key is, if that is no lock.
func ownerText(h census.Holder) string {
	if h.Token == census.Unknown {
		return h.NoLock()
	}
	owner := cmp.Or(h.Owner(), nameless)
	if h.Left() {
		return "left by " + owner
	}
	return owner
}

// leftUntil says of a lock that is only left there until when it is.
func leftUntil(c *census.Claim) string {
	until := "for ever"
	if left := c.Lasts(); left >= 0 {
		until = "until " + clockText(time.Now().Add(left))
	}
	return fmt.Sprintf("left %s by %s", until, cmp.Or(c.Owner(), nameless))
}

// holderCell is who holds a lock, as it stands in a table.
func holderCell(h census.Holder) string {
	if h.Revoked {
		return ownerText(h) + ", revoked"
	}
	return ownerText(h)
}

func (s *lockStatus) write(t *terminal) {
	text := fmt.Sprintf("%s is %s", s.key, s.state)
	switch {
	case s.state == unknown:
		text = fmt.Sprintf("%s: unknown, %s", s.key, s.answersText())
	case s.sharing > 0:
		text += fmt.Sprintf(" by %s, %s", s.holder(), leftText(s.left()))
	case s.leader.Left() && s.state == held:
		text = fmt.Sprintf("%s is %s, on %d of %s, and nobody runs it", s.key, leftUntil(s.leader), len(s.leader.On), plural(len(s.answers), "master"))
	case s.state == held:
		text += fmt.Sprintf(" by %s, on %d of %s, %s", s.holder(), len(s.leader.On), plural(len(s.answers), "master"), leftText(s.left()))
	}
	t.say("", plain, text)
	if s.state == held && s.leader.Revoked && s.sharing == 0 {
		t.say("", plain, fmt.Sprintf("It was revoked, and is free when its holder lets go, or when the key ends: %s", s.leader.Reason))
	}
	if !s.since.IsZero() {
		t.say("", plain, fmt.Sprintf("taken at %s, as its fence says", timeText(s.since)))
	}
	t.printf("\n")
	if len(s.readers) > 0 {
		rows := [][]cell{header("MASTERS", "LEFT", "READER")}
		for _, r := range s.readers {
			rows = append(rows, s.claimed(r))
		}
		t.table("", 1, rows)
		t.printf("\n")
	}
	rows := [][]cell{header("MASTER", "LEFT", "HOLDER")}
	fences := slices.ContainsFunc(s.answers, func(a answer) bool { return a.row.Fence != 0 || a.row.NoFence }) // also of a minority, which tells no fence
	if fences {
		rows[0] = slices.Insert(rows[0], 2, header("FENCE")...)
	}
	for _, a := range s.answers {
		row := []cell{{a.Addr, plain}, {"-", dim}, {"-", dim}}
		switch {
		case a.Err != nil:
			row[2] = cell{without(a.Err, a.Addr), red}
		case a.Token == census.Unknown:
			row[2] = cell{ownerText(a.Holder), red}
		case len(a.readers()) > 0:
			row[1] = cell{leftText(a.TTL), plain}
			row[2] = cell{readersText(len(a.readers())), plain}
		case !a.Token.IsZero():
			row[1] = cell{leftText(a.TTL), plain}
			row[2] = cell{holderCell(a.Holder), plain}
		}
		switch {
		case a.row.NoFence:
			row = slices.Insert(row, 2, cell{"no number", red})
		case a.row.Fence != 0:
			row = slices.Insert(row, 2, cell{strconv.FormatUint(a.row.Fence, 10), plain})
		case fences:
			row = slices.Insert(row, 2, cell{"-", dim})
		}
		rows = append(rows, row)
	}
	t.table("", 1, rows)
	writeWaiters(t, s.waiters, len(s.waiters))
	if n := s.agreed(); n > 0 {
		t.printf("\n")
		t.say("", plain, fmt.Sprintf("There are %s of it, too: see --permits %d.", plural(n, "permit"), n))
	}
}

// claimed is how many masters name a holder, for how long, and who it is. It is dim if they are
// too few.
func (s *lockStatus) claimed(c *census.Claim) []cell {
	colour := plain
	if !c.Held() {
		colour = dim
	}
	return []cell{
		{fmt.Sprintf("%d of %d", len(c.On), len(s.answers)), colour}, {leftText(c.Lasts()), colour}, {holderCell(c.Holder), colour},
	}
}

func (s *lockStatus) writeJSON(t *terminal) {
	type reader struct {
		Token   string `json:"token"`
		Owner   string `json:"owner,omitempty"`
		LeftMS  *int64 `json:"left_ms,omitempty"`
		Votes   int    `json:"votes,omitempty"`   // not in what one master says
		Revoked string `json:"revoked,omitempty"` // the reason
	}
	type master struct {
		Master  string   `json:"master"`
		Token   string   `json:"token,omitempty"`
		Owner   string   `json:"owner,omitempty"`
		LeftMS  *int64   `json:"left_ms,omitempty"`
		Fence   uint64   `json:"fence,omitempty"`
		Revoked string   `json:"revoked,omitempty"`
		Readers []reader `json:"readers,omitempty"`
		Error   string   `json:"error,omitempty"`
	}
	out := struct {
		keyJSON
		State    state        `json:"state"`
		Token    string       `json:"token,omitempty"`   // not of readers
		Owner    string       `json:"owner,omitempty"`   // likewise
		LeftMS   *int64       `json:"left_ms,omitempty"` // null where it never expires
		Fence    uint64       `json:"fence,omitempty"`
		Revoked  string       `json:"revoked,omitempty"` // the reason; likewise
		Readers  []reader     `json:"readers,omitempty"`
		Since    *time.Time   `json:"since,omitempty"`   // about when it was taken
		Lingers  bool         `json:"lingers,omitempty"` // it is only left there (--min-hold), and nobody runs it
		Waiters  []waiterJSON `json:"waiters,omitempty"`
		Votes    int          `json:"votes"`
		Answered int          `json:"answered"`
		Quorum   int          `json:"quorum"`
		Masters  []master     `json:"masters"`
	}{keyJSON: newKeyJSON(s.key), State: s.state, Votes: len(s.leader.On), Answered: s.answered, Quorum: s.quorum, Fence: s.fence, Waiters: waitersJSON(s.waiters)}
	out.Lingers = s.state == held && s.leader.Left()
	if !s.since.IsZero() {
		out.Since = new(s.since.UTC())
	}
	if s.state == held {
		out.LeftMS = leftMS(s.left())
		if s.sharing == 0 {
			out.Token, out.Owner = s.leader.Token.Reveal(), s.leader.Owner()
			if s.leader.Revoked {
				out.Revoked = s.leader.Reason
			}
		}
	}
	for _, r := range s.readers {
		out.Readers = append(out.Readers, reader{r.Token.Reveal(), r.Owner(), leftMS(r.Lasts()), len(r.On), r.Reason})
	}
	for _, a := range s.answers {
		m := master{Master: a.Addr, Error: without(a.Err, a.Addr), Token: a.Token.Reveal(), Owner: a.Owner(), Fence: a.row.Fence, Revoked: a.Reason}
		if !a.Token.IsZero() || len(a.readers()) > 0 {
			m.LeftMS = leftMS(a.TTL)
		}
		for _, r := range a.readers() {
			m.Readers = append(m.Readers, reader{r.Token.Reveal(), r.Owner(), leftMS(r.TTL), 0, r.Reason})
		}
		out.Masters = append(out.Masters, m)
	}
	writeJSON(t, out)
}
