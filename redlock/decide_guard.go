package redlock

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/conn"
)

// A guard decides which masters must not vote because they may have forgotten locks.
//
// The rule is Redlock's own ("Performance, crash recovery and fsync"): an instance that comes back takes
// part again when every lock that it may have held has expired. In Redlock the instance has to stay away
// by itself. Here the client does not count its vote.
type guard struct {
	restart time.Duration // Config.RestartGuard
	durable bool          // Config.Durable
	longest atomic.Int64  // the longest TTL that the client uses

	raised  func(longest time.Duration) // called with each longer TTL; may be nil
	raising sync.Mutex                  // held while raised is called; no hook takes it
	used    atomic.Int64                // longest, once raised has returned
}

// uptimeError is the most by which a server can overstate its uptime, which it computes from two times in whole
// seconds.
const uptimeError = time.Second

// use notes a TTL. A master that was connected before this client used such a long TTL may have forgotten locks of
// other clients that did.
//
// When use returns, no such master votes. So a second caller with the same TTL waits for the first.
func (g *guard) use(ttl time.Duration) {
	if int64(ttl) <= g.used.Load() {
		return
	}
	g.raising.Lock()
	defer g.raising.Unlock()
	if int64(ttl) <= g.used.Load() {
		return
	}
	g.longest.Store(int64(ttl)) // for masters that are connected from now on
	if g.raised != nil {
		g.raised(ttl) // for masters that are connected already
	}
	g.used.Store(int64(ttl))
}

// quarantine is the mux's hook for a new connection. It returns for how long the master must not vote, and
// why. doubt says that the quarantine grows if the client uses a longer TTL. A forgotten lock was taken before
// this connection, so it is over when the longest TTL has passed from now.
//
// A replica that takes over may lack what its master had acknowledged, and so may a master that was a replica in
// between. It does not matter how durable they are: replication is asynchronous, and a replica drops what it had
// before. A server that said that it persists every write, and still says so after a restart, has forgotten
// nothing. A server that does not say who it is may have been restarted. A durable server at another IP address may be
// another one, which never had the locks. It may also be the same one, restarted: whoever declares that all masters are
// durable declares that each name leads to one server for good.
//
// A server gets a new replication id when it is promoted, and keeps the former as its second id. A master
// also gets a new id with its first replica, even one that only copies (redis-cli --rdb). Then it has no
// second id, and has forgotten nothing. A promoted server loses its second id, too, but only after an hour
// without replicas (repl-backlog-ttl).
//
// A node of a cluster that is given a slot raises its config epoch. So if that is the same, the slot was not
// another's in between.
func (g *guard) quarantine(_ int, before, now conn.Server) (d time.Duration, why string, doubt bool) {
	known := before.Endpoint != ""
	switch {
	case now.Cluster && g.durable: // that it forgets nothing in a failover is declared, too
		return 0, "", false
	case before.Role != "" && before.Role != "master":
		return g.longestTTL(), "it was a replica in between", known
	case known:
		if why = g.mayHaveForgotten(before, now); why != "" {
			return g.longestTTL(), why, true
		}
		return 0, "", false
	case g.restart == 0:
		return 0, "", false
	}
	d, why = g.firstMet(now)
	return d, why, false
}

func (g *guard) longestTTL() time.Duration {
	return max(time.Duration(g.longest.Load()), g.restart)
}

// firstMet is the rule for a master's first connection, if the longest TTL of all clients is known
// (Config.RestartGuard).
//
// Of a cluster's node, only its witness tells for how long it has had the slot. That it was no replica since its start,
// as far as it remembers, tells too little: the slot of a shard that is dead can be given to it without the keys
// (redis-cli --cluster fix).
func (g *guard) firstMet(now conn.Server) (d time.Duration, why string) {
	age := max(0, now.Uptime-uptimeError)
	watched := now.Group != "" // by sentinels, or clients
	if watched {
		age = min(age, now.MasterFor)
	}
	switch {
	case !watched && now.ReplID2 != "": // it does not say when it was promoted
		return g.restart, "it was a replica of another before (master_replid2)"
	case now.Group == "" && (g.durable || now.Durable):
		return 0, ""
	case now.RunID == "":
		return g.restart, "it does not say when it was started"
	case age >= g.restart:
		return 0, ""
	case watched:
		return g.restart - age, fmt.Sprintf("it is the master, or was started, since %v, as far as is known", age.Round(time.Second))
	}
	return g.restart - age, fmt.Sprintf("it was started %v ago", now.Uptime)
}

// mayHaveForgotten is the rule for a master that is connected again. It returns why the master may have forgotten
// locks; empty if it has forgotten none.
func (g *guard) mayHaveForgotten(before, now conn.Server) (why string) {
	same := now.RunID != "" && before.RunID == now.RunID // the same process
	durable := (g.durable || before.Durable) && (g.durable || now.Durable)
	switch {
	case before.Endpoint != now.Endpoint: // it may be the same server, but lacks what the others granted meanwhile
		return fmt.Sprintf("it has taken the place of %s", before.Endpoint)
	case now.Group != "" && differ(before.ReplID, now.ReplID):
		return "it has become the master again, or was restarted"
	case now.Cluster && (now.Epoch == "" || now.Epoch != before.Epoch):
		return "the slot may have been another's in between (CLUSTER INFO)"
	case same && differ(before.ReplID, now.ReplID) && now.ReplID2 != "":
		return "it was a replica in between"
	case same:
		return ""
	case durable && now.Group == "":
		if was, is := hostOf(before.Remote), hostOf(now.Remote); !g.durable && differ(was, is) {
			return fmt.Sprintf("its name leads to %s now, and led to %s", is, was)
		}
		return ""
	case differ(before.RunID, now.RunID):
		return "it was restarted"
	}
	return "it does not say whether it was restarted (INFO)"
}

// hostOf returns the IP address in the address that a connection leads to; that of a Unix socket is its path.
func hostOf(remote string) string {
	if host, _, err := net.SplitHostPort(remote); err == nil {
		return host
	}
	return remote
}

// differ reports whether two identities are known and differ.
func differ(a, b string) bool {
	return a != "" && b != "" && a != b
}
