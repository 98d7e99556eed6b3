package conn

import (
	"crypto/tls"
	"fmt"
	"time"

	"github.com/redburst/redburst/resp"
)

// Credentials are what a master asks for before it serves a connection.
type Credentials struct {
	Username string // empty for the user "default"
	Password Secret
	// Until is when they end, by the wall clock. The zero Time means never. It is for
	// credentials of [Options.Credentials]: whoever keeps a connection renews them before.
	Until time.Time
	// TLS, if set, goes before [Options.TLS], also with those that are asked where the master is: so that certificates,
	// too, can change while a client lives. Whether TLS is spoken is not decided here.
	TLS *tls.Config
}

// Format prints the credentials without the password, whatever the verb is.
func (c Credentials) Format(s fmt.State, _ rune) {
	fmt.Fprintf(s, "{username %q, password withheld", c.Username)
	if !c.Until.IsZero() {
		fmt.Fprintf(s, ", until %s", c.Until.Format(time.RFC3339))
	}
	fmt.Fprint(s, "}")
}

// none reports whether there is nothing to tell a master.
func (c Credentials) none() bool { return c.Username == "" && c.Password.IsZero() }

// auth is the AUTH command. Without a username it is that of servers before Redis 6, which
// have no users; later ones take it for the user "default".
func (c Credentials) auth() []string {
	if c.Username == "" {
		return []string{"AUTH", c.Password.Reveal()}
	}
	return []string{"AUTH", c.Username, c.Password.Reveal()}
}

// A Renewal tells a master new credentials on a connection that it serves. Append has the
// commands, and Take takes the replies. If the master refuses the credentials, the connection
// goes on with those that it has.
//
// Redis 8 and Valkey 8 drop the reply to a refused AUTH while they have something else to
// write to the connection: the reply to a command before it, or a push. Later replies would
// then be taken for those of other commands. So write a Renewal only when the master owes no
// reply. A push can come at any time, but only over RESP3. There a Renewal sends HELLO after AUTH.
// The reply to HELLO is a map: if the map comes first, the reply to AUTH was dropped. Redis 6.0
// refuses HELLO to a user without that right, which does no harm. Other commands may be written
// behind a Renewal without waiting for its replies.
//
// A server before Redis 6 has one password and no users. A wrong password ends what a connection
// may do there, and a connection that has given the right one is not asked again, even if the
// password is changed. So such a server is told nothing.
type Renewal struct {
	of          *Conn
	credentials Credentials
	idle        bool // nothing is to be told
	hello       bool // HELLO follows AUTH
	answered    bool // AUTH was
	err         error
}

// Renewal returns a Renewal for this connection.
func (c *Conn) Renewal(with Credentials) *Renewal {
	r := &Renewal{of: c, credentials: with, hello: c.server.Proto >= 3}
	// With a username AUTH does no harm where there are no users: that is a syntax error.
	r.idle = with.none() || with.Username == "" && !c.server.hasUsers()
	return r
}

// Append appends the commands to p and returns the extended slice. It appends nothing if there is
// neither a username nor a password, or if the server has no users. Then there are no replies
// either.
func (r *Renewal) Append(p []byte) []byte {
	if r.idle {
		return p
	}
	r.of.mu.Lock()
	r.of.told = [...]Secret{r.credentials.Password, r.of.told[0]}
	r.of.mu.Unlock()
	p = resp.AppendCommand(p, r.credentials.auth()...)
	if r.hello {
		p = resp.AppendCommand(p, "HELLO", "3")
	}
	return p
}

// Take takes the next reply. more says that there are more to come. ok is false if this cannot be
// a reply to the commands. Then replies and commands do not match any more, and the connection
// must be closed.
func (r *Renewal) Take(reply resp.Value) (more, ok bool) {
	hello := r.hello && reply.Kind() == resp.Map
	switch {
	case r.answered: // and this is the reply to HELLO
		return false, hello || ErrorCode(reply) == "NOPERM"
	case hello:
		r.err = &RefusedError{Reason: "AUTH: the server refused, and dropped the reply that says why", Remedy: remedyAuth}
		return false, true
	case reply.IsError():
		h := handshake{credentials: r.credentials}
		r.err = h.replyError("AUTH", reply)
	case !reply.Is("OK"):
		return false, false
	}
	r.answered = true
	return r.hello, true
}

// Err returns why the master has refused the credentials, or nil if it has taken them. It is
// valid when no more replies are to come. The error is a [*RefusedError] if the master will say
// the same next time. Its text holds no password.
func (r *Renewal) Err() error { return r.err }

// Format prints the credentials without the password, whatever the verb is.
func (r Renewal) Format(s fmt.State, verb rune) { r.credentials.Format(s, verb) }
