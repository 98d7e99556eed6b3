//go:build linux

// Chaos tests the lock under faults, as Jepsen does: client processes fight for
// a few keys on five real masters while masters, network and clients fail at
// random. A checker then judges from the clients' own records whether two of them
// ever held the same lock, and whether more held one together than may.
//
//	go run ./redlock/redlocktest/chaos -duration 60s
//	go run ./redlock/redlocktest/chaos -seed 4213 -duration 60s
//	go run ./redlock/redlocktest/chaos -unfenced
//	go run ./redlock/redlocktest/chaos -links
//	go run ./redlock/redlocktest/chaos -arena cluster -masters 1
//	go run ./redlock/redlocktest/chaos -arena sentinel -masters 3
//	go run ./redlock/redlocktest/chaos -mode violate
//	go run ./redlock/redlocktest/chaos -mode violate -arena cluster
//
// The faults and what the clients try follow from the seed, the duration and the
// number of clients. Each run prints the command that repeats them. When the
// replies come does not follow from the seed: a fault that needs a race may take
// several runs to show again.
//
// # Who fights for what
//
// Some keys are fought for by locks of all kinds: plain ones, ones on
// several keys, readers, and those of another library. That is written out here
// (foreign.go): it sends what redsync sends, with a guard against masters that were
// restarted, which redsync leaves to whoever uses it. Permits have keys of their
// own, and so have locks that have a second one behind them (second.go). That fails, or is lost, on
// purpose now and then. Each worker takes what its random numbers say, in one of the ways there are:
// TryLock, Lock and Do, with KeepAlive, with Extend, or left to its TTL. Some locks are handed
// over to another Mutex (handover.go), which may come too late. Others stay in a client while several of its
// workers want them, without a release in between. For others there are campaigns
// (leader.go). Now and then a worker revokes a lock, whoever has it (revoke.go). One of the clients may not ask the masters who they are, so that it cannot know which was
// restarted, and one is given a master twice.
//
// # What is claimed, and checked
//
// A client claims a key from a reading of the clock (clock.Now, CLOCK_BOOTTIME,
// which all processes share) after the lock was taken, until a reading before
// Unlock is called, or until the end of the validity, whichever comes first. The
// end of the validity is a reading plus what Mutex.Remaining says after it; a
// holder that has only a context claims the reading before each look at the
// context that found it alive. So nothing is claimed that the library has not
// promised, a client that was frozen or killed claims no more than what it was
// promised before.
//
// A lock on several keys is a claim of each. The claim of a writer (a plain lock, one
// on several keys, another library's) may overlap with no claim of the same key.
// Those of readers may overlap with each other. Of the claims of permits no more
// than there are permits may be there at one moment, and all agree on how many there
// are. A lock with a least hold is claimed until that is over, whatever became of its holder. One that
// has a second lock behind it is claimed until that is lost, at the most. One that was handed over is
// claimed until the other Mutex asks for it, and all the while if that gets it.
//
// The checker also demands that
//
//   - no lock is lost before its validity has ended, unless a master was killed, or demoted, that may
//     have been one of its quorum,
//   - what was lost is not called held until it was unlocked, and what was unlocked does not come back
//     on a majority of the masters,
//   - a lock is not valid before its second one was taken, nor after that was lost, and Unlock says so then,
//   - a lock that was revoked is not extended after that, and no lock is called revoked that nobody has revoked,
//   - what was handed over is not taken over when the masters must have let it expire,
//   - a lock whose validity has ended is not valid again, and no context of it goes on,
//   - Do tells of a loss that its function was told of, and the locks of some leaders at least are kept
//     while they clean up,
//   - every error has a name,
//   - no key outlives its TTL,
//   - of two locks of a key, the later has the greater fence, if both have one,
//   - each key is taken again and again while a majority of the masters is up and
//     reachable; and locks of each kind, if that is for 15 s or more in all, and of each key after 30 s, if there are four
//     clients; and one in any case,
//   - in the end every client is connected to all masters again, takes a lock on
//     each of them, ten times in turn at once, and leaves no goroutine and no descriptor behind.
//
// Where there are four clients or more, one of them is given a master twice, by two addresses, and
// another one not at all. It must not count the vote of the first twice.
//
// Two judges look at who had what when, and at the fences: one compares claims (checker.go), the
// other asks whether what has happened to each key is linearizable (linear.go). Of claims that last
// both must see the same. Only the second makes something of a lock that was over when its taker
// came to look.
//
// # What is protected
//
// Holders increment counters: they read one, wait, look at their lock, and write.
// Clients are frozen anywhere, also between the look and the write, and thawed when
// the lock is another's. No lock can help that by itself: it is Redlock's known
// limit. There are two ways out. Half of the plain locks, and of those on several
// keys, use the second. A lock on several keys writes the counters of all of them.
// Readers and permits write none.
//
// A lock without a fence protects a file whose write is conditional: it fails if the
// counter has changed since it was read. A writer who fails in this way was
// overtaken; the write would have lost an increment. That is a violation if both
// writers found their locks valid after their writes, and the known limit if one
// did not.
//
// A lock with a fence protects a resource (resource.go) whose writes have no other
// condition. It refuses a write with a lower fence than one that it has seen: the
// write is late. Clients are frozen in the middle of a write on purpose, until a
// later holder has been there. At least three writes of each run must be late. No
// increment may be lost, or be written twice or out of order. A write must not be
// refused while its lock is valid. With -unfenced the resource takes late writes,
// too. Then increments must be lost.
//
// # The nemesis
//
// The schedule of the faults is made before the run (plan.go). Most of the time a
// minority of the masters is harmed; now and then a majority is, for a short while. Some
// strikes are aimed: a minority is cut off, and when it is back, one of the quorum of the locks that were
// taken meanwhile is restarted, or demoted, and perhaps a client comes that never met it. Now and then the
// way to all masters is long, one minority is silent after the other, or a majority has something else
// than a number where the counter of a fence should be.
//
// Where it is permitted, each master and each client has a network namespace of its own, and the
// packets between them pass through this process. It can do to those of each client and each
// master, and of each direction, what it likes (partition.go): one client is cut off from one master,
// from a minority or from a majority; clients and masters are split; halves of the clients see different
// majorities; packets are lost, doubled and reordered. Elsewhere, and with -links, proxies in
// front of the masters carry the traffic. They can only do the same to all clients, and to
// whole connections. The report says in its first lines which it is, and why.
//
// A master that was killed comes back empty, long before the longest TTL has
// passed: it writes a file, as its INFO says, and has lost that, too. Clients must not count its vote until then (RestartGuard). One that is demoted is a replica for
// up to a second, takes writes, and drops them; or it is one for a moment, so that hardly anybody sees
// it. When it is the master again, its keys are gone, as if it had been killed. The clients'
// wall clocks differ a little, for the fences. The masters' clocks run faster or slower than ours, as
// far as the default drift permits: that of about each second one by all of it (clocks.go). None is
// set. A master whose clock is set forward loses keys, as one does that is restarted, and nothing
// tells the clients. Redlock does not promise to survive that together with another master's failure.
// The clocks are shifted by a library that is preloaded into the servers. Where there is no C
// compiler for it, all clocks go alike, and the report says so.
//
// # Clusters and groups
//
// With -arena cluster each master is a Redis Cluster of three shards, and with -arena sentinel a group that three
// sentinels watch over. One of them is what most people have, and three are a Redlock. The clients fight for the same
// locks, but for those of another library, which would not follow the masters.
//
// The owner of the locks' slot is killed, with a failover after it; restarted at once, without its keys; frozen,
// until long after its replica has taken over perhaps; and cut off from the other nodes, while clients still
// reach it. Its replica takes its place with its consent, by force (TAKEOVER), and by force after it has heard
// nothing for a while. The slot moves to another shard, with its keys, one after the other; or the owner is
// killed amid that. The replica is killed, and the other nodes are frozen, so that the cluster does not serve.
// Groups have fewer faults: their master is killed, restarted or replaced, and sentinels are frozen
// (sentinels.go). The traffic goes through links.
//
// Each of these may forget locks, and so a lock may be lost while it is valid. But nobody else may have it until then:
// the successor has no vote for so long. So the judges allow a loss, and no overlap.
//
// Nobody gives up a move when some keys have left the owner: they are lost then, as by a FLUSHALL.
//
// # The proof
//
// The mode "violate" proves that the checker can fail. Its clients have no such
// guard, and so wait for their own TTL, and others hold the lock for longer: a master
// that was part of a quorum is restarted, so that two
// clients hold one lock. It breaks the rule of each kind of lock in this way. It
// then does so with a fence, which the masters have
// forgotten, too. The clients' wall clocks are what is left (internal/quorum/fence.go): while these
// differ by less than the time between the two locks, the later one has the greater
// fence, and the resource stops the earlier holder. Beyond that it stops the later
// one. The report says with what clocks this was seen, and where the limit was.
//
// It also sets the masters' clocks off. While all run as fast as they may, nobody gets the lock of
// another. If a majority runs 30 % fast, two clients hold one lock at once, unless they allow for
// that by their Config.DriftFactor. If a majority is set forward they do, too. Nothing happens
// if all are set back, or a minority forward, and by wall clocks of clients that are an hour apart.
//
// Beside that it freezes a holder amid a write until another has had its lock, and gives two clients two lists of masters.
//
// The clients keep flight records, and what 'redlock explain' makes of these is a third judge: it must find each of these
// violations, and name its cause. In a run that is sound it must find no two holders.
//
// With -arena cluster it has a cluster forget locks in a failover, and the witness ({prefix}:since), which the
// replica has never had. Who declares that a failover forgets nothing (Config.Durable), or does not say how long
// others hold locks (Config.RestartGuard), or says less, is given the lock of another. Who says it is not.
//
// The exit status is 0 if there was no violation (in the mode "violate": if the
// violation was found, and the fence did what is said above; with -unfenced: if
// increments were lost, and nothing else), 1 if not, and 2 if the test could not be
// done. After a violation the clients' records are kept, and the program prints where. Beside them is
// a page for each of the first histories that are not linearizable: it shows how far an order is found.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	runAsClient()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	os.Exit(chaos(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

const (
	exitFine    = 0
	exitFailed  = 1
	exitUnknown = 2
)

// errInterrupted: the context ended before the test did.
var errInterrupted = errors.New("interrupted")

// chaos is the program. It returns the exit status.
func chaos(ctx context.Context, args []string, out, errs io.Writer) int {
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.SetOutput(errs)
	mode := flags.String("mode", "chaos", "`chaos` for a test of the lock, violate for a test of the checker")
	duration := flags.Duration("duration", time.Minute, "how `long` the faults last")
	seed := flags.Uint64("seed", rand.Uint64()>>32, "`number` that the faults follow from; each run prints its own")
	clients := flags.Int("clients", 4, "`number` of client processes")
	unfenced := flags.Bool("unfenced", false, "the resource ignores the fence, and must lose increments")
	arena := flags.String("arena", ofMasters, "`masters` for five servers, cluster for Redis Clusters, sentinel for groups that Sentinel watches over")
	masters := flags.Int("masters", 1, "`number` of clusters or groups, each of which is a master")
	linked := flags.Bool("links", false, "proxies in front of the masters, where there could be network namespaces")
	if err := flags.Parse(args); err != nil {
		return exitUnknown
	}
	var status int
	var err error
	switch {
	case flags.NArg() > 0 || *duration <= 0 || *clients < 1 || *unfenced && (*mode != "chaos" || *clients < 2) ||
		*masters < 1 || *arena != ofMasters && *linked || *arena == ofSentinels && *mode != "chaos":
		err = errors.New("bad arguments; see -help")
	case *mode == "chaos":
		status, err = storm(ctx, out, order{arena: *arena, masters: *masters, duration: *duration, seed: *seed,
			clients: *clients, unfenced: *unfenced, linked: *linked})
	case *mode == "violate" && *arena == ofClusters:
		status, err = violateFailover(ctx, out)
	case *mode == "violate":
		status, err = violate(ctx, out)
	default:
		err = fmt.Errorf("no mode %q", *mode)
	}
	if err != nil {
		fmt.Fprintln(errs, "chaos:", err)
		return exitUnknown
	}
	return status
}
