package redlocktest

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// nowhere is a host that does not exist.
type nowhere struct{}

func (nowhere) Addr() netip.Addr            { return netip.Addr{} }
func (nowhere) Do(start func() error) error { return start() }

func TestHostsThatDoNotFitAreRefused(t *testing.T) {
	_, err := Run(2, WithHosts(nowhere{}))
	require.ErrorContains(t, err, "there are 1 hosts for 2 masters")
	_, err = Run(1, WithHosts(nowhere{}), WithLinks())
	require.ErrorContains(t, err, "masters on hosts have neither links nor Unix sockets")
	_, err = RunEmbedded(1, WithHosts(nowhere{}))
	require.ErrorContains(t, err, "nor hosts")
	require.ErrorContains(t, groupable(options{hosts: []Host{nowhere{}}}), "leave out WithHosts")
}
