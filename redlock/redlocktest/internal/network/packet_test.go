//go:build linux

package network

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatIsNoPacketIsLeftAlone(t *testing.T) {
	whole := segment(netip.MustParseAddrPort("10.99.0.1:1"), netip.MustParseAddrPort("10.99.0.2:2"), 3, 4, flagACK)
	p, ok := parse(whole)
	require.True(t, ok)
	require.Equal(t, "10.99.0.1:1 10.99.0.2:2", p.from.String()+" "+p.to.String())
	require.Equal(t, []uint32{3, 4, 0}, []uint32{p.seq(), p.ack(), p.length()})
	for size := range whole {
		_, ok := parse(whole[:size])
		require.False(t, ok, size)
	}
	version6 := append([]byte{6 << 4}, whole[1:]...)
	_, ok = parse(version6)
	require.False(t, ok)
}

func TestAResetIsNotAnswered(t *testing.T) {
	from, to := netip.MustParseAddrPort("10.99.0.1:1"), netip.MustParseAddrPort("10.99.0.2:2")
	p, ok := parse(segment(from, to, 1, 0, flagRST))
	require.True(t, ok)
	require.Nil(t, p.reply())
}
