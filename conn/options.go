package conn

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/redburst/redburst/resp"
)

// defaultDialTimeout is the [Options.DialTimeout] of an Options that sets none.
const defaultDialTimeout = time.Second

// Options says how [Dial] reaches a master. The zero value is ready for use. Dial changes
// nothing in it, so one Options serves any number of masters at once.
type Options struct {
	// TLS, if set, is used for every master that is not on a Unix socket, whatever its
	// scheme. If it is nil, masters with rediss:// or sentinels:// speak TLS with the
	// system's roots. ServerName defaults to the host of the address. MinVersion is at
	// least TLS 1.2.
	TLS *tls.Config

	// Username and Password are used for an address that has no credentials.
	Username string
	Password Secret

	// SentinelUsername and SentinelPassword are sent to those sentinels of an address that
	// demand credentials. No other credentials are sent to a sentinel. If the sentinels have
	// the master's password, give it here, too.
	SentinelUsername string
	SentinelPassword Secret

	// TrustAnySentinel has Dial believe a minority of the sentinels if no majority names the
	// same master and no master is known ([Address.WithHint]). Of the masters that those who
	// answer name, it takes that of the latest election. So a client can start while half of
	// the sentinels or more are down. This gives up what the majority is for: one sentinel that
	// is wrong or hostile can then lead Dial to any server. That server is shown the
	// credentials and serves as the master.
	TrustAnySentinel bool

	// ClusterKey says which slot of a cluster the keys are in, for the address of a cluster: it is
	// the beginning of all keys, and has their hash tag, as {locks}: has. Dial and [FollowSlot] ask
	// for the key of this name (GET) to learn who has the slot. It should not exist.
	ClusterKey string

	// Witness, if set, is a key that says since when the master has forgotten nothing. Dial reads it, and has the
	// master tell of its next change if Tracking is set: see [Server.Witness]. It writes nothing.
	Witness string

	// Credentials, if set, is called by every Dial, with the master's [Address.String]. What it returns
	// is for the master only, and overrides Username, Password and the address. It must return when its
	// context ends. Several goroutines may call it at once. [Conn.CredentialsEnd] returns its Until.
	// [FollowGroup] and [FollowSlot] call it whenever they connect, if they need it.
	Credentials func(ctx context.Context, master string) (Credentials, error)

	// ClientName is what CLIENT LIST shows on the master. It may hold printable ASCII
	// without spaces; anything else is refused. Empty: none is set.
	ClientName string

	// Dialer, if set, makes each connection, also those to sentinels and nodes of a cluster. The network is "tcp" or
	// "unix", the address a host and port, or a path, as it was given or named: no name is looked up, so another
	// spelling of a place is another place, and [Conn.RemoteAddr] is the address that was asked for. It must
	// return when its context ends, and its connection must outlive that. Several goroutines may call it at once.
	//
	// Dial owns what it returns. A *net.TCPConn or *net.UnixConn is used as a socket of Dial's own is: Dial takes its
	// descriptor, and closes it. Any other is read and written by two goroutines, and Close and Abort do not wait
	// for its Close. Its Close must end its Read and its Write. TLS is spoken over it, see TLS. Its errors have the
	// Op "connect", "read" or "write", and are never [ErrNoListener], [ErrRefused], [ErrNotMaster] or
	// [ErrUnanswered]: they are of whoever stands in between. A link-local address, or a number in its place, that only a
	// server has named is refused before Dialer is asked; what a name leads to is for Dialer to judge.
	Dialer func(ctx context.Context, network, address string) (net.Conn, error)

	// DialTimeout bounds a whole Dial: credentials, sentinels, name lookup, connect, TLS
	// and handshake. Zero or less: 1 s.
	DialTimeout time.Duration

	// Patience is for how much longer Dial waits for the answers of a server that has taken the
	// connection (TLS and handshake). A server at its limit takes up connections one after the
	// other, and one that was given up costs it as much as another. Zero or less: not at all.
	Patience time.Duration

	// OnPatience, if set, is called when the DialTimeout has passed and Dial goes on waiting: with
	// the server's host:port or path, and the error that Dial would have returned. It must not block.
	OnPatience func(endpoint string, err error)

	// Scripts are loaded into the master's cache (SCRIPT LOAD) in the handshake, so that
	// EVALSHA finds them.
	Scripts []string

	// Tracking asks for CLIENT TRACKING ON OPTIN, which needs RESP3. Dial also accepts a
	// master that refuses it; [Server.Missing] then says so.
	Tracking bool

	// Probe finds out which of the [Commands] the server has, by trying each without
	// arguments: see [Server.Commands].
	Probe bool

	// Limits bound each frame from the master. One that exceeds them is skipped to its end, and the
	// connection lives: others may choose what a key holds, and how long its name is. If Limits.Skip is
	// zero, it is 1 GiB. A longer frame ends the connection.
	Limits resp.Limits

	// Wrap, if set, is called for each connection. Its result replaces the byte stream to the
	// master with that address, below TLS. It is for tests that need a bad network: see package
	// conntest. Read and Write of the result may be called at the same time. They must not
	// block, and return (0, nil) if nothing can be read or written now. If Write returns less
	// than it was given, it is offered the rest when the socket is writable.
	Wrap func(addr string, stream io.ReadWriter) io.ReadWriter
}

// Format prints the options without the credentials, whatever the verb is.
func (o Options) Format(s fmt.State, _ rune) {
	secret := ""
	if !o.Password.IsZero() || !o.SentinelPassword.IsZero() || o.Credentials != nil {
		secret = ", credentials withheld"
	}
	fmt.Fprintf(s, "{client name %q, dial timeout %v, %d scripts, TLS %t, tracking %t%s}",
		o.ClientName, o.dialTimeout(), len(o.Scripts), o.TLS != nil, o.Tracking, secret)
}

// CredentialsFor returns what Dial tells the master of an address without a Credentials function: the address's own, or
// Username and Password.
func (o *Options) CredentialsFor(a Address) Credentials {
	if a.credentials {
		return Credentials{Username: a.username, Password: a.password}
	}
	return Credentials{Username: o.Username, Password: o.Password}
}

func (o *Options) dialTimeout() time.Duration {
	if o.DialTimeout > 0 {
		return o.DialTimeout
	}
	return defaultDialTimeout
}

// WithoutWitness says, for [Server.Missing], that the witness was refused, and which right its user lacks. said is the
// server's answer.
func (o *Options) WithoutWitness(said string) string {
	return fmt.Sprintf("since when it has forgotten nothing: %s (the user needs ~%s and +eval)", said, o.Witness)
}
