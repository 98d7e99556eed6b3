package script

import (
	"crypto/sha1"
	"fmt"
	"slices"
	"testing"

	"github.com/redburst/redburst/resp"
	"github.com/stretchr/testify/require"
)

func TestAScriptIsCalledByItsHashOrItsText(t *testing.T) {
	before := slices.Clone(Texts)
	defer func() { Texts = before }()
	s := New("return {\n  KEYS[1],\n    ARGV[1]\n}")
	const text = "return {\nKEYS[1],\nARGV[1]\n}"
	require.Equal(t, text, s.Text, "indentation is not sent")
	require.Equal(t, fmt.Sprintf("%x", sha1.Sum([]byte(text))), s.Hash)
	require.Equal(t, text, Texts[len(Texts)-1], "it is loaded when a master is connected")

	for _, keys := range [][]string{nil, {"a"}, {"a", "b c"}} {
		count := fmt.Sprint(len(keys))
		call := func(head ...string) string {
			return string(resp.AppendCommand(nil, append(append(append(head, count), keys...), "x", "y")...))
		}
		args := func(b []byte) string {
			return string(resp.AppendBulkString(resp.AppendBulkString(b, "x"), "y"))
		}
		require.Equal(t, call("EVALSHA", s.Hash), args(s.AppendHash(nil, 2, keys...)))
		require.Equal(t, call("EVAL", s.Text), args(s.AppendText(nil, 2, keys...)))
	}
}
