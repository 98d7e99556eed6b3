package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/redburst/redburst/conn/clock"
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
	var read *clientv3.GetResponse
	err := s.ask(ctx, func(ctx context.Context) (err error) {
		read, err = s.client.Get(ctx, s.prefix+"%/", clientv3.WithCountOnly())
		return err
	})
	if err != nil {
		return nil, second.Span{}, err
	}
	l, span, err := s.grant(ctx, read.Header.RaftTerm)
	if err != nil {
		return nil, second.Span{}, err
	}
	id := fmt.Sprintf("%x", l.id)
	new := &session{store: s, id: id, ttl: span.TTL, key: s.prefix + "%/" + id, lease: l, version: 1,
		entered: map[*entry]clientv3.LeaseID{}, over: over}
	err = s.ask(ctx, func(ctx context.Context) error {
		_, err := s.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(new.key), "=", 0)).
			Then(clientv3.OpPut(new.key, "", clientv3.WithLease(l.id))).
			Commit()
		return err
	})
	if err != nil {
		return nil, second.Span{}, err
	}
	new.ctx, new.cancel = context.WithCancel(context.Background())
	new.watching.Go(new.watch)
	return new, span, nil
}

// grant has a lease granted. A leader of that Raft term has been there. If the answer is lost, a lease is left without keys,
// and ends by itself.
func (s *store) grant(ctx context.Context, term uint64) (l lease, span second.Span, err error) {
	var granted *clientv3.LeaseGrantResponse
	err = s.ask(ctx, func(ctx context.Context) (err error) {
		span.From = clock.Now()
		granted, err = s.client.Grant(ctx, int64(s.ttl/time.Second))
		return err
	})
	if err != nil {
		return lease{}, second.Span{}, err
	}
	span.TTL = time.Duration(granted.TTL) * time.Second
	return lease{granted.ID, term}, span, nil
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

// A lease is one that etcd has granted when there was a leader of that Raft term, or of a later one. What a former
// leader knows of a lease can be old, and it may revoke the lease by that when it goes on. Leaders of former terms do
// not know this one. So in this term nobody revokes it who has not got the renewals.
type lease struct {
	id   clientv3.LeaseID
	term uint64
}

// A session is a lease, and in another Raft term another. All keys have it.
type session struct {
	store    *store
	id       string // of its first lease
	ttl      time.Duration
	entries  atomic.Uint64 // how many have been made
	key      string        // its own: each entry that is abandoned raises its version
	watching sync.WaitGroup
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	revision atomic.Int64 // of the store, as far as known
	over     func(error)  // ends the session

	mu      sync.Mutex
	lease   lease
	former  []clientv3.LeaseID          // that keys may still have
	version int64                       // of key, as far as known
	entered map[*entry]clientv3.LeaseID // the entries whose key may be there, and the lease that it was put with
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
// says that it was not replaced by then. In a new term there is a new lease.
func (s *session) Renew(ctx context.Context) (second.Span, error) {
	l, _ := s.known()
	var sent time.Duration
	var renewed *pb.LeaseKeepAliveResponse
	err := s.store.ask(ctx, func(ctx context.Context) (err error) {
		sent = clock.Now()
		renewed, err = s.keepAliveOnce(ctx, l.id)
		return err
	})
	if err != nil {
		return second.Span{}, ofLease(err)
	}
	if renewed.TTL <= 0 {
		return second.Span{}, fmt.Errorf("%w: %w", second.ErrOver, rpctypes.ErrLeaseNotFound)
	}
	revision := s.revision.Load()
	var read *clientv3.GetResponse
	err = s.store.ask(ctx, func(ctx context.Context) (err error) {
		read, err = s.store.client.Get(ctx, s.key, clientv3.WithCountOnly())
		return err
	})
	if err != nil {
		return second.Span{}, err
	}
	if err := s.grows(revision, read.Header.Revision); err != nil {
		return second.Span{}, err
	}
	span := second.Span{From: sent, TTL: time.Duration(renewed.TTL) * time.Second}
	switch before, after := renewed.Header.RaftTerm, read.Header.RaftTerm; {
	case read.Count == 0:
		return second.Span{}, s.gone()
	case after != l.term:
		if l, span, err = s.store.grant(ctx, after); err != nil {
			return second.Span{}, err
		}
		s.mu.Lock()
		s.former, s.lease = append(s.former, s.lease.id), l
		s.mu.Unlock()
	case before != after:
		return second.Span{}, fmt.Errorf("the leader has changed meanwhile (Raft terms %d and %d)", before, after)
	}
	return span, s.move(ctx)
}

// move gives the session's lease to all keys that may have a former one. If it fails, the next renewal goes on.
func (s *session) move(ctx context.Context) error {
	s.mu.Lock()
	l, done := s.lease, len(s.former) == 0
	s.mu.Unlock()
	if done {
		return nil
	}
	// The session's own is the first, and its version is raised: what is still to be put with a former lease fails.
	for moved := false; !moved; {
		_, version := s.known()
		answer, err := s.commit(ctx, clientv3.Compare(clientv3.Version(s.key), "=", version),
			[]clientv3.Op{clientv3.OpPut(s.key, "", clientv3.WithLease(l.id))}, clientv3.OpGet(s.key))
		if err != nil {
			return ofLease(err)
		}
		if moved = answer.Succeeded; moved {
			break
		}
		own := answer.Responses[0].GetResponseRange().Kvs
		if len(own) == 0 {
			return s.gone()
		}
		s.learn(own[0].Version)
		moved = own[0].Lease == int64(l.id)
	}
	var entries []*entry
	s.mu.Lock()
	for p, id := range s.entered {
		if id != l.id {
			entries = append(entries, p)
		}
	}
	s.mu.Unlock()
	for some := range slices.Chunk(entries, 32) { // etcd bounds what a transaction has
		var ops []clientv3.Op
		for _, p := range some {
			there := clientv3.Compare(clientv3.CreateRevision(p.name), ">", 0)
			ops = append(ops, clientv3.OpTxn([]clientv3.Cmp{there},
				[]clientv3.Op{clientv3.OpPut(p.name, "", clientv3.WithLease(l.id))}, nil))
		}
		// One that is obeyed late does not give back a lease that is a former one by then.
		answer, err := s.commit(ctx, clientv3.Compare(clientv3.LeaseValue(s.key), "=", l.id), ops)
		if err != nil {
			return ofLease(err)
		}
		if !answer.Succeeded {
			return s.gone()
		}
		s.mu.Lock()
		for _, p := range some {
			if s.entered[p] != 0 {
				s.entered[p] = l.id
			}
		}
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.former = nil // they end by themselves
	return nil
}

// commit makes a transaction.
func (s *session) commit(ctx context.Context, cmp clientv3.Cmp, then []clientv3.Op, otherwise ...clientv3.Op) (answer *clientv3.TxnResponse, err error) {
	err = s.store.ask(ctx, func(ctx context.Context) (err error) {
		answer, err = s.store.client.Txn(ctx).If(cmp).Then(then...).Else(otherwise...).Commit()
		return err
	})
	return answer, err
}

// known returns the lease, and the version of the session's key as far as it is known: what is put with a former lease
// compares a version from before it was one.
func (s *session) known() (lease, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease, s.version
}

// learn takes note of a version.
func (s *session) learn(version int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = max(s.version, version)
}

// gone is the error if the session's key is not there any more.
func (s *session) gone() error {
	return fmt.Errorf("%w: its key %q was deleted", second.ErrOver, s.key)
}

// watch waits until the session's key is deleted, as it is with the lease, and says so.
func (s *session) watch() {
	for s.ctx.Err() == nil {
		var read *clientv3.GetResponse
		err := s.store.ask(s.ctx, func(ctx context.Context) (err error) {
			read, err = s.store.client.Get(ctx, s.key, clientv3.WithCountOnly())
			return err
		})
		switch {
		case err != nil:
			pause(s.ctx)
		case read.Count == 0:
			s.over(s.gone())
			return
		default:
			s.store.awaitDelete(s.ctx, s.key, read.Header.Revision+1)
		}
	}
}

// pause is one before what has failed at once is done again.
func pause(ctx context.Context) {
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
	}
}

// keepAliveOnce is that of the client, which repeats without a pause what a cluster that is down refuses.
func (s *session) keepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*pb.LeaseKeepAliveResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewLeaseClient(s.store.client.ActiveConnection()).LeaseKeepAlive(ctx)
	if err != nil {
		return nil, err
	}
	// What fails to be sent is told by Recv.
	_ = stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(id)})
	_ = stream.CloseSend()
	return stream.Recv()
}

// Close revokes the lease, and then all that keys may still have.
func (s *session) Close(ctx context.Context) (err error) {
	s.cancel()
	s.watching.Wait()
	s.mu.Lock()
	all := append([]clientv3.LeaseID{s.lease.id}, s.former...)
	s.mu.Unlock()
	for _, id := range all {
		e := s.store.ask(ctx, func(ctx context.Context) error {
			_, err := s.store.client.Revoke(ctx, id)
			return err
		})
		if !errors.Is(e, rpctypes.ErrLeaseNotFound) {
			err = errors.Join(err, e)
		}
	}
	return err
}

func (s *session) Entry(key string) second.Entry {
	queue := s.store.prefix + escape(key) + "/"
	return &entry{session: s, queue: queue, name: fmt.Sprintf("%s%s-%x", queue, s.id, s.entries.Add(1))}
}

// ofLease marks the error that says that the lease is over.
func ofLease(err error) error {
	if err = rpctypes.Error(err); errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("%w: %w", second.ErrOver, err)
	}
	return err
}

// An entry is a key in a queue, which is all keys that begin with the same prefix.
type entry struct {
	session  *session
	queue    string
	name     string // of the key
	sent     bool   // it may be there, or a put may be under way
	sure     bool   // ... but it is there, and none is
	revision int64  // its create revision, once it was entered
}

// Enter puts the key, if the queue is empty or need not be. Since it can be repeated, and find itself there
// already, what it reads says whether the key is there. If it was, all puts but one may be obeyed later: when the key is
// gone again, or that of another. Only those of an older version never are.
func (p *entry) Enter(ctx context.Context, alone bool) (fence uint64, err error) {
	s := p.session
	free := clientv3.Compare(clientv3.CreateRevision(p.name), "=", 0)
	if alone {
		free = clientv3.Compare(clientv3.CreateRevision(p.queue), "=", 0).WithPrefix()
	}
	for {
		s.mu.Lock()
		id, version := s.lease.id, s.version
		s.entered[p] = id
		s.mu.Unlock()
		revision := s.revision.Load()
		p.sent = true
		tries := 0
		var answer *clientv3.TxnResponse
		err := s.store.ask(ctx, func(ctx context.Context) (err error) {
			tries++
			answer, err = s.store.client.Txn(ctx).
				If(free, clientv3.Compare(clientv3.Version(s.key), "=", version)).
				Then(clientv3.OpPut(p.name, "", clientv3.WithLease(id))).
				Else(clientv3.OpGet(p.name), clientv3.OpGet(s.key)).
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
		now := answer.Responses[1].GetResponseRange().Kvs
		if len(now) == 0 {
			return 0, s.gone()
		}
		if now[0].Version == version { // as nothing else can have failed
			p.sent = tries > 1
			return 0, redlock.ErrHeld
		}
		s.learn(now[0].Version)
	}
	return uint64(p.revision), nil
}

// Wait waits until no key of the queue is older. It looks again now and then, as a watch on a member
// that hangs tells nothing.
func (p *entry) Wait(ctx context.Context) error {
	client := p.session.store.client
	older := append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(p.revision-1))
	for {
		var answer *clientv3.TxnResponse
		err := p.session.store.ask(ctx, func(ctx context.Context) (err error) {
			answer, err = client.Txn(ctx).Then(clientv3.OpGet(p.name), clientv3.OpGet(p.queue, older...)).Commit()
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
		p.session.store.awaitDelete(ctx, string(before[0].Key), answer.Header.Revision+1)
	}
}

// awaitDelete returns when a key is deleted, or there is no more to learn from a watch, or the TTL has passed.
func (s *store) awaitDelete(ctx context.Context, key string, from int64) {
	ctx, cancel := context.WithTimeout(requireLeader(ctx), s.ttl)
	defer cancel()
	began := time.Now()
	for news := range s.client.Watch(ctx, key, clientv3.WithRev(from), clientv3.WithFilterPut()) {
		if len(news.Events) > 0 {
			return
		}
	}
	// A watch that ends at once does so again.
	if time.Since(began) < 100*time.Millisecond {
		pause(ctx)
	}
}

// Leave deletes the key. If a put may be under way, it raises the version in the same transaction, so that
// this put fails.
func (p *entry) Leave(ctx context.Context) (found bool, err error) {
	s := p.session
	defer func() {
		if err == nil {
			s.mu.Lock()
			delete(s.entered, p)
			s.mu.Unlock()
		}
	}()
	if !p.sent {
		return false, nil
	}
	remove := clientv3.OpDelete(p.name)
	if p.sure {
		answer, err := s.store.client.Do(requireLeader(ctx), remove)
		return err == nil && answer.Del().Deleted > 0, err
	}
	answer, err := s.store.client.Txn(requireLeader(ctx)).
		If(clientv3.Compare(clientv3.Version(s.key), ">", 0)).
		Then(remove, clientv3.OpPut(s.key, "", clientv3.WithIgnoreLease())).
		Else(remove). // what compares its version fails already
		Commit()
	return err == nil && answer.Responses[0].GetResponseDeleteRange().Deleted > 0, err
}
