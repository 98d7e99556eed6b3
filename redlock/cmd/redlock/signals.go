package main

import (
	"context"
	"os"
	"os/signal"
)

// untilSignal returns a context that the first signal that asks us to end cancels. Its
// cause is then a signalled.
func untilSignal() (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passedOn()...)
	go func() {
		for s := range signals {
			if asksToEnd(s) {
				cancel(signalled{s})
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

// A signalled is the cause of a wait that a signal ended.
type signalled struct{ os.Signal }

func (s signalled) Error() string { return "ended by signal: " + s.String() }
