package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/contrib/internal/second"
)

// A store opens sessions, which are leases.
type store struct {
	client *clientv3.Client
	ttl    time.Duration
	prefix string
}

func (s *store) Open(ctx context.Context, over func(error)) (second.Session, second.Span, error) {
	var sent time.Duration
	// A grant whose answer is lost leaves a lease without keys, which ends by itself.
	var granted *clientv3.LeaseGrantResponse
	err := s.ask(ctx, func(ctx context.Context) (err error) {
		sent = conn.Now()
		granted, err = s.client.Grant(ctx, int64(s.ttl/time.Second))
		return err
	})
	if err != nil {
		return nil, second.Span{}, err
	}
	ttl := time.Duration(granted.TTL) * time.Second
	lease := &session{store: s, id: granted.ID, ttl: ttl, over: over}
	lease.versionKey = fmt.Sprintf("%s%%/%x", s.prefix, granted.ID)
	return lease, second.Span{From: sent, TTL: ttl}, nil
}

// ask makes a request that can be repeated. The client sends it to one member after the other, so where one
// hangs it is repeated soon.
func (s *store) ask(ctx context.Context, request func(ctx context.Context) error) error {
	for {
		try, cancel := context.WithTimeout(requireLeader(ctx), max(s.ttl/10, 300*time.Millisecond))
		err := request(try)
		hung := try.Err() != nil
		cancel()
		if err == nil || !hung || ctx.Err() != nil {
			return err
		}
	}
}

// requireLeader has a member refuse a request while it knows no leader.
func requireLeader(ctx context.Context) context.Context { return clientv3.WithRequireLeader(ctx) }

// A session is a lease.
type session struct {
	store      *store
	id         clientv3.LeaseID
	ttl        time.Duration
	places     atomic.Uint64 // how many have been made
	versionKey string        // each place that is abandoned raises its version
	version    atomic.Int64  // of versionKey, as far as known
	revision   atomic.Int64  // of the store, as far as known
	over       func(error)   // ends the session
}

// grows compares the store's revision, which a linearizable request has returned, with that which was known before it
// was sent. If it is lower, etcd was restored from a backup: whoever has taken a lock since then has lost it, and who
// has released one may have it again. So the session is over, and its lease is given up.
func (s *session) grows(before, now int64) error {
	if now < before {
		err := fmt.Errorf("%w: etcd has gone back from revision %d to %d", second.ErrOver, before, now)
		s.over(err)
		return err
	}
	for last := s.revision.Load(); now > last && !s.revision.CompareAndSwap(last, now); last = s.revision.Load() {
	}
	return nil
}

func (s *session) Every() time.Duration { return s.ttl / 3 }

// Renew renews the lease, and has a linearizable read confirm that this was done by the leader. Of a leader that
// was replaced, the lease is of no use. A read that was sent later, and was answered in the same term,
// says that it was not replaced by then.
func (s *session) Renew(ctx context.Context) (second.Span, error) {
	sent := conn.Now()
	renewed, err := s.keepAliveOnce(requireLeader(ctx))
	if err != nil {
		return second.Span{}, ofLease(err)
	}
	if renewed.TTL <= 0 {
		return second.Span{}, fmt.Errorf("%w: %w", second.ErrOver, rpctypes.ErrLeaseNotFound)
	}
	revision := s.revision.Load()
	read, err := s.store.client.Get(requireLeader(ctx), s.versionKey, clientv3.WithCountOnly())
	if err != nil {
		return second.Span{}, err
	}
	if err := s.grows(revision, read.Header.Revision); err != nil {
		return second.Span{}, err
	}
	if before, after := renewed.Header.RaftTerm, read.Header.RaftTerm; before != after {
		return second.Span{}, fmt.Errorf("the leader has changed meanwhile (Raft terms %d and %d)", before, after)
	}
	return second.Span{From: sent, TTL: min(s.ttl, time.Duration(renewed.TTL)*time.Second)}, nil
}

// keepAliveOnce is that of the client, which repeats without a pause what a cluster that is down refuses.
func (s *session) keepAliveOnce(ctx context.Context) (*pb.LeaseKeepAliveResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewLeaseClient(s.store.client.ActiveConnection()).LeaseKeepAlive(ctx)
	if err != nil {
		return nil, err
	}
	// What fails to be sent is told by Recv.
	_ = stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(s.id)})
	_ = stream.CloseSend()
	return stream.Recv()
}

// Close revokes the lease.
func (s *session) Close(ctx context.Context) error {
	_, err := s.store.client.Revoke(ctx, s.id)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return nil
	}
	return err
}

func (s *session) Place(key string) second.Place {
	line := s.store.prefix + escape(key) + "/"
	return &place{session: s, line: line, name: fmt.Sprintf("%s%x-%x", line, s.id, s.places.Add(1))}
}

// ofLease marks the error that says that the lease is over.
func ofLease(err error) error {
	if err = rpctypes.Error(err); errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("%w: %w", second.ErrOver, err)
	}
	return err
}

// A place is a key in a line, which is all keys that begin with the same prefix.
type place struct {
	session  *session
	line     string
	name     string // of the key
	sent     bool   // it may be there, or a put may be under way
	sure     bool   // ... but it is there, and none is
	revision int64  // its create revision, once it was entered
}

// Enter puts the key, if the line is empty or need not be. Since it can be repeated, and find itself there
// already, what it reads says whether the key is there. If it was, all puts but one may be obeyed later: when the key is
// gone again, or that of another. Only those of an older version never are.
func (p *place) Enter(ctx context.Context, alone bool) (fence uint64, err error) {
	s := p.session
	free := clientv3.Compare(clientv3.CreateRevision(p.name), "=", 0)
	if alone {
		free = clientv3.Compare(clientv3.CreateRevision(p.line), "=", 0).WithPrefix()
	}
	for {
		version, revision := s.version.Load(), s.revision.Load()
		p.sent = true
		tries := 0
		var answer *clientv3.TxnResponse
		err := s.store.ask(ctx, func(ctx context.Context) (err error) {
			tries++
			answer, err = s.store.client.Txn(ctx).
				If(free, clientv3.Compare(clientv3.Version(s.versionKey), "=", version)).
				Then(clientv3.OpPut(p.name, "", clientv3.WithLease(s.id))).
				Else(clientv3.OpGet(p.name), clientv3.OpGet(s.versionKey)).
				Commit()
			return err
		})
		if err != nil {
			return 0, ofLease(err)
		}
		if err := s.grows(revision, answer.Header.Revision); err != nil {
			return 0, err
		}
		if answer.Succeeded {
			p.sure, p.revision = tries == 1, answer.Header.Revision
			break
		}
		if own := answer.Responses[0].GetResponseRange().Kvs; len(own) > 0 {
			p.sure, p.revision = tries == 1, own[0].CreateRevision
			break
		}
		now := int64(0)
		if kvs := answer.Responses[1].GetResponseRange().Kvs; len(kvs) > 0 {
			now = kvs[0].Version
		}
		if now == version { // as nothing else can have failed
			p.sent = tries > 1
			return 0, redlock.ErrHeld
		}
		s.version.CompareAndSwap(version, now)
	}
	return uint64(p.revision), nil
}

// Wait waits until no key of the line is older. It looks again now and then, as a watch on a member
// that hangs tells nothing.
func (p *place) Wait(ctx context.Context) error {
	client := p.session.store.client
	older := append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(p.revision-1))
	for {
		var answer *clientv3.TxnResponse
		err := p.session.store.ask(ctx, func(ctx context.Context) (err error) {
			answer, err = client.Txn(ctx).Then(clientv3.OpGet(p.name), clientv3.OpGet(p.line, older...)).Commit()
			return err
		})
		if err != nil {
			return err
		}
		own := answer.Responses[0].GetResponseRange().Kvs
		if len(own) == 0 || own[0].CreateRevision != p.revision {
			return fmt.Errorf("its key %q was deleted while it waited", p.name)
		}
		before := answer.Responses[1].GetResponseRange().Kvs
		if len(before) == 0 {
			return nil
		}
		p.awaitDelete(ctx, string(before[0].Key), answer.Header.Revision+1)
	}
}

// awaitDelete returns when a key is deleted, or there is no more to learn from a watch, or the TTL has passed.
func (p *place) awaitDelete(ctx context.Context, key string, from int64) {
	ctx, cancel := context.WithTimeout(requireLeader(ctx), p.session.ttl)
	defer cancel()
	began := time.Now()
	for news := range p.session.store.client.Watch(ctx, key, clientv3.WithRev(from), clientv3.WithFilterPut()) {
		if len(news.Events) > 0 {
			return
		}
	}
	// A watch that ends at once does so again.
	if time.Since(began) < 100*time.Millisecond {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// Leave deletes the key. If a put may be under way, it raises the version in the same transaction, so that
// this put fails.
func (p *place) Leave(ctx context.Context) (found bool, err error) {
	s := p.session
	if !p.sent {
		return false, nil
	}
	if p.sure {
		answer, err := s.store.client.Delete(requireLeader(ctx), p.name)
		return err == nil && answer.Deleted > 0, err
	}
	answer, err := s.store.client.Txn(requireLeader(ctx)).
		Then(clientv3.OpDelete(p.name), clientv3.OpPut(s.versionKey, "", clientv3.WithLease(s.id))).
		Commit()
	if err == nil {
		return answer.Responses[0].GetResponseDeleteRange().Deleted > 0, nil
	}
	if err = ofLease(err); errors.Is(err, second.ErrOver) {
		return false, nil // and the key with it
	}
	return false, err
}
