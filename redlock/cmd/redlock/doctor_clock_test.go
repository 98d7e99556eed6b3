package main

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// clockOf makes samples of a clock that runs at this rate, with round trips of rtt
// of which the way there takes the given share.
func clockOf(rate float64, rtt time.Duration, share float64) (all []sample) {
	for i := range ticks {
		sent := time.Duration(i) * time.Second / ticks
		at := sent + time.Duration(share*float64(rtt))
		all = append(all, sample{sent, sent + rtt, time.Hour + time.Duration(float64(at)*(1+rate)), time.Hour + sent + rtt})
	}
	return all
}

func TestClockRateIsMeasured(t *testing.T) {
	for _, rate := range []float64{0, 0.05, -0.05, 0.005} {
		got, uncertainty, ok := clockRate(clockOf(rate, time.Millisecond, 0.5))
		require.True(t, ok)
		require.InDelta(t, rate, got, uncertainty)
		require.Less(t, uncertainty, 0.002)
	}
	_, _, ok := clockRate(nil)
	require.False(t, ok)
	_, _, ok = clockRate(make([]sample, ticks))
	require.False(t, ok, "no time passed")
}

func TestClocksAreFoundOnlyBeyondTheDriftAndTheUncertainty(t *testing.T) {
	levels := func(samples []sample) (all []level) {
		(&inspection{samples: samples}).findClock(func(l level, _, _ string) { all = append(all, l) })
		return all
	}
	require.Empty(t, levels(clockOf(0, time.Millisecond, 0.5)))
	require.Empty(t, levels(clockOf(0.005, time.Millisecond, 0.5)))
	require.Equal(t, []level{wrong}, levels(clockOf(0.02, time.Millisecond, 0.5)))
	require.Equal(t, []level{risky}, levels(clockOf(-0.02, time.Millisecond, 0.5)), "locks that last longer exclude as well")
	require.Empty(t, levels(clockOf(0.02, 100*time.Millisecond, 0.5)), "it may be the network")

	// A network that gets slow on one way while we look is no clock's fault.
	samples := clockOf(0, time.Millisecond, 0)
	for i, s := range clockOf(0, 100*time.Millisecond, 1) {
		if i > ticks/2 {
			samples[i] = s
		}
	}
	require.Empty(t, levels(samples))
}

func TestClockThatIsSetWhileWeLookIsFound(t *testing.T) {
	set := func(samples []sample, from int, by time.Duration) []sample {
		for i := from; i < len(samples); i++ {
			samples[i].server += by
		}
		return samples
	}
	found := func(samples []sample) (all []string) {
		(&inspection{samples: samples}).findClock(func(l level, what, _ string) {
			what, _, _ = strings.Cut(what, " while")
			all = append(all, string(l)+": "+what)
		})
		return all
	}
	const rtt = time.Millisecond
	for _, rate := range []float64{0, 0.005, -0.005} {
		require.Equal(t, []string{"wrong: has a clock that was set forward by 1m0s"}, found(set(clockOf(rate, rtt, 0.5), 7, time.Minute)))
		require.Equal(t, []string{"risky: has a clock that was set back by 1m0s"}, found(set(clockOf(rate, rtt, 0.5), 39, -time.Minute)))
		require.Equal(t, []string{"wrong: has a clock that was set forward by 1m0s", "risky: has a clock that was set back by 1m0s"},
			found(set(set(clockOf(rate, rtt, 0.5), 7, time.Minute), 8, -time.Minute)), "it is right again")
	}
	require.Equal(t, []string{"wrong: has a clock that was set forward by 50ms"}, found(set(clockOf(0, rtt, 0.5), 1, 50*time.Millisecond)))
	require.Equal(t, []string{"wrong: has a clock that gained 2.7 % on ours"}, found(set(clockOf(0, rtt, 0.5), 20, 20*time.Millisecond)),
		"what is less shows in the rate")
	require.Empty(t, found(set(clockOf(0, time.Second, 0.5), 20, 500*time.Millisecond)), "it may be the network")
	for _, samples := range [][]sample{nil, make([]sample, 1), make([]sample, ticks)} {
		require.Empty(t, found(samples))
	}
}

func TestClockThatWasSetBeforeIsAHint(t *testing.T) {
	found := func(samples []sample, ahead time.Duration) (all []string) {
		for i := range samples {
			samples[i].server += ahead
		}
		(&inspection{samples: samples}).findOffset(func(l level, what, _ string) { all = append(all, string(l)+": "+what) })
		return all
	}
	ordinary := func() []sample { return clockOf(0, time.Millisecond, 0.5) }
	require.Equal(t, []string{"risky: has a clock that is 1h0m0s ahead of ours: if it was set lately, its locks ended that much too early"},
		found(ordinary(), time.Hour))
	require.Equal(t, []string{"risky: has a clock that is 1h0m0s behind ours: when it is set right, its locks end that much too early"},
		found(ordinary(), -time.Hour))
	require.Empty(t, found(ordinary(), 900*time.Millisecond))
	require.Empty(t, found(ordinary(), -900*time.Millisecond))
	require.Empty(t, found(clockOf(0, 4*time.Second, 1), -4500*time.Millisecond), "it may be the network")
	require.Empty(t, found(clockOf(0, 4*time.Second, 0), 4500*time.Millisecond), "likewise")
	require.Empty(t, found(nil, 0))
}

func TestDoctorFindsClocks(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 4, redlocktest.WithClocks(), redlocktest.WithArgs("--appendonly", "yes", "--appendfsync", "always"))
	env := []string{mastersEnv(masters), "NO_COLOR=1"}
	long := []string{"--span", "1s"} // for a machine that is busy
	masters.Drift(0, 0.005)
	exit, d := diagnosed(t, env, long...)
	require.Zero(t, exit, d.Findings)
	for _, f := range d.Findings {
		require.NotContains(t, f.What, "clock")
	}

	masters.Drift(0, 0.05)
	masters.Drift(1, -0.05)
	exit, d = diagnosed(t, env, long...)
	require.Equal(t, exitNo, exit)
	require.Regexp(t, `gained [45]\.\d % on ours`, requireFinding(t, d, wrong, "locks end too early", masters.Addr(0)).What)
	require.Regexp(t, `lost [45]\.\d % against ours`, requireFinding(t, d, risky, "locks last too long", masters.Addr(1)).What)
	require.InDelta(t, 0.05, *d.Masters[0].ClockRate, 0.01)

	// What was set before is a hint, and no error.
	masters.Drift(0, 0)
	masters.Drift(1, 0)
	masters.Jump(2, time.Hour)
	masters.Jump(3, -time.Hour)
	exit, d = diagnosed(t, env)
	require.Zero(t, exit, d.Findings)
	require.Contains(t, requireFinding(t, d, risky, "1h0m0s ahead of ours", masters.Addr(2)).Remedy, "while nobody holds a lock")
	requireFinding(t, d, risky, "1h0m0s behind ours", masters.Addr(3))
	require.InDelta(t, 3600, d.Masters[2].ClockAhead, 60)

	ctx, cancel := context.WithCancel(t.Context())
	var setting sync.WaitGroup
	defer setting.Wait()
	defer cancel()
	setting.Go(func() {
		for ctx.Err() == nil {
			masters.Jump(0, 10*time.Second)
			masters.Jump(1, -10*time.Second)
			time.Sleep(5 * time.Millisecond)
		}
	})
	var stdout string
	for begun := time.Now(); time.Since(begun) < time.Minute; { // a busy machine sets no clock for a while
		exit, stdout, _ = doctor(t, env)
		stdout = strings.Join(strings.Fields(stdout), " ")
		if exit == exitNo && strings.Contains(stdout, "set forward by") && strings.Contains(stdout, "set back by") {
			break
		}
	}
	require.Equal(t, exitNo, exit)
	require.Regexp(t, `wrong has a clock that was set forward by [0-9ms]+ while we looked: its locks ended that much too early `+masters.Addr(0), stdout)
	require.Regexp(t, `risky has a clock that was set back by [0-9ms]+ while we looked: its locks last that much too long `+masters.Addr(1), stdout)
	require.Regexp(t, masters.Addr(0)+` .* \+[0-9ms]+ always wrong`, stdout)
}

func TestLatencyIsComparedWithARound(t *testing.T) {
	levels := func(rtts ...time.Duration) (all []level) {
		e := &inspection{}
		for _, rtt := range rtts {
			e.samples = append(e.samples, sample{received: rtt})
		}
		e.findLatency(func(l level, _, _ string) { all = append(all, l) }, 250*time.Millisecond) // 50 ms
		return all
	}
	const ms = time.Millisecond
	require.Empty(t, levels())
	require.Empty(t, levels(ms, 2*ms, 40*ms))
	require.Equal(t, []level{risky}, levels(ms, 2*ms, 60*ms))
	require.Equal(t, []level{wrong}, levels(ms, 60*ms, 60*ms))
}
