// Package rights says which rights a user of the masters needs, for each kind of lock and for each task of an
// operator. It is the one source: the doctor asks for what stands here, errors name it, and tests compare it with
// the scripts, with the documentation of package conn, and with the users of contrib/deploy.
package rights

import (
	"slices"
	"strings"

	"github.com/redburst/redburst/conn"
)

// A Need is what one use of the masters takes.
type Need struct {
	For      string   // the use, in the plural
	Flag     string   // the flag of redlock run that asks for it, if there is one
	Commands []string // as rules of an ACL name them, but for the +
	Keys     []string // keys beside the lock's own, which KEY stands for
}

// What locks need. Every lock needs the first.
var (
	Lock = Need{For: "all locks", Commands: []string{"set", "eval", "evalsha", "script|load", "get", "del", "pexpire", "pttl"}}

	Fence  = Need{For: "locks with a fence", Flag: "--fence", Commands: []string{"time"}, Keys: []string{"{KEY}:fence"}}
	Shared = Need{For: "shared locks", Flag: "--shared", Keys: []string{"{KEY}:writer"}, Commands: []string{"time", "type", "pexpireat",
		"zadd", "zrem", "zcard", "zscore", "zrange", "zremrangebyscore"}}
	Several = Need{For: "locks on several keys", Flag: "--also", Commands: []string{"exists", "mget"}}
	Permits = Need{For: "locks with permits", Flag: "--permits", Commands: []string{"exists"}, Keys: []string{"{KEY}:permit*"}}
	Queue   = Need{For: "queues between processes", Commands: []string{"zrank", "zadd", "zrem", "zrange"}, Keys: []string{"{KEY}:line*"}}

	Restarts = Need{For: "masters that are asked who they are", Commands: []string{"info"}}
	// Witness is for Config.Prefix unset, or one with which the locks' keys begin. See kind.WitnessKey.
	Witness  = Need{For: "masters that say since when they have forgotten nothing", Keys: []string{"{}:since", "{KEY}:since"}}
	Database = Need{For: "databases other than 0", Commands: []string{"select"}}
	Telling  = Need{For: "masters that tell waiters of a release", Commands: []string{"client|tracking", "client|caching"}}
	Loss     = Need{For: "masters that tell a holder of a loss", Commands: []string{"client|tracking", "client|caching", "exists"}}
	Group    = Need{For: "masters of a Sentinel group", Commands: []string{"role"}}
	Cluster  = Need{For: "masters in a Redis Cluster", Commands: []string{"cluster|slots", "cluster|info"}}
	Native   = Need{For: "servers that have them", Commands: []string{"delex", "delifeq", "msetex"}} // others do not know their names
)

// Locks are the needs of a user who takes locks, in the order of the documentation of package conn.
var Locks = []Need{Lock, Fence, Shared, Several, Permits, Queue, Restarts, Witness, Database, Telling, Loss, Group, Cluster, Native}

// Optional are the kinds of locks that a user can be without, and the queue.
var Optional = []Need{Fence, Shared, Several, Permits, Queue}

// What an operator needs for a task. Revoking a lock takes what the locks themselves need.
var (
	Listing = Need{For: "redlock ls", Commands: []string{"scan", "type", "get", "getrange", "mget", "pttl", "time", "zcard", "zcount", "zrange", "zscore"},
		Keys: slices.Concat(Fence.Keys, Shared.Keys, Permits.Keys, Queue.Keys)}
	Clients = Need{For: "redlock clients", Commands: []string{"client|list"}}
)

// Operators are the needs of an operator beside those of the locks.
var Operators = []Need{Listing, Clients}

// Rules are the rules of an ACL that grant the needs, each once. pattern stands for the keys of the locks, such as
// lock:*. Without one there are no rules for keys. If it has a hash tag, such as {locks}:*, it stands for the keys
// beside a lock, too, and they have no rules of their own.
func Rules(pattern string, needs ...Need) (all []string) {
	add := func(rule string) {
		if !slices.Contains(all, rule) {
			all = append(all, rule)
		}
	}
	for _, n := range needs {
		for _, c := range n.Commands {
			add("+" + c)
		}
		for _, k := range n.Keys {
			if pattern != "" && conn.HashTag(pattern) == "" {
				add("~" + strings.ReplaceAll(k, "KEY", pattern))
			}
		}
	}
	return all
}

// Uses are the needs that have a command: those of locks, or those of operators if no lock needs it.
func Uses(command string) (all []Need) {
	for _, needs := range [][]Need{Locks, Operators} {
		for _, n := range needs {
			if slices.Contains(n.Commands, command) {
				all = append(all, n)
			}
		}
		if len(all) > 0 {
			break
		}
	}
	return all
}
