package resp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/resp"
)

func TestFaultsHaveTexts(t *testing.T) {
	t.Parallel()
	texts := map[string]bool{}
	for f := resp.BadKind; f <= resp.TooMany; f++ {
		require.NotContains(t, f.Error(), "no fault")
		require.False(t, texts[f.Error()], f.Error())
		texts[f.Error()] = true
	}
	require.EqualError(t, resp.Fault(0), "resp: no fault")
}
