package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
)

// A masterSet is the masters that a command talks to, and how it connects to them.
type masterSet struct {
	masters []string
	connect conn.Options
	durable bool // they were declared to persist every write (--durable)

	certificates string // the texts that connect.TLS was made of
}

// clientConfig is the Config of a client that connects to the masters.
func (s *masterSet) clientConfig(name string) redlock.Config {
	opt := s.connect
	return redlock.Config{
		Masters: s.masters, Username: opt.Username, Password: opt.Password, Credentials: opt.Credentials, TLS: opt.TLS, DialTimeout: opt.DialTimeout,
		Prefix:     opt.ClusterKey,
		ClientName: "redlock-" + name,

		SentinelUsername: opt.SentinelUsername, SentinelPassword: opt.SentinelPassword, TrustAnySentinel: opt.TrustAnySentinel,
	}
}

// openAll returns a client, once each master that can be reached is connected: the lock may be on a bare majority, and then
// none of these may be missing.
func (s *masterSet) openAll(ctx context.Context, command string) (*redlock.Client, error) {
	client, err := redlock.Open(ctx, s.clientConfig(command))
	if err != nil {
		return nil, &failure{exitNoQuorum, err, doctorRemedy}
	}
	deliver(ctx, client, s.connect.DialTimeout)
	return client, nil
}

// openAnyway opens a client, also if too few masters answer.
func (s *masterSet) openAnyway(ctx context.Context, command string) (*redlock.Client, error) {
	cfg := s.clientConfig(command)
	client, err := redlock.Open(ctx, cfg)
	if errors.Is(err, redlock.ErrNoQuorum) { // which is a state like others
		client, err = redlock.New(cfg)
	}
	if err != nil {
		return nil, &failure{exitNoQuorum, err, doctorRemedy}
	}
	return client, nil
}

// deliver waits until each master that can be reached is connected and has its release, if there was one, but for a dial
// timeout at most. Open returns when a majority is connected, and Close drops what is owed to the others: they would keep
// the key until it expires.
func deliver(ctx context.Context, client *redlock.Client, most time.Duration) {
	owes := func(m redlock.MasterStats) bool {
		return m.Phase == "dialing" || m.Phase == "up" && m.Debts+behind.OfMaster(&m).Owed > 0
	}
	for began := time.Now(); ctx.Err() == nil && time.Since(began) < most; time.Sleep(5 * time.Millisecond) {
		if !slices.ContainsFunc(client.Stats().Masters, owes) {
			return
		}
	}
}

const doctorRemedy = "'redlock doctor' says what is wrong with the masters"

// key is a lock's key with the prefix, as the masters have it.
func (s *masterSet) key(key string) string { return s.connect.ClusterKey + key }

// handedOn are the masters as a command that we run is told of them: without passwords, and with the TLS
// that our flags ask for.
func (s *masterSet) handedOn() string {
	all := conn.RedactAll(s.masters)
	for i, a := range all {
		if strings.HasPrefix(a, "cluster") && strings.Contains(a, "://") { // the end of its nodes
			if all[i] = strings.Replace(a, "?db=", "/", 1); all[i] == a {
				all[i] += "/"
			}
			a = all[i]
		}
		switch scheme, rest, ok := strings.Cut(a, "://"); {
		case s.connect.TLS == nil || ok && scheme == "unix":
		case !ok:
			all[i] = "rediss://" + a
		case scheme == "redis" || scheme == "sentinel" || scheme == "cluster":
			all[i] = scheme + "s://" + rest
		}
	}
	return strings.Join(all, ",")
}

// contains reports whether an address is in a list, with whatever credentials.
func contains(list []string, address string) bool {
	return slices.ContainsFunc(list, func(a string) bool { return bare(a) == bare(address) })
}

// bare returns a valid address without its credentials.
func bare(address string) string {
	a, err := conn.ParseAddress(address)
	if err != nil {
		return conn.Redact(address)
	}
	return a.String()
}
