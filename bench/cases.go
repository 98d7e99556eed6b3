package main

import (
	"bytes"
	"fmt"
	"path"
	"strings"
	"time"
)

// A Case is one situation in which all contestants are measured.
type Case struct {
	Name  string
	About string
	note  string // what the report says besides

	N          int // masters
	Transport  Transport
	Delay      time.Duration // added to every round trip
	Fault      Fault
	Fsync      string // the masters' appendfsync; "": they persist nothing
	Processes  int    // besides the benchmark's own; 0: it alone
	Goroutines int
	Keys       int
	TTL        time.Duration // 0 means lockTTL
	Hold       time.Duration // how long a lock is held, where Lock waits

	op      func(r *slice) op    // what measure repeats
	drive   func(r *slice) error // measure, or what a case does in its place
	many    bool                 // renews many locks; fewer in a quick run
	durable bool                 // the masters forget nothing in a restart, and redburst is told so
	noFloor bool                 // it is nothing that the floor can do
	waits   bool                 // uses Lock, which waits, so that only those take part that can
	rounds  int                  // so many will do, as each takes long; 0: as many as there are
	peers   peers                // who of the peers take part; nil: all that can
	group   string               // of the contestants that are measured against redburst; "": those of no group
	metric  metric
	table   func(r Result, b *bytes.Buffer) // the report's; nil: Result.writeLatency
	least   time.Duration                   // a slice is at least so long
	spend   time.Duration                   // no round begins after that, if there are enough; 0: the rounds are counted
}

// peers say which peers a case is for: where it takes long, or where some modes of a peer cannot be its
// best, and would only take the time.
type peers func(c Contestant) bool

var (
	sampled  peers = func(c Contestant) bool { return c.sample }
	failFast peers = func(c Contestant) bool { return c.failFast || c.Name == byHand }
	// On one master there is no minority to leave behind, and what leaves one behind does not renew all keys.
	wholeRounds peers = func(c Contestant) bool { return !c.failFast }
	hasty       peers = func(c Contestant) bool { return c.sample || c.patient || c.single }
)

func (p peers) and(q peers) peers {
	return func(c Contestant) bool { return p(c) && q(c) }
}

func (p peers) or(q peers) peers {
	return func(c Contestant) bool { return p(c) || q(c) }
}

// Wants reports whether the contestant takes part. go test -bench has all that can.
func (k Case) Wants(c Contestant) bool {
	return c.Takes(k) && (k.peers == nil || !c.Peer() || c.cases != nil || k.peers(c))
}

// harms reports whether the case does something to the masters that has a price.
func (k Case) harms() bool { return k.Fault != Healthy || k.Fsync != "" }

// turns is in how many rounds the case is measured. A longer turn leaves room for fewer, but if more are
// wanted there are as many as an interval needs.
func (k Case) turns(rounds int, length time.Duration) int {
	room := int(int64(rounds) * int64(length) / int64(max(length, k.least)))
	turns := max(min(rounds, leastRounds), room)
	if k.rounds > 0 {
		turns = min(turns, k.rounds)
	}
	return turns
}

// A metric is the figure by which contestants are compared in a case; less is
// better.
type metric struct {
	Name string
	of   func(s *Sample) float64 // 0: none
}

var (
	p50       = metric{"p50", func(s *Sample) float64 { return float64(s.Quantile(0.50)) }}
	mean      = metric{"mean", func(s *Sample) float64 { return float64(s.Mean()) }} // the goroutines over the throughput
	p99       = metric{"p99", func(s *Sample) float64 { return float64(s.Quantile(0.99)) }}
	cpuMetric = metric{"CPU", func(s *Sample) float64 { return s.Extra[cores] }}
)

// Cases returns all cases, in the order of the report.
func Cases() []Case {
	serial := Case{N: 5, Transport: TCP, Goroutines: 1, Keys: 1, op: acquire, drive: measure, metric: p50}
	with := func(name, about string, change func(k *Case)) Case {
		k := serial
		k.Name, k.About = name, about
		change(&k)
		return k
	}
	cases := []Case{with("serial", "one goroutine, five masters, TCP", func(*Case) {})}
	for _, g := range []int{4, 32, 256} {
		cases = append(cases, with(fmt.Sprintf("goroutines=%d", g),
			fmt.Sprintf("%d goroutines, a key each", g),
			func(k *Case) {
				k.Goroutines, k.Keys, k.metric = g, g, mean
				k.least = min(max(time.Duration(g)*time.Millisecond, 50*time.Millisecond), 200*time.Millisecond)
			}))
	}
	cases = append(cases,
		with("contended", "64 goroutines wait for 8 keys, each held for 1 ms; the time of Lock", contended),
		with("contended-N=1", "the same on one master", func(k *Case) { contended(k); k.N, k.peers = 1, k.peers.and(wholeRounds) }),
	)
	cases = append(cases, hotCases(with)...)
	cases = append(cases,
		with("hung", "one of five masters hangs (SIGSTOP) from the start of the slice", func(k *Case) {
			k.Fault, k.peers, k.least, k.rounds = Hung, failFast.or(sampled), 100*time.Millisecond, 12
		}),
		with("dead", "one of five masters dies (SIGKILL) at the start of the slice", func(k *Case) {
			k.Fault, k.least = Dead, 100*time.Millisecond
		}),
		with("hung-goroutines=32", "32 goroutines, one of five masters hangs", func(k *Case) {
			k.Goroutines, k.Keys, k.Fault, k.metric = 32, 32, Hung, mean
			k.peers, k.least = failFast, 100*time.Millisecond
		}),
	)
	for _, n := range []int{1, 3, 7} {
		cases = append(cases, with(fmt.Sprintf("N=%d", n), masterCount(n), func(k *Case) {
			k.N, k.peers = n, failFast
			if n == 1 {
				k.peers = wholeRounds
			}
		}))
	}
	cases = append(cases,
		with("unix", "over unix sockets", func(k *Case) { k.Transport, k.peers = Unix, failFast }),
		with("unix-N=1", "one master, over a unix socket", func(k *Case) { k.Transport, k.N, k.peers = Unix, 1, wholeRounds }),
		with("tls", "over TLS", func(k *Case) { k.Transport, k.peers = TLS, failFast }),
		with("cluster", "one Redis Cluster of three shards is the only master", func(k *Case) { k.Transport, k.N, k.peers = Cluster, 1, wholeRounds }),
		with("cluster-N=3", "three masters, each of which is a Redis Cluster of three shards", func(k *Case) { k.Transport, k.N, k.peers = Cluster, 3, failFast }),
		with("delay=1ms", "masters 1 ms away (a delaying proxy)", delayed(time.Millisecond)),
		with("delay=10ms", "the same at 10 ms", delayed(10*time.Millisecond)),
		with("delay=50ms", "the same at 50 ms", delayed(50*time.Millisecond)),
		with("durable", "masters that have each change on their disk before they answer (appendfsync always)", durable("always", 1)),
		with("durable-goroutines=256", "the same with 256 goroutines, a key each", durable("always", 256)),
		with("durable-everysec", "masters that write each change, and have it on their disk within a second or two (appendfsync everysec)", durable("everysec", 1)),
		with("durable-everysec-goroutines=256", "the same with 256 goroutines, a key each", durable("everysec", 256)),
		with("extend", "one goroutine extends one held lock", func(k *Case) { k.op = extend }),
		with("fence", "a lock with a fence and one without: one caller, 256 goroutines with a key each, and five processes that want one lock", func(k *Case) {
			k.drive, k.group, k.table, k.least, k.rounds = compareFence, groupFence, Result.writeFence, 200*time.Millisecond, leastRounds
		}),
		with("fence-hot=64", "64 goroutines of one process take one lock again and again, with a fence and without", fencedHot(64)),
		with("fence-hot=1024", "the same with 1024 goroutines", fencedHot(1024)),
		with("release", "one caller takes a lock and releases it, and waits for the release or not", released),
		with("release-N=1", "the same on one master", func(k *Case) { released(k); k.N = 1 }),
		with("release-delay=1ms", "the same with masters 1 ms away", func(k *Case) { released(k); k.Delay = time.Millisecond }),
		with("release-durable", "the same with masters that have each change on their disk before they answer", func(k *Case) {
			durable("always", 1)(k)
			released(k)
		}),
		with("release-goroutines=256", "256 goroutines, a key each", func(k *Case) {
			released(k)
			k.Goroutines, k.Keys, k.metric, k.least = 256, 256, mean, 200*time.Millisecond
		}),
		with("handover", "a lock passes from one process to another that waits for it; from the call of Unlock to the return of Lock", handedOver),
		with("handover-N=1", "the same on one master", func(k *Case) { handedOver(k); k.N, k.peers = 1, k.peers.and(wholeRounds) }),
		with("handover-delay=1ms", "the same with masters 1 ms away", func(k *Case) { handedOver(k); k.Delay, k.peers = time.Millisecond, k.peers.and(failFast) }),
	)
	cases = append(cases, busyCases(with)...)
	cases = append(cases,
		with("handover-processes=2", "2 processes want one lock again and again and hold it for 1 ms; from the call of Unlock to the return of the next process's Lock",
			func(k *Case) {
				k.Processes, k.Hold = 2, time.Millisecond
				k.drive, k.noFloor, k.waits, k.peers, k.table, k.least = passRound, true, true, sampled, Result.writeRounds, 1500*time.Millisecond
			}),
		with("leader-resigns", "three processes want to lead, with a TTL of 3 s; from the moment at which the leader steps down until another leads", leads(leaderResigns, 10*time.Second)),
		with("leader-killed", "the same, from the leader's end by SIGKILL until another leads", leads(leaderKilled, 18*time.Second)),
		with("told", "another deletes a lock that is kept alive, with a TTL of 3 s, on all masters; from then until its holder knows", tolds),
		with("told-revoked", "the same, and another client revokes the lock instead", func(k *Case) { tolds(k); k.group = groupRevoke }),
		with("restart", "400 goroutines, a key each, take a lock and release it again and again; all masters are killed and started again; from then until each has had a lock again", restarts),
		with("waiting", "1,000 goroutines wait for 1,000 keys that another holds", func(k *Case) {
			k.Keys, k.Goroutines = 1000, 1000
			k.drive, k.waits, k.peers, k.rounds, k.metric, k.table, k.least = await, true, sampled, 1, cpuMetric, Result.writeWaiting, 10*time.Second
		}),
		with("renew", "10,000 locks (1,000 in a quick run) are held and renewed every third of their TTL", func(k *Case) {
			k.Keys, k.Goroutines = 10_000, 64
			k.drive, k.many, k.noFloor, k.peers, k.rounds, k.metric, k.table, k.least = renew, true, true, wholeRounds, 1, cpuMetric, Result.writeRenewal, lockTTL
		}),
	)
	return cases
}

func contended(k *Case) {
	k.Goroutines, k.Keys, k.Hold = 64, 8, time.Millisecond
	k.op, k.waits, k.peers, k.metric, k.least = contend, true, hasty, p99, 700*time.Millisecond
}

func delayed(by time.Duration) func(k *Case) {
	return func(k *Case) { k.Delay, k.peers, k.least = by, failFast, max(100*time.Millisecond, 10*by) }
}

func durable(fsync string, goroutines int) func(k *Case) {
	return func(k *Case) {
		k.Fsync, k.peers, k.least, k.rounds = fsync, failFast, 200*time.Millisecond, 7
		if k.Goroutines, k.Keys = goroutines, goroutines; goroutines > 1 {
			k.metric = mean
		}
	}
}

func fencedHot(goroutines int) func(k *Case) {
	return func(k *Case) {
		hot(k, goroutines)
		k.group, k.table = groupFence, Result.writeBeside
	}
}

func released(k *Case) { k.group, k.table = groupRelease, Result.writeBeside }

func handedOver(k *Case) {
	k.note = "What makes some of them long is the machine. In a trace of about 570 on two busy processors, nearly each of more than 5 ms " +
		"had waited for the masters' answers, of the floor's as of ours: the longest took 88 ms and 152 ms. No release was found by a timer. " +
		"Where many more wanted the processors, one in five of ours of more than 30 ms had waited for the answer of the queue master alone, " +
		"which a waiter has before it subscribes to the key. The floor stands in no queue."
	k.drive, k.waits, k.peers, k.least = handOver, true, hasty, 800*time.Millisecond
}

func masterCount(n int) string {
	if n == 1 {
		return "one master"
	}
	return fmt.Sprintf("%d masters", n)
}

// choose returns those of all whose names match one of the comma-separated
// patterns, in that order; all of them if there is none.
func choose[T any](list string, all []T, name func(T) string) ([]T, error) {
	if list == "" {
		return all, nil
	}
	var out []T
	for want := range strings.SplitSeq(list, ",") {
		found := false
		for _, t := range all {
			if ok, err := path.Match(want, name(t)); err != nil {
				return nil, fmt.Errorf("%q: %w", want, err)
			} else if ok {
				out, found = append(out, t), true
			}
		}
		if !found {
			return nil, fmt.Errorf("nothing is called %q", want)
		}
	}
	return out, nil
}

// Key is the key that a goroutine of the case uses.
func (k Case) Key(goroutine int) string { return fmt.Sprintf("bench:{%d}", goroutine%k.Keys) }

func caseName(k Case) string { return k.Name }
