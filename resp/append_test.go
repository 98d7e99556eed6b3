package resp_test

import (
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/resp"
)

func TestAppendWritesTheWireFormat(t *testing.T) {
	t.Parallel()
	digits, _ := new(big.Int).SetString("-123456789012345678901234567890", 10)
	for want, got := range map[string][]byte{
		"+OK\r\n":                              resp.AppendSimpleString(nil, "OK"),
		"+a  b\r\n":                            resp.AppendSimpleString(nil, "a\r\nb"),
		"-ERR x\r\n":                           resp.AppendError(nil, "ERR x"),
		"-ERR x +OK \r\n":                      resp.AppendError(nil, "ERR x\n+OK\r"),
		":-12\r\n":                             resp.AppendInt(nil, -12),
		"$3\r\nfoo\r\n":                        resp.AppendBulk(nil, []byte("foo")),
		"$0\r\n\r\n":                           resp.AppendBulk(nil, nil),
		"$4\r\na\r\nb\r\n":                     resp.AppendBulkString(nil, "a\r\nb"),
		"$10\r\n0123456789\r\n":                resp.AppendBulkString(nil, "0123456789"),
		"$-1\r\n":                              resp.AppendNullBulk(nil),
		"*-1\r\n":                              resp.AppendNullArray(nil),
		"_\r\n":                                resp.AppendNull(nil),
		"#t\r\n":                               resp.AppendBool(nil, true),
		"#f\r\n":                               resp.AppendBool(nil, false),
		",1.5\r\n":                             resp.AppendDouble(nil, 1.5),
		",-0\r\n":                              resp.AppendDouble(nil, math.Copysign(0, -1)),
		",1e+100\r\n":                          resp.AppendDouble(nil, 1e100),
		",inf\r\n":                             resp.AppendDouble(nil, math.Inf(1)),
		",-inf\r\n":                            resp.AppendDouble(nil, math.Inf(-1)),
		",nan\r\n":                             resp.AppendDouble(nil, math.NaN()),
		"(-123456789012345678901234567890\r\n": resp.AppendBigNumber(nil, digits),
		"!5\r\nE\r\n x\r\n":                    resp.AppendBulkError(nil, "E\r\n x"),
		"=7\r\ntxt:abc\r\n":                    resp.AppendVerbatim(nil, "txt", "abc"),
		"*0\r\n":                               resp.AppendArray(nil, 0),
		"*9\r\n":                               resp.AppendArray(nil, 9),
		"*10\r\n":                              resp.AppendArray(nil, 10),
		"%1000000\r\n":                         resp.AppendMap(nil, 1_000_000),
		"~3\r\n":                               resp.AppendSet(nil, 3),
		">2\r\n":                               resp.AppendPush(nil, 2),
		"|1\r\n":                               resp.AppendAttribute(nil, 1),
		"before*1\r\n$4\r\nPING\r\n":           resp.AppendCommand([]byte("before"), "PING"),
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
	require.Panics(t, func() { resp.AppendMap(nil, math.MinInt) })
	require.Panics(t, func() { resp.AppendPush(nil, 0) })
	require.Panics(t, func() { resp.AppendPush(nil, -1) })
	require.Panics(t, func() { resp.AppendVerbatim(nil, "text", "abc") })
	require.Panics(t, func() { resp.AppendVerbatim(nil, "", "abc") })
	require.PanicsWithValue(t, "resp: no big number", func() { resp.AppendBigNumber(nil, nil) })
}

func TestAppendDoesNotReallocateWhereThereIsRoom(t *testing.T) {
	t.Parallel()
	dst := make([]byte, 3, 100)
	got := resp.AppendCommand(dst, "SET", strings.Repeat("k", 20), "v")
	require.Same(t, &dst[0], &got[0])
}
