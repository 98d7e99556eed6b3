package resp_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCopyOfIteratorGoesOnFromTheSamePlace(t *testing.T) {
	t.Parallel()
	it := read(t, "*3\r\n:1\r\n:2\r\n:3\r\n").Elems()
	it.Next()
	second := it
	a, _ := it.Next()
	b, _ := second.Next()
	require.Equal(t, a, b)
	c, ok := it.Next()
	require.True(t, ok)
	n, _ := c.Int()
	require.Equal(t, int64(3), n)
	_, ok = it.Next()
	require.False(t, ok)
	_, ok = it.Next()
	require.False(t, ok)
}
