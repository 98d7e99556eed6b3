//go:build unix

// Package etcdtest starts etcd clusters for tests. It is a module by itself, as those who use
// contrib/etcd do not need the server.
package etcdtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/redburst/redburst/redlock/contrib/internal/secondtest"
	"github.com/redburst/redburst/redlock/internal/processes"
)

// variable holds the description of a member. A test binary that finds it is that member.
const variable = "ETCDTEST_MEMBER"

// ElectionTimeout is that of the members. The shortest TTL is one and a half of it, in whole seconds.
const ElectionTimeout = 500 * time.Millisecond

// A member is what a process needs to know to be one.
type member struct {
	Name, Dir, Client, Peer, Cluster string
}

// Main must be called first of all by TestMain: in a process that is a member, it does not return.
func Main() {
	text := os.Getenv(variable)
	if text == "" {
		return
	}
	err := serve(text)
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func serve(text string) error {
	var m member
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return err
	}
	client, peer := url.URL{Scheme: "http", Host: m.Client}, url.URL{Scheme: "http", Host: m.Peer}
	c := embed.NewConfig()
	c.Name, c.Dir, c.InitialCluster = m.Name, m.Dir, m.Cluster
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.TickMs, c.ElectionMs = 50, uint(ElectionTimeout/time.Millisecond)
	c.UnsafeNoFsync = true // the machine does not fail
	c.LogLevel = "warn"
	server, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	return <-server.Err()
}

// A Cluster is the members of an etcd cluster, each a process.
type Cluster struct {
	Members   []*secondtest.Server
	Addrs     []string // of their clients
	processes *processes.Group
}

// Start starts a cluster of n members.
func Start(n int) (*Cluster, error) {
	group, err := processes.NewGroup("secondtest")
	if err != nil {
		return nil, err
	}
	c := &Cluster{processes: group}
	var all []member
	var names []string
	for i := range n {
		m := member{Name: fmt.Sprint("m", i), Client: secondtest.FreeAddr(), Peer: secondtest.FreeAddr()}
		m.Dir = filepath.Join(group.Dir, m.Name)
		names = append(names, m.Name+"=http://"+m.Peer)
		all = append(all, m)
	}
	for _, m := range all {
		m.Cluster = strings.Join(names, ",")
		text, err := json.Marshal(m)
		if err != nil {
			return nil, err
		}
		server := &secondtest.Server{Group: group, Name: m.Name, Command: func() *exec.Cmd {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), variable+"="+string(text))
			return cmd
		}, Ready: func() error { return healthy(m.Client) }}
		c.Members, c.Addrs = append(c.Members, server), append(c.Addrs, m.Client)
	}
	if err := secondtest.StartAll(c.Members); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func healthy(addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "GET", "http://"+addr+"/health", nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	return nil
}

// Close kills all members.
func (c *Cluster) Close() { c.processes.Close() }

// Client returns a client of these addresses, or of all members, that is closed with the test.
func (c *Cluster) Client(t testing.TB, addrs ...string) *clientv3.Client {
	if len(addrs) == 0 {
		addrs = c.Addrs
	}
	return NewClient(t, clientv3.Config{Endpoints: addrs})
}

// NewClient returns a client that is closed with the test.
func NewClient(t testing.TB, config clientv3.Config) *clientv3.Client {
	config.DialTimeout, config.Logger = time.Second, zap.NewNop()
	client, err := clientv3.New(config)
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}
