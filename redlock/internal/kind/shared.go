package kind

import (
	"strconv"
	"time"

	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
)

// shared is the lock of a reader: any number of readers hold it together, or one writer alone. A
// writer is a plain lock on the same key, also another library's.
//
// The writer's key holds a string. The readers' holds a sorted set: each member is a reader's token,
// and its score says when that reader expires, in milliseconds by the master's own clock (TIME). The
// key expires at the latest of them. SET NX of a writer refuses a key that is there, whatever it
// holds, and a reader's script refuses a string. So a master holds readers or a writer. A
// majority of readers' yes and one of a writer's share a master, so they are never both there.
//
// A reader that has expired is gone, though others may keep the set, and the member in it, alive. A
// score also says how long the reader's TTL is at most, so that a clock that is set back does not prolong
// it by as much: see shortenExpiries.
//
// A writer that waits for readers can leave its intent beside the key: see intend. It is a courtesy,
// and no exclusion rests on it.
type shared struct {
	intent string // its key
}

func NewShared(key string) *shared { return &shared{IntentKey(key)} }

const (
	// MasterTime is the Lua that reads the master's clock into now, in milliseconds.
	MasterTime = `local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
`

	// keepReaders has the key expire with the last reader: at a time of the
	// master's own clock, of which ours knows nothing. PEXPIRE would count from when the script began,
	// and a master that hung since would let the key go before other readers expire. A
	// score may be written as 2e+12, which is no time to PEXPIREAT.
	keepReaders = `local key, last = KEYS[1], redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
if last then
  ` + expireAtLast + `end
`
	// expireAtLast has a key expire when the score last says.
	expireAtLast = `redis.call('PEXPIREAT', key, string.format('%.0f', math.floor(last)))
`
	// expiryScore is the score of a reader whose TTL of ARGV[2] ms begins now: when it expires, and as a fraction
	// e/64, if the TTL is less than 2^e ms. A score has room for it until the year 6429.
	expiryScore = `string.format('%.6f', now + ARGV[2] + select(2, math.frexp(ARGV[2])) / 64)`

	// shortenExpiries is for the set that KEYS[i] is. Where the last reader expires later than any of its TTL
	// can, its score was written before the clock was set back. It expires in 2^e ms then, which is
	// after the reader's validity has ended. A score without a fraction is not ours.
	shortenExpiries = `local key, late = KEYS[i], false
local top = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
while top[2] do
  local e = top[2] % 1 * 64
  local most = now + 2 ^ e
  if e == 0 or math.floor(top[2]) <= most then
    break
  end
  redis.call('ZADD', key, string.format('%.6f', most + e / 64), top[1])
  top, late = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES'), true
end
if late then
  local last = top[2]
  ` + expireAtLast + `end
`
	// findReader finds the reader that is to be extended. ARGV[3] says whether it may be set again if
	// there is none.
	findReader = `local there = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not there and ARGV[3] ~= '1' then
  return 0
end
`
	// extendReader has a reader's TTL begin anew.
	extendReader = `redis.call('ZADD', KEYS[1], ` + expiryScore + `, ARGV[1])
` + keepReaders
)

// refuse ends a script with refused if a pcall has found that the key is no sorted set, and so
// another's. A server that would replicate the script, and not what it writes, lets none write that has
// read the clock.
func refuse(refused string) string {
	return `if type(got) == 'table' then
  if string.find(got.err, 'WRONGTYPE', 1, true) then
    return ` + refused + `
  elseif string.find(got.err, 'non deterministic', 1, true) then
    return redis.error_reply('NOSHARED shared holders need Redis 5 or later, and lua-replicate-commands yes')
  end
  return got
end
`
}

// dropEnded drops the readers that have expired.
func dropEnded(refused string) string {
	return MasterTime + `local got = redis.pcall('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now)
` + refuse(refused)
}

// addReader adds a reader that has waited for ARGV[3] ms, unless a writer has left its intent, the last
// of the KEYS, before the reader came. n is how many there are then. Those that have expired are
// in nobody's way, and an extend drops them. So does each eighth reader, so that they do not pile up.
//
// An intent that is in the way has its life from then on, if it has more: the master's clock was set
// back, and its writer may be dead. One that lives leaves it again.
//
// unless is what it does before, when the clock is read.
func addReader(refused, unless string) string {
	return MasterTime + unless + `local v = redis.pcall('GET', KEYS[#KEYS])
` + script.UnlessForeign + `local since = type(v) == 'string' and tonumber(string.match(v, '^%d+'))
if since and now - ARGV[3] >= since then
  if redis.call('PTTL', KEYS[#KEYS]) > ` + intentMost + ` then
    redis.pcall('PEXPIRE', KEYS[#KEYS], ` + intentMost + `)
  end
  return ` + refused + `
end
local got = redis.pcall('ZADD', KEYS[1], ` + expiryScore + `, ARGV[1])
` + refuse(refused) + `local n = redis.call('ZCARD', KEYS[1])
if n == 1 then
  redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', now + ARGV[2]))
else
  if n % 8 == 0 then
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now)
  end
` + keepReaders + `end
`
}

var (
	// KEYS key, its intent. ARGV token, TTL in ms, for how many ms the reader has waited. It
	// returns 1, or 0 if a writer holds the key or has left its intent before the reader came.
	sharedAcquireScript = script.New(addReader("0", "") + `return 1`)

	// KEYS key. ARGV token, TTL in ms, whether it may be set again. It returns what the plain
	// one does. A reader is set again also beside others, never where a writer is.
	sharedExtendScript = script.New(dropEnded("0") + findReader + extendReader + `return there and 1 or 2`)

	// KEYS key. ARGV token. It returns 1 if the reader had not expired. One that has expired is
	// taken out all the same.
	sharedReleaseScript = script.New(`local got = redis.pcall('ZSCORE', KEYS[1], ARGV[1])
` + refuse("0") + `redis.call('ZREM', KEYS[1], ARGV[1])
` + keepReaders + MasterTime + `return got and tonumber(got) >= now and 1 or 0`)

	// KEYS key, its intent. It returns -2 if a reader can take it, and otherwise for how many ms it
	// cannot: -1 if that has no end. An intent that has more to live than its life is shortened by the
	// attempt that follows.
	sharedLookScript = script.New(`local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'none' or kind == 'zset' then
  return math.min(redis.call('PTTL', KEYS[2]), ` + intentMost + `)
end
return redis.call('PTTL', KEYS[1])`)
)

// An intent is kept for intentLife after it was left, or left again. A writer leaves none before it
// has waited for intentAfter, and asks for readers once in intentPause: so a writer that
// waits for another costs next to nothing more.
const (
	IntentLife  = 3 * time.Second
	IntentPause = IntentLife / 3
	IntentAfter = 100 * time.Millisecond
)

var intentMost = strconv.FormatInt(IntentLife.Milliseconds(), 10)

// An intent is the time since when it is there, by the master's clock, and a token of its own. It
// holds up only readers that have begun to wait after that: a reader waits for at most one
// intent, and one that has seen it go lets no other writer go first. And only readers that
// hold the key let it be left: so no reader waits for a writer that waits for nobody. If that time is
// still to come, the master's clock was set back, and it holds up nobody: it is left anew.
var (
	// KEYS the keys of a lock, and the intents in the same order. ARGV token, its life in ms. It
	// returns 1 if readers hold one of the keys. An intent of another writer is good for this one, too. Terms
	// of readers that are too long are shortened.
	IntendScript = script.New(`local n, found = #KEYS / 2, 0
for i = 1, n do
  if redis.call('TYPE', KEYS[i]).ok == 'zset' then
    found = 1
    local v = redis.pcall('GET', KEYS[n + i])
    ` + script.UnlessForeign + MasterTime + shortenExpiries + `    local since = type(v) == 'string' and tonumber(string.match(v, '^%d+'))
    if not v or since and since > now then
      redis.call('SET', KEYS[n + i], string.format('%.0f', now) .. ' ' .. ARGV[1], 'PX', ARGV[2])
    elseif type(v) == 'string' and string.sub(v, -#ARGV[1]) == ARGV[1] then
      redis.call('PEXPIRE', KEYS[n + i], ARGV[2])
    end
  end
end
return found`)

	// KEYS the intents. ARGV token. It returns how many were there.
	WithdrawScript = script.New(`local there = 0
for i = 1, #KEYS do
  local v = redis.pcall('GET', KEYS[i])
  ` + script.UnlessForeign + `  if type(v) == 'string' and string.sub(v, -#ARGV[1]) == ARGV[1] then
    there = there + redis.call('DEL', KEYS[i])
  end
end
return there`)
)

func (Plain) Intend(r *Request, key string, token []byte) {
	intend(r, token, key, IntentKey(key))
}

func (Plain) Withdraw(r *Request, key string, token []byte) { withdraw(r, token, IntentKey(key)) }

func (s *several) Intend(r *Request, _ string, token []byte) {
	intend(r, token, append(s.keys[:len(s.keys):len(s.keys)], s.intents()...)...)
}

func (s *several) Withdraw(r *Request, _ string, token []byte) { withdraw(r, token, s.intents()...) }

func (s *several) intents() []string {
	intents := make([]string, len(s.keys))
	for i, key := range s.keys {
		intents[i] = IntentKey(key)
	}
	return intents
}

func intend(r *Request, token []byte, keys ...string) {
	r.Judge = JudgeOne
	r.Call(IntendScript, 2, func(dst []byte) []byte {
		return resp.AppendBulkInt(resp.AppendBulk(dst, token), IntentLife.Milliseconds())
	}, keys...)
}

func withdraw(r *Request, token []byte, intents ...string) {
	r.Judge = JudgeOne
	r.Call(WithdrawScript, 1, func(dst []byte) []byte { return resp.AppendBulk(dst, token) }, intents...)
}

func (s *shared) Acquire(r *Request, g Grant) {
	r.Judge = JudgeOne
	r.Call(sharedAcquireScript, 3, func(dst []byte) []byte { return appendSharedArgs(dst, g) }, g.Key, s.intent)
}

func appendSharedArgs(dst []byte, g Grant) []byte {
	return resp.AppendBulkInt(appendTokenTTL(dst, g), g.Waited.Milliseconds())
}

func (*shared) Extend(r *Request, g Grant, restore bool) {
	r.Judge = JudgeOne
	r.Call(sharedExtendScript, 3, func(dst []byte) []byte { return AppendExtendArgs(dst, g, restore) }, g.Key)
}

func (*shared) Release(r *Request, g Grant) {
	r.Judge = JudgeOne
	r.Call(sharedReleaseScript, 1, func(dst []byte) []byte { return resp.AppendBulk(dst, g.Token) }, g.Key)
}

// Look sends the script as text: the master promises to notify of a change of what the next
// command reads, which must not be one that it does not know.
func (s *shared) Look(r *Request, key string) {
	r.Judge = judgeFree
	r.Tracked()
	r.Command = sharedLookScript.AppendText(r.Command, 0, key, s.intent)
}
