package story_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/internal/record"
	"github.com/redburst/redburst/redlock/internal/story"
	"github.com/stretchr/testify/require"
)

// A forgery is a record that no client has written.
type forgery struct {
	name  string
	ahead time.Duration // its wall clock, of the time since boot
	boot  string        // the name, if it is empty
	about func(a *record.About)
	gap   int // after so many events, some are missing; 0 for none
}

var (
	noon   = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	crc32c = crc32.MakeTable(crc32.Castagnoli)
)

// of is the record of the events. Their times are since boot, and all hosts were booted at noon.
func (f forgery) of(t testing.TB, events ...record.Event) story.Source {
	t.Helper()
	about := record.About{Host: f.name, PID: 1, Boot: f.boot, Program: "forged", Began: noon.Add(f.ahead),
		Clients: []record.Client{{Owner: f.name, List: "3", Masters: []string{"a:1", "b:1", "c:1"}}}}
	if about.Boot == "" {
		about.Boot = f.name
	}
	if f.about != nil {
		f.about(&about)
	}
	const pageBytes = 1 << 20
	var pages [][]byte
	var p []byte
	first, number, boot := uint64(0), uint64(1), time.Duration(0)
	turn := func() {
		if p != nil {
			pages = append(pages, append(p, make([]byte, pageBytes-len(p))...))
		}
		first = number
		p = binary.LittleEndian.AppendUint64(nil, first)
		p = binary.LittleEndian.AppendUint64(p, uint64(boot))
		p = binary.LittleEndian.AppendUint64(p, uint64(noon.UnixNano())+uint64(boot+f.ahead))
		p = binary.LittleEndian.AppendUint32(p, crc32.Checksum(p, crc32c))
		p = append(p, 0, 0, 0, 0)
	}
	turn()
	for i := range events {
		if f.gap > 0 && i == f.gap {
			number += 10
			turn()
		}
		body := encode(&events[i], events[i].Boot-boot)
		if len(p)+6+len(body)+2 > pageBytes {
			turn()
		}
		boot = events[i].Boot
		sum := binary.LittleEndian.AppendUint64(nil, first)
		sum = append(binary.LittleEndian.AppendUint64(sum, number), body...)
		p = binary.LittleEndian.AppendUint16(p, uint16(len(body)))
		p = append(binary.LittleEndian.AppendUint32(p, crc32.Checksum(sum, crc32c)), body...)
		number++
	}
	turn()
	head := binary.LittleEndian.AppendUint32([]byte("redlock\xf1"), 1)
	head = binary.LittleEndian.AppendUint32(head, pageBytes)
	head = binary.LittleEndian.AppendUint32(head, uint32(len(pages)))
	head = binary.LittleEndian.AppendUint32(head, crc32.Checksum(head, crc32c))
	head = append(head, make([]byte, 64-len(head))...)
	text, err := json.Marshal(about)
	require.NoError(t, err)
	who := binary.LittleEndian.AppendUint64(nil, 1)
	who = binary.LittleEndian.AppendUint32(who, uint32(len(text)))
	who = binary.LittleEndian.AppendUint32(who, crc32.Update(crc32.Checksum(who, crc32c), crc32c, text))
	head = append(append(head, who...), text...)
	head = append(head, make([]byte, 64<<10-len(head))...)
	r, err := record.Read(bytes.NewReader(bytes.Join(append([][]byte{head}, pages...), nil)))
	require.NoError(t, err)
	return story.Source{Name: f.name + ".flight", Record: r}
}

func encode(e *record.Event, since time.Duration) []byte {
	u := binary.AppendUvarint
	text := func(b []byte, s string) []byte {
		if s == "" {
			return u(b, 0)
		}
		return append(u(u(b, 1), uint64(len(s))), s...)
	}
	b := u([]byte{byte(e.Kind)}, uint64(e.Client))
	set := time.Duration(0)
	if !e.Wall.IsZero() {
		set = e.Wall.Sub(noon)
	}
	b = binary.AppendVarint(binary.AppendVarint(b, int64(since)), int64(set))
	b = text(b, e.Key)
	hash := func() { b = binary.LittleEndian.AppendUint64(b, e.Token) }
	switch e.Kind {
	case record.KindRound:
		b = append(text(text(text(b, e.Op), e.Outcome), e.Detail), 1)
		for _, n := range []uint64{uint64(e.Took), uint64(e.Validity), 0, uint64(e.TTL), 0, 3, uint64(e.Holders), e.Fence} {
			b = u(b, n)
		}
		hash()
		b = u(b, uint64(len(e.Keys)))
		for _, key := range e.Keys {
			b = text(b, key)
		}
		b = u(b, uint64(len(e.Votes)))
		for _, v := range e.Votes {
			b = append(b, byte(v.Verdict))
			if v.Verdict == record.Failed {
				b = text(b, v.Err)
			} else {
				b = u(b, uint64(v.RTT))
			}
		}
	case record.KindHandedOver:
		b = u(u(b, e.Fence), uint64(e.Validity))
		hash()
	case record.KindLetGo:
		b = append(b, 0)
		hash()
	case record.KindDropped:
		b = u(u(b, e.Dropped), uint64(e.Boot-e.Began))
	case record.KindLost:
		if b = text(text(b, e.Outcome), e.Detail); e.Token != 0 {
			hash()
		}
	case record.KindWaited:
		b = u(text(text(b, e.Outcome), e.Detail), uint64(e.Waited))
	case record.KindMaster, record.KindAsked:
		b = binary.AppendVarint(text(text(text(b, e.Phase), e.Err), e.RunID), int64(e.Ahead))
		b = u(u(b, uint64(e.Within)), uint64(e.Uptime))
		if e.Place > 0 {
			b = u(b, uint64(e.Place)+1)
		}
	}
	return b
}

// at is when, in seconds since boot.
func at(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

var yes = []record.Vote{{Verdict: record.Yes}, {Verdict: record.Yes}, {Verdict: record.Yes}}

// did is a round on the lock k, which lasts for 10 s.
func did(when float64, op string, token uint64) record.Event {
	return record.Event{Kind: record.KindRound, Boot: at(when), Key: "k", Op: op, Outcome: "ok", Took: time.Millisecond, TTL: 10 * time.Second, Validity: 10 * time.Second,
		Holders: 1, Token: token, Votes: yes}
}

func took(when float64, token uint64) record.Event { return did(when, record.OpLock, token) }

func fenced(when float64, token, fence uint64) record.Event {
	e := took(when, token)
	e.Fence = fence
	return e
}

func letGo(when float64, token uint64) record.Event {
	return record.Event{Kind: record.KindLetGo, Boot: at(when), Key: "k", Token: token}
}

// set is an event before which the wall clock has gone ahead of the one since boot.
func set(e record.Event, by time.Duration) record.Event {
	e.Wall = noon.Add(by)
	return e
}

// met is what was seen of a master of which a clock that says the right time is ahead of the record's wall clock by so much.
func met(when float64, addr string, ahead time.Duration) record.Event {
	return record.Event{Kind: record.KindMaster, Boot: at(when), Key: addr, Phase: "up", RunID: "run of " + addr, Ahead: cmp.Or(ahead, 1), Within: time.Millisecond}
}

func overlaps(told *story.Story) (certain, maybe int) {
	for _, f := range told.Findings {
		if f.Matter == story.Overlap && f.Maybe {
			maybe++
		} else if f.Matter == story.Overlap {
			certain++
		}
	}
	return certain, maybe
}

func tellOf(sources ...story.Source) *story.Story { return story.Tell(sources, time.Hour) }

// Who is given a lock by its token has it from then on, and may release it.
func TestALockThatAnotherProcessReleasesIsOver(t *testing.T) {
	t.Parallel()
	a := forgery{name: "a", boot: "one"}.of(t, took(1, 1), did(20, record.OpLock, 9))
	b := forgery{name: "b", boot: "one"}.of(t, did(2, record.OpExtend, 1), letGo(3, 1), did(3.1, record.OpUnlock, 1))
	c := forgery{name: "c", boot: "one"}.of(t, took(4, 2), letGo(5, 2))
	for range 3 {
		certain, maybe := overlaps(tellOf(a, b, c))
		require.Zero(t, certain+maybe)
		a, b, c = c, a, b // in any order
	}
}

// The same lock of two records is one.
func TestARecordThatIsGivenTwiceOverlapsNone(t *testing.T) {
	t.Parallel()
	permit := func(when float64, token uint64) record.Event {
		e := took(when, token)
		e.Holders = 2
		return e
	}
	a := forgery{name: "a"}.of(t, permit(1, 1), permit(2, 2), letGo(4, 1), letGo(4, 2))
	told := tellOf(a, a)
	require.Empty(t, told.Findings)
	require.NotEqual(t, told.Parties[0].Name, told.Parties[1].Name)
	told = tellOf(a, forgery{name: "b", boot: "a"}.of(t, permit(3, 3)))
	certain, _ := overlaps(told)
	require.Equal(t, 1, certain)
}

func TestPartiesHaveNamesOfTheirOwn(t *testing.T) {
	t.Parallel()
	twin := func(a *record.About) { a.Clients = append(a.Clients, a.Clients[0], a.Clients[0]) }
	told := tellOf(forgery{name: "a", about: twin}.of(t), forgery{name: "b", about: twin}.of(t), forgery{name: "c"}.of(t))
	seen := map[string]bool{}
	for _, p := range told.Parties {
		require.False(t, seen[p.Name], p.Name)
		seen[p.Name] = true
		require.LessOrEqual(t, strings.Count(p.Name, " of "), 1, p.Name)
	}
}

// Clocks that nothing puts together prove nothing, whatever else is known of each.
func TestClocksThatAreNotPutTogetherProveNothing(t *testing.T) {
	t.Parallel()
	a := forgery{name: "a"}.of(t, met(0.5, "a:1", 0))
	b := forgery{name: "b"}.of(t, met(0.5, "a:1", 0), took(1, 1), letGo(3, 1), met(20, "a:1", 0))
	c := forgery{name: "c", ahead: -2 * time.Second}.of(t, took(4, 2), letGo(5, 2)) // of no master
	told := tellOf(a, b, c)
	certain, maybe := overlaps(told)
	require.Equal(t, []int{0, 1}, []int{certain, maybe})
	for _, f := range told.Findings {
		if f.Matter == story.Overlap {
			require.Contains(t, f.Text, "only if the wall clocks of both are right")
		}
	}
}

// Fences that go back move no clock that the masters have placed, and none beside which they have placed others.
func TestFencesMoveNoClockThatMastersPlace(t *testing.T) {
	t.Parallel()
	a := forgery{name: "a"}.of(t, met(0.5, "a:1", 0), fenced(30, 1, 100), letGo(31, 1))
	b := forgery{name: "b"}.of(t, met(0.5, "a:1", 0), fenced(10, 2, 200), letGo(11, 2))
	for _, sources := range [][]story.Source{{a, b}, {b, a}} {
		told := tellOf(sources...)
		for _, p := range told.Parties {
			require.Less(t, p.Clock.Off.Abs(), 100*time.Millisecond, p.Name)
		}
		require.Equal(t, 20*time.Second, told.Holds[1].Taken.Sub(told.Holds[0].Taken).Round(time.Second))
	}
}

// Clocks that masters have put together stay so when fences move them.
func TestFencesMoveClocksTogether(t *testing.T) {
	t.Parallel()
	a := forgery{name: "a"}.of(t, met(0.5, "a:1", 0), fenced(10, 1, 100), letGo(11, 1))
	b := forgery{name: "b", ahead: -time.Hour}.of(t, met(0.5, "x:1", time.Hour), fenced(20, 2, 200), letGo(21, 2))
	c := forgery{name: "c", ahead: -time.Hour}.of(t, met(0.5, "x:1", time.Hour), took(22, 3), letGo(23, 3))
	told := tellOf(a, b, c)
	require.Len(t, told.Holds, 3)
	require.Equal(t, "a", told.Holds[0].Party.Name)
	require.Equal(t, "b", told.Holds[1].Party.Name)
	require.Equal(t, 2*time.Second, told.Holds[2].Taken.Sub(told.Holds[1].Taken).Round(time.Second))
}

// No sum of small moves is a large one.
func TestFencesMoveAClockByLittle(t *testing.T) {
	t.Parallel()
	var one, two []record.Event
	one, two = append(one, met(0.1, "a:1", 0)), append(two, met(0.1, "a:1", 0))
	for i := range 20 { // the fence of each key goes back, a little more each
		for _, x := range []struct {
			events *[]record.Event
			when   float64
			fence  uint64
		}{{&one, 10 + 0.04*float64(i+1), 1}, {&two, 10, 2}} {
			e := fenced(x.when, uint64(100*i)+x.fence, x.fence)
			e.Key = fmt.Sprint("k", i)
			*x.events = append(*x.events, e)
		}
	}
	told := tellOf(forgery{name: "a"}.of(t, one...), forgery{name: "b"}.of(t, two...))
	for _, p := range told.Parties {
		require.Less(t, p.Clock.Off.Abs(), 60*time.Millisecond)
	}
}

// A record has the first 1,024 bytes of a key, and leaves names out when an event is too large.
func TestNamesThatAreCutAreNotTheSame(t *testing.T) {
	t.Parallel()
	cut := func(when float64, token uint64) record.Event {
		e := took(when, token)
		e.Key = strings.Repeat("k", 1024)
		return e
	}
	several := func(when float64, token uint64, keys ...string) record.Event {
		e := took(when, token)
		e.Key, e.Keys = keys[0], keys
		return e
	}
	a := forgery{name: "a", boot: "one"}.of(t, cut(1, 1), several(1, 2, "a", ""), met(20, "a:1", 0))
	b := forgery{name: "b", boot: "one"}.of(t, cut(2, 3), several(2, 4, "b", ""), met(20, "a:1", 0))
	certain, maybe := overlaps(tellOf(a, b))
	require.Equal(t, []int{0, 1}, []int{certain, maybe})
}

// A record that does not say whose events it has, or not of all, is not silent about that.
func TestARecordSaysWhatItDoesNotHave(t *testing.T) {
	t.Parallel()
	for _, about := range []func(a *record.About){func(a *record.About) { a.Clients = nil }, func(a *record.About) { a.LeftOut = 3 }} {
		told := tellOf(forgery{name: "a", about: about}.of(t, took(1, 1)))
		require.Len(t, told.Findings, 1)
		require.Equal(t, story.Gap, told.Findings[0].Matter)
		require.NotEmpty(t, told.HTML(""))
		require.Greater(t, told.Findings[0].At.Year(), 2000)
	}
	ended := noon.Add(time.Minute)
	for want, about := range map[string]func(a *record.About){"to 12:01:00.000. 10 events before": func(a *record.About) { a.Ended = &ended },
		"Nothing of it is in the record any more. 10 events before": func(*record.About) {}} {
		other := took(1, 1)
		other.Client = 1
		told := tellOf(forgery{name: "a", gap: 1, about: about}.of(t, other, other))
		require.Contains(t, told.Who()[0], want)
	}
}

// An extension that meets its lock's release finds nothing, which is no loss. Its holder has let go by then.
func TestAnExtensionThatMeetsTheReleaseIsNoLoss(t *testing.T) {
	t.Parallel()
	met := did(5, record.OpExtend, 1)
	met.Outcome, met.Validity = "not_held", 0
	first := []record.Event{took(1, 1), letGo(2, 1), met, did(2.1, record.OpUnlock, 1)}
	for _, events := range [][]record.Event{first, {first[0], first[1], first[3], first[2]}} {
		told := tellOf(forgery{name: "a", boot: "one"}.of(t, events...), forgery{name: "b", boot: "one"}.of(t, took(3, 2), letGo(4, 2)))
		require.Empty(t, told.Findings)
		require.Equal(t, story.Released, told.Holds[0].End)
	}
}

// The release of one that has handed its lock over is told when another has it. It does not end that one's.
func TestAReleaseIsOfTheOneThatHasLetGo(t *testing.T) {
	t.Parallel()
	first := join(took(1, 1), letGo(2, 1))
	given := func(when float64) record.Event {
		return record.Event{Kind: record.KindHandedOver, Boot: at(when), Key: "k", Token: 1, Validity: 9 * time.Second}
	}
	release := begunAt(did(2.3, record.OpUnlock, 1), 2.05)
	other := forgery{name: "b", boot: "one"}.of(t, took(11.5, 2), letGo(11.7, 2))
	for name, begun := range map[string][]record.Event{
		"told after the next one has it": join(first, given(2.1), release),
		"told before":                    join(first, release, given(2.4)), // with a fence
		"it was taken before the record": join(given(2.1), release),
		"two have handed it over":        join(first, given(2.1), letGo(2.15, 1), given(2.2), release, begunAt(did(2.4, record.OpUnlock, 1), 2.3)),
		"told after the next has let go": join(first, given(2.1), letGo(2.2, 1), release, given(2.35), begunAt(did(2.4, record.OpUnlock, 1), 2.38)),
		"it is not had any more":         join(first, given(2.1), begunAt(notHeld(2.3, record.OpUnlock, 1, "nny"), 2.05)),
	} {
		t.Run(name, func(t *testing.T) {
			a := forgery{name: "a", boot: "one"}.of(t, join(begun, did(8, record.OpRenew, 1), letGo(12, 1), did(12.1, record.OpUnlock, 1))...)
			told := tellOf(a, other)
			certain, maybe := overlaps(told)
			require.Equal(t, []int{1, 0}, []int{certain, maybe}, told.Findings)
			last := told.Holds[len(told.Holds)-2]
			require.Equal(t, story.Released, last.End)
			require.Equal(t, noon.Add(at(12)), last.Ended)
			lost := forgery{name: "a", boot: "one"}.of(t, join(begun, notHeld(8, record.OpRenew, 1, "nny"))...)
			losses := ofMatter(tellOf(lost), story.Loss)
			require.Len(t, losses, 1)
			require.Equal(t, record.OpRenew, losses[0].Grounds[0].Event.Op)
		})
	}
	failed := did(3.5, record.OpUnlock, 1) // its context has ended, after the next one has let go
	failed.Outcome = "no_quorum"
	told := tellOf(forgery{name: "a"}.of(t, join(first, given(2.1), letGo(3, 1), failed, did(3.6, record.OpUnlock, 1))...))
	require.NotNil(t, told.Holds[0].Freed)
	require.Equal(t, "no_quorum", told.Holds[0].Freed.Outcome)
	require.Equal(t, "ok", told.Holds[1].Freed.Outcome)
}

// Who takes a lock while a group fails over asks its masters again before it is told that it has the lock.
func TestALockThatWasRecheckedIsOne(t *testing.T) {
	t.Parallel()
	told := tellOf(forgery{name: "a"}.of(t, did(1.2, record.OpRecheck, 1), fenced(1, 1, 7), letGo(5, 1), did(5.1, record.OpUnlock, 1), fenced(6, 1, 8))) // with a token of its own
	require.Len(t, told.Holds, 2)
	h := told.Holds[0]
	require.Equal(t, []time.Time{noon.Add(at(1)), noon.Add(at(11.2))}, []time.Time{h.Taken, h.Until})
	require.Equal(t, story.Released, h.End)
	require.EqualValues(t, 7, h.Fence)
	require.NotNil(t, h.First)
}

// A loss is that of the lock that it names. Older records do not name it.
func TestALossIsOfTheLockThatItNames(t *testing.T) {
	t.Parallel()
	of := func(e record.Event, token uint64, holders int) record.Event {
		e.Token, e.Holders = token, holders
		return e
	}
	for name, w := range map[string]struct {
		events []record.Event
		gap    int
		lost   []uint64 // tokens
	}{
		"of two permits":             {join(of(took(1, 1), 1, 3), of(took(2, 2), 2, 3), of(lostAt(5), 2, 0)), 0, []uint64{2}},
		"another is taken meanwhile": {join(took(1, 1), took(4, 2), of(lostAt(4.1), 1, 0)), 0, []uint64{1}},
		"it is not in the record":    {join(took(1, 1), of(lostAt(14), 2, 0)), 0, nil},
		"it is told twice":           {join(took(1, 1), took(12, 2), of(lostAt(15), 2, 0), of(lostAt(15.1), 2, 0)), 0, []uint64{2}},
		"not named, a former one":    {join(took(1, 1), took(12, 2), lostAt(15)), 0, []uint64{2}},
		"... and told twice":         {join(took(1, 1), took(12, 2), lostAt(15), lostAt(15.1)), 0, []uint64{2}},
		"... and found by a round":   {join(took(1, 1), notHeld(3, record.OpRenew, 1, "nnn"), took(4, 2), lostAt(4.1)), 0, []uint64{1}},
		"... and two are":            {join(took(1, 1), notHeld(3, record.OpRenew, 1, "nnn"), took(4, 2), lostAt(4.1), lostAt(5)), 0, []uint64{1, 2}},
		"... and events are missing": {join(took(1, 1), lostAt(14)), 1, nil},
		"... of two permits":         {join(of(took(1, 1), 1, 3), of(took(2, 2), 2, 3), lostAt(11.5), lostAt(11.6)), 0, []uint64{1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			var lost []uint64
			told := tellOf(forgery{name: "a", boot: "one", gap: w.gap}.of(t, w.events...), forgery{name: "b", boot: "one"}.of(t, took(12.5, 9), letGo(13, 9)))
			for _, h := range told.Holds {
				if !h.Told.IsZero() && h.End == story.Lost {
					lost = append(lost, h.Token)
				}
			}
			require.Equal(t, w.lost, lost)
			if w.lost == nil {
				require.Empty(t, ofMatter(told, story.Late))
			}
		})
	}
}

// What somebody has made up may be too much. It ends all the same, and the story says what it leaves out.
func TestTooMuchIsLeftOut(t *testing.T) {
	t.Parallel()
	many := func(n, holders int) []record.Event {
		var all []record.Event
		for i := range n {
			e := took(1+1e-5*float64(i), uint64(i+1))
			e.Holders, e.Validity = holders, 90*time.Hour
			all = append(all, e)
		}
		for i := range n {
			all = append(all, letGo(2, uint64(i+1)))
		}
		return all
	}
	told := tellOf(forgery{name: "a"}.of(t, many(300, 1)...))
	certain, _ := overlaps(told)
	require.Equal(t, 201, certain, "one counts the others")
	require.Contains(t, told.Findings[0].Text, fmt.Sprintf("%d findings left out", 300*299/2-200))
	told = tellOf(forgery{name: "a"}.of(t, many(12_000, 0)...))
	require.Len(t, told.Findings, 1)
	require.Contains(t, told.Findings[0].Text, "too much in these records to compare")
}

// Some 64 KiB that somebody has made up, with long names in each of many sentences, cost a few megabytes.
func TestASmallRecordCostsLittle(t *testing.T) {
	t.Parallel()
	var masters, keys []string
	var begun, ended []record.Event
	for i := range 64 {
		masters = append(masters, fmt.Sprint(strings.Repeat("m", 420), i, ":1"))
		keys = append(keys, fmt.Sprint("k", i))
		begun = append(begun, met(0.1, masters[i], 0))
	}
	votes := func(v record.Verdict) []record.Vote { return slices.Repeat([]record.Vote{{Verdict: v}}, len(masters)) }
	for i := range 140 {
		e, end := took(1+1e-3*float64(i), uint64(i+1)), letGo(2+1e-3*float64(i), uint64(i+1))
		if i%2 == 0 {
			end = notHeld(end.Boot.Seconds()-begun[0].Boot.Seconds(), record.OpRenew, end.Token, "")
			end.Keys, end.Votes = keys, votes(record.No)
		}
		e.Keys, e.Votes = keys, votes(record.Yes)
		begun, ended = append(begun, e), append(ended, end)
	}
	record := forgery{name: "a", about: func(a *record.About) { a.Clients[0].Masters = masters }}.of(t, append(begun, ended...)...)
	told := tellOf(record)
	size := len(told.HTML(""))
	for _, f := range told.Findings {
		size += len(f.Text)
	}
	require.NotEmpty(t, told.Findings)
	require.Less(t, size, 32<<20)
}

// A lock whose second one is lost is given back while its KeepAlive is told, so that the next one may have it before that is recorded.
func TestALostSecondLockOverlapsNone(t *testing.T) {
	t.Parallel()
	lost := record.Event{Kind: record.KindLost, Boot: at(2.001), Key: "k", Outcome: "lost", Detail: "redlock: renew \"k\": lock lost: the second lock failed: gone"}
	certain, maybe := overlaps(tellOf(forgery{name: "a", boot: "one"}.of(t, took(1, 1), lost), forgery{name: "b", boot: "one"}.of(t, took(2, 2))))
	require.Zero(t, certain+maybe)
}

// What a record has not been given in time is a gap: its client may have let go of a lock meanwhile.
func TestEventsThatWereLeftOutAreAGap(t *testing.T) {
	t.Parallel()
	gap := record.Event{Kind: record.KindDropped, Boot: at(4), Began: at(2), Dropped: 100}
	next := forgery{name: "next", boot: "one"}.of(t, took(5, 2))
	for _, left := range []bool{false, true} {
		events := []record.Event{took(1, 1), met(8, "a:1", 0)}
		if left {
			events = []record.Event{events[0], gap, events[1]}
		}
		told := tellOf(forgery{name: "first", boot: "one"}.of(t, events...), next)
		certain, maybe := overlaps(told)
		require.Equal(t, []int{0, map[bool]int{false: 1}[left]}, []int{certain, maybe}, told.Findings)
		gaps := causes(told, story.Gap)
		require.Len(t, gaps, map[bool]int{true: 1}[left])
		ended := tellOf(forgery{name: "first", boot: "one"}.of(t, append(events, met(20, "a:1", 0))...))
		for _, told := range []*story.Story{told, ended} {
			require.Equal(t, left, strings.Contains(fmt.Sprint(told.Of("k")), "Events are missing: whether it has"))
			require.Equal(t, left, strings.Contains(string(told.HTML("k")), `"gap":true`))
		}
		if left {
			require.Contains(t, fmt.Sprint(told.Findings), "100 events of first are missing in the record")
			require.Contains(t, strings.Join(told.Who(), "\n"), "100 events before or amid these are not in it")
		}
	}
}
