package second

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/redlock"
)

const (
	fakeTTL   = 9 * time.Second
	fakeEvery = 3 * time.Second
)

// A fake is a store in a bubble, where time is simulated. What a request does is decided by its hooks, which may wait.
type fake struct {
	t      *testing.T
	began  time.Time
	second *Second

	mu      sync.Mutex
	asleep  time.Duration // for which the machine was suspended, which timers do not count
	queues  map[string][]*fakeEntry
	changed chan struct{} // closed when a queue has changed
	fence   uint64
	opened  []*fakeSession

	hooks
}

// The hooks of a fake.
type hooks struct {
	open         func(ctx context.Context) error
	renew        func(ctx context.Context, n int) error
	enter        func(ctx context.Context) (before, after error) // before: it is not obeyed; after: it was
	leave        func(ctx context.Context) error
	closeSession func(ctx context.Context) error
}

// do changes what others read at any time.
func (f *fake) do(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) get() hooks {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hooks
}

type fakeSession struct {
	fake    *fake
	over    func(error)
	renewed int
	closed  bool
}

type fakeEntry struct {
	session *fakeSession
	key     string
	fence   uint64
	left    int // how often
}

// simulated runs a test in a bubble with a fake. No goroutine may be left.
func simulated(t *testing.T, test func(t *testing.T, f *fake)) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{t: t, began: time.Now(), queues: make(map[string][]*fakeEntry), changed: make(chan struct{})}
		f.second = New("fake", f, fakeTTL)
		f.second.clock = f.now
		defer f.second.Close()
		test(t, f)
	})
}

func (f *fake) now() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Since(f.began) + f.asleep
}

func (f *fake) Open(ctx context.Context, over func(error)) (Session, Span, error) {
	sent := f.now()
	if open := f.get().open; open != nil {
		if err := open(ctx); err != nil {
			return nil, Span{}, err
		}
	}
	s := &fakeSession{fake: f, over: over}
	f.do(func() { f.opened = append(f.opened, s) })
	return s, Span{From: sent, TTL: fakeTTL}, nil
}

func (s *fakeSession) Every() time.Duration { return fakeEvery }

func (s *fakeSession) Renew(ctx context.Context) (Span, error) {
	sent := s.fake.now()
	s.renewed++
	if renew := s.fake.get().renew; renew != nil {
		if err := renew(ctx, s.renewed); err != nil {
			return Span{}, err
		}
	}
	return Span{From: sent, TTL: fakeTTL}, nil
}

func (s *fakeSession) Close(ctx context.Context) error {
	if closeSession := s.fake.get().closeSession; closeSession != nil {
		return closeSession(ctx)
	}
	s.fake.mu.Lock()
	defer s.fake.mu.Unlock()
	s.closed = true
	for key, queue := range s.fake.queues {
		s.fake.set(key, slices.DeleteFunc(queue, func(p *fakeEntry) bool { return p.session == s }))
	}
	return nil
}

func (s *fakeSession) Entry(key string) Entry { return &fakeEntry{session: s, key: key} }

// set sets a queue, under mu.
func (f *fake) set(key string, queue []*fakeEntry) {
	f.queues[key] = queue
	close(f.changed)
	f.changed = make(chan struct{})
}

func (p *fakeEntry) Enter(ctx context.Context, alone bool) (uint64, error) {
	f := p.session.fake
	var after error
	if enter := f.get().enter; enter != nil {
		var before error
		if before, after = enter(ctx); before != nil {
			return 0, before
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if alone && len(f.queues[p.key]) > 0 {
		return 0, redlock.ErrHeld
	}
	f.fence++
	p.fence = f.fence
	f.set(p.key, append(slices.Clone(f.queues[p.key]), p))
	return p.fence, after
}

func (p *fakeEntry) Wait(ctx context.Context) error {
	f := p.session.fake
	for {
		f.mu.Lock()
		at, changed := slices.Index(f.queues[p.key], p), f.changed
		f.mu.Unlock()
		switch at {
		case 0:
			return nil
		case -1:
			return errBroken
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (p *fakeEntry) Leave(ctx context.Context) (bool, error) {
	f := p.session.fake
	p.left++
	if leave := f.get().leave; leave != nil {
		if err := leave(ctx); err != nil {
			return false, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.queues[p.key]
	after := slices.DeleteFunc(slices.Clone(before), func(other *fakeEntry) bool { return other == p })
	f.set(p.key, after)
	return len(after) < len(before), nil
}

var errBroken = errors.New("broken")

// silence does not answer.
func silence(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// free requires that nobody is in any queue.
func (f *fake) free() {
	f.t.Helper()
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	for key, queue := range f.queues {
		require.Empty(f.t, queue, key)
	}
}

// away has the store answer nothing any more.
func (f *fake) away() {
	f.do(func() {
		f.leave = silence
		f.renew = func(ctx context.Context, _ int) error { return silence(ctx) }
	})
}
