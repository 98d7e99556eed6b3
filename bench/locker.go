package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/redlock"
)

// lockTTL is the TTL of every lock that is measured, for every contestant, unless the
// case has its own. It is far longer than any operation, so that no lock of an
// uncontended case expires while it is measured.
const lockTTL = 10 * time.Second

// roundTimeout is how long a contestant waits for the masters in one round: a
// twentieth of the TTL, which is the default of redsync (its timeout factor is 0.05), and of
// redburst for this TTL.
const roundTimeout = lockTTL / 20

// A Locker is one open contestant: its connections to the masters of a Fleet.
type Locker interface {
	// Mutex returns a lock on key for the use of one goroutine.
	Mutex(key string) (Mutex, error)
	Close() error
}

// A Mutex is one lock of one contestant. Unlock and Extend are called only
// after a successful TryLock or Lock.
type Mutex interface {
	TryLock(ctx context.Context) error // one attempt
	Lock(ctx context.Context) error    // waits for the present holder
	Extend(ctx context.Context) error
	Unlock(ctx context.Context) error
}

// A KeepAliver is a Mutex that renews itself. The locks of a contestant that
// has none are renewed in the way its users write it: a goroutine and a
// ticker for each lock.
type KeepAliver interface {
	// KeepAlive renews the lock until stop is called. The context it returns
	// ends when the lock is lost.
	KeepAlive(ctx context.Context) (held context.Context, stop func())
}

// A Contestant is a library in one of its modes.
type Contestant struct {
	Name string
	Open func(f *Fleet, goroutines int) (Locker, error)

	single   bool     // knows one master only
	plain    bool     // speaks no TLS
	clusters bool     // knows Redis Cluster
	serial   bool     // knows one goroutine only
	shared   bool     // is for several goroutines
	waits    bool     // Lock waits
	patient  bool     // takes part only where Lock waits (a mode that differs in nothing else)
	failFast bool     // returns at the quorum (a mode of redsync)
	sample   bool     // one of the peers that stand for all where a case takes long
	quick    bool     // takes part in a quick run
	cases    []string // takes part only in these; nil: in all that it can
	group    string   // takes part only in the cases of this group; "" is that of the libraries
}

// Takes reports whether the contestant can take part in the case at all.
func (c Contestant) Takes(k Case) bool {
	switch {
	case c.single && k.N != 1,
		c.Floor() && k.noFloor,
		c.plain && k.Transport == TLS,
		!c.clusters && k.Transport == Cluster,
		c.serial && k.Goroutines > 1,
		c.shared && k.Goroutines == 1,
		k.waits && !c.waits,
		!k.waits && c.patient,
		c.cases != nil && !slices.Contains(c.cases, k.Name),
		c.group != k.group && c.Name != ours:
		return false
	}
	return true
}

// Names that the reports single out. The floor takes part once for each of its kinds; the fastest
// in a case is that case's floor.
const (
	ours  = "redburst"
	floor = "floor"
)

// Groups of contestants that are measured against redburst alone: it with another option, mostly.
const (
	groupFence   = "fence"
	groupLead    = "lead"
	groupRelease = "release"
)

// Floor reports whether the contestant is the floor of redburst as it is.
func (c Contestant) Floor() bool { return strings.HasPrefix(c.Name, floor) && c.group == "" }

// Peer reports whether the contestant is one that users choose between: not
// redburst, and not the floor.
func (c Contestant) Peer() bool { return c.Name != ours && c.group == "" && !c.Floor() }

// Contestants returns all of them, in the order of the report's rows.
func Contestants() []Contestant {
	all := []Contestant{
		{Name: floor + "-park", Open: openFloor(waitEpoll), plain: true, quick: true},
		{Name: floor + "-ppoll", Open: openFloor(waitPpoll), plain: true, serial: true},
		{Name: floor + "-batched", Open: openBatchedFloor, plain: true, shared: true, quick: true},
		{Name: floor + "-handover", Open: openHandoverFloor, plain: true, serial: true, waits: true, patient: true, quick: true},
		{Name: ours, Open: openRedburst(), clusters: true, waits: true, quick: true},
		{Name: ours + "-fence", Open: openRedburst(redlock.WithFence()), waits: true, quick: true, group: groupFence},
		{Name: ours + "-revoked", Open: openRedburst(), waits: true, quick: true, group: groupRevoke},
	}
	all = append(append(all, releasing()...), polling(), pollingFloor())
	for _, client := range []struct {
		name string
		open poolOpener
	}{
		{"goredis", openGoRedis},
		{"redigo", openRedigo},
		{"rueidis", openRueidis},
	} {
		for _, failFast := range []bool{false, true} {
			for _, retry := range []time.Duration{0, quickRetry} {
				name := "redsync-" + client.name
				if failFast {
					name += "-failfast"
				}
				if retry > 0 {
					name += "-quickretry"
				}
				all = append(all, Contestant{
					Name:     name,
					Open:     openRedsync(client.open, failFast, retry),
					waits:    true,
					patient:  retry > 0,
					clusters: client.name == "goredis",
					failFast: failFast,
					sample:   client.name == "goredis" && !failFast,
					quick:    client.name != "goredis" && failFast, // the fastest
				})
			}
		}
	}
	all = append(all,
		Contestant{Name: byHand, Open: openByHand, clusters: true},
		Contestant{Name: "bsm-redislock", Open: openBsm, single: true, clusters: true, waits: true, quick: true},
		Contestant{Name: "rueidislock", Open: openRueidisLock, single: true, waits: true, quick: true})
	if haveEtcd() {
		all = append(all,
			Contestant{Name: "etcd-election", Open: openEtcd, waits: true, quick: true, group: groupLead},
			Contestant{Name: "etcd-mutex", Open: openEtcd, waits: true, cases: []string{"serial", "hot=64"}})
	}
	return all
}

func contestantName(c Contestant) string { return c.Name }
