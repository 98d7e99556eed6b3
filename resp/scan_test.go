package resp

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func (r *Reader) checkInvariants(t *testing.T) {
	t.Helper()
	require.LessOrEqual(t, 0, r.start)
	require.LessOrEqual(t, r.start, len(r.buf))
	if r.mid {
		require.LessOrEqual(t, r.start, r.head)
		require.LessOrEqual(t, r.head, r.pos)
		require.LessOrEqual(t, 0, r.seen)
		require.LessOrEqual(t, r.pos+r.seen, len(r.buf))
		for _, left := range r.open {
			require.Positive(t, left)
		}
		require.LessOrEqual(t, len(r.open)-1, r.limits.Depth)
		require.LessOrEqual(t, r.elems, r.limits.Elements)
	}
	require.Equal(t, r.grown, cap(r.buf) > cap(r.initial))
	require.Zero(t, len(r.initial))
}

// The place up to which the reader has looked only moves forward, and is never
// more than a line end away from what arrived. So every byte is looked at once,
// but for the first few of a token and its last two, however small the pieces.
func TestNothingIsScannedTwice(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("x", 1000)
	for _, input := range []string{
		"+" + text + "\r\n",
		"-" + text + "\r\n",
		"(" + strings.Repeat("1", 1000) + "\r\n",
		",1." + strings.Repeat("0", 1000) + "\r\n",
		":-9223372036854775808\r\n",
		"$1000\r\n" + text + "\r\n",
		"=1004\r\ntxt:" + text + "\r\n",
		"*3\r\n$1000\r\n" + text + "\r\n|1\r\n+k\r\n%2\r\n" + strings.Repeat("+"+text+"\r\n", 4) + "$-1\r\n_\r\n",
		strings.Repeat("*1\r\n", 32) + "#t\r\n",
	} {
		r := NewReader(0, Limits{})
		before := int64(0)
		for i := range len(input) {
			r.Advance(copy(r.Free(1), input[i:i+1]))
			r.checkInvariants(t)
			_, err := r.Next()
			r.checkInvariants(t)
			if i == len(input)-1 {
				require.NoError(t, err)
				break
			}
			require.Equal(t, ErrNeedMore, err)
			looked := r.base + int64(r.pos+r.seen)
			require.GreaterOrEqual(t, looked, before)
			before = looked
			if !r.body {
				require.LessOrEqual(t, int64(i+1)-looked, int64(4), "%.40q after %d bytes", input, i+1)
			}
		}
	}
}
