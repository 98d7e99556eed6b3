package conn

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// target is one place to connect to: a resolved address, or a Unix socket.
type target struct {
	addr netip.AddrPort
	path string
}

func (t target) String() string {
	if t.path != "" {
		return t.path
	}
	return t.addr.String()
}

// errLinkLocal is the error for a place that only servers name. There, clouds show a machine its own secrets, and routers
// their pages, to whoever asks from within.
var errLinkLocal = &RefusedError{Reason: "a server has named a link-local address", Remedy: "list it, if a master is there"}

func isLinkLocal(t target) bool {
	ip := t.addr.Addr().Unmap()
	return ip.IsLinkLocalUnicast() || ip.IsLinkLocalMulticast()
}

// lists reports whether the user has written the place into the address: others were named by sentinels or nodes.
func (a Address) lists(at Address) bool {
	switch {
	case a.nodes != "":
		return slices.Contains(strings.Split(a.nodes, ","), at.Endpoint())
	case a.group != "":
		return slices.Contains(strings.Split(a.sentinels, ","), at.Endpoint())
	}
	return true
}

func resolve(ctx context.Context, a Address) ([]target, error) {
	if a.path != "" {
		return []target{{path: a.path}}, nil
	}
	if ip, err := netip.ParseAddr(a.host); err == nil {
		return []target{{addr: netip.AddrPortFrom(ip, a.port)}}, nil
	}
	ips, err := ipsOf(ctx, a.host)
	if err != nil {
		return nil, err
	}
	targets := make([]target, len(ips))
	for i, ip := range ips {
		targets[i].addr = netip.AddrPortFrom(ip.Unmap(), a.port)
	}
	return targets, nil
}

// patienceWithIPv6 is how long a look-up has for both A and AAAA, or a quarter of what is left of the dial.
const patienceWithIPv6 = 250 * time.Millisecond

// ipsOf returns the addresses of a name, in the resolver's order. Some name servers never answer AAAA, and a look-up
// of both waits for that longer than a dial takes. So after a while A is asked for alone, too, and whoever first has
// addresses is believed. Both look-ups end with the call.
func ipsOf(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	type answer struct {
		ips []netip.Addr
		err error
	}
	var ipv4 chan answer
	look := func(network string) chan answer {
		c := make(chan answer, 1)
		go func() {
			ips, err := net.DefaultResolver.LookupNetIP(ctx, network, host)
			c <- answer{ips, err}
		}()
		return c
	}
	patience := patienceWithIPv6
	if until, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(until)/4)
	}
	grace := time.NewTimer(patience)
	defer grace.Stop()
	for both := look("ip"); ; {
		select {
		case a := <-both:
			return a.ips, a.err
		case <-grace.C:
			ipv4 = look("ip4")
		case a := <-ipv4:
			if a.err == nil {
				return a.ips, nil
			}
			ipv4 = nil // IPv6 alone may have some
		}
	}
}

// checkNamed is for a host that only servers name, and that a Dialer looks up. Resolvers and proxies read an address in
// other spellings than ours, such as 0xa9fea9fe: no name ends in a number.
func checkNamed(host string) error {
	if ip, err := netip.ParseAddr(host); err == nil {
		if isLinkLocal(target{addr: netip.AddrPortFrom(ip, 0)}) {
			return errLinkLocal
		}
		return nil
	}
	last := host[strings.LastIndexByte(host, '.')+1:]
	if _, err := strconv.ParseUint(last, 0, 64); err == nil || errors.Is(err, strconv.ErrRange) || strings.Trim(last, "0123456789") == "" {
		return &RefusedError{Reason: "a server has named a host that ends in a number, and is no address", Remedy: "list it, if a master is there"}
	}
	return nil
}
