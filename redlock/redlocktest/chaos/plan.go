//go:build linux

package main

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// A strike is one fault: when it begins, how long it lasts, and whom it hits.
type strike struct {
	At, For time.Duration
	Fault   fault
	Target  int    // a master, or a client
	Pairs   []pair // whose traffic it hits; nil if it is that of all clients with the target
	Way     way    // of that traffic
}

type fault string

const (
	// Of masters, while which they are harmed.
	freeze      fault = "master frozen"
	kill        fault = "master killed"
	cut         fault = "traffic cut"
	cutRequests fault = "requests cut"
	cutReplies  fault = "replies cut"
	refuse      fault = "connections refused"
	delay       fault = "traffic delayed"
	block       fault = "master blocked by a script" // silent at first, then it answers BUSY

	// Of masters, in passing.
	reset   fault = "connections reset"
	flush   fault = "scripts flushed"
	rewrite fault = "append-only file rewritten"

	// Of clients. A writer is frozen between the two halves of a write, until a later holder has
	// been there; what is planned is the limit.
	freezeClient fault = "client frozen"
	freezeWriter fault = "writer frozen"
	killClient   fault = "client killed"
)

// silencing are those that keep a master from a lock, and leave it its keys.
var silencing = []fault{cut, refuse, freeze}

var lasting = []fault{freeze, freeze, kill, kill, cut, cutRequests, cutReplies, refuse, delay, block}

// plan makes the schedule of a test: the strikes in the order of their
// beginning. It follows from its arguments alone. All strikes are over when the
// duration is.
//
// The masters are struck in phases, each of which has its victims, mostly a
// minority. No master is the victim of two strikes at once. One that is killed comes
// back soon, and is harmed until it may vote again; ttl is the longest one.
//
// Some phases aim at what a lock rests on: a minority is silent, so that locks are on
// the others alone, and when it is back, one of the others has just been restarted, and has
// forgotten them. Whoever counts its vote gives a lock to a second holder. In others
// the way to all masters is long, so that many a round is decided when the validity has ended, or
// nearly.
func plan(seed uint64, duration time.Duration, masters, clients int, ttl time.Duration) []strike {
	var all []strike
	add := func(s strike) {
		if s.At+s.For <= duration {
			all = append(all, s)
		}
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	between := func(least, most time.Duration) time.Duration { return least + rand64(rng, most-least) }

	for at := 300 * time.Millisecond; at < duration; {
		order := rng.Perm(masters)
		minority := (masters - 1) / 2
		end := at
		strikeMaster := func(s strike) {
			end = max(end, s.At+s.For)
			add(s)
		}
		victims := 1 + rng.IntN(max(minority, 1))
		longest := 2 * time.Second
		switch kind := rng.IntN(8); {
		case kind < 3 && masters > 2:
			victims = minority + 1
			back := at + between(ttl/4, ttl)
			for _, master := range order[:minority] {
				s := strike{At: at + between(0, 50*time.Millisecond), Fault: silencing[rng.IntN(len(silencing))], Target: master}
				s.For = back - s.At + between(0, 50*time.Millisecond)
				strikeMaster(s)
			}
			restarted := strike{At: back - between(0, 100*time.Millisecond), For: quarantine(ttl), Fault: kill, Target: order[minority]}
			strikeMaster(restarted)
		case kind < 5:
			victims = masters
			for _, master := range order {
				strikeMaster(strike{At: at + between(0, 50*time.Millisecond), For: between(200*time.Millisecond, 1500*time.Millisecond), Fault: delay, Target: master})
			}
		default:
			if rng.IntN(8) == 0 {
				victims, longest = minority+1+rng.IntN(masters-minority), time.Second
			}
			for _, master := range order[:victims] {
				s := strike{
					At:     at + between(0, 500*time.Millisecond),
					For:    between(100*time.Millisecond, longest),
					Fault:  lasting[rng.IntN(len(lasting))],
					Target: master,
				}
				if s.Fault == kill {
					s.For = between(0, ttl/2) + quarantine(ttl)
				}
				strikeMaster(s)
			}
		}
		for range rng.IntN(4) {
			s := strike{At: between(at, end), Fault: reset, Target: rng.IntN(masters)}
			if victims < masters && rng.IntN(2) == 0 {
				s.Fault, s.Target = flush, order[victims+rng.IntN(masters-victims)]
				if rng.IntN(3) == 0 {
					s.Fault = rewrite
				}
			}
			add(s)
		}
		at = end + between(0, 500*time.Millisecond)
	}

	for at := between(0, time.Second); at < duration; {
		s := strike{At: at, For: between(10*time.Millisecond, 300*time.Millisecond), Fault: freezeClient, Target: rng.IntN(clients)}
		switch rng.IntN(8) {
		case 0, 1:
			s.For = between(ttl/4, 2*ttl) // beyond the validity of what it holds
		case 2:
			s.For, s.Fault = 0, killClient
		case 3, 4, 5:
			s.For, s.Fault = between(ttl, 2*ttl), freezeWriter
		}
		add(s)
		at += s.For + between(50*time.Millisecond, 500*time.Millisecond)
	}

	slices.SortStableFunc(all, func(a, b strike) int { return cmp.Compare(a.At, b.At) })
	return all
}

// quarantine is until when a master that was restarted is certain to vote again: the
// guard after every client has connected to it, which may be a backoff later.
func quarantine(ttl time.Duration) time.Duration { return restartGuard(ttl) + 1500*time.Millisecond }

// restartGuard is the clients' Config.RestartGuard where ttl is the longest. It keeps the locks,
// and the fences. A majority of the masters may forget these at once. Then they grow only if the
// clients' clocks differ by less than the time until those masters vote again, less the time that
// a client may take to get the lock, which is below the TTL.
func restartGuard(ttl time.Duration) time.Duration { return ttl + clockSpread }

// rand64 returns a random duration from 0 to most.
func rand64(rng *rand.Rand, most time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(max(most, 0)) + 1))
}
