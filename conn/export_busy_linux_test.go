//go:build linux && !redburst_portable

package conn

import "sync/atomic"

// CountAsks counts how often the Poller asks the kernel without parking. Nobody may use the Poller yet.
func (p *Poller) CountAsks() *atomic.Int64 {
	n, ask := new(atomic.Int64), p.all.queryOnly
	p.all.queryOnly = func(fd uintptr) { n.Add(1); ask(fd) }
	return n
}
