package main

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// A tlsProxy speaks TLS for a master, and wants a certificate from its clients.
type tlsProxy struct {
	address           string
	certFile, keyFile string // for both sides
	pair              atomic.Pointer[tls.Certificate]
}

// renew has the proxy show another certificate, which has signed itself.
func (f *tlsProxy) renew(t *testing.T, change func(*x509.Certificate)) {
	t.Helper()
	old := f.pair.Load()
	c := *old.Leaf
	change(&c)
	key := old.PrivateKey.(crypto.Signer)
	der, err := x509.CreateCertificate(rand.Reader, &c, &c, key.Public(), key)
	require.NoError(t, err)
	f.pair.Store(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})
	require.NoError(t, os.WriteFile(f.certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
}

func newTLSProxy(t *testing.T, master string) *tlsProxy {
	t.Helper()
	web := httptest.NewTLSServer(nil) // has a certificate for 127.0.0.1
	pair := web.TLS.Certificates[0]
	web.Close()
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	dir := t.TempDir()
	f := &tlsProxy{certFile: filepath.Join(dir, "cert.pem"), keyFile: filepath.Join(dir, "key.pem")}
	for name, block := range map[string]pem.Block{
		f.certFile: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]},
		f.keyFile:  {Type: "PRIVATE KEY", Bytes: key},
	} {
		require.NoError(t, os.WriteFile(name, pem.EncodeToMemory(&block), 0o600))
	}
	pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0])
	require.NoError(t, err)
	f.pair.Store(&pair)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{ClientAuth: tls.RequireAnyClientCert,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.pair.Load(), nil }})
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	f.address = l.Addr().String()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go forward(c, master)
		}
	}()
	return f
}

func forward(c net.Conn, to string) {
	defer c.Close()
	behind, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer behind.Close()
	go func() {
		io.Copy(behind, c)
		behind.Close()
	}()
	io.Copy(c, behind)
}
