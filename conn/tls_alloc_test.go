//go:build !race

package conn_test

import (
	"crypto/tls"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
)

// The race detector makes sync.Pool, which crypto/tls has, forget on purpose: this runs without it.

// Over TLS a round trip allocates what crypto/tls does for the same records: we add nothing.
func TestTLSAllocatesWhatCryptoTLSDoes(t *testing.T) {
	a := newAuthority(t)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			_, addr := startTLS(t, a)
			config := &tls.Config{RootCAs: a.roots, ServerName: "localhost", MaxVersion: version}
			ours := newRoundTrip(t, dial(t, addr, conn.Options{TLS: config}))
			bare, err := tls.Dial("tcp", addr, config)
			require.NoError(t, err)
			defer bare.Close()
			reply, failed := make([]byte, 1000), false
			theirs := func() {
				_, err := bare.Write(ours.command)
				if err == nil {
					_, err = bare.Read(reply)
				}
				failed = failed || err != nil
			}
			theirs() // before it come the tickets of the session
			most := testing.AllocsPerRun(200, theirs)
			require.LessOrEqual(t, testing.AllocsPerRun(200, func() { failed = failed || !ours.do() }), most)
			require.False(t, failed)
		})
	}
}
