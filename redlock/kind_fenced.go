package redlock

import (
	"time"

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
func newFenced(key string, ttl time.Duration, h *hints) *fenced {
	return &fenced{counting: newCounting(&fencedScripts, ttl, h, key, counterKey(key))}
}

func counterKey(key string) string { return "{" + key + "}:fence" }

// A counting is what all kinds with a fence send alike, each with scripts of its own.
type counting struct {
	scripts *countingScripts
	*hints
	keys []string      // the KEYS of the scripts
	life time.Duration // of the counters, from each use on
}

// The scripts take the same arguments and return the same, of whatever kind the lock is. A reader has
// no mend.
type countingScripts struct{ extend, adopt, raise, mend script }

// newCounting keeps the counters until they are forgotten, from when the last lock that used them can
// have ended.
func newCounting(scripts *countingScripts, ttl time.Duration, h *hints, keys ...string) counting {
	return counting{scripts, h, keys, ttl + h.memory}
}

// appendNumber appends the lock's number, and how long the counters are to last.
func (c *counting) appendNumber(dst []byte, g grant) []byte {
	return resp.AppendBulkInt(resp.AppendBulkInt(dst, int64(g.fence)), c.life.Milliseconds())
}

// appendHint is appendNumber with the skew between the two: of a hint, or of a number that is to be
// compared with the master's clock.
func (c *counting) appendHint(dst []byte, g grant) []byte {
	dst = resp.AppendBulkInt(resp.AppendBulkInt(dst, int64(g.fence)), int64(c.skew))
	return resp.AppendBulkInt(dst, c.life.Milliseconds())
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
	r.judge = c.adopted
	args := func(dst []byte) []byte { return resp.AppendBulkInt(appendTokenTTL(dst, g), c.life.Milliseconds()) }
	r.call(c.scripts.adopt, 3, args, c.keys...)
}

func (c *counting) raise(r *request, g grant) {
	r.judge = c.given
	args := func(dst []byte) []byte { return c.appendNumber(resp.AppendBulk(dst, g.token), g) }
	r.call(c.scripts.raise, 3, args, c.keys...)
}

// mend sends the script as text. A text after NOSCRIPT could come after an extend that has set the key
// again: see fence.go.
func (c *counting) mend(r *request, g grant) {
	r.judge = judgeOne
	r.command = c.appendHint(resp.AppendBulk(c.scripts.mend.appendText(r.command, 4, c.keys...), g.token), g)
}

const (
	// readCounter is the Lua that reads the counter into f: 0 where there is none. Whatever else is
	// there is no number that can grow. It counts as the greatest that there can be, which nobody
	// believes. To begin anew would be to give a number that is too low.
	readCounter = `local count = redis.call('GET', KEYS[2])
local f = tonumber(count or 0)
if not (f and f >= 0 and f < 9007199254740991) then
  f = 9007199254740991
end
`

	// lookAtClock has the master read its clock into t: nothing, if the user may not, or if the server would
	// then refuse what the script writes (before Redis 3.2).
	lookAtClock = `local t = {}
if redis.replicate_commands and redis.replicate_commands() then
  t = redis.pcall('TIME')
end
`
	// aheadOfClock begins a condition: that what follows is further ahead of the master's clock than the skew.
	aheadOfClock = `t[1] and t[1] * 1000000 + t[2] + skew < `
)

// readHint reads the hint, ARGV[3], and the skew, ARGV[4]. A hint that would have the counter jump, and is
// too far ahead of the master's own clock, comes from a client whose clock is wrong. If such a number
// were given, no other client would believe the counters from then on. An acquire asks for this before it
// writes.
const readHint = `local hint, skew = tonumber(ARGV[3]), tonumber(ARGV[4])
if hint > f + skew then
  ` + lookAtClock + `if ` + aheadOfClock + `hint then
    ` + refuseHint + `  end
end
`

// refuseHint ends a script with the error of a hint from a wrong clock.
const refuseHint = `return redis.error_reply("NOFENCE the client's clock is far ahead of this master's")
`

// In these scripts KEYS are the key and its counter.
var (
	// ARGV token, TTL in ms, hint, skew in microseconds, life of the counter in ms. It returns the lock's
	// number, or that of the last lock, negated, if the key is not free.
	fencedAcquireScript = newScript(readCounter + readHint + `if not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then
  return -f
end
local text = ARGV[3]
if f < hint then
  f = hint
else
  f = f + 1
  text = string.format('%.0f', f)
end
redis.call('SET', KEYS[2], text, 'PX', ARGV[5])
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

	// ARGV token, the lock's number, life of the counter in ms. It returns the counter, or 0 if the lock
	// is not there.
	raiseScript = newScript(`local v = redis.pcall('GET', KEYS[1])
` + unlessForeign + `if v ~= ARGV[1] then
  return 0
end
` + readCounter + `f = math.max(f, tonumber(ARGV[2]))
redis.call('SET', KEYS[2], string.format('%.0f', f), 'PX', ARGV[3])
return f`)

	// ARGV token, the lock's number, skew in microseconds, life of the counter in ms. It returns 1 if it has
	// set the counter to the number: that was too far ahead of the master's clock.
	mendScript = script{text: `local v = redis.pcall('GET', KEYS[1])
` + unlessForeign + `if v ~= ARGV[1] then
  return 0
end
` + readCounter + `local skew = tonumber(ARGV[3])
` + lookAtClock + `if ` + aheadOfClock + `f then
  redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[4])
  return 1
end
return 0`}
)

var fencedScripts = countingScripts{fencedExtendScript, fencedAdoptScript, raiseScript, mendScript}

func (f *fenced) acquire(r *request, g grant) {
	r.judge = f.given
	args := func(dst []byte) []byte { return f.appendHint(appendTokenTTL(dst, g), g) }
	r.call(fencedAcquireScript, 5, args, f.keys...)
}

func (f *fenced) extend(r *request, g grant, restore bool) { f.counting.extend(r, g, restore) }
