package redlock

import (
	"errors"
	"fmt"
	"time"
)

// An Option says how a Mutex differs from others of its client. It is for [Client.NewMutex] and
// [Client.Do], and changes no Mutex that exists.
type Option func(*options)

// options is what the options of one Mutex have come to.
type options struct {
	kind     kind
	token    string // that was handed over; empty if none was
	timeout  time.Duration
	lifetime time.Duration
	invalid  error // what is wrong with them
}

// WithToken makes the Mutex one that holds the lock taken under this token,
// here or in another process ([Mutex.Token]): it can be extended and released.
// Its validity is unknown before the first Extend, and whoever handed it over
// must not use it any more. A token has 1 to 4,096 bytes.
func WithToken(token string) Option {
	return func(o *options) {
		switch {
		case token == "":
			o.invalid = errors.New("the token that was handed over is empty")
		case len(token) > maxToken:
			o.invalid = fmt.Errorf("the token that was handed over has %d bytes, and %d are the most", len(token), maxToken)
			return
		}
		o.token = token
	}
}

// WithRoundTimeout replaces Config.RoundTimeout. It must be above zero.
func WithRoundTimeout(d time.Duration) Option {
	return func(o *options) {
		if d <= 0 {
			o.invalid = fmt.Errorf("round timeout %v is not above zero", d)
		}
		o.timeout = d
	}
}

// WithMaxLifetime makes KeepAlive let go of the lock when it has been held for
// d, so that a holder that hangs does not keep it for ever. d must be above zero.
func WithMaxLifetime(d time.Duration) Option {
	return func(o *options) {
		if d <= 0 {
			o.invalid = fmt.Errorf("maximum lifetime %v is not above zero", d)
		}
		o.lifetime = d
	}
}
