package conn_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/resp"
)

// authority signs certificates for one test.
type authority struct {
	tb    testing.TB
	cert  *x509.Certificate
	key   *ecdsa.PrivateKey
	roots *x509.CertPool
	dir   string
}

func newAuthority(tb testing.TB) *authority {
	a := &authority{tb: tb, dir: tb.TempDir(), roots: x509.NewCertPool()}
	a.cert, a.key = a.sign("ca", &x509.Certificate{
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	a.roots.AddCert(a.cert)
	return a
}

// sign makes a certificate and writes it and its key to name.crt and name.key.
func (a *authority) sign(name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.tb, err)
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.Subject = pkix.Name{CommonName: name}
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := template, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(a.tb, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.tb, err)
	for file, block := range map[string]*pem.Block{
		".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: pkcs8},
	} {
		require.NoError(a.tb, os.WriteFile(a.file(name+file), pem.EncodeToMemory(block), 0o600))
	}
	cert, err := x509.ParseCertificate(der)
	require.NoError(a.tb, err)
	return cert, key
}

// pair is a certificate made by sign, for use by crypto/tls.
func (a *authority) pair(name string) tls.Certificate {
	cert, err := tls.LoadX509KeyPair(a.file(name+".crt"), a.file(name+".key"))
	require.NoError(a.tb, err)
	return cert
}

func (a *authority) server(name string) *authority {
	a.sign(name, &x509.Certificate{
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// startTLS starts a master that speaks TLS as well, and returns that address of it.
func startTLS(tb testing.TB, a *authority, config ...string) (m *master, addr string) {
	a.server("server")
	m = start(tb, append([]string{
		"tls-port", "tls-cert-file " + a.file("server.crt"), "tls-key-file " + a.file("server.key"),
		"tls-ca-cert-file " + a.file("ca.crt"), "tls-auth-clients no",
	}, config...)...)
	return m, fmt.Sprintf("127.0.0.1:%d", m.tls)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	for _, version := range []string{"TLSv1.2", "TLSv1.3"} {
		t.Run(version, func(t *testing.T) {
			_, addr := startTLS(t, a, "requirepass pw", "tls-protocols "+version)
			opt := conn.Options{
				TLS: &tls.Config{RootCAs: a.roots}, Password: conn.NewSecret("pw"), Tracking: true,
				Scripts: []string{oneScript}, Limits: resp.Limits{Bulk: 1 << 20},
			}
			_, port, _ := net.SplitHostPort(addr)
			for _, addr := range []string{addr, "redis://" + addr + "/1", "rediss://" + addr, "rediss://localhost:" + port} {
				l := newLine(t, dial(t, addr, opt))
				require.Equal(t, 3, l.Server().Proto)
				require.Empty(t, l.Server().Missing)
				long := strings.Repeat("x", 100_000) // several records, and more than the buffers
				if network(t) != nil {
					long = long[:5000]
				}
				require.True(t, l.do("SET", "k", long).Is("OK"))
				require.True(t, l.do("GET", "k").Is(long))
				require.Zero(t, l.Unsent())
			}
			require.Nil(t, opt.TLS.NextProtos)
			require.Empty(t, opt.TLS.ServerName, "the caller's configuration is not changed")

		})
	}
}

func dialTLS(tb testing.TB, addr string, config *tls.Config) (*conn.Conn, error) {
	tb.Helper()
	c, err := conn.Dial(tb.Context(), parse(tb, "rediss://"+addr), conn.Options{TLS: config, DialTimeout: patient})
	if err == nil {
		tb.Cleanup(func() { c.Close() })
		return c, nil
	}
	require.Nil(tb, c)
	return nil, err
}

// What no further try can change is refused, and says what to do. The error of crypto/tls is in it.
func TestTLSThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.sign("client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	stranger := newAuthority(t)
	stranger.sign("client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	a.sign("no-server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	_, clients := startTLS(t, a, "tls-cert-file "+a.file("no-server.crt"), "tls-key-file "+a.file("no-server.key"))
	for _, version := range []string{"TLSv1.2", "TLSv1.3"} {
		_, addr := startTLS(t, a, "tls-auth-clients yes", "tls-protocols "+version)
		ours := []tls.Certificate{a.pair("client")}
		for name, test := range map[string]struct {
			config *tls.Config
			remedy string
			wraps  any
		}{
			"authority": {&tls.Config{Certificates: ours}, "RootCAs", new(x509.UnknownAuthorityError)},
			"name":      {&tls.Config{Certificates: ours, RootCAs: a.roots, ServerName: "other"}, "a name that stands in its certificate", new(x509.HostnameError)},
			"expired": {&tls.Config{Certificates: ours, RootCAs: a.roots, Time: func() time.Time { return time.Now().Add(24 * time.Hour) }},
				"our clock", new(x509.CertificateInvalidError)},
			"no certificate of ours": {&tls.Config{RootCAs: a.roots}, "--cert and --key", new(*net.OpError)},
			"a stranger's":           {&tls.Config{RootCAs: a.roots, Certificates: []tls.Certificate{stranger.pair("client")}}, "--cert and --key", new(*net.OpError)},
			"a client's":             {&tls.Config{RootCAs: a.roots}, "get another certificate for the master", new(x509.CertificateInvalidError)},
		} {
			at, err := addr, error(nil)
			if name == "a client's" {
				at = clients
			}
			for range 20 { // a server that ends the connection at once can take its alert back
				if _, err = dialTLS(t, at, test.config); errors.Is(err, conn.ErrRefused) {
					break
				}
				require.Error(t, err)
			}
			require.ErrorIs(t, err, conn.ErrRefused, "%s, %s", version, name)
			require.ErrorContains(t, err, test.remedy, "%s, %s", version, name)
			require.ErrorAs(t, err, test.wraps, "%s, %s", version, name)
			require.NotContains(t, err.Error(), "HELLO")
		}
	}
}

func TestTLSClientCertificates(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.sign("client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	_, addr := startTLS(t, a, "tls-auth-clients yes")
	c, err := dialTLS(t, addr, &tls.Config{RootCAs: a.roots, Certificates: []tls.Certificate{a.pair("client")}})
	require.NoError(t, err)
	require.True(t, newLine(t, c).do("PING").Is("PONG"))
}

// Certificates can come with the credentials. They go before those of the options, with the master and with its sentinels.
func TestCertificatesThatComeWithTheCredentials(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.sign("client", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	_, addr := startTLS(t, a, "tls-auth-clients yes")
	plain := sentinelAt(t, addr)
	plain.answer("SUBSCRIBE", subscribed)
	front, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{a.pair("server")}, ClientCAs: a.roots, ClientAuth: tls.RequireAndVerifyClientCert})
	require.NoError(t, err)
	t.Cleanup(func() { front.Close() })
	go func() {
		for {
			c, err := front.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				behind, err := net.Dial("tcp", plain.addr)
				if err != nil {
					return
				}
				defer behind.Close()
				go func() {
					io.Copy(behind, c)
					behind.Close()
				}()
				io.Copy(c, behind)
			}()
		}
	}()
	var told atomic.Pointer[string]
	opt := conn.Options{TLS: &tls.Config{}, DialTimeout: patient, Credentials: func(_ context.Context, master string) (conn.Credentials, error) {
		told.Store(&master)
		return conn.Credentials{TLS: &tls.Config{RootCAs: a.roots, Certificates: []tls.Certificate{a.pair("client")}}}, nil
	}}
	group := "sentinels://" + front.Addr().String() + "/g"
	for address, want := range map[string]string{"redis://user:secret@" + addr: addr, group: group} {
		c, err := conn.Dial(t.Context(), parse(t, address), opt)
		require.NoError(t, err)
		c.Close()
		require.Equal(t, parse(t, want).String(), *told.Load())
	}
	require.Equal(t, addr, soon(t, following(t, parse(t, group), opt)))

	opt.Credentials = nil
	for _, address := range []string{addr, group} {
		_, err := conn.Dial(t.Context(), parse(t, address), opt)
		require.ErrorContains(t, err, "certificate")
	}
}

// A server may have been told the password before it shows this certificate.
func TestPasswordIsHiddenInACertificate(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.sign("server", &x509.Certificate{DNSNames: []string{"hunter2.example"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	addr := conntest.Listen(t, func(c net.Conn) {
		tls.Server(c, &tls.Config{Certificates: []tls.Certificate{a.pair("server")}}).Handshake()
	})
	_, err := conn.Dial(t.Context(), parse(t, addr), conn.Options{TLS: &tls.Config{RootCAs: a.roots, ServerName: "other.example"},
		Password: conn.NewSecret("hunter2"), DialTimeout: patient})
	require.ErrorContains(t, err, "***.example")
	require.NotContains(t, err.Error(), "hunter2")
	var wrong x509.HostnameError
	require.ErrorAs(t, err, &wrong)
}

func TestTLSBefore12IsNotSpoken(t *testing.T) {
	t.Parallel()
	a := newAuthority(t).server("server")
	old := &tls.Config{Certificates: []tls.Certificate{a.pair("server")}, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	addr := conntest.Listen(t, func(c net.Conn) { tls.Server(c, old).Handshake() })
	_, err := dialTLS(t, addr, &tls.Config{RootCAs: a.roots, MinVersion: tls.VersionTLS10})
	require.ErrorContains(t, err, "protocol version")
}

func TestAPlainAddressOfATLSPortIsExplained(t *testing.T) {
	t.Parallel()
	_, addr := startTLS(t, newAuthority(t))
	require.ErrorContains(t, refuse(t, addr, conn.Options{}), "rediss://")
}

func TestATLSAddressOfAPlainPortIsExplained(t *testing.T) {
	t.Parallel()
	addr := conntest.Listen(t, func(c net.Conn) {
		io.WriteString(c, "-ERR Protocol error: too big inline request\r\n")
		io.Copy(io.Discard, c)
	})
	_, err := dialTLS(t, addr, nil)
	require.ErrorContains(t, err, "a port without TLS?")
	require.NotErrorIs(t, err, conn.ErrRefused, "it may be another's for a moment")
}

// A plain Redis waits for the end of a line. That is mostly not in a hello of TLS.
func TestATLSAddressOfASilentPortIsExplained(t *testing.T) {
	t.Parallel()
	const guess = "the dial timeout of 50ms passed: i/o timeout; it has said nothing to a TLS hello yet: it is far away or busy, or this is a port without TLS"
	for what, says := range map[string]bool{"a server that waits": false, "one that hangs in its handshake": true} {
		addr := parse(t, "rediss://"+conntest.Listen(t, func(c net.Conn) {
			if says {
				c.Write([]byte{22, 3, 3, 0}) // a part of a record's head
			}
			io.Copy(io.Discard, c)
		}))
		_, err := conn.Dial(t.Context(), addr, conn.Options{DialTimeout: 50 * time.Millisecond})
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, what)
		require.NotErrorIs(t, err, context.DeadlineExceeded, what)
		require.Equal(t, !says, strings.Contains(err.Error(), guess), "%s: %v", what, err)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err = conn.Dial(ctx, addr, conn.Options{})
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded, what)
		require.Equal(t, !says, strings.Contains(err.Error(), "a port without TLS"), "%s: %v", what, err)
	}
}

func TestTLSBurstIsOneWrite(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	_, addr := startTLS(t, a)
	var stream *counting
	c := dial(t, addr, conn.Options{TLS: &tls.Config{RootCAs: a.roots}, Wrap: func(_ string, rw io.ReadWriter) io.ReadWriter {
		stream = &counting{ReadWriter: rw}
		return stream
	}})
	require.Equal(t, 2, stream.writes, "the ClientHello, and the Finished together with the handshake of Redis")
	flushed, err := c.Send(bytes.Repeat(resp.AppendCommand(nil, "PING"), 1000))
	require.NoError(t, err)
	require.True(t, flushed)
	require.Equal(t, 3, stream.writes)
}

func TestTLSSendingAndReceivingAtOnce(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	_, addr := startTLS(t, a)
	sendAndReceiveAtOnce(t, dial(t, addr, conn.Options{TLS: &tls.Config{RootCAs: a.roots}}))
}

func TestTLSResetsAtEveryByte(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	_, addr := startTLS(t, a)
	for _, side := range []string{"read", "write"} {
		for at, failed := int64(1), true; failed; at += 13 {
			faults := &conntest.Faults{ResetRead: at}
			if side == "write" {
				faults = &conntest.Faults{ResetWrite: at}
			}
			c, err := conn.Dial(t.Context(), parse(t, addr), conn.Options{
				TLS: &tls.Config{RootCAs: a.roots}, Wrap: faults.Wrap, DialTimeout: patient,
			})
			if failed = err != nil; !failed {
				require.NoError(t, c.Close())
				continue
			}
			require.ErrorContains(t, err, "reset")
			require.NotErrorIs(t, err, conn.ErrRefused)
		}
	}
}

// pairTLS is pair over TLS: the server's end is crypto/tls.
func pairTLS(tb testing.TB) (*conn.Conn, *tls.Conn) {
	return pairTLSOf(tb, newAuthority(tb).server("server"), tls.VersionTLS13, conn.Options{})
}

func pairTLSOf(tb testing.TB, a *authority, version uint16, opt conn.Options) (*conn.Conn, *tls.Conn) {
	config := &tls.Config{Certificates: []tls.Certificate{a.pair("server")}, MaxVersion: version}
	peers := make(chan *tls.Conn, 1)
	done := make(chan struct{})
	addr := conntest.Listen(tb, func(c net.Conn) {
		peer := tls.Server(c, config)
		peer.Read(make([]byte, 4096))
		io.WriteString(peer, hello+"-ERR no\r\n-ERR no\r\n")
		peers <- peer
		<-done
	})
	tb.Cleanup(func() { close(done) })
	opt.TLS = &tls.Config{RootCAs: a.roots}
	return dial(tb, addr, opt), soon(tb, peers)
}

// A server may send a session ticket right behind its handshake. The end of it can be read together with
// the handshake, and be decrypted only with the first answer. That depends on how long the certificate is.
func TestTLSHandshakeMayBringMoreThanItself(t *testing.T) {
	t.Parallel()
	for pad := 0; pad < 420; pad += 3 {
		a := newAuthority(t)
		names := []string{"localhost"}
		for left := pad; left > 0; left -= 48 {
			names = append(names, strings.Repeat("a", max(1, min(left, 48)-7))+".test")
		}
		a.sign("server", &x509.Certificate{DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
		config := &tls.Config{Certificates: []tls.Certificate{a.pair("server")}}
		addr := conntest.Listen(t, func(c net.Conn) {
			peer := tls.Server(c, config)
			peer.Read(make([]byte, 4096))
			io.WriteString(peer, hello+"-ERR no\r\n-ERR no\r\n")
			io.Copy(io.Discard, peer)
		})
		c := dial(t, addr, conn.Options{TLS: &tls.Config{RootCAs: a.roots, ClientSessionCache: tls.NewLRUClientSessionCache(1)}})
		require.NoError(t, c.Close())
	}
}

func TestTLSGoodbye(t *testing.T) {
	t.Parallel()
	t.Run("ours", func(t *testing.T) {
		c, peer := pairTLS(t)
		_, err := c.Send([]byte("bye"))
		require.NoError(t, err)
		require.NoError(t, c.Close())
		all, err := io.ReadAll(peer)
		require.NoError(t, err, "it was told of the end")
		require.Equal(t, "bye", string(all))
	})
	t.Run("theirs, with data before it", func(t *testing.T) {
		c, peer := pairTLS(t)
		p := newPoller(t)
		require.NoError(t, p.Add(c, 1, conn.Readable))
		_, err := io.WriteString(peer, "+last\r\n")
		require.NoError(t, err)
		require.NoError(t, peer.Close())
		got := 0
		for err == nil {
			wait(t, p)
			var n int
			n, err = c.Receive()
			got += n
		}
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, 7, got)
		v, err := c.Next()
		require.NoError(t, err)
		require.True(t, v.Is("last"))
	})
}

// What a slow master does not read is kept, encrypted and in order, and flushed later.
func TestTLSSendKeepsWhatTheSocketDoesNotTake(t *testing.T) {
	t.Parallel()
	c, peer := pairTLS(t)
	want := fill(t, c)
	flushed, err := c.Send([]byte("end"))
	require.NoError(t, err)
	require.False(t, flushed)
	want = append(want, "end"...)
	p := newPoller(t)
	require.NoError(t, p.Add(c, 1, conn.Writable))
	got := make([]byte, len(want))
	read := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(peer, got)
		read <- err
	}()
	for !flushed {
		wait(t, p)
		flushed, err = c.Flush()
		require.NoError(t, err)
	}
	require.NoError(t, soon(t, read))
	require.True(t, bytes.Equal(want, got))
}

// A server may ask for new keys at any time. The reading side writes the answer while the
// sending side sends. Only OpenSSL can be made to ask.
func TestTLSKeyUpdates(t *testing.T) {
	t.Parallel()
	a := newAuthority(t).server("server")
	server := exec.Command("openssl", "s_server", "-accept", "0", "-tls1_3", // on a free port
		"-cert", a.file("server.crt"), "-key", a.file("server.key"))
	endWithParent(server)
	stdin, err := server.StdinPipe()
	require.NoError(t, err)
	stdout, err := server.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, server.Start(), "this test needs openssl")
	t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
	})
	seen := make(chan string, 1)
	go func() {
		var all strings.Builder
		buf := make([]byte, 4096)
		for {
			n, err := stdout.Read(buf)
			if err != nil {
				close(seen)
				return
			}
			all.Write(buf[:n])
			select {
			case <-seen:
			default:
			}
			seen <- all.String()
		}
	}()
	says := func(word string) (all string) {
		t.Helper()
		defer time.AfterFunc(patient, func() { server.Process.Kill() }).Stop()
		for all = range seen {
			if strings.Contains(all, word) {
				return all
			}
		}
		t.Fatalf("openssl ended before %q", word)
		return ""
	}

	line := regexp.MustCompile(`ACCEPT \S+:(\d+)\n`)
	var port string
	for all := ""; port == ""; { // the line may come in pieces
		if m := line.FindStringSubmatch(all); m != nil {
			port = m[1]
		} else {
			all = says("ACCEPT")
		}
	}
	addr := parse(t, "rediss://127.0.0.1:"+port)
	dialed := make(chan *conn.Conn, 1)
	go func() {
		c, err := conn.Dial(t.Context(), addr, conn.Options{TLS: &tls.Config{RootCAs: a.roots}, DialTimeout: patient})
		if err != nil {
			t.Error(err)
		}
		dialed <- c
	}()
	says("HELLO")
	io.WriteString(stdin, hello+"-ERR no\r\n-ERR no\r\n")
	c := soon(t, dialed)
	require.NotNil(t, c)
	defer c.Close()

	p := newPoller(t)
	require.NoError(t, p.Add(c, 1, conn.Readable))
	// While an answer of TLS itself waits to be written, Send only adds to it. The reading side
	// may have flushed that answer by then, so the rest is ours to flush.
	send := func(s string) error {
		flushed, err := c.Send([]byte(s))
		for err == nil && !flushed {
			flushed, err = c.Flush()
		}
		return err
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				if err := send("."); err != nil {
					t.Error(err)
					return
				}
				time.Sleep(time.Millisecond)
			}
		}
	}()
	for i := range 5 {
		io.WriteString(stdin, "K\n") // update the keys, and ask the peer to do so
		// OpenSSL takes all that it reads at once for one command. When the update is here, it
		// has certainly read the K alone.
		wait(t, p)
		io.WriteString(stdin, "+after\r\n")
		for {
			v, err := c.Next()
			if err == nil {
				require.True(t, v.Is("after"), "%d: %q", i, v.Raw())
				break
			}
			wait(t, p)
			_, err = c.Receive()
			require.NoError(t, err)
		}
	}
	close(stop)
	soon(t, stopped)
	require.NoError(t, send("the end"))
	says("the end")
}

// A peer that asks TLS for one answer after the other, and reads none, does not have us keep them all. What we send ourselves is
// the caller's to bound.
func TestTLSAnswersThatAreNotReadEndTheConnection(t *testing.T) {
	t.Parallel()
	c, peer := pairTLS(t)
	p := newPoller(t)
	require.NoError(t, p.Add(c, 1, conn.Readable))
	receive := func() error {
		_, err := peer.Write([]byte("+x\r\n"))
		require.NoError(t, err)
		for {
			wait(t, p)
			if n, err := c.Receive(); n > 0 || err != nil {
				return err
			}
		}
	}
	flushed, err := c.Send(make([]byte, 16<<20))
	require.NoError(t, err)
	require.False(t, flushed)
	require.NoError(t, receive())
	conn.AnswerTLS(c, make([]byte, 60<<10))
	require.NoError(t, receive())
	conn.AnswerTLS(c, make([]byte, 60<<10))
	require.ErrorContains(t, receive(), "does not read them")
}

// ending is a stream whose next bytes come with an error, once, when it is told so.
type ending struct {
	io.ReadWriter
	err error
}

func (s *ending) Read(p []byte) (n int, err error) {
	if n, err = s.ReadWriter.Read(p); n > 0 {
		err, s.err = s.err, nil
	}
	return n, err
}

func TestTLSDoesNotForgetAnErrorThatComesWithTheLastBytes(t *testing.T) {
	t.Parallel()
	a := newAuthority(t).server("server")
	var stream *ending
	c, peer := pairTLSOf(t, a, tls.VersionTLS13, conn.Options{Wrap: func(_ string, rw io.ReadWriter) io.ReadWriter {
		stream = &ending{ReadWriter: rw}
		return stream
	}})
	p := newPoller(t)
	require.NoError(t, p.Add(c, 1, conn.Readable))
	for range 3 {
		_, err := io.WriteString(peer, "+more\r\n")
		require.NoError(t, err)
		wait(t, p)
		_, err = c.Receive()
		require.NoError(t, err)
	}
	stream.err = syscall.EIO
	_, err := io.WriteString(peer, "+last\r\n")
	require.NoError(t, err)
	wait(t, p)
	n, err := c.Receive()
	require.ErrorIs(t, err, syscall.EIO)
	require.Equal(t, len("+last\r\n"), n)
}

// trickle is a stream that gives a few bytes at a time.
type trickle struct{ io.ReadWriter }

func (s trickle) Read(p []byte) (int, error) {
	most := 1 + mathrand.IntN(1+mathrand.IntN(5000))
	return s.ReadWriter.Read(p[:min(len(p), most)])
}

// Wherever the stream is cut, what has come of it is decrypted at once: nothing would tell of it later.
func TestTLSLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	a := newAuthority(t).server("server")
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			t.Parallel()
			c, peer := pairTLSOf(t, a, version, conn.Options{Wrap: func(_ string, rw io.ReadWriter) io.ReadWriter { return trickle{rw} }})
			p := newPoller(t)
			require.NoError(t, p.Add(c, 1, conn.Readable))
			for range 300 {
				var want []string
				for range 1 + mathrand.IntN(5) { // one record, or several, each
					text := strings.Repeat("x", mathrand.IntN(1+mathrand.IntN(20_000)))
					want = append(want, text)
				}
				go func(all []string) {
					for _, text := range all {
						io.WriteString(peer, "+"+text+"\r\n")
					}
				}(want)
				for len(want) > 0 {
					v, err := c.Next()
					if err != nil {
						wait(t, p)
						_, err = c.Receive()
						require.NoError(t, err)
						continue
					}
					require.True(t, v.Is(want[0]))
					want = want[1:]
				}
			}
		})
	}
}
