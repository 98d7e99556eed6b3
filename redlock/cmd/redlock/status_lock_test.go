package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/stretchr/testify/require"
)

// says is the answer of a master that names a holder.
func says(token string, ttl time.Duration) answer {
	h := census.Holder{Token: redlock.NewSecret(token), TTL: ttl}
	return answer{Holder: h, row: census.Row{Holders: []census.Holder{h}}}
}

func TestStandingOfALock(t *testing.T) {
	const second = time.Second
	a := func(ttl time.Duration) answer { return says("a", ttl) }
	b := says("b", second)
	free1 := answer{}
	down := answer{Err: errors.New("down")}
	for name, test := range map[string]struct {
		holders []answer
		state   state
		left    time.Duration
	}{
		"on all":                        {[]answer{a(3 * second), a(second), a(2 * second)}, held, 2 * second},
		"on a majority":                 {[]answer{a(3 * second), a(second), free1}, held, second},
		"without expiry on one":         {[]answer{a(-1), a(second), a(2 * second)}, held, 2 * second},
		"without expiry on a majority":  {[]answer{a(-1), a(-1), a(2 * second)}, held, -1},
		"on a minority":                 {[]answer{a(second), free1, free1}, free, 0},
		"split":                         {[]answer{a(second), b, free1, b, a(second)}, free, 0},
		"on a minority, and one down":   {[]answer{a(second), down, free1}, unknown, 0},
		"on none, and a majority down":  {[]answer{free1, down, down}, unknown, 0},
		"on none, and one down":         {[]answer{free1, free1, down}, free, 0},
		"two of four":                   {[]answer{a(second), a(second), free1, free1}, free, 0},
		"two of four, and one down":     {[]answer{a(second), a(second), free1, down}, unknown, 0},
		"keys that are no locks":        {[]answer{says("?", 0), says("?", 0), says("?", 0)}, held, 0},
		"the only master":               {[]answer{a(second)}, held, second},
		"all down":                      {[]answer{down, down, down}, unknown, 0},
		"one of five each, three down":  {[]answer{a(second), b, down, down, down}, unknown, 0},
		"two of five, one of them down": {[]answer{a(second), free1, free1, free1, down}, free, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newLockStatus("k", test.holders)
			require.Equal(t, test.state, s.state)
			require.Equal(t, test.left, s.left())
		})
	}
}

// What is said of a lock counts all masters: one that is silent has no fence, and may have another number of permits.
func TestSilentMastersCountInWhatIsSaidOfALock(t *testing.T) {
	down := answer{Err: errors.New("down")}
	has := func(fence uint64, permits int) answer {
		return answer{row: census.Row{Fence: fence}, agreed: permits}
	}
	for name, test := range map[string]struct {
		all   []answer
		fence uint64
		other bool // there may be another number of permits
		says  int  // how many there are
	}{
		"all":                         {[]answer{has(7, 2), has(7, 2), has(9, 2)}, 7, false, 2},
		"a majority":                  {[]answer{has(7, 2), has(9, 2), down}, 7, false, 2},
		"a minority":                  {[]answer{has(9, 2), down, down}, 0, false, 2},
		"two of five":                 {[]answer{has(9, 0), has(9, 0), down, down, down}, 0, false, 0},
		"a minority has others":       {[]answer{has(0, 4), has(0, 0), has(0, 0)}, 0, false, 0},
		"a majority has others":       {[]answer{has(0, 4), has(0, 4), has(0, 2)}, 0, true, 4},
		"a majority may have others":  {[]answer{has(0, 4), has(0, 0), down}, 0, true, 4},
		"... of whom nobody is known": {[]answer{has(0, 2), down, down}, 0, false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := newPermitStatus("k", 2, test.all)
			require.Equal(t, test.fence, s.fence)
			require.Equal(t, test.other, s.check() != nil)
			require.Equal(t, test.says, s.agreed())
		})
	}
}

// For a moment, waiters can stand in the queues of two masters. The longer one is told, and nobody twice.
func TestTheLineIsThatOfOneMaster(t *testing.T) {
	line := func(names ...string) (a answer) {
		for _, name := range names {
			a.row.Waiters = append(a.row.Waiters, census.Waiter{Owner: name})
		}
		return a
	}
	for _, all := range [][]answer{{line("a"), line("a", "b"), {}}, {line("a", "b"), {}, line("b")}, {line("a"), {}, line("a", "b")}} {
		var names []string
		for _, w := range newLockStatus("k", all).waiters {
			names = append(names, w.Owner)
		}
		require.Equal(t, []string{"a", "b"}, names)
	}
}

// Masters that are enough, and differ, are not too few.
func TestUnknownSaysWhatIsMissing(t *testing.T) {
	down := answer{Err: errors.New("down")}
	one := says("a", time.Second)
	for want, all := range map[string][]answer{
		"1 of 3 masters answered; 2 are needed":                        {one, down, down},
		"2 of 3 masters answered, and differ; 2 that agree are needed": {one, {}, down},
		"4 of 5 masters answered, and differ; 3 that agree are needed": {one, one, {}, {}, down},
		"0 of 1 master answered; 1 is needed":                          {down},
	} {
		s := newLockStatus("k", all)
		require.Equal(t, unknown, s.state, want)
		require.Equal(t, want, s.tooFew())
		var out strings.Builder
		s.write(&terminal{Writer: &out})
		answered, _, _ := strings.Cut(want, ";")
		require.Contains(t, out.String(), "k: unknown, "+answered+"\n")
	}
}
