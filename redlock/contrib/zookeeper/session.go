package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock/contrib/internal/second"
)

// A store opens sessions.
type store struct {
	servers     []string
	timeout     time.Duration
	root        string
	scheme      string
	credentials []byte
	acl         []zk.ACL
	dial        zk.Dialer

	last atomic.Pointer[session] // that was opened, for tests
}

// Open opens a session with a client of its own. When a session is over, the client would go on with another.
func (s *store) Open(ctx context.Context, over func(error)) (second.Session, second.Span, error) {
	sent := clock.Now()
	new := &session{
		store: s, wire: &wire{dial: s.dial, timeout: s.timeout, open: make(map[*connection]bool)},
		watches: make(map[string]*watch), over: make(chan struct{}),
	}
	established := make(chan struct{})
	var once, ended sync.Once
	client, events, err := zk.Connect(s.servers, s.timeout, zk.WithDialer(new.wire.Dial), zk.WithHostProvider(&hosts{}),
		zk.WithMaxBufferSize(mostBytes),
		zk.WithLogger(silent{}), zk.WithLogInfo(false), zk.WithEventCallback(func(e zk.Event) {
			if e.Type != zk.EventSession {
				return
			}
			switch e.State {
			case zk.StateHasSession:
				once.Do(func() { close(established) })
			case zk.StateExpired:
				over(fmt.Errorf("%w: %w", second.ErrOver, zk.ErrSessionExpired))
				ended.Do(func() { close(new.over) })
			}
		}))
	if err != nil {
		return nil, second.Span{}, err
	}
	new.client, new.events = client, events
	select {
	case <-established:
		new.id, new.proved = client.SessionID(), sent
		err = new.prepare(ctx)
	case <-ctx.Done():
		err = new.wire.reason(context.Cause(ctx))
	}
	if err != nil {
		new.Close(ctx)
		return nil, second.Span{}, err
	}
	s.last.Store(new)
	return new, second.Span{From: sent, TTL: new.wire.sessionTimeout()}, nil
}

// A session is a session with its client.
type session struct {
	store  *store
	client *zk.Conn
	events <-chan zk.Event // closed when the client has ended
	wire   *wire
	id     int64
	over   chan struct{} // closed when the servers have said so

	proved  time.Duration // when the last heartbeat that was answered was sent; used by Renew alone
	running sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	watches map[string]*watch // by path
}

// none is the answer of a request that has none.
type none struct{}

// prepare makes what must be there before the first lock.
func (s *session) prepare(ctx context.Context) error {
	if s.store.scheme != "" {
		_, err := call(ctx, s, func() (none, error) {
			return none{}, s.client.AddAuth(s.store.scheme, s.store.credentials)
		})
		if err != nil {
			return err
		}
	}
	for i := 1; i <= len(s.store.root); i++ {
		if i < len(s.store.root) && s.store.root[i] != '/' {
			continue
		}
		_, err := ask(ctx, s, func() (string, error) {
			exists, _, err := s.client.Exists(s.store.root[:i])
			if exists || err != nil {
				return "", err
			}
			return s.client.Create(s.store.root[:i], nil, zk.FlagPersistent, s.store.acl)
		})
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return fmt.Errorf("make %s: %w", s.store.root[:i], err)
		}
	}
	return nil
}

// spawn runs f, unless the session is closed.
func (s *session) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.running.Go(f)
	}
	return !s.closed
}

// call makes a request, for whose answer the client cannot be told not to wait.
func call[T any](ctx context.Context, s *session, request func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	var none T
	answers := make(chan answer, 1)
	if !s.spawn(func() {
		value, err := request()
		answers <- answer{value, err}
	}) {
		return none, s.closedErr()
	}
	select {
	case a := <-answers:
		return a.value, s.ofSession(a.err)
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

func (s *session) closedErr() error { return fmt.Errorf("%w: %w", second.ErrOver, zk.ErrClosing) }

// ofSession marks the error that says that the session is over.
func (s *session) ofSession(err error) error {
	if errors.Is(err, zk.ErrSessionExpired) {
		return fmt.Errorf("%w: %w", second.ErrOver, err)
	}
	return err
}

// ask makes a request that can be repeated, and repeats it while there is no connection.
func ask[T any](ctx context.Context, s *session, request func() (T, error)) (T, error) {
	for {
		value, err := call(ctx, s, request)
		if answered(err) || errors.Is(err, second.ErrOver) || ctx.Err() != nil {
			return value, err
		}
		if !s.pause(ctx) {
			return value, s.wire.reason(err)
		}
	}
}

// pause waits a little before a request is repeated, or is false if that is of no use.
func (s *session) pause(ctx context.Context) bool {
	select {
	case <-time.After(20 * time.Millisecond):
		return true
	case <-s.over:
	case <-ctx.Done():
	}
	return false
}

// answered reports whether an error is what a server has answered. Of a request that was not, nobody knows what
// becomes of it.
func answered(err error) bool {
	for _, e := range [...]error{
		zk.ErrNoNode, zk.ErrNodeExists, zk.ErrNoAuth, zk.ErrInvalidACL, zk.ErrNotEmpty, zk.ErrBadVersion,
		zk.ErrNoChildrenForEphemerals, zk.ErrInvalidPath, zk.ErrAuthFailed, zk.ErrBadArguments, zk.ErrAPIError,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return err == nil
}

func (s *session) Every() time.Duration { return s.wire.sessionTimeout() / 4 }

// Renew sends a heartbeat. If it is answered, the leader knows of the one before.
func (s *session) Renew(ctx context.Context) (second.Span, error) {
	sent := clock.Now()
	_, err := call(ctx, s, func() ([]zk.MultiResponse, error) {
		return s.client.Multi(&zk.CheckVersionRequest{Path: s.store.root, Version: -1})
	})
	if !answered(err) {
		return second.Span{}, s.wire.reason(err)
	}
	span := second.Span{From: s.proved, TTL: s.wire.sessionTimeout()}
	s.proved = sent
	return span, nil
}

// Close closes the session and its client.
func (s *session) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	connected := s.client.State() == zk.StateHasSession
	closed := make(chan struct{})
	began := time.Now()
	go func() {
		defer close(closed)
		s.client.Close() // returns after a second, if there is no answer
	}()
	select {
	case <-closed:
	case <-ctx.Done():
	}
	why := s.wire.reason(nil) // the client drops the error of a connection that breaks now
	confirmed := connected && why == nil && time.Since(began) < time.Second
	s.wire.close()
	<-closed
	for range s.events { // until it has ended
	}
	s.running.Wait()
	select {
	case <-s.over:
		return nil
	default:
	}
	if !confirmed {
		return errors.Join(errors.New("no server has answered"), why)
	}
	return nil
}
