//go:build linux

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPulseKnowsWhenTheProcessWasStopped(t *testing.T) {
	var p pulse
	p.beat(2 * ms)
	p.beat(4 * ms)
	require.False(t, p.stoppedSince(1*ms, 14*ms))
	require.True(t, p.stoppedSince(1*ms, 15*ms), "it stands still")
	p.beat(15 * ms)
	require.True(t, p.stoppedSince(15*ms, 15*ms))
	require.False(t, p.stoppedSince(16*ms, 20*ms), "it goes on")
	p.beat(17 * ms)
	require.True(t, p.stoppedSince(4*ms, 20*ms))
	require.False(t, p.stoppedSince(16*ms, 20*ms))
}
