package conn

import (
	"context"
	"math"
	"time"
)

// Interest is a set of things that a [Poller] watches for, or has seen.
type Interest uint8

const (
	// Readable: [Conn.Receive] would return something, be it an error.
	Readable Interest = 1 << iota
	// Writable: [Conn.Flush] would get on, or return an error.
	Writable
	// Hangup: the master has closed its side, or the connection is broken. Asked for
	// alone it is how an idle connection is watched, since data does not wake then.
	// It can be reported where it was not asked for, together with the others.
	Hangup
)

// Event says what a connection, known by the id given to [Poller.Add], is ready for.
type Event struct {
	ID    uint64
	Ready Interest
}

// Forever is no deadline for [Poller.Wait].
const Forever time.Duration = math.MaxInt64

// After is d after a moment of [Now]'s clock, without overflow: what never comes is
// Forever.
func After(now, d time.Duration) time.Duration {
	if d > Forever-now {
		return Forever
	}
	return now + d
}

// await parks until s, which is in p, is ready for what is wanted, or ctx ends.
func (p *Poller) await(ctx context.Context, s *sock, want Interest) error {
	if err := p.modify(s, 0, want); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, p.Wake)()
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		events, err := p.Wait(Forever)
		if err != nil || len(events) > 0 {
			return err
		}
	}
}
