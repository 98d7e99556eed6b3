package resp_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/resp"
	"github.com/redburst/redburst/resp/resptest"
)

func TestLimitsHoldToTheByte(t *testing.T) {
	t.Parallel()
	x := func(n int) string { return strings.Repeat("x", n) }
	for _, tt := range []struct {
		name   string
		limits resp.Limits
		within string
		beyond string
		fault  resp.Fault
		offset int64
	}{
		{"depth", resp.Limits{Depth: 2}, "*1\r\n%1\r\n+k\r\n:1\r\n", "*1\r\n%1\r\n+k\r\n*0\r\n", resp.TooDeep, 12},
		{"depth with an attribute", resp.Limits{Depth: 2}, "*1\r\n|1\r\n+k\r\n:1\r\n*0\r\n", "*1\r\n|1\r\n+k\r\n*0\r\n:1\r\n", resp.TooDeep, 12},
		{"bulk", resp.Limits{Bulk: 100}, "$100\r\n" + x(100) + "\r\n", "$101\r\n", resp.TooLong, 1},
		{"line", resp.Limits{Bulk: 100}, "+" + x(100) + "\r\n", "+" + x(101) + "\r\n", resp.TooLong, 101},
		{"elements", resp.Limits{Elements: 3}, "*3\r\n_\r\n_\r\n_\r\n", "*4\r\n", resp.TooMany, 1},
		{"elements of a map", resp.Limits{Elements: 3}, "%1\r\n_\r\n_\r\n", "%2\r\n", resp.TooMany, 1},
		{"elements at all levels", resp.Limits{Elements: 3}, "*2\r\n*1\r\n_\r\n*0\r\n", "*2\r\n*2\r\n", resp.TooMany, 5},
		{"elements of attributes", resp.Limits{Elements: 4}, "|1\r\n_\r\n_\r\n*1\r\n_\r\n", "|1\r\n_\r\n_\r\n*2\r\n", resp.TooMany, 11},
		{"frame that ends with a line", resp.Limits{Frame: 100}, "*1\r\n+" + x(93) + "\r\n", "*1\r\n+" + x(94) + "\r\n", resp.TooLong, 100},
		{"frame that ends with a bulk", resp.Limits{Frame: 100}, "*1\r\n$89\r\n" + x(89) + "\r\n", "*1\r\n$90\r\n", resp.TooLong, 5},
		{"frame with an attribute", resp.Limits{Frame: 100}, "|0\r\n+" + x(93) + "\r\n", "|0\r\n+" + x(94) + "\r\n", resp.TooLong, 100},
		{"next frame anew", resp.Limits{Frame: 64, Elements: 2}, strings.Repeat("*2\r\n_\r\n_\r\n", 20), "*2\r\n_\r\n_\r\n*3\r\n", resp.TooMany, 11},
		{"least limits", resp.Limits{Bulk: 1, Frame: 1}, "+" + x(61) + "\r\n", "+" + x(62) + "\r\n", resp.TooLong, 64},
		{"least limits of a bulk", resp.Limits{Bulk: 1, Frame: 1}, "$57\r\n" + x(57) + "\r\n", "$58\r\n" + x(58) + "\r\n", resp.TooLong, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, size := range []func() int{resptest.Whole, resptest.Bytewise} {
				got := resptest.Read(resp.NewReader(0, tt.limits), tt.within, size)
				require.Equal(t, resp.ErrNeedMore, got.Err)
				require.Equal(t, int64(len(tt.within)), got.Offset)
				got = resptest.Read(resp.NewReader(0, tt.limits), tt.beyond, size)
				require.Equal(t, error(&resp.SyntaxError{Offset: tt.offset, Fault: tt.fault}), got.Err)
			}
		})
	}
}
