package redlock

import (
	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp"
)

// plain is the lock of the Redlock algorithm: a key that holds the token and expires. It has
// one holder. redsync, node-redlock, redlock-py and redlock-rb set the same key in the same
// way, so they exclude it, and it excludes them.
type plain struct{}

// In these scripts GET is called by pcall: a key that holds no string is not ours, which is an
// answer and not an error. See unlessForeign.
var (
	// KEYS key, ARGV token.
	releaseScript = newScript(`local v = redis.pcall('GET', KEYS[1])
if v == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
` + unlessForeign + `return 0`)

	// KEYS key, ARGV token, rest in ms. A key lives for the rest, or for less if it does so anyway. It
	// returns 1, or 0 if the key is not ours.
	lingerScript = newScript(`local v = redis.pcall('GET', KEYS[1])
` + unlessForeign + `if v ~= ARGV[1] then
  return 0
end
local left = redis.call('PTTL', KEYS[1])
if left < 0 or left > tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
return 1`)

	// KEYS key, ARGV token, TTL in ms, whether it may be set again. A key is
	// set again only where it is free, never where it is another's.
	extendScript = newScript(`local v = redis.pcall('GET', KEYS[1])
if v == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
if v == false and ARGV[3] == '1' then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX')
  return 2
end
` + unlessForeign + `return 0`)
)

// acquire sends SET key token NX PX ttl. The expiry is relative (PX): an absolute one (PXAT)
// would make each master compare our wall clock with its own, and safety would depend on
// their being in step. Every other Redlock library sets its keys so.
func (plain) acquire(r *request, g grant) {
	r.judge = judgeSet
	r.command = resp.AppendArray(r.command, 6)
	r.command = resp.AppendBulkString(r.command, "SET")
	r.command = resp.AppendBulkString(r.command, g.key)
	r.command = resp.AppendBulk(r.command, g.token)
	r.command = resp.AppendBulkString(r.command, "NX")
	r.command = resp.AppendBulkString(r.command, "PX")
	r.command = resp.AppendBulkInt(r.command, g.ttl.Milliseconds())
}

// extend sends the extend script or, where the server has it, SET key token IFEQ token PX ttl.
// That sets no key that is gone, so the script follows it there.
func (plain) extend(r *request, g grant, restore bool) {
	r.judge = judgeExtend
	if !restore {
		r.judge = judgeExtendOnly
	}
	r.command = appendExtendArgs(extendScript.appendHash(r.command, 3, g.key), g, restore)
	r.fallback = appendExtendArgs(extendScript.appendText(r.fallback, 3, g.key), g, restore)
	d := &r.dialects[0]
	d.Needs = conn.SetIfEq
	d.Command = resp.AppendArray(d.Command, 7)
	d.Command = resp.AppendBulkString(d.Command, "SET")
	d.Command = resp.AppendBulkString(d.Command, g.key)
	d.Command = resp.AppendBulk(d.Command, g.token)
	d.Command = resp.AppendBulkString(d.Command, "IFEQ")
	d.Command = resp.AppendBulk(d.Command, g.token)
	d.Command = resp.AppendBulkString(d.Command, "PX")
	d.Command = resp.AppendBulkInt(d.Command, g.ttl.Milliseconds())
}

func appendExtendArgs(dst []byte, g grant, restore bool) []byte {
	dst = appendTokenTTL(dst, g)
	if restore {
		return resp.AppendBulkString(dst, "1")
	}
	return resp.AppendBulkString(dst, "0")
}

// release sends the release script or, where the server has one of them, DELEX key IFEQ token or
// DELIFEQ key token.
func (plain) release(r *request, g grant) {
	r.judge = judgeInt
	r.command = resp.AppendBulk(releaseScript.appendHash(r.command, 1, g.key), g.token)
	r.fallback = resp.AppendBulk(releaseScript.appendText(r.fallback, 1, g.key), g.token)
	d := &r.dialects[0]
	d.Needs = conn.DelEx
	d.Command = resp.AppendArray(d.Command, 4)
	d.Command = resp.AppendBulkString(d.Command, "DELEX")
	d.Command = resp.AppendBulkString(d.Command, g.key)
	d.Command = resp.AppendBulkString(d.Command, "IFEQ")
	d.Command = resp.AppendBulk(d.Command, g.token)
	d = &r.dialects[1]
	d.Needs = conn.DelIfEq
	d.Command = resp.AppendArray(d.Command, 3)
	d.Command = resp.AppendBulkString(d.Command, "DELIFEQ")
	d.Command = resp.AppendBulkString(d.Command, g.key)
	d.Command = resp.AppendBulk(d.Command, g.token)
}

// linger has no dialect: no command of any server leaves a key that ends earlier alone.
func (plain) linger(r *request, g grant) {
	r.judge = judgeInt
	r.call(lingerScript, 2, func(dst []byte) []byte { return appendTokenTTL(dst, g) }, g.key)
}

// look reads how long the key has to live.
func (plain) look(r *request, key string) {
	r.judge = judgeFree
	r.tracked()
	r.command = resp.AppendCommand(r.command, "PTTL", key)
}

// judgeSet judges SET NX: it is set, or a key is in the way.
func judgeSet(v resp.Value) mux.Verdict {
	switch {
	case v.Is("OK"):
		return mux.VerdictYes
	case v.IsNull():
		return mux.VerdictNo
	}
	return mux.VerdictFailed
}

// judgeExtend judges the extend script and SET IFEQ. A null of the latter says that the key is
// another's, or gone: the script, which can set it again, finds out.
func judgeExtend(v resp.Value) mux.Verdict {
	switch {
	case v.Is("OK"):
		return mux.VerdictYes
	case v.IsNull():
		return mux.VerdictAgain
	}
	return judgeInt(v)
}

// judgeExtendOnly is judgeExtend where a key that is gone must not be set again.
func judgeExtendOnly(v resp.Value) mux.Verdict {
	if v.IsNull() {
		return mux.VerdictNo
	}
	return judgeExtend(v)
}

// judgeFree judges PTTL: a key that is not there is a yes.
func judgeFree(v resp.Value) mux.Verdict {
	switch n, ok := v.Int(); {
	case ok && n == -2:
		return mux.VerdictYes
	case ok:
		return mux.VerdictNo
	}
	return mux.VerdictFailed
}
