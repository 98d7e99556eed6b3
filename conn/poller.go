package conn

import (
	"context"
	"errors"

	"github.com/redburst/redburst/conn/clock"
)

// Interest is a set of conditions that a [Poller] watches for, or has found.
type Interest uint8

// The conditions of an [Interest].
const (
	// Readable: [Conn.Receive] would return data or an error.
	Readable Interest = 1 << iota
	// Writable: [Conn.Flush] would write something or return an error.
	Writable
	// Hangup: the master has closed its side, or the connection is broken. Request Hangup
	// alone to watch an idle connection without being woken by data. It may be reported
	// without having been requested.
	Hangup
)

// Event says what a connection is ready for.
type Event struct {
	ID    uint64   // as given to the latest [Poller.Add] or [Poller.Modify] of the connection
	Ready Interest // one condition or more
}

var errSecond = errors.New("conn: this poller is for one connection, and has it")

// await parks until s, which is in p, is ready for what is wanted, or ctx ends. It needs a
// Poller that nobody else waits with.
func (p *Poller) await(ctx context.Context, s *sock, want Interest) error {
	if err := p.modify(s, 0, want); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, p.Wake)()
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		events, err := p.Wait(clock.Forever)
		if err != nil || len(events) > 0 {
			return err
		}
	}
}
