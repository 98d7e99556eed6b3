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

func TestStandingOfALock(t *testing.T) {
	const second = time.Second
	a := func(ttl time.Duration) redlock.Holder { return redlock.Holder{Token: redlock.NewSecret("a"), TTL: ttl} }
	b := redlock.Holder{Token: redlock.NewSecret("b"), TTL: second}
	free1 := redlock.Holder{}
	down := redlock.Holder{Err: errors.New("down")}
	for name, test := range map[string]struct {
		holders []redlock.Holder
		state   state
		left    time.Duration
	}{
		"on all":                        {[]redlock.Holder{a(3 * second), a(second), a(2 * second)}, held, 2 * second},
		"on a majority":                 {[]redlock.Holder{a(3 * second), a(second), free1}, held, second},
		"without expiry on one":         {[]redlock.Holder{a(-1), a(second), a(2 * second)}, held, 2 * second},
		"without expiry on a majority":  {[]redlock.Holder{a(-1), a(-1), a(2 * second)}, held, -1},
		"on a minority":                 {[]redlock.Holder{a(second), free1, free1}, free, 0},
		"split":                         {[]redlock.Holder{a(second), b, free1, b, a(second)}, free, 0},
		"on a minority, and one down":   {[]redlock.Holder{a(second), down, free1}, unknown, 0},
		"on none, and a majority down":  {[]redlock.Holder{free1, down, down}, unknown, 0},
		"on none, and one down":         {[]redlock.Holder{free1, free1, down}, free, 0},
		"two of four":                   {[]redlock.Holder{a(second), a(second), free1, free1}, free, 0},
		"two of four, and one down":     {[]redlock.Holder{a(second), a(second), free1, down}, unknown, 0},
		"keys that are no locks":        {[]redlock.Holder{{Token: redlock.UnknownToken}, {Token: redlock.UnknownToken}, {Token: redlock.UnknownToken}}, held, 0},
		"the only master":               {[]redlock.Holder{a(second)}, held, second},
		"all down":                      {[]redlock.Holder{down, down, down}, unknown, 0},
		"one of five each, three down":  {[]redlock.Holder{a(second), b, down, down, down}, unknown, 0},
		"two of five, one of them down": {[]redlock.Holder{a(second), free1, free1, free1, down}, free, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := newLockStatus("k", answers(test.holders))
			require.Equal(t, test.state, s.state)
			require.Equal(t, test.left, s.left())
		})
	}
}

// What is said of a lock counts all masters: one that is silent has no fence, and may have another number of permits.
func TestSilentMastersCountInWhatIsSaidOfALock(t *testing.T) {
	down := answer{Holder: redlock.Holder{Err: errors.New("down")}}
	says := func(fence uint64, permits int) answer {
		return answer{row: census.Row{Fence: fence}, agreed: permits}
	}
	for name, test := range map[string]struct {
		all   []answer
		fence uint64
		other bool // there may be another number of permits
		says  int  // how many there are
	}{
		"all":                         {[]answer{says(7, 2), says(7, 2), says(9, 2)}, 7, false, 2},
		"a majority":                  {[]answer{says(7, 2), says(9, 2), down}, 7, false, 2},
		"a minority":                  {[]answer{says(9, 2), down, down}, 0, false, 2},
		"two of five":                 {[]answer{says(9, 0), says(9, 0), down, down, down}, 0, false, 0},
		"a minority has others":       {[]answer{says(0, 4), says(0, 0), says(0, 0)}, 0, false, 0},
		"a majority has others":       {[]answer{says(0, 4), says(0, 4), says(0, 2)}, 0, true, 4},
		"a majority may have others":  {[]answer{says(0, 4), says(0, 0), down}, 0, true, 4},
		"... of whom nobody is known": {[]answer{says(0, 2), down, down}, 0, false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := newPermitStatus("k", 2, test.all)
			require.Equal(t, test.fence, s.fence)
			require.Equal(t, test.other, s.check() != nil)
			require.Equal(t, test.says, s.agreed())
		})
	}
}

// Masters that are enough, and differ, are not too few.
func TestUnknownSaysWhatIsMissing(t *testing.T) {
	down := redlock.Holder{Err: errors.New("down")}
	one := redlock.Holder{Token: redlock.NewSecret("a"), TTL: time.Second}
	for want, all := range map[string][]redlock.Holder{
		"1 of 3 masters answered; 2 are needed":                        {one, down, down},
		"2 of 3 masters answered, and differ; 2 that agree are needed": {one, {}, down},
		"4 of 5 masters answered, and differ; 3 that agree are needed": {one, one, {}, {}, down},
		"0 of 1 master answered; 1 is needed":                          {down},
	} {
		s := newLockStatus("k", answers(all))
		require.Equal(t, unknown, s.state, want)
		require.Equal(t, want, s.tooFew())
		var out strings.Builder
		s.write(&terminal{Writer: &out})
		answered, _, _ := strings.Cut(want, ";")
		require.Contains(t, out.String(), "k: unknown, "+answered+"\n")
	}
}
