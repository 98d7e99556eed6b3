package resp_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/resp"
)

func TestAppendWritesTheWireFormat(t *testing.T) {
	t.Parallel()
	for want, got := range map[string][]byte{
		"-ERR x\r\n":                 resp.AppendError(nil, "ERR x"),
		"-ERR x +OK \r\n":            resp.AppendError(nil, "ERR x\n+OK\r"),
		"$3\r\nfoo\r\n":              resp.AppendBulk(nil, []byte("foo")),
		"$0\r\n\r\n":                 resp.AppendBulk(nil, nil),
		"$4\r\na\r\nb\r\n":           resp.AppendBulkString(nil, "a\r\nb"),
		"$10\r\n0123456789\r\n":      resp.AppendBulkString(nil, "0123456789"),
		"*0\r\n":                     resp.AppendArray(nil, 0),
		"*9\r\n":                     resp.AppendArray(nil, 9),
		"*10\r\n":                    resp.AppendArray(nil, 10),
		"before*1\r\n$4\r\nPING\r\n": resp.AppendCommand([]byte("before"), "PING"),
		"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$1\r\nv\r\n": resp.AppendCommand(nil, "SET", "", "v"),
	} {
		require.Equal(t, want, string(got))
	}
}

func TestAppendBulkIntAgreesWithItsLength(t *testing.T) {
	t.Parallel()
	for n := int64(1); n > 0 && n < math.MaxInt64/10; n *= 10 {
		for _, n := range []int64{n - 1, n, n + 1, -n + 1, -n, -n - 1} {
			v := read(t, string(resp.AppendBulkInt(nil, n)))
			require.Equal(t, resp.BulkString, v.Kind())
			got, ok := read(t, ":"+string(v.Bytes())+"\r\n").Int()
			require.True(t, ok)
			require.Equal(t, n, got)
		}
	}
	require.Equal(t, "$20\r\n-9223372036854775808\r\n", string(resp.AppendBulkInt(nil, math.MinInt64)))
	require.Equal(t, "$19\r\n9223372036854775807\r\n", string(resp.AppendBulkInt(nil, math.MaxInt64)))
}

func TestAppendRefusesWhatCannotBeWritten(t *testing.T) {
	t.Parallel()
	require.Panics(t, func() { resp.AppendArray(nil, -1) })
}

func TestAppendDoesNotReallocateWhereThereIsRoom(t *testing.T) {
	t.Parallel()
	dst := make([]byte, 3, 100)
	got := resp.AppendCommand(dst, "SET", strings.Repeat("k", 20), "v")
	require.Same(t, &dst[0], &got[0])
}
