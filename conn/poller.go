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

// NewSinglePoller is [NewPoller] for one connection at a time: to add a second one is an error.
// On Linux each Wait costs one system call less, and the connection wakes it without an epoll
// instance in between. The Poller has a copy of the connection's descriptor there, so Remove the
// connection before its Close or Abort.
func NewSinglePoller() (*Poller, error) {
	p, err := NewPoller()
	if err == nil {
		p.single = true
	}
	return p, err
}

// Add starts to watch c, on Linux with epoll_ctl(2). Its events carry id. A Conn may be in several
// Pollers, but only once in each: a second Add is an error.
func (p *Poller) Add(c *Conn, id uint64, want Interest) error { return p.add(c.sock, id, want) }

// Modify changes the interest in c, and its id. A Wait that is under way takes notice. It
// is an error if c is not in the Poller.
func (p *Poller) Modify(c *Conn, id uint64, want Interest) error { return p.modify(c.sock, id, want) }

// Remove stops watching c. Call it before Close or Abort of the Conn. These remove it too, but
// while the process starts a child, the kernel can report the connection for a moment longer.
// Events that Wait or Poll has returned before stay valid. It is an error if c is not in the
// Poller.
func (p *Poller) Remove(c *Conn) error { return p.remove(c.sock) }

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
