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
	defaultHandovers = 16

	minTTL = 10 * time.Millisecond // of a lock: half of it is left after a round trip of 2 ms
	maxTTL = defaults.MaxTTL       // of a lock, and a counter's memory
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
	// Masters are the addresses of 1 to 64 independent Redis masters, best three or five:
	//
	//	host:port
	//	redis://user:password@host:port/db      rediss:// over TLS; valkey:// and valkeys:// are the same
	//	unix:///path
	//	sentinel://host:port,host:port/group    the master of a Sentinel group; sentinels:// over TLS
	//	cluster://host:port,host:port           one slot of a Redis Cluster; clusters:// over TLS; see Prefix
	//
	// Give each group and each cluster once, by three of its sentinels or nodes, or more. More than half of
	// those must be up for a client that starts. A password in an address is part of a string, which package fmt
	// may print: give it as Password, or by Credentials.
	Masters []string
	// Prefix stands before every key on the masters, and nowhere else: people see a lock's key without it. It separates
	// those who share masters, by the keys that an ACL allows. For a cluster it must have a hash tag, as
	// {locks}: has. Give it alike to all clients: with another prefix, a lock is another lock. It has up to 512 bytes.
	Prefix string
	// Username and Password are used where an address has none of its own.
	Username string
	Password Secret
	// SentinelUsername and SentinelPassword are shown to sentinels alone, and only to those that demand credentials.
	// No sentinel is shown the master's. If both have the same, give them twice.
	SentinelUsername string
	SentinelPassword Secret
	// TrustAnySentinel makes a client that starts while half of a group's sentinels or more are down, or disagree,
	// believe those that answer. One that is wrong or hostile can then choose a server, which is shown the master's
	// credentials, and has the group's vote.
	TrustAnySentinel bool
	// Credentials, if set, is called at every connect to a master, and overrides Username, Password and those of the
	// address, and TLS if it returns one. It is told the master's address, as Stats shows it. If the credentials expire, it is called again
	// when half to three quarters of their time have passed, and the master is told the new ones on its live
	// connection, one master at a time. If there are none, or they are refused, the old ones serve on, MasterStats.Err
	// says why, and the client tries again. It must return when its context ends. Several goroutines may call it at once.
	Credentials func(ctx context.Context, master string) (Credentials, error)
	// TLS, if set, is used for every master that is not on a Unix socket.
	TLS *tls.Config
	// Dialer, if set, makes the connections: for tunnels, proxies, and addresses that lead there from within alone. A
	// net.Dialer's DialContext is one. The network is "tcp" or "unix", and the address is as Masters has it or a
	// server named it. ctx bounds the call; the connection must outlive it. The client speaks TLS over it, and owns it:
	// its Close must end its Read and Write. An error counts as a master that is out of reach. What is no *net.TCPConn
	// or *net.UnixConn costs two goroutines and some time. docs/managed.md has more.
	Dialer func(ctx context.Context, network, address string) (net.Conn, error)
	// ClientName is in the default Owner, and in the name that CLIENT LIST shows on the masters.
	ClientName string
	// Owner is in front of every token, so that everybody can see who holds a lock. It is printable ASCII without
	// spaces, up to 128 bytes. Empty means name@host:pid, or host:pid without a ClientName. It is a hint: any
	// user who may write the key can write any name.
	Owner string

	// DialTimeout bounds one connect, and how long Open waits for a majority. Zero means 1 s. A server that has taken
	// the connection has 30 s more for TLS and the handshake, and counts as down meanwhile. After silent dials both
	// double, up to fourfold.
	DialTimeout time.Duration
	// RoundTimeout is how long a round waits for a quorum. Zero means a twentieth of the lock's TTL, but at least
	// 200 ms, so that masters and processes can be busy, and at most 500 ms. For a TTL below 1 s it means a fifth
	// of the TTL, but at least 20 ms. A slow master delays a round only if the quorum needs it.
	RoundTimeout time.Duration
	// StallTime is how long a master may owe an answer and give none. After a quarter of it more,
	// the client resets the connection, and the master counts as down. Zero means 1 s.
	StallTime time.Duration
	// BusyPoll, if positive, is for how long at most a call asks for its masters' answers again and again before its
	// goroutine parks; 200 µs is a good value, and 10 ms the most. It needs Linux: elsewhere New and Open refuse it.
	// Use it where locks must be fast, masters answer within the limit, and a CPU is free for this process: never
	// where the masters share all CPUs with it. docs/distance.md says what it saves.
	BusyPoll time.Duration
	// DriftFactor is the share of the TTL by which the masters' clocks may run faster than ours
	// over that TTL, from 0 to less than 1. Zero means 0.01. 2 ms are added to that share.
	DriftFactor float64
	// RestartGuard is the longest TTL, or least hold with its drift ([WithMinHold]), that any client uses on these
	// masters. No Mutex of this client can have a longer one. A master that may have forgotten locks has no vote
	// until its process has been known for so long: one that was started or flushed, is new in its place, took the place
	// of another in its group, or was a replica.
	//
	// Without it, the guard is the longest TTL that this client has used, and it is for masters that are new to a
	// list that is in use: who starts new masters and takes a lock waits for nothing. docs/restarts.md says how
	// clients know, and what none can see, as a backup that is copied back. Never make a master a replica.
	RestartGuard time.Duration
	// FenceMemory is how long the masters remember a key's fence ([WithFence]) after the last lock with one can
	// have ended. Zero means 24 h. It must be longer than any process can be paused and still write, and longer than
	// the clients' wall clocks can differ. So long, and 24 h at most, is also how far a counter may be ahead
	// of a client's wall clock, and that clock ahead of a master's. Give it alike to all clients.
	FenceMemory time.Duration
	// Durable declares that all masters persist every write before they answer (appendonly yes, appendfsync always),
	// and that each address comes back with its own disk. Then a master that was restarted has a vote at once, if its
	// disk has been known for a RestartGuard, which Durable needs. It counts for nothing with a master that
	// denies it, and with one of a Sentinel group. See docs/restarts.md.
	//
	// Of a cluster it declares that whoever takes over a slot has all that was answered before, and that its
	// predecessor then answers nothing, as Amazon MemoryDB promises. An ordinary cluster forgets the latest writes in a
	// failover, however durable its nodes are: never set Durable if there is one among the masters.
	Durable bool
	// Handovers is how many times in a row a released lock goes to the next waiter of this client at once, without the
	// masters' word, before waiters of other processes get a chance. Zero means 16. Below zero means no limit, neither
	// of number nor, without a fence, of time. docs/how-it-works.md says when a lock is handed over, and for how long.
	Handovers int
	// Observers are told what happens. SlogObserver returns one that logs. redlock/contrib has some
	// for OpenTelemetry and Prometheus, and package flight one that records.
	Observers []Observer
}

// setDefaults sets the defaults that the rounds and the queues need.
func (cfg *Config) setDefaults() {
	cfg.DriftFactor = cmp.Or(cfg.DriftFactor, defaults.DriftFactor)
	cfg.FenceMemory = cmp.Or(cfg.FenceMemory, defaults.FenceMemory)
	cfg.Handovers = cmp.Or(cfg.Handovers, defaultHandovers)
}

// roundTimeout bounds a round of a lock with that TTL.
func (cfg *Config) roundTimeout(ttl time.Duration) time.Duration {
	return cmp.Or(cfg.RoundTimeout, defaults.RoundTimeout(ttl))
}

// questionTimeout bounds a round that only asks, and has no lock with a TTL.
func (cfg *Config) questionTimeout() time.Duration {
	return cmp.Or(cfg.RoundTimeout, defaults.MaxRoundTimeout)
}

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
		return fmt.Errorf("the prefix %s is one of the names that are kept beside a lock", kind.Quoted(cfg.Prefix))
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
