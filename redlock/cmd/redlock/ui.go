package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
	"github.com/spf13/cobra"
)

func newUI() *cobra.Command {
	var f mastersFlags
	var s uiServer
	var listen string
	cmd := &cobra.Command{
		Use:   "ui [flags] [PATTERN]",
		Short: "Show locks, masters and clients in a browser, live",
		Long: `ui serves one page to browsers: the locks that match the PATTERN (see 'redlock
ls'), who holds them and who waits, the masters and what 'redlock doctor' finds,
and the clients. The page shows changes of locks and masters within a second,
and the clients every 10 s.

It listens on this machine alone. The address that it prints holds a secret, and
nobody gets the page without it. It is good for one browser: when it was opened,
ui prints the next one. If it was opened, and not by you, end ui. To look at it
from elsewhere, forward the port:

  ssh -N -L 7380:127.0.0.1:7380 host

If it listens on another address (--listen), who reads the network reads the
secret. Put a proxy with TLS before it then, and name the host by which browsers
ask for it (--host).

The page changes no lock. With --allow-revoke it can revoke one: see 'redlock
revoke'. While a browser looks, ui lists the locks as 'redlock ls' does, twice a
second at most, and examines the masters every minute as 'redlock doctor' does,
which takes a lock of its own on each for a moment.

Exit status: 0 a signal has ended it, 64 wrong usage, 74 the address cannot be
listened on, or write error.
` + mastersHelp,
		Example: `  redlock ui
  redlock ui 'lock:*' --allow-revoke
  redlock ui --listen 127.0.0.1:0              any free port`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				if s.pattern = args[0]; s.pattern == "" {
					return usageError("without a PATTERN, all locks are shown", "the PATTERN is empty")
				}
			}
			var err error
			if s.set, err = f.masterSet(); err != nil {
				return err
			}
			ctx, stop := untilSignal()
			defer stop()
			return s.run(ctx, listen)
		},
	}
	f.register(cmd)
	flags := cmd.Flags()
	flags.StringVar(&listen, "listen", "127.0.0.1:7380", "the `address` to listen on; port 0 is any free one")
	flags.StringArrayVar(&s.hosts, "host", nil, "a `name` by which browsers ask for the page, beside localhost and IP addresses")
	flags.BoolVar(&s.allowRevoke, "allow-revoke", false, "let the page revoke locks")
	return cmd
}

// A uiServer serves the page.
type uiServer struct {
	set         masterSet
	pattern     string
	hosts       []string
	allowRevoke bool

	client *redlock.Client
	door   *uiDoor
	place  string // the path of the page: see uiCookie
	live   uiState
}

// A browser keeps the secret in a cookie. It shows a host's cookies to the servers of all ports, and one of these can be
// another user's. So the cookie is for the path of the page alone, and nobody can guess that.
const uiCookie = "redlock-ui"

const (
	uiWatches  = 64               // how many streams there are at most: a browser has one or two
	uiPatience = 20 * time.Second // how long a browser may take for an answer, or a message
)

func (s *uiServer) run(ctx context.Context, listen string) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return &failure{exitIO, err, "give another address: --listen 127.0.0.1:0 takes any free port"}
	}
	defer l.Close()
	if s.client, err = s.set.openAnyway(ctx, "ui"); err != nil {
		return err
	}
	defer s.client.Close()
	if err := checkPattern(s.client, s.pattern); err != nil {
		return usageError("", "%w", err)
	}
	address := l.Addr().(*net.TCPAddr)
	s.place = "/" + rand.Text() + "/"
	out := newTerminal(os.Stdout)
	s.door = newUIDoor(func(secret string) { out.printf("http://%s/?key=%s\n", uiAddress(address), secret) })
	if err := out.failure(); err != nil {
		return err
	}

	ctx, cancel := context.WithCancel(ctx)
	s.live.begin(ctx, s)
	defer s.live.wait()
	defer cancel()
	server := s.server(ctx)
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	go s.door.run(ctx) // nobody waits for it: a terminal may stand still
	if !address.IP.IsLoopback() {
		complain("who reads the network between browsers and "+uiAddress(address)+" reads the page's secret", "put a proxy with TLS before it")
	}
	if err := server.Serve(&uiListener{Listener: l}); !errors.Is(err, http.ErrServerClosed) {
		return &failure{exitIO, err, ""}
	}
	return nil
}

// server serves the page until ctx ends.
func (s *uiServer) server(ctx context.Context) *http.Server {
	return &http.Server{
		Handler:        s.handler(),
		ReadTimeout:    10 * time.Second, // of a stream, newStream ends it
		WriteTimeout:   uiPatience,       // of a stream, each message has as long
		IdleTimeout:    time.Minute,
		MaxHeaderBytes: 16 << 10,
		BaseContext:    func(net.Listener) context.Context { return ctx }, // which ends the streams
		ConnContext:    withConn,
	}
}

// checkPattern returns what is wrong with a pattern. It asks no master.
func checkPattern(client *redlock.Client, pattern string) error {
	done, cancel := context.WithCancel(context.Background())
	cancel()
	for _, err := range client.Locks(done, pattern) {
		var round *redlock.RoundError
		if err != nil && !errors.As(err, &round) && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return nil
}

// uiAddress is what a browser on this machine is to ask.
func uiAddress(a *net.TCPAddr) string {
	ip, _ := netip.AddrFromSlice(a.IP)
	if ip = ip.Unmap(); ip.IsUnspecified() {
		ip = netip.MustParseAddr("127.0.0.1")
	}
	return netip.AddrPortFrom(ip, uint16(a.Port)).String()
}

//go:embed ui
var uiFiles embed.FS

// The page gets nothing from elsewhere, sends nothing there, runs no script but its own, and is shown in no other page.
const uiPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

func (s *uiServer) handler() http.Handler {
	pages := http.NewServeMux()
	for path, file := range map[string]string{"GET /{$}": "page.html", "GET /page.js": "page.js", "GET /page.css": "page.css"} {
		pages.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, uiFiles, "ui/"+file) })
	}
	pages.HandleFunc("GET /events", s.events)
	pages.HandleFunc("GET /watch", s.watch)
	pages.HandleFunc("POST /revoke", s.revoke)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", uiPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case !s.knownHost(r.Host):
			http.Error(w, "This host is not named with --host.", http.StatusForbidden)
		case !sameOrigin(r):
			http.Error(w, "Another page must not ask for this.", http.StatusForbidden)
		case r.Method == http.MethodGet && r.URL.Path == "/":
			cookie := s.door.enter(r.URL.Query().Get("key"))
			if cookie == "" {
				http.Error(w, unknownBrowser, http.StatusUnauthorized)
				return
			}
			http.SetCookie(w, &http.Cookie{Name: uiCookie, Value: cookie, Path: s.place, HttpOnly: true, SameSite: http.SameSiteStrictMode})
			// A redirect would carry the SameSite of the page that led here: another one's leaves the cookie behind.
			h.Set("Content-Type", "text/html; charset=utf-8")
			h.Set("Refresh", "0; url="+s.place)
			fmt.Fprintf(w, "<!doctype html><title>redlock</title><a href=%q>redlock</a>\n", s.place)
		case !s.door.knows(r):
			http.Error(w, unknownBrowser, http.StatusUnauthorized)
		default:
			welcome(r)
			http.StripPrefix(strings.TrimSuffix(s.place, "/"), pages).ServeHTTP(w, r)
		}
	})
}

const unknownBrowser = "Open the address that redlock ui has printed last: it holds a secret, and is good for one browser."

// knownHost reports whether a browser asked for a host that is this one. A page of another host whose name has come
// to lead here (DNS rebinding) has that name.
func (s *uiServer) knownHost(asked string) bool {
	host := asked
	if name, _, err := net.SplitHostPort(asked); err == nil {
		host = name
	}
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return true
	}
	return strings.EqualFold(host, "localhost") ||
		slices.ContainsFunc(s.hosts, func(name string) bool { return strings.EqualFold(host, name) })
}

// sameOrigin reports whether no page of another origin asks. A browser says which one does, of all that is no
// navigation, and of all that can change something.
func sameOrigin(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" || r.Method != http.MethodGet {
		u, err := url.Parse(origin)
		return err == nil && u.Host == r.Host && u.Host != ""
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "cross-site", "same-site":
		return r.Header.Get("Sec-Fetch-Mode") == "navigate"
	}
	return true
}

// A stream is a stream of events to a browser (server-sent events).
type stream struct {
	w http.ResponseWriter
	c *http.ResponseController
}

func newStream(w http.ResponseWriter) stream {
	w.Header().Set("Content-Type", "text/event-stream")
	s := stream{w, http.NewResponseController(w)}
	s.c.SetReadDeadline(time.Time{}) // the browser sends nothing more
	return s
}

// send writes messages. One that the browser does not take within a while is an error.
func (s stream) send(messages ...[]byte) error {
	if err := s.c.SetWriteDeadline(time.Now().Add(uiPatience)); err != nil {
		return err
	}
	for _, m := range messages {
		if _, err := s.w.Write(m); err != nil {
			return err
		}
	}
	return s.c.Flush()
}

// uiMessage is an event with what it says.
func uiMessage(event string, v any) []byte {
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", event, uiJSON(v))
}

// uiJSON is all that a browser is told: of v each text as [conn.Printable] has it. Masters, clients and holders have
// written most of it.
func uiJSON(v any) []byte {
	data, err := json.Marshal(v) // it escapes < and >, and has no line end
	if err != nil {
		panic(err) // it is one of our types
	}
	var out []byte
	for len(data) > 0 {
		begin := bytes.IndexByte(data, '"')
		if begin < 0 {
			break
		}
		end := begin + 1
		for data[end] != '"' {
			if data[end] == '\\' {
				end++
			}
			end++
		}
		var text string
		if err := json.Unmarshal(data[begin:end+1], &text); err != nil {
			panic(err) // we have just written it
		}
		text = conn.Printable(text)
		said, _ := json.Marshal(text)
		out, data = append(append(out, data[:begin]...), said...), data[end+1:]
	}
	return append(out, data...)
}

// events sends all there is, and then each change.
func (s *uiServer) events(w http.ResponseWriter, r *http.Request) {
	sub, first, ok := s.live.join()
	if !ok {
		http.Error(w, "Too many browsers look at this.", http.StatusServiceUnavailable)
		return
	}
	defer s.live.leave(sub)
	out := newStream(w)
	if out.send(append([][]byte{[]byte("retry: 1000\n")}, first...)...) != nil {
		return
	}
	alive := time.NewTicker(15 * time.Second) // a browser that has gone is noticed by a write
	defer alive.Stop()
	for {
		var err error
		select {
		case m, ok := <-sub.messages:
			if !ok { // it was too slow: it asks again, and gets all there is
				return
			}
			err = out.send(m)
		case <-alive.C:
			err = out.send([]byte(":\n\n"))
		case <-r.Context().Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// watch sends each change of the holder of a row's lock.
func (s *uiServer) watch(w http.ResponseWriter, r *http.Request) {
	if !s.live.enter() {
		http.Error(w, "Too many browsers look at this.", http.StatusServiceUnavailable)
		return
	}
	defer s.live.exit()
	out := newStream(w)
	if out.send([]byte("retry: 5000\n\n")) != nil {
		return
	}
	lock, ok := s.live.lock(r.URL.Query().Get("row"))
	if !ok { // the browser asks again
		return
	}
	for l, err := range s.client.Watch(r.Context(), lock.Key) {
		if out.send(uiMessage("change", newWatchEvent(lock.Key, l, err))) != nil {
			return
		}
	}
	<-r.Context().Done() // it has said why it has ended, and would say so again
}

// revoke takes a lock away from those who held it when the page showed it.
func (s *uiServer) revoke(w http.ResponseWriter, r *http.Request) {
	answer := func(status int, text string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		w.Write(uiJSON(map[string]string{"error": text}))
	}
	if !s.allowRevoke {
		answer(http.StatusForbidden, "redlock ui was started without --allow-revoke")
		return
	}
	var asked struct {
		Row     string   `json:"row"`
		Holders []string `json:"holders"` // those of the row that were shown
		Reason  string   `json:"reason"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&asked); err != nil {
		answer(http.StatusBadRequest, err.Error())
		return
	}
	lock, ok := s.live.lock(asked.Row)
	if !ok {
		answer(http.StatusConflict, "nobody holds it any more")
		return
	}
	if lock.Kind == "other" {
		answer(http.StatusConflict, "it is "+behind.OfHolder(&lock.Holders[0]).Other)
		return
	}
	revoked := 0
	for _, h := range lock.Holders {
		if !slices.Contains(asked.Holders, holderID(h)) {
			continue
		}
		opts := append(kindOptions(lock), redlock.WithToken(h.Token.Reveal()))
		switch err := s.client.Revoke(r.Context(), lock.Key, asked.Reason, opts...); {
		case errors.Is(err, redlock.ErrNotHeld):
		case errors.Is(err, redlock.ErrNoQuorum):
			answer(http.StatusBadGateway, err.Error())
			return
		case err != nil:
			answer(http.StatusBadRequest, err.Error())
			return
		default:
			revoked++
			complain(fmt.Sprintf("%q was revoked on the page: %s", lock.Key, asked.Reason), "")
		}
	}
	if revoked == 0 {
		answer(http.StatusConflict, "it has changed hands: look again")
		return
	}
	answer(http.StatusOK, "")
}
