//go:build linux && !redburst_portable

package mux_test

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
)

// Two masters decide each operation before the driver comes to what the third has sent. That
// one is judged all the same, after it has been read: by the age of the reply that it owes. What was
// written is ready in that order only where nobody reads ahead.
func TestMasterThatNobodyWaitsForIsReadAndJudged(t *testing.T) {
	t.Parallel()
	const stall = 50 * time.Millisecond
	for name, c := range map[string]struct {
		sends [5]string // the third, each time that it is asked and the two have answered
		want  mux.Phase
	}{
		"only pushes":  {[5]string{push, push, push, push, push}, mux.Stalled},
		"just in time": {[5]string{"", "", "", "", strings.Repeat(":1\r\n", 5)}, mux.Up},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var fakes []*fakeMaster
			var addrs []string
			for i := range 3 {
				// What is written to a Unix socket can be read when the write returns: so it is ready in that order.
				path := filepath.Join(t.TempDir(), "s")
				l, err := net.Listen("unix", path)
				require.NoError(t, err)
				fakes, addrs = append(fakes, newFakeOn(t, l, fmt.Sprint("m", i), silent)), append(addrs, "unix://"+path)
			}
			var sends atomic.Pointer[string]
			m := open(t, mux.Config{Masters: addrs, StallTime: stall, BackoffMin: patience, BackoffMax: patience, Conn: conn.Options{
				Wrap: func(master string, s io.ReadWriter) io.ReadWriter {
					if master != addrs[2] {
						return s
					}
					return wrapped{s, func(p []byte, write func([]byte) (int, error)) (int, error) {
						n, err := write(p)
						if text := sends.Swap(nil); text != nil {
							fakes[0].send(t, ":1\r\n")
							fakes[1].send(t, ":1\r\n")
							fakes[2].send(t, *text)
						}
						return n, err
					}}
				}}})
			waitUp(t, m, 3)
			m.HoldTick()
			for _, text := range c.sends { // it owes a reply, is suspected, and is given up, each by the clock of the one before
				sends.Store(&text)
				op := vote("a")
				require.NoError(t, m.Do(t.Context(), op))
				require.True(t, granted(op))
				time.Sleep(stall + stall/4) // nobody drives
			}
			s := m.Masters()[2]
			require.Equal(t, c.want, s.Phase)
			if c.want == mux.Stalled {
				require.ErrorIs(t, s.Err, mux.ErrStalled)
			}
		})
	}
}
