package mux_test

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	tidwall "github.com/tidwall/resp"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
)

// The connection to a master that hangs is reset. Closed in order it would have the system
// go on sending what the master has not taken yet: it would do, when it thaws, all that was
// long given up and undone. Of a Mux that is closed all arrives.
func TestConnectionOfAHungMasterIsReset(t *testing.T) {
	for name, c := range map[string]struct {
		stall time.Duration
		end   func(m *mux.Mux)
		want  error
	}{
		"hung": {50 * time.Millisecond, func(m *mux.Mux) {
			eventually(t, "it is given up", func() bool { return m.Masters()[0].Connects == 2 })
		}, syscall.ECONNRESET},
		"closed": {patience, func(m *mux.Mux) { require.NoError(t, m.Close()) }, io.EOF},
	} {
		t.Run(name, func(t *testing.T) {
			frozen, ended := make(chan struct{}), make(chan error, 1)
			thaw := sync.OnceFunc(func() { close(frozen) })
			var connects atomic.Int64
			addr := conntest.Listen(t, func(peer net.Conn) {
				first := connects.Add(1) == 1
				commands := tidwall.NewReader(peer)
				for {
					v, _, err := commands.ReadValue()
					if err != nil {
						return
					}
					var args []string
					for _, a := range v.Array() {
						args = append(args, a.String())
					}
					reply, _ := new(fakeMaster).handshake(args)
					if reply == "" && first {
						break
					}
					io.WriteString(peer, reply)
				}
				<-frozen
				for buf := make([]byte, 1<<16); ; {
					if _, err := peer.Read(buf); err != nil {
						ended <- err
						return
					}
				}
			})
			t.Cleanup(thaw)
			m := open(t, mux.Config{Masters: []string{addr}, StallTime: c.stall})
			fill(m) // its buffers, and ours
			c.end(m)
			thaw()
			require.ErrorIs(t, conntest.Soon(t, "it has read all", ended), c.want)
		})
	}
}
