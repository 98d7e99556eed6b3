package main

import (
	"cmp"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
)

// A Transport is how the contestants reach the masters.
type Transport string

// The transports.
const (
	TCP  Transport = "tcp"
	Unix Transport = "unix"
	TLS  Transport = "tls"

	// Over TCP each master is a Redis Cluster.
	Cluster Transport = "cluster"
)

const (
	clusterNetwork = "cluster" // of an Endpoint
	clusterShards  = 3         // each has a master and a replica
)

// A Fault is what happens to the first master while a case is measured.
type Fault string

// The faults.
const (
	Healthy Fault = ""
	Hung    Fault = "hung" // SIGSTOP: connections stay open and nothing is answered
	Dead    Fault = "dead" // SIGKILL: connections are reset and refused
)

// An Endpoint is where a client connects to reach one master.
type Endpoint struct {
	Network string      // "tcp", "unix" or clusterNetwork
	Addr    string      // of a cluster: several, with commas
	TLS     *tls.Config `json:"-"` // nil: none

	// Other users of the machine, who lack it, do not use the masters meanwhile.
	Password string
}

// URL is the endpoint as redburst takes it.
func (e Endpoint) URL() string {
	switch {
	case e.Network == "unix", e.Network == clusterNetwork:
		return e.Network + "://:" + e.Password + "@" + e.Addr
	case e.TLS != nil:
		return "rediss://:" + e.Password + "@" + e.Addr
	}
	return "redis://:" + e.Password + "@" + e.Addr
}

// A Fleet is the masters of one case, as the contestants reach them.
type Fleet struct {
	N         int
	TTL       time.Duration // of the locks; zero means lockTTL
	durable   bool          // the masters forget nothing in a restart
	rounds    *roundCount   // redburst's, if they are wanted
	endpoints []Endpoint
	masters   []*redlocktest.Masters // one each, or a cluster's nodes, of which the even ones are masters; none in the process of an heir
	clusters  *redlocktest.Clusters  // nil: none
	files     string                 // of the TLS masters; "" for none
	far       *far                   // nil: at no distance
	questions int64                  // asked by Traffic
}

// StartFleet starts the masters of a case.
func StartFleet(k Case) (f *Fleet, err error) {
	f = &Fleet{N: k.N, TTL: k.TTL, durable: k.durable}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start the masters: %w", err), f.Close())
		}
	}()
	if k.Transport == Cluster {
		return f, f.startClusters()
	}
	var cert pki
	if k.Transport == TLS {
		if f.files, err = os.MkdirTemp("", "redburst-bench-"); err != nil {
			return f, err
		}
		if cert, err = newPKI(f.files); err != nil {
			return f, err
		}
	}
	for range k.N {
		e := Endpoint{Password: rand.Text()}
		opts := []redlocktest.Option{redlocktest.WithPassword(e.Password)}
		if k.durable {
			opts = append(opts, redlocktest.WithArgs("--appendonly", "yes", "--appendfsync", "always"))
		}
		switch k.Transport {
		case Unix:
			e.Network = "unix"
			opts = append(opts, redlocktest.WithUnixSockets())
		case TLS:
			e.Network, e.TLS = "tcp", cert.client
			ports, err := freePorts(1)
			if err != nil {
				return f, err
			}
			port := strconv.Itoa(ports[0])
			e.Addr = "127.0.0.1:" + port
			opts = append(opts, redlocktest.WithArgs("--tls-port", port, "--tls-auth-clients", "no",
				"--tls-cert-file", cert.certFile, "--tls-key-file", cert.keyFile, "--tls-ca-cert-file", cert.certFile))
		default:
			e.Network = "tcp"
		}
		m, err := redlocktest.Run(1, opts...)
		if err != nil {
			return f, err
		}
		f.masters = append(f.masters, m)
		if err := pins.pinMaster(m.PID(0)); err != nil {
			return f, err
		}
		if e.Addr == "" {
			e.Addr = strings.TrimPrefix(m.Addr(0), "unix://")
		}
		f.endpoints = append(f.endpoints, e)
	}
	if k.Delay > 0 {
		if f.far, err = startFar(f.endpoints, k.Delay); err != nil {
			return f, err
		}
		if err := pins.pinMaster(f.far.cmd.Process.Pid); err != nil {
			return f, err
		}
		f.endpoints = f.far.endpoints
	}
	return f, nil
}

func (f *Fleet) startClusters() (err error) {
	password := rand.Text()
	if f.clusters, err = redlocktest.RunClusters(f.N, clusterShards, redlocktest.WithPassword(password)); err != nil {
		return err
	}
	for i, addr := range f.clusters.Addrs() {
		nodes := f.clusters.Nodes(i)
		f.masters = append(f.masters, nodes)
		f.endpoints = append(f.endpoints, Endpoint{Network: clusterNetwork, Addr: strings.TrimPrefix(addr, "cluster://"), Password: password})
		for j := range nodes.N() {
			if err := pins.pinMaster(nodes.PID(j)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *Fleet) ttl() time.Duration { return cmp.Or(f.TTL, lockTTL) }

// Close ends the masters.
func (f *Fleet) Close() error {
	if f.clusters != nil {
		f.clusters.Close()
		return nil
	}
	for _, m := range f.masters {
		m.Close()
	}
	var err error
	if f.far != nil {
		err = f.far.Close()
	}
	if f.files != "" {
		err = errors.Join(err, os.RemoveAll(f.files))
	}
	return err
}

// URLs returns the addresses of all masters, as redburst takes them.
func (f *Fleet) URLs() []string {
	var urls []string
	for _, e := range f.endpoints {
		urls = append(urls, e.URL())
	}
	return urls
}

// Do sends a command to master i, past the clients that are measured.
func (f *Fleet) Do(i int, args ...string) (any, error) { return f.masters[i].Do(0, args...) }

// Break makes master i suffer the fault.
func (f *Fleet) Break(i int, fault Fault) {
	switch fault {
	case Hung:
		f.masters[i].Pause(0)
	case Dead:
		f.masters[i].Kill(0)
	}
}

// Heal ends the fault, and returns when master i answers again.
func (f *Fleet) Heal(i int, fault Fault) error {
	switch fault {
	case Hung:
		f.masters[i].Resume(0)
		_, err := f.Do(i, "PING")
		return err
	case Dead:
		f.masters[i].Restart(0)
		return pins.pinMaster(f.masters[i].PID(0))
	}
	return nil
}

// everywhere sends a command to each master, and waits for the replies.
func (f *Fleet) everywhere(args ...string) error {
	for i := range f.masters {
		if _, err := f.Do(i, args...); err != nil {
			return fmt.Errorf("master %d: %w", i, err)
		}
	}
	return nil
}

// Persist has all masters write what changes to the disk of this machine, in an appendonly file with this
// appendfsync, and returns when they do. If that is "", they persist nothing.
func (f *Fleet) Persist(fsync string) error {
	if fsync == "" {
		return nil
	}
	for _, setting := range [][2]string{{"appendfsync", fsync}, {"appendonly", "yes"}} {
		if err := f.everywhere("CONFIG", "SET", setting[0], setting[1]); err != nil {
			return fmt.Errorf("persist: %w", err)
		}
	}
	for i := range f.masters { // a child process of each writes the file's beginning
		for {
			v, err := f.Do(i, "INFO", "persistence")
			if err != nil {
				return fmt.Errorf("persist: %w", err)
			}
			info, _ := v.(string)
			if strings.Contains(info, "aof_enabled:1") && !strings.Contains(info, "aof_rewrite_in_progress:1") &&
				!strings.Contains(info, "aof_rewrite_scheduled:1") {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// Forget ends what Persist began.
func (f *Fleet) Forget(fsync string) error {
	if fsync == "" {
		return nil
	}
	if err := f.everywhere("CONFIG", "SET", "appendonly", "no"); err != nil {
		return fmt.Errorf("persist no more: %w", err)
	}
	return nil
}

// Flush deletes all keys.
func (f *Fleet) Flush() {
	for _, m := range f.masters {
		for j := 0; j < m.N(); j += 2 {
			m.Flush(j)
		}
	}
}

// Traffic is what clients have sent to the masters.
type Traffic struct {
	Commands int64 // executed, those within scripts included
	Reads    int64 // of a socket: how often a master was woken by a client
	own      int64 // questions of Traffic itself, to each master that was asked
}

// since returns the traffic between u and t, without the questions.
func (t Traffic) since(u Traffic, asked int) Traffic {
	own := (t.own - u.own) * int64(asked)
	// A question is a command on a connection of its own, behind AUTH, and its end is read as well.
	return Traffic{Commands: t.Commands - u.Commands - 2*own, Reads: t.Reads - u.Reads - 3*own}
}

// Traffic returns the sum over the masters that the fault leaves healthy, and
// their number. It waits until no more commands come in, as some are sent whose replies
// nobody waits for; but not for those who never stop.
func (f *Fleet) Traffic(fault Fault) (t Traffic, asked int, err error) {
	healthy := f.masters
	if fault != Healthy {
		healthy = healthy[1:]
	}
	for began, first := time.Now(), true; ; first = false {
		last := t
		f.questions++
		t, asked = Traffic{own: f.questions}, 0
		for _, m := range healthy {
			for j := 0; j < m.N(); j += 2 {
				v, err := m.Do(j, "INFO", "stats")
				if err != nil {
					return t, 0, fmt.Errorf("ask for a master's statistics: %w", err)
				}
				info, _ := v.(string)
				t.Commands += infoField(info, "total_commands_processed")
				t.Reads += infoField(info, "total_reads_processed")
				asked++
			}
		}
		if idle := t.since(last, asked); !first && (idle.Commands == 0 || time.Since(began) > 200*time.Millisecond) {
			return t, asked, nil
		}
		time.Sleep(time.Millisecond)
	}
}

func infoField(info, name string) int64 {
	n, _ := strconv.ParseInt(infoText(info, name), 10, 64)
	return n
}

func infoText(info, name string) string {
	_, rest, _ := strings.Cut(info, name+":")
	value, _, _ := strings.Cut(rest, "\r\n")
	return value
}

// server says what the masters are, with their version.
func (f *Fleet) server() string {
	v, err := f.Do(0, "INFO", "server")
	info, ok := v.(string)
	if err != nil || !ok {
		return "an unknown server"
	}
	if version := infoText(info, "valkey_version"); version != "" {
		return "valkey-server " + version
	}
	return "redis-server " + infoText(info, "redis_version")
}
