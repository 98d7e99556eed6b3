package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/contrib/etcd"
)

// Names of what the case of the second lock measures besides, in Sample.Extra. Its operations are those of one
// caller. Requests are the messages that clients send to etcd.
const (
	askedAlone = "requests/lock, one caller"
	askedCrowd = "requests/lock, a crowd"
	crowdTime  = "ns/lock, a crowd"
	askedTry   = "requests/lock, a crowd that does not wait"
)

const (
	crowdClients = 8 // as processes have one each
	crowdEach    = 8 // goroutines of each
)

// seconds returns etcd's lock by itself, and behind redburst.
func seconds() []Contestant {
	if !haveEtcd() {
		return nil
	}
	return []Contestant{
		{Name: "etcd-lock", Open: openSecond(false), waits: true, quick: true, group: groupSecond},
		{Name: ours + "-etcd", Open: openSecond(true), waits: true, quick: true, group: groupSecond},
	}
}

// A secondLocker is a client of an etcd cluster, and of masters in front of it.
type secondLocker struct {
	servers  *etcdLocker // of the first client, which ends them
	client   *clientv3.Client
	second   *etcd.Second
	masters  *redlock.Client // nil without
	requests *atomic.Int64   // of all clients of these servers
}

func openSecond(behind bool) func(f *Fleet, _ int) (Locker, error) {
	return func(f *Fleet, _ int) (Locker, error) {
		servers, err := openEtcd(f, 0)
		if err != nil {
			return nil, err
		}
		l := &secondLocker{requests: new(atomic.Int64)}
		if err := l.open(f, servers.(*etcdLocker).endpoints, behind); err != nil {
			return nil, errors.Join(err, servers.Close())
		}
		l.servers = servers.(*etcdLocker)
		return l, nil
	}
}

func (l *secondLocker) open(f *Fleet, endpoints []string, behind bool) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	l.client, err = dialEtcd(endpoints, grpc.WithChainUnaryInterceptor(l.countCall), grpc.WithChainStreamInterceptor(l.countStream))
	if err != nil {
		return err
	}
	if l.second, err = etcd.New(l.client, etcd.WithTTL(lockTTL)); err != nil || !behind {
		return err
	}
	l.masters, err = redlock.Open(context.Background(), redlock.Config{Masters: f.URLs(), TLS: f.endpoints[0].TLS})
	return err
}

// another returns another client of the same masters and servers.
func (l *secondLocker) another(f *Fleet) (Locker, error) {
	next := &secondLocker{requests: l.requests}
	return next, next.open(f, l.servers.endpoints, l.masters != nil)
}

func (l *secondLocker) countCall(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	l.requests.Add(1)
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (l *secondLocker) countStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	return countedStream{s, l.requests}, err
}

type countedStream struct {
	grpc.ClientStream
	requests *atomic.Int64
}

func (s countedStream) SendMsg(m any) error {
	s.requests.Add(1)
	return s.ClientStream.SendMsg(m)
}

func (l *secondLocker) Mutex(key string) (Mutex, error) {
	if l.masters != nil {
		return redburstMutex{l.masters.NewMutex(key, lockTTL, redlock.WithSecond(l.second))}, nil
	}
	return &secondMutex{second: l.second, key: key}, nil
}

func (l *secondLocker) Close() (err error) {
	if l.masters != nil {
		err = l.masters.Close()
	}
	if l.second != nil {
		err = errors.Join(err, l.second.Close())
	}
	if l.client != nil {
		err = errors.Join(err, l.client.Close())
	}
	if l.servers != nil {
		err = errors.Join(err, l.servers.Close())
	}
	return err
}

// A secondMutex is etcd's lock by itself.
type secondMutex struct {
	second *etcd.Second
	key    string
	lock   redlock.SecondLock
}

func (m *secondMutex) TryLock(ctx context.Context) (err error) {
	m.lock, err = m.second.TryLock(ctx, m.key)
	return err
}

func (m *secondMutex) Lock(ctx context.Context) (err error) {
	m.lock, err = m.second.Lock(ctx, m.key)
	return err
}

func (m *secondMutex) Extend(context.Context) error     { return m.lock.Context().Err() }
func (m *secondMutex) Unlock(ctx context.Context) error { return m.lock.Unlock(ctx) }

// compareSecond measures what a second lock costs one caller, and what a crowd that wants one lock asks of the
// system behind it.
func compareSecond(r *slice) error {
	l, counted := r.locker.(*secondLocker)
	requests := func() float64 { return 0 }
	if counted {
		requests = func() float64 { return float64(l.requests.Load()) }
	}
	alone := newSample()
	one := *r
	one.sample = alone
	before := requests()
	if err := measure(&one); err != nil {
		return err
	}
	// Those of the warm-up count, too, and their locks do not: it is a quarter of the time.
	r.sample.Merge(alone)
	r.sample.Extra[askedAlone] = (requests() - before) / (1.25 * float64(max(alone.Ops(), 1)))
	crowd := []Locker{r.locker}
	for range crowdClients - 1 {
		var next Locker
		var err error
		if counted {
			next, err = l.another(r.fleet)
		} else {
			next, err = r.contestant.Open(r.fleet, crowdEach)
		}
		if err != nil {
			r.sample.Fail(fmt.Errorf("open: %w", err))
			return nil
		}
		defer next.Close()
		crowd = append(crowd, next)
	}
	for name, take := range map[string]func(Mutex) func(context.Context) error{
		askedCrowd: func(m Mutex) func(context.Context) error { return m.Lock },
		askedTry:   func(m Mutex) func(context.Context) error { return m.TryLock },
	} {
		tally := newSample()
		before := requests()
		began := time.Now()
		if err := r.gather(crowd, take, tally); err != nil {
			return err
		}
		r.sample.addErrors(tally)
		locks := float64(max(tally.Ops(), 1))
		r.sample.Extra[name] = (requests() - before) / locks
		if name == askedCrowd {
			r.sample.Extra[crowdTime] = float64(time.Since(began)) / locks
		}
	}
	return nil
}

// gather has a crowd want one lock until the slice is over. Who does not wait tries again after a
// moment.
func (r *slice) gather(crowd []Locker, take func(Mutex) func(context.Context) error, sample *Sample) error {
	all := make([]Mutex, 0, crowdClients*crowdEach)
	for _, l := range crowd {
		for range crowdEach {
			m, err := l.Mutex(r.Key(0))
			if err != nil {
				return err
			}
			all = append(all, m)
		}
	}
	tallies := newTallies(len(all))
	r.work(all, tallies, r.length, func(ctx context.Context, m Mutex, t *tally) {
		ctx, cancel := context.WithDeadline(ctx, t.end)
		defer cancel()
		began := time.Now()
		switch err := take(m)(ctx); {
		case errors.Is(err, redlock.ErrHeld) && !errors.Is(err, context.DeadlineExceeded):
			time.Sleep(time.Millisecond)
		case err == nil:
			err = m.Unlock(context.WithoutCancel(ctx))
			t.note(time.Since(began), err)
		case time.Now().Before(t.end):
			t.note(0, err)
		}
	})
	for _, t := range tallies {
		t.into(sample)
	}
	return nil
}

func (r Result) writeSecond(b *bytes.Buffer) {
	fmt.Fprintf(b, "etcd has %d members here, and writes its log to the disk of this machine. The first columns are of one caller. The crowd is %d "+
		"goroutines of %d clients that want one lock: those of the last column do not wait, and try again after a millisecond. A request is a "+
		"message that a client sends to etcd, the renewal of its lease included.\n\n"+
		"| contestant | p50 | p99 | requests to etcd/lock | crowd: time/lock | crowd: requests to etcd/lock | crowd that tries: requests to etcd/lock | failed |\n"+
		"|---|---:|---:|---:|---:|---:|---:|---:|\n", etcdMembers, crowdClients*crowdEach, crowdClients)
	for i, c := range r.Contestants {
		s := r.Total(i)
		fmt.Fprintf(b, "| %s | %s | %s | %.1f | %s | %.1f | %.1f | %s |\n", c.Name, short(s.Quantile(0.5)), short(s.Quantile(0.99)),
			s.Extra[askedAlone], short(time.Duration(s.Extra[crowdTime])), s.Extra[askedCrowd], s.Extra[askedTry], failedCell(s))
	}
}
