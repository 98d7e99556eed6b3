package redlock

import (
	"strconv"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
)

// No call of these scripts may keep a master from its other clients for long. So each does a bounded amount of work,
// whatever the keys hold, and the lister calls it again for the rest.
const (
	pageCount   = 200       // keys that one page looks at
	pageBytes   = 256 << 10 // of the names in a page
	rowsAtOnce  = 50        // that one call asks for
	rowsWork    = 150       // commands that one call makes, about
	rowsBytes   = 128 << 10 // of one call's reply, about
	slotsAtOnce = 100       // that one call asks for
	askedBytes  = 400 << 10 // of the names in one call, about
	maxListed   = 100       // readers, and waiters, of one lock that are named
)

// The keys of these scripts are arguments and not KEYS. A user who lacks the right to one key is then told the rest.
var (
	// ARGV cursor, pattern, count, the longest name of interest. It returns the next cursor, and a page of the names of
	// all keys that match the pattern. If the names are too long for one reply, it returns nothing, and is to be called
	// again with a lower count.
	pageScript = script.NewRare(script.AnyKeys + `local page = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local out, size = {page[1]}, 0
for _, key in ipairs(page[2]) do
  if #key <= tonumber(ARGV[4]) then
    out[#out + 1], size = key, size + #key
  end
end
if size > ` + strconv.Itoa(pageBytes) + ` and ARGV[3] ~= '1' then
  return {}
end
return out`)

	// ARGV pairs of a key and its queue. It returns a row for each: the key's value, if it is a string; for how many ms
	// the key lasts, as PTTL; the number of readers, or -1 if the key holds something else; some readers, those that
	// last longest, each with its ms; the fence's counter; the number of waiters, or -1 if it may not be read; and of
	// the first waiters the id, the note and for how many ms the entry lasts. Values are cut. Waiters that are dead do
	// not count, and the mark of the readers' rank is no waiter.
	//
	// After some work it returns the rows that it has. A key that may not be read is an error. If a queue or a
	// counter may not be read, it asks for no other: few lines in the master's ACL LOG.
	locksScript = script.NewRare(script.AnyKeys + `local rows, work, size, blind, now = {}, 0, 0, {}
local function ask(what, ...)
  if blind[what] then
    return nil
  end
  local got = redis.pcall(...)
  work = work + 1
  if type(got) == 'table' and got.err then
    blind[what] = not string.find(got.err, 'WRONGTYPE', 1, true)
    return nil
  end
  return got
end
for i = 1, #ARGV, 2 do
  local key, line = ARGV[i], ARGV[i + 1]
  local v, left = redis.pcall('GETRANGE', key, 0, 1023), redis.call('PTTL', key)
  local n, readers, fence, waiting, waiters = 0, {}, 0, 0, {}
  work = work + 2
  ` + script.UnlessForeign + `  if type(v) == 'table' then
    v, n = false, -1
    if redis.call('TYPE', key).ok == 'zset' then
      if not now then
        local t = redis.call('TIME')
        now = t[1] * 1000 + math.floor(t[2] / 1000)
      end
      n = redis.call('ZCOUNT', key, now, '+inf')
      local found = redis.call('ZRANGE', key, -` + strconv.Itoa(maxListed) + `, -1, 'WITHSCORES')
      for j = #found - 1, 1, -2 do
        local ms = tonumber(found[j + 1]) - now
        if ms >= 0 then
          readers[#readers + 1] = string.sub(found[j], 1, 256)
          readers[#readers + 1] = math.floor(math.min(ms, 2 ^ 50))
          size = size + #readers[#readers - 1] + 16
        end
      end
      work = work + 20
    end
  elseif left == -2 then
    v = false
  else
    size = size + #v
  end
  if string.sub(line, -13) ~= '}:permit:line' then
    fence = tonumber(ask('fence', 'GET', string.sub(line, 1, -5) .. 'fence') or 0) or 0
  end
  waiting = ask('line', 'ZCARD', line) or blind.line and -1 or 0
  if waiting > 0 then
    if ask('line', 'ZSCORE', line, 'r:') then
      waiting = waiting - 1
    end
    for _, id in ipairs(ask('line', 'ZRANGE', line, 0, ` + strconv.Itoa(maxListed) + `) or {}) do
      local alive = line .. ':' .. id .. ':alive'
      local note = id ~= 'r:' and ask('line', 'GET', alive)
      if note then
        waiters[#waiters + 1] = string.sub(id, 1, 64)
        waiters[#waiters + 1] = string.sub(note, 1, 160)
        waiters[#waiters + 1] = ask('line', 'PTTL', alive) or 0
        size = size + #id + #note + 16
      elseif id ~= 'r:' then
        waiting = waiting - 1
      end
    end
  end
  rows[#rows + 1] = {v, left, n, readers, fence, waiting, waiters}
  if work > ` + strconv.Itoa(rowsWork) + ` or size > ` + strconv.Itoa(rowsBytes) + ` then
    break
  end
end
return rows`)

	// ARGV the slots of permits. It returns the value of each, and for how many ms it lasts.
	locksSlotsScript = script.NewRare(script.AnyKeys + `local out = {}
for i = 1, #ARGV do
  local v = redis.pcall('GETRANGE', ARGV[i], 0, 511)
  ` + script.UnlessForeign + `  out[2 * i - 1], out[2 * i] = type(v) == 'string' and v, redis.call('PTTL', ARGV[i])
end
return out`)
)

// judgeLocks judges the scripts above: an array is a yes.
func judgeLocks(v resp.Value) mux.Verdict {
	if v.Kind() == resp.Array {
		return mux.VerdictYes
	}
	return kind.JudgeError(v)
}

// list makes the call one of a script with these arguments.
func (k *call) list(s script.Script, timeout time.Duration, args ...string) {
	k.token = k.token[:0]
	r := &k.request
	r.Reset()
	r.Judge = judgeLocks
	r.Call(s, len(args), func(dst []byte) []byte {
		for _, arg := range args {
			dst = resp.AppendBulkString(dst, arg)
		}
		return dst
	})
	k.prepare(timeout)
	k.op.All, k.op.Keep, k.op.Quorum = true, true, 1
}

// A lockRow is a row of the script, of one master.
type lockRow struct {
	value   string // cut; empty if the key is free, or holds something else
	left    time.Duration
	there   bool // the key is there
	readers int  // -1 if the key holds something else
	first   []lockRowReader
	fence   uint64
	waiting int // -1 if it may not be read
	waiters []lockRowWaiter
}

type lockRowReader struct {
	token string
	left  time.Duration
}

type lockRowWaiter struct {
	id   string
	note []byte
	left time.Duration
}

// readRows reads the reply of the script. A row that is none is an empty one.
func readRows(reply resp.Value) (rows []lockRow) {
	elems := reply.Elems()
	for row, more := elems.Next(); more; row, more = elems.Next() {
		rows = append(rows, readRow(row))
	}
	return rows
}

func readRow(row resp.Value) (r lockRow) {
	if row.Kind() != resp.Array {
		return r
	}
	fields := row.Elems()
	value, _ := fields.Next()
	r.value = cut(textOf(value), 1024)
	left, _ := fields.Next()
	ms, _ := left.Int()
	r.there, r.left = ms != -2, timeLeft(ms)
	r.readers = int(nextInt(&fields))
	readers, _ := fields.Next()
	each := elemsOf(readers)
	for token, more := each.Next(); more && len(r.first) < maxListed; token, more = each.Next() {
		r.first = append(r.first, lockRowReader{cut(textOf(token), 256), timeLeft(nextInt(&each))})
	}
	r.fence = uint64(max(nextInt(&fields), 0))
	r.waiting = int(nextInt(&fields))
	waiters, _ := fields.Next()
	each = elemsOf(waiters)
	for id, more := each.Next(); more && len(r.waiters) < maxListed; id, more = each.Next() {
		note, _ := each.Next()
		r.waiters = append(r.waiters, lockRowWaiter{cut(textOf(id), 64), []byte(cut(textOf(note), 160)), timeLeft(nextInt(&each))})
	}
	return r
}

// cut is what the script does: one that lies may not.
func cut(s string, most int) string { return s[:min(len(s), most)] }

func nextInt(of *resp.Iter) int64 {
	v, _ := of.Next()
	n, _ := v.Int()
	return n
}

func textOf(v resp.Value) string {
	if v.Kind() != resp.BulkString {
		return ""
	}
	return string(v.Bytes())
}

func elemsOf(v resp.Value) resp.Iter {
	if v.Kind() != resp.Array {
		return resp.Iter{}
	}
	return v.Elems()
}

// timeLeft is what a PTTL says.
func timeLeft(ms int64) time.Duration {
	if ms < 0 {
		return NoExpiry
	}
	return milliseconds(ms)
}
