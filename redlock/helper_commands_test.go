package redlock

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/redlock/internal/tracking"
	"github.com/redburst/redburst/resp"
)

// What a simulated master does with the commands that it is sent. How they get there, and when, is in
// helper_fake_test.go. It is not a package of internal: tests set and read the fields of the masters, and it
// reads scripts of this package, so it would export more than it hides.

func (m *fakeMaster) get(key string) (fakeKey, bool) {
	v, ok := m.keys[key]
	return v, ok && v.expires > m.r.clock()
}

// value is what GET says.
func (m *fakeMaster) value(key string) any {
	m.log = append(m.log, "get "+key)
	if v, there := m.get(key); there {
		return v.token
	}
	return nil
}

// apply does what a command says.
func (m *fakeMaster) apply(command []byte) (reply []byte, answered bool) {
	args := words(command)
	if m.vanish != nil && m.vanish(args) {
		return nil, false
	}
	return appendReply(nil, m.do(args)), true
}

// appendReply appends a number, a string, an error, an array, or a null.
func appendReply(dst []byte, reply any) []byte {
	switch r := reply.(type) {
	case int64:
		return fmt.Appendf(dst, ":%d\r\n", r)
	case string:
		return resp.AppendBulkString(dst, r)
	case error:
		return resp.AppendError(dst, r.Error())
	case []any:
		dst = resp.AppendArray(dst, len(r))
		for _, elem := range r {
			dst = appendReply(dst, elem)
		}
		return dst
	}
	return append(dst, "$-1\r\n"...)
}

func (m *fakeMaster) do(args []string) (reply any) {
	if m.deny != nil {
		if text := m.deny(args); text != "" {
			return errors.New(text)
		}
	}
	switch key := args[1]; {
	case args[0] == "PEXPIRE":
		return int64(1)
	case args[0] == "PTTL":
		return m.left(key)
	case args[0] == "CLIENT":
		return "OK"
	case args[0] == "EXISTS":
		n := int64(0)
		for _, key := range args[1:] {
			if _, there := m.get(key); there {
				n++
			}
		}
		return n
	case args[0] == "SET" && len(args) == 5: // who waits in the queue is alive
		m.put(key, args[2], args[4])
		return "OK"
	case args[0] == "SET" && m.refusal != "":
		return errors.New(m.refusal)
	case args[0] == "SET" && args[3] == "IFEQ":
		if m.script(kind.ExtendScript.Text, args[1:2], []string{args[2], args[6], "0"}) == int64(1) {
			return "OK"
		}
		return nil
	case args[0] == "SET":
		if _, there := m.get(key); there || m.stubborn {
			return nil
		}
		m.put(key, args[2], args[5])
		m.note("set", key, args[2])
		return "OK"
	case args[0] == "DELEX" || args[0] == "DELIFEQ":
		if v, _ := m.get(key); v.token != args[len(args)-1] {
			m.note("release", key, args[len(args)-1])
			return int64(0)
		}
		return m.script(kind.ReleaseScript.Text, args[1:2], args[len(args)-1:])
	case args[0] == "EVALSHA" && !m.scripts || args[0] == "EVAL" && m.textless:
		m.log = append(m.log, "noscript")
		return errors.New("NOSCRIPT No matching script.")
	case args[0] == "EVALSHA" || args[0] == "EVAL":
		n, _ := strconv.Atoi(args[2])
		return m.script(args[1], args[3:3+n], args[3+n:])
	}
	panic(fmt.Sprintf("fake master: %q", args))
}

// script does what a script says, which is given by its text or hash. A lock's key with its counter is a counter
// (kind_fenced_test.go), and several keys are a severalMaster. Tests compare both with the scripts.
func (m *fakeMaster) script(what string, keys, args []string) any {
	is := func(s script.Script) bool { return what == s.Text || what == s.Hash }
	key, token, fence := keys[0], "", m.counters[keys[0]]
	if len(args) > 0 {
		token = args[0]
	}
	on := severalMaster{}
	for _, key := range keys {
		if v, there := m.get(key); there {
			on[key] = v.token
		}
	}
	if reply, yes := m.buried(is, on, keys, args); yes {
		return reply
	}
	c := counter{on[key], uint64(fence)}
	n, kept := int64(0), false // kept, or taken: then its TTL is the second argument
	switch {
	case is(kind.ReleaseScript):
		m.note("release", key, token)
		n = c.release(token)
	case is(kind.RevokeScript):
		m.note("revoke", key, token)
		v, there := m.get(key)
		if !there || v.token != token {
			return int64(-2)
		}
		m.keys[key] = fakeKey{args[1], v.expires}
		return m.left(key)
	case is(kind.LingerScript):
		m.note("linger", key, token)
		if left := kind.LeftMark + token; c.token == token || c.token == left {
			if args[2] != "1" {
				left = c.token
			}
			m.keys[key] = fakeKey{left, min(m.keys[key].expires, m.in(args[1]))}
			return int64(1)
		}
	case is(kind.ExtendScript), is(kind.FencedExtendScript):
		m.note("extend", key, token)
		if is(kind.FencedExtendScript) {
			fence = number(args[2])
		}
		n = c.extend(token, uint64(fence))
		kept = n > 0
	case is(kind.FencedRepairScript):
		m.note("repair", key, token)
		n = c.repair(token, uint64(number(args[2])))
		kept = n > 0
	case is(kind.FencedAdoptScript):
		m.note("extend", key, token)
		n = c.adopt(token)
		kept = n >= 0
	case is(kind.FencedAcquireScript):
		hint, skew := number(args[2]), number(args[3])
		if hint > fence+skew && ahead(hint, skew) {
			return errors.New("NOFENCE the clock of the client is too far ahead")
		}
		if n = c.acquire(token, uint64(hint)); n > 0 {
			m.note("set", key, token)
			kept = true
		}
	case is(kind.FencedPassScript):
		m.note("pass", key, token)
		n = c.pass(token, uint64(number(args[2])))
		kept = n > 0 && args[1] != "0"
	case is(kind.RaiseScript):
		n = c.raise(token, uint64(number(args[1])))
	case is(kind.MendScript):
		if c.token == token && ahead(fence, number(args[2])) {
			m.note("mend", key, token)
			c.f, n = uint64(number(args[1])), 1
		}
	case is(kind.SeveralAcquireScript), is(kind.SeveralExtendScript), is(kind.SeveralRepairScript), is(kind.SeveralReleaseScript):
		switch {
		case is(kind.SeveralAcquireScript):
			n = on.acquire(keys, token)
		case is(kind.SeveralExtendScript):
			n = on.extend(keys, token)
		case is(kind.SeveralRepairScript):
			m.note("repair", key, token)
			n = on.repair(keys, token)
		default:
			n = on.release(keys, token)
		}
		c.token, kept = on[key], n > 0 && len(args) > 1
	case is(kind.SeveralLookScript):
		return m.left(keys...)
	case is(kind.ReadScript):
		for _, key := range keys {
			if m.value(key) != token {
				return int64(0)
			}
		}
		return int64(1)
	case is(tracking.CompareScript):
		var ours []any
		for i := 0; i < len(args); i += 2 {
			all := int64(1)
			for range number(args[i]) {
				if m.value(keys[0]) != args[i+1] {
					all = 0
				}
				keys = keys[1:]
			}
			ours = append(ours, all)
		}
		return ours
	case is(kind.FirstScript):
		for _, id := range m.lines[key][:min(2, len(m.lines[key]))] {
			if !strings.HasPrefix(id, token) {
				return int64(0)
			}
		}
		return int64(1)
	case is(census.Rows):
		row := []any{nil, m.left(key), int64(0), []any{}, nil, int64(0), int64(0), []any{}}
		if token == census.Fence {
			m.log = append(m.log, "watch "+key)
			row[4] = strconv.FormatInt(fence, 10)
		}
		if c.token != "" {
			row[0] = c.token
		}
		return []any{row}
	case is(kind.EnterScript):
		return m.enter(key, token, args[1], args[2], args[3])
	case is(kind.LeaveScript):
		delete(m.keys, keys[1])
		delete(m.keys, keys[2])
		if at := slices.Index(m.lines[key], token); at > 0 {
			delete(m.keys, key+":"+m.lines[key][at-1])
		}
		m.lines[key] = slices.DeleteFunc(m.lines[key], func(id string) bool { return id == token })
		return int64(1)
	case is(kind.PlaceScript):
		return []any{int64(slices.Index(m.lines[key], token) + 1), int64(len(m.lines[key]))}
	case is(kind.IntendScript), is(kind.WithdrawScript): // nobody reads
		return int64(0)
	default:
		panic("fake master: " + what)
	}
	on[key], m.counters[key] = c.token, int64(c.f)
	for _, key := range keys {
		switch {
		case on[key] == "":
			delete(m.keys, key)
		case kept:
			m.put(key, on[key], args[1])
		}
	}
	return n
}

// buried does what a script says that finds the tombstone of its token.
func (m *fakeMaster) buried(is func(script.Script) bool, on severalMaster, keys, args []string) (reply any, yes bool) {
	at, token := "", ""
	for _, key := range keys {
		if of, _, ok := kind.CutTombstone(on[key]); ok && len(args) > 0 && of == args[0] {
			at, token = key, of
		}
	}
	if at == "" {
		return nil, false
	}
	dead := m.keys[at]
	switch {
	case is(kind.ReleaseScript), is(kind.SeveralReleaseScript):
		m.note("release", keys[0], token)
		for _, key := range keys {
			if on[key] == token || on[key] == dead.token {
				delete(m.keys, key)
			}
		}
	case is(kind.LingerScript):
		m.note("linger", at, token)
		m.keys[at] = fakeKey{dead.token, min(dead.expires, m.in(args[1]))}
	case is(kind.ExtendScript), is(kind.SeveralExtendScript), is(kind.FencedExtendScript), is(kind.FencedAdoptScript):
		m.note("extend", keys[0], token)
	case is(kind.FencedPassScript):
		m.note("pass", keys[0], token)
	case is(kind.ReadScript):
	case is(kind.RevokeScript):
		m.note("revoke", at, token)
		return m.left(at), true
	default:
		return nil, false
	}
	return dead.token, true
}

func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// in returns when a TTL will have passed.
func (m *fakeMaster) in(ttl string) time.Duration {
	return m.r.clock() + time.Duration(number(ttl))*time.Millisecond
}

func (m *fakeMaster) put(key, token, ttl string) { m.keys[key] = fakeKey{token, m.in(ttl)} }

func (m *fakeMaster) note(what, key, token string) { m.log = append(m.log, what+" "+key+" "+token) }

// left is the PTTL of the key that is there longest.
func (m *fakeMaster) left(keys ...string) int64 {
	left := int64(-2)
	for _, key := range keys {
		if v, there := m.get(key); there {
			left = max(left, (v.expires - m.r.clock()).Milliseconds())
		}
	}
	return left
}

// ahead reports whether a number is further ahead of a master's clock than the skew.
func ahead(n, skew int64) bool { return n > time.Now().UnixMicro()+skew }

// enter does what the enter script does.
func (m *fakeMaster) enter(line, me, alive, bell, note string) (before string) {
	ids := m.lines[line]
	at := slices.Index(ids, me)
	if at < 0 {
		ids, at = append(ids, me), len(ids)
	}
	m.put(line+":"+me+":alive", note, alive)
	for ; at > 0; at-- {
		before := ids[at-1]
		if _, ok := m.get(line + ":" + before + ":alive"); ok {
			if _, ok := m.get(line + ":" + before); !ok {
				m.put(line+":"+before, "", bell)
			}
			m.lines[line] = ids
			return before
		}
		ids = slices.Delete(ids, at-1, at)
		delete(m.keys, line+":"+before)
	}
	m.lines[line] = ids
	return ""
}

// drop forgets a key, and those beside it.
func (m *fakeMaster) drop(prefix string) {
	before := m.seen()
	for key := range m.keys {
		if strings.HasPrefix(key, prefix) {
			delete(m.keys, key)
		}
	}
	m.tell(before)
}
