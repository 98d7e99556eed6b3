package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

func TestDoctorFindsMastersThatTheLockRefuses(t *testing.T) {
	t.Parallel()
	cluster := redlocktest.Start(t, 1, redlocktest.WithArgs("--cluster-enabled", "yes"))
	masters := durable(t, 3)
	replicate(t, masters, 1, 0)
	masters.Kill(2)
	exit, d := diagnosed(t, nil, "-m", cluster.Addr(0)+","+strings.Join(masters.Addrs(), ","))
	require.Equal(t, exitNo, exit)
	require.False(t, d.OK)
	requireFinding(t, d, wrong, "Cluster", cluster.Addr(0))
	requireFinding(t, d, wrong, "it is a replica", masters.Addr(1))
	requireFinding(t, d, wrong, "refuses connections", masters.Addr(2))
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
	masters := durable(t, 2, "--repl-diskless-sync-delay", "0")
	replicate(t, masters, 1, 0)
	require.Eventually(t, func() bool {
		_, d := diagnosed(t, nil, "-m", masters.Addr(0))
		for _, f := range d.Findings {
			if strings.Contains(f.What, "has 1 replica") {
				return f.Level == risky
			}
		}
		return false
	}, patient, 5*time.Millisecond)
}

func TestDoctorFindsAMasterThatWasAReplica(t *testing.T) {
	t.Parallel()
	masters := durable(t, 2, "--repl-diskless-sync-delay", "0")
	replicate(t, masters, 1, 0)
	require.Eventually(t, func() bool {
		info, err := masters.Do(1, "INFO", "replication")
		return err == nil && strings.Contains(info.(string), "master_link_status:up")
	}, patient, 5*time.Millisecond)
	ask(t, masters, 1, "REPLICAOF", "NO", "ONE")
	exit, d := diagnosed(t, []string{mastersEnv(masters)})
	require.Zero(t, exit, "how long ago that was, nobody knows")
	requireFinding(t, d, risky, "may have been a replica since its start", masters.Addr(1))
}

func TestDoctorFindsEviction(t *testing.T) {
	t.Parallel()
	masters := durable(t, 3)
	env := []string{mastersEnv(masters)}
	set := func(i int, name, value string) {
		ask(t, masters, i, "CONFIG", "SET", name, value)
	}
	set(0, "maxmemory", "100mb")
	set(0, "maxmemory-policy", "volatile-ttl")
	set(1, "maxmemory-policy", "allkeys-lru") // with no limit
	set(2, "maxmemory", "100mb")
	exit, d := diagnosed(t, env)
	require.Equal(t, exitNo, exit)
	requireFinding(t, d, wrong, "volatile-ttl", masters.Addr(0))
	requireFinding(t, d, risky, "allkeys-lru", masters.Addr(1))
	require.Equal(t, []string{"wrong", "risky", "risky"}, []string{d.Masters[0].Level, d.Masters[1].Level, d.Masters[2].Level})

	set(2, "maxmemory", "1") // a byte, of which every version needs more
	exit, d = diagnosed(t, env)
	require.Equal(t, exitNo, exit)
	requireFinding(t, d, wrong, "refuses SET: OOM", masters.Addr(2))
}

func TestDoctorFindsAMasterWhoseDiskFails(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3, redlocktest.WithDisks(), redlocktest.WithArgs("--appendonly", "yes"))
	env := []string{mastersEnv(masters), "NO_COLOR=1"}
	_, d := diagnosed(t, env)
	if major, _, _ := strings.Cut(d.Masters[0].Version, "."); len(major) == 1 && major < "7" {
		t.Skip("the server is too old to look at what fsync returns")
	}
	masters.FailSync(1, true)
	require.Eventually(t, func() bool {
		_, err := masters.Do(1, "SET", "k", "v")
		return err != nil
	}, time.Minute, 5*time.Millisecond)
	exit, d := diagnosed(t, env)
	require.Equal(t, exitNo, exit)
	require.Contains(t, requireFinding(t, d, wrong, "SET: MISCONF", masters.Addr(1)).Remedy, "CONFIG SET appendonly no")
	require.Equal(t, "everysec", d.Masters[1].AOF)
}

// Of a master that serves nobody for now, the doctor says why, and nothing that only its refusals suggest.
func TestDoctorTellsWhyAMasterServesNobody(t *testing.T) {
	t.Parallel()
	_, d := diagnosed(t, []string{mastersEnv(redlocktest.Start(t, 1))})
	if major, _, _ := strings.Cut(d.Masters[0].Version, "."); len(major) == 1 && major < "7" {
		t.Skip("the server is too old to be harmed in this way")
	}
	for name, test := range map[string]struct {
		do                  func(t *testing.T, masters *redlocktest.Masters)
		state, says, remedy string
	}{
		"it loads its data": {func(t *testing.T, masters *redlocktest.Masters) {
			ask(t, masters, 1, "EVAL", "for i = 1, 600 do redis.call('SET', 'filler:' .. i, string.rep('x', 2048)) end", "0")
			ask(t, masters, 1, "BGREWRITEAOF") // what it has rewritten it serves while it loads
			require.Eventually(t, func() bool {
				said, _ := masters.Do(1, "INFO", "persistence")
				text := fmt.Sprint(said)
				return strings.Contains(text, "aof_rewrite_in_progress:0") && strings.Contains(text, "aof_rewrite_scheduled:0")
			}, time.Minute, 5*time.Millisecond)
			masters.Kill(1)
			var restarting sync.WaitGroup
			restarting.Go(func() { masters.Restart(1) })
			says := func(command ...string) string { // Do waits for the restart
				p, err := dialProbe(context.Background(), masters.Addr(1), conn.Options{DialTimeout: patient})
				if err != nil {
					return err.Error()
				}
				defer p.close()
				replies, err := p.do(context.Background(), command)
				if err != nil {
					return err.Error()
				}
				return string(replies[0].Bytes())
			}
			t.Cleanup(func() {
				says("CONFIG", "SET", "key-load-delay", "0")
				restarting.Wait()
			})
			require.Eventually(t, func() bool { return strings.HasPrefix(says("GET", "k"), "LOADING") }, time.Minute, 5*time.Millisecond)
		}, "loading", "is loading its data", "wait for it"},
		"a script keeps it busy": {func(t *testing.T, masters *redlocktest.Masters) {
			var running sync.WaitGroup
			running.Go(func() { masters.Do(1, "EVAL", "while true do end", "0") })
			t.Cleanup(func() {
				masters.Do(1, "SCRIPT", "KILL")
				running.Wait()
			})
			require.Eventually(t, func() bool {
				_, err := masters.Do(1, "GET", "k")
				return err != nil && strings.Contains(err.Error(), "BUSY")
			}, time.Minute, 5*time.Millisecond)
		}, "busy", "serves nobody for now: BUSY", "SCRIPT KILL"},
		"it hangs":     {func(_ *testing.T, masters *redlocktest.Masters) { masters.Pause(1) }, "stalled", "takes connections, and does not answer", "is stopped"},
		"it was ended": {func(_ *testing.T, masters *redlocktest.Masters) { masters.Kill(1) }, "down", "refuses connections", "start it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			masters := durable(t, 3, "--key-load-delay", "100000", "--loading-process-events-interval-bytes", "1024", "--rdbcompression", "no",
				"--lua-time-limit", "1")
			test.do(t, masters)
			args := []string{"--dial-timeout", patient.String()}
			if test.state == "stalled" {
				args[1] = "1s"
			}
			exit, d := diagnosed(t, []string{mastersEnv(masters)}, args...)
			require.Equal(t, exitNo, exit)
			require.Contains(t, requireFinding(t, d, wrong, test.says, masters.Addr(1)).Remedy, test.remedy)
			require.NotEmpty(t, d.Masters[1].Error)
			of := 0
			for _, f := range d.Findings {
				if slices.Contains(f.Masters, masters.Addr(1)) && len(f.Masters) < 3 {
					of++
				}
			}
			require.Equal(t, 1, of, "nothing else is known of it: %+v", d.Findings)
			_, stdout, _ := doctor(t, []string{mastersEnv(masters)}, args...)
			require.Regexp(t, masters.Addr(1)+` .* `+test.state, stdout)
			require.Contains(t, stdout, "2 of 3 masters can be used")
		})
	}
}

// A master can hang when it has begun to answer.
func TestDoctorTellsOfAMasterThatHangsLater(t *testing.T) {
	e := &inspection{address: "a:1", err: fmt.Errorf("%w: 5s passed", conn.ErrUnanswered)}
	require.Equal(t, "stalled", e.trouble().state)
	e.err = &conn.Error{Addr: "a:1", Op: "connect", Err: errors.New("no route to host")}
	require.Equal(t, "unreachable", e.trouble().state, "nobody knows")
}

func TestDoctorFindsMastersThatMayHaveForgottenLocks(t *testing.T) {
	t.Parallel()
	forgetful := redlocktest.Start(t, 1)
	late := redlocktest.Start(t, 1, redlocktest.WithArgs("--appendonly", "yes"))
	rewriting := redlocktest.Start(t, 1, redlocktest.WithArgs("--appendonly", "yes", "--appendfsync", "always", "--no-appendfsync-on-rewrite", "yes"))
	args := []string{"-m", forgetful.Addr(0) + "," + late.Addr(0) + "," + rewriting.Addr(0), "--ttl"}
	exit, d := diagnosed(t, nil, append(args, "24h")...)
	require.Equal(t, exitNo, exit)
	requireFinding(t, d, wrong, "forgets all locks in a restart, and had one", forgetful.Addr(0))
	requireFinding(t, d, wrong, "can forget the latest locks in a restart, and had one", late.Addr(0))

	// Its uptime has whole seconds.
	require.Eventually(t, func() bool {
		exit, d = diagnosed(t, nil, append(args, "1s")...)
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
	exit, d := diagnosed(t, nil, "-m", strings.Join(masters.Addrs(), ",")+","+again)
	require.Equal(t, exitNo, exit)
	requireFinding(t, d, wrong, "one and the same server", masters.Addr(0), again)
}

func TestDoctorIsToTryAKeyThatIsNoLock(t *testing.T) {
	t.Parallel()
	masters := durable(t, 1)
	ask(t, masters, 0, "HSET", "lock:a", "field", "value")
	exit, d := diagnosed(t, []string{mastersEnv(masters)}, "--try", "lock:a")
	require.Equal(t, exitNo, exit)
	require.Contains(t, requireFinding(t, d, wrong, "has a key that is no lock in the place of the lock to try", masters.Addr(0)).Remedy, "--try")
	require.Len(t, d.Findings, 2, "and that it is the only master")
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
		append([]string{"patient", "on", ">pw"}, lockerRules("lock:*")...),
	} {
		ask(t, masters, 0, append([]string{"ACL", "SETUSER"}, user...)...)
	}
	as := func(user string) []string {
		return []string{mastersEnv(masters), "REDLOCK_USERNAME=" + user, "REDLOCK_PASSWORD=pw"}
	}
	exit, d := diagnosed(t, as("reader"))
	require.Equal(t, exitNo, exit)
	require.Contains(t, requireFinding(t, d, wrong, "refuses SET: NOPERM", masters.Addr(0)).Remedy, "+evalsha")
	requireFinding(t, d, wrong, "refuses EVAL: NOPERM", masters.Addr(0))

	exit, d = diagnosed(t, as("nobody"))
	require.Equal(t, exitNo, exit)
	requireFinding(t, d, risky, "does not say whether it drops keys", masters.Addr(0))
	require.Contains(t, requireFinding(t, d, wrong, "does not say who it is", masters.Addr(0)).Remedy, "+info")
	requireFinding(t, d, risky, "refuses TIME", masters.Addr(0))

	exit, d = diagnosed(t, as("silent"))
	require.Zero(t, exit)
	requireFinding(t, d, risky, "does not say what it forgets", masters.Addr(0))

	exit, d = diagnosed(t, as("narrow"), "--try", "other")
	require.Equal(t, exitNo, exit)
	require.Contains(t, requireFinding(t, d, wrong, "refuses EVAL, EVALSHA, SET: NOPERM", masters.Addr(0)).Remedy, "--try")
	for _, key := range [][]string{nil, {"--try", "lock:a"}} {
		exit, _ = diagnosed(t, as("narrow"), key...)
		require.Zero(t, exit)
	}
	exit, d = diagnosed(t, as("patient"), "--try", "lock:a")
	require.Zero(t, exit)
	require.Contains(t, requireFinding(t, d, risky, "does not say what it forgets", masters.Addr(0)).Remedy, "--durable")
	exit, d = diagnosed(t, as("patient"), "--try", "lock:a", "--durable")
	require.Zero(t, exit)
	require.Equal(t, "declared", d.Masters[0].AOF)
	require.Len(t, d.Findings, 1, "that it is the only master")
	require.True(t, d.Masters[0].Tracking)
	password := filepath.Join(t.TempDir(), "password") // the run inside gets none from the one around it
	require.NoError(t, os.WriteFile(password, []byte("pw"), 0o600))
	exit, _, stderr := do(t, as("locker"), "run", atOnce, "--ttl", "3s", "lock:a", "--", binary, "run", atOnce, "--password-file", password, "-w", "2s", "-E", "0", "lock:a", "--", "true")
	require.Zero(t, exit, "what the remedy grants is enough")
	require.NotContains(t, stderr, "NOPERM")

	exit, d = diagnosed(t, []string{mastersEnv(masters), "REDLOCK_USERNAME=locker", "REDLOCK_PASSWORD=wrong"})
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
		ask(t, masters, 0, args...)
	}
	for user, right := range map[string]string{"curious": "+config|get", "modest": "-config"} {
		set(append([]string{"ACL", "SETUSER", user, "on", ">pw"}, append(lockerRules("*"), right)...)...)
	}
	curious := []string{mastersEnv(masters), "REDLOCK_USERNAME=curious", "REDLOCK_PASSWORD=pw"}
	modest := []string{mastersEnv(masters), "REDLOCK_USERNAME=modest", "REDLOCK_PASSWORD=pw", "REDLOCK_DURABLE=true"}
	exit, d := diagnosed(t, curious)
	require.Zero(t, exit)
	require.Contains(t, requireFinding(t, d, risky, would, masters.Addr(0)).Remedy, "-config")
	_, d = diagnosed(t, []string{mastersEnv(masters)})
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
	_, d = diagnosed(t, modest)
	require.False(t, found(d, shows) || found(d, would), d.Findings)
	require.Len(t, d.Findings, 1, "that it is the only master")

	byDefault := []string{mastersEnv(masters), "REDLOCK_PASSWORD=sesame2"}
	_, d = diagnosed(t, byDefault)
	require.True(t, strings.HasSuffix(requireFinding(t, d, risky, shows, masters.Addr(0)).What, ": masterauth"), "the requirepass is its own password")
}

// What was declared is believed where a master does not tell, and nowhere else.
func TestDoctorBelievesADeclarationThatNothingContradicts(t *testing.T) {
	t.Parallel()
	const what = "was declared not to"
	told := func(settings ...string) *inspection {
		e := &inspection{address: "a:1", durable: true, server: conn.Server{RunID: "a", Uptime: time.Hour}, info: map[string]string{}}
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
	wrongs := func(e *inspection) (all []string) {
		e.findForgetting(func(l level, what, _ string) { all = append(all, string(l)+" "+what) }, 10*time.Second)
		return all
	}
	require.Empty(t, wrongs(told()))
	require.Empty(t, wrongs(told("aof_enabled", "1")))
	require.Empty(t, wrongs(told("appendonly", "yes", "appendfsync", "always")))
	for name, e := range map[string]*inspection{
		"INFO":       told("aof_enabled", "0"),
		"no file":    told("appendonly", "no", "appendfsync", "always"),
		"everysec":   told("appendonly", "yes", "appendfsync", "everysec"),
		"in rewrite": told("appendonly", "yes", "appendfsync", "always", "no-appendfsync-on-rewrite", "yes"),
	} {
		all := wrongs(e)
		require.Len(t, all, 1, name)
		require.True(t, strings.HasPrefix(all[0], "wrong ") && strings.Contains(all[0], what) && strings.Contains(all[0], "it votes at once"), all)
	}
	// Clients do not believe it either of a master that denies it (quorum.Denial): then it does not vote at once.
	denied := func(deny func(*conn.Server), settings ...string) []string {
		e := told(settings...)
		deny(&e.server)
		return wrongs(e)
	}
	replica := func(s *conn.Server) { s.ReplID2 = "x" }
	for what, all := range map[string][]string{
		"it has no append-only file": denied(func(s *conn.Server) { s.NoAOF = true }, "aof_enabled", "0"),
		"it was a replica":           denied(replica, "appendonly", "yes", "appendfsync", "everysec"),
		"it does not say who it is":  denied(func(s *conn.Server) { s.RunID = "" }, "appendonly", "no"),
	} {
		require.Len(t, all, 2, what)
		require.True(t, strings.HasPrefix(all[0], "risky was declared to forget nothing") && strings.Contains(all[0], what), all)
		require.NotContains(t, all[1], "votes at once")
	}
	require.Len(t, denied(replica, "appendonly", "yes", "appendfsync", "always"), 1, "it forgets nothing, and waits")
	for value, want := range map[string]int{"true": 0, "1": 0, "maybe": exitUsage} {
		exit, _, stderr := do(t, []string{"REDLOCK_MASTERS=127.0.0.1:1", "REDLOCK_DURABLE=" + value}, "status", "k")
		require.Equal(t, want == exitUsage, exit == exitUsage, stderr)
	}
}

func TestDoctorSendsTheReaderOfASentinelToItsGroup(t *testing.T) {
	t.Parallel()
	groups := redlocktest.StartGroups(t, 1)
	one := strings.TrimPrefix(groups.Addrs()[0], "sentinel://")
	one, _, _ = strings.Cut(one, ",")
	_, d := diagnosed(t, nil, "-m", one)
	require.Contains(t, requireFinding(t, d, wrong, "it is a Sentinel", one).Remedy, "sentinel://")
}

// What a remedy takes away must not be what keeps the locks, or those who use them, from harm.
func TestARemedyDoesNoHarm(t *testing.T) {
	remedies := func(e *inspection) (all []string) {
		add := func(_ level, _, remedy string) { all = append(all, remedy) }
		e.findRefusals(add)
		e.findReplay(add)
		return all
	}
	refuses := func(address, code, text string) *inspection {
		return &inspection{address: address, refusal: map[string]refusal{"SET": {code, text}}}
	}
	require.Contains(t, remedies(refuses("a:1", "NOREPLICAS", ""))[0], "min-replicas-to-write 0")
	group := remedies(refuses("sentinel://a:1,b:1,c:1/g", "NOREPLICAS", ""))[0]
	require.Contains(t, group, "start its replica again")
	require.NotContains(t, group, "min-replicas-to-write 0")

	e := refuses("a:1", "NOPERM", "no permissions to access a key")
	require.Contains(t, remedies(e)[0], "ACL SETUSER … ~lock:*")
	e.prefix = "app:"
	require.Contains(t, remedies(e)[0], "ACL SETUSER … ~app:*")

	e = &inspection{address: "a:1", user: "locker", replay: "not all", config: map[string]string{"appendonly": "yes"}}
	require.Regexp(t, "^ACL SETUSER default off", remedies(e)[0])
	e.user = defaultUser
	require.Regexp(t, "^log in as another user.*; then ACL SETUSER default off", remedies(e)[0])
}

// A master that refuses the SET of a lock is none that can be used, though all else is well.
func TestAMasterThatRefusesLocksCannotBeUsed(t *testing.T) {
	t.Parallel()
	masters := durable(t, 3)
	for i := range 2 {
		ask(t, masters, i, "CONFIG", "SET", "maxmemory", "1")
	}
	exit, stdout, _ := doctor(t, []string{mastersEnv(masters)})
	require.Equal(t, exitNo, exit)
	require.Contains(t, stdout, "1 of 3 masters can be used, a lock needs 2. Nobody gets a lock.")
	for code, of := range map[string]string{"WRONGTYPE": "", "NOPERM": "no permissions to access a key"} {
		require.True(t, (&inspection{refusal: map[string]refusal{"SET": {code, of}}}).fit(), "another key may be fit")
	}
	require.False(t, (&inspection{refusal: map[string]refusal{"SET": {"NOPERM", "no permissions to run the 'set' command"}}}).fit())
	require.True(t, (&inspection{refusal: map[string]refusal{"TIME": {"NOPERM", ""}}}).fit())
	require.False(t, (&inspection{err: errors.New("down")}).fit())
}

func TestFindingsAboutTheFleet(t *testing.T) {
	server := func(address, version string) *inspection {
		return &inspection{address: address, server: conn.Server{RunID: address, Version: version, Uptime: time.Hour},
			info: map[string]string{}, config: map[string]string{"appendonly": "yes", "appendfsync": "always", "maxmemory": "0", "maxmemory-policy": "noeviction"}}
	}
	whats := func(inspections ...*inspection) (all []string) {
		for _, f := range findings(inspections, 10*time.Second) {
			all = append(all, string(f.Level)+" "+f.What)
		}
		return all
	}
	a, b, c := server("a:1", "7.0.1"), server("b:1", "7.2.0"), server("c:1", "7.4.0")
	require.Empty(t, whats(a, b, c))
	require.Equal(t, []string{"risky 1 master: if it fails, nobody gets a lock"}, whats(a))
	require.Equal(t, []string{"risky 2 masters: if either fails, nobody gets a lock: that is worse than one master, where only one can fail"}, whats(a, b))
	require.Equal(t, []string{"risky have different major versions"}, whats(a, b, server("d:1", "6.2.0")))
	require.Equal(t, []string{"risky are on one host, and fail together with it"}, whats(a, b, server("a:2", "7.0.0")))
	require.Equal(t, []string{"risky are on one host, and fail together with it"}, whats(server("unix:///run/a.sock", "7.0.0"), b, server("unix:///run/b.sock", "7.0.0")))
	lead := func(address, at string) *inspection {
		e := server(address, "7.0.0")
		e.server.Endpoint, e.config["min-replicas-to-write"] = at, "1"
		return e
	}
	groups := func(at ...string) (all []*inspection) {
		for i, at := range at {
			all = append(all, lead(fmt.Sprintf("sentinel://a:1,b:1,c:1/g%d", i), at))
		}
		return all
	}
	require.Empty(t, whats(groups("a:7000", "b:7000", "c:7000")...), "the sentinels are on the same hosts, and their masters are not")
	require.Empty(t, whats(groups("a:7000", "b:7000", "")...), "nobody knows")
	require.Equal(t, []string{"risky are on one host, and fail together with it"}, whats(groups("a:7000", "b:7000", "a:7001")...))
	down := &inspection{address: "d:1", err: errors.New("d:1: connect: no route")}
	require.Equal(t, []string{"wrong cannot be used: connect: no route"}, whats(a, b, down))
}

func TestDoctorLooksAtSentinelsAndTheirGroups(t *testing.T) {
	t.Parallel()
	groups := redlocktest.StartGroups(t, 1)
	first, _, _ := strings.Cut(groups.Addrs()[0], ",")
	alone := first + "/" + "group0"
	for address, few := range map[string]bool{groups.Addrs()[0]: false, alone: true} {
		_, d := diagnosed(t, nil, "-m", address)
		requireFinding(t, d, risky, "goes on giving locks when it is cut off", address)
		found := slices.ContainsFunc(d.Findings, func(f finding) bool { return strings.Contains(f.What, "has 1 sentinel") })
		require.Equal(t, few, found)
		require.False(t, slices.ContainsFunc(d.Findings, func(f finding) bool { return strings.Contains(f.What, "replica") }))
	}
	ask(t, groups.Servers(0), groups.Master(0), "CONFIG", "SET", "min-replicas-to-write", "1")
	_, d := diagnosed(t, nil, "-m", groups.Addrs()[0])
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
		e := &inspection{address: tt.address, server: conn.Server{RunID: "a", Version: tt.version}, config: map[string]string{"min-replicas-to-write": "1"}}
		i := slices.IndexFunc(findings([]*inspection{e}, 10*time.Second), func(f finding) bool {
			return f.Level == risky && strings.Contains(f.What, what) && strings.Contains(f.Remedy, "Redis 7")
		})
		require.Equal(t, tt.old, i >= 0, "%s %s", tt.address, tt.version)
	}

	// What the finding rests on, and that it is found, with the server that is there.
	groups := redlocktest.StartGroups(t, 1)
	_, d := diagnosed(t, nil, "-m", groups.Addrs()[0])
	major, _, _ := strings.Cut(d.Masters[0].Version, ".")
	old := len(major) == 1 && major < "7"
	require.Equal(t, old, slices.ContainsFunc(d.Findings, func(f finding) bool { return strings.Contains(f.What, what) }))
	ask(t, groups.Servers(0), groups.Master(0), "CONFIG", "SET", "min-replicas-to-write", "9")
	_, err := groups.Servers(0).Do(groups.Master(0), "SET", "k", "v")
	require.ErrorContains(t, err, "NOREPLICAS")
	_, err = groups.Servers(0).Do(groups.Master(0), "EVAL", "return redis.call('SET', KEYS[1], 'v')", "1", "k")
	if old {
		require.NoError(t, err)
		return
	}
	require.ErrorContains(t, err, "NOREPLICAS")
}

// A server whose INFO has no run_id is not helped by a right to INFO.
func TestDoctorKnowsAnINFOWithoutRunID(t *testing.T) {
	remedy := func(info map[string]string) string {
		e := &inspection{address: "a:1", info: info, config: map[string]string{"appendonly": "no"}}
		for _, f := range findings([]*inspection{e}, 10*time.Second) {
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
