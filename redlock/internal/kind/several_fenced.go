package kind

import (
	"slices"
	"time"

	"github.com/redburst/redburst/redlock/internal/script"
)

// severalFenced is the lock on several keys with a fence: see internal/quorum/fence.go. Each key has the same
// counter as a lock on this key alone. An acquire moves all counters to the same number, which is above the
// greatest of them. An extend and a raise move each counter to the lock's fence at least. So the next lock on
// one of the keys finds a counter at this lock's fence or above, and the proof holds for each key.
//
// A counter that clients do not believe must not spread to the other keys. Suppose that one key had such a
// counter on one master, and another key had one on another master. If they spread, both keys would have
// such counters on both masters, which can be a majority.
type severalFenced struct {
	several
	counting
}

// NewSeveralFenced returns the kind of a fenced lock on several keys. The KEYS of its scripts are these keys, and
// then their counters in the same order.
func NewSeveralFenced(s *several, ttl time.Duration, c *Counters) *severalFenced {
	keys := slices.Clone(s.keys)
	for _, key := range s.keys {
		keys = append(keys, CounterKey(key))
	}
	return &severalFenced{*s, newCounting(&severalFencedScripts, ttl, c, keys...)}
}

const (
	countKeys = `local n = #KEYS / 2
`
	// readCounters is readCounter for all counters. f is the greatest.
	readCounters = `local f, counts = 0, {}
for i = n + 1, 2 * n do
  local one = tonumber(redis.call('GET', KEYS[i]) or 0)
  if not (one and one >= 0 and one < 9007199254740991) then
    one = 9007199254740991
  end
  counts[i] = one
  f = math.max(f, one)
end
`
	// writeCounters defines a function that sets each counter to a number, unless the counter is greater. Its
	// other argument is the counters' life.
	writeCounters = `local function write(least, life)
  for i = n + 1, 2 * n do
    redis.call('SET', KEYS[i], string.format('%.0f', math.max(counts[i], least)), 'PX', life)
  end
end
`
)

// countAllOn is countOn for all counters, and the end of a script. If a counter is so far ahead of the hint that the
// client cannot believe it, the script moves no counter, and returns the greatest number that there can be, which is
// never believed.
const countAllOn = `if f > hint + 2 * skew then
  return 9007199254740991
end
f = math.max(f + 1, hint)
write(f, ARGV[5])
return f`

// unlessOurs is the Lua that returns 0, or a tombstone, unless all keys hold the token, ARGV[1].
const unlessOurs = `for i = 1, n do
  local v = redis.pcall('GET', KEYS[i])
  ` + script.UnlessLock + `  if v ~= ARGV[1] then
    ` + tellRevoked + `    return 0
  end
end
`

// In these scripts KEYS are the keys and then their counters. They take the same arguments and return the same
// as the fenced scripts for one key.
var (
	// It sets the keys even if a counter is too far ahead, as only a holder can mend the counter.
	severalFencedAcquireScript = script.New(countKeys + readCounters + readHint + writeCounters + `if redis.call('EXISTS', unpack(KEYS, 1, n)) > 0 then
  return -f
end
for i = 1, n do
  redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2], 'NX')
end
` + countAllOn)

	severalPassScript = script.New(countKeys + unlessOurs + readCounters + readHint + writeCounters + `if ARGV[2] ~= '0' then
  for i = 1, n do
    redis.call('PEXPIRE', KEYS[i], ARGV[2])
  end
end
` + countAllOn)

	severalFencedExtendScript = script.New(countKeys + `local reply = 1
for i = 1, n do
  local v = redis.pcall('GET', KEYS[i])
  ` + script.UnlessLock + `  if v == false then
    reply = -2
  elseif v ~= ARGV[1] then
    ` + tellRevoked + `    return 0
  end
end
if reply ~= 1 then
  return reply
end
` + readCounters + writeCounters + `for i = 1, n do
  redis.call('PEXPIRE', KEYS[i], ARGV[2])
end
write(tonumber(ARGV[3]), ARGV[4])
return 1`)

	severalFencedRepairScript = script.NewRare(countKeys + repairKeys("n", readCounters+writeCounters) + `write(tonumber(ARGV[3]), ARGV[4])
return 1`)

	severalFencedAdoptScript = script.New(countKeys + `for i = 1, n do
  local v = redis.pcall('GET', KEYS[i])
  ` + script.UnlessLock + `  if v ~= ARGV[1] then
    ` + tellRevoked + `    return -1
  end
end
` + readCounters + writeCounters + `for i = 1, n do
  redis.call('PEXPIRE', KEYS[i], ARGV[2])
end
write(f, ARGV[3])
return f`)

	severalRaiseScript = script.New(countKeys + unlessOurs + readCounters + writeCounters + `local fence = tonumber(ARGV[2])
write(fence, ARGV[3])
return math.max(f, fence)`)

	// If one counter is too far ahead, it mends all of them: a lock on two of the keys goes by the greater counter.
	severalMendScript = script.NewRare(countKeys + unlessOurs + readCounters + writeCounters + `local skew = tonumber(ARGV[3])
` + lookAtClock + `if ` + aheadOfClock + `f then
  for i in pairs(counts) do
    counts[i] = 0
  end
  write(tonumber(ARGV[2]), ARGV[4])
  return 1
end
return 0`)
)

var severalFencedScripts = countingScripts{severalFencedExtendScript, severalFencedRepairScript, severalFencedAdoptScript, severalRaiseScript, severalMendScript, severalPassScript}

func (f *severalFenced) Acquire(r *Request, g Grant) {
	r.Judge = f.Given
	args := func(dst []byte) []byte { return f.appendHint(AppendTokenTTL(dst, g), g) }
	r.Call(severalFencedAcquireScript, 5, args, f.counting.keys...)
}

func (f *severalFenced) Extend(r *Request, g Grant) { f.counting.Extend(r, g) }

func (f *severalFenced) Repair(r *Request, g Grant) { f.counting.Repair(r, g) }

func (f *severalFenced) Pass(r *Request, g Grant) { f.pass(r, g) }
