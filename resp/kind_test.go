package resp_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/resp"
)

func TestKindsHaveNames(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for k := range 256 {
		if name := resp.Kind(k).String(); name != "no kind" {
			require.False(t, names[name], name)
			names[name] = true
			require.True(t, bytes.ContainsRune([]byte("+-:$*_#,(!=%~>|"), rune(k)))
		}
	}
	require.Len(t, names, 15)
}
