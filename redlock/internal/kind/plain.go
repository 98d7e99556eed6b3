package kind

import (
	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
)

// Plain is the lock of the Redlock algorithm: a key that holds the token and expires. It has one holder.
// redsync, node-redlock, redlock-py and redlock-rb set the same key in the same way, so their locks and
// ours exclude each other.
type Plain struct{}

// These scripts call GET by pcall. A key that holds no string is not ours: that is an answer and
// not an error. See script.UnlessLock.
var (
	// KEYS key, ARGV token. It deletes the key, and returns 1, or the tombstone if that is what it was. It returns -1
	// if the key is not ours. A native command says 0 then, and knows no tombstone.
	ReleaseScript = script.New(`local v = redis.pcall('GET', KEYS[1])
if v == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
` + script.UnlessLock + `if ` + isRevoked + ` then
  redis.call('DEL', KEYS[1])
  return v
end
return -1`)

	// KEYS key, ARGV token, rest in ms, whether the work is over: then it puts LeftMark in front of the token. It
	// shortens the life of the key to the rest, and never prolongs it. It returns 1, or the tombstone if that is what
	// it has shortened, or 0 if the key is not ours. It can come again, also when the key is marked.
	LingerScript = script.New(`local v = redis.pcall('GET', KEYS[1])
` + script.UnlessLock + `local dead = ` + isRevoked + `
if v ~= ARGV[1] and v ~= ` + leftToken + ` and not dead then
  return 0
end
` + leave("KEYS[1]") + `return dead and v or 1`)

	// KEYS key, ARGV token, TTL in ms. It returns 1 if it has extended the key, -2 (Gone) if there is none, the
	// tombstone if that is there, and 0 if another's key is there.
	ExtendScript = script.New(`local v = redis.pcall('GET', KEYS[1])
if v == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
if v == false then
  return -2
end
` + script.UnlessLock + tellRevoked + `return 0`)
)

// LeftMark stands in front of the token of a lock that lingers after its work. It tells people that nobody works under the
// lock. From then on the token itself extends and releases nothing.
const LeftMark = "left:"

const leftToken = `'` + LeftMark + `' .. ARGV[1]`

// leave is the Lua that leaves a key for ARGV[2] ms at most. v is its value. Only the token gets the mark: a tombstone
// stays what it is.
func leave(key string) string {
	return `local left = redis.call('PTTL', ` + key + `)
if left < 0 or left > tonumber(ARGV[2]) then
  left = ARGV[2]
end
redis.call('SET', ` + key + `, ARGV[3] == '1' and v == ARGV[1] and ` + leftToken + ` or v, 'PX', math.max(left, 1))
`
}

// Acquire sends SET key token NX PX ttl, as every other Redlock library does. The expiry is relative (PX). With
// an absolute one (PXAT) each master would compare our wall clock with its own, and the lock would be safe
// only while the two clocks agree.
func (Plain) Acquire(r *Request, g Grant) { setNX(r, g) }

// Repair sends what an acquire does.
func (Plain) Repair(r *Request, g Grant) { setNX(r, g) }

func setNX(r *Request, g Grant) {
	r.Judge = JudgeSet
	r.Command = resp.AppendArray(r.Command, 6)
	r.Command = resp.AppendBulkString(r.Command, "SET")
	r.Command = resp.AppendBulkString(r.Command, g.Key)
	r.Command = resp.AppendBulk(r.Command, g.Token)
	r.Command = resp.AppendBulkString(r.Command, "NX")
	r.Command = resp.AppendBulkString(r.Command, "PX")
	r.Command = resp.AppendBulkInt(r.Command, g.TTL.Milliseconds())
}

// Extend sends the extend script or, where the server has it, SET key token IFEQ token PX ttl. That command does
// not tell what is there. Where it finds no key of ours, the script follows.
func (Plain) Extend(r *Request, g Grant) {
	r.Judge = JudgeExtend
	r.Command = AppendTokenTTL(ExtendScript.AppendHash(r.Command, 2, g.Key), g)
	r.Fallback = AppendTokenTTL(ExtendScript.AppendText(r.Fallback, 2, g.Key), g)
	d := &r.Dialects[0]
	d.Needs = conn.SetIfEq
	d.Command = resp.AppendArray(d.Command, 7)
	d.Command = resp.AppendBulkString(d.Command, "SET")
	d.Command = resp.AppendBulkString(d.Command, g.Key)
	d.Command = resp.AppendBulk(d.Command, g.Token)
	d.Command = resp.AppendBulkString(d.Command, "IFEQ")
	d.Command = resp.AppendBulk(d.Command, g.Token)
	d.Command = resp.AppendBulkString(d.Command, "PX")
	d.Command = resp.AppendBulkInt(d.Command, g.TTL.Milliseconds())
}

// appendLinger appends the arguments of a linger.
func appendLinger(dst []byte, g Grant) []byte {
	dst = AppendTokenTTL(dst, g)
	if g.Over {
		return resp.AppendBulkString(dst, "1")
	}
	return resp.AppendBulkString(dst, "0")
}

// Release sends the release script or, where the server has one of them, DELEX key IFEQ token or
// DELIFEQ key token. Where such a command finds no key of ours, there may be a tombstone: the script follows. It need
// not if nobody has held the lock.
func (Plain) Release(r *Request, g Grant) {
	r.Judge = JudgeRelease
	if g.Untaken {
		r.Judge = JudgeInt
	}
	r.Command = ReleaseScript.AppendHead(r.Command, false, 1, 1)
	head := len(r.Command)
	r.Command = resp.AppendBulk(resp.AppendBulkString(r.Command, g.Key), g.Token)
	args := r.Command[head:] // encoded once: each lock pays for this
	r.Fallback = append(ReleaseScript.AppendHead(r.Fallback, true, 1, 1), args...)
	d := &r.Dialects[0]
	d.Needs = conn.DelEx
	d.Command = resp.AppendArray(d.Command, 4)
	d.Command = resp.AppendBulkString(d.Command, "DELEX")
	d.Command = resp.AppendBulkString(d.Command, g.Key)
	d.Command = resp.AppendBulkString(d.Command, "IFEQ")
	d.Command = resp.AppendBulk(d.Command, g.Token)
	d = &r.Dialects[1]
	d.Needs = conn.DelIfEq
	d.Command = resp.AppendArray(d.Command, 3)
	d.Command = resp.AppendBulkString(d.Command, "DELIFEQ")
	d.Command = append(d.Command, args...)
}

// Linger has no dialect: no server has a command that checks the token and only shortens the key's life.
func (Plain) Linger(r *Request, g Grant) {
	r.Judge = JudgeInt
	r.Call(LingerScript, 3, func(dst []byte) []byte { return appendLinger(dst, g) }, g.Key)
}

// Look reads how long the key has to live.
func (Plain) Look(r *Request, key string) {
	r.Judge = judgeFree
	r.Tracked()
	r.Command = resp.AppendCommand(r.Command, "PTTL", key)
}

// Read compares on the master: a value can be of any size, as others may keep theirs under the lock's name.
func (Plain) Read(r *Request, g Grant) { read(r, g, g.Key) }

func read(r *Request, g Grant, keys ...string) {
	r.Judge = JudgeOne
	r.Call(ReadScript, 1, func(dst []byte) []byte { return resp.AppendBulk(dst, g.Token) }, keys...)
}

// JudgeSet judges SET NX: a yes if the key is set, a no if another key is in the way.
func JudgeSet(v resp.Value) mux.Verdict {
	switch {
	case v.Is("OK"):
		return mux.VerdictYes
	case v.IsNull():
		return mux.VerdictNo
	}
	return mux.VerdictFailed
}

// JudgeExtend judges the extend script and SET IFEQ. If SET IFEQ returns null, the key is another's or gone.
// The script finds out which, and tells of a tombstone.
func JudgeExtend(v resp.Value) mux.Verdict {
	switch {
	case v.Is("OK"):
		return mux.VerdictYes
	case v.IsNull():
		return mux.VerdictAgain
	}
	return JudgeInt(v)
}

// JudgeRelease judges the release script, and the commands that release.
func JudgeRelease(v resp.Value) mux.Verdict {
	if n, ok := v.Int(); ok && n == 0 || wrongType(v) {
		return mux.VerdictAgain
	}
	return JudgeInt(v)
}

// judgeFree judges PTTL: a yes if the key is not there.
func judgeFree(v resp.Value) mux.Verdict {
	switch n, ok := v.Int(); {
	case ok && n == -2:
		return mux.VerdictYes
	case ok:
		return mux.VerdictNo
	}
	return mux.VerdictFailed
}
