package redlock

import (
	"math"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp"
)

// fenced is the plain lock with a number: see fence.go. Each master keeps a counter beside the
// key, which each script that sets or extends the key moves on. Foreign clients have no numbers.
// They exclude it, and it excludes them, as plain locks do.
type fenced struct {
	plain
	counting
}

// newFenced returns the kind of a lock on a key.
func newFenced(key string, ttl, memory time.Duration) *fenced {
	return &fenced{counting: newCounting(&fencedScripts, ttl, memory, key, counterKey(key))}
}

func counterKey(key string) string { return "{" + key + "}:fence" }

// A counting is what all kinds with a fence send alike, each with scripts of its own.
type counting struct {
	scripts *countingScripts
	keys    []string      // the KEYS of the scripts
	life    time.Duration // of the counters, from each use on
}

// The scripts take the same arguments and return the same, of whatever kind the lock is.
type countingScripts struct{ extend, adopt, raise script }

// newCounting keeps the counters for memory from when the last lock that used them can have ended.
func newCounting(scripts *countingScripts, ttl, memory time.Duration, keys ...string) counting {
	return counting{scripts, keys, ttl + memory}
}

// appendNumber appends the lock's number, or the hint, and how long the counters are to last.
func (c *counting) appendNumber(dst []byte, g grant) []byte {
	return resp.AppendBulkInt(resp.AppendBulkInt(dst, int64(g.fence)), c.life.Milliseconds())
}

func (c *counting) extend(r *request, g grant, restore bool) {
	if g.fence == 0 {
		c.adopt(r, g)
		return
	}
	r.judge = judgeOne
	args := func(dst []byte) []byte { return c.appendNumber(appendExtendArgs(dst, g, restore), g) }
	r.call(c.scripts.extend, 5, args, c.keys...)
}

// adopt is the extend of a lock that was handed over. It is set again nowhere.
func (c *counting) adopt(r *request, g grant) {
	r.judge = judgeAdopt
	args := func(dst []byte) []byte { return resp.AppendBulkInt(appendTerm(dst, g), c.life.Milliseconds()) }
	r.call(c.scripts.adopt, 3, args, c.keys...)
}

func (c *counting) raise(r *request, g grant) {
	r.judge = judgeOne
	args := func(dst []byte) []byte { return c.appendNumber(resp.AppendBulk(dst, g.token), g) }
	r.call(c.scripts.raise, 3, args, c.keys...)
}

// readCounter is the Lua that reads the counter into f: 0 where there is none. Whatever else is
// there is no number that can grow, and so no lock can have one. To begin anew would be to give
// a number that is too low.
const readCounter = `local count = redis.call('GET', KEYS[2])
local f = tonumber(count or 0)
if not (f and f >= 0 and f < 9007199254740991) then
  return redis.error_reply('NOFENCE ' .. KEYS[2] .. ' holds no number that can grow')
end
`

// In these scripts KEYS are the key and its counter.
var (
	// ARGV token, TTL in ms, hint, life of the counter in ms. It returns the lock's number, or
	// that of the last lock, negated, if the key is not free.
	fencedAcquireScript = newScript(readCounter + `if not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then
  return -f
end
local text, hint = ARGV[3], tonumber(ARGV[3])
if f < hint then
  f = hint
else
  f = f + 1
  text = string.format('%.0f', f)
end
redis.call('SET', KEYS[2], text, 'PX', ARGV[4])
return f`)

	// ARGV token, TTL in ms, whether it may be set again, the lock's number, life of the counter
	// in ms. It returns what the plain one does.
	fencedExtendScript = newScript(`local v = redis.pcall('GET', KEYS[1])
` + unlessForeign + `if v ~= ARGV[1] and (v ~= false or ARGV[3] ~= '1') then
  return 0
end
` + readCounter + `if v then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
else
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX')
end
f = math.max(f, tonumber(ARGV[4]))
redis.call('SET', KEYS[2], string.format('%.0f', f), 'PX', ARGV[5])
return v and 1 or 2`)

	// ARGV token, TTL in ms, life of the counter in ms. It extends a lock whose number is not known,
	// and returns that: -1 if the lock is not there.
	fencedAdoptScript = newScript(`local v = redis.pcall('GET', KEYS[1])
` + unlessForeign + `if v ~= ARGV[1] then
  return -1
end
` + readCounter + `redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return f`)

	// ARGV token, the lock's number, life of the counter in ms. It returns 1, or 0 if the lock is
	// not there.
	raiseScript = newScript(`local v = redis.pcall('GET', KEYS[1])
` + unlessForeign + `if v ~= ARGV[1] then
  return 0
end
` + readCounter + `f = math.max(f, tonumber(ARGV[2]))
redis.call('SET', KEYS[2], string.format('%.0f', f), 'PX', ARGV[3])
return 1`)
)

var fencedScripts = countingScripts{fencedExtendScript, fencedAdoptScript, raiseScript}

func (f *fenced) acquire(r *request, g grant) {
	r.judge = judgeFencedAcquire
	args := func(dst []byte) []byte { return f.appendNumber(appendTerm(dst, g), g) }
	r.call(fencedAcquireScript, 4, args, f.keys...)
}

func (f *fenced) extend(r *request, g grant, restore bool) { f.counting.extend(r, g, restore) }

// judgeFencedAcquire judges the acquire script: a number above zero is a yes.
func judgeFencedAcquire(v resp.Value) mux.Verdict { return judgeNumber(v, 1, math.MaxInt64) }

// judgeAdopt judges the adopt script: a number is a yes, also that of a master which has none.
func judgeAdopt(v resp.Value) mux.Verdict { return judgeNumber(v, 0, math.MaxInt64) }
