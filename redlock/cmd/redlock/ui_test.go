//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A uiClient is what a browser is to the server, without a browser.
type uiClient struct {
	*testing.T
	http *http.Client
	base string // http://127.0.0.1:1234/PLACE, without the last slash
	host string // http://127.0.0.1:1234
	key  string // the address that was printed
	inv  *invocation
}

// serveUI starts redlock ui, and opens its page.
func serveUI(t *testing.T, masters *redlocktest.Masters, args ...string) *uiClient {
	t.Helper()
	return serveUIAs(t, []string{mastersEnv(masters)}, args...)
}

// serveUIAs is serveUI with an environment.
func serveUIAs(t *testing.T, env []string, args ...string) *uiClient {
	t.Helper()
	s := begin(t, env, append([]string{"ui", "--listen", "127.0.0.1:0"}, args...)...).awaitStdout("\n")
	printed := strings.TrimSpace(s.out.String())
	u, err := url.Parse(printed)
	require.NoError(t, err)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	c := &uiClient{T: t, http: &http.Client{Jar: jar}, host: "http://" + u.Host, key: printed, inv: s}
	answer := c.get(printed)
	require.Equal(t, http.StatusOK, answer.StatusCode)
	_, place, _ := strings.Cut(answer.Header.Get("Refresh"), "url=")
	c.base = c.host + strings.TrimSuffix(place, "/")
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
		text, err := json.Marshal(map[string]any{"row": m.Set[i].ID, "holders": []string{m.Set[i].Holders[0].ID}, "reason": "maintenance"})
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
	for _, path := range []string{"/", "/page.js", "/events", "/watch?row=k", "/?key=guessed"} {
		require.Equal(t, http.StatusUnauthorized, stranger.get(c.base+path).StatusCode, path)
		require.Equal(t, http.StatusUnauthorized, stranger.get(c.host+path).StatusCode, path)
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
		r.Header.Set("Origin", c.host)
		require.Equal(t, http.StatusMethodNotAllowed, c.do(r).StatusCode)
	}
	require.Equal(t, http.StatusMethodNotAllowed, c.get(c.base+"/revoke").StatusCode, "nothing is done by GET")
	require.Zero(t, c.inv.endBy(syscall.SIGTERM))
}

func TestTheHostOfAProxyIsNamed(t *testing.T) {
	t.Parallel()
	c := serveUI(t, redlocktest.Start(t, 1), "--host", "locks.example.com")
	for host, status := range map[string]int{"locks.example.com": 200, "LOCKS.example.com:443": 200, "localhost": 200, "[::1]:80": 200, "example.com": 403} {
		r := c.request(http.MethodGet, c.base+"/", "")
		r.Host = host
		u, err := url.Parse(c.base + "/")
		require.NoError(t, err)
		for _, cookie := range c.http.Jar.Cookies(u) {
			r.AddCookie(cookie)
		}
		require.Equal(t, status, c.do(r).StatusCode, host)
	}
}

func TestThePageIsToldOfLocksMastersAndClients(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
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
	c.events("/watch?row="+rowID("plain", "lock:<i>"), func(event string, data []byte) bool {
		return strings.Contains(string(data), `"state":"held"`)
	})
	require.NoError(t, holder.Process.Signal(syscall.SIGTERM))
	masters.Pause(2)
	gone := false
	c.events("/events", func(event string, data []byte) bool {
		seen[event] = true
		var m struct{ Gone []string }
		json.Unmarshal(data, &m)
		gone = gone || slices.Contains(m.Gone, rowID("plain", "lock:<i>")) || event == "locks" && strings.Contains(string(data), `"reset":true,`) && !strings.Contains(string(data), "lock:")
		hung := event == "masters" && !strings.Contains(string(data[strings.LastIndex(string(data), `"master"`):]), `"phase":"up"`)
		if hung {
			seen["hung"] = true
		}
		return gone && seen["hung"] && seen["findings"] && seen["clients"] && seen["about"]
	})
}

// While too few masters answer, what the page shows grows old, and it is told so.
func TestThePageIsToldHowOldItsListIs(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := serveUI(t, masters)
	listed, since := int64(0), int64(0)
	c.events("/events", func(event string, data []byte) bool {
		var m struct {
			Complete    bool
			Now, Listed int64
		}
		if event != "list" {
			return false
		}
		require.NoError(t, json.Unmarshal(data, &m))
		require.LessOrEqual(t, m.Listed, m.Now)
		if m.Complete {
			require.Zero(t, since, "two masters are frozen")
			if listed == 0 {
				masters.Pause(0)
				masters.Pause(1)
			}
			listed = m.Listed
			return false
		}
		require.NotZero(t, listed)
		require.Equal(t, listed, m.Listed)
		if since == 0 {
			since = m.Now
		}
		return m.Now > since+1000
	})
}

func TestThePageRevokesIfItMay(t *testing.T) {
	t.Parallel()
	masters, env := started(t, 3)
	holder := begin(t, env, "hold", atOnce, "k")
	holder.assigned("REDLOCK_TOKEN")

	may, mayNot := serveUI(t, masters, "--allow-revoke"), serveUI(t, masters)
	status, said := mayNot.revokes("k", mayNot.host)
	require.Equal(t, http.StatusForbidden, status)
	require.Contains(t, said, "--allow-revoke")
	for _, origin := range []string{"", "null", "http://attacker.example", mayNot.host} {
		status, _ = may.revokes("k", origin)
		require.Equal(t, http.StatusForbidden, status, origin)
	}
	requireHeld(t, masters)
	status, said = may.revokes("k", may.host)
	require.Equal(t, http.StatusOK, status, said)
	require.Equal(t, exitLost, holder.end())
	require.Contains(t, holder.err.String(), "maintenance")
	may.inv.awaitStderr(`"k" was revoked on the page: maintenance`)

	r := may.request(http.MethodPost, may.base+"/revoke", `{"row":"nobody","reason":"x"}`)
	r.Header.Set("Origin", may.host)
	require.Equal(t, http.StatusConflict, may.do(r).StatusCode)
}

// A holder that has let go is not followed by the one that came after it.
func TestThePageRevokesWhomItHasShown(t *testing.T) {
	t.Parallel()
	client, err := redlock.Open(t.Context(), redlock.Config{Masters: redlocktest.Start(t, 3).Addrs()})
	require.NoError(t, err)
	defer client.Close()
	deliver(t.Context(), client, patient) // the first lock must not be on two masters of which one is left out
	first, second := client.NewMutex("k", time.Hour), client.NewMutex("k", time.Hour)
	require.NoError(t, first.TryLock(t.Context()))
	s := uiServer{allowRevoke: true, client: client}
	for lock, err := range client.Locks(t.Context(), "k") {
		require.NoError(t, err)
		row := newUILock(lock, time.Now())
		s.live.rows = map[string]*uiLock{row.ID: row} // the list is looked at before the next one has the lock
	}
	row := s.live.rows[rowID("plain", "k")]
	require.NoError(t, first.Unlock(t.Context()))
	require.NoError(t, second.TryLock(t.Context()))
	answer := httptest.NewRecorder()
	s.revoke(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/revoke", strings.NewReader(shownOf(t, row))))
	require.Equal(t, http.StatusConflict, answer.Code)
	require.NoError(t, second.Extend(t.Context()))
}

// row waits until the page shows as many holders of a lock, and returns its row.
func (c *uiClient) row(kind string, key string, holders int) (row *uiLock) {
	c.Helper()
	c.events("/events", func(event string, data []byte) bool {
		var m struct{ Set []*uiLock }
		if event == "locks" {
			require.NoError(c, json.Unmarshal(data, &m))
		}
		for _, l := range m.Set {
			if l.ID == rowID(kind, key) && len(l.Holders) == holders {
				row = l
			}
		}
		return row != nil
	})
	return row
}

// shownOf is what the page sends to revoke a row's lock from those who are shown to hold it.
func shownOf(t *testing.T, row *uiLock) string {
	t.Helper()
	var holders []string
	for _, h := range row.Holders {
		holders = append(holders, h.ID)
	}
	body, err := json.Marshal(map[string]any{"row": row.ID, "holders": holders, "reason": "x"})
	require.NoError(t, err)
	return string(body)
}

func (c *uiClient) revokeShown(row *uiLock) int {
	c.Helper()
	r := c.request(http.MethodPost, c.base+"/revoke", shownOf(c.T, row))
	r.Header.Set("Origin", c.host)
	return c.do(r).StatusCode
}

// Readers, and holders of permits, come and go while somebody looks.
func TestThePageRevokesNobodyWhoCameLater(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := serveUI(t, masters, "--allow-revoke")
	client, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs()})
	require.NoError(t, err)
	defer client.Close()
	for kind, opt := range map[string]redlock.Option{"shared": redlock.WithShared(), "permits": redlock.WithPermits(4)} {
		var all []*redlock.Mutex
		hold := func() {
			m := client.NewMutex("k-"+string(kind), time.Hour, opt)
			require.NoError(t, m.TryLock(t.Context()))
			all = append(all, m)
		}
		hold()
		hold()
		row := c.row(kind, "k-"+string(kind), 2)
		hold()
		c.row(kind, "k-"+string(kind), 3)
		require.Equal(t, http.StatusOK, c.revokeShown(row))
		require.ErrorIs(t, all[0].Extend(t.Context()), redlock.ErrRevoked, kind)
		require.ErrorIs(t, all[1].Extend(t.Context()), redlock.ErrRevoked, kind)
		require.NoError(t, all[2].Extend(t.Context()), kind)
		require.Equal(t, http.StatusConflict, c.revokeShown(&uiLock{ID: row.ID}), "nobody is named")
	}
}

// A key is any bytes. JSON is UTF-8, and an address is short.
func TestThePageTellsKeysApartWhateverTheyAre(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	c := serveUI(t, masters, "--allow-revoke")
	client, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs()})
	require.NoError(t, err)
	defer client.Close()
	held := map[string]*redlock.Mutex{}
	for _, key := range []string{"k\xff", "k\xfe", "k\ufffd", strings.Repeat("\xff", 16384)} {
		held[key] = client.NewMutex(key, time.Hour)
		require.NoError(t, held[key].TryLock(t.Context()))
	}
	ids := map[string]bool{}
	for key := range held {
		row := c.row("plain", key, 1)
		require.False(t, ids[row.ID], "%.10q has the row of another key", key)
		ids[row.ID] = true
		c.events("/watch?row="+row.ID, func(_ string, data []byte) bool { return strings.Contains(string(data), `"state":"held"`) })
	}
	require.Equal(t, `k\xff`, c.row("plain", "k\xff", 1).Key)
	require.Equal(t, http.StatusOK, c.revokeShown(c.row("plain", "k\xff", 1)))
	for key, m := range held {
		err := m.Extend(t.Context())
		require.Equal(t, key == "k\xff", errors.Is(err, redlock.ErrRevoked), "%.10q: %v", key, err)
	}
}

// A browser sends cookies to all ports of a host, and another user's server may have one of them.
func TestAnotherPortIsNotToldTheSecret(t *testing.T) {
	t.Parallel()
	c := serveUI(t, redlocktest.Start(t, 1))
	told := make(chan string, 2)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { told <- r.Header.Get("Cookie") }))
	defer other.Close()
	for _, path := range []string{"/", "/page.js"} {
		c.get(other.URL + path)
		require.Empty(t, <-told)
	}
	require.Equal(t, http.StatusOK, c.get(c.base+"/").StatusCode)
}

// Whoever does not know the secret cannot occupy the server, and whoever does may look for long.
func TestTheServerWaitsForNoBody(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	c := serveUI(t, masters)
	slow, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(c.host, "http://"))
	require.NoError(t, err)
	defer slow.Close()
	require.NoError(t, slow.SetDeadline(time.Now().Add(patient)))
	first := true
	c.events("/events", func(event string, data []byte) bool {
		if first {
			first = false
			_, err = io.WriteString(slow, "POST /revoke HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n")
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, slow)
			require.NoError(t, err, "the server does not end the connection")
			begin(t, []string{mastersEnv(masters)}, "hold", atOnce, "k").assigned("REDLOCK_TOKEN")
		}
		return event == "locks" && strings.Contains(string(data), `"key":"k"`)
	})
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
		return &uiLock{ID: "plain k", Holder: "me", Ends: &at, Holders: []uiHolder{{Name: "me", Ends: new(at)}, {Name: "you", Ends: new(at)}},
			Waiters: []uiWaiter{{"him", at}, {"her", at}}}
	}
	require.True(t, row(time.Second).settle(row(1100*time.Millisecond)), "the answer took a while")
	require.False(t, row(2*time.Second).settle(row(time.Second)), "it was renewed")
	other := row(time.Second)
	other.Waiting = 1
	require.False(t, other.settle(row(time.Second)))
}

// One master that names clients without number keeps neither the page nor its end waiting.
func TestAMasterWithClientsWithoutNumber(t *testing.T) {
	t.Parallel()
	var list strings.Builder
	for i := 0; list.Len() < 15<<20; i++ {
		fmt.Fprintf(&list, "name=redlock/lib/v1/3-a/me addr=%d\n", i)
	}
	addr := liar(t, func(args []string) string {
		if slices.Equal(args, clientList) {
			return bulk(list.String())
		}
		return ""
	})
	c := serveUIAs(t, []string{mastersEnv(redlocktest.Start(t, 2)) + "," + addr})
	c.events("/events", func(event string, data []byte) bool {
		if event != "clients" {
			return false
		}
		var m struct{ Silent []string }
		require.NoError(t, json.Unmarshal(data, &m))
		require.Equal(t, []string{addr}, m.Silent)
		return true
	})
}

// One that calls itself by the password that it was told is shown without it.
func TestAMasterThatTellsThePageThePassword(t *testing.T) {
	t.Parallel()
	const password = "c0rrect-h0rse"
	c := serveUIAs(t, []string{"REDLOCK_PASSWORD=" + password, mastersEnv(redlocktest.Start(t, 2, redlocktest.WithPassword(password))) + "," + callsItself(t, password)})
	seen := map[string]bool{}
	c.events("/events", func(event string, data []byte) bool {
		require.NotContains(t, string(data), password, event)
		seen[event] = true
		return seen["clients"] && seen["findings"] && seen["masters"]
	})
}
