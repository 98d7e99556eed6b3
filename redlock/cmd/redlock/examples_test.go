//go:build unix

package main

import (
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/redburst/redburst/redlock/flight"
	"github.com/redburst/redburst/redlock/internal/processes"
	"github.com/redburst/redburst/redlock/internal/rights"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// grantLocker gives the masters the user locker, who has the rights that the documentation of conn names, as far
// as the server knows them.
func grantLocker(t *testing.T, masters *redlocktest.Masters) (env []string) {
	t.Helper()
	_, doc, _ := strings.Cut(read(t, "conn/doc.go"), "ACL SETUSER locker on >password ")
	doc, _, found := strings.Cut(doc, "A server refuses")
	require.True(t, found)
	rights := regexp.MustCompile(`(?m)(?:[ \t]|^)([+~-][^\s,]+|resetkeys)`).FindAllStringSubmatch(doc, -1)
	require.Greater(t, len(rights), 30)
	for i := range masters.N() {
		ask(t, masters, i, "ACL", "SETUSER", "locker", "on", ">password")
		for _, right := range rights {
			_, err := masters.Do(i, "ACL", "SETUSER", "locker", right[1])
			if err != nil {
				require.Contains(t, err.Error(), "Unknown command")
			}
		}
	}
	return []string{mastersEnv(masters), "REDLOCK_USERNAME=locker", "REDLOCK_PASSWORD=password", "REDLOCK_DURABLE=true"}
}

// examplesOf returns the examples of a command's help, each as a shell reads it.
func examplesOf(cmd *cobra.Command) (all []string) {
	for line := range strings.Lines(cmd.Example) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "    ") { // it goes on
			all[len(all)-1] += "\n" + line
			continue
		}
		line = strings.TrimPrefix(strings.TrimSpace(line), "*/5 * * * *  ")
		all = append(all, regexp.MustCompile(`   +[^ #].*`).ReplaceAllString(line, "")) // what it is for
	}
	return all
}

// Whoever follows the documentation has a user who may use keys that begin with lock:, and no others.
func TestExamplesOfTheHelpWorkForTheUserOfTheDocumentation(t *testing.T) {
	t.Parallel()
	masters := durable(t, 3)
	env := append(grantLocker(t, masters), "PATH="+programs(t)+":"+os.Getenv("PATH"))
	operator := append(slices.Clone(env), grant(t, masters, "operator", append(lockerRules("lock:*"), rights.Rules("lock:*", rights.Operators...)...))...)
	recorder, err := flight.New(flight.Options{})
	require.NoError(t, err)
	service := httptest.NewServer(recorder)
	defer service.Close()
	served := service.URL
	seen := 0
	t.Run("example", func(t *testing.T) {
		for _, cmd := range append(newRoot().Commands(), newRoot()) {
			for _, example := range examplesOf(cmd) {
				example = strings.ReplaceAll(example, "redis-a:6379,redis-b:6379,redis-c:6379", strings.Join(masters.Addrs(), ","))
				example = regexp.MustCompile(`http://.:6060/debug/redlock`).ReplaceAllString(example, served)
				switch {
				case !strings.Contains(example, "redlock "), slices.Contains([]string{"man", "version"}, cmd.Name()),
					example == "redlock demo", strings.Contains(example, "--force"): // it asks on a terminal
					continue
				}
				seen++
				example = strings.ReplaceAll(example, "lock:", fmt.Sprintf("lock:%d:", seen)) // no other has its keys
				env := env
				if regexp.MustCompile(`^redlock (clients|ls|ui|revoke --match)\b`).MatchString(example) { // which are for an operator
					env = operator
				}
				t.Run(example, func(t *testing.T) {
					t.Parallel()
					follow(t, env, example)
				})
			}
		}
	})
	require.Greater(t, seen, 25)
	for i := range masters.N() {
		denied := ask(t, masters, i, "ACL", "LOG")
		for _, d := range denied.([]any) {
			require.Regexp(t, `object (config|client|acl)\b`, fmt.Sprint(d), "the doctor asks for it, and needs it not")
		}
	}
}

// programs makes a directory with the command and all that the examples run.
func programs(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	require.NoError(t, os.Symlink(binary, filepath.Join(dir, "redlock")))
	for _, name := range []string{"report.sh", "migrate", "verify", "stats", "cleanup", "make", "copy.sh", "export.sh", "train.sh", "bash"} {
		require.NoError(t, processes.WriteProgram(filepath.Join(dir, name), []byte("#!/bin/sh\n")))
	}
	for _, name := range []string{"scheduler", "api"} {
		require.NoError(t, processes.WriteProgram(filepath.Join(dir, name), []byte("#!/bin/sh\necho leading; exec sleep 3600\n")))
	}
	for _, name := range []string{"app.flight", "a.flight", "b.flight"} {
		rec, err := flight.New(flight.Options{File: filepath.Join(dir, name)})
		require.NoError(t, err)
		require.NoError(t, rec.Close())
	}
	require.NoError(t, processes.WriteProgram(filepath.Join(dir, "jq"), []byte("#!/bin/sh\ncat >/dev/null; echo $TOKEN_OF_JQ\n")))
	return dir
}

// follow runs an example.
func follow(t *testing.T, env []string, example string) {
	shell := func(script string, more ...string) *invocation {
		s := beginBy(t, slices.Concat(env, more), "sh", "-c", "cd ${PATH%%:*}; "+script)
		s.in.Close()
		return s
	}
	lasting := regexp.MustCompile(`redlock (hold|lead|status --watch|ls --watch|ui) ?`).MatchString(example)
	switch {
	case lasting:
		if strings.HasPrefix(example, "redlock ui") {
			example += " --listen 127.0.0.1:0" // the last one counts
		}
		s := shell("exec " + example)
		s.awaitStdout("\n")
		s.endBy(syscall.SIGTERM)
		require.Empty(t, s.err.String())
	case strings.Contains(example, "redlock release"):
		kind := ""
		if strings.Contains(example, "--permits") {
			kind = "--permits 4 "
		}
		holder := shell("exec redlock hold --ttl 1h " + kind + regexp.MustCompile(`lock:\S+$`).FindString(example))
		token := holder.assigned("REDLOCK_TOKEN")
		s := shell(example, "REDLOCK_TOKEN="+token, "TOKEN_OF_JQ="+token)
		require.Zero(t, s.end())
		require.Contains(t, s.out.String(), "was taken from")
		loses(t, holder)
	case strings.Contains(example, "redlock revoke"):
		kind := ""
		if strings.Contains(example, "--permits") {
			kind = "--permits 4 "
		}
		holder := shell("exec redlock hold --ttl 3s " + kind + regexp.MustCompile(`lock:[^\s']+`).FindString(example))
		holder.assigned("REDLOCK_TOKEN")
		s := shell(example)
		require.Zero(t, s.end())
		require.NotEmpty(t, s.out.String())
		require.Equal(t, exitLost, holder.end())
	default:
		s := shell(example)
		if status := s.end(); strings.HasPrefix(example, "redlock ls") { // other examples may hold locks
			require.Contains(t, []int{0, exitNo}, status)
		} else if strings.HasPrefix(example, "redlock status") && !strings.Contains(example, "|") {
			require.Equal(t, exitNo, status, "it is free")
		} else if !strings.Contains(example, "doctor") { // which may find that the machine is busy
			require.Zero(t, status)
		}
		require.NotContains(t, s.out.String(), "refuses")
		require.Empty(t, s.err.String())
	}
}
