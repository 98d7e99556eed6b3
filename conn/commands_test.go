package conn_test

import (
	"strings"
	"testing"

	"github.com/redburst/redburst/conn"
	"github.com/stretchr/testify/require"
)

// What a server says to a command without arguments tells whether it has the command. Nothing
// else that it says is believed.
func TestProbesFindOutWhatAServerHas(t *testing.T) {
	t.Parallel()
	const (
		arguments = "-ERR wrong number of arguments for 'delex' command\r\n"
		unknown   = "-ERR unknown command 'DELEX', with args beginning with: \r\n"
		old       = "-ERR unknown command 'HELLO'\r\n"
	)
	for name, c := range map[string]struct {
		answers map[string]string
		want    conn.Commands
	}{
		"an old Redis":           {map[string]string{"DELEX": unknown, "DELIFEQ": unknown}, 0},
		"Redis 8.4":              {map[string]string{"DELEX": arguments, "DELIFEQ": unknown}, conn.DelEx | conn.SetIfEq},
		"MSETEX, and no other":   {map[string]string{"DELEX": "-NOPERM no\r\n", "DELIFEQ": unknown, "MSETEX": arguments}, conn.MSetEx},
		"Redis 8.4, with MSETEX": {map[string]string{"DELEX": arguments, "MSETEX": arguments}, conn.DelEx | conn.SetIfEq | conn.MSetEx},
		"Valkey 9.1":             {map[string]string{"DELIFEQ": arguments, "MSETEX": arguments}, conn.DelIfEq | conn.SetIfEq | conn.MSetEx},
		"Valkey 9.0":             {map[string]string{"DELEX": unknown, "DELIFEQ": arguments}, conn.DelIfEq | conn.SetIfEq},
		"both":                   {map[string]string{"DELEX": arguments, "DELIFEQ": arguments}, conn.DelEx | conn.DelIfEq | conn.SetIfEq},
		"it allows neither":      {map[string]string{"DELEX": "-NOPERM no\r\n", "DELIFEQ": "-NOPERM no\r\n"}, 0},
		"it says yes to all":     {map[string]string{"DELEX": "+OK\r\n", "DELIFEQ": ":0\r\n"}, 0},
		"it speaks only RESP2":   {map[string]string{"HELLO": old, "DELEX": arguments, "DELIFEQ": unknown}, conn.DelEx | conn.SetIfEq},
	} {
		t.Run(name, func(t *testing.T) {
			s := script(t, c.answers)
			server := dial(t, s.addr, conn.Options{Probe: true, DialTimeout: patient}).Server()
			require.Equal(t, c.want, server.Commands)
			require.NotContains(t, strings.Join(server.Missing, " "), "DEL", "nobody misses it: the scripts do the same")
		})
	}
	s := script(t, nil)
	require.Zero(t, dial(t, s.addr, conn.Options{DialTimeout: patient}).Server().Commands)
	require.False(t, s.saw("DEL"), "it was not asked")
}
