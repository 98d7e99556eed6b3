package main

import (
	"fmt"
	"math"
	"slices"
)

// A Spread is the median of a ratio over the rounds, and how sure it is. Low and High are two of the rounds'
// ratios, and have the true median between them with a probability of at least sure, whatever the
// distribution. Fewer than leastRounds allow no such interval; then both are NaN.
type Spread struct {
	Median, Low, High float64
	Rounds            int
}

// sure is how probable it is, at least, that an interval has the median in it; that takes leastRounds.
const (
	sure        = 0.9
	leastRounds = 5
)

// What makes an interval worthless: it is wider than so large a share of the median.
const (
	tooWide   = 0.5 // so nobody knows how large the ratio is
	tieIsWide = 0.1 // with 1 within, so nobody knows which of the two is faster; a narrower one says that they are equal
)

// spreadOf sorts the ratios of all rounds.
func spreadOf(all []float64) (Spread, bool) {
	n := len(all)
	if n == 0 {
		return Spread{}, false
	}
	slices.Sort(all)
	s := Spread{Median: (all[(n-1)/2] + all[n/2]) / 2, Low: math.NaN(), High: math.NaN(), Rounds: n}
	if k, ok := intervalRank(n); ok {
		s.Low, s.High = all[k], all[n-1-k]
	}
	return s, true
}

// intervalRank returns how many of n sorted values lie outside the interval of the median, at either end.
// A value is below the median with a probability of one half, so the number of those that are is
// binomial; the interval misses the median if it is at most k, or at least n-k.
func intervalRank(n int) (k int, ok bool) {
	p := math.Pow(0.5, float64(n)) // of exactly k values below
	below := p                     // of at most k
	for k = -1; 2*below <= 1-sure; k++ {
		p *= float64(n-k-1) / float64(k+2)
		below += p
	}
	return k, k >= 0
}

// Known reports whether there is an interval.
func (s Spread) Known() bool { return !math.IsNaN(s.Low) }

// Noisy reports whether the interval is too wide to say anything.
func (s Spread) Noisy() bool {
	width := (s.High - s.Low) / s.Median // NaN if it is not known, which is never more than anything
	return width > tooWide || s.Low < 1 && s.High > 1 && width > tieIsWide
}

// noiseMark stands before a ratio that is worthless.
const noiseMark = "⚠"

func (s Spread) String() string {
	switch {
	case s.Rounds == 1:
		return fmt.Sprintf("%.2f (one round)", s.Median)
	case !s.Known():
		return fmt.Sprintf("%.2f (%d rounds)", s.Median, s.Rounds)
	case s.Noisy():
		return fmt.Sprintf("%s %.2f [%.2f, %.2f]", noiseMark, s.Median, s.Low, s.High)
	}
	return fmt.Sprintf("%.2f [%.2f, %.2f]", s.Median, s.Low, s.High)
}
