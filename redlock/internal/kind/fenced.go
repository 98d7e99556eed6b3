package kind

import (
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
)

// fenced is the plain lock with a fence: see internal/quorum/fence.go. Each master keeps a counter beside the
// key. An acquire moves the counter on, and an extend keeps it at the lock's number or above. Other libraries
// have no counter, but their locks and this one exclude each other, as with plain locks.
type fenced struct {
	Plain
	counting
}

// NewFenced returns the kind of a lock on a key.
func NewFenced(key string, ttl time.Duration, c *Counters) *fenced {
	return &fenced{counting: newCounting(&fencedScripts, ttl, c, key, CounterKey(key))}
}

// Counters are what all kinds with a fence know of their client.
type Counters struct {
	Skew   uint64        // how far ahead of the clock a counter is believed, in microseconds
	Memory time.Duration // Config.FenceMemory

	// These judge the scripts that return a counter. They are made once, so that a round allocates nothing.
	Given   mux.VerdictFunc // for an acquire and a raise: a number above zero, if it is believed, is a yes
	Adopted mux.VerdictFunc // for an adopt: zero is a yes, too, as a master may have no counter
}

// A counting sends what is the same for all kinds with a fence. Each kind gives it scripts of its own.
type counting struct {
	scripts *countingScripts
	*Counters
	keys []string      // the KEYS of the scripts
	life time.Duration // how long a counter lives after each use
}

// The scripts take the same arguments and return the same, whatever the kind of lock. A reader has no mend and no pass.
type countingScripts struct{ extend, repair, adopt, raise, mend, pass script.Script }

// newCounting has the counters live for Counters.Memory after the last lock that used them has ended at the
// latest. ttl is how long a lock can last.
func newCounting(scripts *countingScripts, ttl time.Duration, c *Counters, keys ...string) counting {
	return counting{scripts, c, keys, ttl + c.Memory}
}

// appendNumber appends the lock's number, and how long the counters are to live.
func (c *counting) appendNumber(dst []byte, g Grant) []byte {
	return resp.AppendBulkInt(resp.AppendBulkInt(dst, int64(g.Fence)), c.life.Milliseconds())
}

// appendHint is appendNumber with the skew between the two. The script compares the number, or its counter,
// with the master's clock.
func (c *counting) appendHint(dst []byte, g Grant) []byte {
	dst = resp.AppendBulkInt(resp.AppendBulkInt(dst, int64(g.Fence)), int64(c.Skew))
	return resp.AppendBulkInt(dst, c.life.Milliseconds())
}

func (c *counting) Extend(r *Request, g Grant) {
	if g.Fence == 0 {
		c.adopt(r, g)
		return
	}
	r.Judge = JudgeOne
	args := func(dst []byte) []byte { return c.appendNumber(AppendTokenTTL(dst, g), g) }
	r.Call(c.scripts.extend, 4, args, c.keys...)
}

// Repair raises the counter, too: a master that is given the lock again must not have it beside a lower counter.
func (c *counting) Repair(r *Request, g Grant) {
	r.Judge = JudgeOne
	r.Text(c.scripts.repair, 4, func(dst []byte) []byte { return c.appendNumber(AppendTokenTTL(dst, g), g) }, c.keys...)
}

// adopt is the extend of a lock that was handed over.
func (c *counting) adopt(r *Request, g Grant) {
	r.Judge = c.Adopted
	args := func(dst []byte) []byte { return resp.AppendBulkInt(AppendTokenTTL(dst, g), c.life.Milliseconds()) }
	r.Call(c.scripts.adopt, 3, args, c.keys...)
}

func (c *counting) Raise(r *Request, g Grant) {
	r.Judge = c.Given
	args := func(dst []byte) []byte { return c.appendNumber(resp.AppendBulk(dst, g.Token), g) }
	r.Call(c.scripts.raise, 3, args, c.keys...)
}

// pass is Pass, for the kinds of one holder.
func (c *counting) pass(r *Request, g Grant) {
	r.Judge = c.Given
	args := func(dst []byte) []byte { return c.appendHint(AppendTokenTTL(dst, g), g) }
	r.Call(c.scripts.pass, 5, args, c.keys...)
}

// Mend sends the script as text. If it sent the hash, the text that follows NOSCRIPT could come after an extend
// that has set the key again. The proof in internal/quorum/fence.go forbids that.
func (c *counting) Mend(r *Request, g Grant) {
	r.Judge = JudgeOne
	r.Command = c.appendHint(resp.AppendBulk(c.scripts.mend.AppendText(r.Command, 4, c.keys...), g.Token), g)
}

const (
	// readCounter is the Lua that reads the counter into f: 0 where there is none. A value that is no number, or
	// that cannot grow, counts as the greatest number that there can be, which no client believes. If the
	// counter began anew instead, its next number could be too low.
	readCounter = `local count = redis.call('GET', KEYS[2])
local f = tonumber(count or 0)
if not (f and f >= 0 and f < 9007199254740991) then
  f = 9007199254740991
end
`

	// lookAtClock is the Lua that reads the master's clock into t. t has no time if the user may not call TIME,
	// or if the server would then refuse the script's writes (before Redis 3.2).
	lookAtClock = `local t = {}
if redis.replicate_commands and redis.replicate_commands() then
  t = redis.pcall('TIME')
end
`
	// aheadOfClock begins a condition. It is true if the number that follows is ahead of the master's clock by
	// more than the skew.
	aheadOfClock = `t[1] and t[1] * 1000000 + t[2] + skew < `
)

// readHint is the Lua that reads the hint, ARGV[3], and the skew, ARGV[4]. It refuses a hint that is ahead of both
// the counter and the master's own clock by more than the skew: the client's clock is wrong. If a master gave such
// a number, no other client would believe the counters from then on. An acquire runs this before it writes.
const readHint = `local hint, skew = tonumber(ARGV[3]), tonumber(ARGV[4])
if hint > f + skew then
  ` + lookAtClock + `if ` + aheadOfClock + `hint then
    ` + refuseHint + `  end
end
`

// refuseHint ends a script with the error that the hint comes from a wrong clock.
const refuseHint = `return redis.error_reply("NOFENCE the client's clock is far ahead of this master's")
`

// countOn is the Lua that moves the counter on to the hint, or by one.
const countOn = `local text = ARGV[3]
if f < hint then
  f = hint
else
  f = f + 1
  text = string.format('%.0f', f)
end
redis.call('SET', KEYS[2], text, 'PX', ARGV[5])
`

// keepCounter is the Lua that moves the counter to the lock's number, ARGV[3], unless it is greater.
const keepCounter = `redis.call('SET', KEYS[2], string.format('%.0f', math.max(f, tonumber(ARGV[3]))), 'PX', ARGV[4])
`

// In these scripts KEYS are the key and its counter.
var (
	// ARGV token, TTL in ms, hint, skew in microseconds, life of the counter in ms. It returns the lock's
	// number. If the key is not free, it returns the last lock's number, negated.
	FencedAcquireScript = script.New(readCounter + readHint + `if not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then
  return -f
end
` + countOn + `return f`)

	// ARGV token, TTL in ms, the lock's number, life of the counter in ms. It returns what the plain script does.
	FencedExtendScript = script.New(`local v = redis.pcall('GET', KEYS[1])
if v == false then
  return -2
end
` + script.UnlessLock + `if v ~= ARGV[1] then
  ` + tellRevoked + `  return 0
end
` + readCounter + `redis.call('PEXPIRE', KEYS[1], ARGV[2])
` + keepCounter + `return 1`)

	// Likewise. It returns 1 if it has set the key again.
	FencedRepairScript = script.NewRare(readCounter + `if not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then
  return 0
end
` + keepCounter + `return 1`)

	// ARGV token, TTL in ms, hint, skew in microseconds, life of the counter in ms. It extends the lock, unless the
	// TTL is 0. It counts as the acquire does, and returns the next holder's number; 0 if the lock is not there.
	FencedPassScript = script.New(`local v = redis.pcall('GET', KEYS[1])
` + script.UnlessLock + `if v ~= ARGV[1] then
  ` + tellRevoked + `  return 0
end
` + readCounter + readHint + `if ARGV[2] ~= '0' then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
` + countOn + `return f`)

	// ARGV token, TTL in ms, life of the counter in ms. It extends a lock whose number is not known, and returns
	// the number. It returns -1 if the lock is not there.
	FencedAdoptScript = script.New(`local v = redis.pcall('GET', KEYS[1])
` + script.UnlessLock + `if v ~= ARGV[1] then
  ` + tellRevoked + `  return -1
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

	// ARGV token, the lock's number, skew in microseconds, life of the counter in ms. If the counter is too far
	// ahead of the master's clock, it sets the counter to the number and returns 1.
	MendScript = script.NewRare(`local v = redis.pcall('GET', KEYS[1])
` + script.UnlessForeign + `if v ~= ARGV[1] then
  return 0
end
` + readCounter + `local skew = tonumber(ARGV[3])
` + lookAtClock + `if ` + aheadOfClock + `f then
  redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[4])
  return 1
end
return 0`)
)

var fencedScripts = countingScripts{FencedExtendScript, FencedRepairScript, FencedAdoptScript, RaiseScript, MendScript, FencedPassScript}

func (f *fenced) Acquire(r *Request, g Grant) {
	r.Judge = f.Given
	args := func(dst []byte) []byte { return f.appendHint(AppendTokenTTL(dst, g), g) }
	r.Call(FencedAcquireScript, 5, args, f.keys...)
}

func (f *fenced) Extend(r *Request, g Grant) { f.counting.Extend(r, g) }

func (f *fenced) Repair(r *Request, g Grant) { f.counting.Repair(r, g) }

func (f *fenced) Pass(r *Request, g Grant) { f.pass(r, g) }
