//go:build unix

package redlocktest

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/redburst/redburst/redlock/internal/processes"
	"github.com/stretchr/testify/require"
)

// Redis before 7.0.1 takes each argument for one value, and takes what begins with
// two dashes for an option always. Redis 7.0.1 to 7.0.5 takes whatever stands behind
// an option for its value.
const strict = `#!/bin/sh
option=
for arg; do
	case $option,$arg in
	--replicaof,*' '*) echo "wrong number of arguments: $arg"; exit 1;;
	--sentinel,*) echo "Unrecognized sentinel configuration statement: $arg"; exit 1;;
	esac
	option=$arg
done
exec %s "$@"
`

func TestGroupsStartOnEveryVersion(t *testing.T) {
	needRedis(t)
	real, err := lookup()
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, processes.WriteProgram(filepath.Join(dir, "redis-server"), fmt.Appendf(nil, strict, real)))
	t.Setenv("REDLOCKTEST_SERVER", filepath.Join(dir, "redis-server"))

	g := StartGroups(t, 1)
	eventually(t, func() bool {
		role, err := g.Servers(0).Do(g.Master(0), "ROLE")
		return err == nil && role.([]any)[0] == "master" && len(role.([]any)[2].([]any)) == 1
	}, "the group has a master and a replica")
}

func TestFailedOperationNamesItsSentinel(t *testing.T) {
	t.Parallel()
	needRedis(t)
	said := told(func(tb *fakeTB) {
		g := StartGroups(tb, 1)
		g.Sentinels().Kill(2)
		g.Sentinels().Pause(2)
		t.Error("not reached")
	})
	require.Regexp(t, `^redlocktest: pause sentinel 2 \(.*\): it is down$`, said.fatal)
}

func TestWhatGroupsCannotDoIsRefused(t *testing.T) {
	t.Parallel()
	needRedis(t)
	for _, refused := range []struct {
		option Option
		why    string
	}{
		{WithLinks(), "there are no links in front of groups: leave out WithLinks"},
		{WithUnixSockets(), "groups do not listen on Unix sockets: leave out WithUnixSockets"},
		{WithArgs("--requirepass", "secret"), "leave out --requirepass"},
		{WithArgs("--requirepass secret"), "leave out --requirepass"},
		{WithArgs("--appendonly", "yes", "--RequirePass", "secret", "--masterauth", "secret"), "leave out --RequirePass"},
		{WithArgs("--masterauth", "secret"), "leave out --masterauth"},
		{WithArgs("--port", "0"), "leave out --port"},
		{WithArgs("--replicaof", "127.0.0.1", "1"), "leave out --replicaof"},
	} {
		said := told(func(tb *fakeTB) { StartGroups(tb, 1, refused.option) })
		require.Contains(t, said.fatal, refused.why)
	}
}

func TestGroupsTakeArguments(t *testing.T) {
	t.Parallel()
	g := StartGroups(t, 1, WithArgs("--maxmemory", "100mb"), WithArgs("--appendonly", "yes"))
	reply, err := g.Servers(0).Do(g.Master(0), "CONFIG", "GET", "appendonly")
	require.NoError(t, err)
	require.Equal(t, []any{"appendonly", "yes"}, reply)
}

func TestGroupWithoutMasterIsDown(t *testing.T) {
	t.Parallel()
	g := StartGroups(t, 1)
	was := g.Master(0)
	g.Servers(0).Kill(was)
	now := g.Master(0, was)
	g.Servers(0).Kill(now)
	_, err := g.FindMaster(0)
	require.ErrorIs(t, err, ErrDown)
	g.Servers(0).Restart(now)
	require.Equal(t, now, g.Master(0))
}

func TestGroupWhoseMasterIsInDoubtIsNotDown(t *testing.T) {
	t.Parallel()
	g := StartGroups(t, 1)
	was := g.Master(0)
	g.Sentinels().Kill(0)
	g.Sentinels().Kill(1)
	_, err := g.FindMaster(0)
	require.NotErrorIs(t, err, ErrDown)
	require.ErrorContains(t, err, "the sentinels do not agree yet")
	g.Servers(0).Pause(was)
	_, err = g.FindMaster(0)
	require.NotErrorIs(t, err, ErrDown)
	require.ErrorContains(t, err, g.Servers(0).Addr(was)+" does not tell its role: ")
}
