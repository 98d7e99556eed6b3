package census

import (
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/stretchr/testify/require"
)

// counted is the tally of masters that have each said a row; those that say nil are silent.
func counted(rows ...*Row) *Tally {
	t := NewTally(len(rows))
	for i, r := range rows {
		if r != nil {
			t.Add(i, *r)
		}
	}
	return t
}

func row(holders ...Holder) *Row { return &Row{Holders: holders} }

func by(token string) Holder { return Holder{Token: conn.NewSecret(token), TTL: time.Second} }

func TestWhoLeads(t *testing.T) {
	x, y := row(by("x")), row(by("y"))
	for _, c := range []struct {
		rows       []*Row
		who        string
		held, open bool
	}{
		{[]*Row{row(), row(), row()}, "", false, false},
		{[]*Row{x, x, y}, "x", true, false},
		{[]*Row{y, x, x}, "x", true, false},
		{[]*Row{x, y, row()}, "x", false, false}, // the first of them
		{[]*Row{x, y, nil}, "x", false, true},    // who is silent could make it a majority
		{[]*Row{x, x, nil}, "x", true, false},    // it is one
		{[]*Row{x, nil, nil, row(), row()}, "x", false, true},
		{[]*Row{x, nil, row(), row(), row()}, "x", false, false},
	} {
		tally := counted(c.rows...)
		leader := tally.Leader()
		require.Equal(t, c.who, leader.Token.Reveal())
		require.Equal(t, c.held, leader.Held())
		require.Equal(t, c.open, tally.Open())
	}
}

// A token names a holder, a permit and a reader apart.
func TestAClaimIsOfOneHolder(t *testing.T) {
	permit := by("x")
	permit.Permit = 2
	tally := counted(row(by("x"), permit), &Row{Holders: []Holder{by("x")}, Readers: 1}, row(by("x"), permit))
	require.Len(t, tally.Claims, 3)
	require.Equal(t, []int{0, 2}, tally.Claims[0].On)
	require.Equal(t, []int{0, 2}, tally.Claims[1].On)
	require.True(t, tally.Claims[2].Reader)
}

// What is no lock is described by whoever can.
func TestWhatSomeSayOfAKey(t *testing.T) {
	long, kind := by("?"), by("?")
	long.Size, kind.Type = 700, "hash"
	small := long
	small.Size = 600
	other := kind
	other.Type = "list"
	for range 2 {
		c := counted(row(by("?")), row(long), row(small), row(kind), row(other)).Leader()
		require.Equal(t, int64(700), c.Size)
		require.Equal(t, "hash", c.Type, "as the first says who says one")
		long, small = small, long
	}
}

// The reason is what most give who say that a lock was revoked, whoever speaks last.
func TestOneMasterDoesNotGiveItsReasonForTheOthers(t *testing.T) {
	says := func(reason string) *Row {
		h := by("x")
		h.Revoked, h.Reason = true, reason
		return row(h)
	}
	for want, rows := range map[string][]*Row{
		"":          {says("no"), row(by("x")), row(by("x"))},
		"ours":      {says("ours"), says("ours"), says("another")},
		"yes":       {says("yes"), row(by("x")), says("yes")},
		"a | b | c": {says("b"), says("c"), says("a")},
	} {
		c := counted(rows...).Leader()
		require.Equal(t, want, c.Reason)
		require.Equal(t, want != "", c.Revoked)
	}
}

// A fence is what a majority remembers. Fewer masters can neither make one, nor hide it.
func TestTheFenceOfAMajority(t *testing.T) {
	says := func(fence uint64) *Row { return &Row{Holders: []Holder{by("x")}, Fence: fence} }
	for _, c := range []struct {
		rows  []*Row
		last  uint64 // that was given
		fence uint64 // of the holder
		agree bool
	}{
		{[]*Row{says(5), says(5), says(5)}, 5, 5, true},
		{[]*Row{says(5), says(9), says(5)}, 5, 5, false},
		{[]*Row{says(4), says(5), says(9)}, 5, 0, false},
		{[]*Row{says(5), says(5), nil}, 5, 5, true},
		{[]*Row{says(5), says(9), nil}, 5, 0, false},
		{[]*Row{says(5), nil, nil}, 0, 0, true},
	} {
		tally := counted(c.rows...)
		fence, agree := tally.Leader().Fence()
		require.Equal(t, []any{c.last, c.fence, c.agree}, []any{tally.Fence(), fence, agree})
	}
}

// A lock lasts until no majority has it any more, and one without an end for ever.
func TestHowLongAClaimLasts(t *testing.T) {
	says := func(ttl time.Duration) *Row { return row(Holder{Token: conn.NewSecret("x"), TTL: ttl}) }
	for _, c := range []struct {
		want time.Duration
		rows []*Row
	}{
		{3, []*Row{says(9), says(1), says(3)}},
		{1, []*Row{says(9), says(1), nil}},
		{9, []*Row{says(9), nil, nil}},
		{5, []*Row{says(NoExpiry), says(5), says(1)}},
		{NoExpiry, []*Row{says(NoExpiry), says(NoExpiry), says(1)}},
	} {
		require.Equal(t, c.want, counted(c.rows...).Leader().Lasts())
	}
	require.Zero(t, (&Claim{of: NewTally(3)}).Lasts())
}

// When a lock was taken is known by the fence that a clock has made, if a majority gave it its life together with the key.
func TestSinceWhenALockIsHeld(t *testing.T) {
	const memory, century = 24 * time.Hour, 100 * 365 * 24 * time.Hour
	at := time.UnixMicro(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).UnixMicro())
	says := func(fence time.Time, left, counter time.Duration) *Row {
		return &Row{Holders: []Holder{{Token: conn.NewSecret("x"), TTL: left}}, Fence: uint64(fence.UnixMicro()), FenceTTL: counter}
	}
	good := says(at, time.Second, memory+time.Second)
	reader := *good
	reader.Readers = 1
	for what, c := range map[string]struct {
		now   time.Time
		rows  []*Row
		known bool
	}{
		"all":                          {at.Add(time.Minute), []*Row{good, good, good}, true},
		"a majority":                   {at.Add(time.Minute), []*Row{good, says(at, time.Second, time.Hour-time.Minute/2), good}, true},
		"a minority":                   {at.Add(time.Minute), []*Row{good, says(at, time.Second, memory+time.Minute/2), row()}, false},
		"another fence":                {at.Add(time.Minute), []*Row{good, says(at.Add(1000), time.Second, memory+time.Second), row()}, false},
		"readers":                      {at.Add(time.Minute), []*Row{&reader, &reader, &reader}, false},
		"a clock that is a minute off": {at.Add(-time.Minute), []*Row{good, good, good}, true},
		"a clock that is further off":  {at.Add(-time.Minute - 1), []*Row{good, good, good}, false},
		"a century":                    {at.Add(century), []*Row{good, good, good}, true},
		"a number that is no time":     {at.Add(century + 1), []*Row{good, good, good}, false},
	} {
		want := time.Time{}
		if c.known {
			want = at
		}
		require.True(t, want.Equal(counted(c.rows...).Since(c.now)), what)
	}
	const moment = 20 * time.Millisecond
	for _, c := range []struct {
		counter, key time.Duration
		want         bool
	}{
		{memory + time.Second, time.Second, true},
		{memory + time.Second + moment, time.Second, true},
		{memory + time.Second + moment + 1, time.Second, false},
		{memory + time.Second - moment, time.Second, true},
		{memory + time.Second - moment - 1, time.Second, false},
		{memory, 0, false},
		{memory, NoExpiry, false},
		{time.Second, time.Second, false},
		{time.Minute + time.Second, time.Second, true},
	} {
		require.Equal(t, c.want, outlives(c.counter, c.key), c)
	}
}
