package redlocktest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// inProduction is a service's configuration.
func inProduction(masters ...string) redlock.Config {
	return redlock.Config{Masters: masters, Prefix: "{service}:", RestartGuard: time.Hour, RoundTimeout: 30 * time.Second, DialTimeout: 30 * time.Second}
}

// takes opens a client and takes a lock, as a service does.
func takes(t *testing.T, cfg redlock.Config) (*redlock.Client, error) {
	t.Helper()
	c, err := redlock.Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return c, c.NewMutex("k", time.Minute, redlock.WithShared()).TryLock(t.Context())
}

// The masters of the kit vote at once, whatever the guard. Those that were restarted, or have lost their keys, do not.
func TestAServiceIsTestedAsItIsInProduction(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) *redlocktest.Masters{
		"real":             func(t *testing.T) *redlocktest.Masters { return redlocktest.Start(t, 3) },
		"real, with links": func(t *testing.T) *redlocktest.Masters { return redlocktest.Start(t, 3, redlocktest.WithLinks()) },
		"real, password": func(t *testing.T) *redlocktest.Masters {
			return redlocktest.Start(t, 3, redlocktest.WithPassword("abc"))
		},
		"embedded": func(t *testing.T) *redlocktest.Masters { return redlocktest.Embedded(t, 3) },
		"embedded, password": func(t *testing.T) *redlocktest.Masters {
			return redlocktest.Embedded(t, 3, redlocktest.WithPassword("abc"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			masters := start(t)
			cfg := inProduction(masters.Addrs()...)
			cfg.Password = redlock.NewSecret("abc")
			if !strings.Contains(name, "password") {
				cfg.Password = redlock.Secret{}
			}
			_, err := takes(t, cfg)
			require.NoError(t, err)
			var quarantine *mux.QuarantineError
			if strings.HasPrefix(name, "real") { // embedded masters tell of no change
				c, err := takes(t, cfg)
				require.NoError(t, err)
				masters.Flush(0)
				masters.Flush(1)
				require.ErrorAs(t, c.NewMutex("j", time.Minute).TryLock(t.Context()), &quarantine)
			}
			masters.Restart(0)
			masters.Restart(1)
			_, err = takes(t, cfg)
			require.ErrorAs(t, err, &quarantine)
			cfg.Prefix = "{another}:"
			_, err = takes(t, cfg)
			require.ErrorAs(t, err, &quarantine, "they are new to a list that nobody has used")
		})
	}
}

func TestGroupsAndClustersVoteAtOnce(t *testing.T) {
	t.Parallel()
	var quarantine *mux.QuarantineError
	clusters := redlocktest.StartClusters(t, 1, 3, redlocktest.WithArgs("--cluster-replica-no-failover", "yes"))
	cfg := inProduction(clusters.Addrs()...)
	_, err := takes(t, cfg)
	require.NoError(t, err)
	cfg.Prefix = "{b}:" // in the first shard, so its node can have a later epoch
	bumped, err := clusters.Nodes(0).Do(clusters.Owner(0, conn.HashSlot(cfg.Prefix)), "CLUSTER", "BUMPEPOCH")
	require.NoError(t, err)
	require.Contains(t, bumped, "BUMPED")
	_, err = takes(t, cfg)
	require.ErrorAs(t, err, &quarantine, "its slots may have been another's")

	groups := redlocktest.StartGroups(t, 1)
	_, err = takes(t, inProduction(groups.Addrs()...))
	require.NoError(t, err)
	for _, prefix := range []string{"{another}:", "{a third}:"} {
		groups.Switch(0)
		cfg := inProduction(groups.Addrs()...)
		cfg.Prefix = prefix
		_, err = takes(t, cfg)
		require.ErrorAs(t, err, &quarantine, "what was a replica may lack locks")
	}
}

// A process that a test starts does not know who has started the masters. It reads what a client of the test has left.
func TestAnotherProcessBelievesATestsFirstLock(t *testing.T) {
	t.Parallel()
	const variable = "REDLOCKTEST_MASTERS_OF_ANOTHER"
	if cfg := inProduction(); os.Getenv(variable) != "" {
		cfg.Prefix, _, _ = strings.Cut(os.Getenv(variable), " ")
		cfg.Masters = strings.Fields(os.Getenv(variable))[1:]
		_, err := takes(t, cfg)
		t.Log("it says:", err)
		return
	}
	masters := redlocktest.Start(t, 3)
	another := func(prefix string) string {
		cmd := exec.Command(os.Args[0], "-test.run=^TestAnotherProcessBelievesATestsFirstLock$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"="+prefix+" "+strings.Join(masters.Addrs(), " "))
		said, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", said)
		return string(said)
	}
	cfg := inProduction(masters.Addrs()...)
	_, err := takes(t, cfg)
	require.NoError(t, err)
	require.Contains(t, another(cfg.Prefix), "it says: <nil>")
	require.Contains(t, another("{another}:"), "nobody has known its process for the RestartGuard, 1h0m0s")
}
