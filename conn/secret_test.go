package conn_test

import (
	"encoding/gob"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const marker = "hunter2hunter2"

// A failure keeps what a failed test prints.
type failure struct{ text string }

func (f *failure) Errorf(format string, args ...any) { f.text = fmt.Sprintf(format, args...) }

// shown is what all that prints values prints of v.
func shown(v any) string {
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "% X", "%d", "%p", "%10.3v"} {
		fmt.Fprintf(&out, verb, v)
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
	json.NewEncoder(&out).Encode(v)
	gob.NewEncoder(&out).Encode(v)
	var f failure
	assert.Equal(&f, []any{v}, []any{nil}) // asks no method of v
	out.WriteString(f.text)
	return out.String()
}

func requireHidden(t *testing.T, v any) {
	t.Helper()
	text := shown(v)
	for _, form := range []string{marker, fmt.Sprintf("%x", marker), fmt.Sprintf("% X", marker), strings.Trim(fmt.Sprint([]byte(marker)), "[]")} {
		require.NotContains(t, text, form)
	}
}

func TestSecretIsNeverPrinted(t *testing.T) {
	t.Parallel()
	type open struct{ S conn.Secret }
	type shut struct{ s conn.Secret }
	s := conn.NewSecret(marker)
	for _, v := range []any{s, &s, open{s}, &open{s}, shut{s}, &shut{s}, []conn.Secret{s}, []shut{{s}}, map[conn.Secret]shut{s: {s}}, struct{ v any }{shut{s}}} {
		requireHidden(t, v)
	}
	text, err := json.Marshal([]open{{s}, {}})
	require.NoError(t, err)
	require.Equal(t, `[{"S":"..."},{"S":""}]`, string(text))
	require.Equal(t, "{...} {} ... ...", fmt.Sprintf("%v %v %d %s", open{s}, open{}, s, s.String()))
}

// What was sent may still lie in the buffers of a connection.
func TestConnPrintsNothingThatItSends(t *testing.T) {
	t.Parallel()
	stuck := false
	c := dial(t, script(t, nil).addr, conn.Options{Wrap: func(_ string, s io.ReadWriter) io.ReadWriter { return &stuckWriter{s, &stuck} }})
	stuck = true
	flushed, err := c.Send(c.Renewal(conn.Credentials{Username: "ann", Password: conn.NewSecret(marker)}).Append(nil))
	require.NoError(t, err)
	require.False(t, flushed)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		require.Equal(t, "conn.Conn{"+c.RemoteAddr()+"}", fmt.Sprintf(verb, c))
	}
}

// A stuckWriter has no room for what is written, once it is stuck.
type stuckWriter struct {
	io.ReadWriter
	stuck *bool
}

func (w *stuckWriter) Write(p []byte) (int, error) {
	if *w.stuck {
		return 0, nil
	}
	return w.ReadWriter.Write(p)
}

// A Secret is what its text is.
func TestSecretsAreEqualIfTheirTextsAre(t *testing.T) {
	t.Parallel()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 200 {
				text := fmt.Sprint("text ", i)
				s := conn.NewSecret(text)
				assert.Equal(t, text, s.Reveal())
				assert.True(t, s == conn.NewSecret(text))
				assert.False(t, s == conn.NewSecret(text+"."))
				assert.False(t, s.IsZero())
			}
		})
	}
	all.Wait()
	require.Equal(t, conn.Credentials{Password: conn.NewSecret("a")}, conn.Credentials{Password: conn.NewSecret("a")})
	require.NotEqual(t, conn.Credentials{Password: conn.NewSecret("a")}, conn.Credentials{Password: conn.NewSecret("b")})
	require.Zero(t, conn.NewSecret(""))
	require.True(t, conn.NewSecret("").IsZero())
	require.Empty(t, conn.Secret{}.Reveal())
}

// The text of a Secret that nobody has any more is given up.
func TestSecretsAreForgotten(t *testing.T) {
	t.Parallel()
	const kept, text = "a text that is kept", "a text that is given up"
	s := conn.NewSecret(kept)
	conn.NewSecret(text)
	require.Eventually(t, func() bool {
		runtime.GC()
		return !conn.Remembers(text)
	}, time.Minute, 5*time.Millisecond)
	require.True(t, conn.Remembers(kept))
	require.True(t, s == conn.NewSecret(kept))
	require.Equal(t, text, conn.NewSecret(text).Reveal())
}

func TestSecretIsReadFromAConfiguration(t *testing.T) {
	t.Parallel()
	want := conn.NewSecret("pa ss")
	var read struct{ Password conn.Secret }
	require.NoError(t, json.Unmarshal([]byte(`{"Password": "pa ss"}`), &read))
	require.Equal(t, want, read.Password)

	var given conn.Secret
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.TextVar(&given, "password", conn.NewSecret("default"), "")
	require.Equal(t, "default", given.Reveal())
	require.NoError(t, flags.Parse([]string{"-password", "pa ss"}))
	require.Equal(t, want, given)
	require.NoError(t, given.UnmarshalText(nil))
	require.Zero(t, given)

	written, err := json.Marshal(read)
	require.NoError(t, err)
	require.Error(t, json.Unmarshal(written, &read), "or the dots would be the password")
	require.Equal(t, want, read.Password)
}
