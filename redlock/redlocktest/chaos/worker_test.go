//go:build linux

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A sequence is a lock whose validity is so long, at one look after the other. The last one stays.
type sequence struct {
	mutex
	left   []time.Duration
	looked chan struct{} // is told of each look
}

func (s *sequence) Remaining() time.Duration {
	now := s.left[0]
	if len(s.left) > 1 {
		s.left = s.left[1:]
	}
	s.looked <- struct{}{}
	return now
}

func TestALockThatIsValidAgainIsSeen(t *testing.T) {
	for _, test := range []struct {
		left    []time.Duration
		revived bool
	}{
		{[]time.Duration{ms, 0, 0, 0}, false},
		{[]time.Duration{3 * ms, ms, 2 * ms, ms}, false},
		{[]time.Duration{0, 0, 0, 0}, false},
		{[]time.Duration{0, ms, ms, ms}, true},
		{[]time.Duration{ms, 0, ms, ms}, true},
		{[]time.Duration{ms, 0, ms, 0}, true},
		{[]time.Duration{ms, ms, 0, ms}, true},
	} {
		s := &sequence{left: test.left, looked: make(chan struct{}, 1000)}
		isRevived := (&hold{mutex: s}).watch()
		for range len(test.left) - 1 {
			<-s.looked
		}
		require.Equal(t, test.revived, isRevived(), "%v", test.left)
	}
}
