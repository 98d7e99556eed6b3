package mux_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
)

// An operation that is submitted twice must not damage the others' list.
func TestOpSubmittedTwiceDoesNotHangTheMux(t *testing.T) {
	t.Parallel()
	f := newFake(t, "silent", silent)
	m, err := mux.Open(t.Context(), patiently(mux.Config{Masters: []string{f.addr()}}))
	require.NoError(t, err)
	op, other := vote("a"), vote("b")
	m.Post(op, other)
	func() {
		defer func() { recover() }()
		m.Post(op) // without a Wait before
	}()
	ended := make(chan error, 1)
	go func() { ended <- m.Wait(context.Background(), other) }()
	eventually(t, "it is waited for", func() bool { return m.ParkedFor() > 0 })
	go m.Close()
	require.ErrorIs(t, conntest.Soon(t, "the other one is ended", ended), mux.ErrClosed)
}

// The second submission panics; the first keeps its deadline.
func TestOpSubmittedTwiceKeepsItsFirstDeadline(t *testing.T) {
	t.Parallel()
	f := newFake(t, "silent", silent)
	m := open(t, mux.Config{Masters: []string{f.addr()}, StallTime: time.Hour})
	op := vote("a")
	op.Timeout = 20 * time.Millisecond
	m.Post(op)
	require.Panics(t, func() { m.Post(op) })
	ended := make(chan error, 1)
	go func() { ended <- m.Wait(context.Background(), op) }()
	require.ErrorIs(t, conntest.Soon(t, "its timeout ends it", ended), mux.ErrTimeout)
}

func TestOpThatWasNotPostedCannotBeWaitedFor(t *testing.T) {
	t.Parallel()
	m := open(t, mux.Config{Masters: []string{newFake(t, "steady", steady(0)).addr()}})
	op := vote("a")
	require.PanicsWithValue(t, "mux: Wait for an Op that was not posted", func() { m.Wait(t.Context(), op) })
	require.NoError(t, m.Do(t.Context(), op)) // and the Mux is usable
	require.True(t, granted(op))
}
