//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func TestRevokeOfAllThatMatch(t *testing.T) {
	t.Parallel()
	const lasts = "--ttl=30s" // a busy machine, and a master that is silent, do not end it
	for name, silent := range map[string]bool{"all answer": false, "one is silent": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			masters, env := started(t, 3)
			var matching []*invocation
			for _, args := range [][]string{
				{"lock:a"}, {"lock:b", "--shared"}, {"lock:b", "--shared"}, {"lock:c", "--permits", "3"}, {"lock:c", "--permits", "3"},
			} {
				s := begin(t, env, append([]string{"hold", atOnce, lasts}, args...)...)
				s.assigned("REDLOCK_TOKEN")
				matching = append(matching, s)
			}
			other := begin(t, env, "hold", atOnce, lasts, "other")
			token := other.assigned("REDLOCK_TOKEN")
			require.Eventually(t, func() bool { // a master that was connected later is given it by a renewal
				_, all := listOf(t, env)
				named := 0
				for _, l := range all {
					for _, h := range l.Holders {
						named += len(h.On)
					}
				}
				return named == masters.N()*(len(matching)+1)
			}, patient, 20*time.Millisecond)
			const foreign = "8f14e45fceea167a5a36dedd4bea2543"
			for i := range 3 {
				masters.Do(i, "SET", "lock:foreign", foreign, "PX", "3600000")
			}
			masters.Do(0, "SET", "lock:lie", token, "PX", "3600000")
			all, none := 0, exitNo
			if silent {
				masters.Pause(2) // the others are a majority that has each; but who is silent may have the lie, too
				all, none = exitNoQuorum, exitNoQuorum
			}
			kept := func() {
				require.Equal(t, token, ask(t, masters, 0, "GET", "lock:lie"), "a minority's lock is nobody's")
				for i := range 2 {
					v := ask(t, masters, i, "GET", "lock:foreign")
					require.Equal(t, foreign, v)
					v = ask(t, masters, i, "GET", "other")
					require.Equal(t, token, v)
				}
			}
			revoke := func(args ...string) (int, string, string) {
				return do(t, env, append([]string{"revoke", "--match", "lock:*", "--reason", "why"}, args...)...)
			}
			status, _, stderr := revoke()
			require.Equal(t, exitUsage, status)
			require.Contains(t, stderr, "--match asks on a terminal")
			status, _, stderr = revoke("--yes", "--most", "2")
			require.Equal(t, exitUsage, status)
			require.Contains(t, stderr, `more than 2 locks match "lock:*"`)
			for _, key := range []string{"lock:a", "lock:b"} {
				_, stdout, _ := do(t, env, "status", "--json", key)
				require.NotContains(t, stdout, "why", "none was revoked")
			}

			status, stdout, stderr := revoke("--yes", "--wait", "1m", "--json")
			require.Equal(t, all, status, stderr)
			require.Equal(t, silent, strings.Contains(stderr, `too few masters say whether "lock:lie" is held`), stderr)
			require.Contains(t, stderr, "1 key that look")
			var keys []string
			for d := json.NewDecoder(strings.NewReader(stdout)); d.More(); {
				var out struct {
					Key    string   `json:"key"`
					Owners []string `json:"owners"`
				}
				require.NoError(t, d.Decode(&out))
				for range out.Owners {
					keys = append(keys, out.Key)
				}
			}
			require.Equal(t, []string{"lock:a", "lock:b", "lock:b", "lock:c", "lock:c"}, keys)
			for _, s := range matching {
				require.Equal(t, exitLost, s.end())
			}
			kept()
			status, _, stderr = revoke("--yes")
			require.Equal(t, none, status)
			require.NotEqual(t, silent, strings.Contains(stderr, `no lock that matches "lock:*" is held`), stderr)
			masters.Kill(1)
			if !silent {
				masters.Kill(2)
			}
			status, _, stderr = revoke("--yes")
			require.Equal(t, exitNoQuorum, status, stderr)
		})
	}
}

// A holder that is revoked no more hides no other that keeps the lock, in whatever order they are named.
func TestTheFailureOfAnyHolderIsTold(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	client, err := redlock.Open(t.Context(), redlock.Config{Masters: masters.Addrs()})
	require.NoError(t, err)
	defer client.Close()
	ask(t, masters, 0, "SET", "k", "endless")
	endless, gone := census.Holder{Token: conn.NewSecret("endless")}, census.Holder{Token: conn.NewSecret("gone")}
	for _, c := range []struct {
		holders []census.Holder
		status  int
	}{{[]census.Holder{gone}, exitNo}, {[]census.Holder{endless, gone}, exitHeld}, {[]census.Holder{gone, endless}, exitHeld}} {
		r := revoker{reason: "why"}
		f, ok := errors.AsType[*failure](r.revokeAll(t.Context(), client, []found{{LockInfo: redlock.LockInfo{Key: "k"}, holders: c.holders}}, 0))
		require.True(t, ok)
		require.Equal(t, c.status, f.status)
	}
}
