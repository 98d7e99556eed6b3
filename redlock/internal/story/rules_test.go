package story_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/record"
	"github.com/redburst/redburst/redlock/internal/story"
	"github.com/stretchr/testify/require"
)

// Each rule has worlds in which its sentence comes, and worlds in which it must not.

// votes are those of a, b and c: y, n, p (pending) or f (failed).
func votes(letters string) (all []record.Vote) {
	of := map[rune]record.Verdict{'y': record.Yes, 'n': record.No, 'p': record.Pending, 'f': record.Failed}
	for _, l := range letters {
		all = append(all, record.Vote{Verdict: of[l]})
	}
	return all
}

func voted(e record.Event, letters string) record.Event {
	e.Votes = votes(letters)
	return e
}

// notHeld is a round that finds the lock gone.
func notHeld(when float64, op string, token uint64, letters string) record.Event {
	e := voted(did(when, op, token), letters)
	e.Outcome, e.Validity = "not_held", 0
	return e
}

// notRenewed is a round in which too few masters answer. The yes of s, a suspect, does not count.
func notRenewed(when float64, letters string) record.Event {
	e := voted(did(when, record.OpRenew, 1), strings.ReplaceAll(letters, "s", "f"))
	e.Outcome, e.Validity = "no_quorum", 0
	for i, l := range letters {
		if l == 's' {
			e.Votes[i].Err = mux.ErrSuspect.Error()
		}
	}
	return e
}

// asked is what a master says of itself when a lock was lost.
func asked(when float64, addr string, ahead time.Duration) record.Event {
	e := met(when, addr, ahead)
	e.Kind, e.Phase = record.KindAsked, ""
	return e
}

// broke is the end of a connection.
func broke(when float64, addr string) record.Event {
	e := met(when, addr, 0)
	e.Phase, e.Err = "down", "mux: "+addr+": EOF"
	return e
}

// begunAt is a round that has begun then.
func begunAt(e record.Event, when float64) record.Event {
	e.Began, e.Took = at(when), e.Boot-at(when)
	return e
}

func lostAt(when float64) record.Event {
	return record.Event{Kind: record.KindLost, Boot: at(when), Key: "k", Outcome: "not_held", Detail: "gone"}
}

// known are all masters as they were met, or asked, at a time.
func known(one func(float64, string, time.Duration) record.Event, when float64, ahead time.Duration) (all []record.Event) {
	for _, addr := range []string{"a:1", "b:1", "c:1"} {
		all = append(all, one(when, addr, ahead))
	}
	return all
}

func join(parts ...any) (all []record.Event) {
	for _, p := range parts {
		switch p := p.(type) {
		case record.Event:
			all = append(all, p)
		case []record.Event:
			all = append(all, p...)
		}
	}
	return all
}

func ofMatter(told *story.Story, m story.Matter) (all []story.Finding) {
	for _, f := range told.Findings {
		if f.Matter == m {
			all = append(all, f)
		}
	}
	return all
}

// accused says whether a finding names somebody who has done wrong.
func accused(f story.Finding) bool {
	switch f.Cause {
	case story.Forgot, story.ClockSet, story.Deleted, story.TwoLists, story.Frozen:
		return true
	}
	return len(f.Masters) > 0 && f.Cause != story.MastersOff
}

func TestTwoAtOnceAreToldIfBothReliedOnIt(t *testing.T) {
	t.Parallel()
	b := forgery{name: "b", boot: "one"}.of(t, took(4, 2), letGo(6, 2))
	permit := func(e record.Event) record.Event { e.Holders = 2; return e }
	for name, w := range map[string]struct {
		events         []record.Event
		gap            int
		certain, maybe int
	}{
		"it lets go later":                        {join(took(1, 1), letGo(5, 1)), 0, 1, 0},
		"it renews it later":                      {join(took(1, 1), did(5, record.OpRenew, 1)), 0, 1, 0},
		"it is told of the loss later":            {join(took(1, 1), lostAt(5)), 0, 1, 0},
		"it lets go before":                       {join(took(1, 1), letGo(3, 1), met(20, "a:1", 0)), 0, 0, 0},
		"its record ends before":                  {join(took(1, 1), did(2, record.OpRenew, 1)), 0, 0, 0},
		"its record has a gap":                    {join(took(1, 1), met(8, "a:1", 0)), 1, 0, 0},
		"it renews it after the gap":              {join(took(1, 1), did(3, record.OpRenew, 1), met(8, "a:1", 0)), 1, 0, 1},
		"its record goes on, and says nothing":    {join(took(1, 1), met(8, "a:1", 0)), 0, 0, 1},
		"it has a gap, and shows later it had it": {join(took(1, 1), letGo(5, 1)), 1, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			told := tellOf(forgery{name: "a", boot: "one", gap: w.gap}.of(t, w.events...), b)
			certain, maybe := overlaps(told)
			require.Equal(t, []int{w.certain, w.maybe}, []int{certain, maybe}, "%v", told.Findings)
			for _, f := range ofMatter(told, story.Overlap) {
				require.GreaterOrEqual(t, len(f.Grounds), 2)
				require.False(t, accused(f), f.Text)
			}
			// Permits: two others, of which each must show it.
			for i := range w.events {
				w.events[i] = permit(w.events[i])
			}
			c := forgery{name: "c", boot: "one"}.of(t, permit(took(2, 3)), letGo(9, 3))
			d := forgery{name: "d", boot: "one"}.of(t, permit(took(4, 2)), letGo(6, 2))
			certain, maybe = overlaps(tellOf(forgery{name: "a", boot: "one", gap: w.gap}.of(t, w.events...), c, d))
			if !strings.Contains(name, "is told") { // a loss does not say which permit
				require.Equal(t, []int{w.certain, w.maybe}, []int{certain, maybe}, "permits")
			}
		})
	}
}

// What two at once tells of a loss is not told again. Another loss of either is.
func TestALossOfOneOfTwoIsToldOnce(t *testing.T) {
	t.Parallel()
	begun, gone := known(met, 0.5, 0), join(letGo(7, 1), notHeld(7.001, record.OpUnlock, 1, "nnn"), known(asked, 7.1, 0))
	shared := join(took(4, 2), letGo(6, 2), did(6.001, record.OpUnlock, 2))
	for name, w := range map[string]struct {
		a, b []record.Event
		lost []string
	}{
		"until one was told":             {join(took(1, 1), lostAt(5)), shared, nil},
		"as its masters had it no more":  {join(begun, took(1, 1), gone), shared, nil},
		"... and it was renewed since":   {join(begun, took(1, 1), did(6.5, record.OpRenew, 1), gone), shared, []string{"a"}},
		"the other, after that":          {join(took(1, 1), letGo(5, 1)), join(took(4, 2), did(7, record.OpRenew, 2), notHeld(8, record.OpRenew, 2, "nnn")), []string{"b"}},
		"the other is the first to know": {join(took(1, 1), letGo(9, 1)), join(took(4, 2), notHeld(8, record.OpRenew, 2, "nnn")), nil},
	} {
		t.Run(name, func(t *testing.T) {
			told := tellOf(forgery{name: "a", boot: "one"}.of(t, w.a...), forgery{name: "b", boot: "one"}.of(t, w.b...))
			certain, _ := overlaps(told)
			require.Equal(t, 1, certain)
			var lost []string
			for _, f := range ofMatter(told, story.Loss) {
				lost = append(lost, f.Holds[0].Party.Name)
			}
			require.Equal(t, w.lost, lost, told.Findings)
		})
	}
}

// A key of two databases is two locks.
func TestTwoDatabasesAreTwoLocks(t *testing.T) {
	t.Parallel()
	in := func(name, db string) forgery {
		return forgery{name: name, boot: "one", about: func(a *record.About) {
			a.Clients[0].List, a.Clients[0].Masters = "3"+db, []string{"redis://a:1" + db, "redis://b:1" + db, "redis://c:1" + db}
		}}
	}
	events := func(token uint64) []record.Event { return join(took(float64(token), token), letGo(5, token)) }
	told := tellOf(in("a", "/0").of(t, events(1)...), in("b", "/1").of(t, events(2)...))
	certain, maybe := overlaps(told)
	require.Zero(t, certain+maybe)
	lists := ofMatter(told, story.Lists)
	require.Len(t, lists, 1)
	require.True(t, lists[0].Maybe)
	require.Contains(t, lists[0].Text, "two databases, 0 and 1")
	told = tellOf(in("a", "/1").of(t, events(1)...), in("b", "/1").of(t, events(2)...))
	certain, _ = overlaps(told)
	require.Equal(t, 1, certain)
}

// Who has replaced a master has the list of those who began with the new one.
func TestAReplacedMasterIsNoOtherList(t *testing.T) {
	t.Parallel()
	with := func(name, third string) forgery {
		return forgery{name: name, boot: "one", about: func(a *record.About) {
			a.Clients[0].List, a.Clients[0].Masters = "3-"+third, []string{"a:1", "b:1", third}
		}}
	}
	events := func(token uint64) []record.Event { return join(took(float64(5+token), token), letGo(9, token)) }
	newcomer := met(2, "d:1", 0)
	newcomer.Place = 2
	told := tellOf(with("a", "c:1").of(t, join(newcomer, events(1))...), with("b", "d:1").of(t, events(2)...))
	require.Empty(t, ofMatter(told, story.Lists))
	for _, f := range ofMatter(told, story.Overlap) { // it is one, but not by the lists
		require.NotEqual(t, story.TwoLists, f.Cause)
	}
	require.Equal(t, []string{"a:1", "b:1", "d:1"}, told.Holds[0].Last.Yes())
	told = tellOf(with("a", "c:1").of(t, events(1)...), with("b", "d:1").of(t, events(2)...))
	require.Len(t, ofMatter(told, story.Lists), 1)
}

// Lists whose majorities meet exclude each other, and so do those of one server by two names.
func TestListsWhoseMajoritiesMeetAreNotAccused(t *testing.T) {
	t.Parallel()
	for _, w := range []struct {
		a, b  []string
		apart bool
	}{
		{[]string{"a:1", "b:1", "c:1"}, []string{"c:1", "b:1", "a:1"}, false},
		{[]string{"a:1", "b:1", "c:1"}, []string{"a:1", "b:1", "c:1", "d:1"}, false},
		{[]string{"a:1", "b:1", "c:1"}, []string{"a:1", "b:1", "d:1"}, true},
		{[]string{"a:1", "b:1", "c:1"}, []string{"d:1", "e:1", "f:1"}, true},
		{[]string{"a:1"}, []string{"a:1", "b:1"}, false},
	} {
		of := func(name string, list []string, token uint64) story.Source {
			return forgery{name: name, boot: "one", about: func(a *record.About) {
				a.Clients[0].List, a.Clients[0].Masters = strings.Join(list, " "), list
			}}.of(t, join(took(float64(3*token), token), letGo(float64(3*token+1), token))...)
		}
		require.Equal(t, w.apart, len(ofMatter(tellOf(of("a", w.a, 1), of("b", w.b, 2)), story.Lists)) > 0, "%v %v", w.a, w.b)
	}
}

// One server by two names is one. Where nobody has said who it is, that is not known.
func TestAServerByTwoNamesIsOne(t *testing.T) {
	t.Parallel()
	of := func(name string, token uint64, at float64, masters ...string) (f forgery, events []record.Event) {
		for i, addr := range masters {
			e := met(0.5, addr, 0)
			e.RunID = fmt.Sprint("run ", i)
			events = append(events, e)
		}
		return forgery{name: name, boot: "one", about: func(a *record.About) { a.Clients[0].List, a.Clients[0].Masters = name, masters }},
			join(events, took(at, token), letGo(at+4, token))
	}
	a, first := of("a", 1, 1, "a:1", "b:1", "c:1")
	b, second := of("b", 2, 4, "x:1", "y:1", "z:1")
	found := ofMatter(tellOf(a.of(t, first...), b.of(t, second...)), story.Overlap)
	require.Len(t, found, 1)
	require.Contains(t, found[0].Text, "a:1, b:1 and c:1 said yes to both.")
	for from, likely := range []bool{false, true, true, true} { // of the second, some are not known
		for i := range second[:3] {
			second[i].RunID = fmt.Sprint("other ", i)
			if i < from {
				second[i].RunID = ""
			}
		}
		found = ofMatter(tellOf(a.of(t, first...), b.of(t, second...)), story.Overlap)
		require.Len(t, found, 1)
		require.Equal(t, story.TwoLists, found[0].Cause)
		require.Equal(t, likely, found[0].Likely, found[0].Text)
	}
}

// A server whose place another has taken lives on. Who has seen it later does not say which of them was asked in between.
func TestTheServerBeforeAFailoverIsNoWitness(t *testing.T) {
	t.Parallel()
	for form, cause := range map[string]story.Cause{"%s:1": story.Deleted, "cluster://%s:1": story.Unknown, "clusters://%s:1": story.Unknown,
		"sentinel://%s:1/g": story.Unknown, "sentinels://%s:1/g": story.Unknown} {
		var all []string
		for _, host := range []string{"a", "b", "c"} {
			all = append(all, fmt.Sprintf(form, host))
		}
		each := func(one func(string) record.Event) (events []record.Event) {
			for _, addr := range all {
				events = append(events, one(addr))
			}
			return events
		}
		events := join(each(func(addr string) record.Event { return met(0.5, addr, 0) }), took(2, 1), each(func(addr string) record.Event { return broke(3, addr) }),
			notHeld(5, record.OpRenew, 1, "nnn"), each(func(addr string) record.Event { return asked(6, addr, 0) }))
		about := func(a *record.About) { a.Clients[0].Masters = all }
		losses := ofMatter(tellOf(forgery{name: "a", about: about}.of(t, events...)), story.Loss)
		require.Len(t, losses, 1)
		require.Equal(t, cause, losses[0].Cause, losses[0].Text)
	}
}

// Why a lock was lost: each cause, and worlds that are next to it.
func TestALossHasTheCauseThatItsRecordShows(t *testing.T) {
	t.Parallel()
	another := func(events []record.Event) []record.Event { // process
		for i := range events {
			events[i].RunID += " again"
		}
		return events
	}
	up := func(events []record.Event, seconds float64) []record.Event {
		for i := range events {
			events[i].Uptime = at(seconds)
		}
		return events
	}
	begun := known(met, 0.5, 0)
	abc := []string{"a:1", "b:1", "c:1"}
	for name, w := range map[string]struct {
		events  []record.Event
		cause   story.Cause // empty: no loss is told
		masters []string
		likely  bool
	}{
		"deleted":                            {join(begun, took(2, 1), notHeld(5, record.OpRenew, 1, "nnn"), known(asked, 6, 0)), story.Deleted, abc, false},
		"deleted, nobody was asked":          {join(begun, took(2, 1), notHeld(5, record.OpRenew, 1, "nnn")), story.Deleted, abc, true},
		"deleted, its clock was read before": {join(begun, took(2, 1), known(asked, 3, 0), notHeld(5, record.OpRenew, 1, "nnn")), story.Deleted, abc, true},
		"deleted, found by the release":      {join(begun, took(2, 1), letGo(5, 1), notHeld(5.001, record.OpUnlock, 1, "nnp"), known(asked, 6, 0)), story.Deleted, abc[:2], false},
		"deleted on those that had it":       {join(begun, voted(took(2, 1), "yyn"), notHeld(5, record.OpRenew, 1, "nnn"), known(asked, 6, 0)), story.Deleted, abc[:2], false},
		"one had not answered":               {join(begun, voted(took(2, 1), "yyp"), notHeld(5, record.OpRenew, 1, "nnn"), known(asked, 6, 0)), story.Deleted, abc, true},
		"... and its connection broke":       {join(begun, voted(took(2, 1), "yyp"), broke(3, "c:1"), met(4, "c:1", 0), notHeld(5, record.OpRenew, 1, "nnn"), known(asked, 6, 0)), story.Deleted, abc[:2], false},
		"... and has no vote meanwhile":      {join(begun, voted(took(2, 1), "yyp"), met(4, "c:1", 0), notHeld(5, record.OpRenew, 1, "nnn"), known(asked, 6, 0)), story.Deleted, abc, true},
		"... and was met by nobody":          {join(known(met, 0.5, 0)[:2], voted(took(2, 1), "yyp"), notHeld(5, record.OpRenew, 1, "nnn"), known(asked, 6, 0)), story.Deleted, abc[:2], false},
		"... and another's was in the way":   {join(begun, voted(took(1, 2), "pyp"), voted(took(2, 1), "yyp"), notHeld(5, record.OpRenew, 1, "nnn"), known(asked, 6, 0)), story.Deleted, abc[:2], false},
		"... and another's was gone":         {join(begun, took(1, 2), did(1.5, record.OpUnlock, 2), voted(took(2, 1), "yyp"), notHeld(5, record.OpRenew, 1, "nnn"), known(asked, 6, 0)), story.Deleted, abc, true},
		"... and is told late":               {join(begun, took(2, 1), letGo(5, 1), begunAt(notHeld(5.002, record.OpRenew, 1, "nny"), 4.99), notHeld(5.01, record.OpUnlock, 1, "ynn"), known(asked, 6, 0)), story.Deleted, abc[:2], false},
		"the release is a little later":      {join(begun, took(2, 1), letGo(4.998, 1), notHeld(5.001, record.OpUnlock, 1, "nnp"), known(asked, 6, 0)), story.Deleted, abc[:2], false},
		"a renewal is told after the end":    {join(begun, took(2, 1), lostAt(5.001), letGo(5.002, 1), begunAt(notHeld(5.004, record.OpRenew, 1, "nny"), 4.99), notHeld(5.01, record.OpUnlock, 1, "nnn"), known(asked, 6, 0)), story.Deleted, abc[:2], false},
		"two causes":                         {join(begun, took(2, 1), another(known(met, 4, 0))[:1], notHeld(5, record.OpRenew, 1, "nny"), known(asked, 6, 0)[1:]), story.Forgot, abc[:2], false},
		"a yes does not count":               {join(begun, voted(took(2, 1), "yyp"), notRenewed(5, "nys"), lostAt(11.5), known(asked, 11.6, 0)), story.Deleted, abc[:1], false},
		"... and another does not answer":    {join(begun, voted(took(2, 1), "yyp"), notRenewed(5, "fys"), lostAt(11.5), known(asked, 11.6, 0)), story.MastersOff, abc[:1], false},
		"... as it was set again":            {join(begun, took(2, 1), voted(did(3, record.OpRenew, 1), "nyy"), notRenewed(5, "sny"), lostAt(12.5), known(asked, 12.6, 0)), story.Deleted, abc[:2], false},
		"set again, and a yes":               {join(begun, took(2, 1), voted(did(3, record.OpRenew, 1), "nyy"), did(4, record.OpRenew, 1), notHeld(5, record.OpRenew, 1, "ynn"), known(asked, 6, 0)), story.Deleted, abc[1:], false},
		"none answers":                       {join(begun, took(2, 1), notRenewed(5, "ypf"), lostAt(11.5)), story.MastersOff, abc[1:], false},
		"one was not had":                    {join(begun, voted(took(2, 1), "yny"), notHeld(5, record.OpRenew, 1, "nny"), known(asked, 6, 0)), story.Deleted, abc[:1], false},
		"a later renewal had more":           {join(begun, voted(took(2, 1), "yyp"), voted(did(3, record.OpRenew, 1), "pyy"), notHeld(5, record.OpRenew, 1, "nnn"), known(asked, 6, 0)), story.Deleted, abc, false},
		"the client's own release follows":   {join(begun, took(2, 1), notHeld(5, record.OpRenew, 1, "nny"), lostAt(5.001), letGo(5.002, 1), notHeld(5.01, record.OpUnlock, 1, "ynn"), known(asked, 6, 0)), story.Deleted, abc[:2], false},
		"the release alone, after a loss":    {join(begun, took(2, 1), lostAt(5.001), letGo(5.002, 1), notHeld(5.01, record.OpUnlock, 1, "nnn"), known(asked, 6, 0)), story.Unknown, nil, false},
		"of one, its time was over":          {join(begun, took(2, 1), voted(did(8, record.OpRenew, 1), "pyy"), notHeld(12.5, record.OpRenew, 1, "nnn"), known(asked, 13, 0)), story.Deleted, abc[1:], false},
		"it had none":                        {join(begun, voted(took(2, 1), "yff"), notHeld(5, record.OpRenew, 1, "ynn"), known(asked, 6, 0)), story.Unknown, nil, false},
		"its time was over":                  {join(begun, took(2, 1), letGo(13, 1), notHeld(13.001, record.OpUnlock, 1, "nnn"), known(asked, 14, 0)), "", nil, false},
		"its time was over, by an extension": {join(begun, took(2, 1), notHeld(13.001, record.OpExtend, 1, "nnn"), known(asked, 14, 0)), "", nil, false},
		"a clock was set":                    {join(begun, took(2, 1), notHeld(5, record.OpRenew, 1, "nnn"), known(asked, 6, time.Hour)), story.ClockSet, abc, true},
		"a clock was set just after it said": {join(begun, took(2, 1), known(asked, 2.1, 0), notHeld(5, record.OpRenew, 1, "nnn"), known(asked, 6, time.Hour)), story.ClockSet, abc, false},
		"a clock was set by too little":      {join(begun, took(2, 1), notHeld(5, record.OpRenew, 1, "nnn"), known(asked, 6, time.Second)), story.Deleted, abc, false},
		"a clock was set before it was taken": {join(begun, known(asked, 1, time.Hour), took(2, 1), notHeld(5, record.OpRenew, 1, "nnn"), known(asked, 6, time.Hour)),
			story.Deleted, abc, false},
		"its host slept":                     {join(begun, took(2, 1), set(notHeld(5, record.OpRenew, 1, "nnn"), time.Hour), known(asked, 6, 0)), story.Unknown, nil, false},
		"its host slept, but not for long":   {join(begun, took(2, 1), set(notHeld(5, record.OpRenew, 1, "nnn"), time.Second), known(asked, 6, 0)), story.Deleted, abc, false},
		"its host slept before":              {join(begun, set(met(1, "a:1", 0), time.Hour), known(asked, 1.1, 0), took(2, 1), notHeld(5, record.OpRenew, 1, "nnn"), known(asked, 6, 0)), story.Deleted, abc, false},
		"its wall clock alone was set":       {join(begun, took(2, 1), set(notHeld(5, record.OpRenew, 1, "nnn"), time.Hour), known(asked, 6, -time.Hour)), story.Deleted, abc, false},
		"a clock was set back":               {join(known(met, 0.5, time.Hour), took(2, 1), notHeld(5, record.OpRenew, 1, "nnn"), known(asked, 6, time.Minute)), story.Deleted, abc, false},
		"it restarted, as its uptime shows":  {join(begun, took(2, 1), notHeld(5, record.OpRenew, 1, "nnn"), up(another(known(asked, 10, 0)), 6.5)), story.Forgot, abc, false},
		"it restarted, as a connection says": {join(begun, took(2, 1), another(known(met, 4, 0)), notHeld(5, record.OpRenew, 1, "nnn")), story.Forgot, abc, false},
		"... and the old one is seen later":  {join(begun, took(2, 1), another(known(met, 4, 0)), notHeld(5, record.OpRenew, 1, "nnn"), known(asked, 6, 0)), story.Forgot, abc, false},
		"it restarted before":                {join(begun, another(known(met, 1, 0)), took(2, 1), notHeld(5, record.OpRenew, 1, "nnn"), another(known(asked, 6, 0))), story.Deleted, abc, false},
		"it restarted after":                 {join(begun, took(2, 1), notHeld(5, record.OpRenew, 1, "nnn"), up(another(known(asked, 20, 0)), 10)), story.Deleted, abc, true},
		"it restarted, or a second before":   {join(took(2, 1), notHeld(5, record.OpRenew, 1, "nnn"), up(known(asked, 10.5, 0), 8)), story.Unknown, nil, false},
		"it restarted, and a second later":   {join(took(2, 1), notHeld(5, record.OpRenew, 1, "nnn"), up(known(asked, 10.5, 0), 7)), story.Forgot, abc, false},
		"nobody says which process":          {join(took(2, 1), notHeld(5, record.OpRenew, 1, "nnn")), story.Unknown, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			told := tellOf(forgery{name: "a"}.of(t, w.events...))
			losses := ofMatter(told, story.Loss)
			if w.cause == "" {
				require.Empty(t, losses)
				require.Len(t, ofMatter(told, story.Ending), 1)
				return
			}
			require.Len(t, losses, 1, "%v", told.Findings)
			f := losses[0]
			require.Equal(t, w.cause, f.Cause, f.Text)
			require.Equal(t, w.masters, f.Masters, f.Text)
			require.Equal(t, w.likely, f.Likely, f.Text)
			if strings.Contains(name, "its host") {
				require.NotContains(t, fmt.Sprint(ofMatter(told, story.Clocks)), "The clock of the master")
			}
			if accused(f) {
				require.NotEmpty(t, f.Grounds)
			}
		})
	}
}

// The last event of a connection repeats which process it was with. That the process was still there by then, it does not say.
func TestTheEndOfAConnectionIsNoSignOfLife(t *testing.T) {
	t.Parallel()
	b := forgery{name: "b", boot: "one"}.of(t, took(4, 2), letGo(6, 2))
	for _, w := range []struct {
		later func(float64, string, time.Duration) record.Event
		cause story.Cause
	}{
		{func(when float64, addr string, ahead time.Duration) record.Event {
			e := met(when, addr, ahead)
			e.Phase, e.Err = "down", "mux: a:1: EOF"
			return e
		}, story.Unknown},
		{asked, story.Deleted},
	} {
		a := forgery{name: "a", boot: "one"}.of(t, join(known(met, 0.5, 0), took(1, 1), letGo(5, 1), known(w.later, 5.2, 0))...)
		found := ofMatter(tellOf(a, b), story.Overlap)
		require.Len(t, found, 1)
		require.Equal(t, w.cause, found[0].Cause, found[0].Text)
	}
}

// The last event of a connection repeats what its handshake said of the clock.
func TestAClockIsReadOnceInAConnection(t *testing.T) {
	t.Parallel()
	repeated := met(3, "a:1", 0)
	repeated.Phase, repeated.Err = "down", "mux: closed"
	back := func(events ...record.Event) (n int) {
		for _, f := range ofMatter(tellOf(forgery{name: "a"}.of(t, events...)), story.Clocks) {
			if strings.Contains(f.Text, "set back") {
				n++
			}
		}
		return n
	}
	require.Zero(t, back(met(1, "a:1", 0), asked(2, "a:1", time.Minute), repeated))
	require.Equal(t, 1, back(met(1, "a:1", 0), asked(2, "a:1", time.Minute), asked(3, "a:1", 0)))
}

// Who was told late of the end of its lock has gone on. Of who lets go late, nobody knows it.
func TestGoingOnIsToldIfItWas(t *testing.T) {
	t.Parallel()
	b := forgery{name: "b", boot: "one"}.of(t, took(12, 2), letGo(13, 2))
	late := lostAt(14)
	late.Token = 1
	for name, w := range map[string]struct {
		events       []record.Event
		gap          int
		found, maybe bool
	}{
		"told late":               {join(took(1, 1), late), 0, true, false},
		"told late, behind a gap": {join(took(1, 1), late), 1, true, true},
		"taken behind a gap":      {join(met(0.5, "a:1", 0), took(1, 1), late), 1, true, false},
		"lets go late":            {join(took(1, 1), letGo(14, 1), did(14.001, record.OpUnlock, 1)), 0, true, true},
		"... taken behind a gap":  {join(met(0.5, "a:1", 0), took(1, 1), did(14.001, record.OpUnlock, 1)), 1, true, true},
		"told before":             {join(took(1, 1), lostAt(10.9)), 0, false, false},
		"another has it before":   {join(took(1, 1), lostAt(11.5)), 0, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			late := ofMatter(tellOf(forgery{name: "a", boot: "one", gap: w.gap}.of(t, w.events...), b), story.Late)
			require.Equal(t, w.found, len(late) == 1)
			for _, f := range late {
				require.Equal(t, w.maybe, f.Maybe, f.Text)
				require.Equal(t, story.Frozen, f.Cause)
				require.NotEmpty(t, f.Grounds)
				require.Equal(t, name == "told late, behind a gap", strings.Contains(f.Text, "events are missing"), f.Text)
			}
		})
	}
}

// A client that ends leaves its masters: none is away.
func TestAMasterIsNotAwayAsItsClientEnds(t *testing.T) {
	t.Parallel()
	down := func(when float64, err string) record.Event {
		e := met(when, "a:1", 0)
		e.Phase, e.Err = "down", err
		return e
	}
	for err, want := range map[string]int{"mux: closed": 0, "mux: it was replaced: by d:1": 0, "mux: a:1: EOF": 1} {
		require.Len(t, ofMatter(tellOf(forgery{name: "a"}.of(t, met(1, "a:1", 0), down(2, err))), story.Away), want, err)
	}
	told := ofMatter(tellOf(forgery{name: "a"}.of(t, met(1, "a:1", 0), down(2, "mux: a:1: EOF"), down(4, "mux: it was replaced: by d:1"), met(9, "d:1", 0))), story.Away)
	require.Len(t, told, 1)
	require.Contains(t, told[0].Text, "for 2s, until its place was given to another")
	closed := down(6, "mux: closed")
	closed.Key = "b:1"
	told = ofMatter(tellOf(forgery{name: "a"}.of(t, met(1, "a:1", 0), met(1, "b:1", 0), down(2, "mux: a:1: EOF"), closed, letGo(9, 1))), story.Away)
	require.Len(t, told, 1)
	require.Contains(t, told[0].Text, "for 4s, until the client was closed, as a saw it")
}

// A soundWorld is what three clients do who never have a lock at once: they take it in turn, renew it, let it go or let it end,
// and are refused; with permits, two at once.
func soundWorld(rng *rand.Rand, holders int, ahead [3]time.Duration) (events [3][]record.Event) {
	now, token := 2.0, uint64(0)
	add := func(i int, e record.Event) { e.Holders = holders; events[i] = append(events[i], e) }
	var free [2]float64 // from when on each permit is to be had
	for i := range 3 {
		for _, e := range known(met, 0.1+0.1*float64(i), -ahead[i]) {
			add(i, e)
		}
	}
	for range 60 {
		seat := 0
		if holders == 2 && free[1] < free[0] {
			seat = 1
		}
		now = max(now, free[seat]) + 0.02*rng.Float64()
		i := rng.IntN(3)
		token++
		letters := []string{"yyy", "yyp", "ypy", "pyy"}
		add(i, voted(took(now, token), letters[rng.IntN(4)]))
		until := now + 10
		held := 8 * rng.Float64()
		for t := now + held/3; rng.IntN(2) == 0 && t < now+held; t += held / 3 {
			add(i, voted(did(t, record.OpRenew, token), letters[rng.IntN(4)]))
			until = t + 10
		}
		switch rng.IntN(4) {
		case 0: // it lets it end, and asks for it after that
			add(i, letGo(until+1, token))
			add(i, notHeld(until+1.01, record.OpUnlock, token, "nnn"))
			free[seat] = until + 1.2
		case 1: // it dies, or forgets it
			free[seat] = until + 0.2
		default:
			add(i, letGo(now+held, token))
			add(i, voted(did(now+held+0.01, record.OpUnlock, token), letters[rng.IntN(4)]))
			free[seat] = now + held + 0.0095 // the release begins before
		}
	}
	for i := range events {
		slices.SortStableFunc(events[i], func(a, b record.Event) int { return int(a.Boot - b.Boot) })
	}
	return events
}

// A sound run yields no certain finding, and nobody is accused: whichever records there are, wherever they begin and end, and whatever
// is missing in them.
func TestASoundRunAccusesNobody(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 52))
		var sources []story.Source
		var ahead [3]time.Duration // of other hosts, whose clocks are wrong
		for i := range ahead {
			if rng.IntN(3) == 0 {
				ahead[i] = time.Duration(rng.Int64N(int64(time.Hour)))
			}
		}
		for i, events := range soundWorld(rng, 1+rng.IntN(2), ahead) {
			f := forgery{name: string(rune('a' + i)), boot: "one", ahead: ahead[i]}
			if ahead[i] != 0 {
				f.boot = ""
			}
			from, to := 3, len(events)
			if rng.IntN(2) == 0 { // read before the others
				to = from + rng.IntN(to-from)
			}
			if rng.IntN(4) == 0 {
				f.gap = 4 + rng.IntN(40)
				lost := rng.IntN(10)
				if f.gap < to {
					events = slices.Concat(events[:f.gap], events[min(f.gap+lost, to):])
					to = min(to, len(events))
				}
			}
			if rng.IntN(8) > 0 {
				sources = append(sources, f.of(t, events[:to]...))
			}
		}
		if len(sources) == 0 {
			continue
		}
		for _, f := range tellOf(sources...).Findings {
			sure := !f.Maybe && (f.Matter == story.Overlap || f.Matter == story.Late || f.Matter == story.Loss)
			require.False(t, sure || accused(f) && f.Matter != story.Late, "seed %d: %s %s: %s", seed, f.Matter, f.Cause, f.Text)
		}
	}
}

// What several clients see of one master is told once, for as long as any has seen it. Another master, another phase, a later time,
// another end, and what has not ended are another matter.
func TestAnAbsenceIsToldOnce(t *testing.T) {
	t.Parallel()
	in := func(phase string, when float64, addr string) record.Event {
		e := met(when, addr, 0)
		e.Phase, e.Err = phase, "mux: "+addr+": EOF"
		return e
	}
	down := func(when float64, addr string) record.Event { return in("down", when, addr) }
	replaced := in("down", 5, "c:1")
	replaced.Err = "mux: it was replaced: by d:1"
	told := ofMatter(tellOf(
		forgery{name: "d"}.of(t, met(1, "a:1", 0), met(1, "b:1", 0), met(1, "c:1", 0), in("stalled", 2, "b:1"), down(2, "c:1"), down(3, "a:1"),
			met(4, "a:1", 0), met(5, "b:1", 0), replaced),
		forgery{name: "e"}.of(t, met(1, "c:1", 0), down(2, "c:1"), met(5, "c:1", 0)),
		forgery{name: "b"}.of(t, met(1, "a:1", 0), down(2.5, "a:1"), met(9, "a:1", 0), down(20, "a:1"), met(21, "a:1", 0)),
		forgery{name: "a"}.of(t, met(1, "a:1", 0), met(1, "b:1", 0), down(2, "a:1"), down(2, "b:1"), met(4, "a:1", 0), met(5, "b:1", 0)),
		forgery{name: "c"}.of(t, met(1, "a:1", 0), down(3, "a:1"))), story.Away)
	var all []string
	for _, f := range told {
		text, _, _ := strings.Cut(f.Text, " (")
		all = append(all, strings.TrimSuffix(text, "."))
		require.NotEmpty(t, f.Grounds)
	}
	require.ElementsMatch(t, []string{"a:1 was not connected for 6.5s, as a, b and d saw it", "b:1 was not connected for 3s, as a saw it",
		"b:1 was silent for 3s, as d saw it", "c:1 was not connected for 3s, as e saw it", "c:1 was not connected for 3s, until its place was given to another, as d saw it",
		"a:1 was not connected for 1s, as b saw it", "a:1 was not connected to the end of the record, as c saw it"}, all)
}

// Only who has a renewal on record is said to have renewed.
func TestALossSaysRenewedOnlyOfWhatWas(t *testing.T) {
	t.Parallel()
	for name, w := range map[string]struct {
		before []record.Event
		want   string
	}{
		"never":                 {join(took(2, 1)), "it was taken 9.5s before that, and not renewed, as too few masters answered"},
		"once":                  {join(took(2, 1), did(4, record.OpRenew, 1)), "it was renewed 9.5s before that, and not again, as too few masters answered"},
		"its attempt to failed": {join(took(2, 1), notRenewed(4, "yff")), "it was taken 9.5s before that, and not renewed, as too few masters answered"},
	} {
		t.Run(name, func(t *testing.T) {
			last := w.before[len(w.before)-1].Boot.Seconds()
			if name == "its attempt to failed" {
				last = 2
			}
			losses := ofMatter(tellOf(forgery{name: "a"}.of(t, join(known(met, 0.5, 0), w.before, notRenewed(last+3, "yff"), lostAt(last+9.5))...)), story.Loss)
			require.Len(t, losses, 1)
			require.Contains(t, losses[0].Text, w.want)
		})
	}
}

// Likewise of who lets a lock end. What may be in a gap of the record is not sure.
func TestAnEndingSaysRenewedOnlyOfWhatWas(t *testing.T) {
	t.Parallel()
	renewed := did(2, record.OpExtend, 1)
	for name, w := range map[string]struct {
		before []record.Event
		gap    int
		want   string
		maybe  bool
	}{
		"never":          {join(took(1, 1)), 0, "did not renew it, and", false},
		"once":           {join(took(1, 1), renewed), 0, "did not renew it again, and", false},
		"behind a gap":   {join(took(1, 1), renewed), 1, "did not renew it again, and", false},
		"before the gap": {join(took(1, 1), renewed), 2, "did not renew it again, and", true},
	} {
		t.Run(name, func(t *testing.T) {
			events := join(w.before, letGo(14, 1), notHeld(14.001, record.OpUnlock, 1, "nnn"))
			found := ofMatter(tellOf(forgery{name: "a", gap: w.gap}.of(t, events...)), story.Ending)
			require.Len(t, found, 1)
			require.Contains(t, found[0].Text, w.want)
			require.Equal(t, w.maybe, found[0].Maybe, found[0].Text)
		})
	}
}

// One fault ends many locks, and is told once. Whatever may be another fault is told beside it.
func TestLossesByOneFaultAreOneSentence(t *testing.T) {
	t.Parallel()
	of := func(e record.Event, key string) record.Event { e.Key = key; return e }
	said := func(e record.Event, detail string) record.Event { e.Detail = detail; return e }
	lost := func(n int, first, pause float64, letters string) (events []record.Event) {
		for i := range n { // all are held before the first is lost
			name := fmt.Sprintf("%s%d", letters, i)
			x, y := of(took(first-3, uint64(1+i)+uint64(first*1e6)), name), of(notRenewed(first-2, letters), name)
			y.Token = x.Token
			events = append(events, x, y)
		}
		for i := range n {
			events = append(events, of(lostAt(first+pause*float64(i)), fmt.Sprintf("%s%d", letters, i)))
		}
		return events
	}
	for name, w := range map[string]struct {
		records [][]record.Event // each of a party
		want    []string
	}{
		"one":                {[][]record.Event{lost(1, 5, 0, "yff")}, []string{`a lost "yff0"`}},
		"two":                {[][]record.Event{lost(2, 5, 0.5, "yff")}, []string{`a lost 2 locks within 500ms, for the same reason as far as the records say. The first: a lost "yff0"`}},
		"many":               {[][]record.Event{lost(60, 5, 0.01, "yff")}, []string{`a lost 60 locks within 590ms, for`}},
		"later":              {[][]record.Event{lost(2, 5, 1.5, "yff")}, []string{`a lost "yff0"`, `a lost "yff1"`}},
		"by other masters":   {[][]record.Event{join(lost(2, 5, 0.1, "yff"), lost(2, 5.05, 0.1, "ffy"))}, []string{`a lost 2 locks within 100ms`, `a lost 2 locks within 100ms`}},
		"by others at once":  {[][]record.Event{join(lost(2, 5, 0, "yff"), of(took(4.9, 9), "k"), of(lostAt(5), "k"))}, []string{`a lost "k"`, `a lost 2 locks within 0s`}},
		"for other reasons":  {[][]record.Event{join(of(took(4.9, 8), "k"), of(lostAt(5), "k"), of(took(4.9, 9), "l"), said(of(lostAt(5), "l"), "other"))}, []string{`a lost "k"`, `a lost "l"`}},
		"of another process": {[][]record.Event{lost(1, 5, 0, "yff"), lost(1, 5, 0, "yff")}, []string{`a lost "yff0"`, `b lost "yff0"`}},
	} {
		t.Run(name, func(t *testing.T) {
			var sources []story.Source
			for i, events := range w.records {
				slices.SortStableFunc(events, func(a, b record.Event) int { return cmp.Compare(a.Boot, b.Boot) })
				sources = append(sources, forgery{name: string(rune('a' + i)), boot: "one"}.of(t, join(known(met, 0.5, 0), events)...))
			}
			told := tellOf(sources...)
			var lines []string
			for _, line := range told.Remarkable() {
				if strings.Contains(line.Text, " lost ") {
					lines = append(lines, line.Text)
				}
			}
			slices.Sort(lines)
			require.Len(t, lines, len(w.want), "%v", lines)
			for i, want := range w.want {
				require.True(t, strings.HasPrefix(lines[i], want), lines[i])
			}
			if name == "many" {
				require.Regexp(t, `Others: "yff\d+", "yff\d+", "yff\d+" and 56 more\.$`, lines[0])
				require.Len(t, ofMatter(told, story.Loss), 60, "each is a finding")
				require.Len(t, regexp.MustCompile(`a lost "yff\d+"`).FindAllString(textOf(told.HTML("")), -1), 1, "the page has it once")
				require.Contains(t, textOf(told.HTML("yff7")), `a lost "yff7"`)
			}
		})
	}
}
