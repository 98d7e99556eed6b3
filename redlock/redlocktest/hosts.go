package redlocktest

import (
	"errors"
	"fmt"
	"net/netip"
)

// A Host is where a master's process runs, if that is not beside the test: a network
// namespace, for one.
type Host interface {
	// Addr returns the IP address that the master listens on, at Redis' own port.
	Addr() netip.Addr
	// Do calls start where the processes that it starts run on the host. It returns the
	// error of start.
	Do(start func() error) error
}

// hostPort is the port of a master that has a host to itself.
const hostPort = 6379

// WithHosts runs master i on hosts[i]. There must be one for each. [Masters.Do] reaches
// the masters over Unix sockets, whatever becomes of the hosts' network. It works for
// real masters, on Unix, and without links.
func WithHosts(hosts ...Host) Option {
	return func(o *options) { o.hosts = hosts }
}

// hostable is nil, or says why n masters cannot run on the hosts.
func hostable(n int, o options) error {
	switch {
	case o.hosts == nil:
		return nil
	case len(o.hosts) != n:
		return fmt.Errorf("redlocktest: there are %d hosts for %d masters", len(o.hosts), n)
	case o.links || o.unix || !unixSockets:
		return errors.New("redlocktest: masters on hosts have neither links nor Unix sockets as their addresses, " +
			"and need a system with Unix sockets")
	}
	return nil
}
