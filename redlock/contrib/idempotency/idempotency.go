// Package idempotency makes requests that a client repeats take effect once, by the header of the IETF
// draft "The Idempotency-Key HTTP Header Field". A client that got no answer sends its request again
// with the same key, to any process of the service. The first request that has the key runs, under a
// lock on the masters. Those that come meanwhile are told so, and those that come later get its answer.
//
//	handler := idempotency.Handler(orders, idempotency.Config{Client: client, Store: store, Scope: account})
//
// # Answers
//
//	400  the key is missing (if it is required) or malformed
//	409  the same key is being worked on; Retry-After says when to come again (of several that come
//	     in the same moment, all can be told so)
//	413  the body is too large to be compared
//	422  the key was used for another request: another method, target or body
//	503  the masters or the store do not answer: nothing was done
//
// Their bodies are those of RFC 9457. Anything else is the handler's own answer, or a repetition of it, which has the header
// Idempotency-Replayed: true. Only POST and PATCH are looked at: other methods are safe to repeat.
//
// # Which answers are stored
//
// An answer below 500 is stored before the client sees it. One of 500 and above is not, nor is a panic:
// the next request with that key runs again. So a handler that has had an effect must not answer 500.
//
// A handler's context ends when the lock is lost or the client is gone. One that then returns without
// an answer has answered 503, and nothing is stored.
//
// The lock has a fence ([redlock.FenceFrom]), and the [Store] compares it. So a request that was paused
// for longer than its lock was valid stores nothing once a later one has begun, and is answered by
// 409. Its other effects must be refused by whatever they go to, by the same fence.
//
// # Limits
//
// The answer is kept in memory until the handler has returned. So it cannot be flushed or hijacked,
// and has no trailers. An answer above MaxAnswer fails its writer with [ErrTooLarge]. The client, and
// each repetition, then gets a 507: the request has taken effect, so it must not run again.
package idempotency

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/redburst/redburst/redlock"
)

// ErrTooLarge is what a handler is told that writes more than Config.MaxAnswer.
var ErrTooLarge = errors.New("idempotency: the answer is larger than what is stored")

// Config says how keys are locked and answers stored. Client and Store are needed.
type Config struct {
	Client *redlock.Client
	Store  Store
	// Scope names whose key it is, such as the account that was authenticated. Without it, whoever
	// sends another's key and request gets the other's answer.
	Scope func(r *http.Request) string
	// Prefix begins the names of locks and answers. Empty means "lock:idempotency:".
	Prefix string
	// TTL is that of the lock, which is kept alive while the handler runs. Zero means 10 s.
	TTL time.Duration
	// Required refuses requests without a key. They are passed on otherwise.
	Required bool
	// MaxRequest and MaxAnswer are the most bytes of a request's body and of an answer's. Zero means 1 MiB.
	MaxRequest, MaxAnswer int64
	// Error, if set, is told of errors of the masters and of the store.
	Error func(r *http.Request, err error)
}

// Handler returns the middleware in front of a handler.
func Handler(next http.Handler, c Config) http.Handler {
	c.MaxRequest, c.MaxAnswer = cmp.Or(c.MaxRequest, 1<<20), cmp.Or(c.MaxAnswer, 1<<20)
	c.Prefix, c.TTL = cmp.Or(c.Prefix, "lock:idempotency:"), cmp.Or(c.TTL, 10*time.Second)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		values := r.Header.Values("Idempotency-Key")
		if r.Method != http.MethodPost && r.Method != http.MethodPatch || len(values) == 0 && !c.Required {
			next.ServeHTTP(w, r)
			return
		}
		key := parseKey(values)
		if key == "" {
			refuse(w, http.StatusBadRequest, "Idempotency-Key is missing or malformed")
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, c.MaxRequest))
		if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
			refuse(w, http.StatusRequestEntityTooLarge, "The body is too large for a request with an Idempotency-Key")
			return
		} else if err != nil {
			refuse(w, http.StatusBadRequest, "The body cannot be read")
			return
		}
		scope := ""
		if c.Scope != nil {
			scope = c.Scope(r)
		}
		id := fmt.Sprintf("%s%x", c.Prefix, sha256.Sum256(fmt.Appendf(nil, "%d:%s%s", len(scope), scope, key)))
		r.Body = io.NopCloser(bytes.NewReader(body))
		c.answer(w, r, next, id, fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%s %s\n%s", r.Method, r.URL.RequestURI(), body))))
	})
}

// answer has the request answered, by the handler or from the store.
func (c *Config) answer(w http.ResponseWriter, r *http.Request, next http.Handler, id, fingerprint string) {
	replayed := true
	a, err := c.Store.Load(r.Context(), id, 0)
	if a == nil && err == nil {
		// The lock is kept until the handler has returned, even if the client is gone.
		err = c.Client.Do(context.WithoutCancel(r.Context()), id, c.TTL, func(held context.Context) (err error) {
			fence := redlock.FenceFrom(held)
			if a, err = c.Store.Load(held, id, fence); a != nil || err != nil {
				return err
			}
			ctx, cancel := context.WithCancelCause(held)
			defer cancel(nil)
			defer context.AfterFunc(r.Context(), func() { cancel(context.Cause(r.Context())) })()
			answer := run(next, r.WithContext(ctx), c.MaxAnswer)
			answer.Fingerprint = fingerprint
			if answer.Status < 500 || answer.Status == http.StatusInsufficientStorage {
				err = c.Store.Save(context.WithoutCancel(held), id, fence, answer)
			}
			if !errors.Is(err, ErrStale) {
				a, replayed = answer, false
			}
			return err
		}, redlock.WithFence(), redlock.WithWait(0))
	}
	busy := errors.Is(err, redlock.ErrHeld) || errors.Is(err, ErrStale)
	if err != nil && !busy && c.Error != nil {
		c.Error(r, err)
	}
	switch {
	case a != nil && a.Fingerprint != fingerprint:
		refuse(w, http.StatusUnprocessableEntity, "Idempotency-Key was used for another request")
	case a != nil:
		maps.Copy(w.Header(), a.Header)
		if replayed {
			w.Header().Set("Idempotency-Replayed", "true")
		}
		w.WriteHeader(a.Status)
		_, _ = w.Write(a.Body) // whoever has gone comes again
	case busy:
		refuse(w, http.StatusConflict, "A request with this Idempotency-Key is being worked on")
	default:
		refuse(w, http.StatusServiceUnavailable, "Nothing was done")
	}
}

// parseKey returns the key, in quotes as the draft has it or without. It is empty if it is malformed.
func parseKey(values []string) string {
	if len(values) != 1 {
		return ""
	}
	key := strings.TrimSpace(values[0])
	if n := len(key); n >= 2 && key[0] == '"' && key[n-1] == '"' {
		key = key[1 : n-1]
	}
	bad := func(c rune) bool { return c <= ' ' || c > '~' || strings.ContainsRune(`",;\`, c) }
	if len(key) > 255 || strings.ContainsFunc(key, bad) {
		return ""
	}
	return key
}

// refuse answers as RFC 9457 says.
func refuse(w http.ResponseWriter, status int, title string) {
	w.Header().Set("Content-Type", "application/problem+json")
	if status == http.StatusConflict || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"status":%d,"title":%q}`+"\n", status, title)
}
