package redlockotel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Do is client.Do with spans. fn gets the context that client.Do gives it, with the span redlock.hold.
func (t *Telemetry) Do(ctx context.Context, client *redlock.Client, key string, ttl time.Duration, fn func(ctx context.Context) error, opts ...redlock.Option) (err error) {
	op, inner := t.begin(ctx, client, key)
	panics := true
	defer func() { op.end(err, panics) }()
	err = client.Do(inner, key, ttl, func(held context.Context) error {
		return fn(trace.ContextWithSpan(held, op.taken()))
	}, opts...)
	panics = false
	return err
}

// Lock is m.Lock with spans. It returns ctx with the span redlock.hold, for KeepAlive and for the work, and
// what ends that: unlock is m.Unlock, and is to be called in its place. If there is an error, it is m.Lock's,
// held is ctx, and unlock is nil.
func (t *Telemetry) Lock(ctx context.Context, m *redlock.Mutex) (held context.Context, unlock func(context.Context) error, err error) {
	return t.take(ctx, m, m.Lock)
}

// TryLock is m.TryLock with spans, as [Telemetry.Lock] is m.Lock.
func (t *Telemetry) TryLock(ctx context.Context, m *redlock.Mutex) (held context.Context, unlock func(context.Context) error, err error) {
	return t.take(ctx, m, m.TryLock)
}

func (t *Telemetry) take(ctx context.Context, m *redlock.Mutex, lock func(context.Context) error) (held context.Context, unlock func(context.Context) error, err error) {
	op, inner := t.begin(ctx, m, m.Key())
	panics := true
	defer func() {
		if unlock == nil {
			op.end(err, panics)
		}
	}()
	err = lock(inner)
	panics = false
	if err != nil {
		return ctx, nil, err
	}
	hold := op.taken()
	unlock = func(ctx context.Context) error {
		panics, err := true, error(nil)
		defer func() { op.end(err, panics) }()
		err = m.Unlock(trace.ContextWithSpan(ctx, hold))
		panics = false
		return err
	}
	return trace.ContextWithSpan(ctx, hold), unlock, nil
}

// An operation is a lock that is to be taken, is held, and is released. Its context goes through the client
// and has the span of the first part, also when that is over.
type operation struct {
	telemetry *Telemetry
	parent    context.Context // the caller's
	key       string
	lock      trace.Span
	from      any             // the client, or the Mutex
	inner     context.Context // that of its calls
	hold      trace.Span      // nil until the lock is taken

	now atomic.Pointer[trace.Span] // to which events belong, as far as the Observer was told; nil for lock

	mu     sync.Mutex
	ending []ending // spans that end when the Observer was told all that happened before
}

// An ending is a span that has ended.
type ending struct {
	span trace.Span
	at   time.Time
	next trace.Span // events belong to it from then on; nil if there is none
	late *time.Timer
}

type operationKey struct{}

// begin begins an operation and its first span.
func (t *Telemetry) begin(ctx context.Context, from any, key string) (*operation, context.Context) {
	op := &operation{telemetry: t, parent: ctx, key: key, from: from}
	inner, span := t.tracer.Start(ctx, "redlock.lock", trace.WithAttributes(op.attributes()...))
	op.lock = span
	op.inner = context.WithValue(inner, operationKey{}, op)
	return op, op.inner
}

func (op *operation) attributes() []attribute.KeyValue {
	return append(slices.Clone(op.telemetry.always), keyKey.String(valid(op.key)))
}

// taken ends the first span and begins the second.
func (op *operation) taken() trace.Span {
	_, hold := op.telemetry.tracer.Start(op.parent, "redlock.hold", trace.WithAttributes(op.attributes()...),
		trace.WithLinks(trace.Link{SpanContext: op.lock.SpanContext()}))
	op.hold = hold
	op.lock.SetAttributes(keyOutcome.String(redlock.Outcome(nil)))
	op.endSpan(op.lock, hold)
	return hold
}

// end ends the span that is under way, with an error or a panic.
func (op *operation) end(err error, panics bool) {
	span, failed := op.lock, err != nil
	if op.hold != nil {
		span = op.hold
	} else if !panics {
		span.SetAttributes(keyOutcome.String(redlock.Outcome(err)))
		failed = failed && !justHeld(err)
	}
	switch {
	case panics:
		span.SetAttributes(keyError.String("panic"))
		span.SetStatus(codes.Error, "panic")
	case failed:
		span.SetAttributes(keyError.String(errorType(err)))
		span.SetStatus(codes.Error, valid(err.Error()))
	}
	op.endSpan(span, nil)
}

// mostLate is how long a span that has ended waits for its events. If they come later, or not at all, since the Observer
// hangs, is too slow, or is none of this client's, it has the end it had, and none of them.
const mostLate = time.Second

// endSpan ends a span, after which events belong to the next one. The Observer does that, once it has added the events
// that came before.
func (op *operation) endSpan(span, next trace.Span) {
	op.mu.Lock()
	op.ending = append(op.ending, ending{span, time.Now(), next, time.AfterFunc(mostLate, func() { op.noted(true) })})
	op.mu.Unlock()
	if !op.telemetry.observes.Load() || !behind.Tell(op.from, op.inner, op.key) {
		op.noted(true)
	}
}

// noted ends the span that has ended first, or all of them.
func (op *operation) noted(all bool) {
	op.mu.Lock()
	over := op.ending
	if !all {
		over = over[:min(1, len(over))]
	}
	op.ending = op.ending[len(over):]
	for _, e := range over {
		if e.next != nil {
			op.now.Store(&e.next)
		}
	}
	op.mu.Unlock()
	for _, e := range over { // without mu, which the caller of Do takes: a span processor may hang
		e.late.Stop()
		e.span.End(trace.WithTimestamp(e.at))
	}
}

// justHeld reports whether an attempt to take the lock has found that another has it, and did not wait for
// longer than it wanted to.
func justHeld(err error) bool {
	return errors.Is(err, redlock.ErrHeld) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}

func errorType(err error) string {
	if outcome := redlock.Outcome(err); outcome != "error" {
		return outcome
	}
	return fmt.Sprintf("%T", err)
}

// operationOf returns the operation that a context is of, not counting those around it; nil if it is of
// none.
func operationOf(ctx context.Context) *operation {
	op, _ := ctx.Value(operationKey{}).(*operation)
	if op == nil || trace.SpanContextFromContext(ctx).SpanID() != op.lock.SpanContext().SpanID() {
		return nil
	}
	return op
}

// spanOf returns the span to which an event belongs that happens in the context.
func spanOf(ctx context.Context) trace.Span {
	if op := operationOf(ctx); op != nil {
		if span := op.now.Load(); span != nil {
			return *span
		}
	}
	return trace.SpanFromContext(ctx)
}
