//go:build linux

package main

import (
	"context"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/redlock"
)

// revoke takes a lock away from one of its holders, as the masters name them, or from all of them.
func (w *worker) revoke(ctx context.Context, l lockable) {
	key := l.Keys[w.rng.IntN(len(l.Keys))]
	var opts []redlock.Option
	switch l.Kind {
	case shared:
		opts = append(opts, redlock.WithShared())
	case permits:
		opts = append(opts, redlock.WithPermits(l.Permits))
	}
	r := record{Op: opRevoke, Lock: l.String()}
	if w.percent(70) {
		lock, _ := w.lock.Holders(ctx, key, opts...)
		if len(lock.Holders) == 0 {
			return
		}
		h := lock.Holders[w.rng.IntN(len(lock.Holders))]
		if h.Token.IsZero() {
			return
		}
		r.Token = h.Token.Reveal()
		opts = append(opts, redlock.WithToken(r.Token))
	}
	r.Began = clock.Now()
	err := w.lock.Revoke(ctx, key, "chaos", opts...)
	r.T, r.Outcome = clock.Now(), name(ctx, err)
	w.add(r)
}
