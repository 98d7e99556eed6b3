package redlock

import (
	"context"
	"log/slog"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/behind"
)

// SlogObserver returns an Observer that logs. A nil logger means slog.Default(), as it is at the
// time of the log. An event whose level is disabled costs no allocation. Each record has the time
// of its event.
//
//	Error    a lock is lost: KeepAlive, Extend, Unlock or a recheck is the first to find it out
//	Warn     a master is down, stalled, refused or quarantined, or its credentials could not be renewed;
//	         a round has failed: too few masters answered, or too late. Of a Lock that goes on trying,
//	         it is the first such round, and the end if that is a failure, too. Of a KeepAlive, it is
//	         the first such renewal. A lock is revoked. Events were left out, as the log is too slow
//	Info     a master is up, or is left by Close; a Lock, or a renewal, has succeeded after such failures
//	Debug    all other rounds, also those that found the lock held by another; waits; who lets go
//
// The context is the operation's, so that a handler finds a trace in it. Keys are logged as they
// are. Tokens are not logged: any process that knows one can release the lock.
func SlogObserver(logger *slog.Logger) Observer {
	return func(ctx context.Context, e *Event) {
		level := levelOfEvent(e)
		l := logger
		if l == nil {
			l = slog.Default()
		}
		what := whatHappened[e.Kind]
		if what == "" || !l.Enabled(ctx, level) {
			return
		}
		r := slog.NewRecord(e.Time, level, "redlock: "+what, 0)
		if e.Op != "" {
			r.AddAttrs(slog.String("op", e.Op))
		}
		if e.Master == nil && e.more.Dropped == 0 {
			r.AddAttrs(slog.String("key", e.Key))
		}
		switch e.Kind {
		case EventRound:
			r.AddAttrs(slog.String("outcome", Outcome(e.Err)), slog.Duration("took", e.Took))
			if e.more.Validity != 0 {
				r.AddAttrs(slog.Duration("validity", e.more.Validity))
			}
			if e.more.Held != 0 {
				r.AddAttrs(slog.Duration("held", e.more.Held))
			}
			if e.more.Failures != 0 {
				r.AddAttrs(slog.Int("failures", e.more.Failures))
			}
		case behind.Wake:
			r.AddAttrs(slog.String("why", e.more.Why))
		case EventWaited:
			r.AddAttrs(slog.String("outcome", Outcome(e.Err)), slog.Duration("waited", e.Took))
		case behind.LetGo:
			r.AddAttrs(slog.Bool("given_back", e.more.GivenBack))
		case EventMaster:
			r.AddAttrs(slog.String("master", e.Master.Addr), slog.String("phase", e.Master.Phase), slog.Int("debts", e.Master.Debts))
			switch text := e.Master.Err; text {
			case "":
			case closedText: // nothing has failed
				r.AddAttrs(slog.Bool("closed", true))
			default:
				r.AddAttrs(slog.String("error", unprefixed(text)))
			}
		case behind.Dropped:
			r.AddAttrs(slog.Uint64("dropped", e.more.Dropped))
		}
		if e.Err != nil {
			r.AddAttrs(slog.String("error", e.Err.Error()))
		}
		l.Handler().Handle(ctx, r)
	}
}

// whatHappened are the messages of events that are logged.
var whatHappened = map[EventKind]string{
	EventRound: "round", behind.Wait: "waits", behind.Wake: "wakes", EventWaited: "waits no more", behind.LetGo: "lets go",
	EventLost: "lost", EventMaster: "master", behind.Dropped: "events are left out",
}

func levelOfEvent(e *Event) slog.Level {
	switch e.Kind {
	case EventRound:
		level := levelOf(e.Err, e.more.Failures)
		if e.Op == opRevoke && level == slog.LevelError {
			return slog.LevelDebug // nobody holds it: nobody has lost it
		}
		return level
	case EventWaited:
		return levelOf(e.Err, 0)
	case EventMaster:
		return levelOfMaster(e.Master)
	case EventLost:
		if Outcome(e.Err) == "revoked" {
			return slog.LevelWarn // an operator meant it
		}
		return slog.LevelError
	case behind.Dropped:
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// levelOf returns the level at which a round, or the end of a Lock, is logged. failures is that of behind.Event.
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

func levelOfMaster(m *MasterStats) slog.Level {
	if m.Phase == "up" && m.Err == "" || m.Err == closedText {
		return slog.LevelInfo
	}
	return slog.LevelWarn
}
