package kind

import (
	"strconv"
	"time"

	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
)

// shared is the lock of a reader. Any number of readers hold it together, or one writer holds it alone. A
// writer's lock is a plain lock on the same key, and can be another library's.
//
// A writer's key holds a string. The readers' key holds a sorted set. Each member is a reader's token, and its
// score says when that reader expires, in milliseconds by the master's own clock (TIME). The key expires with
// the last reader. A writer's SET NX is refused if the key is there, whatever it holds, and a reader's script
// refuses a string. So a master holds readers or a writer. The quorum of a reader and that of a writer
// share a master, so a reader and a writer never hold the lock together.
//
// A reader that has expired does not hold the lock any more, though its member stays while other readers keep the
// set alive. A score also says how long the reader's TTL is at most. So a clock that is set back does not
// prolong the TTL by as much: see shortenExpiries.
//
// A writer that waits for readers can leave its intent beside the key: see IntendScript. The intent is a
// courtesy, and no exclusion depends on it.
type shared struct {
	intent string // its key
}

func NewShared(key string) *shared { return &shared{IntentKey(key)} }

const (
	// MasterTime is the Lua that reads the master's clock into now, in milliseconds.
	MasterTime = `local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
`

	// keepReaders is the Lua that has the key expire with the last reader, at a time of the master's own clock.
	// PEXPIRE will not do: it counts from the beginning of the script. If the master hung before the script read
	// the clock, the key would be gone before the last reader expires. A score can be written as 2e+12, which
	// PEXPIREAT does not take, so the score is formatted.
	keepReaders = `local key, last = KEYS[1], ` + lastScore + `
if last then
  ` + expireAtLast + `end
`
	lastScore = `redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]`
	// expireAtLast is the Lua that has a key expire at the time in the score last.
	expireAtLast = `redis.call('PEXPIREAT', key, string.format('%.0f', math.floor(last)))
`
	// expiryScore is the score of a reader whose TTL of ARGV[2] ms begins now. Its integer part says when the reader
	// expires, and its fraction is e/64, where the TTL is less than 2^e ms. A score has room for both until the
	// year 6429.
	expiryScore = `string.format('%.6f', now + ARGV[2] + select(2, math.frexp(ARGV[2])) / 64)`

	// shortenExpiries is the Lua that looks at the last reader of the set KEYS[i]. If the reader has more than
	// 2^e ms left, which is more than its TTL, the clock was set back since its score was written. The script has
	// the reader expire 2^e ms from now, which is after its validity has ended. It repeats this until the
	// last reader is none of these. A score without a fraction is not ours.
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
	// foreignReaders is the Lua that begins what is done if the set KEYS[1] is another's: the score of its last
	// member has no fraction, or is over. Symfony's Lock keeps sets without fractions, and its writer is a member, too. Where the
	// last is ours, that writer is not there, as our readers keep it out. A set of readers ends with its last, so one that is
	// still there is no set of readers, but a leaderboard, say. top becomes the score of the last member; nil without one.
	foreignReaders = `local top = tonumber(redis.pcall('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2])
if top and not (top >= now and top % 1 > 0) then
`
	// findReader is the Lua that ends a script if the reader that is to be extended is not there.
	findReader = findTombstone + `if not there then
  return dead or -2
end
`
	// missReader is the Lua that ends a script if the reader is there, or its tombstone.
	missReader = findTombstone + `if there or dead then
  return 0
end
`
	// extendReader is the Lua that has a reader's TTL begin anew.
	extendReader = `redis.call('ZADD', KEYS[1], ` + expiryScore + `, ARGV[1])
` + keepReaders
)

// unlessOld ends a script if its write was refused by a server that replicates scripts, instead of what they write: it
// refuses the writes of one that has read the clock.
const unlessOld = `if type(got) == 'table' and string.find(got.err, 'non deterministic', 1, true) then
  return redis.error_reply('NOSHARED shared holders need Redis 5 or later, and lua-replicate-commands yes')
end
`

// refuse ends a script if the pcall of a command, whose result is in got, has failed. The script returns refused if the
// key is no sorted set, and so another's. Any other error it returns as failed does.
func refuse(refused, command string) string {
	return `if type(got) == 'table' and string.find(got.err, 'WRONGTYPE', 1, true) then
  return ` + refused + `
end
` + failed(command)
}

// failed ends a script if the pcall of a command has failed, with the command's name, as some servers do not name a
// command that the user may not run.
func failed(command string) string {
	return `if type(got) == 'table' then
  return redis.error_reply(got.err .. ' (` + command + `)')
end
`
}

// noReaders is what a script returns of a key that is no set of readers: refused, if a writer can have it, and script.NoLock.
func noReaders(refused string) string {
	return `redis.call('TYPE', KEYS[1]).ok == 'string' and ` + refused + ` or {ok = '` + script.NoLock + `'}`
}

// dropEnded is the Lua that drops the readers that have expired, of a set that is not another's. there becomes the score of the
// reader; false if it is not there.
func dropEnded(refused string) string {
	refused = noReaders(refused)
	return MasterTime + `local got = redis.pcall('ZSCORE', KEYS[1], ARGV[1])
` + refuse(refused, "ZSCORE") + `local there = got and tonumber(got) >= now
if not there then
  ` + foreignReaders + `    return ` + refused + `
  end
end
got = redis.pcall('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now)
` + unlessOld + failed("ZREMRANGEBYSCORE")
}

// addReader is the Lua that adds a reader that has waited for ARGV[3] ms. It refuses the reader if a writer
// left its intent, the last of the KEYS, before the reader came, or if the set is another library's. n becomes the number of readers. Expired
// readers do no harm, and an extend drops them. So that they do not pile up, each eighth reader
// drops them, too.
//
// If an intent that refuses the reader has more than its life left, the master's clock was set back. Its
// writer may be dead, so the intent ends after its life. A writer that lives renews it.
//
// unless is Lua that runs after the clock is read, and before anything else.
func addReader(refused, unless string) string {
	return MasterTime + unless + `local v = redis.pcall('GET', KEYS[#KEYS])
` + script.UnlessForeign + `local since = type(v) == 'string' and tonumber(string.match(v, '^%d+'))
if since and now - ARGV[3] >= since then
  if redis.call('PTTL', KEYS[#KEYS]) > ` + intentMost + ` then
    redis.pcall('PEXPIRE', KEYS[#KEYS], ` + intentMost + `)
  end
  return ` + refused + `
end
` + foreignReaders + `  return ` + refused + `
end
local got = redis.pcall('ZADD', KEYS[1], ` + expiryScore + `, ARGV[1])
` + unlessOld + refuse(refused, "ZADD") + `local n = redis.call('ZCARD', KEYS[1])
if n % 8 == 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now)
end
local key, last = KEYS[1], n > 1 and ` + lastScore + ` or now + ARGV[2]
` + expireAtLast
}

var (
	// KEYS key, its intent. ARGV token, TTL in ms, for how many ms the reader has waited. It
	// returns 1, or 0 if a writer holds the key or has left its intent before the reader came.
	sharedAcquireScript = script.New(addReader("0", "") + `return 1`)

	// KEYS key. ARGV token, TTL in ms. It returns what the plain script does.
	sharedExtendScript = script.New(dropEnded("0") + findReader + extendReader + `return 1`)

	// Likewise. A reader is set again even beside other readers, but never beside a writer.
	sharedRepairScript = script.NewRare(dropEnded("0") + missReader + extendReader + `return 1`)

	// KEYS key. ARGV token, whether there can be a tombstone. It takes the reader out, or its tombstone. It returns 1
	// if the reader had not expired, or the tombstone.
	sharedReleaseScript = script.New(`local got = redis.pcall('ZSCORE', KEYS[1], ARGV[1])
` + refuse(noReaders("0"), "ZSCORE") + `local there = got or ARGV[2] ~= '1'
` + findTombstone + `if not (got or dead) then
  ` + MasterTime + foreignReaders + `    return ` + noReaders("0") + `
  end
  return 0
end
redis.call('ZREM', KEYS[1], dead or ARGV[1])
` + keepReaders + MasterTime + `return dead or (tonumber(got) >= now and 1 or 0)`)

	// KEYS key, its intent. It returns -2 if a reader can take the lock. Otherwise it returns for how many ms a
	// reader cannot, or -1 if that has no end. If an intent has more than its life left, it counts as its
	// life, and the attempt that follows shortens it.
	sharedLookScript = script.New(`local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'zset' then
  ` + MasterTime + foreignReaders + `    return redis.call('PTTL', KEYS[1])
  end
end
if kind == 'none' or kind == 'zset' then
  return math.min(redis.call('PTTL', KEYS[2]), ` + intentMost + `)
end
return redis.call('PTTL', KEYS[1])`)
)

// An intent is kept for IntentLife after it was left or renewed. A writer leaves no intent before it has waited
// for IntentAfter, and asks for readers at most once in IntentPause. So a writer that waits for another
// writer costs next to nothing more.
const (
	IntentLife  = 3 * time.Second
	IntentPause = IntentLife / 3
	IntentAfter = 100 * time.Millisecond
)

var intentMost = strconv.FormatInt(IntentLife.Milliseconds(), 10)

// An intent holds the time at which it was left, by the master's clock, and a token of its own. It refuses only
// readers that came after that time. So a reader waits for one intent at most: when that is gone, every later
// intent is younger than the reader. A writer can leave an intent only while readers hold the key. So no
// reader waits for a writer that waits for no reader. If the time of an intent is in the future, the master's
// clock was set back. Such an intent refuses no reader, and a writer leaves a new one in its place.
var (
	// KEYS the keys of a lock, and the intents in the same order. ARGV token, the intent's life in ms. It
	// returns 1 if readers hold one of the keys. If another writer's intent is there, that serves this
	// writer, too. The script also shortens expiries that are too late.
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

	// KEYS the intents. ARGV token. It deletes those that have the token, and returns their number.
	WithdrawScript = script.New(`local there = 0
for i = 1, #KEYS do
  local v = redis.pcall('GET', KEYS[i])
  ` + script.UnlessForeign + `  if type(v) == 'string' and string.sub(v, -#ARGV[1]) == ARGV[1] then
    there = there + redis.call('DEL', KEYS[i])
  end
end
return there`)
)

func (Plain) Intend(r *Request, key string, token []byte) { intend(r, token, key) }

func (Plain) Withdraw(r *Request, key string, token []byte) { withdraw(r, token, key) }

func (s *several) Intend(r *Request, _ string, token []byte) { intend(r, token, s.keys...) }

func (s *several) Withdraw(r *Request, _ string, token []byte) { withdraw(r, token, s.keys...) }

func intend(r *Request, token []byte, keys ...string) {
	r.Judge = JudgeOne
	r.CallOn(IntendScript, 2*len(keys), 2, func(dst []byte) []byte {
		for _, key := range keys {
			dst = resp.AppendBulkString(dst, key)
		}
		dst = r.appendIntents(dst, keys)
		return resp.AppendBulkInt(resp.AppendBulk(dst, token), IntentLife.Milliseconds())
	})
}

func withdraw(r *Request, token []byte, keys ...string) {
	r.Judge = JudgeOne
	r.CallOn(WithdrawScript, len(keys), 1, func(dst []byte) []byte {
		return resp.AppendBulk(r.appendIntents(dst, keys), token)
	})
}

// appendIntents appends the keys of the intents for these keys.
func (r *Request) appendIntents(dst []byte, keys []string) []byte {
	for _, key := range keys {
		r.Name = appendIntentKey(r.Name[:0], key)
		dst = resp.AppendBulk(dst, r.Name)
	}
	return dst
}

func (s *shared) Acquire(r *Request, g Grant) {
	r.Judge = JudgeOne
	r.Call(sharedAcquireScript, 3, func(dst []byte) []byte { return appendSharedArgs(dst, g) }, g.Key, s.intent)
}

func appendSharedArgs(dst []byte, g Grant) []byte {
	return resp.AppendBulkInt(AppendTokenTTL(dst, g), g.Waited.Milliseconds())
}

func (*shared) Extend(r *Request, g Grant) {
	r.Judge = JudgeOne
	r.Call(sharedExtendScript, 2, func(dst []byte) []byte { return AppendTokenTTL(dst, g) }, g.Key)
}

func (*shared) Repair(r *Request, g Grant) {
	r.Judge = JudgeOne
	r.Text(sharedRepairScript, 2, func(dst []byte) []byte { return AppendTokenTTL(dst, g) }, g.Key)
}

func (*shared) Release(r *Request, g Grant) {
	r.Judge = JudgeOne
	revocable := "1"
	if g.Untaken {
		revocable = "0"
	}
	r.Call(sharedReleaseScript, 2, func(dst []byte) []byte { return resp.AppendBulkString(resp.AppendBulk(dst, g.Token), revocable) }, g.Key)
}

// Look sends the script as text. The master promises to notify of changes to what the next command reads. So
// the next command must not be a hash that the master does not know.
func (s *shared) Look(r *Request, key string) {
	r.Judge = judgeFree
	r.Tracked()
	r.Command = sharedLookScript.AppendText(r.Command, 0, key, s.intent)
}
