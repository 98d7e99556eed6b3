package main

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// doctorJSON is what doctor --json writes.
type doctorJSON struct {
	OK      bool
	Quorum  int
	Masters []struct {
		Master, Level, Error, Version, AOF string
		RunID                              string     `json:"run_id"`
		LatencyUS                          float64    `json:"latency_us"`
		ClockRate                          *float64   `json:"clock_rate"`
		ClockAhead                         float64    `json:"clock_ahead_s"`
		Policy                             string     `json:"maxmemory_policy"`
		Tracking                           bool       `json:"client_tracking"`
		Listed                             bool       `json:"clients_listed"`
		Place                              *placeJSON `json:"cluster"`
	}
	Findings []finding
}

func diagnosed(t *testing.T, env []string, args ...string) (exit int, d doctorJSON) {
	t.Helper()
	exit, stdout, _ := doctor(t, env, append([]string{"--json"}, args...)...)
	require.NoError(t, json.Unmarshal([]byte(stdout), &d), stdout)
	return exit, d
}

// doctor runs the doctor, and does so again if the machine was so busy that masters
// have looked slow.
func doctor(t *testing.T, env []string, args ...string) (exit int, stdout, stderr string) {
	t.Helper()
	for range 10 {
		exit, stdout, stderr = do(t, env, append([]string{"doctor", "--span", "50ms"}, args...)...)
		if !strings.Contains(strings.Join(strings.Fields(stdout), " "), "than a round waits") {
			break
		}
	}
	return exit, stdout, stderr
}

// requireFinding fails unless exactly these masters have that.
func requireFinding(t *testing.T, d doctorJSON, l level, what string, masters ...string) finding {
	t.Helper()
	for _, f := range d.Findings {
		if f.Level == l && strings.Contains(f.What, what) {
			require.ElementsMatch(t, masters, f.Masters, f.What)
			require.NotEmpty(t, f.Remedy)
			return f
		}
	}
	require.Fail(t, "no such finding", "%s %q in %+v", l, what, d.Findings)
	return finding{}
}

// lockKeys is a script that counts the keys of a master, but for what it says of itself.
const lockKeys = "return redis.call('DBSIZE') - redis.call('EXISTS', '{}:since')"

// durable masters forget nothing, and have not for days.
func durable(t *testing.T, n int, args ...string) *redlocktest.Masters {
	masters := redlocktest.Start(t, n, redlocktest.WithArgs(append(args, "--appendonly", "yes", "--appendfsync", "always")...))
	aged(t, masters)
	return masters
}

// aged leaves witnesses on masters that have been known for days.
func aged(t *testing.T, masters *redlocktest.Masters) {
	t.Helper()
	since := fmt.Sprint(time.Now().Add(-48 * time.Hour).UnixMicro())
	for i := range masters.N() {
		info := ask(t, masters, i, "INFO")
		of := func(name string) string {
			_, value, _ := strings.Cut(fmt.Sprint(info), name+":")
			value, _, _ = strings.Cut(value, "\r")
			return value
		}
		ask(t, masters, i, "SET", "{}:since", strings.Join([]string{"1", of("run_id"), of("master_replid"), "-", since, since, "1", "birth",
			since, since, "first,used"}, " "))
	}
}

// replicate makes a master another's replica.
func replicate(t *testing.T, masters *redlocktest.Masters, i, of int) {
	t.Helper()
	host, port, err := net.SplitHostPort(masters.Addr(of))
	require.NoError(t, err)
	ask(t, masters, i, "REPLICAOF", host, port)
}

func TestDoctorFindsNothingWrongWithGoodMasters(t *testing.T) {
	t.Parallel()
	masters := durable(t, 3)
	env := []string{mastersEnv(masters)}
	exit, stdout, stderr := doctor(t, env)
	require.Zero(t, exit)
	require.Empty(t, stderr)
	require.Contains(t, stdout, "3 of 3 masters can be used, a lock needs 2. Nothing is wrong, 1 risky.")
	requireReadable(t, stdout)

	exit, d := diagnosed(t, env)
	require.Zero(t, exit)
	require.True(t, d.OK)
	require.Equal(t, 2, d.Quorum)
	require.Len(t, d.Findings, 1)
	requireFinding(t, d, risky, "on one host", masters.Addrs()...)
	for i, m := range d.Masters {
		require.Equal(t, masters.Addr(i), m.Master)
		require.NotEmpty(t, m.Version)
		require.Len(t, m.RunID, 40)
		require.Positive(t, m.LatencyUS)
		require.NotNil(t, m.ClockRate)
		require.Equal(t, "always", m.AOF)
		require.Equal(t, "noeviction", m.Policy)
		require.True(t, m.Tracking)
		require.Zero(t, ask(t, masters, i, "EVAL", lockKeys, "0"), "it left something behind")
	}

	exit, _ = diagnosed(t, env, "--strict")
	require.Equal(t, exitNo, exit)
}

func TestDoctorTellsWhatIsWrongWithTLS(t *testing.T) {
	t.Parallel()
	masters := durable(t, 1)
	proxy := newTLSProxy(t, masters.Addr(0))
	expired, otherName := newTLSProxy(t, masters.Addr(0)), newTLSProxy(t, masters.Addr(0))
	expired.renew(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) })
	otherName.renew(t, func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"other.example"} })
	certificate := func(f *tlsProxy) []string {
		return []string{"--cert", f.certFile, "--key", f.keyFile, "--cacert", f.certFile}
	}
	for name, test := range map[string]struct {
		address      string
		args         []string
		says, remedy string
	}{
		"an authority that nobody knows": {"rediss://" + proxy.address, nil, "unknown authority", "--cacert"},
		"another name":                   {otherName.address, certificate(otherName), "cannot validate certificate", "a name that stands in its certificate"},
		"an old certificate":             {expired.address, certificate(expired), "has expired", "our clock"},
		"no certificate of ours":         {proxy.address, []string{"--cacert", proxy.certFile}, "remote error", "--cert and --key"},
		"plain text to a TLS port":       {proxy.address, nil, "cannot be used", "it speaks TLS"},
		"TLS to a plain port":            {"rediss://" + masters.Addr(0), nil, "cannot be used", "it speaks no TLS"},
		"nobody there":                   {"127.0.0.1:1", nil, "refuses connections", "start it"},
	} {
		t.Run(name, func(t *testing.T) {
			args := append(test.args, "-m", test.address)
			if name != "TLS to a plain port" { // which does not answer
				args = append(args, "--dial-timeout", patient.String())
			}
			exit, d := diagnosed(t, nil, args...)
			require.Equal(t, exitNo, exit)
			require.Contains(t, requireFinding(t, d, wrong, test.says, test.address).Remedy, test.remedy)
		})
	}
	exit, _ := diagnosed(t, nil, append(certificate(proxy), "-m", proxy.address)...)
	require.Zero(t, exit, "it can be used, all in all")
}
