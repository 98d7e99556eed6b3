package redlock

import (
	"slices"
	"time"
)

// severalFenced is the lock on several keys with a number: see fence.go. Each key has a counter, as
// that of a lock on this key alone. Each script that moves one moves all to the same number, which
// is above or at the greatest of them. So whoever takes one of the keys next finds a counter that
// is at the lock's fence or above, and the proof holds for each key.
type severalFenced struct {
	several
	counting
}

// newSeveralFenced returns the kind of a lock on several keys. KEYS are these, and their counters in
// the same order.
func newSeveralFenced(s *several, ttl time.Duration, h *hints) *severalFenced {
	keys := slices.Clone(s.keys)
	for _, key := range s.keys {
		keys = append(keys, counterKey(key))
	}
	return &severalFenced{*s, newCounting(&severalFencedScripts, ttl, h, keys...)}
}

const (
	countKeys = `local n = #KEYS / 2
`
	// readCounters is readCounter for all of them: f is the greatest.
	readCounters = `local f = 0
for i = n + 1, 2 * n do
  local one = tonumber(redis.call('GET', KEYS[i]) or 0)
  if not (one and one >= 0 and one < 9007199254740991) then
    one = 9007199254740991
  end
  f = math.max(f, one)
end
`
	// writeCounters sets all of them to f. The function is given their life.
	writeCounters = `local function write(life)
  for i = n + 1, 2 * n do
    redis.call('SET', KEYS[i], string.format('%.0f', f), 'PX', life)
  end
end
`
)

// In these scripts KEYS are the keys and then their counters. The arguments and what they return
// are those of the scripts for one key.
var (
	severalFencedAcquireScript = newScript(countKeys + readCounters + readHint + writeCounters + `if redis.call('EXISTS', unpack(KEYS, 1, n)) > 0 then
  return -f
end
for i = 1, n do
  redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2], 'NX')
end
f = math.max(f + 1, hint)
write(ARGV[5])
return f`)

	severalFencedExtendScript = newScript(countKeys + `local lost = {}
for i = 1, n do
  local v = redis.pcall('GET', KEYS[i])
  ` + unlessForeign + `  lost[i] = v == false
  if v ~= ARGV[1] and (v ~= false or ARGV[3] ~= '1') then
    return 0
  end
end
` + readCounters + writeCounters + `local reply = 1
for i = 1, n do
  if lost[i] then
    redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[2], 'NX')
    reply = 2
  else
    redis.call('PEXPIRE', KEYS[i], ARGV[2])
  end
end
f = math.max(f, tonumber(ARGV[4]))
write(ARGV[5])
return reply`)

	severalFencedAdoptScript = newScript(countKeys + `for i = 1, n do
  local v = redis.pcall('GET', KEYS[i])
  ` + unlessForeign + `  if v ~= ARGV[1] then
    return -1
  end
end
` + readCounters + writeCounters + `for i = 1, n do
  redis.call('PEXPIRE', KEYS[i], ARGV[2])
end
write(ARGV[3])
return f`)

	severalRaiseScript = newScript(countKeys + `for i = 1, n do
  local v = redis.pcall('GET', KEYS[i])
  ` + unlessForeign + `  if v ~= ARGV[1] then
    return 0
  end
end
` + readCounters + writeCounters + `f = math.max(f, tonumber(ARGV[2]))
write(ARGV[3])
return f`)

	// It mends all counters if one is to be mended: whoever takes two of the keys has the greater.
	severalMendScript = script{text: countKeys + `for i = 1, n do
  local v = redis.pcall('GET', KEYS[i])
  ` + unlessForeign + `  if v ~= ARGV[1] then
    return 0
  end
end
` + readCounters + writeCounters + `local skew = tonumber(ARGV[3])
` + lookAtClock + `if ` + aheadOfClock + `f then
  f = tonumber(ARGV[2])
  write(ARGV[4])
  return 1
end
return 0`}
)

var severalFencedScripts = countingScripts{severalFencedExtendScript, severalFencedAdoptScript, severalRaiseScript, severalMendScript}

func (f *severalFenced) acquire(r *request, g grant) {
	r.judge = f.given
	args := func(dst []byte) []byte { return f.appendHint(appendTerm(dst, g), g) }
	r.call(severalFencedAcquireScript, 5, args, f.counting.keys...)
}

func (f *severalFenced) extend(r *request, g grant, restore bool) { f.counting.extend(r, g, restore) }
