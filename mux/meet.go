package mux

import (
	"context"

	"github.com/redburst/redburst/conn"
)

// Meet makes one more connection to a master that has a fixed place, as the list has it now, and returns what it said in the
// handshake. The connection is closed. It returns ErrNotMember for a group or a cluster, whose master others name. An error
// is that of conn.Dial, or ErrClosed. It takes mu.
func (m *Mux) Meet(ctx context.Context, i int) (addr string, said conn.Server, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.ctx, cancel)()
	m.lock()
	at, opt, closed := m.slots[i].addr, m.cfg.Conn, m.closed
	opt.ClientName = m.clientName
	m.mu.Unlock()
	switch {
	case closed:
		return at.String(), said, ErrClosed
	case at.Group() != "":
		return at.String(), said, ErrNotMember
	}
	c, err := conn.Dial(ctx, at, opt)
	if err != nil {
		return at.String(), said, err
	}
	said = c.Server()
	return at.String(), said, c.Close()
}
