package redlock

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/stretchr/testify/require"
)

const svcA = "svc-a@host-7:311/AAAAAAAAAAAAAAAAAAAAAAAAAAA"

func TestTokensAreFreshAndPrintable(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		token := string(round.AppendToken(nil, ""))
		raw, err := base64.RawURLEncoding.DecodeString(token)
		require.NoError(t, err)
		require.Len(t, raw, round.TokenBytes)
		require.Len(t, token, kind.TokenChars)
		require.False(t, seen[token])
		seen[token] = true
	}
}

func TestTokenNamesItsOwner(t *testing.T) {
	for _, owner := range []string{"svc-a@host-7:311", "x", "with/slash/es", ""} {
		require.Equal(t, owner, kind.Owner(string(round.AppendToken(nil, owner))))
	}
	require.Equal(t, "svc-a@host-7:311", kind.Owner(svcA))
	for _, foreign := range []string{"", "?", "c2hvcnQ=", "ab/cd", "4yBl3z/abc+def==", strings.Repeat("x", 40)} {
		require.Empty(t, kind.Owner(foreign), "another library's token")
	}
}

func TestOwnerIsPrintable(t *testing.T) {
	for _, bad := range []string{"with space", "new\nline", "nul\x00", "ünï", strings.Repeat("x", kind.MaxOwner+1)} {
		require.Error(t, kind.CheckOwner(bad), bad)
	}
	require.NoError(t, kind.CheckOwner(defaultOwner("svc")))
	require.True(t, strings.HasPrefix(defaultOwner("svc"), "svc@"))
	require.NoError(t, kind.CheckOwner(defaultOwner("näme")))
}

// A token of another's can be anything. What looks like an owner in it is none if ours could
// not be so, and nobody prints it.
func TestOwnerThatIsNotPrintableIsNone(t *testing.T) {
	random := strings.Repeat("A", kind.TokenChars)
	for _, hostile := range []string{"\x1b[2J", "\x1b]0;title\x07", "svc\n2026-01-01 lock released", "a b", strings.Repeat("x", kind.MaxOwner+1), "\u202e"} {
		h := Said{Token: NewSecret(hostile + "/" + random), TTL: time.Second}
		require.Empty(t, h.Owner())
		require.Equal(t, "held by somebody without a name on 1 of 1 masters, 1.0 s left", leading(said(1, h)).String())
	}
}

// A token that is handed over is bounded: it goes to every master with every command.
func TestTokenThatIsTooLongIsRefused(t *testing.T) {
	t.Parallel()
	simulated(t, 3, Config{}, func(t *testing.T, c *Client, r *fakeRounds) {
		err := c.CheckMutex("k", ttl, WithToken(strings.Repeat("t", 64<<20)))
		require.ErrorContains(t, err, "has 67108864 bytes, and 4096 are the most")
		require.Less(t, len(err.Error()), 200)
		require.ErrorIs(t, c.NewMutex("k", ttl, WithToken(strings.Repeat("t", kind.MaxToken))).Unlock(t.Context()), ErrNotHeld)
		require.Len(t, r.logs(0), 1)
	})
}

func TestALockNamesTheOwnerThatItIsGiven(t *testing.T) {
	simulated(t, 3, Config{Owner: "client"}, func(t *testing.T, c *Client, r *fakeRounds) {
		long := strings.Repeat("x", kind.MaxOwner)
		for _, opts := range [][]Option{nil, {WithFence()}, {WithKeys("j")}, {WithMinHold(time.Second)}} {
			for value, want := range map[string]string{"10.0.0.7:8080": "10.0.0.7:8080", "http://a/b": "http://a/b", long: long} {
				m := c.NewMutex("k", ttl, append(opts, WithOwner(value))...)
				require.NoError(t, m.TryLock(t.Context()))
				require.Equal(t, want, kind.Owner(m.Token()))
				require.NoError(t, m.UnlockNow(t.Context()))
			}
		}
		require.Equal(t, "client", kind.Owner(taken(t, c).Token()))
		for _, value := range []string{"", "a b", "caf\u00e9", "a\n", long + "x"} {
			require.ErrorContains(t, c.CheckMutex("k", ttl, WithOwner(value)), "owner")
		}
	})
}

// A token of a slot names its owner as any other, and an error does not quote its secret.
func TestATokenOfASlotNamesItsOwner(t *testing.T) {
	for _, owner := range []string{"", "svc-a@host-7.example.org:311", "a.3.4"} {
		plain := round.AppendToken(nil, owner)
		token := kind.AppendSlot(slices.Clone(plain), 3, 4)
		require.Equal(t, kind.Owner(string(plain)), kind.Owner(string(token)))
		err := redacted(&mux.ReplyError{Message: "no " + string(token) + " here"}, token)
		require.NotContains(t, err.Error(), string(plain[len(plain)-20:]))
	}
}

func TestErrorsOfMastersHoldNoToken(t *testing.T) {
	const random = "AbCdEfGhIjKlMnOpQrStUvWxYz0"
	ours, foreign := "svc-a@host-7:311/"+random, "4yBl3zabc+def=="
	for _, c := range []struct{ token, said, want string }{
		{ours, "ERR what is '" + ours + "'?", "ERR what is 'svc-a@host-7:311/...'?"},
		{ours, "ERR " + ours[:30] + " " + ours, "ERR svc-a@host-7:311/... svc-a@host-7:311/..."},
		{ours, "ERR svc-a@host-7:311 is unknown", "ERR svc-a@host-7:311 is unknown"},
		{random, "ERR " + random + random[:10] + "!", "ERR ......!"},
		{foreign, "ERR 'k' 'x" + foreign + "x'", "ERR 'k' 'x...x'"},
		{"......", "ERR ....... .", "ERR .... ."},
		{"\x01\x02raw\x03secret", `ERR '\x01\x02raw\x03secret'`, "ERR '...'"}, // as the mux escapes it
		{"x", "ERR syntax error", "ERR syntax error"},
		{"", "ERR syntax error", "ERR syntax error"},
	} {
		err := redacted(&mux.ReplyError{Code: "ERR", Message: c.said}, []byte(c.token))
		require.EqualError(t, err, c.want)
		require.Equal(t, "ERR", err.(*mux.ReplyError).Code)
	}
	require.Equal(t, errFake, redacted(errFake, []byte(ours)))
	require.NoError(t, redacted(nil, []byte(ours)))
}

// Whoever has a lock has its TTL counted before a master votes on it: a master that was restarted may have forgotten locks
// that last as long. So has who is given a lock by its token.
func TestEachWayToALockCountsItsTTL(t *testing.T) {
	for name, have := range map[string]func(t *testing.T, c *Client, token string) error{
		"TryLock": func(t *testing.T, c *Client, _ string) error { return c.NewMutex("k", time.Hour).TryLock(t.Context()) },
		"Lock":    func(t *testing.T, c *Client, _ string) error { return c.NewMutex("k", time.Hour).Lock(t.Context()) },
		"Do":      func(t *testing.T, c *Client, _ string) error { return c.Do(t.Context(), "k", time.Hour, nothing) },
		"Acquire": func(t *testing.T, c *Client, _ string) error { return c.acquires(t.Context(), "k", time.Hour, nothing) },
		"Lead": func(t *testing.T, c *Client, _ string) error {
			err := c.Lead(t.Context(), "k", time.Hour, func(context.Context) error { return errCause })
			require.ErrorIs(t, err, errCause)
			return nil
		},
		"Extend, by a token": func(t *testing.T, c *Client, token string) error {
			return c.NewMutex("k", time.Hour, WithToken(token)).Extend(t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, Config{}, func(t *testing.T, first *Client, r *fakeRounds) {
				holder, token := taken(t, first), ""
				if strings.Contains(name, "token") {
					token = holder.Token()
				} else {
					require.NoError(t, holder.Unlock(t.Context()))
				}
				time.Sleep(time.Second)
				c, told := r.apart(t, Config{})
				require.Zero(t, c.guard.LongestTTL())
				counted := []time.Duration{}
				told.set(func(m *fakeMaster) {
					m.deny = func([]string) string { counted = append(counted, c.guard.LongestTTL()); return "" }
				}, 0, 1, 2)
				require.NoError(t, have(t, c, token))
				time.Sleep(time.Second)
				told.set(func(m *fakeMaster) { m.deny = nil }, 0, 1, 2)
				require.NotEmpty(t, counted)
				require.Equal(t, time.Hour, slices.Min(counted))
			})
		})
	}
}
