package redlock

import (
	"fmt"
	"os"
	"strings"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
)

const tokenHint = 6 // bytes at the beginning of a token's secret part by which it is recognized

// redacted takes the secret part of the token out of a master's error, which may quote our
// command: any process that knows a token can release the lock.
func redacted(err error, token []byte) error {
	reply, ok := err.(*mux.ReplyError)
	if !ok {
		return err
	}
	secret := string(token)
	if owner := kind.Owner(secret); owner != "" {
		secret = secret[len(owner)+1:]
	}
	secret = conn.Printable(secret) // as it stands in the message
	if len(secret) < tokenHint {
		return err
	}
	text, found := "", false
	for rest := reply.Message; ; found = true {
		before, after, ok := strings.Cut(rest, secret[:tokenHint]) // it may quote the beginning only
		text += before
		if !ok {
			break
		}
		more := 0
		for more < min(len(after), len(secret)-tokenHint) && after[more] == secret[tokenHint+more] {
			more++
		}
		text += "..."
		rest = after[more:]
	}
	if !found {
		return err
	}
	return &mux.ReplyError{Code: reply.Code, Message: text}
}

// defaultOwner is name@host:pid, or host:pid.
func defaultOwner(name string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	if name != "" {
		name += "@"
	}
	owner := fmt.Sprintf("%s%s:%d", name, host, os.Getpid())
	if kind.CheckOwner(owner) != nil { // the host or the client has a name that tokens cannot have
		return fmt.Sprintf("unknown:%d", os.Getpid())
	}
	return owner
}
