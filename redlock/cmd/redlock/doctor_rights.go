package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock/internal/rights"
	"github.com/redburst/redburst/resp"
)

// permissions are the ACL rules that every lock needs.
var permissions = strings.Join(rights.Rules("", rights.Lock, rights.Telling, rights.Restarts), " ")

// A scratch is a key that nobody has.
const scratch = "\x00scratch"

// trials are calls that change nothing, one for each command that a lock can need. They are about the key scratch,
// which is not there. The handshake has tried the others.
var trials = map[string][]string{
	"set":              {"SET", scratch, "", "XX", "PX", "1"},
	"get":              {"GET", scratch},
	"del":              {"DEL", scratch},
	"pexpire":          {"PEXPIRE", scratch, "1"},
	"pexpireat":        {"PEXPIREAT", scratch, "1"},
	"pttl":             {"PTTL", scratch},
	"eval":             {"EVAL", "return 1", "0"},
	"evalsha":          {"EVALSHA", strings.Repeat("0", 40), "0"},
	"script|load":      {"SCRIPT", "LOAD", "return 1"},
	"time":             {"TIME"},
	"type":             {"TYPE", scratch},
	"exists":           {"EXISTS", scratch},
	"mget":             {"MGET", scratch},
	"zadd":             {"ZADD", scratch, "XX", "1", "a"},
	"zrem":             {"ZREM", scratch, "a"},
	"zcard":            {"ZCARD", scratch},
	"zscore":           {"ZSCORE", scratch, "a"},
	"zrank":            {"ZRANK", scratch, "a"},
	"zrange":           {"ZRANGE", scratch, "0", "0"},
	"zremrangebyscore": {"ZREMRANGEBYSCORE", scratch, "0", "0"},
}

// besides are the ends of the keys beside a lock that stand for a pattern of keys.
var besides = map[string]string{"{KEY}:permit*": "{KEY}:permit:1/2", "{KEY}:line*": "{KEY}:line:a:alive"}

// tryRights asks for each right that any kind of lock needs. It changes nothing: an EVAL that does nothing is
// refused if the user may not use its key.
func (e *inspection) tryRights(ctx context.Context, p *probe, key string) error {
	var asked []string
	var calls [][]string
	for _, rule := range rights.Rules("KEY", append([]rights.Need{rights.Lock}, rights.Optional...)...) {
		var call []string
		if name, is := strings.CutPrefix(rule, "~"); is {
			if name = cmp.Or(besides[name], name); conn.HashTag(key) != "" { // as redlock's names.go
				name = name[1:]
			}
			call = []string{"EVAL", "return 1", "1", strings.ReplaceAll(name, "KEY", key)}
		} else {
			call = slices.Clone(trials[rule[1:]])
			for i := range call {
				call[i] = strings.Replace(call[i], scratch, key+":"+rand.Text(), 1)
			}
		}
		asked, calls = append(asked, rule), append(calls, call)
	}
	replies, err := judged(ctx, p, calls...)
	if err != nil {
		return err
	}
	e.lacks = map[string]bool{}
	for i, reply := range replies {
		if lacks(reply, asked[i]) {
			e.lacks[asked[i]] = true
		}
	}
	return nil
}

// lacks reports whether an error says that a right is missing, or that the server has no such command.
func lacks(v resp.Value, rule string) bool {
	text := strings.ToLower(string(v.Bytes()))
	key := strings.Contains(text, "access") && strings.Contains(text, "key")
	switch conn.ErrorCode(v) {
	case "NOPERM":
		return key == (rule[0] == '~')
	case "ERR":
		return rule[0] == '+' && strings.Contains(text, "unknown command")
	}
	return false
}

// findRights looks for kinds of locks that the user may not take. It is wrong if he has a part of their commands: he can
// take some of these locks, and not release them. Who has none of them was hardly meant to. Who lacks only keys takes
// none, and without the queue locks go to whoever comes first.
func (e *inspection) findRights(add adder) {
	var unmet, met []rights.Need
	for _, n := range append([]rights.Need{rights.Lock}, rights.Optional...) {
		if len(e.missing(n)) > 0 {
			unmet = append(unmet, n)
		} else {
			met = append(met, n)
		}
	}
	for _, n := range unmet {
		missing := strings.Join(e.inPattern(e.missing(n)), " ")
		use := n.For
		if n.Flag != "" {
			use += " (redlock run " + n.Flag + ")"
		}
		l, remedy := wrong, ""
		if n.For != rights.Lock.For && (missing[0] == '~' || n.For == rights.Queue.For || !e.hasPart(n, met)) {
			l, remedy = risky, "if there are to be such, "
		}
		add(l, fmt.Sprintf("gives the user no %s, which is for %s", missing, use), remedy+"let the user of the locks have them: ACL SETUSER … "+missing)
	}
}

// missing returns the rules that the user lacks for a need. Without EVAL nothing tells whether he may use its keys.
func (e *inspection) missing(n rights.Need) []string {
	return slices.DeleteFunc(rights.Rules("KEY", n), func(rule string) bool {
		return !e.lacks[rule] || e.lacks["+eval"] && rule[0] == '~'
	})
}

// pattern is that of the locks' keys on the master, as an ACL has it.
func (e *inspection) pattern() string { return cmp.Or(e.prefix, "lock:") + "*" }

// inPattern are rules with that pattern for KEY. All keys of a prefix with a hash tag begin with it.
func (e *inspection) inPattern(rules []string) (all []string) {
	for _, rule := range rules {
		if rule[0] == '~' && conn.HashTag(e.prefix) != "" {
			rule = "~KEY"
		}
		if rule = strings.Replace(rule, "KEY", e.pattern(), 1); !slices.Contains(all, rule) {
			all = append(all, rule)
		}
	}
	return all
}

// hasPart reports whether the user may run a command for a need that he does not have for one of those that are met. TIME
// he may have for the doctor. With EXISTS alone he takes locks on several keys, whatever else he has it for.
func (e *inspection) hasPart(n rights.Need, met []rights.Need) bool {
	return slices.ContainsFunc(n.Commands, func(command string) bool {
		if e.lacks["+"+command] || command == "time" {
			return false
		}
		return n.For == rights.Several.For || !slices.ContainsFunc(met, func(m rights.Need) bool { return slices.Contains(m.Commands, command) })
	})
}
