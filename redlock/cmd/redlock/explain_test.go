//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/flight"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func TestExplainTellsOfTwoHolders(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 6)
	dir := t.TempDir()
	var names []string
	var holders []*invocation
	for i, list := range [][]string{masters.Addrs()[:3], masters.Addrs()[3:]} { // their lists differ
		names = append(names, filepath.Join(dir, string(rune('a'+i))))
		env := []string{"REDLOCK_MASTERS=" + list[0] + "," + list[1] + "," + list[2]}
		s := begin(t, env, "hold", "--restart-guard=0", "--owner", string(rune('a'+i)), "--flight", names[i], "k")
		s.assigned("REDLOCK_TOKEN")
		holders = append(holders, s)
	}
	for _, s := range holders { // as long as they go on, no record shows that they rely on their locks
		require.Zero(t, s.endBy(syscall.SIGTERM))
	}
	status, stdout, stderr := do(t, nil, append([]string{"explain"}, names...)...)
	require.Equal(t, exitNo, status, stderr)
	require.Contains(t, stdout, `b took "k" while a still had it`)
	require.Contains(t, stdout, "two lists of masters")
	requireReadable(t, stdout)
	status, stdout, _ = do(t, nil, append([]string{"explain", "--json"}, names...)...)
	require.Equal(t, exitNo, status)
	var said struct {
		OK       bool
		Records  []string
		Findings []struct {
			Key, Cause, What string
			On               []string
			Certain          bool
		}
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &said))
	require.False(t, said.OK)
	require.Len(t, said.Records, 2)
	require.True(t, slices.ContainsFunc(said.Findings, func(f struct {
		Key, Cause, What string
		On               []string
		Certain          bool
	}) bool {
		return f.Key == "k" && f.Cause == "two lists of masters" && f.Certain && f.On != nil
	}), stdout)
	status, stdout, _ = do(t, nil, "explain", "--key", "k", names[0])
	require.Zero(t, status)
	require.Contains(t, stdout, "a takes the lock")
	status, stdout, _ = do(t, nil, "explain", "--key", "nobody's", names[0], names[1])
	require.Zero(t, status, "that of another lock is not of interest")
	require.Contains(t, stdout, `nobody has held or wanted "nobody's" here`)
	for _, args := range [][]string{{"explain"}, {"explain", filepath.Join(dir, "none")}, {"explain", os.Args[0]}, {"explain", "http://127.0.0.1:1/"}} {
		status, _, stderr = do(t, nil, args...)
		require.Equal(t, exitUsage, status, args)
		require.NotEmpty(t, stderr)
	}
}

func TestExplainWritesAPage(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	dir := t.TempDir()
	record, page := filepath.Join(dir, "record"), filepath.Join(dir, "page.html")
	s := begin(t, []string{mastersEnv(masters)}, "hold", "--restart-guard=0", "--owner", "a", "--flight", record, "k")
	s.assigned("REDLOCK_TOKEN")
	for range 2 { // the second time, it is replaced
		status, stdout, stderr := do(t, nil, "explain", "--html", page, record)
		require.Zero(t, status, stderr)
		require.NotEmpty(t, stdout, "the text comes all the same")
		info, err := os.Stat(page)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode(), "who may see the records may see it")
	}
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	require.True(t, strings.Contains(string(text), "Nothing is remarkable."))

	// A file that is no such page stays, and so does what a link leads to.
	before, err := os.ReadFile(record)
	require.NoError(t, err)
	link := filepath.Join(dir, "link.html")
	require.NoError(t, os.Symlink(page, link))
	for _, name := range []string{record, dir, link, os.DevNull} {
		status, _, stderr := do(t, nil, "explain", "--html", name, record)
		require.Equal(t, exitUsage, status, name)
		require.Contains(t, stderr, "no page of redlock explain")
	}
	after, err := os.ReadFile(record)
	require.NoError(t, err)
	require.Equal(t, before[:4096], after[:4096])
	status, _, stderr := do(t, nil, "explain", "--html", filepath.Join(dir, "none", "page.html"), record)
	require.Equal(t, exitIO, status)
	require.Contains(t, stderr, "--html: ")
	names, err := filepath.Glob(filepath.Join(dir, ".redlock-*"))
	require.NoError(t, err)
	require.Empty(t, names, "nothing is left behind")
}

// A service may ask for a password, or for a key in the address. Whom the story is sent to, learns none.
func TestExplainTellsNoPasswordOfAnAddress(t *testing.T) {
	t.Parallel()
	rec, err := flight.New(flight.Options{})
	require.NoError(t, err)
	for range 2 { // whose names do not differ, so the addresses tell them apart
		_, err = rec.Attach(redlock.Config{Owner: "a", Masters: []string{"a:1"}})
		require.NoError(t, err)
	}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if _, password, _ := q.BasicAuth(); password != "passphrase" || q.URL.Query().Get("key") != "sesame" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		rec.ServeHTTP(w, q)
	}))
	defer service.Close()
	page := filepath.Join(t.TempDir(), "page.html")
	address := strings.Replace(service.URL, "://", "://me:passphrase@", 1) + "/debug/redlock?key=sesame"
	status, stdout, stderr := do(t, nil, "explain", "--html", page, address)
	require.Zero(t, status, stderr)
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	for _, said := range []string{stdout, string(text)} {
		require.True(t, strings.Contains(said, service.URL+"/debug/redlock"))
		require.False(t, strings.Contains(said, "passphrase"))
		require.False(t, strings.Contains(said, "sesame"))
	}
	status, _, stderr = do(t, nil, "explain", address+"x", strings.Replace(address, service.URL[7:], "127.0.0.1:1", 1))
	require.Equal(t, exitUsage, status)
	require.NotContains(t, stderr, "sesame")
	require.NotContains(t, stderr, "passphrase")
}

// A server may say what it likes, and say it with anything.
func TestExplainDistrustsAServer(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	answers := []string{
		"HTTP/1.1 500 \x1b[31mred\u202e\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\nno gzip",
		"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 302 Found\r\nLocation: http://\x1b[31m/\r\nContent-Length: 0\r\n\r\n",
		"\x1b[31mnonsense\r\n\r\n",
	}
	go func() {
		for _, answer := range answers {
			c, err := l.Accept()
			if err != nil {
				return
			}
			http.ReadRequest(bufio.NewReader(c))
			io.WriteString(c, answer)
			c.Close()
		}
	}()
	for _, answer := range answers {
		status, stdout, stderr := do(t, nil, "explain", "http://user:secret@"+l.Addr().String()+"/?secret")
		require.Equal(t, exitUsage, status, "%q: %s", answer, stderr)
		require.Empty(t, stdout)
		require.NotContains(t, stderr, "\x1b")
		require.NotContains(t, stderr, "\u202e")
		require.NotContains(t, stderr, "secret")
		t.Log(stderr)
	}
	for _, address := range []string{"http://user:sec/ret@host/?key=secret", "http://user:%secret@host/"} {
		status, _, stderr := do(t, nil, "explain", address)
		require.Equal(t, exitUsage, status, stderr)
		require.NotContains(t, stderr, "sec")
	}
}
