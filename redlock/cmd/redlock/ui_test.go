//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A uiClient is what a browser is to the server, without a browser.
type uiClient struct {
	*testing.T
	http *http.Client
	base string // http://127.0.0.1:1234
	key  string // the address that was printed
	inv  *invocation
}

// serveUI starts redlock ui, and opens its page.
func serveUI(t *testing.T, masters *redlocktest.Masters, args ...string) *uiClient {
	t.Helper()
	s := begin(t, []string{mastersEnv(masters)}, append([]string{"ui", "--listen", "127.0.0.1:0"}, args...)...)
	s.awaitStdout("\n")
	printed := strings.TrimSpace(s.out.String())
	u, err := url.Parse(printed)
	require.NoError(t, err)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	c := &uiClient{T: t, http: &http.Client{Jar: jar}, base: "http://" + u.Host, key: printed, inv: s}
	require.Equal(t, http.StatusOK, c.get(printed).StatusCode)
	return c
}

func (c *uiClient) do(r *http.Request) *http.Response {
	c.Helper()
	answer, err := c.http.Do(r)
	require.NoError(c, err)
	c.Cleanup(func() { answer.Body.Close() })
	return answer
}

func (c *uiClient) request(method, path, body string) *http.Request {
	c.Helper()
	r, err := http.NewRequestWithContext(c.Context(), method, path, strings.NewReader(body))
	require.NoError(c, err)
	return r
}

func (c *uiClient) get(address string) *http.Response {
	c.Helper()
	return c.do(c.request(http.MethodGet, address, ""))
}

// events reads the events of a stream until one satisfies seen.
func (c *uiClient) events(path string, seen func(event string, data []byte) bool) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), patient)
	defer cancel()
	answer := c.do(c.request(http.MethodGet, c.base+path, "").WithContext(ctx))
	require.Equal(c, "text/event-stream", answer.Header.Get("Content-Type"))
	lines, event := bufio.NewScanner(answer.Body), ""
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			event = name
		}
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && seen(event, []byte(data)) {
			return
		}
	}
	require.NoError(c, lines.Err())
	require.Fail(c, "the stream has ended")
}

// revokes asks to revoke the first lock with that key, as the page does.
func (c *uiClient) revokes(key, origin string) (int, string) {
	c.Helper()
	body := ""
	c.events("/events", func(event string, data []byte) bool {
		var m struct{ Set []*uiLock }
		if event != "locks" {
			return false
		}
		require.NoError(c, json.Unmarshal(data, &m))
		i := slices.IndexFunc(m.Set, func(l *uiLock) bool { return l.Key == key })
		if i < 0 {
			return false
		}
		text, err := json.Marshal(map[string]string{"row": m.Set[i].ID, "holder": m.Set[i].Holders[0].ID, "reason": "maintenance"})
		require.NoError(c, err)
		body = string(text)
		return true
	})
	r := c.request(http.MethodPost, c.base+"/revoke", body)
	if origin != "" {
		r.Header.Set("Origin", origin)
	}
	answer := c.do(r)
	said, err := io.ReadAll(answer.Body)
	require.NoError(c, err)
	return answer.StatusCode, string(said)
}

func TestThePageIsForWhoKnowsItsAddress(t *testing.T) {
	t.Parallel()
	c := serveUI(t, redlocktest.Start(t, 1))
	for _, path := range []string{"/", "/page.js", "/page.css"} {
		answer := c.get(c.base + path)
		require.Equal(t, http.StatusOK, answer.StatusCode)
		require.Contains(t, answer.Header.Get("Content-Security-Policy"), "default-src 'none'")
	}
	stranger := *c
	stranger.http = &http.Client{}
	for _, path := range []string{"/", "/page.js", "/events", "/watch?key=k", "/?key=guessed"} {
		require.Equal(t, http.StatusUnauthorized, stranger.get(c.base+path).StatusCode, path)
	}
	for name, change := range map[string]func(*http.Request){
		"a name that leads here":   func(r *http.Request) { r.Host = "attacker.example" },
		"another page":             func(r *http.Request) { r.Header.Set("Origin", "http://attacker.example") },
		"a page of another port":   func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:1") },
		"a page without an origin": func(r *http.Request) { r.Header.Set("Origin", "null") },
		"a picture in another page": func(r *http.Request) {
			r.Header.Set("Sec-Fetch-Site", "cross-site")
			r.Header.Set("Sec-Fetch-Mode", "no-cors")
		},
		"the same host on another port": func(r *http.Request) {
			r.Header.Set("Sec-Fetch-Site", "same-site")
			r.Header.Set("Sec-Fetch-Mode", "cors")
		},
	} {
		for _, path := range []string{"/", "/events"} {
			r := c.request(http.MethodGet, c.base+path, "")
			change(r)
			require.Equal(t, http.StatusForbidden, c.do(r).StatusCode, name)
		}
	}
	for _, path := range []string{"/", "/events"} {
		r := c.request(http.MethodPost, c.base+path, "")
		r.Header.Set("Origin", c.base)
		require.Equal(t, http.StatusMethodNotAllowed, c.do(r).StatusCode)
	}
	require.Equal(t, http.StatusMethodNotAllowed, c.get(c.base+"/revoke").StatusCode, "nothing is done by GET")
	require.NoError(t, c.inv.Process.Signal(syscall.SIGTERM))
	require.Zero(t, c.inv.end())
}

func TestTheHostOfAProxyIsNamed(t *testing.T) {
	t.Parallel()
	c := serveUI(t, redlocktest.Start(t, 1), "--host", "locks.example.com")
	for host, status := range map[string]int{"locks.example.com": 200, "LOCKS.example.com:443": 200, "localhost": 200, "[::1]:80": 200, "example.com": 403} {
		r := c.request(http.MethodGet, c.base+"/", "")
		r.Host = host
		u, err := url.Parse(c.base)
		require.NoError(t, err)
		for _, cookie := range c.http.Jar.Cookies(u) {
			r.AddCookie(cookie)
		}
		require.Equal(t, status, c.do(r).StatusCode, host)
	}
}

func TestThePageIsToldOfLocksMastersAndClients(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	env := []string{mastersEnv(masters)}
	c := serveUI(t, masters)
	var holder *invocation
	seen := map[string]bool{}
	c.events("/events", func(event string, data []byte) bool {
		seen[event] = true
		if event == "locks" && holder == nil {
			holder = begin(t, env, "hold", atOnce, "--owner", "<b>me", "lock:<i>")
			return false
		}
		return event == "locks" && strings.Contains(string(data), `"key":"lock:\u003ci\u003e"`) && strings.Contains(string(data), `"holder":"\u003cb\u003eme"`)
	})
	c.events("/watch?key="+url.QueryEscape("lock:<i>"), func(event string, data []byte) bool {
		return strings.Contains(string(data), `"state":"held"`)
	})
	require.NoError(t, holder.Process.Signal(syscall.SIGTERM))
	masters.Pause(2)
	gone := false
	c.events("/events", func(event string, data []byte) bool {
		seen[event] = true
		var m struct{ Gone []string }
		json.Unmarshal(data, &m)
		gone = gone || slices.Contains(m.Gone, "plain lock:<i>") || event == "locks" && strings.Contains(string(data), `"reset":true,`) && !strings.Contains(string(data), "lock:")
		hung := event == "masters" && !strings.Contains(string(data[strings.LastIndex(string(data), `"master"`):]), `"phase":"up"`)
		if hung {
			seen["hung"] = true
		}
		return gone && seen["hung"] && seen["findings"] && seen["clients"] && seen["about"]
	})
}

func TestThePageRevokesIfItMay(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	env := []string{mastersEnv(masters)}
	holder := begin(t, env, "hold", atOnce, "k")
	holder.assigned("REDLOCK_TOKEN")

	may, mayNot := serveUI(t, masters, "--allow-revoke"), serveUI(t, masters)
	status, said := mayNot.revokes("k", mayNot.base)
	require.Equal(t, http.StatusForbidden, status)
	require.Contains(t, said, "--allow-revoke")
	for _, origin := range []string{"", "null", "http://attacker.example", mayNot.base} {
		status, _ = may.revokes("k", origin)
		require.Equal(t, http.StatusForbidden, status, origin)
	}
	requireHeld(t, masters)
	status, said = may.revokes("k", may.base)
	require.Equal(t, http.StatusOK, status, said)
	require.Equal(t, exitLost, holder.end())
	require.Contains(t, holder.err.String(), "maintenance")
	may.inv.awaitStderr(`"k" was revoked on the page: maintenance`)

	r := may.request(http.MethodPost, may.base+"/revoke", `{"row":"plain nobody","reason":"x"}`)
	r.Header.Set("Origin", may.base)
	require.Equal(t, http.StatusConflict, may.do(r).StatusCode)
}

// A holder that has let go is not followed by the one that came after it.
func TestThePageRevokesWhomItHasShown(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	env := []string{mastersEnv(masters)}
	first := begin(t, env, "hold", atOnce, "k")
	first.assigned("REDLOCK_TOKEN")
	c := serveUI(t, masters, "--allow-revoke")
	id := ""
	c.events("/events", func(event string, data []byte) bool {
		var m struct{ Set []*uiLock }
		if json.Unmarshal(data, &m); len(m.Set) > 0 {
			id = m.Set[0].Holders[0].ID
		}
		return id != ""
	})
	require.NoError(t, first.Process.Signal(syscall.SIGTERM))
	first.end()
	second := begin(t, env, "hold", "k")
	second.assigned("REDLOCK_TOKEN")
	r := c.request(http.MethodPost, c.base+"/revoke", `{"row":"plain k","holder":"`+id+`","reason":"x"}`)
	r.Header.Set("Origin", c.base)
	answer := c.do(r)
	require.Equal(t, http.StatusConflict, answer.StatusCode)
	requireHeld(t, masters)
}

func TestAddressesThatThePageCannotHave(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	c := serveUI(t, masters)
	env := []string{mastersEnv(masters)}
	status, _, stderr := do(t, env, "ui", "--listen", strings.TrimPrefix(c.base, "http://"))
	require.Equal(t, exitIO, status)
	require.Contains(t, stderr, "--listen 127.0.0.1:0")
	for _, pattern := range []string{"", "["} {
		status, _, _ = do(t, env, "ui", "--listen", "127.0.0.1:0", pattern)
		require.Equal(t, exitUsage, status)
	}
}

func TestARowChangesOnlyIfItsLockDoes(t *testing.T) {
	now := time.Now()
	row := func(left time.Duration) *uiLock {
		at := now.Add(left).UnixMilli()
		return &uiLock{ID: "plain k", Holder: "me", Ends: &at, Holders: []uiHolder{{Name: "me", Ends: new(at)}}}
	}
	require.True(t, row(time.Second).settle(row(1100*time.Millisecond)), "the answer took a while")
	require.False(t, row(2*time.Second).settle(row(time.Second)), "it was renewed")
	other := row(time.Second)
	other.Waiting = 1
	require.False(t, other.settle(row(time.Second)))
}
