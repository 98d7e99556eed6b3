package kind

import (
	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
)

// several is the plain lock on several keys: it takes all of them or none. Each command is about all keys, and a
// master carries it out at one moment. So a master's yes is a yes for each key, and for each key this is the
// Redlock algorithm, with the same key, token and expiry as the plain lock's.
type several struct{ keys []string } // sorted, each once

func NewSeveral(keys []string) *several { return &several{keys} }

// repairKeys is the Lua that sets those of the first n KEYS that are free, and extends the others. It ends the script
// with 0 if one is another's. What is in between runs before anything is written.
func repairKeys(n, between string) string {
	return `local lost = {}
for i = 1, ` + n + ` do
  local v = redis.pcall('GET', KEYS[i])
  ` + script.UnlessForeign + `  lost[i] = v == false
  if v ~= ARGV[1] and v ~= false then
    return 0
  end
end
` + between + `for i = 1, ` + n + ` do
  if lost[i] then
    redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2], 'NX')
  else
    redis.call('PEXPIRE', KEYS[i], ARGV[2])
  end
end
`
}

const (
	// findOurs is the Lua that finds the keys that are ours, and among them a tombstone.
	findOurs = `local values, ours, dead = redis.call('MGET', unpack(KEYS)), {}, false
for i = 1, #KEYS do
  local v = values[i]
  local revoked = ` + isRevoked + `
  if v == ARGV[1] or revoked then
    ours[#ours + 1] = KEYS[i]
    dead = revoked and v or dead
  end
end
`
	tellOurs = tellNoLock + `return dead or (#ours == #KEYS and 1 or 0)`

	// tellNoLock is the Lua that ends a script if one of the keys, that is missing to MGET, is there.
	tellNoLock = `for i = 1, dead and 0 or #KEYS do
  if not values[i] and redis.call('EXISTS', KEYS[i]) > 0 then
    return {ok = '` + script.NoLock + `'}
  end
end
`
)

// In these scripts KEYS are all keys. They call GET by pcall, as the plain scripts do. A key that holds no
// string is missing to MGET, and EXISTS counts it. A script reads all values before it writes.
var (
	// ARGV token, TTL in ms.
	SeveralAcquireScript = script.New(`if redis.call('EXISTS', unpack(KEYS)) > 0 then
  return 0
end
for i = 1, #KEYS do
  redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2], 'NX')
end
return 1`)

	// ARGV token, TTL in ms. It returns what the plain script does: -2 if one or more of the keys are free, and
	// none is another's. Then it extends none.
	SeveralExtendScript = script.New(`local reply = 1
for i = 1, #KEYS do
  local v = redis.pcall('GET', KEYS[i])
  ` + script.UnlessLock + `  if v == false then
    reply = -2
  elseif v ~= ARGV[1] then
    ` + tellRevoked + `    return 0
  end
end
for i = 1, reply * #KEYS do
  redis.call('PEXPIRE', KEYS[i], ARGV[2])
end
return reply`)

	// ARGV token, TTL in ms. It sets the keys that are free, and extends the others, if none is another's. It returns
	// 1, or 0 if one is.
	SeveralRepairScript = script.NewRare(repairKeys("#KEYS", "") + `return 1`)

	// ARGV token. It returns 1 if all keys were ours, and a tombstone if there was one.
	SeveralReleaseScript = script.New(findOurs + `if #ours > 0 then
  redis.call('DEL', unpack(ours))
end
` + tellOurs)

	// ARGV token, rest in ms, whether the work is over. It returns what the release does.
	severalLingerScript = script.New(`local values, ours, dead = redis.call('MGET', unpack(KEYS)), 0, false
for i = 1, #KEYS do
  local v = values[i]
  local revoked = ` + isRevoked + `
  if v == ARGV[1] or v == ` + leftToken + ` or revoked then
    ours = ours + 1
    dead = revoked and v or dead
    ` + leave("KEYS[i]") + `  end
end
` + tellNoLock + `return dead or (ours == #KEYS and 1 or 0)`)

	// ARGV token. It returns 1 if all keys are ours, the tombstone if that is there, and otherwise 0.
	ReadScript = script.New(`for i = 1, #KEYS do
  local v = redis.pcall('GET', KEYS[i])
  ` + script.UnlessForeign + `  if v ~= ARGV[1] then
    ` + tellRevoked + `    return 0
  end
end
return 1`)

	// It returns what PTTL would of a single key: -2 if all keys are free, -1 if one of them never expires, and
	// otherwise the longest time that a key has to live.
	SeveralLookScript = script.New(`local most = -2
for i = 1, #KEYS do
  local left = redis.call('PTTL', KEYS[i])
  if left == -1 then
    left = math.huge
  end
  most = math.max(most, left)
end
return most == math.huge and -1 or most`)
)

// Acquire sends the acquire script or, where the server has it, MSETEX n key token ... NX PX ttl.
func (s *several) Acquire(r *Request, g Grant) {
	r.Judge = JudgeInt
	r.Call(SeveralAcquireScript, 2, func(dst []byte) []byte { return AppendTokenTTL(dst, g) }, s.keys...)
	d := &r.Dialects[0]
	d.Needs = conn.MSetEx
	d.Command = resp.AppendArray(d.Command, 5+2*len(s.keys))
	d.Command = resp.AppendBulkString(d.Command, "MSETEX")
	d.Command = resp.AppendBulkInt(d.Command, int64(len(s.keys)))
	for _, key := range s.keys {
		d.Command = resp.AppendBulkString(d.Command, key)
		d.Command = resp.AppendBulk(d.Command, g.Token)
	}
	d.Command = resp.AppendBulkString(d.Command, "NX")
	d.Command = resp.AppendBulkString(d.Command, "PX")
	d.Command = resp.AppendBulkInt(d.Command, g.TTL.Milliseconds())
}

// Extend, Release and Linger have no dialect: no server has a command that does this to several keys.
func (s *several) Extend(r *Request, g Grant) {
	r.Judge = JudgeInt
	r.Call(SeveralExtendScript, 2, func(dst []byte) []byte { return AppendTokenTTL(dst, g) }, s.keys...)
}

func (s *several) Repair(r *Request, g Grant) {
	r.Judge = JudgeInt
	r.Text(SeveralRepairScript, 2, func(dst []byte) []byte { return AppendTokenTTL(dst, g) }, s.keys...)
}

func (s *several) Release(r *Request, g Grant) {
	r.Judge = JudgeInt
	r.Call(SeveralReleaseScript, 1, func(dst []byte) []byte { return resp.AppendBulk(dst, g.Token) }, s.keys...)
}

func (s *several) Linger(r *Request, g Grant) {
	r.Judge = JudgeInt
	r.Call(severalLingerScript, 3, func(dst []byte) []byte { return appendLinger(dst, g) }, s.keys...)
}

// Look reads when the last of the keys is free. A master promises to notify of changes to what the script has
// read. The promise is for one command. So Look sends the script's text: after NOSCRIPT the second command would
// have no promise.
func (s *several) Look(r *Request, _ string) {
	r.Judge = judgeFree
	r.Tracked()
	r.Command = SeveralLookScript.AppendText(r.Command, 0, s.keys...)
}

func (s *several) Read(r *Request, g Grant) { read(r, g, s.keys...) }
