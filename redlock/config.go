package redlock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
)

const (
	defaultDriftFactor = 0.01
	defaultMinDrift    = 2 * time.Millisecond // the millisecond of Redis, and one to spare
	defaultHandovers   = 16

	minRoundTimeout = 20 * time.Millisecond
	maxRoundTimeout = 500 * time.Millisecond
)

// Config says which masters hold the locks, and how they are reached. The zero
// value of every field but Masters is a good default.
type Config struct {
	// Masters are the addresses of 1 to 64 independent Redis masters, best an
	// odd number: redis://user:password@host:port/db, rediss:// for TLS,
	// unix:///path, host:port, or sentinel://host:port,host:port,host:port/group for the
	// master of a group that sentinels watch over, and sentinels:// for that with
	// TLS. Each master is of a group of its own. List three sentinels of it or more, each
	// once: while half of them are down, a client stays with the master that it knows.
	Masters []string
	// Username and Password are used where an address has none of its own.
	Username, Password string
	// SentinelUsername and SentinelPassword are shown to sentinels, in place of
	// those of the master.
	SentinelUsername, SentinelPassword string
	// Credentials, if set, is asked at every connect and reconnect, and
	// overrides all others. It must end with its context.
	Credentials func(ctx context.Context) (username, password string, err error)
	// TLS, if set, makes every master but those on Unix sockets be spoken to
	// over TLS.
	TLS *tls.Config
	// ClientName is shown by CLIENT LIST, and in the default Owner.
	ClientName string
	// Owner stands in front of every token, so that everybody can see who
	// holds a lock: printable ASCII without spaces, up to 128 bytes. Empty
	// means name@host:pid, or host:pid without a ClientName; "-" means none.
	Owner string

	// DialTimeout bounds one connect with its handshake; zero means 1 s.
	DialTimeout time.Duration
	// RoundTimeout is how long a round waits for a quorum; zero means a
	// twentieth of the lock's TTL, within 20 ms and 500 ms. A master that is
	// slow delays a round only if the quorum needs it.
	RoundTimeout time.Duration
	// StallTime is how long a master may owe an answer before its connection
	// is reset and it counts as down; zero means 1 s.
	StallTime time.Duration
	// DriftFactor is the share of the TTL by which the masters' clocks may
	// run faster than ours over that TTL; zero means 0.01. MinDrift is added
	// to it; zero means 2 ms.
	DriftFactor float64
	MinDrift    time.Duration
	// RestartGuard is the longest TTL that anybody uses on these masters: no Mutex of
	// this client can have a longer one. If it is set, a master that was started less
	// than this ago when it is first connected does not vote until it has passed, as it
	// may have forgotten locks; nor does one whose second replication id says that it was
	// a replica before, as nobody knows when.
	//
	// A master that may have restarted while this client knows it is treated so in any
	// case, for the longer of this and the longest TTL that this client has used. That is
	// one that was restarted, that does not say at a reconnect whether it was (it needs
	// the right to INFO), that was a replica in between, or that has taken the place of
	// another in its group. A master that was a replica for a moment in which nobody
	// asked it anything, and whose connection has lasted, cannot be told from one that was
	// none: never make a master of locks a replica.
	//
	// Exempt from a restart is a master that persists every write before it answers
	// (appendonly yes, appendfsync always), if it says so to CONFIG GET or Durable does,
	// and always is the same server: not an address behind which a replica can take over
	// unnoticed.
	RestartGuard time.Duration
	// Strict makes Open fail if any master can never serve as it is configured (a
	// replica, a node of a cluster, a wrong password), and not only if so many cannot that
	// no majority is left.
	Strict bool
	// Durable declares that all masters persist every write before they answer,
	// where they do not let us ask.
	Durable bool
	// Handovers is how many times in a row a lock that is released goes to
	// the next waiter of this client at once, before waiters elsewhere get a
	// chance; zero means 16, below zero means always.
	Handovers int
	// Observer is told what happens, if it is set.
	Observer *Observer
}

// check returns what is wrong with what is ours; the rest is the mux's.
func (cfg *Config) check() error {
	if cfg.Owner != "-" {
		if err := checkOwner(cfg.Owner); err != nil {
			return err
		}
	}
	if !(cfg.DriftFactor >= 0 && cfg.DriftFactor < 1) {
		return fmt.Errorf("drift factor %v is not within 0 and 1", cfg.DriftFactor)
	}
	if min(cfg.DialTimeout, cfg.RoundTimeout, cfg.StallTime, cfg.MinDrift, cfg.RestartGuard) < 0 {
		return errors.New("a negative duration in the configuration")
	}
	return nil
}

// Format prints the configuration without passwords, whatever the verb.
func (cfg Config) Format(s fmt.State, _ rune) {
	masters := make([]string, len(cfg.Masters))
	for i, a := range cfg.Masters {
		masters[i] = conn.Redact(a)
	}
	fmt.Fprintf(s, "{Masters:%v Username:%q Password:%s SentinelUsername:%q SentinelPassword:%s Credentials:%t TLS:%t"+
		" ClientName:%q Owner:%q DialTimeout:%v RoundTimeout:%v StallTime:%v DriftFactor:%v MinDrift:%v RestartGuard:%v"+
		" Strict:%t Durable:%t Handovers:%d Observer:%t}",
		masters, cfg.Username, dots(cfg.Password), cfg.SentinelUsername, dots(cfg.SentinelPassword), cfg.Credentials != nil, cfg.TLS != nil,
		cfg.ClientName, cfg.Owner, cfg.DialTimeout, cfg.RoundTimeout, cfg.StallTime, cfg.DriftFactor, cfg.MinDrift, cfg.RestartGuard,
		cfg.Strict, cfg.Durable, cfg.Handovers, cfg.Observer != nil)
}

// dots stand for a secret.
func dots(secret string) string {
	if secret == "" {
		return ""
	}
	return "..."
}

func (cfg *Config) mux(ws *watches, g *guard) mux.Config {
	var onState func(int, mux.State)
	if cfg.Observer != nil && cfg.Observer.Master != nil {
		told := cfg.Observer.Master
		onState = func(_ int, s mux.State) { told(masterStats(s)) }
	}
	return mux.Config{
		Masters: cfg.Masters,
		Conn: conn.Options{
			TLS:         cfg.TLS,
			Username:    cfg.Username,
			Password:    cfg.Password,
			Credentials: cfg.Credentials,
			ClientName:  cfg.ClientName,
			DialTimeout: cfg.DialTimeout,
			Scripts:     scripts(),
			Tracking:    true,
			Persistence: !cfg.Durable,

			SentinelUsername: cfg.SentinelUsername,
			SentinelPassword: cfg.SentinelPassword,
		},
		Quarantine:   g.quarantine,
		OnSwitch:     g.switched,
		OnPush:       ws.push,
		OnDisconnect: ws.disconnected,
		OnState:      onState,
		StallTime:    cfg.StallTime,
		Strict:       cfg.Strict,
	}
}

// An Option changes one Mutex.
type Option func(*Mutex)

// WithToken makes the Mutex one that holds the lock taken under this token,
// here or in another process ([Mutex.Token]): it can be extended and released.
// Its validity is unknown before the first Extend, and whoever handed it over
// must not use it any more. A token has 1 to 4,096 bytes.
func WithToken(token string) Option {
	return func(m *Mutex) {
		switch {
		case token == "":
			m.invalid = errors.New("the token that was handed over is empty")
		case len(token) > maxToken:
			m.invalid = fmt.Errorf("the token that was handed over has %d bytes, and %d are the most", len(token), maxToken)
			return
		}
		m.token = []byte(token)
	}
}

// WithRoundTimeout replaces Config.RoundTimeout.
func WithRoundTimeout(d time.Duration) Option {
	return func(m *Mutex) {
		if d <= 0 {
			m.invalid = fmt.Errorf("round timeout %v is not above zero", d)
		}
		m.timeout = d
	}
}

// WithMaxLifetime makes KeepAlive let go of the lock when it has been held for
// d, so that a holder that hangs does not keep it for ever.
func WithMaxLifetime(d time.Duration) Option {
	return func(m *Mutex) {
		if d <= 0 {
			m.invalid = fmt.Errorf("maximum lifetime %v is not above zero", d)
		}
		m.lifetime = d
	}
}
