//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// Who has read an address that was used gets nothing with it, and the next browser gets the one that was printed then.
func TestAnAddressIsGoodForOneBrowser(t *testing.T) {
	t.Parallel()
	c := serveUI(t, redlocktest.Start(t, 1))
	stranger := *c
	stranger.http = &http.Client{}
	require.Equal(t, http.StatusUnauthorized, stranger.get(c.key).StatusCode)
	printed := func(n int) (addresses []string) {
		require.Eventually(t, func() bool {
			addresses = strings.Split(strings.TrimSpace(c.inv.out.String()), "\n")
			return len(addresses) == n
		}, patient, time.Millisecond)
		return addresses
	}
	next := printed(2)[1]
	require.NotEqual(t, c.key, next)
	second := *c
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	second.http = &http.Client{Jar: jar}
	for name, change := range map[string]func(*http.Request){ // what is refused leaves the address as it is
		"a name that leads here": func(r *http.Request) { r.Host = "attacker.example" },
		"another page":           func(r *http.Request) { r.Header.Set("Origin", "http://attacker.example") },
	} {
		r := c.request(http.MethodGet, next, "")
		change(r)
		require.Equal(t, http.StatusForbidden, stranger.do(r).StatusCode, name)
	}
	require.Equal(t, http.StatusOK, second.get(next).StatusCode)
	for _, browser := range []*uiClient{c, &second} {
		require.Equal(t, http.StatusOK, browser.get(c.base+"/").StatusCode, "both look")
	}
	require.Equal(t, http.StatusUnauthorized, second.get(next).StatusCode)
	printed(3)
}

func TestSoManyBrowsersAreLetInAtATime(t *testing.T) {
	t.Parallel()
	var printed []string
	d := newUIDoor(func(secret string) { printed = append(printed, secret) })
	require.Equal(t, []string{d.secret}, printed)
	asks := func(cookie string) *http.Request {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		require.NoError(t, err)
		r.AddCookie(&http.Cookie{Name: uiCookie, Value: cookie})
		return r
	}
	var cookies []string
	for range uiBrowsers + 1 { // nobody reads what is printed, and nobody waits for that
		cookies = append(cookies, d.enter(d.secret))
	}
	require.False(t, d.knows(asks(cookies[0])))
	for _, cookie := range cookies[1:] {
		require.True(t, d.knows(asks(cookie)))
	}
	for _, guess := range []string{"", printed[0], d.secret} {
		require.False(t, d.knows(asks(guess)))
	}
	require.Empty(t, d.enter(""))
	require.Empty(t, d.enter(printed[0]))
}

// A pipeListener hands out the other ends of pipes.
type pipeListener struct{ conns chan net.Conn }

func (l pipeListener) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l pipeListener) Close() error   { return nil }
func (l pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// Who reads no answers, and knows no secret, has a connection for a while and no longer.
func TestWhoReadsNoAnswerIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := uiServer{door: newUIDoor(func(string) {}), place: "/x/"}
		server, l := s.server(t.Context()), pipeListener{make(chan net.Conn)}
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(l) }()
		ours, theirs := net.Pipe()
		defer ours.Close()
		l.conns <- theirs
		close(l.conns)
		begun := time.Now()
		ours.SetDeadline(begun.Add(time.Hour))
		for {
			if _, err := io.WriteString(ours, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
				break // the server has ended it
			}
		}
		require.LessOrEqual(t, time.Since(begun), time.Minute)
		require.GreaterOrEqual(t, time.Since(begun), uiPatience)
		require.ErrorIs(t, <-ended, net.ErrClosed)
	})
}

// Connections are bounded, and strangers keep no browser out that has shown its cookie, nor one that comes.
func TestStrangersTakeNoBrowsersConnection(t *testing.T) {
	t.Parallel()
	tcp, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := uiServer{door: newUIDoor(func(string) {}), place: "/x/"}
	server, l := s.server(t.Context()), &uiListener{Listener: tcp}
	go server.Serve(l)
	defer server.Close()
	dial := func() net.Conn {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", tcp.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		require.NoError(t, c.SetDeadline(time.Now().Add(patient)))
		return c
	}
	asks := func(c net.Conn, cookie string) int {
		_, err := fmt.Fprintf(c, "GET /x/ HTTP/1.1\r\nHost: localhost\r\nCookie: %s=%s\r\n\r\n", uiCookie, cookie)
		require.NoError(t, err)
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		return answer.StatusCode
	}
	cookie := s.door.enter(s.door.secret)
	browser, first := dial(), dial()
	require.Equal(t, http.StatusOK, asks(browser, cookie))
	require.Equal(t, http.StatusUnauthorized, asks(first, "guessed"))
	for range uiConns {
		dial()
	}
	_, err = first.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "the oldest stranger is out")
	require.Equal(t, http.StatusOK, asks(dial(), cookie))
	require.Equal(t, http.StatusOK, asks(browser, cookie))
	l.mu.Lock()
	all, strangers := l.all, l.strangers.Len()
	l.mu.Unlock()
	require.Equal(t, uiConns, all)
	require.Equal(t, uiConns-2, strangers)
	server.Close()
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.all == 0 && l.strangers.Len() == 0
	}, patient, time.Millisecond)
}

// What masters, clients and holders have written is escaped in whatever the page is told.
func TestAllThatOthersWriteIsEscaped(t *testing.T) {
	t.Parallel()
	const evil = "a\u202eb\u2066\x00\x1b[31m\u009b\n\u2028\"\\<img>\U000e0041é漢"
	type row struct {
		Name  string            `json:"name"`
		From  []string          `json:"from"`
		Words map[string]string `json:"words"`
		N     int64             `json:"n"`
		None  *string           `json:"none"`
	}
	want := `a\u202eb\u2066\x00\x1b[31m\u009b\n\u2028"\<img>` + `\U000e0041é漢`
	var got row
	m := uiMessage("clients", row{evil, []string{evil, "", "\\", `"`}, map[string]string{evil: evil}, 1 << 40, nil})
	require.Equal(t, 3, strings.Count(string(m), "\n"), "%q", m)
	data, ok := strings.CutPrefix(string(m), "event: clients\ndata: ")
	require.True(t, ok)
	require.NoError(t, json.Unmarshal([]byte(data), &got))
	require.Equal(t, row{want, []string{want, "", "\\", `"`}, map[string]string{want: want}, 1 << 40, nil}, got)

	masters := redlocktest.Start(t, 1)
	named, err := new(net.Dialer).DialContext(t.Context(), "tcp", masters.Addr(0))
	require.NoError(t, err)
	defer named.Close()
	_, err = io.WriteString(named, "CLIENT SETNAME redlock/lib/v0.1.0/1-5e4ecf8c/billing%40prod%E2%80%AE%0Atrusted%00%1B[31m\r\n")
	require.NoError(t, err)
	_, err = named.Read(make([]byte, 10))
	require.NoError(t, err)
	c := serveUI(t, masters)
	c.events("/events", func(event string, data []byte) bool {
		var m struct{ Clients []struct{ Name string } }
		if event != "clients" {
			return false
		}
		require.NoError(t, json.Unmarshal(data, &m))
		for _, cl := range m.Clients {
			if strings.HasPrefix(cl.Name, "billing") {
				require.Equal(t, `billing@prod\u202e\ntrusted\x00\x1b[31m`, cl.Name)
				return true
			}
		}
		return false
	})
}
