//go:build unix

package main

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/internal/rights"
	"github.com/stretchr/testify/require"
)

// Each command keeps to the keys behind the prefix, whether a flag or the environment has it: the user may use no
// others, and the master has refused nothing. What people see is without it.
func TestEveryCommandKeepsToThePrefix(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"{locks}:", "app:"} {
		for _, flag := range []bool{false, true} {
			t.Run(fmt.Sprint(prefix, flag), func(t *testing.T) {
				t.Parallel()
				masters := durable(t, 1)
				ask(t, masters, 0, "DEL", "{}:since") // the witness for who has no prefix
				rules := append(rights.Rules(prefix+"*", append(rights.Locks[:len(rights.Locks)-1:len(rights.Locks)-1], rights.Operators...)...), "~"+prefix+"*")
				env := grant(t, masters, "user", rules)
				with := func(command string, args ...string) []string {
					if flag {
						return append([]string{command, "--prefix", prefix}, args...)
					}
					return append([]string{command}, args...)
				}
				if !flag {
					env = append(env, "REDLOCK_PREFIX="+prefix)
				}
				says := func(status int, want string, command string, args ...string) {
					t.Helper()
					got, stdout, stderr := do(t, env, with(command, args...)...)
					require.Equal(t, status, got, stderr)
					require.Regexp(t, want, stdout)
					require.NotContains(t, strings.ReplaceAll(stdout, "REDLOCK_PREFIX="+prefix, ""), prefix)
				}
				for name, c := range map[string]struct {
					flags, names []string
					queue        bool
				}{
					"my-plain":   {queue: true},
					"my-several": {flags: []string{"--also", "further"}},
					"my-shared":  {flags: []string{"--shared"}},
					"my-permits": {flags: []string{"--permits", "2"}, names: []string{"--permits", "2"}},
				} {
					s := begin(t, env, with("hold", slices.Concat(c.flags, []string{atOnce, soonTold, "--owner", "me", name})...)...)
					token := s.assigned("REDLOCK_TOKEN")
					status := 0
					if name == "my-permits" {
						status = 1
					}
					says(status, "me", "status", append(c.names, name)...)
					says(0, ` `+name+`\b`, "ls", name+"*")
					if c.queue {
						waiter := begin(t, env, with("hold", "--wait", "1m", "--owner", "next", name)...)
						awaitTrue(t, func() bool {
							_, stdout, _ := do(t, env, with("status", name)...)
							return strings.Contains(stdout, "next")
						})
						says(0, "was taken from me", "release", "--token", token, name)
						waiter.assigned("REDLOCK_TOKEN")
						says(0, "(?m)^"+name+" of next is revoked", "revoke", name, "--reason", "why", "--wait", "1m")
						require.Equal(t, exitLost, waiter.end())
						require.NotContains(t, waiter.err.String(), prefix)
						s.end()
						says(0, "", "fence", name)
						says(0, "(?m)^"+name+": the counter is", "fence", name, "--reset-to", "now")
						continue
					}
					says(0, "is revoked", "revoke", append(c.names, name, "--reason", "why", "--wait", "1m")...)
					require.Equal(t, exitLost, s.end())
				}
				s := begin(t, env, with("lead", "led", "--", "sleep", "60")...)
				w := begin(t, env, with("status", "--watch", "led")...).awaitStdout("led")
				w.endBy(syscall.SIGTERM)
				require.NotContains(t, w.out.String(), prefix)
				s.endBy(syscall.SIGTERM)
				says(0, "REDLOCK_KEY=k\n", "run", atOnce, "k", "--", "env")
				says(0, "REDLOCK_PREFIX="+regexp.QuoteMeta(prefix)+"\n", "run", atOnce, "k", "--", "env")
				says(0, "", "clients")
				s = begin(t, env, with("hold", atOnce, "--owner", "me", "seen")...)
				s.assigned("REDLOCK_TOKEN")
				page := serveUIAs(t, env, append(with("")[1:], "--allow-revoke")...)
				shown := map[string]bool{}
				page.events("/events", func(event string, data []byte) bool {
					if event != "about" { // which says that there is one
						require.NotContains(t, string(data), prefix, event)
					}
					shown[event] = shown[event] || event != "locks" || strings.Contains(string(data), `"key":"seen"`)
					return shown["locks"] && shown["masters"] && shown["findings"] && shown["clients"]
				})
				status, said := page.revokes("seen", page.host)
				require.Equal(t, http.StatusOK, status, said)
				require.Equal(t, exitLost, s.end())
				page.inv.endBy(syscall.SIGTERM)
				if flag {
					says(0, "", "demo", "-m", masters.Addr(0))
				}

				log := ask(t, masters, 0, "ACL", "LOG")
				for _, entry := range log.([]any) { // the page's doctor asks for what it may not do: neither names a key
					require.Regexp(t, `object (config(\|get)?|acl(\|getuser)?) `, fmt.Sprint(entry)) // before Redis 7 without the subcommand
					require.Contains(t, fmt.Sprint(entry), "/redlock-doctor@")
				}
				keys := ask(t, masters, 0, "KEYS", "*")
				require.NotEmpty(t, keys)
				for _, key := range keys.([]any) {
					require.True(t, strings.HasPrefix(strings.TrimPrefix(key.(string), "{"), strings.TrimPrefix(prefix, "{")), key)
				}
				exit, d := diagnosed(t, env, append([]string{"--try", "k"}, with("")[1:]...)...)
				require.Zero(t, exit)
				require.Len(t, d.Findings, 1, "that it is the only master: %v", d.Findings)
			})
		}
	}
}

// The remedies for a missing right name the keys behind the prefix.
func TestDoctorNamesTheKeysBehindThePrefix(t *testing.T) {
	t.Parallel()
	masters := durable(t, 1)
	for prefix, names := range map[string]string{"{locks}:": "~{locks}:*", "app:": "~{app:*}:fence"} {
		env := grant(t, masters, "user"+prefix, []string{"-@all", "+set", "+eval", "+evalsha", "+script|load", "+get", "+del", "+pexpire", "+pttl", "+time", "resetkeys", "~" + prefix + "k*"})
		_, d := diagnosed(t, append(env, "REDLOCK_PREFIX="+prefix), "--try", "other")
		require.Contains(t, requireFinding(t, d, wrong, "refuses", masters.Addr(0)).Remedy, "ACL SETUSER … ~"+prefix+"*")
		require.Contains(t, requireFinding(t, d, risky, "which is for locks with a fence", masters.Addr(0)).Remedy, "ACL SETUSER … "+names)
	}
}

func awaitTrue(t *testing.T, is func() bool) {
	t.Helper()
	require.Eventually(t, is, patient, 20*time.Millisecond)
}
