package redlockotel

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

const ttl = 30 * time.Second

func TestDoMakesTwoSpansOfTheCallersTrace(t *testing.T) {
	t.Parallel()
	b := newBench(t, WithAttributes(attribute.String("client", "orders")))
	ctx := b.caller(t)
	caller := trace.SpanContextFromContext(ctx)
	require.NoError(t, b.Do(ctx, b.client, "k\xff", ttl, func(held context.Context) error {
		require.Empty(t, b.ended("redlock.hold"))
		require.Len(t, b.ended("redlock.lock"), 1, "the lock is taken")
		require.NotZero(t, redlock.FenceFrom(held))
		require.NoError(t, held.Err())
		_, work := b.tracers.Tracer("test").Start(held, "work")
		work.End()
		return nil
	}, redlock.WithFence()))

	lock, hold, work := b.only(t, "redlock.lock"), b.only(t, "redlock.hold"), b.only(t, "work")
	for _, s := range []struct {
		span   string
		parent trace.SpanContext
		child  trace.SpanContext
		is     trace.SpanID
	}{
		{"redlock.lock", caller, lock.SpanContext(), lock.Parent().SpanID()},
		{"redlock.hold", caller, hold.SpanContext(), hold.Parent().SpanID()},
		{"work", hold.SpanContext(), work.SpanContext(), work.Parent().SpanID()},
	} {
		require.Equal(t, caller.TraceID(), s.child.TraceID(), s.span)
		require.Equal(t, s.parent.SpanID(), s.is, s.span)
	}
	require.Len(t, hold.Links(), 1)
	require.Equal(t, lock.SpanContext().SpanID(), hold.Links()[0].SpanContext.SpanID())
	require.Equal(t, map[string]any{"client": "orders", "redlock.key": "k\uFFFD", "redlock.outcome": "ok"}, about(lock.Attributes()))
	require.Equal(t, map[string]any{"client": "orders", "redlock.key": "k\uFFFD"}, about(hold.Attributes()))
	require.Equal(t, codes.Unset, lock.Status().Code)
	require.Equal(t, codes.Unset, hold.Status().Code)
	require.Equal(t, []string{"round lock ok"}, events(lock))
	require.Equal(t, []string{"round unlock ok"}, events(hold))
	require.Equal(t, "k\uFFFD", about(hold.Events()[0].Attributes)["redlock.key"], "an exporter takes no other bytes")
	require.Equal(t, scope, lock.InstrumentationScope().Name)
	require.False(t, hold.StartTime().Before(lock.StartTime()))
}

func TestSpanOfAWait(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx := b.caller(t)
	m := b.client.NewMutex("k", ttl)
	require.NoError(t, m.TryLock(t.Context()))
	done := make(chan error, 1)
	go func() { done <- b.Do(ctx, b.client, "k", ttl, func(context.Context) error { return nil }) }()
	b.waiting(t)
	require.NoError(t, m.Unlock(t.Context()))
	require.NoError(t, <-done)
	lock := b.only(t, "redlock.lock")
	all := events(lock)
	require.Contains(t, all, "wait")
	require.Equal(t, "wake released", all[len(all)-1], "the lock is handed over within the client: Lock has no round")
	require.Positive(t, about(lock.Attributes())["redlock.wait.duration"])
	require.Equal(t, []string{"round unlock ok"}, events(b.only(t, "redlock.hold")))
}

// What the client does on its own while the lock is held belongs to the span of that.
func TestSpanOfALossIsThatOfTheHeldTime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	err := b.Do(b.caller(t), b.client, "k", 3*time.Second, func(held context.Context) error {
		require.Eventually(t, func() bool { return b.client.Stats().Renewals > 1 }, soon, 5*time.Millisecond, "one was answered")
		b.delete(t, "k")
		select {
		case <-held.Done():
		case <-time.After(soon):
		}
		span := trace.SpanFromContext(held).(sdktrace.ReadOnlySpan)
		require.Eventually(t, func() bool { return slices.Contains(events(span), "lost") }, soon, 5*time.Millisecond, "the Observer is told a little later")
		return context.Cause(held)
	})
	require.ErrorIs(t, err, redlock.ErrLost)
	hold := b.only(t, "redlock.hold")
	require.Contains(t, events(hold), "lost")
	require.Contains(t, events(hold), "round renew ok")
	require.Equal(t, codes.Error, hold.Status().Code)
	require.Equal(t, err.Error(), hold.Status().Description)
	require.Equal(t, "lost", about(hold.Attributes())["error.type"])
	require.Equal(t, codes.Unset, b.only(t, "redlock.lock").Status().Code)
}

// That another holds the lock is a failure only for who has waited for it.
func TestSpanOfALockThatIsNotToBeHad(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	never := func(context.Context) error { panic("it is held") }
	require.NoError(t, b.client.NewMutex("k", ttl).TryLock(t.Context()))
	require.ErrorIs(t, b.Do(b.caller(t), b.client, "k", ttl, never, redlock.WithWait(0)), redlock.ErrHeld)
	_, _, err := b.TryLock(b.caller(t), b.client.NewMutex("k", ttl))
	require.ErrorIs(t, err, redlock.ErrHeld)
	all := b.ended("redlock.lock")
	require.Len(t, all, 2)
	for _, s := range all {
		require.Equal(t, "held", about(s.Attributes())["redlock.outcome"])
		require.NotContains(t, about(s.Attributes()), "error.type")
		require.Equal(t, codes.Unset, s.Status().Code)
	}
	ctx, cancel := context.WithTimeout(b.caller(t), 200*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, b.Do(ctx, b.client, "k", ttl, never), context.DeadlineExceeded)
	s := b.ended("redlock.lock")[2]
	require.Equal(t, "held", about(s.Attributes())["error.type"])
	require.Equal(t, codes.Error, s.Status().Code)
	b.masters.Kill(0)
	b.masters.Kill(1)
	_, _, err = b.TryLock(b.caller(t), b.client.NewMutex("l", ttl))
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	s = b.ended("redlock.lock")[3]
	require.Equal(t, "no_quorum", about(s.Attributes())["redlock.outcome"])
	require.Equal(t, "no_quorum", about(s.Attributes())["error.type"])
	require.Equal(t, codes.Error, s.Status().Code)
	require.Empty(t, b.ended("redlock.hold"))
}

func TestSpanOfWorkThatFails(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	failure := errors.New("the user's\xff")
	require.ErrorIs(t, b.Do(b.caller(t), b.client, "k", ttl, func(context.Context) error { return failure }), failure)
	require.PanicsWithValue(t, "the user's", func() {
		b.Do(b.caller(t), b.client, "k", ttl, func(context.Context) error { panic("the user's") })
	})
	all := b.ended("redlock.hold")
	require.Len(t, all, 2)
	for i, want := range []string{"*errors.errorString", "panic"} {
		require.Equal(t, want, about(all[i].Attributes())["error.type"])
		require.Equal(t, codes.Error, all[i].Status().Code)
		require.Equal(t, []string{"round unlock ok"}, events(all[i]))
	}
	require.Equal(t, "the user's\uFFFD", all[0].Status().Description)
}

// A Mutex that is locked and unlocked by hand has the spans, too, and what keeps it alive is part of them.
func TestSpansOfAMutex(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i, take := range []func(context.Context, *redlock.Mutex) (context.Context, func(context.Context) error, error){b.Lock, b.TryLock} {
		m := b.client.NewMutex("k", 3*time.Second, redlock.WithFence())
		ctx := b.caller(t)
		held, unlock, err := take(ctx, m)
		require.NoError(t, err)
		kept, stop := m.KeepAlive(held)
		require.Equal(t, m.Fence(), redlock.FenceFrom(kept))
		renewals := b.client.Stats().Renewals
		require.Eventually(t, func() bool { return b.client.Stats().Renewals > renewals+1 }, soon, 5*time.Millisecond, "one was answered")
		require.NoError(t, m.Extend(held))
		require.NoError(t, unlock(ctx))
		stop()
		hold := b.ended("redlock.hold")[i]
		require.Equal(t, trace.SpanContextFromContext(ctx).SpanID(), hold.Parent().SpanID())
		require.Equal(t, trace.SpanContextFromContext(held).SpanID(), hold.SpanContext().SpanID())
		require.Contains(t, events(hold), "round renew ok")
		require.Contains(t, events(hold), "round extend ok")
		require.Contains(t, events(hold), "round unlock ok")
		require.Equal(t, []string{"round lock ok"}, events(b.ended("redlock.lock")[i]))
	}
	m := b.client.NewMutex("l", ttl)
	_, unlock, err := b.Lock(b.caller(t), m)
	require.NoError(t, err)
	b.delete(t, "l")
	require.ErrorIs(t, unlock(t.Context()), redlock.ErrNotHeld)
	hold := b.ended("redlock.hold")[2]
	require.Equal(t, codes.Error, hold.Status().Code)
	require.Equal(t, "not_held", about(hold.Attributes())["error.type"])
}

// Each of two locks, one taken inside the other, has its own events.
func TestSpansOfALockInsideALock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, b.Do(b.caller(t), b.client, "outer", ttl, func(held context.Context) error {
		m := b.client.NewMutex("plain", ttl)
		require.NoError(t, m.TryLock(held))
		working, work := b.tracers.Tracer("test").Start(held, "work")
		require.NoError(t, m.Extend(working))
		b.told()
		work.End()
		require.Equal(t, []string{"round extend ok"}, events(b.only(t, "work")))
		return b.Do(held, b.client, "inner", ttl, func(held context.Context) error {
			return m.Unlock(held)
		})
	}))
	all := b.ended("redlock.hold")
	require.Len(t, all, 2)
	inner, outer := all[0], all[1]
	require.Equal(t, "inner", about(inner.Attributes())["redlock.key"])
	require.Equal(t, outer.SpanContext().SpanID(), inner.Parent().SpanID())
	require.Equal(t, []string{"round unlock ok", "round unlock ok"}, events(inner), "plain's and inner's")
	require.Equal(t, []string{"round lock ok", "round unlock ok"}, events(outer), "plain's and outer's")
	for _, s := range b.ended("redlock.lock") {
		require.Equal(t, []string{"round lock ok"}, events(s))
	}
}

// Without a span of its own, an operation adds to that of its caller.
func TestObserverAddsToTheCallersSpan(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, span := b.tracers.Tracer("test").Start(t.Context(), "caller")
	m := b.client.NewMutex("k", ttl)
	require.NoError(t, m.TryLock(ctx))
	done := make(chan error, 1)
	other := b.client.NewMutex("k", ttl)
	go func() { done <- other.Lock(ctx) }()
	b.waiting(t)
	require.NoError(t, m.Unlock(ctx))
	require.NoError(t, <-done)
	_, stop := other.KeepAlive(ctx)
	stop()
	require.NoError(t, other.Unlock(ctx))
	b.told()
	span.End()
	all := events(b.only(t, "caller"))
	for _, want := range []string{"round lock ok", "wait", "round unlock ok"} {
		require.Contains(t, all, want)
	}
	require.Contains(t, strings.Join(all, ", "), "wake ")
	require.Equal(t, "k", about(b.only(t, "caller").Events()[0].Attributes)["redlock.key"])
	require.NoError(t, m.TryLock(t.Context()), "there need not be a span")
}

// Spans end with their time, though nobody adds their events.
func TestSpansEndWithoutTheObserver(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	defer close(hang)
	for name, observer := range map[string]redlock.Observer{
		"one hangs":        func(context.Context, *redlock.Event) { <-hang },
		"one is another's": func(context.Context, *redlock.Event) {},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			client, err := redlock.Open(t.Context(), redlock.Config{Masters: b.masters.Addrs(), Observers: []redlock.Observer{observer}, RoundTimeout: 10 * time.Second})
			require.NoError(t, err)
			defer client.Close()
			require.NoError(t, b.Do(t.Context(), client, "k", ttl, func(context.Context) error { return nil }))
			did := time.Now()
			require.Eventually(t, func() bool { return len(b.ended("redlock.hold")) == 1 }, soon, 5*time.Millisecond)
			require.Len(t, b.ended("redlock.lock"), 1)
			require.False(t, b.ended("redlock.hold")[0].EndTime().After(did))
		})
	}
}

// hanging is a span processor that hangs when the first span has ended.
type hanging struct {
	sdktrace.SpanProcessor
	hangs, end chan struct{}
}

func (h hanging) OnEnd(sdktrace.ReadOnlySpan) {
	select {
	case <-h.hangs:
	default:
		close(h.hangs)
	}
	<-h.end
}

func TestASpanProcessorThatHangsDelaysNoLock(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	h := hanging{b.spans, make(chan struct{}), make(chan struct{})}
	defer close(h.end)
	b.tracers.RegisterSpanProcessor(h)
	done := make(chan error, 1)
	go func() {
		done <- b.Do(t.Context(), b.client, "k", ttl, func(context.Context) error { <-h.hangs; return nil })
	}()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(soon):
		require.Fail(t, "it hangs, too")
	}
}
