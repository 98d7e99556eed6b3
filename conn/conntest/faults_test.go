package conntest_test

import (
	"bytes"
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn/conntest"
)

// copyThrough moves text through the faults into a buffer and out of it again, trying
// again while nothing moves, until the end or an error.
func copyThrough(f *conntest.Faults, text string) (got string, calls int, err error) {
	var buffer bytes.Buffer
	s := f.Wrap("", &buffer)
	for left := []byte(text); len(left) > 0 && err == nil; calls++ {
		var n int
		n, err = s.Write(left)
		left = left[n:]
	}
	all := make([]byte, 0, len(text))
	for err == nil && len(all) < len(text) {
		var n int
		n, err = s.Read(all[len(all):cap(all)])
		all = all[:len(all)+n]
		calls++
	}
	return string(all), calls, err
}

func TestFaultsDelayButDoNotChange(t *testing.T) {
	const text = "0123456789"
	got, calls, err := copyThrough(&conntest.Faults{}, text)
	require.NoError(t, err)
	require.Equal(t, text, got)
	require.Equal(t, 2, calls)

	got, calls, err = copyThrough(&conntest.Faults{Most: 1}, text)
	require.NoError(t, err)
	require.Equal(t, text, got)
	require.Equal(t, 2*len(text), calls)

	got, calls, err = copyThrough(&conntest.Faults{Most: 2, Idle: 0.9}, text)
	require.NoError(t, err)
	require.Equal(t, text, got)
	require.Greater(t, calls, len(text))
}

func TestAResetIsAtItsByteAndForGood(t *testing.T) {
	const text = "0123456789"
	for at := range int64(len(text) + 1) {
		f := &conntest.Faults{ResetRead: at + 1}
		got, _, err := copyThrough(f, text)
		require.Equal(t, text[:at], got)
		if at == int64(len(text)) {
			require.NoError(t, err)
			require.Zero(t, f.Resets())
			continue
		}
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.Equal(t, 1, f.Resets())
	}

	var buffer bytes.Buffer
	f := &conntest.Faults{ResetWrite: 4}
	s := f.Wrap("", &buffer)
	n, err := s.Write([]byte(text))
	require.NoError(t, err)
	require.Equal(t, 3, n)
	for _, call := range []func([]byte) (int, error){s.Write, s.Read, s.Write} {
		n, err = call(make([]byte, 1))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.Zero(t, n)
	}
	left, _ := io.ReadAll(&buffer)
	require.Equal(t, "012", string(left))
	require.Equal(t, 1, f.Resets())
}
