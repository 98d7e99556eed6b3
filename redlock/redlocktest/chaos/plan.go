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
	answersLost fault = "answers lost with their connections"
	lateLost    fault = "requests late, and their answers lost"
	block       fault = "master blocked by a script" // silent at first, then it answers BUSY
	demote      fault = "master demoted"             // a replica for a while or a moment, then a master without keys

	// Of masters, in passing.
	reset   fault = "connections reset"
	flush   fault = "scripts flushed"
	rewrite fault = "append-only file rewritten"

	// Of a majority of the masters.
	spoil fault = "counter spoiled"

	// Of clients. A writer is frozen between the two halves of a write, until a later holder has
	// been there; what is planned is the limit.
	freezeClient fault = "client frozen"
	freezeWriter fault = "writer frozen"
	killClient   fault = "client killed"
	killEarly    fault = "client killed at its start" // what it has written down may have no beginning yet
)

// silencing are those that keep a master from a lock, and leave it its keys.
var silencing = []fault{cut, refuse, freeze}

// passing are those of masters that are over at once, and ofClients those of clients.
var (
	passing   = []fault{reset, flush, rewrite, spoil, junk}
	ofClients = []fault{freezeClient, freezeWriter, killClient, killEarly, blockLog}
)

var lasting = []fault{freeze, freeze, kill, kill, cut, cutRequests, cutReplies, refuse, delay, answersLost, lateLost, block, demote}

// plan makes the schedule of a test: the strikes in the order of their
// beginning. It follows from its arguments alone. All strikes are over when the
// duration is.
//
// The masters are struck in phases, each of which has its victims, mostly a
// minority. No master is the victim of two strikes at once. One that is killed, or demoted, comes
// back soon, and is harmed until it may vote again; ttl is the longest one. The next phase begins
// before that. One at most is a replica at a time: a Lock does not wait where a majority is refused,
// as one of two addresses of a master is.
func plan(seed uint64, duration time.Duration, masters, clients int, ttl time.Duration, forgetting []fault) []strike {
	p := planner{rng: rand.New(rand.NewPCG(seed, 1)), duration: duration, ttl: ttl, minority: (masters - 1) / 2, free: make([]time.Duration, masters)}
	p.lasting, p.forgetting = p.deck(lasting), p.deck(forgetting)
	for at := 300 * time.Millisecond; at < duration; {
		well := slices.DeleteFunc(p.rng.Perm(masters), func(master int) bool { return p.free[master] > at })
		begun := len(p.all)
		var end time.Duration
		var calm []int
		switch kind := p.rng.IntN(14); {
		case kind < 3 && masters > 2 && len(well) > p.minority:
			end, calm = p.restartOne(at, well), well[p.minority+1:]
		case kind < 5:
			end, calm = p.slowDown(at, well), nil
		case kind < 8 && masters > 2 && len(well) > p.minority:
			end, calm = p.takeTurns(at, well), nil
		case kind < 10 && masters > 2 && len(well) > p.minority:
			end, calm = p.restartSome(at, well[:p.minority]), well[p.minority:]
		case kind < 11:
			end, calm = p.loseAnswers(at, well), nil
		default:
			victims := min(1+p.rng.IntN(max(p.minority, 1)), len(well))
			longest := 2 * time.Second
			if p.rng.IntN(8) == 0 {
				victims, longest = min(p.minority+1+p.rng.IntN(masters-p.minority), len(well)), time.Second
			}
			end, calm = p.strikeSome(at, longest, well[:victims]), well[victims:]
		}
		if len(p.all) > begun {
			p.disturb(at, end, calm)
		}
		at = end + p.between(0, 500*time.Millisecond)
	}
	p.strikeClients(clients)
	slices.SortStableFunc(p.all, byTime)
	return p.all
}

func byTime(a, b strike) int { return cmp.Compare(a.At, b.At) }

// A planner makes a plan.
type planner struct {
	rng           *rand.Rand
	duration, ttl time.Duration
	minority      int
	free          []time.Duration // when each master is well again
	restarts      []time.Duration // at which a client is to come
	lasting       func() fault    // the next one
	forgetting    func() fault    // likewise
	all           []strike
}

// deck returns a function that draws one fault after the other, each as often as it is in all, so that none is missing
// for long.
func (p *planner) deck(all []fault) (next func() fault) {
	var left []fault
	return func() (f fault) {
		if len(left) == 0 {
			left = slices.Clone(all)
			p.rng.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
		}
		f, left = left[0], left[1:]
		return f
	}
}

func (p *planner) between(least, most time.Duration) time.Duration {
	return least + rand64(p.rng, most-least)
}

// add adds a strike, if it is over in time.
func (p *planner) add(s strike) {
	if s.At+s.For <= p.duration {
		p.all = append(p.all, s)
	}
}

// harm adds a strike of a master. It returns when the next phase may begin.
func (p *planner) harm(s strike) (end time.Duration) {
	p.add(s)
	end = s.At + s.For
	p.free[s.Target] = end
	if s.Fault.forgets() {
		end -= quarantine(p.ttl) / 2
	}
	return end
}

// restartOne has a minority hang, so that locks are on the other masters alone. When the minority returns, one
// of the others has just restarted, or was demoted, without its keys. To count that vote grants a lock twice.
// A client that comes then has never met that master before.
func (p *planner) restartOne(at time.Duration, well []int) (end time.Duration) {
	back := at + p.between(p.ttl/4, p.ttl)
	for _, master := range well[:p.minority] {
		s := strike{At: at + p.between(0, 50*time.Millisecond), Fault: silencing[p.rng.IntN(len(silencing))], Target: master}
		s.For = back - s.At + p.between(0, 50*time.Millisecond)
		end = max(end, p.harm(s))
	}
	s := p.forget(back-p.between(0, 100*time.Millisecond), well[p.minority])
	if p.rng.IntN(3) < 2 {
		p.restarts = append(p.restarts, s.At+s.Fault.preparation()+p.between(0, 200*time.Millisecond))
	}
	return max(end, p.harm(s))
}

// restartSome restarts masters. After some of these phases most masters have forgotten all that was taken for
// granted.
func (p *planner) restartSome(at time.Duration, victims []int) (end time.Duration) {
	for _, master := range victims {
		s := p.forget(at+p.between(0, 100*time.Millisecond)+lookTime, master)
		if s.Fault == demote {
			s.Fault, s.For = kill, quarantine(p.ttl)
		}
		end = max(end, p.harm(s))
	}
	return end
}

// forget is a strike after which a master has forgotten its keys, at about that time.
func (p *planner) forget(at time.Duration, master int) strike {
	s := strike{At: at, For: quarantine(p.ttl), Fault: p.forgetting(), Target: master}
	if s.Fault == demote {
		s.For = demotion(p.rng, p.ttl)
	}
	s.At -= s.Fault.preparation()
	s.For += s.Fault.preparation()
	return s
}

// forgets reports whether a master is harmed beyond the fault, as it may have forgotten its keys.
func (f fault) forgets() bool {
	return f == kill || f == demote || slices.Contains(forgetting, f)
}

// slowDown makes the way to all masters long, so that many a round is decided when the validity has
// ended, or nearly.
func (p *planner) slowDown(at time.Duration, well []int) (end time.Duration) {
	for _, master := range well {
		end = max(end, p.harm(strike{
			At:     at + p.between(0, 50*time.Millisecond),
			For:    p.between(500*time.Millisecond, 2*time.Second),
			Fault:  delay,
			Target: master,
		}))
	}
	return max(at, end)
}

// loseAnswers has the masters do what nobody hears of, in time or late, and then resets the connections.
func (p *planner) loseAnswers(at time.Duration, well []int) (end time.Duration) {
	f := answersLost
	if p.rng.IntN(2) == 0 {
		f = lateLost
	}
	back := at + p.between(100*time.Millisecond, time.Second)
	for _, master := range well {
		end = max(end, p.harm(strike{At: at, For: back - at + p.between(0, 20*time.Millisecond), Fault: f, Target: master}))
	}
	return max(at, end)
}

// takeTurns makes one minority silent after the other, so that each lock is on other masters than
// the one before. What a master has missed must not come to light then: a fence, or a number of permits.
func (p *planner) takeTurns(at time.Duration, well []int) (end time.Duration) {
	end = at
	for range 10 {
		next := end + p.between(50*time.Millisecond, 300*time.Millisecond)
		p.rng.Shuffle(len(well), func(i, j int) { well[i], well[j] = well[j], well[i] })
		for _, master := range well[:p.minority] {
			s := strike{At: end + p.between(0, 20*time.Millisecond), Fault: silencing[p.rng.IntN(len(silencing))], Target: master}
			s.For = next - s.At
			p.harm(s)
		}
		end = next
	}
	return end
}

// strikeSome harms each of the victims in a way of its own.
func (p *planner) strikeSome(at, longest time.Duration, victims []int) (end time.Duration) {
	end = at
	demoted, forgot := false, 0
	for _, master := range victims {
		s := strike{
			At:     at + p.between(0, 500*time.Millisecond),
			For:    p.between(100*time.Millisecond, longest),
			Fault:  p.lasting(),
			Target: master,
		}
		if s.Fault == demote && demoted {
			s.Fault = kill
		}
		if s.Fault.forgets() {
			if forgot++; forgot > p.minority { // a client that comes would see nothing of what was
				s.Fault = freeze
			}
		}
		switch s.Fault {
		case kill:
			s.For = p.between(0, p.ttl/2) + quarantine(p.ttl)
		case demote:
			s.For, demoted = demotion(p.rng, p.ttl), true
		}
		end = max(end, p.harm(s))
	}
	return end
}

// disturb adds what happens in passing, to any master or to those that are well meanwhile.
func (p *planner) disturb(from, to time.Duration, calm []int) {
	for range p.rng.IntN(4) {
		s := strike{At: p.between(from, to), Fault: reset, Target: p.rng.IntN(len(p.free))}
		if len(calm) > 0 && p.rng.IntN(2) == 0 {
			s.Fault, s.Target = flush, calm[p.rng.IntN(len(calm))]
			if p.rng.IntN(3) == 0 {
				s.Fault = rewrite
			}
		}
		p.add(s)
	}
	p.add(strike{At: p.between(from, to), For: p.between(50*time.Millisecond, 200*time.Millisecond), Fault: spoil})
	p.add(strike{At: p.between(from, to), For: p.between(50*time.Millisecond, 200*time.Millisecond), Fault: junk})
}

// strikeClients strikes one client after the other. It cuts a strike short when a client is to come.
func (p *planner) strikeClients(clients int) {
	for at := p.between(0, time.Second); at < p.duration; {
		next := p.duration
		if len(p.restarts) > 0 {
			next = p.restarts[0]
		}
		if next <= at {
			p.restarts = p.restarts[1:]
			p.add(strike{At: at, Fault: killClient, Target: p.rng.IntN(clients)})
			at += p.between(50*time.Millisecond, 500*time.Millisecond)
			continue
		}
		s := strike{At: at, For: p.between(10*time.Millisecond, 300*time.Millisecond), Fault: freezeClient, Target: p.rng.IntN(clients)}
		switch p.rng.IntN(9) {
		case 8:
			s.For, s.Fault = p.between(p.ttl, 2*p.ttl), blockLog
		case 0, 1:
			s.For = p.between(p.ttl/4, 2*p.ttl) // beyond the validity of what it holds
		case 2:
			if s.For, s.Fault = 0, killClient; p.rng.IntN(3) == 0 {
				s.For, s.Fault = p.between(0, 50*time.Millisecond), killEarly
			}
		case 3, 4, 5:
			s.For, s.Fault = p.between(p.ttl, 2*p.ttl), freezeWriter
		}
		s.For = min(s.For, next-at)
		p.add(s)
		at = min(at+s.For+p.between(50*time.Millisecond, 500*time.Millisecond), next)
	}
}

// demotion is for how long a master is harmed that becomes a replica. That it is one, most clients
// see. But every other time it is one for a moment only, so that most do not.
func demotion(rng *rand.Rand, ttl time.Duration) time.Duration {
	if rng.IntN(2) == 0 {
		return quarantine(ttl)
	}
	return quarantine(ttl) + 100*time.Millisecond + rand64(rng, 900*time.Millisecond)
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
