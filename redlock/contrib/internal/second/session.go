package second

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redburst/redburst/redlock"
)

// A session is a Session and its term.
type session struct {
	Session
	second *Second
	term   *term
	ttl    time.Duration

	mu      sync.Mutex
	failure error // of the last renewal; nil if that succeeded
}

// An opening is a session that is being opened.
type opening struct {
	done    chan struct{}
	session *session
	err     error
}

// session returns the session that is alive, or waits for the one that is being opened.
func (s *Second) session(ctx context.Context) (*session, error) {
	s.mu.Lock()
	if s.current != nil && !s.current.term.over() {
		defer s.mu.Unlock()
		return s.current, nil
	}
	o := s.opening
	if o == nil {
		o = &opening{done: make(chan struct{})}
		if !s.spawnLocked(func() { s.open(o) }) {
			s.mu.Unlock()
			return nil, redlock.ErrClosed
		}
		s.opening = o
	}
	s.mu.Unlock()
	select {
	case <-o.done:
		return o.session, o.err
	case <-ctx.Done():
		return nil, ended(ctx)
	}
}

// open opens a session and keeps it until it is over. Whoever asked for it may be gone meanwhile: it serves the next.
func (s *Second) open(o *opening) {
	new := &session{second: s}
	// The store may say that the session is over before its term has begun.
	early, over := context.WithCancelCause(s.ctx)
	defer over(nil)
	ctx, cancel := context.WithTimeoutCause(s.ctx, s.patience(), errSilent)
	var span Span
	new.Session, span, o.err = s.store.Open(ctx, over)
	o.err = because(ctx, o.err)
	cancel()
	if o.err == nil {
		new.ttl = span.TTL
		new.term = newTerm(early, s.clock, span.From+span.TTL-margin(span.TTL), new.why)
		if new.term.over() {
			o.err = context.Cause(new.term.ctx)
			new.close()
		}
	}
	if o.err != nil {
		o.err = fmt.Errorf("no session: %w", o.err)
	}
	s.mu.Lock()
	s.opening = nil
	if o.err == nil {
		o.session, s.current = new, new
	}
	s.mu.Unlock()
	close(o.done)
	if o.err == nil {
		new.keep()
	}
}

// why says why the session was not renewed.
func (s *session) why() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == nil {
		return errSilent
	}
	return s.failure
}

// keep renews the session until it is over, and closes it then. What has failed is repeated soon, and at once if that has taken
// long: a request that one server does not answer is often answered by the next.
func (s *session) keep() {
	defer s.close()
	for wait := s.Every(); pause(s.term.ctx, wait); {
		began := s.second.clock()
		ctx, cancel := context.WithTimeoutCause(s.term.ctx, s.Every()/2, errSilent)
		span, err := s.Renew(ctx)
		err = because(ctx, err)
		cancel()
		s.mu.Lock()
		s.failure = err
		s.mu.Unlock()
		switch {
		case err == nil:
			s.term.extend(span.From + span.TTL - margin(span.TTL))
			wait = s.Every()
		case errors.Is(err, ErrOver):
			s.term.end(err)
		default:
			wait = s.Every()/4 - (s.second.clock() - began)
		}
	}
}

func (s *session) close() {
	ctx, cancel := context.WithTimeoutCause(context.Background(), s.second.patience(), errSilent)
	defer cancel()
	err := because(ctx, s.Session.Close(ctx))
	if err != nil {
		err = fmt.Errorf("%s: close: %w", s.second.name, err)
	}
	s.second.mu.Lock()
	defer s.second.mu.Unlock()
	s.second.closeErr, s.second.closeEnd = err, s.second.clock()+s.ttl
}

// pause waits, unless ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// take enters the queue of a key and waits to be its first. What fails is abandoned.
func (s *session) take(ctx context.Context, key string, alone bool) (*lock, error) {
	entry := s.Entry(key)
	enter, cancel := context.WithTimeoutCause(ctx, s.second.patience(), errSilent)
	defer cancel()
	fence, err := entry.Enter(enter, alone)
	err = because(enter, err)
	if err == nil && !alone {
		err = because(ctx, entry.Wait(ctx))
	}
	if err == nil && s.term.over() {
		err = context.Cause(s.term.ctx)
	}
	if err != nil {
		s.abandon(entry)
		return nil, err
	}
	return &lock{session: s, entry: entry, key: key, fence: fence, held: s.term.hold()}, nil
}

// abandon leaves a queue in the background.
func (s *session) abandon(p Entry) { s.second.spawn(func() { s.leave(p, false) }) }

// leave leaves a queue, and tries until that is sure, or the session is over: then the store
// gives up the entry with it. held says that it was the first when this began.
func (s *session) leave(p Entry, held bool) error {
	unclear := false // whether one that failed has found it
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		ctx, cancel := context.WithTimeoutCause(s.second.ctx, s.second.patience()/3, errSilent)
		found, err := p.Leave(ctx)
		err = because(ctx, err)
		cancel()
		switch {
		case err == nil && (found || unclear && held):
			return nil
		case err == nil:
			return redlock.ErrNotHeld
		}
		unclear = true
		if s.term.over() || !pause(s.term.ctx, wait) {
			if !held || errors.Is(err, ErrOver) {
				return fmt.Errorf("%w: %w", redlock.ErrNotHeld, err)
			}
			return err
		}
	}
}
