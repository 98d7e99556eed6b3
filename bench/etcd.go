package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

// etcdMembers is how many servers an etcd has that survives the loss of one.
const etcdMembers = 3

// haveEtcd reports whether etcd's server is installed (on Debian, etcd-server).
func haveEtcd() bool {
	_, err := exec.LookPath("etcd")
	return err == nil
}

// An etcdLocker is an etcd of three members on this machine.
type etcdLocker struct {
	dir       string
	endpoints []string
	members   []*exec.Cmd
	client    *clientv3.Client
	ttl       time.Duration
}

func openEtcd(f *Fleet, _ int) (_ Locker, err error) {
	l := &etcdLocker{ttl: f.ttl()}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if l.dir, err = os.MkdirTemp("", "bench-etcd"); err != nil {
		return nil, err
	}
	ports, err := freePorts(2 * etcdMembers)
	if err != nil {
		return nil, err
	}
	var peers []string
	url := func(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }
	for i := range etcdMembers {
		l.endpoints = append(l.endpoints, url(ports[i]))
		peers = append(peers, fmt.Sprintf("m%d=%s", i, url(ports[etcdMembers+i])))
	}
	for i := range etcdMembers {
		own, peer := l.endpoints[i], url(ports[etcdMembers+i])
		cmd := exec.Command("etcd", "--name", fmt.Sprint("m", i), "--data-dir", filepath.Join(l.dir, fmt.Sprint(i)),
			"--listen-client-urls", own, "--advertise-client-urls", own,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--initial-cluster", strings.Join(peers, ","), "--initial-cluster-state", "new", "--log-level", "error")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		l.members = append(l.members, cmd)
		if err := pins.pinMaster(cmd.Process.Pid); err != nil {
			return nil, err
		}
	}
	if l.client, err = dialEtcd(l.endpoints); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), slack)
	defer cancel()
	for {
		if _, err = l.client.Get(ctx, "/"); err == nil {
			return l, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("etcd is not up: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func dialEtcd(endpoints []string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: slack, Logger: zap.NewNop()})
}

// freePorts returns n ports that nobody listens on.
func freePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// Mutex has a session of its own: to etcd one session is one holder.
func (l *etcdLocker) Mutex(key string) (Mutex, error) {
	session, err := concurrency.NewSession(l.client, concurrency.WithTTL(int(l.ttl/time.Second)))
	if err != nil {
		return nil, err
	}
	return etcdMutex{concurrency.NewMutex(session, key)}, nil
}

type etcdMutex struct{ *concurrency.Mutex }

func (etcdMutex) Extend(context.Context) error {
	return errors.New("etcd: its client extends by itself only")
}

func (l *etcdLocker) Close() error {
	if l.client != nil {
		l.client.Close()
	}
	for _, m := range l.members {
		m.Process.Kill()
		m.Wait()
	}
	return os.RemoveAll(l.dir)
}
