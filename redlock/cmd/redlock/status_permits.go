package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/internal/kind"
)

func checkPermits(n int) error {
	if n < 1 || n > kind.MaxPermits {
		return usageError("", "--permits %d is not possible: 1 to %d are", n, kind.MaxPermits)
	}
	return nil
}

// A permitStatus is the count of what the masters say about the permits of a lock. Its lockStatus is
// that of all: held if no permit is free, and free if one is.
type permitStatus struct {
	*lockStatus
	permits []*lockStatus // each is a lock by itself
	free    int
	held    int
}

// permitStatus asks the masters for the n permits of a key.
func (s *masterSet) permitStatus(ctx context.Context, key string, n int) *permitStatus {
	return newPermitStatus(key, n, s.permits(ctx, key, n))
}

func newPermitStatus(key string, n int, all []answer) *permitStatus {
	a := &permitStatus{lockStatus: newLockStatus(key, all)}
	for i := range n {
		one := make([]answer, len(all))
		for j, of := range all {
			one[j].Err = of.Err
			for _, h := range of.row.Holders {
				if h.Permit == i+1 {
					one[j].row.Holders = []census.Holder{h}
				}
			}
		}
		s := newLockStatus(key, one)
		a.permits = append(a.permits, s)
		switch s.state {
		case free:
			a.free++
		case held:
			a.held++
		}
	}
	switch {
	case a.free > 0:
		a.state = free
	case a.held < n:
		a.state = unknown
	default:
		a.state = held
	}
	return a
}

// check returns an error if more masters say another number of permits than ours, and a majority may do so: one that is
// silent could be of it.
func (a *permitStatus) check() error {
	if agreed := a.agreed(); agreed > 0 && agreed != len(a.permits) {
		return usageError("", "there are %d permits of %q, and not %d", agreed, a.key, len(a.permits))
	}
	return nil
}

// agreed is how many permits there are, as more masters say than say another number. It is 0 if they are too few: with those
// that are silent, which could say the same, they must be a majority.
func (s *lockStatus) agreed() (n int) {
	by, tied := map[int]int{}, false
	for _, of := range s.answers {
		if of.agreed > 0 {
			by[of.agreed]++
		}
	}
	for other, masters := range by {
		switch {
		case masters > by[n]:
			n, tied = other, false
		case masters == by[n]:
			tied = true
		}
	}
	if tied || by[n]+len(s.answers)-s.answered < s.quorum {
		return 0
	}
	return n
}

// first returns the permit that is free first if nobody renews one; nil if none is held for a time.
func (a *permitStatus) first() (first *lockStatus) {
	for _, s := range a.permits {
		if s.state == held && s.left() >= 0 && (first == nil || s.left() < first.left()) {
			first = s
		}
	}
	return first
}

// holder says who holds the permits.
func (a *permitStatus) holder() string {
	if first := a.first(); first != nil {
		return fmt.Sprintf("the first to end is that of %s, %s", first.holder(), leftText(first.left()))
	}
	return "none of them ends"
}

func (a *permitStatus) write(t *terminal) {
	n := len(a.permits)
	text, are := fmt.Sprintf("%d of %s", a.free, plural(n, "permit")), "are"
	if a.free == 1 {
		are = "is"
	}
	if a.free+a.held < n {
		text = "at least " + text
	}
	switch a.state {
	case free:
		text = fmt.Sprintf("%s: %s %s free", a.key, text, are)
	case held:
		text = fmt.Sprintf("%s: none of %s is free, %s", a.key, plural(n, "permit"), a.holder())
	case unknown:
		text = fmt.Sprintf("%s: unknown, %s", a.key, a.answersText())
	}
	t.say("", plain, text)
	t.printf("\n")
	rows := [][]cell{header("PERMIT", "MASTERS", "LEFT", "HOLDER")}
	for i, s := range a.permits {
		if s.state != free && len(s.leader.On) > 0 {
			rows = append(rows, slices.Insert(s.claimed(s.leader), 0, cell{strconv.Itoa(i + 1), plain}))
		}
	}
	if len(rows) > 1 {
		t.table("", 1, rows)
		t.printf("\n")
	}
	rows = [][]cell{header("MASTER", "PERMITS")}
	for _, of := range a.answers {
		row := []cell{{of.Addr, plain}, {fmt.Sprintf("%d taken", len(of.row.Holders)), plain}}
		if of.Err != nil {
			row[1] = cell{without(of.Err, of.Addr), red}
		}
		rows = append(rows, row)
	}
	t.table("", 1, rows)
	writeWaiters(t, a.waiters, len(a.waiters))
}

func (a *permitStatus) writeJSON(t *terminal) {
	type permit struct {
		Permit int    `json:"permit"` // from 1 on
		State  state  `json:"state"`
		Token  string `json:"token,omitempty"`
		Owner  string `json:"owner,omitempty"`
		LeftMS *int64 `json:"left_ms,omitempty"`
		Votes  int    `json:"votes"`
	}
	type master struct {
		Master string `json:"master"`
		Taken  int    `json:"taken"`
		Error  string `json:"error,omitempty"`
	}
	out := struct {
		keyJSON
		State    state        `json:"state"`
		Free     int          `json:"free"`
		Permits  []permit     `json:"permits"`
		Waiters  []waiterJSON `json:"waiters,omitempty"`
		Answered int          `json:"answered"`
		Quorum   int          `json:"quorum"`
		Masters  []master     `json:"masters"`
	}{keyJSON: newKeyJSON(a.key), State: a.state, Free: a.free, Waiters: waitersJSON(a.waiters), Answered: a.answered, Quorum: a.quorum}
	for i, s := range a.permits {
		p := permit{Permit: i + 1, State: s.state, Votes: len(s.leader.On)}
		if s.state == held {
			p.Token, p.Owner, p.LeftMS = s.leader.Token.Reveal(), s.leader.Owner(), leftMS(s.left())
		}
		out.Permits = append(out.Permits, p)
	}
	for _, of := range a.answers {
		out.Masters = append(out.Masters, master{Master: of.Addr, Error: without(of.Err, of.Addr), Taken: len(of.row.Holders)})
	}
	writeJSON(t, out)
}
