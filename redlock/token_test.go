package redlock

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const svcA = "svc-a@host-7:311/AAAAAAAAAAAAAAAAAAAAAAAAAAA"

func TestTokensAreFreshAndPrintable(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		token := string(appendToken(nil, ""))
		raw, err := base64.RawURLEncoding.DecodeString(token)
		require.NoError(t, err)
		require.Len(t, raw, tokenBytes)
		require.Len(t, token, tokenChars)
		require.False(t, seen[token])
		seen[token] = true
	}
}

func TestTokenNamesItsOwner(t *testing.T) {
	for _, owner := range []string{"svc-a@host-7:311", "x", "with/slash/es", ""} {
		require.Equal(t, owner, ownerOf(string(appendToken(nil, owner))))
	}
	require.Equal(t, "svc-a@host-7:311", ownerOf(svcA))
	for _, foreign := range []string{"", "?", "c2hvcnQ=", "ab/cd", "4yBl3z/abc+def==", strings.Repeat("x", 40)} {
		require.Empty(t, ownerOf(foreign), "another library's token")
	}
}

func TestOwnerIsPrintable(t *testing.T) {
	for _, bad := range []string{"with space", "new\nline", "nul\x00", "ünï", strings.Repeat("x", maxOwner+1)} {
		require.Error(t, checkOwner(bad), bad)
	}
	require.NoError(t, checkOwner(defaultOwner("svc")))
	require.True(t, strings.HasPrefix(defaultOwner("svc"), "svc@"))
	require.NoError(t, checkOwner(defaultOwner("näme")))
}
