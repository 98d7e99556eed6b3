package kind

import (
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
)

// fenced is the plain lock with a number: see decide_fence.go in redlock. Each master keeps a counter beside the
// key, which each script that sets or extends the key moves on. Foreign clients have no numbers.
// They exclude it, and it excludes them, as plain locks do.
type fenced struct {
	Plain
	counting
}

// NewFenced returns the kind of a lock on a key.
func NewFenced(key string, ttl time.Duration, c *Counters) *fenced {
	return &fenced{counting: newCounting(&fencedScripts, ttl, c, key, CounterKey(key))}
}

// Counters are what all kinds with a fence know of a client.
type Counters struct {
	Skew   uint64        // Config.FenceSkew, in microseconds
	Memory time.Duration // Config.FenceMemory

	// The judges of the scripts that return a counter, made once: they cost no allocation then.
	Given   mux.VerdictFunc // of an acquire and a raise: a number above zero is a yes
	Adopted mux.VerdictFunc // of an adopt: so is zero, of a master that has none
}

// A counting is what all kinds with a fence send alike, each with scripts of its own.
type counting struct {
	scripts *countingScripts
	*Counters
	keys []string      // the KEYS of the scripts
	life time.Duration // of the counters, from each use on
}

// The scripts take the same arguments and return the same, of whatever kind the lock is. A reader has
// no mend.
type countingScripts struct{ extend, adopt, raise, mend script.Script }

// newCounting keeps the counters until they are forgotten, from when the last lock that used them can
// have ended.
func newCounting(scripts *countingScripts, ttl time.Duration, c *Counters, keys ...string) counting {
	return counting{scripts, c, keys, ttl + c.Memory}
}

// appendNumber appends the lock's number, and how long the counters are to last.
func (c *counting) appendNumber(dst []byte, g Grant) []byte {
	return resp.AppendBulkInt(resp.AppendBulkInt(dst, int64(g.Fence)), c.life.Milliseconds())
}

// appendHint is appendNumber with the skew between the two: of a hint, or of a number that is to be
// compared with the master's clock.
func (c *counting) appendHint(dst []byte, g Grant) []byte {
	dst = resp.AppendBulkInt(resp.AppendBulkInt(dst, int64(g.Fence)), int64(c.Skew))
	return resp.AppendBulkInt(dst, c.life.Milliseconds())
}

func (c *counting) Extend(r *Request, g Grant, restore bool) {
	if g.Fence == 0 {
		c.adopt(r, g)
		return
	}
	r.Judge = JudgeOne
	args := func(dst []byte) []byte { return c.appendNumber(AppendExtendArgs(dst, g, restore), g) }
	r.Call(c.scripts.extend, 5, args, c.keys...)
}

// adopt is the extend of a lock that was handed over. It is set again nowhere.
func (c *counting) adopt(r *Request, g Grant) {
	r.Judge = c.Adopted
	args := func(dst []byte) []byte { return resp.AppendBulkInt(appendTokenTTL(dst, g), c.life.Milliseconds()) }
	r.Call(c.scripts.adopt, 3, args, c.keys...)
}

func (c *counting) Raise(r *Request, g Grant) {
	r.Judge = c.Given
	args := func(dst []byte) []byte { return c.appendNumber(resp.AppendBulk(dst, g.Token), g) }
	r.Call(c.scripts.raise, 3, args, c.keys...)
}

// Mend sends the script as text. A text after NOSCRIPT could come after an extend that has set the key
// again: see decide_fence.go in redlock.
func (c *counting) Mend(r *Request, g Grant) {
	r.Judge = JudgeOne
	r.Command = c.appendHint(resp.AppendBulk(c.scripts.mend.AppendText(r.Command, 4, c.keys...), g.Token), g)
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
	FencedAcquireScript = script.New(readCounter + readHint + `if not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then
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
	FencedExtendScript = script.New(`local v = redis.pcall('GET', KEYS[1])
` + script.UnlessForeign + `if v ~= ARGV[1] and (v ~= false or ARGV[3] ~= '1') then
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
	FencedAdoptScript = script.New(`local v = redis.pcall('GET', KEYS[1])
` + script.UnlessForeign + `if v ~= ARGV[1] then
  return -1
end
` + readCounter + `redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return f`)

	// ARGV token, the lock's number, life of the counter in ms. It returns the counter, or 0 if the lock
	// is not there.
	RaiseScript = script.New(`local v = redis.pcall('GET', KEYS[1])
` + script.UnlessForeign + `if v ~= ARGV[1] then
  return 0
end
` + readCounter + `f = math.max(f, tonumber(ARGV[2]))
redis.call('SET', KEYS[2], string.format('%.0f', f), 'PX', ARGV[3])
return f`)

	// ARGV token, the lock's number, skew in microseconds, life of the counter in ms. It returns 1 if it has
	// set the counter to the number: that was too far ahead of the master's clock.
	MendScript = script.Script{Text: `local v = redis.pcall('GET', KEYS[1])
` + script.UnlessForeign + `if v ~= ARGV[1] then
  return 0
end
` + readCounter + `local skew = tonumber(ARGV[3])
` + lookAtClock + `if ` + aheadOfClock + `f then
  redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[4])
  return 1
end
return 0`}
)

var fencedScripts = countingScripts{FencedExtendScript, FencedAdoptScript, RaiseScript, MendScript}

func (f *fenced) Acquire(r *Request, g Grant) {
	r.Judge = f.Given
	args := func(dst []byte) []byte { return f.appendHint(appendTokenTTL(dst, g), g) }
	r.Call(FencedAcquireScript, 5, args, f.keys...)
}

func (f *fenced) Extend(r *Request, g Grant, restore bool) { f.counting.Extend(r, g, restore) }
