package redlock

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/redburst/redburst/mux"
)

// Observers makes one Observer of several. Each is told everything, in their order. If one
// panics, the next ones are still told, and then the panic goes on. One that is nil is left out.
func Observers(all ...*Observer) *Observer {
	all = slices.DeleteFunc(slices.Clone(all), func(o *Observer) bool { return o == nil })
	one := new(Observer)
	if len(all) > 0 {
		*one = *all[0] // a call of one costs no more than that of the Observer itself
		all = all[1:]
	}
	for _, next := range all {
		before := *one
		if next.Opened != nil {
			one.Opened = func(c *Client) {
				defer next.Opened(c)
				if before.Opened != nil {
					before.Opened(c)
				}
			}
		}
		if next.Round != nil {
			one.Round = func(ctx context.Context, r Round) {
				defer next.Round(ctx, r) // also if one before it panics
				before.round(ctx, r)
			}
		}
		if next.WaitStart != nil {
			one.WaitStart = func(ctx context.Context, key string) {
				defer next.WaitStart(ctx, key)
				before.waitStart(ctx, key)
			}
		}
		if next.HandedOver != nil {
			one.HandedOver = func(ctx context.Context, h HandOver) {
				defer next.HandedOver(ctx, h)
				before.handedOver(ctx, h)
			}
		}
		if next.Wake != nil {
			one.Wake = func(ctx context.Context, key string, why Wake) {
				defer next.Wake(ctx, key, why)
				before.wake(ctx, key, why)
			}
		}
		if next.WaitEnd != nil {
			one.WaitEnd = func(ctx context.Context, key string, waited time.Duration, err error) {
				defer next.WaitEnd(ctx, key, waited, err)
				before.waitEnd(ctx, key, waited, err)
			}
		}
		if next.LetGo != nil {
			one.LetGo = func(l LetGo) {
				defer next.LetGo(l)
				before.letGo(l)
			}
		}
		if next.Lost != nil {
			one.Lost = func(ctx context.Context, key string, err error) {
				defer next.Lost(ctx, key, err)
				before.lost(ctx, key, err)
			}
		}
		if next.Master != nil {
			one.Master = func(m MasterStats) {
				defer next.Master(m)
				before.master(m)
			}
		}
	}
	return one
}

// SlogObserver returns an Observer that logs. A nil logger means slog.Default(), as it is at the
// time of the log. An event whose level is disabled costs no allocation.
//
//	Error    a lock is lost: KeepAlive, Extend, Unlock or a recheck is the first to find it out
//	Warn     a master is down, stalled, refused or quarantined, or its credentials could not be renewed;
//	         a round has failed: too few masters answered, or too late. Of a Lock that goes on trying,
//	         it is the first such round, and the end if that is a failure, too. Of a KeepAlive, it is
//	         the first such renewal
//	Info     a master is up, or is left by Close; a Lock, or a renewal, has succeeded after such failures
//	Debug    all other rounds, also those that found the lock held by another; waits; who lets go
//
// The context is the operation's, so that a handler finds a trace in it. Keys are logged as they
// are. Tokens are not logged: any process that knows one can release the lock.
func SlogObserver(logger *slog.Logger) *Observer {
	enabled := func(ctx context.Context, level slog.Level) *slog.Logger {
		l := logger
		if l == nil {
			l = slog.Default()
		}
		if !l.Enabled(ctx, level) {
			return nil
		}
		return l
	}
	return &Observer{
		Round: func(ctx context.Context, r Round) {
			level := levelOf(r.Err, r.Failures)
			if r.Op == OpRevoke && level == slog.LevelError {
				level = slog.LevelDebug // nobody holds it: nobody has lost it
			}
			l := enabled(ctx, level)
			if l == nil {
				return
			}
			attrs := append(make([]slog.Attr, 0, 8), slog.String("op", string(r.Op)), slog.String("key", r.Key),
				slog.String("outcome", Outcome(r.Err)), slog.Duration("took", r.Took))
			if r.Validity != 0 {
				attrs = append(attrs, slog.Duration("validity", r.Validity))
			}
			if r.Held != 0 {
				attrs = append(attrs, slog.Duration("held", r.Held))
			}
			if r.Failures != 0 {
				attrs = append(attrs, slog.Int("failures", r.Failures))
			}
			l.LogAttrs(ctx, level, "redlock: round", withError(attrs, r.Err)...)
		},
		WaitStart: func(ctx context.Context, key string) {
			if l := enabled(ctx, slog.LevelDebug); l != nil {
				l.LogAttrs(ctx, slog.LevelDebug, "redlock: waits", slog.String("key", key))
			}
		},
		Wake: func(ctx context.Context, key string, why Wake) {
			if l := enabled(ctx, slog.LevelDebug); l != nil {
				l.LogAttrs(ctx, slog.LevelDebug, "redlock: wakes", slog.String("key", key), slog.String("why", string(why)))
			}
		},
		WaitEnd: func(ctx context.Context, key string, waited time.Duration, err error) {
			level := levelOf(err, 0)
			if l := enabled(ctx, level); l != nil {
				attrs := []slog.Attr{slog.String("key", key), slog.String("outcome", Outcome(err)), slog.Duration("waited", waited)}
				l.LogAttrs(ctx, level, "redlock: waits no more", withError(attrs, err)...)
			}
		},
		LetGo: func(e LetGo) {
			ctx := context.Background()
			if l := enabled(ctx, slog.LevelDebug); l != nil {
				l.LogAttrs(ctx, slog.LevelDebug, "redlock: lets go", slog.String("key", e.Key), slog.Bool("given_back", e.GivenBack))
			}
		},
		Lost: func(ctx context.Context, key string, err error) {
			if l := enabled(ctx, slog.LevelError); l != nil {
				l.LogAttrs(ctx, slog.LevelError, "redlock: lost", withError([]slog.Attr{slog.String("key", key)}, err)...)
			}
		},
		Master: func(m MasterStats) {
			ctx, level := context.Background(), levelOfMaster(m)
			l := enabled(ctx, level)
			if l == nil {
				return
			}
			attrs := []slog.Attr{slog.String("master", m.Addr), slog.String("phase", string(m.Phase)), slog.Int("debts", m.Debts)}
			switch m.Err {
			case "":
			case closedText: // nothing has failed
				attrs = append(attrs, slog.Bool("closed", true))
			default:
				attrs = append(attrs, slog.String("error", unprefixed(m.Err)))
			}
			l.LogAttrs(ctx, level, "redlock: master", attrs...)
		},
	}
}

func withError(attrs []slog.Attr, err error) []slog.Attr {
	if err == nil {
		return attrs
	}
	return append(attrs, slog.String("error", err.Error()))
}

// levelOf returns the level at which a round, or the end of a Lock, is logged. failures is that of the Round.
func levelOf(err error, failures int) slog.Level {
	switch outcome := Outcome(err); {
	case outcome == "ok" && failures > 0:
		return slog.LevelInfo
	case outcome == "ok", outcome == "held", outcome == "cancelled", outcome == "closed", failures > 0:
		return slog.LevelDebug
	case outcome == "not_held":
		return slog.LevelError
	}
	return slog.LevelWarn
}

// closedText is the error of a master that Close has left.
var closedText = mux.ErrClosed.Error()

func levelOfMaster(m MasterStats) slog.Level {
	if m.Phase == PhaseUp && m.Err == "" || m.Err == closedText {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}
