package redlock

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/defaults"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/script"
)

const (
	defaultDriftFactor = defaults.DriftFactor
	defaultHandovers   = 16
	defaultFenceMemory = 24 * time.Hour

	minTTL = 10 * time.Millisecond      // of a lock: half of it is left after a round trip of 2 ms
	maxTTL = 100 * 365 * 24 * time.Hour // of a lock, and a counter's memory

	maxRoundTimeout = defaults.MaxRoundTimeout
)

// A Secret is a text that is never printed, such as a password. Only its method Reveal returns
// the text.
type Secret = conn.Secret

// NewSecret returns the Secret of a text.
func NewSecret(text string) Secret { return conn.NewSecret(text) }

// Credentials are a username, a password and, if they expire, the time when they do. They may have certificates, too.
type Credentials = conn.Credentials

// Config says which masters hold the locks, and how the client reaches them. The zero value of
// every field but Masters is a good default. As zero means the default, a drift factor or a
// number of hand-overs of exactly zero is not possible.
type Config struct {
	// Masters are the addresses of 1 to 64 independent Redis masters, best an odd number:
	//
	//	host:port
	//	redis://user:password@host:port/db
	//	rediss://...                                           over TLS
	//	valkey://..., valkeys://...                            redis:// and rediss://
	//	unix:///path
	//	sentinel://host:port,host:port,host:port/group         the master of a Sentinel group
	//	sentinels://...                                        the same, over TLS
	//	cluster://host:port,host:port,host:port                one slot of a Redis Cluster; see Prefix
	//	clusters://...                                         the same, over TLS
	//
	// Give each group and each cluster once: a cluster is one master, however many it has. List
	// three nodes of it: more than half of them must be up. List three of its sentinels or more. While half of those listed are
	// down, a client stays with the master that it knows, and a client that starts has no master
	// in that group.
	//
	// A password in an address is part of a string. Package fmt prints it if a Config is in an
	// unexported field of what it prints. Give the password as Password, or by Credentials.
	Masters []string
	// Prefix stands before every key on the masters, also before those that are kept beside a
	// lock, and nowhere else: people see a lock's key without it. It separates those who share
	// masters, by the keys that an ACL allows. For a cluster it must have a hash tag, as {locks}: has:
	// then all keys are in one slot of the cluster. Give it alike to all clients: with another
	// prefix, a lock is another lock. It has up to 512 bytes, and none of the names that are kept
	// beside a lock.
	Prefix string
	// Username and Password are used where an address has none of its own.
	Username string
	Password Secret
	// SentinelUsername and SentinelPassword are for sentinels. The client shows them only to
	// sentinels that demand credentials, and never shows a sentinel the master's. If both have
	// the same, give them twice.
	SentinelUsername string
	SentinelPassword Secret
	// TrustAnySentinel makes a client that starts while half of a group's sentinels or more are
	// down, or disagree, believe those that answer. It gives up what the majority is for: one
	// sentinel that is wrong or hostile can then choose a server. That server is shown the
	// master's credentials, and has the group's vote.
	TrustAnySentinel bool
	// Credentials, if set, is called at every connect and reconnect to a master, and overrides
	// Username, Password and those of the address. If the credentials expire, it is called again
	// when half to three quarters of their time have passed, and the client tells the master the
	// new ones on its live connection. The masters take turns: two are never told at once. If a
	// master refuses the new ones, or there are none, the connection goes on with the old ones
	// for as long as the master serves it, MasterStats.Err says why, and the client tries again.
	// It is told which master, as Stats shows its address. It may give the certificates as well: the TLS of
	// what it returns goes before that below. A live connection keeps its TLS.
	// Credentials must return when its context ends. Several goroutines may call it at once.
	Credentials func(ctx context.Context, master string) (Credentials, error)
	// TLS, if set, is used for every master that is not on a Unix socket.
	TLS *tls.Config
	// Dialer, if set, makes the connections to masters, sentinels and nodes of clusters: for NAT, tunnels, proxies
	// such as SOCKS, and addresses that servers name and that lead there from within alone. A
	// net.Dialer's DialContext is one. The network is "tcp", or "unix" for an address as unix:///path, and the address
	// is host:port, or the path, as Masters has it or a server named it. The client looks no name up then. So
	// sentinels of a group must all give its place by name, or all by address; and without the right to INFO,
	// a server that is given by two names is not found out.
	//
	// ctx ends with the call, and by the DialTimeout at the latest; the connection must outlive it. A Dialer that does
	// not return by then is given up, and its connection is closed if there is one later. Of calls for one address
	// four run at a time, those that were given up included. Calls run at once, in goroutines of their own. A panic
	// counts as an error. An error counts as a master that is out of reach, whatever it says: to
	// [Client.Replace], also a refused connection does not tell that a master is down, see [ShutDown].
	//
	// The client speaks TLS over the connection where TLS or the address asks for it, and expects the
	// certificate of the name that Masters has, or the server has named: return no *tls.Conn for it. A link-local
	// address, or a number in its place, that only a server has named is refused before the Dialer is asked. What a
	// name leads to is for the Dialer to judge.
	//
	// The client owns the connection, and closes it. A *net.TCPConn or *net.UnixConn costs nothing but the
	// call: the client takes its descriptor, and sets its keep-alive. Any other costs two goroutines, two
	// descriptors, 32 KiB beside what the kernel buffers, and time in each round: with masters on the same
	// machine, the median of an acquire was 1.2 to 1.4 times that without. Its Close must end its Read and Write. It
	// is called at most 100 ms after the client is done with the connection, and Client.Close does not wait for it.
	// What was on its way there, as a command that was given up, may still come to the master, as through any proxy.
	Dialer func(ctx context.Context, network, address string) (net.Conn, error)
	// ClientName is in the default Owner, and in the name that CLIENT LIST shows on the masters. That
	// name also has the version of this module, the number of masters with a hash of their addresses,
	// and the Owner. So 'redlock clients' finds who has another list. Empty means none.
	ClientName string
	// Owner is in front of every token, so that everybody can see who holds a lock. It is
	// printable ASCII without spaces, up to 128 bytes. Empty means name@host:pid, or host:pid
	// without a ClientName. It is a hint for people: any user who may write the key can write any
	// name.
	Owner string

	// DialTimeout bounds one connect with its handshake, and how long Open waits for a majority. A master that has
	// taken the connection and not answered by then counts as down, and is waited for all the same: it may have a whole
	// fleet to answer. Zero means 1 s.
	DialTimeout time.Duration
	// RoundTimeout is how long a round waits for a quorum. Zero means a twentieth of the lock's
	// TTL, but at least 200 ms, so that masters and processes can be busy, and at most 500 ms.
	// For a TTL below 1 s it means a fifth of the TTL, but at least 20 ms. A slow master delays a
	// round only if the quorum needs it.
	RoundTimeout time.Duration
	// StallTime is how long a master may owe an answer and give none. After a quarter of it more,
	// the client resets the connection, and the master counts as down. Zero means 1 s.
	StallTime time.Duration
	// BusyPoll, if positive, is for how long at most a call asks for its masters' answers again and
	// again before its goroutine parks; 200 µs is a good value, and 10 ms the most. Zero means that it
	// parks at once. It needs Linux: elsewhere New and Open refuse it.
	//
	// Use it where locks must be fast, masters answer within the limit, and a CPU is free for this
	// process: a CPU that goes idle takes longer to come back than a near master takes to answer. With
	// the masters and one caller on CPUs of their own, the median of an acquire with its release was
	// 0.53 of that without, with one master, 0.64 with three, and 0.69 with five, for 0.78 to 0.94 of
	// the CPU time. Thirty callers at once gain little. Where one master and the client shared all CPUs
	// it was 2.0, for 2.3 times the CPU time: do not use it there. It switches itself off while answers
	// take longer than the limit. It is for calls alone: a lock that is held or waited for costs hardly
	// anything.
	BusyPoll time.Duration
	// DriftFactor is the share of the TTL by which the masters' clocks may run faster than ours
	// over that TTL, from 0 to less than 1. Zero means 0.01. 2 ms are added to that share of
	// the TTL.
	DriftFactor float64
	// RestartGuard is the longest TTL, or least hold with its drift ([WithMinHold]), that any
	// client uses on these masters. No Mutex of this client can have a longer one. Zero means
	// that it is not known.
	//
	// A master that may have forgotten locks has no vote until its process has been known for so long: one that
	// was started, was flushed, is new in its place, has taken the place of another in its group, or was a replica
	// in between. Which they are, a key tells that clients leave on each master ({prefix}:since, see the
	// package comment and docs/restarts.md). Where no master has one yet, or the user has no right to it, uptime
	// counts.
	//
	// Without a RestartGuard the guard is the longest TTL that this client has used, and it is for masters that
	// are new to a list that is in use: who starts new masters and takes a lock waits for nothing.
	//
	// Some things no client can see. A backup may be copied back, or the end of a file be cut, while nobody runs:
	// then delete that key before clients come. A client that starts cannot know, either, that all masters that
	// others have used have lost their disks, or are out of its reach. And if a master was a
	// replica for a moment, was asked for nothing meanwhile, and has kept its connection, no client can tell. Never
	// make a master a replica.
	RestartGuard time.Duration
	// FenceMemory is how long the masters remember a key's fence ([WithFence]) after the last
	// lock with one can have ended. Zero means 24 h. It must be longer than any process can be
	// paused and still write, and longer than the clients' wall clocks can differ. Give it alike
	// to all clients: the last client that uses a lock decides.
	//
	// So long, and 24 h at most, is also how far a key's counter may be ahead of this process's
	// wall clock for the client to believe it, and how far this clock may be ahead of a master's
	// for the master to move the counter. So a master that lies, or a person who writes a counter,
	// can make the fence jump by this much at most.
	FenceMemory time.Duration
	// Durable declares that all masters persist every write before they answer (appendonly yes, appendfsync
	// always), and that each address comes back with its own disk. Then a master that was restarted has a vote at once,
	// if its disk has been known for a RestartGuard. Durable needs one: masters that are new, or have a new
	// disk, are told by it. It counts for nothing with a master that denies it: one that lets us not run INFO, has
	// no append-only file, or was a replica before. A master of a Sentinel group is never exempt. After all
	// else that makes it untrue, as a backup that is copied back, delete the key {prefix}:since there before
	// clients come.
	//
	// Of a cluster it declares more: that whoever takes over a slot has all that was answered before,
	// and that its predecessor then answers nothing, as Amazon MemoryDB promises. Then no failover
	// silences the cluster. An ordinary cluster forgets the latest writes in a failover, however
	// durable its nodes are: never set Durable if there is one among the masters.
	Durable bool
	// Handovers is how many times in a row a released lock goes to the next waiter of this client
	// at once. After that, waiters of other processes get a chance first, if there are any; and
	// also after 4 ms, or four round trips if that is longer. After 10 ms, or thirty round trips,
	// the lock is released in any case: there may be others who only poll. Zero means 16.
	// A number below zero means no limit, neither of number nor of time.
	//
	// The next waiter has the lock without the masters' word, under the same token, with what is
	// left of the validity, and while at least half of it is left. The masters are asked at the
	// same time, for the Unlock before it. By the assumptions of the package this is as good as
	// the validity is. If they are broken (a majority was flushed), the next holder may work for
	// a round trip under a lock that is lost, as the one before it did; then its KeepAlive ends.
	// Use WithFence if you want the masters' word before each lock: the next waiter waits for its
	// number. That is one round, in place of a release and an attempt.
	//
	// These go by the masters: locks with WithShared, WithPermits, WithMinHold or WithSecond;
	// waiters whose keys, TTL, round timeout, owner or WithFence differ; a lock whose token was
	// given by WithToken or asked for by Mutex.Token; and one of which an Extend or a renewal is
	// under way. Then the next waiter's attempt follows the release. A token that Client.Holders
	// has shown is not known to the Mutex: whoever releases with it may end a later holder's lock.
	Handovers int
	// Observers are told what happens. SlogObserver returns one that logs. redlock/contrib has some
	// for OpenTelemetry and Prometheus, and package flight one that records.
	Observers []Observer
}

// setDefaults sets the defaults that the rounds and the queues need.
func (cfg *Config) setDefaults() {
	if cfg.DriftFactor == 0 {
		cfg.DriftFactor = defaultDriftFactor
	}
	if cfg.FenceMemory == 0 {
		cfg.FenceMemory = defaultFenceMemory
	}
	if cfg.Handovers == 0 {
		cfg.Handovers = defaultHandovers
	}
}

// roundTimeout bounds a round of a lock with that TTL.
func (cfg *Config) roundTimeout(ttl time.Duration) time.Duration {
	return cmp.Or(cfg.RoundTimeout, defaults.RoundTimeout(ttl))
}

// questionTimeout bounds a round that only asks, and has no lock with a TTL.
func (cfg *Config) questionTimeout() time.Duration { return cmp.Or(cfg.RoundTimeout, maxRoundTimeout) }

// check returns what is wrong with the fields that the mux does not check.
func (cfg *Config) check() error {
	if err := cfg.checkPrefix(); err != nil {
		return err
	}
	if err := kind.CheckOwner(cfg.Owner); err != nil {
		return err
	}
	if !(cfg.DriftFactor >= 0 && cfg.DriftFactor < 1) {
		return fmt.Errorf("drift factor %v is not within 0 and 1", cfg.DriftFactor)
	}
	if min(cfg.DialTimeout, cfg.RoundTimeout, cfg.StallTime, cfg.RestartGuard, cfg.FenceMemory) < 0 {
		return errors.New("a negative duration in the configuration")
	}
	if cfg.Durable && cfg.RestartGuard == 0 {
		return errors.New("a Config that is Durable needs a RestartGuard: a master that is new, or has lost its disk, must not vote before that has passed")
	}
	if cfg.FenceMemory > maxTTL {
		return fmt.Errorf("a fence memory of %v is beyond a hundred years", cfg.FenceMemory)
	}
	return nil
}

const maxPrefix = 512 // bytes

// checkPrefix returns what is wrong with the prefix.
func (cfg *Config) checkPrefix() error {
	switch {
	case len(cfg.Prefix) > maxPrefix:
		return fmt.Errorf("the prefix has %d bytes, and %d are the most", len(cfg.Prefix), maxPrefix)
	case kind.Reserved(cfg.Prefix):
		return fmt.Errorf("the prefix %s is one of the names that are kept beside a lock", quoted(cfg.Prefix))
	case conn.HashTag(cfg.Prefix) != "":
		return nil
	}
	for _, a := range cfg.Masters {
		if addr, err := conn.ParseAddress(a); err == nil && addr.Cluster() {
			return fmt.Errorf("%s is a cluster, and the keys of a lock must be in one slot of it: set Config.Prefix to one with a hash tag, such as %q",
				addr, "{locks}:"+cfg.Prefix)
		}
	}
	return nil
}

// Format prints the configuration without passwords, whatever the verb.
func (cfg Config) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "{Masters:%v Prefix:%q Username:%q Password:%s SentinelUsername:%q SentinelPassword:%s TrustAnySentinel:%t Credentials:%t TLS:%t Dialer:%t"+
		" ClientName:%q Owner:%q DialTimeout:%v RoundTimeout:%v StallTime:%v BusyPoll:%v DriftFactor:%v RestartGuard:%v"+
		" FenceMemory:%v Durable:%t Handovers:%d Observers:%d}",
		conn.RedactAll(cfg.Masters), cfg.Prefix, cfg.Username, cfg.Password, cfg.SentinelUsername, cfg.SentinelPassword, cfg.TrustAnySentinel, cfg.Credentials != nil, cfg.TLS != nil, cfg.Dialer != nil,
		cfg.ClientName, cfg.Owner, cfg.DialTimeout, cfg.RoundTimeout, cfg.StallTime, cfg.BusyPoll, cfg.DriftFactor, cfg.RestartGuard,
		cfg.FenceMemory, cfg.Durable, cfg.Handovers, len(cfg.Observers))
}

// LogValue returns what Format prints.
func (cfg Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(cfg)) }

// forMux is the configuration of the mux, without the hooks.
func (cfg *Config) forMux() mux.Config {
	return mux.Config{
		Masters: cfg.Masters,
		Conn: conn.Options{
			TLS:         cfg.TLS,
			Username:    cfg.Username,
			Password:    cfg.Password,
			Credentials: cfg.Credentials,
			Dialer:      cfg.Dialer,
			DialTimeout: cfg.DialTimeout,
			Scripts:     script.Texts,
			Tracking:    true,
			Probe:       true,
			ClusterKey:  cfg.Prefix,
			Witness:     kind.WitnessKey(cfg.Prefix),

			SentinelUsername: cfg.SentinelUsername,
			SentinelPassword: cfg.SentinelPassword,
			TrustAnySentinel: cfg.TrustAnySentinel,
		},
		StallTime: cfg.StallTime,
		BusyPoll:  cfg.BusyPoll,
	}
}
