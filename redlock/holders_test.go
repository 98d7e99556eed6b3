package redlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHoldersAreDescribed(t *testing.T) {
	const other = "redsync-style-token="
	s := time.Second
	for want, holders := range map[string][]Holder{
		"": {{}, {Err: errFake}, {}},
		"held by svc-a@host-7:311 on 4 of 5 masters, 8.0 s left": {
			{Token: svcA, TTL: 9 * s}, {Token: svcA, TTL: 7 * s}, {Token: svcA, TTL: 8 * s}, {Token: svcA, TTL: 9 * s}, {Token: other, TTL: s}},
		"held by svc-a@host-7:311 on at least 2 of 3 masters, 8.0 s left": {
			{Token: svcA, TTL: 9 * s}, {Err: errFake}, {Token: svcA, TTL: 8 * s}},
		"held by somebody without a name on 1 of 1 masters, 1.0 s left":     {{Token: other, TTL: s}},
		"held by somebody without a name on 1 of 1 masters, without expiry": {{Token: other, TTL: -1}},
	} {
		require.Equal(t, want, leading(holders).String())
	}
}
