package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// doctorJSON is what doctor --json writes.
type doctorJSON struct {
	OK      bool
	Quorum  int
	Masters []struct {
		Master, State, Error, Version, AOF string
		RunID                              string   `json:"run_id"`
		LatencyUS                          float64  `json:"latency_us"`
		ClockRate                          *float64 `json:"clock_rate"`
		ClockAhead                         float64  `json:"clock_ahead_s"`
		Policy                             string   `json:"maxmemory_policy"`
		Tracking                           bool     `json:"client_tracking"`
	}
	Findings []finding
}

func examined(t *testing.T, env []string, args ...string) (exit int, d doctorJSON) {
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

// durable masters forget nothing.
func durable(t *testing.T, n int) *redlocktest.Masters {
	return redlocktest.Start(t, n, redlocktest.WithArgs("--appendonly", "yes", "--appendfsync", "always"))
}

// replicate makes a master another's replica.
func replicate(t *testing.T, masters *redlocktest.Masters, i, of int) {
	t.Helper()
	host, port, err := net.SplitHostPort(masters.Addr(of))
	require.NoError(t, err)
	_, err = masters.Do(i, "REPLICAOF", host, port)
	require.NoError(t, err)
}

func TestDoctorFindsNothingWrongWithGoodMasters(t *testing.T) {
	t.Parallel()
	masters := durable(t, 3)
	env := []string{inFleet(masters)}
	exit, stdout, stderr := doctor(t, env)
	require.Zero(t, exit)
	require.Empty(t, stderr)
	require.Contains(t, stdout, "3 of 3 masters can be used, a lock needs 2. Nothing is wrong, 1 risky.")
	requireReadable(t, stdout)

	exit, d := examined(t, env)
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
		keys, err := masters.Do(i, "DBSIZE")
		require.NoError(t, err)
		require.Zero(t, keys, "it left something behind")
	}

	exit, _ = examined(t, env, "--strict")
	require.Equal(t, exitNo, exit)
}

func TestDoctorFindsMastersThatTheLockRefuses(t *testing.T) {
	t.Parallel()
	cluster := redlocktest.Start(t, 1, redlocktest.WithArgs("--cluster-enabled", "yes"))
	masters := durable(t, 3)
	replicate(t, masters, 1, 0)
	masters.Kill(2)
	exit, d := examined(t, nil, "-m", cluster.Addr(0)+","+strings.Join(masters.Addrs(), ","))
	require.Equal(t, exitNo, exit)
	require.False(t, d.OK)
	requireFinding(t, d, wrong, "Cluster", cluster.Addr(0))
	requireFinding(t, d, wrong, "it is a replica", masters.Addr(1))
	requireFinding(t, d, wrong, "connection refused", masters.Addr(2))
	requireFinding(t, d, risky, "4 masters: 1 may fail", append(cluster.Addrs(), masters.Addrs()...)...)

	exit, stdout, _ := doctor(t, nil, "-m", cluster.Addr(0)+","+strings.Join(masters.Addrs(), ","))
	require.Equal(t, exitNo, exit)
	require.Contains(t, stdout, "1 of 4 masters can be used, a lock needs 3. Nobody gets a lock.")
	require.Regexp(t, cluster.Addr(0)+` .* refused\n`, stdout)
	require.Regexp(t, masters.Addr(2)+` .* down\n`, stdout)
	requireReadable(t, stdout)
}

func TestDoctorFindsAReplicaBehindAMaster(t *testing.T) {
	t.Parallel()
	masters := durable(t, 2)
	replicate(t, masters, 1, 0)
	require.Eventually(t, func() bool {
		_, d := examined(t, nil, "-m", masters.Addr(0))
		for _, f := range d.Findings {
			if strings.Contains(f.What, "has 1 replica") {
				return f.Level == risky
			}
		}
		return false
	}, patient, time.Millisecond)
}

func TestDoctorFindsAMasterThatWasAReplica(t *testing.T) {
	t.Parallel()
	masters := durable(t, 2)
	replicate(t, masters, 1, 0)
	require.Eventually(t, func() bool {
		info, err := masters.Do(1, "INFO", "replication")
		return err == nil && strings.Contains(info.(string), "master_link_status:up")
	}, patient, time.Millisecond)
	_, err := masters.Do(1, "REPLICAOF", "NO", "ONE")
	require.NoError(t, err)
	exit, d := examined(t, []string{inFleet(masters)})
	require.Zero(t, exit, "how long ago that was, nobody knows")
	requireFinding(t, d, risky, "may have been a replica since its start", masters.Addr(1))
}

func TestDoctorFindsEviction(t *testing.T) {
	t.Parallel()
	masters := durable(t, 3)
	env := []string{inFleet(masters)}
	set := func(i int, name, value string) {
		_, err := masters.Do(i, "CONFIG", "SET", name, value)
		require.NoError(t, err)
	}
	set(0, "maxmemory", "100mb")
	set(0, "maxmemory-policy", "volatile-ttl")
	set(1, "maxmemory-policy", "allkeys-lru") // with no limit
	set(2, "maxmemory", "100mb")
	exit, d := examined(t, env)
	require.Equal(t, exitNo, exit)
	requireFinding(t, d, wrong, "volatile-ttl", masters.Addr(0))
	requireFinding(t, d, risky, "allkeys-lru", masters.Addr(1))
	require.Equal(t, []string{"wrong", "risky", "risky"}, []string{d.Masters[0].State, d.Masters[1].State, d.Masters[2].State})

	set(2, "maxmemory", "1") // a byte, of which every version needs more
	exit, d = examined(t, env)
	require.Equal(t, exitNo, exit)
	requireFinding(t, d, wrong, "refuses SET: OOM", masters.Addr(2))
}

func TestDoctorFindsAMasterWhoseDiskFails(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3, redlocktest.WithDisks(), redlocktest.WithArgs("--appendonly", "yes"))
	env := []string{inFleet(masters), "NO_COLOR=1"}
	_, d := examined(t, env)
	if major, _, _ := strings.Cut(d.Masters[0].Version, "."); len(major) == 1 && major < "7" {
		t.Skip("the server is too old to look at what fsync returns")
	}
	masters.FailSync(1, true)
	require.Eventually(t, func() bool {
		_, err := masters.Do(1, "SET", "k", "v")
		return err != nil
	}, time.Minute, time.Millisecond)
	exit, d := examined(t, env)
	require.Equal(t, exitNo, exit)
	require.Contains(t, requireFinding(t, d, wrong, "SET: MISCONF", masters.Addr(1)).Remedy, "CONFIG SET appendonly no")
	require.Equal(t, "everysec", d.Masters[1].AOF)
}

func TestDoctorFindsMastersThatMayHaveForgottenLocks(t *testing.T) {
	t.Parallel()
	forgetful := redlocktest.Start(t, 1)
	late := redlocktest.Start(t, 1, redlocktest.WithArgs("--appendonly", "yes"))
	rewriting := redlocktest.Start(t, 1, redlocktest.WithArgs("--appendonly", "yes", "--appendfsync", "always", "--no-appendfsync-on-rewrite", "yes"))
	args := []string{"-m", forgetful.Addr(0) + "," + late.Addr(0) + "," + rewriting.Addr(0), "--ttl"}
	exit, d := examined(t, nil, append(args, "24h")...)
	require.Equal(t, exitNo, exit)
	requireFinding(t, d, wrong, "forgets all locks in a restart, and had one", forgetful.Addr(0))
	requireFinding(t, d, wrong, "can forget the latest locks in a restart, and had one", late.Addr(0))

	// Its uptime has whole seconds.
	require.Eventually(t, func() bool {
		exit, d = examined(t, nil, append(args, "1s")...)
		return exit == 0
	}, patient, 10*time.Millisecond)
	requireFinding(t, d, risky, "forgets all locks in a restart", forgetful.Addr(0))
	requireFinding(t, d, risky, "can forget the latest locks in a restart", late.Addr(0))
	requireFinding(t, d, risky, "can forget locks that were taken while it rewrites", rewriting.Addr(0))
}

func TestDoctorFindsServersThatWereGivenTwice(t *testing.T) {
	t.Parallel()
	masters := durable(t, 2)
	again := "localhost:" + strings.TrimPrefix(masters.Addr(0), "127.0.0.1:")
	exit, d := examined(t, nil, "-m", strings.Join(masters.Addrs(), ",")+","+again)
	require.Equal(t, exitNo, exit)
	requireFinding(t, d, wrong, "one and the same server", masters.Addr(0), again)
}

func TestDoctorFindsMissingPermissions(t *testing.T) {
	t.Parallel()
	masters := durable(t, 1)
	for _, user := range [][]string{
		{"reader", "on", ">pw", "~*", "+@read", "+@connection", "+info", "+time", "+config|get"},
		{"nobody", "on", ">pw", "+@connection"},
		{"silent", "on", ">pw", "~*", "+@all", "-config"},
		{"narrow", "on", ">pw", "~lock:*", "+@all"},
		append([]string{"locker", "on", ">pw", "~lock:*"}, strings.Fields(permissions)...),
		append([]string{"patient", "on", ">pw", "~lock:*", "+time"}, strings.Fields(permissions)...),
	} {
		_, err := masters.Do(0, append([]string{"ACL", "SETUSER"}, user...)...)
		require.NoError(t, err)
	}
	as := func(user string) []string {
		return []string{inFleet(masters), "REDLOCK_USERNAME=" + user, "REDLOCK_PASSWORD=pw"}
	}
	exit, d := examined(t, as("reader"))
	require.Equal(t, exitNo, exit)
	require.Contains(t, requireFinding(t, d, wrong, "refuses SET: NOPERM", masters.Addr(0)).Remedy, "+evalsha")
	requireFinding(t, d, wrong, "refuses EVAL: NOPERM", masters.Addr(0))

	exit, d = examined(t, as("nobody"))
	require.Equal(t, exitNo, exit)
	requireFinding(t, d, risky, "does not say whether it drops keys", masters.Addr(0))
	require.Contains(t, requireFinding(t, d, wrong, "does not say who it is", masters.Addr(0)).Remedy, "+info")
	requireFinding(t, d, risky, "refuses TIME", masters.Addr(0))

	exit, d = examined(t, as("silent"))
	require.Zero(t, exit)
	requireFinding(t, d, risky, "does not say what it forgets", masters.Addr(0))

	exit, d = examined(t, as("narrow"))
	require.Equal(t, exitNo, exit)
	require.Contains(t, requireFinding(t, d, wrong, "refuses EVAL, EVALSHA, SET: NOPERM", masters.Addr(0)).Remedy, "--try")
	exit, _ = examined(t, as("narrow"), "--try", "lock:a")
	require.Zero(t, exit)
	exit, d = examined(t, as("patient"), "--try", "lock:a")
	require.Zero(t, exit)
	require.Contains(t, requireFinding(t, d, risky, "does not say what it forgets", masters.Addr(0)).Remedy, "--durable")
	exit, d = examined(t, as("patient"), "--try", "lock:a", "--durable")
	require.Zero(t, exit)
	require.Equal(t, "declared", d.Masters[0].AOF)
	require.Len(t, d.Findings, 1, "that it is the only master")
	require.True(t, d.Masters[0].Tracking)
	password := filepath.Join(t.TempDir(), "password") // the run inside gets none from the one around it
	require.NoError(t, os.WriteFile(password, []byte("pw"), 0o600))
	exit, _, stderr := do(t, as("locker"), "run", atOnce, "--ttl", "3s", "lock:a", "--", binary, "run", atOnce, "--password-file", password, "-w", "2s", "-E", "0", "lock:a", "--", "true")
	require.Zero(t, exit, "what the remedy grants is enough")
	require.NotContains(t, stderr, "NOPERM")

	exit, d = examined(t, []string{inFleet(masters), "REDLOCK_USERNAME=locker", "REDLOCK_PASSWORD=wrong"})
	require.Equal(t, exitNo, exit)
	requireFinding(t, d, wrong, "WRONGPASS", masters.Addr(0))
}

// Who may only take locks must not learn how to do more.
func TestDoctorFindsPasswordsThatTheUserIsShown(t *testing.T) {
	t.Parallel()
	const shows, would = "shows the user passwords", "would show the user any password"
	found := func(d doctorJSON, what string) bool {
		return slices.ContainsFunc(d.Findings, func(f finding) bool { return strings.Contains(f.What, what) })
	}
	masters := durable(t, 1)
	set := func(args ...string) {
		_, err := masters.Do(0, args...)
		require.NoError(t, err)
	}
	for user, right := range map[string]string{"curious": "+config|get", "modest": "-config"} {
		set(append([]string{"ACL", "SETUSER", user, "on", ">pw", "~*", "+time"}, append(strings.Fields(permissions), right)...)...)
	}
	curious := []string{inFleet(masters), "REDLOCK_USERNAME=curious", "REDLOCK_PASSWORD=pw"}
	modest := []string{inFleet(masters), "REDLOCK_USERNAME=modest", "REDLOCK_PASSWORD=pw", "REDLOCK_DURABLE=true"}
	exit, d := examined(t, curious)
	require.Zero(t, exit)
	require.Contains(t, requireFinding(t, d, risky, would, masters.Addr(0)).Remedy, "-config")
	_, d = examined(t, []string{inFleet(masters)})
	require.False(t, found(d, would), "the user default is no limited one")

	set("CONFIG", "SET", "masterauth", "sesame1")
	set("CONFIG", "SET", "requirepass", "sesame2") // as the last: masters.Do has none
	for name, env := range map[string][]string{
		"of the environment": curious,
		"of the address":     {"REDLOCK_MASTERS=redis://curious:pw@" + masters.Addr(0)},
	} {
		exit, stdout, stderr := doctor(t, env, "--json")
		require.Zero(t, exit, name)
		require.NotContains(t, stdout+stderr, "sesame")
		require.NoError(t, json.Unmarshal([]byte(stdout), &d))
		require.Contains(t, requireFinding(t, d, risky, shows, masters.Addr(0)).What, ": requirepass, masterauth", name)
		require.False(t, found(d, would))
	}
	exit, _, _ = doctor(t, curious, "--strict")
	require.Equal(t, exitNo, exit)
	_, d = examined(t, modest)
	require.False(t, found(d, shows) || found(d, would), d.Findings)
	require.Len(t, d.Findings, 1, "that it is the only master")

	byDefault := []string{inFleet(masters), "REDLOCK_PASSWORD=sesame2"}
	_, d = examined(t, byDefault)
	require.True(t, strings.HasSuffix(requireFinding(t, d, risky, shows, masters.Addr(0)).What, ": masterauth"), "the requirepass is its own password")
}

// Passwords that only the user default has logged in with are no news to him, and to nobody else.
func TestUserIsThatWithWhichAMasterIsSpokenTo(t *testing.T) {
	t.Parallel()
	given := conn.Options{Username: "given"}
	for address, want := range map[string]string{
		"h:1":                              "given",
		"redis://h:1/0":                    "given",
		"redis://ann:pw@h:1":               "ann",
		"redis://ann:p/w@h:1":              "ann",
		"redis://:pw@h:1":                  "default",
		"unix://ann:pw@/run/a@b":           "ann",
		"unix:///run/a@b":                  "given",
		"unix:///run/x@/y":                 "given",
		"sentinel://ann:p/w@h:1,i:1/group": "ann",
	} {
		_, err := conn.ParseAddress(address)
		require.NoError(t, err, address)
		require.Equal(t, want, userOf(address, given), address)
	}
}

// What was declared is believed where a master does not tell, and nowhere else.
func TestDoctorBelievesADeclarationThatNothingContradicts(t *testing.T) {
	t.Parallel()
	const what = "was declared not to"
	told := func(settings ...string) *exam {
		e := &exam{address: "a:1", durable: true, server: conn.Server{RunID: "a", Uptime: time.Hour}, info: map[string]string{}}
		for pair := range slices.Chunk(settings, 2) {
			if pair[0] == "aof_enabled" {
				e.info[pair[0]] = pair[1]
				continue
			}
			if e.config == nil {
				e.config = map[string]string{}
			}
			e.config[pair[0]] = pair[1]
		}
		return e
	}
	wrongs := func(e *exam) (all []string) {
		e.findForgetting(func(l level, what, _ string) { all = append(all, string(l)+" "+what) }, 10*time.Second)
		return all
	}
	require.Empty(t, wrongs(told()))
	require.Empty(t, wrongs(told("aof_enabled", "1")))
	require.Empty(t, wrongs(told("appendonly", "yes", "appendfsync", "always")))
	for name, e := range map[string]*exam{
		"INFO":       told("aof_enabled", "0"),
		"no file":    told("appendonly", "no", "appendfsync", "always"),
		"everysec":   told("appendonly", "yes", "appendfsync", "everysec"),
		"in rewrite": told("appendonly", "yes", "appendfsync", "always", "no-appendfsync-on-rewrite", "yes"),
	} {
		all := wrongs(e)
		require.Len(t, all, 1, name)
		require.True(t, strings.HasPrefix(all[0], "wrong ") && strings.Contains(all[0], what), all)
	}
	for value, want := range map[string]int{"true": 0, "1": 0, "maybe": exitUsage} {
		exit, _, stderr := do(t, []string{"REDLOCK_MASTERS=127.0.0.1:1", "REDLOCK_DURABLE=" + value}, "status", "k")
		require.Equal(t, want == exitUsage, exit == exitUsage, stderr)
	}
}

// Who denies it on the command line is believed, whatever the environment has.
func TestFlagDeniesADeclarationOfTheEnvironment(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	declared := func(args ...string) bool {
		_, stdout, _ := doctor(t, []string{inFleet(masters), "REDLOCK_DURABLE=true"}, append(args, "--json")...)
		return strings.Contains(stdout, "was declared not to")
	}
	require.True(t, declared())
	require.False(t, declared("--durable=false"))
}

func TestDoctorLeavesALockInUseAlone(t *testing.T) {
	t.Parallel()
	masters := durable(t, 1)
	_, err := masters.Do(0, "SET", "lock", "somebody", "PX", "3600000")
	require.NoError(t, err)
	exit, _ := examined(t, []string{inFleet(masters)}, "--try", "lock")
	require.Zero(t, exit)
	token, err := masters.Do(0, "GET", "lock")
	require.NoError(t, err)
	require.Equal(t, "somebody", token)
	left, err := masters.Do(0, "PTTL", "lock")
	require.NoError(t, err)
	require.Greater(t, left, int64(3_000_000))
}

func TestDoctorExaminesMastersOverRESP2(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1, redlocktest.WithArgs("--appendonly", "yes", "--appendfsync", "always", "--rename-command", "HELLO", ""))
	exit, d := examined(t, []string{inFleet(masters)})
	require.Zero(t, exit)
	requireFinding(t, d, risky, "lacks CLIENT TRACKING", masters.Addr(0))
	require.False(t, d.Masters[0].Tracking)
}

func TestDoctorExaminesEmbeddedMasters(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 3)
	exit, d := examined(t, []string{inFleet(masters)})
	require.Zero(t, exit)
	requireFinding(t, d, risky, "does not say whether it drops keys", masters.Addrs()...)
	for _, m := range d.Masters {
		require.Empty(t, m.Error)
		require.NotNil(t, m.ClockRate)
	}
}

func TestAFrozenMasterHoldsTheDoctorUpForTheDialTimeoutOnly(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 3)
	masters.Pause(1)
	exit, d := examined(t, []string{inFleet(masters)}, "--dial-timeout", "2s")
	require.Equal(t, exitNo, exit)
	requireFinding(t, d, wrong, "timeout", masters.Addr(1))
}

func TestDoctorTellsWhatIsWrongWithTLS(t *testing.T) {
	t.Parallel()
	masters := durable(t, 1)
	front := newTLSFront(t, masters.Addr(0))
	expired, otherName := newTLSFront(t, masters.Addr(0)), newTLSFront(t, masters.Addr(0))
	expired.renew(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) })
	otherName.renew(t, func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"other.example"} })
	certificate := func(f *tlsFront) []string {
		return []string{"--cert", f.certFile, "--key", f.keyFile, "--cacert", f.certFile}
	}
	for name, test := range map[string]struct {
		address string
		args    []string
		remedy  string
	}{
		"an authority that nobody knows": {"rediss://" + front.address, nil, "--cacert"},
		"another name":                   {otherName.address, certificate(otherName), "a name that stands in its certificate"},
		"an old certificate":             {expired.address, certificate(expired), "our clock"},
		"no certificate of ours":         {front.address, []string{"--cacert", front.certFile}, "--cert and --key"},
		"plain text to a TLS port":       {front.address, nil, "it speaks TLS"},
		"TLS to a plain port":            {"rediss://" + masters.Addr(0), nil, "it speaks no TLS"},
		"nobody there":                   {"127.0.0.1:1", nil, "start it"},
	} {
		t.Run(name, func(t *testing.T) {
			exit, d := examined(t, nil, append(test.args, "-m", test.address)...)
			require.Equal(t, exitNo, exit)
			require.Contains(t, requireFinding(t, d, wrong, "cannot be used", test.address).Remedy, test.remedy)
		})
	}
	exit, _ := examined(t, nil, append(certificate(front), "-m", front.address)...)
	require.Zero(t, exit, "it can be used, all in all")
}

func TestDoctorSendsTheReaderOfASentinelToItsGroup(t *testing.T) {
	t.Parallel()
	groups := redlocktest.StartGroups(t, 1)
	one := strings.TrimPrefix(groups.Addr(0), "sentinel://")
	one, _, _ = strings.Cut(one, ",")
	_, d := examined(t, nil, "-m", one)
	require.Contains(t, requireFinding(t, d, wrong, "it is a Sentinel", one).Remedy, "sentinel://")
}

// clockOf makes samples of a clock that runs at this rate, with round trips of rtt
// of which the way there takes the given share.
func clockOf(rate float64, rtt time.Duration, share float64) (all []sample) {
	for i := range ticks {
		sent := time.Duration(i) * time.Second / ticks
		at := sent + time.Duration(share*float64(rtt))
		all = append(all, sample{sent, sent + rtt, time.Hour + time.Duration(float64(at)*(1+rate)), time.Hour + sent + rtt})
	}
	return all
}

func TestClockRateIsMeasured(t *testing.T) {
	for _, rate := range []float64{0, 0.05, -0.05, 0.005} {
		got, uncertainty, ok := clockRate(clockOf(rate, time.Millisecond, 0.5))
		require.True(t, ok)
		require.InDelta(t, rate, got, uncertainty)
		require.Less(t, uncertainty, 0.002)
	}
	_, _, ok := clockRate(nil)
	require.False(t, ok)
	_, _, ok = clockRate(make([]sample, ticks))
	require.False(t, ok, "no time passed")
}

func TestClocksAreFoundOnlyBeyondTheDriftAndTheUncertainty(t *testing.T) {
	levels := func(samples []sample) (all []level) {
		(&exam{samples: samples}).findClock(func(l level, _, _ string) { all = append(all, l) })
		return all
	}
	require.Empty(t, levels(clockOf(0, time.Millisecond, 0.5)))
	require.Empty(t, levels(clockOf(0.005, time.Millisecond, 0.5)))
	require.Equal(t, []level{wrong}, levels(clockOf(0.02, time.Millisecond, 0.5)))
	require.Equal(t, []level{risky}, levels(clockOf(-0.02, time.Millisecond, 0.5)), "locks that last longer exclude as well")
	require.Empty(t, levels(clockOf(0.02, 100*time.Millisecond, 0.5)), "it may be the network")

	// A network that gets slow on one way while we look is no clock's fault.
	samples := clockOf(0, time.Millisecond, 0)
	for i, s := range clockOf(0, 100*time.Millisecond, 1) {
		if i > ticks/2 {
			samples[i] = s
		}
	}
	require.Empty(t, levels(samples))
}

func TestClockThatIsSetWhileWeLookIsFound(t *testing.T) {
	set := func(samples []sample, from int, by time.Duration) []sample {
		for i := from; i < len(samples); i++ {
			samples[i].server += by
		}
		return samples
	}
	found := func(samples []sample) (all []string) {
		(&exam{samples: samples}).findClock(func(l level, what, _ string) {
			what, _, _ = strings.Cut(what, " while")
			all = append(all, string(l)+": "+what)
		})
		return all
	}
	const rtt = time.Millisecond
	for _, rate := range []float64{0, 0.005, -0.005} {
		require.Equal(t, []string{"wrong: has a clock that was set forward by 1m0s"}, found(set(clockOf(rate, rtt, 0.5), 7, time.Minute)))
		require.Equal(t, []string{"risky: has a clock that was set back by 1m0s"}, found(set(clockOf(rate, rtt, 0.5), 39, -time.Minute)))
		require.Equal(t, []string{"wrong: has a clock that was set forward by 1m0s", "risky: has a clock that was set back by 1m0s"},
			found(set(set(clockOf(rate, rtt, 0.5), 7, time.Minute), 8, -time.Minute)), "it is right again")
	}
	require.Equal(t, []string{"wrong: has a clock that was set forward by 50ms"}, found(set(clockOf(0, rtt, 0.5), 1, 50*time.Millisecond)))
	require.Equal(t, []string{"wrong: has a clock that gained 2.7 % on ours"}, found(set(clockOf(0, rtt, 0.5), 20, 20*time.Millisecond)),
		"what is less shows in the rate")
	require.Empty(t, found(set(clockOf(0, time.Second, 0.5), 20, 500*time.Millisecond)), "it may be the network")
	for _, samples := range [][]sample{nil, make([]sample, 1), make([]sample, ticks)} {
		require.Empty(t, found(samples))
	}
}

func TestClockThatWasSetBeforeIsAHint(t *testing.T) {
	found := func(samples []sample, ahead time.Duration) (all []string) {
		for i := range samples {
			samples[i].server += ahead
		}
		(&exam{samples: samples}).findOffset(func(l level, what, _ string) { all = append(all, string(l)+": "+what) })
		return all
	}
	ordinary := func() []sample { return clockOf(0, time.Millisecond, 0.5) }
	require.Equal(t, []string{"risky: has a clock that is 1h0m0s ahead of ours: if it was set lately, its locks ended that much too early"},
		found(ordinary(), time.Hour))
	require.Equal(t, []string{"risky: has a clock that is 1h0m0s behind ours: when it is set right, its locks end that much too early"},
		found(ordinary(), -time.Hour))
	require.Empty(t, found(ordinary(), 900*time.Millisecond))
	require.Empty(t, found(ordinary(), -900*time.Millisecond))
	require.Empty(t, found(clockOf(0, 4*time.Second, 1), -4500*time.Millisecond), "it may be the network")
	require.Empty(t, found(clockOf(0, 4*time.Second, 0), 4500*time.Millisecond), "likewise")
	require.Empty(t, found(nil, 0))
}

func TestDoctorFindsClocks(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 4, redlocktest.WithClocks(), redlocktest.WithArgs("--appendonly", "yes", "--appendfsync", "always"))
	env := []string{inFleet(masters), "NO_COLOR=1"}
	long := []string{"--span", "1s"} // for a machine that is busy
	masters.Drift(0, 0.005)
	exit, d := examined(t, env, long...)
	require.Zero(t, exit, d.Findings)
	for _, f := range d.Findings {
		require.NotContains(t, f.What, "clock")
	}

	masters.Drift(0, 0.05)
	masters.Drift(1, -0.05)
	exit, d = examined(t, env, long...)
	require.Equal(t, exitNo, exit)
	require.Regexp(t, `gained [45]\.\d % on ours`, requireFinding(t, d, wrong, "locks end too early", masters.Addr(0)).What)
	require.Regexp(t, `lost [45]\.\d % against ours`, requireFinding(t, d, risky, "locks last too long", masters.Addr(1)).What)
	require.InDelta(t, 0.05, *d.Masters[0].ClockRate, 0.01)

	// What was set before is a hint, and no error.
	masters.Drift(0, 0)
	masters.Drift(1, 0)
	masters.Jump(2, time.Hour)
	masters.Jump(3, -time.Hour)
	exit, d = examined(t, env)
	require.Zero(t, exit, d.Findings)
	require.Contains(t, requireFinding(t, d, risky, "1h0m0s ahead of ours", masters.Addr(2)).Remedy, "while nobody holds a lock")
	requireFinding(t, d, risky, "1h0m0s behind ours", masters.Addr(3))
	require.InDelta(t, 3600, d.Masters[2].ClockAhead, 60)

	ctx, cancel := context.WithCancel(t.Context())
	var setting sync.WaitGroup
	defer setting.Wait()
	defer cancel()
	setting.Go(func() {
		for ctx.Err() == nil {
			masters.Jump(0, 10*time.Second)
			masters.Jump(1, -10*time.Second)
			time.Sleep(5 * time.Millisecond)
		}
	})
	exit, stdout, _ := doctor(t, env)
	require.Equal(t, exitNo, exit)
	stdout = strings.Join(strings.Fields(stdout), " ")
	require.Regexp(t, `wrong has a clock that was set forward by [0-9ms]+ while we looked: its locks ended that much too early `+masters.Addr(0), stdout)
	require.Regexp(t, `risky has a clock that was set back by [0-9ms]+ while we looked: its locks last that much too long `+masters.Addr(1), stdout)
	require.Regexp(t, masters.Addr(0)+` .* \+[0-9ms]+ always wrong`, stdout)
}

func TestLatencyIsComparedWithARound(t *testing.T) {
	levels := func(rtts ...time.Duration) (all []level) {
		e := &exam{}
		for _, rtt := range rtts {
			e.samples = append(e.samples, sample{received: rtt})
		}
		e.findLatency(func(l level, _, _ string) { all = append(all, l) }, 250*time.Millisecond) // 50 ms
		return all
	}
	const ms = time.Millisecond
	require.Empty(t, levels())
	require.Empty(t, levels(ms, 2*ms, 40*ms))
	require.Equal(t, []level{risky}, levels(ms, 2*ms, 60*ms))
	require.Equal(t, []level{wrong}, levels(ms, 60*ms, 60*ms))
	require.Equal(t, 20*ms, roundTimeout(100*ms))
	require.Equal(t, 500*ms, roundTimeout(time.Minute))
}

func TestFindingsAboutTheFleet(t *testing.T) {
	server := func(address, version string) *exam {
		return &exam{address: address, server: conn.Server{RunID: address, Version: version, Uptime: time.Hour},
			info: map[string]string{}, config: map[string]string{"appendonly": "yes", "appendfsync": "always", "maxmemory": "0", "maxmemory-policy": "noeviction"}}
	}
	whats := func(exams ...*exam) (all []string) {
		for _, f := range findings(exams, 10*time.Second) {
			all = append(all, string(f.Level)+" "+f.What)
		}
		return all
	}
	a, b, c := server("a:1", "7.0.1"), server("b:1", "7.2.0"), server("c:1", "7.4.0")
	require.Empty(t, whats(a, b, c))
	require.Equal(t, []string{"risky 1 master: if it fails, nobody gets a lock"}, whats(a))
	require.Equal(t, []string{"risky 2 masters: 0 may fail, as with 1, and contenders can split the votes evenly"}, whats(a, b))
	require.Equal(t, []string{"risky have different major versions"}, whats(a, b, server("d:1", "6.2.0")))
	require.Equal(t, []string{"risky are on one host, and fail together with it"}, whats(a, b, server("a:2", "7.0.0")))
	down := &exam{address: "d:1", err: errors.New("d:1: connect: no route")}
	require.Equal(t, []string{"wrong cannot be used: connect: no route"}, whats(a, b, down))
}

func TestDoctorLooksAtSentinelsAndTheirGroups(t *testing.T) {
	t.Parallel()
	groups := redlocktest.StartGroups(t, 1)
	first, _, _ := strings.Cut(groups.Addr(0), ",")
	alone := first + "/" + groups.Name(0)
	for address, few := range map[string]bool{groups.Addr(0): false, alone: true} {
		_, d := examined(t, nil, "-m", address)
		requireFinding(t, d, risky, "goes on giving locks when it is cut off", address)
		found := slices.ContainsFunc(d.Findings, func(f finding) bool { return strings.Contains(f.What, "has 1 sentinel") })
		require.Equal(t, few, found)
		require.False(t, slices.ContainsFunc(d.Findings, func(f finding) bool { return strings.Contains(f.What, "replica") }))
	}
	_, err := groups.Do(0, "CONFIG", "SET", "min-replicas-to-write", "1")
	require.NoError(t, err)
	_, d := examined(t, nil, "-m", groups.Addr(0))
	require.False(t, slices.ContainsFunc(d.Findings, func(f finding) bool { return strings.Contains(f.What, "cut off") }))
}

// Before Redis 7, min-replicas-to-write does not stop scripts.
func TestDoctorFindsGroupsOfOldServers(t *testing.T) {
	t.Parallel()
	const group, what = "sentinel://a:1,b:1,c:1/g", "before Redis 7 nothing stops its scripts"
	for _, tt := range []struct {
		address, version string
		old              bool
	}{
		{group, "6.0.16", true},
		{group, "6.2.14", true},
		{group, "5.0.7", true},
		{group, "7.0.0", false},
		{group, "8.6.3", false},
		{group, "10.0.0", false},
		{group, "", false},
		{group, "unknown", false},
		{"a:1", "6.0.16", false}, // no other takes its place
	} {
		e := &exam{address: tt.address, server: conn.Server{RunID: "a", Version: tt.version}, config: map[string]string{"min-replicas-to-write": "1"}}
		i := slices.IndexFunc(findings([]*exam{e}, 10*time.Second), func(f finding) bool {
			return f.Level == risky && strings.Contains(f.What, what) && strings.Contains(f.Remedy, "Redis 7")
		})
		require.Equal(t, tt.old, i >= 0, "%s %s", tt.address, tt.version)
	}

	// What the finding rests on, and that it is found, with the server that is there.
	groups := redlocktest.StartGroups(t, 1)
	_, d := examined(t, nil, "-m", groups.Addr(0))
	major, _, _ := strings.Cut(d.Masters[0].Version, ".")
	old := len(major) == 1 && major < "7"
	require.Equal(t, old, slices.ContainsFunc(d.Findings, func(f finding) bool { return strings.Contains(f.What, what) }))
	_, err := groups.Do(0, "CONFIG", "SET", "min-replicas-to-write", "9")
	require.NoError(t, err)
	_, err = groups.Do(0, "SET", "k", "v")
	require.ErrorContains(t, err, "NOREPLICAS")
	_, err = groups.Do(0, "EVAL", "return redis.call('SET', KEYS[1], 'v')", "1", "k")
	if old {
		require.NoError(t, err)
		return
	}
	require.ErrorContains(t, err, "NOREPLICAS")
}

// A server whose INFO has no run_id is not helped by a right to INFO.
func TestDoctorKnowsAnINFOWithoutRunID(t *testing.T) {
	remedy := func(info map[string]string) string {
		e := &exam{address: "a:1", info: info, config: map[string]string{"appendonly": "no"}}
		for _, f := range findings([]*exam{e}, 10*time.Second) {
			if strings.Contains(f.What, "does not say who it is") {
				return f.Remedy
			}
		}
		return ""
	}
	require.Contains(t, remedy(nil), "+info")
	require.Contains(t, remedy(map[string]string{"redis_version": "7.0.0"}), "whose INFO has a run_id")
	require.NotContains(t, remedy(map[string]string{"redis_version": "7.0.0"}), "+info")
}

func TestAddressesOfGroupsMayHoldCommas(t *testing.T) {
	require.Equal(t, []string{"a", "sentinel://b,c:1/g", "rediss+SENTINEL://u@d/h", "e"},
		whole([]string{"a", "sentinel://b", "c:1/g", "rediss+SENTINEL://u@d/h", "e"}))
}
