package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redburst/redburst/redlock/internal/rights"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// lockerRules are the rules of a user who may take all kinds of locks on keys of a pattern, on every server.
func lockerRules(pattern string) []string {
	return append(rights.Rules(pattern, slices.Concat([]rights.Need{rights.Lock, rights.Telling, rights.Restarts, rights.Witness}, rights.Optional)...), "~"+pattern)
}

// grant makes a user with these rules on each master.
func grant(t *testing.T, masters *redlocktest.Masters, user string, rules []string) (env []string) {
	t.Helper()
	onAll(t, masters, append([]string{"ACL", "SETUSER", user, "on", ">pw"}, rules...)...)
	return []string{mastersEnv(masters), "REDLOCK_USERNAME=" + user, "REDLOCK_PASSWORD=pw", "REDLOCK_DURABLE=true"}
}

func lacking(rules []string, rule string) []string {
	return slices.DeleteFunc(slices.Clone(rules), func(r string) bool { return r == rule })
}

func TestDoctorAsksForEveryRightThatALockNeeds(t *testing.T) {
	t.Parallel()
	masters := durable(t, 1)
	all := lockerRules("lock:*")
	t.Run("that is there", func(t *testing.T) {
		t.Parallel()
		exit, d := diagnosed(t, grant(t, masters, "all", all), "--try", "lock:a")
		require.Zero(t, exit)
		require.Len(t, d.Findings, 1, "that it is the only master: %v", d.Findings)
	})
	risks := []string{"+zrank", "+info", "+client|tracking", "+client|caching"} // what locks can do without
	others := map[string]string{"~lock:*": "refuses EVAL, EVALSHA, SET", "+info": "lacks run id and uptime: INFO",
		"+client|tracking": "lacks CLIENT TRACKING", "+client|caching": "lacks CLIENT CACHING", "~{}:since": "lacks since when it has forgotten nothing"}
	for i, rule := range all {
		if rule == "~{lock:*}:since" { // for clients with a prefix
			continue
		}
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			l, exit := wrong, exitNo
			if slices.Contains(risks, rule) || strings.HasPrefix(rule, "~{") {
				l, exit = risky, 0
			}
			found, d := diagnosed(t, grant(t, masters, fmt.Sprint("without", i), lacking(all, rule)), "--try", "lock:a")
			require.Equal(t, exit, found, "%v", d.Findings)
			requireFinding(t, d, l, cmp.Or(others[rule], "gives the user no "+rule+","), masters.Addr(0))
		})
	}
}

func TestDoctorTellsAHalfOfAKindFromNone(t *testing.T) {
	t.Parallel()
	masters := durable(t, 1)
	queue := append(rights.Rules("lock:*", rights.Lock, rights.Telling, rights.Restarts, rights.Witness, rights.Queue), "~lock:*", "+time")
	exit, d := diagnosed(t, grant(t, masters, "queue", queue), "--try", "lock:a")
	require.Zero(t, exit, "it was not meant to share locks")
	requireFinding(t, d, risky, "which is for shared locks (redlock run --shared)", masters.Addr(0))
	exit, d = diagnosed(t, grant(t, masters, "half", append(queue, "+zcard")), "--try", "lock:a")
	require.Equal(t, exitNo, exit)
	require.Equal(t, "gives the user no +type +pexpireat +zscore +zremrangebyscore ~{lock:*}:writer, which is for shared locks (redlock run --shared)",
		requireFinding(t, d, wrong, "shared locks", masters.Addr(0)).What)
	exit, d = diagnosed(t, grant(t, masters, "exists", append(queue, "+exists")), "--try", "lock:a")
	require.Equal(t, exitNo, exit, "it can take locks that it cannot release")
	requireFinding(t, d, wrong, "no +mget, which is for locks on several keys", masters.Addr(0))
}

// What the doctor tries changes nothing, even if the locks and all that is beside them are there.
func TestDoctorChangesNothingBesideALock(t *testing.T) {
	t.Parallel()
	masters := durable(t, 1)
	keys := []string{"lock:a", "{lock:a}:fence", "{lock:a}:writer", "{lock:a}:permit:1/2", "{lock:a}:line:a:alive"}
	for _, key := range keys {
		ask(t, masters, 0, "SET", key, "somebody")
	}
	exit, _ := diagnosed(t, []string{mastersEnv(masters)}, "--try", "lock:a")
	require.Zero(t, exit)
	for _, key := range keys {
		require.Equal(t, "somebody", ask(t, masters, 0, "GET", key), key)
		require.Equal(t, int64(-1), ask(t, masters, 0, "PTTL", key), key)
	}
	require.Equal(t, int64(len(keys)), ask(t, masters, 0, "EVAL", lockKeys, "0"))
}

// Each right that locks need is tried.
func TestThereIsATrialOfEachRight(t *testing.T) {
	t.Parallel()
	for _, n := range append([]rights.Need{rights.Lock}, rights.Optional...) {
		for _, command := range n.Commands {
			require.NotEmpty(t, trials[command], command)
		}
	}
}
