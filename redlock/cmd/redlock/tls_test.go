package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A tlsFront speaks TLS for a master, and wants a certificate from its clients.
type tlsFront struct {
	address           string
	certFile, keyFile string // for both sides
}

func newTLSFront(t *testing.T, master string) *tlsFront {
	t.Helper()
	web := httptest.NewTLSServer(nil) // has a certificate for 127.0.0.1
	pair := web.TLS.Certificates[0]
	web.Close()
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	dir := t.TempDir()
	f := &tlsFront{certFile: filepath.Join(dir, "cert.pem"), keyFile: filepath.Join(dir, "key.pem")}
	for name, block := range map[string]pem.Block{
		f.certFile: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]},
		f.keyFile:  {Type: "PRIVATE KEY", Bytes: key},
	} {
		require.NoError(t, os.WriteFile(name, pem.EncodeToMemory(&block), 0o600))
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert})
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
