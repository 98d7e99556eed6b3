package redlock_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// Passwords and tokens are printed by nothing that is exported.

const marker = "hunter2hunter2" // is in every secret

var secretName = regexp.MustCompile(`(?i)password|secret|token`)

// hide gives all secrets in a struct the marker, and also a string that is named like one.
func hide(v reflect.Value) {
	if v.Type() == reflect.TypeFor[redlock.Secret]() {
		v.Set(reflect.ValueOf(redlock.NewSecret(marker)))
		return
	}
	for field, value := range v.Fields() {
		switch {
		case !field.IsExported():
		case value.Kind() == reflect.Struct:
			hide(value)
		case value.Kind() == reflect.String && secretName.MatchString(field.Name):
			value.SetString(marker)
		case secretName.MatchString(field.Name) && value.Kind() != reflect.Func:
			panic("no secret: " + field.Name)
		}
	}
}

// shown is what all that prints values prints of v. Package fmt asks no methods of what is in an
// unexported field.
func shown(v any) string {
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&out, strings.Repeat(verb, 4), v, []any{v}, struct{ V any }{v}, struct{ v any }{v})
	}
	for _, handler := range []slog.Handler{slog.NewTextHandler(&out, nil), slog.NewJSONHandler(&out, nil)} {
		slog.New(handler).Info("x", "v", v, "in", struct{ V, v any }{v, v})
	}
	json.NewEncoder(&out).Encode(v)
	return out.String()
}

func requireHidden(t *testing.T, v any) {
	t.Helper()
	text := shown(v)
	for _, form := range []string{marker, fmt.Sprintf("%x", marker), strings.Trim(fmt.Sprint([]byte(marker)), "[]")} {
		require.NotContains(t, text, form, "%T", v)
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	t.Parallel()
	for _, v := range []any{
		new(conn.Credentials), new(conn.Options), new(conn.Server), new(conn.Error), new(conn.RefusedError),
		new(mux.Config), new(mux.State), new(mux.ReplyError), new(mux.QuarantineError), new(mux.OpenError),
		new(redlock.Config), new(redlock.Holder), new(redlock.RoundError), new(redlock.Vote), new(redlock.Event),
		new(redlock.MasterStats), new(redlock.Stats), new(redlock.LockInfo),
	} {
		hide(reflect.ValueOf(v).Elem())
		requireHidden(t, v)
		requireHidden(t, reflect.ValueOf(v).Elem().Interface())
	}

	masters := redlocktest.Start(t, 1, redlocktest.WithArgs("--requirepass", marker))
	url := "redis://:" + marker + "@" + masters.Addr(0)
	a, err := conn.ParseAddress(url)
	require.NoError(t, err)
	c, err := conn.Dial(t.Context(), a, conn.Options{})
	require.NoError(t, err)
	defer c.Close()
	many, err := mux.Open(t.Context(), mux.Config{Masters: []string{url}})
	require.NoError(t, err)
	defer many.Close()
	client := openConfig(t, redlock.Config{Masters: []string{url}, ClientName: "x"})
	redlock.Says(t, masters, 0, "SET", "k", marker, "PX", "60000")
	m := client.NewMutex("k", long, redlock.WithToken(marker))
	require.NoError(t, m.Extend(t.Context()))
	ctx, stop := m.KeepAlive(t.Context())
	defer stop()
	holders, err := redlock.OnEach(client, t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, marker, holders[0].Token.Reveal())
	client.Close() // nothing of it runs any more: fmt reads what is not exported, too
	for _, v := range []any{a, &a, c, c.Renewal(conn.Credentials{Password: redlock.NewSecret(marker)}), many, client, m, ctx, holders} {
		requireHidden(t, v)
	}
	require.Equal(t, `redlock.Mutex{"k"}`, fmt.Sprint(m))
}

// What is printed is of use all the same.
func TestConfigIsPrintedWithoutPasswords(t *testing.T) {
	t.Parallel()
	cfg := redlock.Config{
		Masters:          []string{"redis://user:" + marker + "@127.0.0.1:1", "sentinel://:" + marker + "@127.0.0.1:2/g", marker + ":@://"},
		Username:         "ann",
		Password:         redlock.NewSecret(marker),
		SentinelPassword: redlock.NewSecret(marker),
		Credentials: func(context.Context, string) (redlock.Credentials, error) {
			return redlock.Credentials{Password: redlock.NewSecret(marker)}, nil
		},
		TLS:          &tls.Config{ServerName: marker},
		ClientName:   "svc",
		RestartGuard: time.Minute,
	}
	var text, js strings.Builder
	slog.New(slog.NewTextHandler(&text, nil)).Info("starting", "config", cfg)
	slog.New(slog.NewJSONHandler(&js, nil)).Info("starting", "config", cfg)
	for _, s := range []string{text.String(), js.String(), fmt.Sprintf("%+v", &cfg), fmt.Sprintf("%#v", struct{ C redlock.Config }{cfg})} {
		require.NotContains(t, s, marker)
		for _, want := range []string{"[127.0.0.1:1 sentinel://127.0.0.1:2/g (malformed)]", "ann", "Password:...", "svc", "RestartGuard:1m0s"} {
			require.Contains(t, s, want)
		}
	}
}

func TestHolderInJSONHasItsOwner(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(redlock.Holder{Owner: "svc@host:1", Token: redlock.NewSecret("secret"), TTL: time.Second, Masters: []string{"a:1"}})
	require.NoError(t, err)
	require.JSONEq(t, `{"Owner": "svc@host:1", "Token": "...", "Permit": 0, "Held": false, "Left": false, "Masters": ["a:1"], "TTL": 1000000000,
		"Revoked": false, "Reason": ""}`, string(text))
}
