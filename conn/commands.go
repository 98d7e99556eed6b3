package conn

import (
	"strings"

	"github.com/redburst/redburst/resp"
)

// Commands is a set of commands that not every server has. A later version may add some.
type Commands uint8

const (
	// DelEx is DELEX key IFEQ value, which Redis has since 8.4.
	DelEx Commands = 1 << iota
	// DelIfEq is DELIFEQ key value, which Valkey has since 9.0.
	DelIfEq
	// SetIfEq is SET key value IFEQ value PX ms. A server with one of the others has it.
	SetIfEq
	// MSetEx is MSETEX n key value ... NX PX ms, which Redis has since 8.4, and Valkey since 9.1.
	MSetEx
)

type probe struct {
	name string
	has  Commands
}

// probes are the commands that are tried in the handshake, and what a server that has them
// has.
var probes = []probe{
	{"DELEX", DelEx | SetIfEq},
	{"DELIFEQ", DelIfEq | SetIfEq},
	{"MSETEX", MSetEx},
}

// commandsOf returns which commands a server has if it has the one with that name: none if that is no
// probe.
func commandsOf(name string) Commands {
	for _, p := range probes {
		if p.name == name {
			return p.has
		}
	}
	return 0
}

// lacksArguments reports whether an error says that a command lacks its arguments. Then the server has
// the command. Versions do not tell (a Valkey says that it is a Redis 7.2.4), and COMMAND can be
// forbidden.
func lacksArguments(v resp.Value) bool {
	return v.IsError() && strings.Contains(string(v.Bytes()), "wrong number of arguments")
}
