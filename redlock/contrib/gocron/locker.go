package gocron

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/redburst/redburst/redlock"
)

// A Locker locks each run of a job. It is for gocron.WithDistributedLocker and
// gocron.WithDistributedJobLocker.
type Locker struct {
	client *redlock.Client
	prefix string
	ttl    time.Duration
	opts   []redlock.Option

	mu   sync.Mutex
	runs map[string]*run // by the job's name; the latest
}

var _ gocron.Locker = (*Locker)(nil)

// NewLocker returns a Locker. The key of a job's lock is the prefix and the job's name, so two jobs
// must not have the same name. (The name of a job that was given none is that of its function. All
// closures of one place have the same.)
//
// The lock is kept alive while the job runs. The TTL is how long others wait if the process dies.
// The options are those of [redlock.Client.Do]. But without WithWait, a run makes one attempt. Many
// processes that tick in the same moment can split the masters' votes, and then none has the lock. A
// WithWait of a second lets one of them have it. It needs WithMinHold, or those that waited run the
// job, too. It must be shorter than the period.
func NewLocker(client *redlock.Client, prefix string, ttl time.Duration, opts ...redlock.Option) *Locker {
	opts = append([]redlock.Option{redlock.WithWait(0)}, opts...)
	return &Locker{client: client, prefix: prefix, ttl: ttl, opts: opts, runs: map[string]*run{}}
}

// A run is one run of a job.
type run struct {
	locker *Locker
	name   string
	held   runContext
	unlock func()        // may be called again
	ended  chan struct{} // closed when the lock is released
	err    error         // of Do; read it when ended is closed
}

// Lock takes the lock of a job, for one run. It returns the error of Client.Do if it cannot be had.
func (l *Locker) Lock(ctx context.Context, name string) (gocron.Lock, error) {
	done := make(chan struct{})
	taken := make(chan struct{})
	r := &run{locker: l, name: name, ended: make(chan struct{}), unlock: sync.OnceFunc(func() { close(done) })}
	// The lock is kept until Unlock, even if ctx ends before: the job may not look at it.
	holding, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	go func() {
		defer close(r.ended)
		defer cancel(nil)
		waiting := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
		r.err = l.client.Do(holding, l.prefix+name, l.ttl, func(lock context.Context) error {
			if !waiting() {
				return context.Cause(ctx)
			}
			held, leave := context.WithCancelCause(lock)
			defer leave(nil)
			defer context.AfterFunc(ctx, func() { leave(context.Cause(ctx)) })()
			r.held = runContext{held, lock}
			l.begin(r)
			close(taken)
			<-done
			l.end(r)
			return nil
		}, l.opts...)
	}()
	select {
	case <-taken:
		return r, nil
	case <-r.ended:
		return nil, r.err
	}
}

// A runContext is the context of a run. It ends with the lock, and with the job's context.
type runContext struct {
	context.Context // derived from lock
	lock            context.Context
}

// Done and Err let the lock look at the clock. A timer may be late, as it does not count suspended time.
func (c runContext) Done() <-chan struct{} {
	_ = c.lock.Err()
	return c.Context.Done()
}

func (c runContext) Err() error {
	_ = c.lock.Err()
	return c.Context.Err()
}

// Unlock releases the lock, or leaves it for its least hold (redlock.WithMinHold). It waits for that
// until ctx ends. Its error wraps redlock.ErrLost if the lock was lost while the job ran.
func (r *run) Unlock(ctx context.Context) error {
	r.unlock()
	select {
	case <-r.ended:
		return r.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *Locker) begin(r *run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs[r.name] = r
}

func (l *Locker) end(r *run) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.runs[r.name] == r {
		delete(l.runs, r.name)
	}
}

// Held returns the context of the run of a job that is under way here. It ends no later than the
// validity of the lock, with the cause redlock.ErrLost, or when the context of the job ends. It has
// the fence, if there is one (redlock.FenceFrom).
//
// If this Locker has not locked a job of that name, the context has ended already.
//
// A job calls it when it begins. After a loss, the next run can begin here while this one goes
// on, and later calls return the context of that. Where redlock.WithPermits lets
// several runs of a job go on here, it is that of the latest.
func (l *Locker) Held(name string) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.runs[name]; r != nil {
		return r.held
	}
	return over(fmt.Errorf("redlock/gocron: no job %q has the lock here", name))
}

// over returns a context that has ended.
func over(cause error) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	return ctx
}
