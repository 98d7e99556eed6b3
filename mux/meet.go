package mux

import (
	"context"

	"github.com/redburst/redburst/conn"
)

// Meet makes one more connection to a master that has a fixed place, as the list has it now, and returns what it said in the
// handshake. The connection is closed. It returns ErrNotMember for a group or a cluster, whose master others name. Otherwise, an
// error is that of conn.Dial. It takes mu, and is not in the way of Close: also after that, it connects to the last list.
func (m *Mux) Meet(ctx context.Context, i int) (addr string, said conn.Server, err error) {
	m.lock()
	at, opt := m.slots[i].addr, m.cfg.Conn
	opt.ClientName = m.clientName
	m.mu.Unlock()
	if at.Group() != "" {
		return at.String(), said, ErrNotMember
	}
	c, err := conn.Dial(ctx, at, opt)
	if err != nil {
		return at.String(), said, err
	}
	said = c.Server()
	return at.String(), said, c.Close()
}
