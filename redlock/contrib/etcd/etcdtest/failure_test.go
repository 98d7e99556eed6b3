//go:build unix

package etcdtest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/contrib/etcd"
	"github.com/redburst/redburst/redlock/contrib/internal/secondtest"
)

// A put that was given up, by its caller or as another was sent in its place, reaches etcd after all that has cleaned up
// after it.
func TestLatePutFails(t *testing.T) {
	t.Parallel()
	c := calm(t)
	for name, take := range secondtest.Takes {
		late := func(t *testing.T) *lateStore {
			prefix := "late/" + t.Name() + "/"
			l := &lateStore{Store: storeOf(t, c, prefix), look: c.Client(t), session: prefix + "%/", puts: make(chan func() error, 1)}
			l.second = newSecond(t, NewClient(t, clientv3.Config{Endpoints: c.Addrs, DialOptions: []grpc.DialOption{
				grpc.WithChainUnaryInterceptor(l.intercept),
			}}), etcd.WithPrefix(prefix))
			require.NoError(t, secondtest.MustLock(t, l.second, "k").Unlock(secondtest.Background(t)))
			l.hold.Store(true)
			return l
		}
		t.Run(name+" was cancelled", func(t *testing.T) {
			t.Parallel()
			s := late(t)
			before := s.cleaned(t)
			ctx, cancel := context.WithCancel(secondtest.Background(t))
			failed := make(chan error, 1)
			go func() {
				_, err := take(s.second)(ctx, "k")
				failed <- err
			}()
			put := <-s.puts
			cancel()
			require.ErrorIs(t, <-failed, context.Canceled)
			s.awaitCleaned(t, before)
			s.failsNow(t, put)
		})
		t.Run(name+" was unlocked", func(t *testing.T) {
			t.Parallel()
			s := late(t)
			l, err := take(s.second)(secondtest.Background(t), "k")
			require.NoError(t, err)
			put := <-s.puts
			require.NoError(t, l.Unlock(secondtest.Background(t)))
			s.failsNow(t, put)
		})
		t.Run(name+" was refused, or left the queue", func(t *testing.T) {
			t.Parallel()
			s := late(t)
			held := secondtest.MustLock(t, s.Open(t), "k")
			before := s.cleaned(t)
			ctx, cancel := context.WithCancel(secondtest.Background(t))
			failed := make(chan error, 1)
			go func() {
				_, err := take(s.second)(ctx, "k")
				failed <- err
			}()
			put := <-s.puts
			if name == "Lock" {
				s.AwaitQueue(t, "k", 2)
				cancel()
				require.ErrorIs(t, <-failed, context.Canceled)
				s.AwaitQueue(t, "k", 1)
			} else {
				require.ErrorIs(t, <-failed, redlock.ErrHeld)
				s.awaitCleaned(t, before)
				cancel()
			}
			require.NoError(t, held.Unlock(secondtest.Background(t)))
			s.failsNow(t, put)
		})
	}
}

// A lateStore has a Second one of whose puts is late.
type lateStore struct {
	secondtest.Store
	second  *etcd.Second
	look    *clientv3.Client
	session string // what the names of the sessions' keys begin with
	hold    atomic.Bool
	puts    chan func() error // the late one
}

// intercept keeps the next transaction back, once hold is set, and its caller waits for an answer in vain.
func (s *lateStore) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if method == "/etcdserverpb.KV/Txn" && s.hold.CompareAndSwap(true, false) {
		s.puts <- func() error { return invoke(context.Background(), method, req, new(pb.TxnResponse), cc) }
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// cleaned returns how often something was cleaned up, which the version of the session's key counts.
func (s *lateStore) cleaned(t testing.TB) (n int64) {
	answer, err := s.look.Get(secondtest.Background(t), s.session, clientv3.WithPrefix())
	require.NoError(t, err)
	for _, kv := range answer.Kvs {
		n += kv.Version
	}
	return n
}

func (s *lateStore) awaitCleaned(t testing.TB, before int64) {
	require.Eventually(t, func() bool { return s.cleaned(t) > before }, 20*time.Second, 5*time.Millisecond)
}

// failsNow sends the late put. Nobody has the key then, and it can be had.
func (s *lateStore) failsNow(t testing.TB, put func() error) {
	require.NoError(t, put())
	require.Equal(t, 0, s.Queue(t, "k"))
	l, err := s.second.TryLock(secondtest.Background(t), "k")
	require.NoError(t, err)
	require.NoError(t, l.Unlock(secondtest.Background(t)))
}

// A put whose answer is lost is repeated, and finds that it is there.
func TestAnswerOfPutIsLost(t *testing.T) {
	t.Parallel()
	c := calm(t)
	for name, take := range secondtest.Takes {
		t.Run(name, func(t *testing.T) {
			prefix := "lost/" + name + "/"
			s := storeOf(t, c, prefix)
			var lose atomic.Bool
			client := NewClient(t, clientv3.Config{Endpoints: c.Addrs, DialOptions: []grpc.DialOption{
				grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
					invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					err := invoke(ctx, method, req, reply, cc, opts...)
					if method == "/etcdserverpb.KV/Txn" && lose.CompareAndSwap(true, false) {
						<-ctx.Done()
						return status.FromContextError(ctx.Err()).Err()
					}
					return err
				}),
			}})
			second := newSecond(t, client, etcd.WithPrefix(prefix), etcd.WithTTL(3*time.Second))
			before := secondtest.MustLock(t, second, "k")
			require.NoError(t, before.Unlock(secondtest.Background(t)))
			lose.Store(true)
			l, err := take(second)(secondtest.Background(t), "k")
			require.NoError(t, err)
			require.Greater(t, l.Fence(), before.Fence())
			s.AwaitQueue(t, "k", 1)
			require.NoError(t, l.Unlock(secondtest.Background(t)))
			s.AwaitQueue(t, "k", 0)
		})
	}
}

// A renewal that no read confirms is one of a leader that may have been replaced. It does not count.
func TestRenewalCountsIfItIsConfirmed(t *testing.T) {
	t.Parallel()
	c := calm(t)
	for _, name := range []string{"an error", "another term"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var on atomic.Bool
			client := NewClient(t, clientv3.Config{Endpoints: c.Addrs, DialOptions: []grpc.DialOption{
				grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
					invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
					if r, ok := req.(*pb.RangeRequest); ok && r.CountOnly && name == "an error" && on.Load() {
						return status.Error(codes.Unavailable, "no leader")
					}
					return invoke(ctx, method, req, reply, cc, opts...)
				}),
				grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
					streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
					stream, err := streamer(ctx, desc, cc, method, opts...)
					if name == "another term" {
						return formerStream{stream}, err
					}
					return stream, err
				}),
			}})
			second := newSecond(t, client, etcd.WithPrefix(t.Name()), etcd.WithTTL(2*time.Second))
			l := secondtest.LockInTime(t, second, "k")
			on.Store(true)
			t.Log(secondtest.Ended(t, l)) // or else it would be renewed for ever
		})
	}
}

// A formerStream has renewals of a former term.
type formerStream struct{ grpc.ClientStream }

func (s formerStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if r, ok := m.(*pb.LeaseKeepAliveResponse); ok && err == nil {
		r.Header.RaftTerm--
	}
	return err
}

// The TTL counts from when a renewal was sent, however late its answer came.
func TestRenewalCountsFromWhenItWasSent(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	c := calm(t)
	var renewals atomic.Int64
	var sent atomic.Pointer[time.Time]
	client := NewClient(t, clientv3.Config{Endpoints: c.Addrs, DialOptions: []grpc.DialOption{
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := streamer(ctx, desc, cc, method, opts...)
			if method != "/etcdserverpb.Lease/LeaseKeepAlive" {
				return stream, err
			}
			if renewals.Add(1) > 1 {
				return nil, status.Error(codes.Unavailable, "no more")
			}
			now := time.Now()
			sent.Store(&now)
			return lateStream{stream}, err
		}),
	}})
	l := secondtest.MustLock(t, newSecond(t, client, etcd.WithPrefix("late answers/"), etcd.WithTTL(ttl)), "k")
	secondtest.Ended(t, l)
	lasted := time.Since(*sent.Load())
	require.Greater(t, lasted, ttl*3/4)
	require.Less(t, lasted, ttl+ttl/10) // 0.8 s more if it counted from the answer
}

// Who waits looks again now and then, as a watch on a member that hangs tells nothing.
func TestWatchThatTellsNothing(t *testing.T) {
	t.Parallel()
	c := calm(t)
	watching := make(chan struct{})
	var once sync.Once
	client := NewClient(t, clientv3.Config{Endpoints: c.Addrs, DialOptions: []grpc.DialOption{
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			stream, err := streamer(ctx, desc, cc, method, opts...)
			if method == "/etcdserverpb.Watch/Watch" {
				once.Do(func() { close(watching) })
				return muteStream{stream}, err
			}
			return stream, err
		}),
	}})
	s := storeOf(t, c, "mute/")
	l := secondtest.MustLock(t, s.Open(t), "k")
	w := s.Watch(t, newSecond(t, client, etcd.WithPrefix("mute/"), etcd.WithTTL(4*time.Second)), "k")
	<-watching
	require.NoError(t, l.Unlock(secondtest.Background(t)))
	secondtest.Taken(t, w)
}

// A muteStream tells nothing.
type muteStream struct{ grpc.ClientStream }

func (s muteStream) RecvMsg(any) error {
	<-s.Context().Done()
	return status.FromContextError(s.Context().Err()).Err()
}

// A lateStream tells its answers late, but in time for a renewal, which waits for a sixth of the TTL.
type lateStream struct{ grpc.ClientStream }

func (s lateStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	time.Sleep(800 * time.Millisecond)
	return err
}

// An answer that is lost is not a lock that is lost.
func TestAnswerOfUnlockIsLost(t *testing.T) {
	t.Parallel()
	c := calm(t)
	var lose atomic.Bool
	client := NewClient(t, clientv3.Config{Endpoints: c.Addrs, DialOptions: []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			err := invoke(ctx, method, req, reply, cc, opts...)
			if method == "/etcdserverpb.KV/DeleteRange" && lose.CompareAndSwap(true, false) {
				return status.Error(codes.Unavailable, "the answer is lost")
			}
			return err
		}),
	}})
	second := newSecond(t, client, etcd.WithPrefix("answer/"))
	l := secondtest.MustLock(t, second, "k")
	lose.Store(true)
	require.NoError(t, l.Unlock(secondtest.Background(t)))
	require.False(t, lose.Load())
}

// A member that hangs does not keep what a Second leaves: another member revokes its lease.
func TestCloseTurnsToAnotherMember(t *testing.T) {
	t.Parallel()
	c := calm(t)
	var asked atomic.Int64
	client := NewClient(t, clientv3.Config{Endpoints: c.Addrs, DialOptions: []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if method == "/etcdserverpb.Lease/LeaseRevoke" && asked.Add(1) == 1 {
				<-ctx.Done()
				return status.FromContextError(ctx.Err()).Err()
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
	}})
	second := newSecond(t, client, etcd.WithPrefix("close/"))
	secondtest.MustLock(t, second, "k")
	require.NoError(t, second.Close())
	require.Equal(t, 0, storeOf(t, c, "close/").Queue(t, "k"))
}

// A former leader that goes on revokes the leases that it knows. Locks that were renewed since remain.
func TestFormerLeadersRevoke(t *testing.T) {
	t.Parallel()
	const locks = 70 // more than get a new lease in one transaction
	c := start(t, 3)
	s := storeOf(t, c, "former/", etcd.WithTTL(12*time.Second))
	var renewals atomic.Int64
	second := newSecond(t, NewClient(t, clientv3.Config{Endpoints: c.Addrs, DialOptions: []grpc.DialOption{
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if method == "/etcdserverpb.Lease/LeaseKeepAlive" {
				renewals.Add(1)
			}
			return streamer(ctx, desc, cc, method, opts...)
		}),
	}}), etcd.WithPrefix("former/"), etcd.WithTTL(12*time.Second))
	var held []redlock.SecondLock
	for i := range locks {
		held = append(held, secondtest.MustLock(t, second, fmt.Sprint("k", i)))
	}
	w := s.Watch(t, second, "k0")
	look := c.Client(t)
	for range 2 {
		keys, err := look.Get(secondtest.Background(t), second.Prefix("k1")+"/", clientv3.WithPrefix())
		require.NoError(t, err)
		require.Len(t, keys.Kvs, 1)
		lease := clientv3.LeaseID(keys.Kvs[0].Lease)
		c.moveLeader(t)
		renewals.Store(0)
		require.Eventually(t, func() bool {
			answer, err := look.TimeToLive(secondtest.Background(t), lease, clientv3.WithAttachedKeys())
			return err == nil && len(answer.Keys) == 0 || renewals.Load() > 5
		}, secondtest.Patience, 5*time.Millisecond)
		if _, err = look.Revoke(secondtest.Background(t), lease); !errors.Is(err, rpctypes.ErrLeaseNotFound) { // it was late
			require.NoError(t, err)
		}
		for i, l := range held {
			there := 1
			if i == 0 {
				there = 2
			}
			require.Equal(t, there, s.Queue(t, fmt.Sprint("k", i)))
			require.NoError(t, l.Context().Err(), "%v", context.Cause(l.Context()))
		}
	}
	require.NoError(t, held[0].Unlock(secondtest.Background(t)))
	secondtest.Taken(t, w)
	for _, l := range held[1:] {
		require.NoError(t, l.Unlock(secondtest.Background(t)))
	}
}

// A put that was sent before the session had a new lease, and comes later, puts no key with the former one.
func TestPutWithAFormerLease(t *testing.T) {
	t.Parallel()
	const ttl = 30 * time.Second // so that the put is not repeated too soon
	c := start(t, 3)
	s := &lateStore{Store: storeOf(t, c, "put/", etcd.WithTTL(ttl)), look: c.Client(t), session: "put/%/", puts: make(chan func() error, 1)}
	renewing, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.second = newSecond(t, NewClient(t, clientv3.Config{Endpoints: c.Addrs, DialOptions: []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(s.intercept),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if method == "/etcdserverpb.Lease/LeaseKeepAlive" {
				once.Do(func() { close(renewing) })
				<-goOn
			}
			return streamer(ctx, desc, cc, method, opts...)
		}),
	}}), etcd.WithPrefix("put/"), etcd.WithTTL(ttl))
	other := secondtest.MustLock(t, s.second, "other")
	lease := func() clientv3.LeaseID {
		own, err := s.look.Get(secondtest.Background(t), s.session, clientv3.WithPrefix())
		require.NoError(t, err)
		require.Len(t, own.Kvs, 1)
		return clientv3.LeaseID(own.Kvs[0].Lease)
	}
	former := lease()
	c.moveLeader(t)
	<-renewing
	s.hold.Store(true)
	taken := make(chan redlock.SecondLock, 1)
	go func() {
		l, err := s.second.TryLock(secondtest.Background(t), "k")
		if err != nil {
			t.Error(err)
		}
		taken <- l
	}()
	put := <-s.puts
	close(goOn)
	require.Eventually(t, func() bool { return lease() != former }, secondtest.Patience, 5*time.Millisecond)
	require.NoError(t, put())
	l := <-taken
	require.NotNil(t, l)
	if _, err := s.look.Revoke(secondtest.Background(t), former); !errors.Is(err, rpctypes.ErrLeaseNotFound) { // it was late
		require.NoError(t, err)
	}
	for key, l := range map[string]redlock.SecondLock{"k": l, "other": other} {
		require.Equal(t, 1, s.Queue(t, key))
		require.NoError(t, l.Context().Err())
		require.NoError(t, l.Unlock(secondtest.Background(t)))
		require.Equal(t, 0, s.Queue(t, key))
	}
}

// moveLeader has another member lead.
func (c *Cluster) moveLeader(t testing.TB) {
	leader := secondtest.AwaitLeader(t, c.Members, func(i int) bool { return c.leads(t, i) })
	client, other := c.Client(t, c.Addrs[leader]), (leader+1)%len(c.Addrs)
	status, err := client.Status(secondtest.Background(t), c.Addrs[other])
	require.NoError(t, err)
	_, err = client.MoveLeader(secondtest.Background(t), status.Header.MemberId)
	require.NoError(t, err)
}

// A lease that somebody revokes is missed long before it would be renewed.
func TestRevokedLeaseEndsTheContext(t *testing.T) {
	t.Parallel()
	s := storeOf(t, calm(t), "revoked/", etcd.WithTTL(time.Hour))
	l := secondtest.MustLock(t, s.Open(t), "k")
	s.End(t)
	secondtest.Ended(t, l)
}

// leads tells whether a member leads.
func (c *Cluster) leads(t testing.TB, i int) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	status, err := c.Client(t, c.Addrs[i]).Status(ctx, c.Addrs[i])
	return err == nil && status.Leader == status.Header.MemberId
}
