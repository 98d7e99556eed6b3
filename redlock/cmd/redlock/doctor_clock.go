package main

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/redburst/redburst/conn/clock"
)

// A sample is a look at a master's clock.
type sample struct {
	sent, received time.Duration // on our clock
	server         time.Duration // on the master's, since 1970
	wall           time.Duration // our wall clock, when it was received
}

func (s sample) rtt() time.Duration { return s.received - s.sent }

const ticks = 40 // looks at the clock

// watchClock samples the master's clock for as long as span.
func (e *inspection) watchClock(ctx context.Context, p *probe, span time.Duration) error {
	pause := time.NewTicker(max(span/ticks, time.Microsecond))
	defer pause.Stop()
	for range ticks {
		sent := clock.Now()
		replies, err := judged(ctx, p, []string{"TIME"})
		if err != nil {
			return err
		}
		elems := replies[0].Elems()
		seconds, _ := elems.Next()
		micros, _ := elems.Next()
		s, err1 := strconv.ParseUint(string(seconds.Bytes()), 10, 53)
		us, err2 := strconv.ParseUint(string(micros.Bytes()), 10, 53)
		if replies[0].IsError() || err1 != nil || err2 != nil {
			e.refusal["TIME"] = p.refusalOf(replies[0])
			return nil
		}
		received := clock.Now()
		e.samples = append(e.samples, sample{sent, received,
			time.Duration(s)*time.Second + time.Duration(us)*time.Microsecond, time.Duration(time.Now().UnixNano())})
		select {
		case <-pause.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// latency is the median and the longest of the round trips; 0 if there are none.
func (e *inspection) latency() (median, longest time.Duration) {
	if len(e.samples) == 0 {
		return 0, 0
	}
	rtts := make([]time.Duration, len(e.samples))
	for i, s := range e.samples {
		rtts[i] = s.rtt()
	}
	slices.Sort(rtts)
	return rtts[len(rtts)/2], rtts[len(rtts)-1]
}

// clockRate is the share by which the master's clock is faster than ours, and how far
// off that can be: nobody knows when within the round trip the master read its clock.
// It compares the shortest round trip of the first quarter with that of the last.
func clockRate(samples []sample) (rate, uncertainty float64, ok bool) {
	n := len(samples) / 4
	if n == 0 {
		return 0, 0, false
	}
	shorter := func(a, b sample) int { return int(a.rtt() - b.rtt()) }
	first := slices.MinFunc(samples[:n], shorter)
	last := slices.MinFunc(samples[len(samples)-n:], shorter)
	ours := (last.sent+last.received)/2 - (first.sent+first.received)/2
	if ours <= 0 {
		return 0, 0, false
	}
	rate = float64(last.server-first.server)/float64(ours) - 1
	return rate, float64(first.rtt()+last.rtt()) / 2 / float64(ours), true
}

// leastJump is how far a clock must be set between two looks to be taken for one that was set,
// beyond half of the time between them. What is less shows in the rate.
const leastJump = 20 * time.Millisecond

// clockJumps returns the greatest steps by which the master's clock was set while we looked. They
// are 0 if there were none.
func clockJumps(samples []sample) (forward, back time.Duration) {
	for i := 1; i < len(samples); i++ {
		a, b := samples[i-1], samples[i]
		gained := b.server - a.server
		most, least := b.received-a.sent, b.sent-a.received // what has passed between its two readings
		if gained-most > leastJump+most/2 {
			forward = max(forward, gained-(most+least)/2)
		}
		if least-gained > leastJump+most/2 {
			back = max(back, (most+least)/2-gained)
		}
	}
	return forward, back
}

// rate is [clockRate], which is unknown if the clock was set meanwhile.
func (e *inspection) rate() (rate, uncertainty float64, ok bool) {
	if forward, back := clockJumps(e.samples); forward+back > 0 {
		return 0, 0, false
	}
	return clockRate(e.samples)
}

// ahead is by how much the master's clock is at least ahead of our wall clock, or behind it if it
// is below 0. It is 0 if both may say the same.
func (e *inspection) ahead() time.Duration {
	if len(e.samples) == 0 {
		return 0
	}
	last := e.samples[len(e.samples)-1]
	least := last.server - last.wall
	switch most := least + last.rtt(); {
	case least > 0:
		return least
	case most < 0:
		return most
	}
	return 0
}
