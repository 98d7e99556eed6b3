package conn

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"time"

	"github.com/redburst/redburst/resp"
)

// defaultDialTimeout is the [Options.DialTimeout] of an Options that sets none.
const defaultDialTimeout = time.Second

// Options says how [Dial] reaches a master. The zero value is ready for use. Dial
// changes nothing in it, so that one Options serves any number of masters at once.
type Options struct {
	// TLS is the configuration for masters that speak TLS. If it is set, every
	// master but those on Unix sockets is spoken to over TLS, whatever its scheme;
	// if it is nil, the rediss:// ones are, with the system's roots. ServerName
	// defaults to the host of the address, MinVersion is at least TLS 1.2.
	TLS *tls.Config

	// Username and Password are used where the address has none of its own.
	Username, Password string

	// SentinelUsername and SentinelPassword are shown to the sentinels of an address
	// that has some, in place of those of the master.
	SentinelUsername, SentinelPassword string

	// Credentials, if set, is asked at every connect and reconnect, and overrides
	// Username, Password and what the address says. It must end with its context,
	// and may be called by several goroutines at once.
	Credentials func(ctx context.Context) (username, password string, err error)

	// ClientName is shown by CLIENT LIST on the master. It may hold neither spaces
	// nor control characters. Empty: none is set.
	ClientName string

	// DialTimeout bounds a whole Dial: credentials, name lookup, connect, TLS and
	// handshake. Zero: 1 s.
	DialTimeout time.Duration

	// Scripts are loaded into the master's cache in the handshake, so that EVALSHA
	// finds them.
	Scripts []string

	// Tracking asks for CLIENT TRACKING ON OPTIN. It needs RESP3; a master
	// that will not is used without, and says so in [Server.Missing].
	Tracking bool

	// Persistence asks whether the master writes every change to disk before it
	// answers (CONFIG GET): see [Server.Durable].
	Persistence bool

	// Limits bound what is accepted from the master.
	Limits resp.Limits

	// Wrap, if set, is put around the byte stream to a master, below TLS. It is
	// there for tests that need a bad network: see package conntest. Its Read
	// and Write may be called at the same time, must not block, and return (0, nil)
	// when nothing can be read or written now; bytes of which Write took only a
	// part are offered again when the socket is writable.
	Wrap func(master string, stream io.ReadWriter) io.ReadWriter
}

// Format prints the options without the credentials, whatever the verb.
func (o Options) Format(s fmt.State, _ rune) {
	secret := ""
	if o.Password != "" || o.SentinelPassword != "" || o.Credentials != nil {
		secret = ", credentials withheld"
	}
	fmt.Fprintf(s, "{client name %q, dial timeout %v, %d scripts, TLS %t, tracking %t%s}",
		o.ClientName, o.dialTimeout(), len(o.Scripts), o.TLS != nil, o.Tracking, secret)
}

func (o *Options) dialTimeout() time.Duration {
	if o.DialTimeout > 0 {
		return o.DialTimeout
	}
	return defaultDialTimeout
}
