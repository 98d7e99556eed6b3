package conn_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
)

func TestAddressesAreReadAsUsersWriteThem(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, text, endpoint string }{
		{"localhost", "localhost:6379", "localhost:6379"},
		{"LocalHost.:7000", "localhost:7000", "localhost:7000"},
		{"my_redis-1.example.com", "my_redis-1.example.com:6379", "my_redis-1.example.com:6379"},
		{"10.0.0.1:6380", "10.0.0.1:6380", "10.0.0.1:6380"},
		{"[::1]:6379", "[::1]:6379", "[::1]:6379"},
		{"[::1]", "[::1]:6379", "[::1]:6379"},
		{"::1", "[::1]:6379", "[::1]:6379"},
		{"0:0:0:0:0:0:0:1", "[::1]:6379", "[::1]:6379"},
		{"[::ffff:10.0.0.1]:6379", "10.0.0.1:6379", "10.0.0.1:6379"},
		{"fe80::1%eth0", "[fe80::1%eth0]:6379", "[fe80::1%eth0]:6379"},
		{"redis://[fe80::1%25eth0]:7", "[fe80::1%eth0]:7", "[fe80::1%eth0]:7"},
		{"redis://h", "h:6379", "h:6379"},
		{"redis://h/", "h:6379", "h:6379"},
		{"REDIS://h:1/0", "h:1", "h:1"},
		{"redis://h:1/2", "redis://h:1/2", "h:1"},
		{"redis://h:1?db=2", "redis://h:1/2", "h:1"},
		{"redis://h:1/2?db=2", "redis://h:1/2", "h:1"},
		{"h:1/2", "redis://h:1/2", "h:1"},
		{"rediss://h", "rediss://h:6379", "h:6379"},
		{"valkey://h", "h:6379", "h:6379"},
		{"valkeys://user:secret@h:1/3", "rediss://h:1/3", "h:1"},
		{"rediss://user:secret@[::1]:1/3", "rediss://[::1]:1/3", "[::1]:1"},
		{"redis://user:secret@h:1", "h:1", "h:1"},
		{"redis://:secret@h", "h:6379", "h:6379"},
		{"redis://user@h", "h:6379", "h:6379"},
		{"user:secret@h:1", "h:1", "h:1"},
		{"redis://:se%40c%3Aret%25@h:1", "h:1", "h:1"},
		{"redis://:secret/with@all?of#them@h:1", "h:1", "h:1"},
		{"unix:///run/redis.sock", "unix:///run/redis.sock", "/run/redis.sock"},
		{"unix:///run/redis.sock?db=4", "unix:///run/redis.sock?db=4", "/run/redis.sock"},
		{"unix://user:secret@/run/redis.sock", "unix:///run/redis.sock", "/run/redis.sock"},
		{"unix:///run/a@b/a%20b?db=0", "unix:///run/a@b/a%20b", "/run/a@b/a b"},
	} {
		a, err := conn.ParseAddress(tt.in)
		require.NoError(t, err, tt.in)
		require.Equal(t, tt.text, a.String(), tt.in)
		require.Equal(t, tt.endpoint, a.Endpoint(), tt.in)

		again, err := conn.ParseAddress(a.String())
		require.NoError(t, err, tt.in)
		require.Equal(t, a.String(), again.String(), "what String returns is an address again")
	}
}

func TestBadAddressesAreExplained(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                           "host is missing",
		":6379":                      "host is missing",
		"redis://":                   "host is missing",
		"redis://user:secret@":       "host is missing",
		"redis://user:secret@/1":     "host is missing",
		"http://h":                   `unknown scheme "http"`,
		"redis+tls://h":              `unknown scheme "redis+tls"`,
		"h:":                         "port",
		"h:0":                        "port",
		"h:65536":                    "port",
		"h:-1":                       "port",
		"h:+1":                       "port",
		"h:secret":                   "port",
		"redis://user:secret":        "port",
		"redis://h:1/secret":         "database",
		"redis://h:1/-1":             "database",
		"redis://h:1/1/2":            "database",
		"redis://h:1/99999999999":    "database",
		"redis://h?db=secret":        "database",
		"redis://h/1?db=2":           "only one database",
		"redis://h?db=1&db=2":        "only one database",
		"redis://h?password=secret":  "nothing else",
		"redis://h?%zz":              "malformed query",
		"redis://:secret%zz@h":       "percent-encoding",
		"redis://a b":                "a space",
		"redis://sécret":             "neither a name nor an IP",
		"[::1":                       "brackets",
		"[::1]6379":                  "only a port",
		"[localhost]:1":              "brackets",
		"a:1,b:1":                    "a list",
		"redis://a;b":                "a list",
		"::g":                        "not an IPv6 address",
		"1:2:3":                      "not an IPv6 address",
		"unix://":                    "absolute path",
		"unix:///":                   "absolute path",
		"unix://run/redis.sock":      "absolute path",
		"unix:///run/%zz":            "percent-encoding",
		"unix:///run/%00":            "zero byte",
		"unix:///run/x?db=secret":    "database",
		"redis://user:sec ret@a b:c": "a space",
	} {
		_, err := conn.ParseAddress(in)
		require.ErrorContains(t, err, want, in)
		require.NotContains(t, err.Error(), "secret", in)
	}
}

// No error and no format shows a password, wherever it stands in an address and however broken
// the address is.
func TestNoPasswordIsEverShown(t *testing.T) {
	t.Parallel()
	const secret = "hunter2hunter2"
	shapes := []string{
		"redis://u:%s@h:1/1", "redis://:%s@h", "rediss://u:%s@[::1", "redis://u:%s@h:x", "redis://u:%s",
		"u:%s@h", "redis://u:%%zz%s@h", "redis://u:a/%s@h:", "unix://u:%s@/p", "unix://u:%s@p", "redis://u:%s@h/x",
		"redis://h?password=%s", "foo://u:%s@h", "u:%s://@h:x",
	}
	for _, shape := range shapes {
		a, err := conn.ParseAddress(fmt.Sprintf(shape, secret))
		var log strings.Builder
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "address", a, "err", err)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "address", a, "err", err)
		js, _ := json.Marshal(map[string]any{"a": a})
		shown := fmt.Sprintf("%v %+v %#v %s %q %d %t %v %s %s", a, a, a, a, a, a, a, err, js, log.String())
		require.NotContains(t, shown, secret, shape)
	}

	type config struct {
		Options conn.Options
		Pointer *conn.Options
	}
	o := conn.Options{Username: "u", Password: conn.NewSecret(secret), ClientName: "me"}
	shown := fmt.Sprintf("%v %+v %#v %s %d %v %+v %#v", o, o, o, o, o, config{o, &o}, config{o, &o}, config{o, &o})
	require.NotContains(t, shown, secret)
	require.Contains(t, shown, "me")
}

func TestRedactedAddressesHaveNoPassword(t *testing.T) {
	t.Parallel()
	given := []string{"redis://u:secret@a/1", "secret@@:::", "unix://u:secret@/s", "sentinel://u:secret@a,b/g"}
	kept := slices.Clone(given)
	require.Equal(t, []string{"redis://a:6379/1", "(malformed)", "unix:///s", "sentinel://a:26379,b:26379/g"}, conn.RedactAll(given))
	require.Equal(t, kept, given)
	require.Empty(t, conn.RedactAll(nil))
}

func TestSentinelAddresses(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"sentinel://a:1,b/g":                          "sentinel://a:1,b:26379/g",
		"SENTINEL://A.,[::1]:7/g?db=3":                "sentinel://a:26379,[::1]:7/g?db=3",
		"redis+sentinel://u:p%40@a/g":                 "sentinel://a:26379/g",
		"redis-sentinel://a/my%2Fgroup":               "sentinel://a:26379/my%2Fgroup",
		"sentinels://a/g":                             "sentinels://a:26379/g",
		"rediss+sentinel://a/g":                       "sentinels://a:26379/g",
		"valkey-sentinel://a/g":                       "sentinel://a:26379/g",
		"VALKEYS+sentinel://a/g":                      "sentinels://a:26379/g",
		"rediss-sentinel://:secret@127.0.0.1:1,b/g-1": "sentinels://127.0.0.1:1,b:26379/g-1",
	} {
		a, err := conn.ParseAddress(in)
		require.NoError(t, err, in)
		require.Equal(t, want, a.String())
		require.NotContains(t, fmt.Sprintf("%+v %#v", a, a), "secret")
		require.NotEmpty(t, a.Group())
		again, err := conn.ParseAddress(a.String())
		require.NoError(t, err)
		require.Equal(t, a.String(), again.String())
	}
	for in, want := range map[string]string{
		"sentinel://a:1,b:2":       "name of the group is missing",
		"sentinel://a:1/":          "name of the group is missing",
		"sentinel://a/g/1":         "name of the group is missing",
		"sentinel:///g":            "host is missing",
		"sentinel://a,,b/g":        "host is missing",
		"sentinel://a,A:26379/g":   "given twice",
		"sentinel://a:0/g":         "port",
		"sentinel://a/%zz":         "percent-encoding",
		"sentinel://a/a%20b":       "holds a space",
		"sentinel://u:sec%ret@a/g": "percent-encoding",
		"sentinel://a/g?x=1":       "only one database",
	} {
		_, err := conn.ParseAddress(in)
		require.ErrorContains(t, err, want, in)
		require.NotContains(t, err.Error(), "sec")
	}
}

func TestClusterAddresses(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"cluster://a:1,b":                         "cluster://a:1,b:6379",
		"CLUSTER://A.,[::1]:7/":                   "cluster://a:6379,[::1]:7",
		"redis+cluster://u:p%40@a/0":              "cluster://a:6379",
		"redis-cluster://a/2":                     "cluster://a:6379?db=2",
		"clusters://a":                            "clusters://a:6379",
		"rediss+cluster://a?db=3":                 "clusters://a:6379?db=3",
		"valkey+cluster://a":                      "cluster://a:6379",
		"valkeys-cluster://a":                     "clusters://a:6379",
		"rediss-cluster://:secret@127.0.0.1:1,b2": "clusters://127.0.0.1:1,b2:6379",
	} {
		a, err := conn.ParseAddress(in)
		require.NoError(t, err, in)
		require.Equal(t, want, a.String())
		require.NotContains(t, fmt.Sprintf("%+v %#v", a, a), "secret")
		require.True(t, a.Cluster())
		require.Equal(t, "cluster", a.Group())
		require.Equal(t, a.String(), a.WithHint("x:1").WithNodes([]string{"y:1"}).String())
		again, err := conn.ParseAddress(a.String())
		require.NoError(t, err)
		require.Equal(t, a.String(), again.String())
	}
	for in, want := range map[string]string{
		"cluster://":             "host is missing",
		"cluster://a,,b":         "host is missing",
		"cluster://a,A:6379":     "given twice",
		"cluster://a:0":          "port",
		"cluster://a/g":          "database",
		"cluster://u:sec%ret@a":  "percent-encoding",
		"cluster://a?slot=1":     "only one database",
		"cluster://sec ret@a b:": "a space",
	} {
		_, err := conn.ParseAddress(in)
		require.ErrorContains(t, err, want, in)
		require.NotContains(t, err.Error(), "sec")
	}
}
