//go:build linux

package main

import (
	"math/rand/v2"
	"slices"
	"time"
)

// A pair is a client and a master.
type pair struct{ Client, Master int }

// A way is what is struck of the traffic of a pair.
type way string

const (
	bothWays way = ""
	requests way = "requests"
	replies  way = "replies"
)

// Faults of the traffic of some pairs. Only network namespaces have them, but for the last two of partial.
const (
	cutPair     fault = "one pair cut"
	cutMinority fault = "client cut from a minority"
	cutMajority fault = "client cut from a majority"
	split       fault = "clients and masters split"
	differ      fault = "clients see different majorities"
	lossy       fault = "packets lost"
	reordered   fault = "packets reordered"
)

var partial = []fault{cutPair, cutPair, cutMinority, cutMajority, split, differ, lossy, reordered, answersLost, lateLost, lateLost}

// by returns the name of a fault that is of one direction, perhaps.
func (f fault) by(w way) fault {
	if w == bothWays {
		return f
	}
	return f + fault(": "+w)
}

// hasWays says whether the fault can be one of requests alone, or of replies.
func (f fault) hasWays() bool {
	return !slices.Contains([]fault{lossy, reordered, answersLost, lateLost}, f)
}

// ways returns the fault by all its names.
func (f fault) ways() []fault {
	if f.hasWays() {
		return []fault{f, f.by(requests), f.by(replies)}
	}
	return []fault{f}
}

// partitions makes the schedule of the faults of pairs, as plan does that of the others. They are
// struck beside each other: a client may be cut from one master while another one is frozen. No
// two of them are at one time.
func partitions(seed uint64, duration time.Duration, masters, clients int) (all []strike) {
	rng := rand.New(rand.NewPCG(seed, 2))
	p := planner{rng: rng}
	next, between := p.deck(partial), p.between
	for at := between(0, time.Second); at < duration; {
		s := strike{At: at, For: between(100*time.Millisecond, 2*time.Second), Fault: next(), Way: []way{bothWays, requests, replies}[rng.IntN(3)]}
		if !s.Fault.hasWays() {
			s.Way = bothWays
		}
		order, whose := rng.Perm(masters), rng.Perm(clients)
		minority := (masters - 1) / 2
		half := (clients + 1) / 2
		switch s.Fault {
		case cutPair:
			s.Pairs = each(whose[:1], order[:1])
		case cutMinority:
			s.Pairs = each(whose[:1], order[:minority])
		case cutMajority:
			s.For /= 2
			s.Pairs = each(whose[:1], order[:minority+1+rng.IntN(masters-minority)])
		case split: // each client is on one side, as each master is
			side := rng.IntN(masters + 1)
			s.Pairs = append(each(whose[:half], order[side:]), each(whose[half:], order[:side])...)
		case differ: // they have a master in common
			s.Pairs = append(each(whose[:half], order[:minority]), each(whose[half:], order[minority:2*minority])...)
		case answersLost, lateLost: // the others may have its locks meanwhile
			s.For = between(100*time.Millisecond, time.Second)
			s.Pairs = each(whose[:1], order[:minority+1+rng.IntN(masters-minority)])
		case lossy, reordered:
			s.Pairs = each(whose, order[:1+rng.IntN(masters)])
		}
		if len(s.Pairs) > 0 && s.At+s.For <= duration {
			all = append(all, s)
		}
		at += s.For + between(100*time.Millisecond, 2*time.Second)
	}
	return all
}

// each pairs each of these clients with each of these masters.
func each(clients, masters []int) (all []pair) {
	for _, c := range clients {
		for _, m := range masters {
			all = append(all, pair{c, m})
		}
	}
	return all
}

// allWith pairs all clients with a master.
func allWith(clients, master int) (all []pair) {
	for c := range clients {
		all = append(all, pair{c, master})
	}
	return all
}
