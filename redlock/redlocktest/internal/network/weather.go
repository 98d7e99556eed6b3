//go:build linux

package network

import (
	"math/rand/v2"
	"time"
)

// Weather is what becomes of the packets on a way. The zero weather carries all at once.
type Weather struct {
	Cut    bool          // nothing arrives
	Refuse bool          // TCP's packets do not arrive, and each is answered with a reset
	Delay  time.Duration // each packet arrives later by it
	Jitter time.Duration // and by up to so much more, so that packets overtake each other
	Loss   float64       // the share of packets that do not arrive, from 0 to 1
	Double float64       // the share of packets that arrive twice, from 0 to 1
}

// A fate is what becomes of one packet.
type fate struct {
	lost    bool
	refused bool
	jitter  time.Duration
	delay   time.Duration
	doubled bool
}

// meet makes a packet meet a weather.
func (f *fate) meet(w Weather) {
	f.lost = f.lost || w.Cut || rand.Float64() < w.Loss
	f.refused = f.refused || w.Refuse
	f.delay += max(w.Delay, 0)
	f.jitter += max(w.Jitter, 0)
	f.doubled = f.doubled || rand.Float64() < w.Double
}

// arrivals returns how long the packet takes, once for each time that it arrives.
func (f *fate) arrivals() []time.Duration {
	all := make([]time.Duration, 1, 2)
	if f.doubled {
		all = all[:2]
	}
	for i := range all {
		all[i] = f.delay + rand.N(f.jitter+1)
	}
	return all
}
