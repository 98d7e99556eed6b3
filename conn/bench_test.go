package conn_test

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/resp"
)

// roundTrip is a SET as a lock sends it, from the write to the reply.
type roundTrip struct {
	c       *conn.Conn
	p       *conn.Poller
	command []byte
}

func newRoundTrip(tb testing.TB, c *conn.Conn) *roundTrip {
	p := newPoller(tb)
	require.NoError(tb, p.Add(c, 1, conn.Readable))
	return &roundTrip{c, p, resp.AppendCommand(nil, "SET", "lock:bench", "0123456789abcdef0123", "NX", "PX", "10000")}
}

func (r *roundTrip) do() bool {
	if _, err := r.c.Send(r.command); err != nil {
		return false
	}
	for {
		if _, err := r.p.Wait(clock.Now() + 500*time.Millisecond); err != nil {
			return false
		}
		if _, err := r.c.Receive(); err != nil {
			return false
		}
		v, err := r.c.Next()
		if err == nil {
			return v.Is("OK") || v.IsNull()
		}
		if err != resp.ErrNeedMore {
			return false
		}
	}
}

func BenchmarkRoundTrip(b *testing.B) {
	a := newAuthority(b)
	m, secure := startTLS(b, a)
	for _, bb := range []struct{ name, addr string }{
		{"tcp", m.addr()}, {"unix", "unix://" + m.socket}, {"tls", "rediss://" + secure},
	} {
		b.Run(bb.name, func(b *testing.B) {
			opt := conn.Options{}
			if bb.name == "tls" {
				opt.TLS = &tls.Config{RootCAs: a.roots}
			}
			r := newRoundTrip(b, dial(b, bb.addr, opt))
			b.ReportAllocs()
			for b.Loop() {
				if !r.do() {
					b.Fatal("a round trip failed")
				}
			}
		})
	}
}

func BenchmarkDial(b *testing.B) {
	m := start(b)
	addr := parse(b, m.addr())
	for b.Loop() {
		c, err := conn.Dial(b.Context(), addr, conn.Options{Scripts: []string{oneScript}})
		require.NoError(b, err)
		c.Abort()
	}
}
