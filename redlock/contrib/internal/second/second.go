package second

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock"
)

// ErrOver is wrapped by the error of a request if the store says that the session is over.
var ErrOver = errors.New("the session is over")

// errSilent is the cause of a request's context that has run out of time.
var errSilent = errors.New("no answer in time")

// A Store opens sessions.
type Store interface {
	// Open opens a session. It calls over, from any goroutine and at any time later, when it learns
	// that the session is over.
	Open(ctx context.Context, over func(cause error)) (Session, Span, error)
}

// A Span is the time for which a session is alive at least, if all clocks are alike: TTL after From.
type Span struct {
	From time.Duration // when the request was sent that this rests on, by clock.Now
	TTL  time.Duration
}

// A Session is a session with a store. All of its requests return soon after ctx has ended.
type Session interface {
	// Every says how long after a renewal the next is due.
	Every() time.Duration
	// Renew renews the session. Its error wraps ErrOver if the session is over.
	Renew(ctx context.Context) (Span, error)
	// Entry makes a new entry in the queue of a key. It makes no request.
	Entry(key string) Entry
	// Close ends the session. It is called once, when the term of the session is over, and after it the session
	// needs nothing more. It may be called while requests are under way, and ends them.
	Close(ctx context.Context) error
}

// An Entry is an entry in the queue of a key. The first of the queue has the lock. The methods of
// one entry are called one after the other.
type Entry interface {
	// Enter enters the queue, at its end, and returns the entry's number, which is greater than those of
	// all entries that have been first before. If alone, it enters only an empty queue, or fails with an error
	// that wraps redlock.ErrHeld. After any error Leave is called.
	Enter(ctx context.Context, alone bool) (fence uint64, err error)
	// Wait returns when the entry is the first, or with an error.
	Wait(ctx context.Context) error
	// Leave leaves the queue, and says whether the entry was in it. Without an error, the entry is not in the queue, and
	// never will be, whatever became of Enter.
	Leave(ctx context.Context) (found bool, err error)
}

// A Second is the lock of a store. It implements redlock.Second.
type Second struct {
	name  string // of the store, for messages
	ttl   time.Duration
	store Store
	clock func() time.Duration

	ctx     context.Context // ends with Close
	cancel  context.CancelCauseFunc
	running sync.WaitGroup // added to by spawn alone

	mu       sync.Mutex
	closed   bool
	current  *session      // nil, or over, if there is none
	opening  *opening      // nil if none is under way
	closeErr error         // of the last session
	closeEnd time.Duration // when that has ended by itself
}

// New makes a Second of a store, whose sessions are asked to last for ttl. name begins all messages.
func New(name string, store Store, ttl time.Duration) *Second {
	s := &Second{name: name, ttl: ttl, store: store, clock: clock.Now}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s
}

// patience is how long a request waits for its answer.
func (s *Second) patience() time.Duration { return max(s.ttl/3, time.Second) }

// TryLock implements redlock.Second.
func (s *Second) TryLock(ctx context.Context, key string) (redlock.SecondLock, error) {
	return s.acquire(ctx, key, true)
}

// Lock implements redlock.Second.
func (s *Second) Lock(ctx context.Context, key string) (redlock.SecondLock, error) {
	return s.acquire(ctx, key, false)
}

// Close ends the session, and with it all locks, and returns when nothing is left. Its error says that
// the store has not confirmed this: then the locks are free when the TTL has passed.
func (s *Second) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel(redlock.ErrClosed)
	s.running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clock() >= s.closeEnd {
		return nil
	}
	return s.closeErr
}

// spawn runs f, unless the Second is closed.
func (s *Second) spawn(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spawnLocked(f)
}

func (s *Second) spawnLocked(f func()) bool {
	if !s.closed {
		s.running.Go(f)
	}
	return !s.closed
}

// failure is the error of an operation.
func (s *Second) failure(op, key string, err error) error {
	if len(key) > 100 {
		key = key[:100] + "..."
	}
	return fmt.Errorf("%s: %s %q: %w", s.name, op, key, err)
}

// ended is the error of an operation whose context has ended. It wraps the context's error, and its cause.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// because is the error of a request that has failed with err. Where its own context has ended, that says why. What
// is not our caller's doing is no error of a context.
func because(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, redlock.ErrHeld), errors.Is(err, ErrOver), errors.Is(err, errSilent):
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return errSilent
	}
	return err
}

// acquire takes a lock. The work is done by a goroutine of its own, as a store may not return in time.
func (s *Second) acquire(ctx context.Context, key string, alone bool) (redlock.SecondLock, error) {
	if ctx.Err() != nil {
		return nil, s.failure("lock", key, ended(ctx))
	}
	session, err := s.session(ctx)
	if err != nil {
		return nil, s.failure("lock", key, err)
	}
	// gone ends with the caller's context, and that of the session.
	gone, cancel := context.WithCancel(session.term.ctx)
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	taken := make(chan *lock)
	failed := make(chan error, 1)
	if !s.spawn(func() {
		defer cancel()
		l, err := session.take(gone, key, alone)
		if err != nil {
			failed <- err
			return
		}
		select {
		case taken <- l:
		case <-gone.Done():
			l.discard()
		}
	}) {
		cancel()
		return nil, s.failure("lock", key, redlock.ErrClosed)
	}
	select {
	case l := <-taken:
		return l, nil
	case err = <-failed:
	case <-gone.Done():
		select {
		case err = <-failed:
		default:
			err = gone.Err()
		}
	}
	switch {
	case errors.Is(err, redlock.ErrHeld):
	case ctx.Err() != nil:
		err = ended(ctx)
	case session.term.over():
		err = context.Cause(session.term.ctx)
	}
	return nil, s.failure("lock", key, err)
}

// A lock is an entry that was the first of its queue.
type lock struct {
	session *session
	entry   Entry
	key     string
	fence   uint64
	held    *held
}

func (l *lock) Context() context.Context { return l.held }
func (l *lock) Fence() uint64            { return l.fence }

// discard gives up a lock that nobody has seen.
func (l *lock) discard() {
	l.held.cancel(nil)
	l.session.abandon(l.entry)
}

func (l *lock) Unlock(ctx context.Context) error {
	s := l.session.second
	held := l.held.Err() == nil
	l.held.cancel(nil)
	done := make(chan error, 1)
	if !s.spawn(func() { done <- l.session.leave(l.entry, held) }) {
		return s.failure("unlock", l.key, fmt.Errorf("%w: %w", redlock.ErrNotHeld, redlock.ErrClosed))
	}
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done:
		default:
			err = ended(ctx)
		}
	}
	if err != nil {
		err = s.failure("unlock", l.key, err)
	}
	return err
}
