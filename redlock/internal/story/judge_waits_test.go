package story

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Who runs explain after a storm gets a sentence for each who has waited in it, and not one for each wait.
func TestManyWaitsAreOneSentence(t *testing.T) {
	at := time.Unix(1_800_000_000, 0)
	s := &Story{found: map[subject]int{}, leftOut: map[Matter]int{}}
	holder, few, many := &Party{Name: "holder"}, &Party{Name: "few"}, &Party{Name: "many"}
	s.Holds = append(s.Holds, &Hold{Party: holder, Key: "k", Taken: at, Ended: at.Add(time.Hour)}, &Hold{Party: holder, Key: "other", Taken: at, Ended: at.Add(time.Hour)})
	wait := func(p *Party, seconds int) {
		s.Waits = append(s.Waits, &Wait{Party: p, Key: "k", From: at.Add(time.Minute), To: at.Add(time.Minute + time.Duration(seconds)*time.Second), Outcome: "held"})
	}
	for i := range 3 {
		wait(few, 10+i)
	}
	for i := range 1000 {
		wait(many, 100+i)
	}
	wait(many, 1)
	s.judgeWaits(s.byKey(), 5*time.Second)
	of := map[*Party][]string{}
	for _, f := range s.Findings {
		for _, p := range []*Party{few, many} {
			if len(f.Text) > len(p.Name) && f.Text[:len(p.Name)] == p.Name {
				of[p] = append(of[p], f.Text)
			}
		}
		require.Contains(t, f.Text, fmt.Sprintf("holder had it for %s", Short(f.At.Sub(at.Add(time.Minute)))))
	}
	require.Len(t, of[few], 3)
	require.Len(t, of[many], 1)
	require.Contains(t, of[many][0], "1000 long waits")
	require.Contains(t, of[many][0], "18m19s")

	for _, holders := range []int{0, 1, 2} {
		s := &Story{found: map[subject]int{}, leftOut: map[Matter]int{}}
		for i := range 6 {
			s.Holds = append(s.Holds, &Hold{Party: holder, Key: "k", Holders: holders, Taken: at.Add(time.Duration(i) * time.Second), Ended: at.Add(time.Hour)})
		}
		s.Waits = []*Wait{{Party: few, Key: "k", From: at, To: at.Add(time.Minute), Outcome: "held"}}
		s.judgeWaits(s.byKey(), 0)
		require.Equal(t, holders == 1, strings.Contains(s.Findings[0].Text, "6 others had it, one after the other."), s.Findings[0].Text)
	}
}
