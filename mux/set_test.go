package mux_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/mux"
)

func TestSetHasWhatWasPutIn(t *testing.T) {
	t.Parallel()
	var s mux.Set
	for i := range 64 {
		require.False(t, s.Has(i))
		s = s.With(i).With(i)
		require.True(t, s.Has(i))
		require.Equal(t, i+1, s.Len())
	}
	require.Equal(t, 63, s.Without(7).Without(7).Len())
	require.False(t, s.Without(7).Has(7))
}
