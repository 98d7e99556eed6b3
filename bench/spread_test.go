package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheIntervalIsThatOfTheTables(t *testing.T) {
	// The ranks of a sign test's interval of at least 90 %, as tables have them, counted from 0.
	for n, want := range map[int]int{1: -1, 4: -1, 5: 0, 7: 0, 8: 1, 9: 1, 11: 2, 13: 3, 15: 3, 20: 5, 30: 10, 100: 41} {
		k, ok := intervalRank(n)
		require.Equal(t, want, k, "%d rounds", n)
		require.Equal(t, want >= 0, ok)
	}
}

func TestTheIntervalHasTheMedianInIt(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{5, 9, 15, 30} {
		const times = 20_000
		within := 0
		for range times {
			all := make([]float64, n)
			for i := range all {
				all[i] = random.ExpFloat64() // lopsided, as latencies are; its median is ln 2
			}
			s, _ := spreadOf(all)
			if s.Low <= 0.693147 && 0.693147 <= s.High {
				within++
			}
		}
		require.GreaterOrEqual(t, float64(within)/times, sure-0.01, "%d rounds", n)
	}
}

func TestARatioThatSaysNothingIsMarked(t *testing.T) {
	for _, c := range []struct {
		name  string
		all   []float64
		cell  string
		noisy bool
	}{
		{"calm", []float64{1.6, 1.62, 1.63, 1.66, 1.7}, "1.63 [1.60, 1.70]", false},
		{"one wild round of many", []float64{1.6, 1.6, 1.6, 1.6, 1.7, 1.7, 1.7, 9}, "1.65 [1.60, 1.70]", false},
		{"noise", []float64{1.1, 1.5, 1.6, 2.4, 3}, "⚠ 1.60 [1.10, 3.00]", true},
		{"either may be the faster", []float64{0.9, 1, 1.05, 1.1, 1.2}, "⚠ 1.05 [0.90, 1.20]", true},
		{"equal", []float64{0.99, 1, 1, 1.01, 1.02}, "1.00 [0.99, 1.02]", false},
		{"few rounds", []float64{1, 2, 30}, "2.00 (3 rounds)", false},
		{"one round", []float64{44}, "44.00 (one round)", false},
	} {
		slices.Reverse(c.all)
		s, ok := spreadOf(c.all)
		require.True(t, ok)
		require.Equal(t, c.noisy, s.Noisy(), c.name)
		require.Equal(t, c.cell, s.String(), c.name)
	}
	_, ok := spreadOf(nil)
	require.False(t, ok)
}

func TestTheReportMarksNoise(t *testing.T) {
	at := func(us time.Duration) *Sample {
		s := newSample()
		s.Record(us * time.Microsecond)
		return s
	}
	result := func(name string, peer ...time.Duration) Result {
		r := Result{Case: Case{Name: name, About: name, metric: p50}, Contestants: []Contestant{{Name: ours}, {Name: "peer"}}}
		for _, us := range peer {
			r.Rounds = append(r.Rounds, []*Sample{at(100), at(us)})
		}
		return r
	}
	report := Report{Rounds: 5, Slice: time.Second, Results: []Result{
		result("calm", 190, 200, 200, 200, 210),
		result("noisy", 90, 100, 200, 300, 400),
	}}
	require.Equal(t, []string{"noisy, best peer ÷ redburst: ⚠ 2.00 [0.90, 4.00]"}, report.Noisy())
	text := string(report.markdown(""))
	require.Contains(t, text, "| 2.00 [1.90, 2.10] |\n")
	require.Contains(t, text, "| ⚠ 2.00 [0.90, 4.00] |\n")
	require.Contains(t, text, "⚠ marks a ratio that says nothing")
}
