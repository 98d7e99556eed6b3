package main

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
	"github.com/stretchr/testify/require"
)

func bulk(s string) string { return string(resp.AppendBulkString(nil, s)) }

// liar is a master that answers what it likes, and no to the rest.
func liar(t *testing.T, answer func(args []string) string) (addr string) {
	return conntest.Listen(t, func(c net.Conn) {
		conntest.Answer(c, func(args []string) (string, bool) {
			if said := answer(args); said != "" {
				return said, true
			}
			switch args[0] {
			case "HELLO":
				return "%3\r\n+version\r\n+7.0.15\r\n+mode\r\n+standalone\r\n+role\r\n+master\r\n", true
			case "INFO":
				return bulk("run_id:abc\r\nuptime_in_seconds:99999999\r\nrole:master\r\n"), true
			case "EVALSHA":
				return "-NOSCRIPT no\r\n", true
			case "EVAL", "SET":
				return "$-1\r\n", true
			case "PTTL":
				return ":60000\r\n", true
			case "TIME":
				return "*2\r\n$1\r\n1\r\n$1\r\n0\r\n", true
			}
			return "+OK\r\n", true
		})
	})
}

// A master that names a reader several times is one master all the same. The lock is that of the holder whom the
// others name, and can be revoked.
func TestAReaderWhomOneMasterRepeats(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 2)
	take(t, masters, "honest", "k", time.Hour)
	readers := strings.Repeat(bulk("mallory/AAAAAAAAAAAAAAAAAAAAAAAAAAA")+":99999999\r\n", 3)
	env := []string{mastersEnv(masters) + "," + liar(t, func(args []string) string {
		if args[0] == "EVAL" && args[1] == census.Rows.Text && args[4] == "k" {
			return "*1\r\n*8\r\n$-1\r\n:99999999\r\n:3\r\n*6\r\n" + readers + "$-1\r\n:-2\r\n:0\r\n*0\r\n"
		}
		return ""
	})}
	exit, s := statusOfKey(t, env, "k")
	require.Zero(t, exit)
	require.Equal(t, "honest", s.Owner)
	require.Equal(t, 2, s.Votes)
	_, stdout, _ := do(t, env, "status", "k")
	require.Contains(t, stdout, "k is held by honest, on 2 of 3 masters,")
	exit, stdout, stderr := do(t, env, "revoke", "k", "--reason", "why", "--wait", "0")
	require.Zero(t, exit, stderr)
	require.Contains(t, stdout, "k of honest is revoked")
}

// A master that quotes the password that it was told does so in vain.
func TestAMasterThatQuotesThePassword(t *testing.T) {
	t.Parallel()
	const password = "c0rrect-h0rse"
	addr := liar(t, func(args []string) string {
		if args[0] == "HELLO" || args[0] == "CLIENT" || args[0] == "INFO" {
			return ""
		}
		return "-ERR what about " + password + "?\r\n"
	})
	env := []string{"REDLOCK_MASTERS=" + addr, "REDLOCK_PASSWORD=" + password}
	for _, args := range [][]string{{"status", "k"}, {"status", "--permits", "2", "k"}, {"fence", "k"}, {"fence", "k", "--set", "7"}, {"doctor"}, {"clients"}, {"ls"},
		{"hold", "k", "--wait", "0"}, {"run", "--no-wait", "k", "--", "true"}, {"release", "k", "t"}, {"revoke", "k", "--reason", "why", "--wait", "0"}} {
		_, stdout, stderr := do(t, env, args...)
		require.NotContains(t, stdout+stderr, password, args)
		if args[0] == "status" || args[0] == "hold" {
			require.Contains(t, stdout+stderr, "***", args)
		}
	}
}

// A client names itself as it likes: it drives no terminal.
func TestANameDrivesNoTerminal(t *testing.T) {
	t.Parallel()
	const name = "redlock/%1B[2Jcmd/%1B[2Jv1/3-%1B%5D0%3Bx%07%1B%5B2J/%1B[2Jme"
	for _, another := range []string{"", "name=redlock/cmd/v1/3-a/you addr=b:1\n"} {
		masters := liar(t, func(args []string) string {
			if len(args) > 1 && args[0]+" "+args[1] == "CLIENT LIST" {
				return bulk("name=" + name + " addr=a:1\n" + another)
			}
			return ""
		})
		for _, args := range [][]string{{"clients"}, {"clients", "--json"}, {"doctor"}} {
			_, stdout, stderr := do(t, []string{"REDLOCK_MASTERS=" + masters}, args...)
			require.NotRegexp(t, "[\x1b\x07]", stdout+stderr, args)
			require.Contains(t, stdout, "1b", args)
		}
	}
}

// How many permits there are, a master says as it likes: nobody counts them one by one.
func TestAnAbsurdNumberOfPermits(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	for i := range masters.N() {
		for _, key := range []string{"{k}:permits", "{lock:k}:permits"} {
			ask(t, masters, i, "SET", key, "9223372036854775807")
		}
	}
	for _, key := range []string{"k", "lock:k"} {
		exit, stdout, stderr := do(t, []string{mastersEnv(masters)}, "revoke", key, "--reason", "why", "--wait", "0")
		require.Equal(t, exitNo, exit, stderr)
		require.Contains(t, stdout+stderr, "is free")
		_, stdout, _ = do(t, []string{mastersEnv(masters)}, "status", key)
		require.NotContains(t, stdout, "9223372036854775807")
	}
}

// callsItself is a master that says the password in the words with which it describes itself and its clients, escaped or not.
func callsItself(t *testing.T, password string) (addr string) {
	escaped := strings.ReplaceAll(password, "-", "%2D")
	return liar(t, func(args []string) string {
		switch strings.Join(args[:min(2, len(args))], " ") {
		case "HELLO 3":
			return "%3\r\n+version\r\n+" + password + "\r\n+mode\r\n+" + password + "\r\n+role\r\n+master\r\n"
		case "CLIENT LIST":
			return bulk("name=redlock/" + password + "/" + password + "/3-" + password + "/" + escaped + " addr=" + password + "\n")
		case "CONFIG GET":
			return "*2\r\n" + bulk(args[2]) + bulk(password)
		}
		if args[0] == "INFO" {
			return bulk("run_id:" + password + "\r\nuptime_in_seconds:99999999\r\nrole:master\r\nmaster_replid:" + password + "\r\nmaxmemory_policy:" + password + "\r\n")
		}
		return ""
	})
}

// It does so in vain.
func TestAMasterThatCallsItselfByThePassword(t *testing.T) {
	t.Parallel()
	const password = "c0rrect-h0rse"
	env := []string{"REDLOCK_MASTERS=" + callsItself(t, password), "REDLOCK_PASSWORD=" + password}
	for _, args := range [][]string{{"doctor"}, {"doctor", "--json"}, {"clients"}, {"clients", "--json"}} {
		_, stdout, stderr := do(t, env, args...)
		require.NotContains(t, stdout+stderr, password, args)
		require.Contains(t, stdout, "***", args)
	}
}
