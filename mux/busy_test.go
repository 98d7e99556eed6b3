package mux

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
)

func TestBusyPollThatMakesNoSenseIsRefused(t *testing.T) {
	t.Parallel()
	for d, wrong := range map[time.Duration]bool{-1: true, 0: false, 1: !conn.CanBusyPoll, maxBusyPoll: !conn.CanBusyPoll, maxBusyPoll + 1: true, time.Second: true} {
		_, err := prepare(Config{Masters: []string{"a:1"}, BusyPoll: d})
		switch {
		case !wrong:
			require.NoError(t, err, "%v", d)
		case d < 0 || d > maxBusyPoll:
			require.EqualError(t, err, fmt.Sprintf("mux: a busy poll of %v is not within 0 and 10ms", d))
		default:
			require.EqualError(t, err, "mux: busy polling needs Linux: elsewhere BusyPoll must be zero")
		}
	}
}

// Masters at some distance, and a goroutine that takes some time to come back once it has parked.
type distance struct{ away, back time.Duration }

// operations has operations ask for replies, one after the other. It returns what they took altogether, and how long
// the driver has asked.
func (d distance) operations(b *busyPoll, n int) (took, asked time.Duration) {
	for range n {
		switch window := b.next(); {
		case d.away <= window:
			took += d.away
			asked += d.away
			b.learn(d.away)
		default:
			took += d.away + d.back
			asked += window
			b.learn(d.away + d.back)
		}
	}
	return took, asked
}

const us = time.Microsecond

// Near masters are asked for all replies, also if a driver that has parked comes back later than the limit. A
// reply that is late for once changes nothing.
func TestBusyPollGrowsWhileRepliesComeInTime(t *testing.T) {
	t.Parallel()
	for _, near := range []distance{{40 * us, 0}, {40 * us, 50 * us}, {40 * us, 90 * us}, {40 * us, 10_000 * us}, {120 * us, 100 * us}} {
		b := newBusyPoll(200 * us)
		took, asked := near.operations(&b, 10)
		require.Equal(t, took, asked, "%v", near)
		near.operations(&b, 100)
		require.InDelta(t, min(2*near.away, 200*us), b.window, float64(us))
		b.learn(5000 * us)
		took, asked = near.operations(&b, 1000)
		require.GreaterOrEqual(t, asked, took*99/100, "%v", near)
	}
}

// Far masters cost nothing: what is asked for in vain is a share of the time that is lost in that of the operations.
func TestBusyPollShrinksToNothingWhereMastersAreFar(t *testing.T) {
	t.Parallel()
	for _, far := range []distance{{1000 * us, 0}, {201 * us, 0}, {1000 * us, 10_000 * us}} {
		b := newBusyPoll(200 * us)
		_, asked := far.operations(&b, 10)
		require.LessOrEqual(t, asked, 200*us, "one trial")
		_, asked = far.operations(&b, 2*maxTrialPause)
		require.LessOrEqual(t, asked, 20*200*us, "trials become rarer")
		_, asked = far.operations(&b, 100*maxTrialPause)
		require.LessOrEqual(t, asked, 101*200*us, "and stay rare")
	}
}

// Masters that were near go away, and cost a few windows. When they are back, that is found.
func TestBusyPollFollowsTheMasters(t *testing.T) {
	t.Parallel()
	near, far := distance{40 * us, 500 * us}, distance{1000 * us, 50 * us}
	b := newBusyPoll(200 * us)
	near.operations(&b, 100)
	_, asked := far.operations(&b, 10)
	require.LessOrEqual(t, asked, 3*200*us)
	far.operations(&b, 100*maxTrialPause)
	near.operations(&b, maxTrialPause+1)
	took, asked := near.operations(&b, 1000)
	require.Equal(t, took, asked)

	// If a parked driver would have had the replies in time, it takes no trial.
	far.operations(&b, 100*maxTrialPause)
	near.back = 50 * us
	near.operations(&b, 10)
	took, asked = near.operations(&b, 1000)
	require.Equal(t, took, asked)
}

// Whatever operations take, the window stays within the limit; without a limit there is none.
func TestBusyPollKeepsItsLimit(t *testing.T) {
	t.Parallel()
	for _, limit := range []time.Duration{0, 1, 2, 3, 200 * us, maxBusyPoll} {
		b := newBusyPoll(limit)
		for range 10_000 {
			for range rand.IntN(3) { // several may be under way
				require.LessOrEqual(t, b.next(), limit)
			}
			b.learn(time.Duration(rand.Int64N(int64(3*limit + 1))))
			require.LessOrEqual(t, b.window, limit)
			require.GreaterOrEqual(t, b.window, time.Duration(0))
		}
		if limit > 0 {
			b.learn(limit)
			require.Positive(t, b.window, fmt.Sprint(limit))
		}
	}
}
