package conn_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
)

// These servers and proxies speak the protocol, and lack something that Redis has. What the lock
// can do without is told in Missing. What it cannot do without is refused, with the reason.

const unknownHELLO = "-ERR unknown command 'HELLO'\r\n"

func bulk(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

// everything is all that a handshake can ask for.
func everything() conn.Options {
	return conn.Options{ClientName: "x", Scripts: []string{oneScript}, Tracking: true, Witness: "{}:since", Probe: true}
}

func TestServersWithoutAnOptionalCommandServe(t *testing.T) {
	t.Parallel()
	const info = "run_id:aa\r\nuptime_in_seconds:7\r\nrole:master\r\n"
	for name, tt := range map[string]struct {
		answers map[string]string
		missing []string
	}{
		"nothing missing": {nil, nil},
		"witness forbidden": {map[string]string{"GET": "-NOPERM No permissions to access a key\r\n"},
			[]string{"since when it has forgotten nothing: GET of the witness: NOPERM No permissions to access a key (the user needs ~{}:since and +eval)"}},
		"another type in its place": {map[string]string{"GET": "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
			[]string{"since when it has forgotten nothing: GET of the witness: WRONGTYPE Operation against a key holding the wrong kind of value (the user needs ~{}:since and +eval)"}},
		"CLIENT forbidden": {map[string]string{"CLIENT": "-NOPERM this user has no permissions\r\n"},
			[]string{"CLIENT TRACKING: NOPERM this user has no permissions"}},
		"CLIENT renamed": {map[string]string{"CLIENT": "-ERR unknown command 'CLIENT'\r\n"},
			[]string{"CLIENT TRACKING: ERR unknown command 'CLIENT'"}},
		"CLIENT CACHING unknown": {map[string]string{"CLIENT CACHING": "-ERR unknown subcommand 'CACHING'. Try CLIENT HELP.\r\n"},
			[]string{"CLIENT CACHING: ERR unknown subcommand 'CACHING'. Try CLIENT HELP."}},
		"INFO forbidden": {map[string]string{"INFO": "-NOPERM no\r\n"}, []string{"run id and uptime: INFO: NOPERM no"}},
		"INFO renamed": {map[string]string{"INFO": "-ERR unsupported command\r\n"},
			[]string{"run id and uptime: INFO: ERR unsupported command"}},
		"INFO without run_id": {map[string]string{"INFO": bulk("uptime_in_seconds:7\r\n")}, []string{"run id: INFO does not say it"}},
		"INFO without uptime": {map[string]string{"INFO": bulk("run_id:aa\r\n")}, []string{"uptime: INFO does not say it"}},
		"INFO without anything": {map[string]string{"INFO": bulk("")},
			[]string{"run id: INFO does not say it", "uptime: INFO does not say it"}},
	} {
		for proto, hello := range map[int]string{3: hello, 2: unknownHELLO} {
			t.Run(fmt.Sprintf("%s, RESP%d", name, proto), func(t *testing.T) {
				answers := map[string]string{"HELLO": hello, "INFO": bulk(info), "GET": "$-1\r\n"}
				for command, answer := range tt.answers {
					answers[command] = answer
				}
				s := script(t, answers)
				c := dial(t, s.addr, everything())
				got := c.Server()
				require.Equal(t, proto, got.Proto)
				require.Equal(t, "master", got.Role)
				require.Equal(t, !strings.HasPrefix(answers["GET"], "-"), got.Witnessed)
				missing := got.Missing
				if proto == 2 { // which cannot track anyway
					missing = nil
					for _, m := range got.Missing {
						if !strings.HasPrefix(m, "CLIENT ") {
							missing = append(missing, m)
						}
					}
				}
				want := tt.missing
				if proto == 2 && strings.HasPrefix(name, "CLIENT ") {
					want = nil
				}
				require.Equal(t, want, missing)
				require.True(t, newLine(t, c).do("SET", "k", "v", "NX", "PX", "1000").Is("OK"))
				require.False(t, s.saw("COMMAND"), "which proxies answer with an empty array, or not at all")
			})
		}
	}
}

// What the master has forgotten, or may forget, is read in the handshake, and a change of the witness until its end.
func TestWhatAMasterRemembersIsRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		get, info string
		want      conn.Server
	}{
		"no witness":           {"$-1\r\n", "aof_enabled:1\r\nunexpected_error_replies:0\r\n", conn.Server{Witnessed: true}},
		"a witness":            {bulk("w"), "", conn.Server{Witness: "w", Witnessed: true}},
		"it changes":           {bulk("w") + ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nw\r\n", "", conn.Server{Witness: "w", Witnessed: true, WitnessChanged: true}},
		"all is flushed":       {bulk("w") + ">2\r\n$10\r\ninvalidate\r\n_\r\n", "", conn.Server{Witness: "w", Witnessed: true, WitnessChanged: true}},
		"it may not be read":   {"-NOPERM no\r\n", "", conn.Server{}},
		"no file":              {"$-1\r\n", "aof_enabled:0\r\n", conn.Server{Witnessed: true, NoAOF: true}},
		"a refusal of its own": {"$-1\r\n", "unexpected_error_replies:2\r\n", conn.Server{Witnessed: true, Unexpected: true}},
	} {
		t.Run(name, func(t *testing.T) {
			s := script(t, map[string]string{"HELLO": hello, "GET": c.get, "INFO": bulk("run_id:aa\r\nrole:master\r\n" + c.info)})
			got := dial(t, s.addr, everything()).Server()
			require.Equal(t, c.want, conn.Server{Witness: got.Witness, Witnessed: got.Witnessed, WitnessChanged: got.WitnessChanged,
				NoAOF: got.NoAOF, Unexpected: got.Unexpected})
		})
	}
}

// A version is a word that a server says. One that knows commands of later versions is not what
// it says, and serves.
func TestOldVersionIsBelievedOnlyWhereItCanBe(t *testing.T) {
	t.Parallel()
	const unknownScript = "-ERR unknown command 'SCRIPT'\r\n"
	at := func(version string) string {
		return bulk("redis_version:" + version + "\r\nrun_id:aa\r\nrole:master\r\n")
	}
	old := strings.Replace(hello, "$5\r\n7.0.0", "$5\r\n2.4.0", 1)
	require.NotEqual(t, hello, old)
	serving := func(answers map[string]string, version string) {
		t.Helper()
		c := dial(t, script(t, answers).addr, everything())
		require.Equal(t, version, c.Server().Version)
	}
	serving(map[string]string{"HELLO": old}, "2.4.0")                               // HELLO came with Redis 6
	serving(map[string]string{"HELLO": unknownHELLO, "INFO": at("2.4.5")}, "2.4.5") // SCRIPT LOAD came with 2.6
	serving(map[string]string{"HELLO": unknownHELLO, "INFO": at("1.9.9")}, "1.9.9")

	for version, answers := range map[string]map[string]string{
		"2.6.11": {"HELLO": unknownHELLO, "INFO": at("2.6.11")},
		"2.6.0":  {"HELLO": unknownHELLO, "INFO": at("2.6.0")},
		"2.4.18": {"HELLO": unknownHELLO, "INFO": at("2.4.18"), "SCRIPT": unknownScript},
	} {
		requireRefused(t, refuse(t, script(t, answers).addr, everything()), "Redis "+version+" has no SET with NX and PX", "2.6.12")
	}
	s := script(t, map[string]string{"HELLO": unknownHELLO, "INFO": at("2.4.18")})
	requireRefused(t, refuse(t, s.addr, conn.Options{}), "2.4.18", "2.6.12") // no script tells better
	// What says that it is old, and has no scripts either, is refused for that.
	s = script(t, map[string]string{"HELLO": old, "SCRIPT": unknownScript})
	requireRefused(t, refuse(t, s.addr, everything()), "SCRIPT LOAD: ERR unknown command 'SCRIPT'", "Lua")
}

// Native commands do not replace all scripts.
func TestServersWithoutLuaAreRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ answer, reason, remedy string }{
		"SCRIPT renamed":        {"-ERR unknown command 'SCRIPT'\r\n", "SCRIPT LOAD: ERR unknown command", "EVALSHA"},
		"Valkey without module": {"-ERR Could not find scripting engine 'lua'\r\n", "scripting engine", "EVALSHA"},
		"forbidden":             {"-NOPERM this user has no permissions to run the 'script|load' command\r\n", "NOPERM", "let the user run SCRIPT LOAD"},
		"a proxy":               {"-ERR unsupported command\r\n", "unsupported", "proxy"},
		"a proxy without ERR":   {"-unsupported command 'script'\r\n", "unsupported command", "proxy"},
		"Unknown Command":       {"-ERROR Unknown Command\r\n", "Unknown Command", "proxy"},
		"disabled":              {"-DISABLED scripts are disabled\r\n", "disabled", "Lua"},
		// Garnet without --lua, which is its default.
		"Garnet": {"-ERR This instance has Lua scripting support disabled\r\n", "support disabled", "EVALSHA"},
	} {
		for proto, hello := range map[int]string{3: hello, 2: unknownHELLO} {
			t.Run(fmt.Sprintf("%s, RESP%d", name, proto), func(t *testing.T) {
				const lacksArguments = "-ERR wrong number of arguments for 'delex' command\r\n"
				s := script(t, map[string]string{"HELLO": hello, "SCRIPT": tt.answer, "DELEX": lacksArguments})
				err := refuse(t, s.addr, everything())
				requireRefused(t, err, tt.reason, tt.remedy)
			})
		}
	}
}

// Proxies answer PING, and more or less of the rest. Some end the connection at a command that
// they do not know.
func TestProxiesThatCannotServeSayWhy(t *testing.T) {
	t.Parallel()
	const unsupported = "-ERR unsupported command\r\n"
	t.Run("it knows nothing of the handshake", func(t *testing.T) {
		s := script(t, map[string]string{"": unsupported, "HELLO": unsupported, "INFO": unsupported, "ROLE": unsupported, "PING": "+PONG\r\n"})
		requireRefused(t, refuse(t, s.addr, everything()), "SCRIPT LOAD: ERR unsupported command", "proxy")
	})
	t.Run("it ends the connection at HELLO", func(t *testing.T) {
		s := script(t, map[string]string{"HELLO": "close", "PING": "+PONG\r\n"})
		err := refuse(t, s.addr, everything())
		require.NotErrorIs(t, err, conn.ErrRefused) // a master that dies does the same
		require.ErrorContains(t, err, "before any answer")
		require.ErrorContains(t, err, "rediss://")
		require.ErrorContains(t, err, "proxy")
	})
	t.Run("it refuses HELLO and ends the connection", func(t *testing.T) {
		for _, refusal := range []string{unknownHELLO, unsupported, "-unsupported command 'hello'\r\n"} {
			s := script(t, map[string]string{"HELLO": refusal, "INFO": "close"})
			requireRefused(t, refuse(t, s.addr, conn.Options{}), "and it ended the connection", "not a proxy's")
		}
		// What passes by itself is no reason to give up, however the connection ends.
		s := script(t, map[string]string{"HELLO": "-LOADING Redis is loading the dataset in memory\r\n", "INFO": "close"})
		require.NotErrorIs(t, refuse(t, s.addr, conn.Options{}), conn.ErrRefused)
	})
	t.Run("it refuses scripts and ends the connection later", func(t *testing.T) {
		for _, answers := range []map[string]string{
			{"DELEX": "close"},
			{"HELLO": unknownHELLO, "ROLE": "close"},
		} {
			answers["SCRIPT"] = unsupported
			requireRefused(t, refuse(t, script(t, answers).addr, everything()), "SCRIPT LOAD: ERR unsupported command", "proxy")
		}
	})
	t.Run("it ends the connection at a probe", func(t *testing.T) {
		for _, hello := range []string{hello, unknownHELLO} {
			s := script(t, map[string]string{"HELLO": hello, "DELEX": "close", "DELIFEQ": "close"})
			c := dial(t, s.addr, everything())
			require.Zero(t, c.Server().Commands)
			require.True(t, newLine(t, c).do("SET", "k", "v", "NX", "PX", "1000").Is("OK"))
		}
	})
	t.Run("it ends the connection at a command", func(t *testing.T) {
		for command, at := range map[string]string{"SCRIPT": "SCRIPT LOAD", "INFO": "INFO", "GET": "GET of the witness"} {
			s := script(t, map[string]string{command: "close"})
			err := refuse(t, s.addr, everything())
			require.NotErrorIs(t, err, conn.ErrRefused) // a master that dies does the same
			require.ErrorContains(t, err, "before the answer to "+at)
		}
		s := script(t, map[string]string{"HELLO": unknownHELLO, "ROLE": "close"})
		require.ErrorContains(t, refuse(t, s.addr, everything()), "before the answer to ROLE")
	})
}
