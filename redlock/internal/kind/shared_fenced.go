package kind

import (
	"time"

	"github.com/redburst/redburst/redlock/internal/script"
)

// sharedFenced is the lock of a reader with a fence: see internal/quorum/fence.go. A reader's number is greater
// than that of every earlier writer, and lower than that of every later writer. Readers that hold the lock
// together mostly have the same number.
//
// The first reader on a master moves the counter on, as a writer does, and writes it with a zero in
// front. A reader that finds other readers and the zero is given the counter as it is. (Where there is no
// zero, the other readers have no fence, and have not moved the counter on.) The rest is as for a writer. If a
// quorum has returned the same number, that is the reader's. Otherwise a second round raises the
// counters to the greatest number, where the reader is still there.
//
// internal/quorum/fence.go proves that every later writer's number is greater. This is why a reader's number
// is greater than that of every earlier writer A. Let j be a master in W and in the reader's quorum. While A's
// key was there, j had no readers. The first reader with a fence that came to j afterwards has moved the counter
// on from T(A) or more, and our reader is that one or came later. A late request that sets an earlier reader
// again is such a first reader, too, so it must also move the counter on.
type sharedFenced struct {
	shared
	counting
}

// NewSharedFenced is NewFenced for a reader.
func NewSharedFenced(key string, ttl time.Duration, c *Counters) *sharedFenced {
	return &sharedFenced{*NewShared(key), newCounting(&sharedFencedScripts, ttl, c, key, CounterKey(key))}
}

// moveOn is the Lua that moves the counter on if first is true, or if no reader has done so since the last
// writer. first says that the reader is the first there. The counter moves to next at least.
func moveOn(first, next string) string {
	return `if ` + first + ` or f == 0 or string.sub(count, 1, 1) ~= '0' then
  f = math.max(f + 1, ` + next + `)
end
`
}

// checkHint is readHint for a script that has read the master's clock into now.
const checkHint = `local hint = tonumber(ARGV[4])
if hint > math.max(f, now * 1000) + ARGV[5] then
  ` + refuseHint + `end
`

// writeReaders is the Lua that writes the counter, with the zero that says that a reader has moved it on. Its
// life is the last of ARGV.
const writeReaders = `redis.call('SET', KEYS[2], string.format('0%.0f', f), 'PX', ARGV[#ARGV])
`

// keepReader is the Lua that has a reader's TTL begin anew, moves the counter to the reader's number, ARGV[3], unless it
// is greater, and ends the script.
var keepReader = readCounter + moveOn("false", "0") + extendReader + `f = math.max(f, tonumber(ARGV[3]))
` + writeReaders + `return 1`

// In these scripts KEYS are the key and its counter, and in the acquire also its intent. What is not said here is
// as in the scripts of a reader without a fence, and of a writer with one.
var (
	// ARGV token, TTL in ms, for how many ms the reader has waited, hint, skew in microseconds, life
	// of the counter in ms.
	sharedFencedAcquireScript = script.New(readCounter + addReader("-f", checkHint) + moveOn("n == 1", "hint") + writeReaders + `return f`)

	// ARGV token, TTL in ms, the reader's number, life of the counter in ms.
	sharedFencedExtendScript = script.New(dropEnded("0") + findReader + keepReader)
	sharedFencedRepairScript = script.NewRare(dropEnded("0") + missReader + keepReader)

	// ARGV token, TTL in ms, life of the counter in ms.
	sharedFencedAdoptScript = script.New(dropEnded("-1") + findTombstone + `if not there then
  return dead or -1
end
` + readCounter + moveOn("false", "0") + extendReader + writeReaders + `return f`)

	// ARGV token, the reader's number, life of the counter in ms.
	sharedRaiseScript = script.New(dropEnded("0") + `if not there then
  return 0
end
` + readCounter + `f = math.max(f, tonumber(ARGV[2]))
` + writeReaders + `return f`)
)

var sharedFencedScripts = countingScripts{extend: sharedFencedExtendScript, repair: sharedFencedRepairScript, adopt: sharedFencedAdoptScript, raise: sharedRaiseScript}

func (f *sharedFenced) Acquire(r *Request, g Grant) {
	r.Judge = f.Given
	args := func(dst []byte) []byte { return f.appendHint(appendSharedArgs(dst, g), g) }
	r.Call(sharedFencedAcquireScript, 6, args, f.keys[0], f.keys[1], f.intent)
}

func (f *sharedFenced) Extend(r *Request, g Grant) { f.counting.Extend(r, g) }

func (f *sharedFenced) Repair(r *Request, g Grant) { f.counting.Repair(r, g) }
