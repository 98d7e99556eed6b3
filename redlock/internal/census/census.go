// Package census asks a master who holds a key, and counts what all masters have said. It reads no clock.
package census

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
)

const (
	MostReaders = 1000 // of a key that a master names, those that last longest; Listed with Short
	Listed      = 100  // readers, and waiters, of a key in a list

	pageBytes = 256 << 10                                                    // of the names in a page
	longest   = len(kind.RevokedPrefix) + kind.MaxToken + 1 + kind.MaxReason // bytes that a lock's key holds at the most
	rowsWork  = 150                                                          // commands that one call makes, about
	rowsBytes = 128 << 10                                                    // of one call's reply, about
)

// What Rows is to ask for, beside who holds a key. They are joined.
const (
	Fence   = "f"
	Line    = "l" // who waits for it
	Readers = "r" // who holds a key that is shared. Without it, that looks like one that is no lock
	Short   = "s" // for keys that can hold anything: no more of a value than a token has, and few readers
)

// The arguments are the keys of these scripts. A user who lacks the right to one that is not needed is then told the
// rest. KEYS have the lock's key only where the masters are to find its place in a cluster.
var (
	// ARGV what to ask for, and pairs of a key and its queue. It returns a row for each: the key's value, or how long
	// that is if it is too long for a lock's, or the type of a key that holds none, if the user may ask for it; for how
	// many ms the key lasts, as PTTL; the number of readers, or -1 if the key holds something else; the readers that last longest, each with its ms; the fence's counter, or 0 if that
	// is no number; for how many ms it lasts; the number of waiters, or -1 if it may not be read; and of the first
	// waiters the id, the note and for how many ms the entry lasts. Waiters that are dead do not count, and the mark of
	// the readers' rank is no waiter. pcall is as in the other scripts.
	//
	// After some work it returns the rows that it has. A key that may not be read is an error. If a queue or a
	// counter may not be read, it asks for no other: few lines in the master's ACL LOG.
	Rows = script.New(script.AnyKeys + `local rows, work, size, blind, now = {}, 0, 0, {}
local short = string.find(ARGV[1], '` + Short + `')
local most = short and ` + strconv.Itoa(Listed) + ` or ` + strconv.Itoa(MostReaders) + `
local function ask(what, ...)
  if blind[what] then
    return nil
  end
  local got = redis.pcall(...)
  work = work + 1
  if type(got) == 'table' and got.err then
    blind[what] = not string.find(got.err, 'WRONGTYPE', 1, true)
    return not blind[what] and 0 or nil
  end
  return got
end
for i = 2, #ARGV, 2 do
  local key, line, v = ARGV[i], ARGV[i + 1]
  if short then
    v = redis.pcall('GETRANGE', key, 0, 1023)
  else
    v = redis.pcall('GET', key)
  end
  if short and type(v) == 'table' and not string.find(v.err, 'WRONGTYPE', 1, true) then
    return redis.error_reply(v.err .. ' (GETRANGE)')
  end
  ` + script.UnlessForeign + `  local left = redis.call('PTTL', key)
  local n, readers, fence, ends, waiting, waiters = 0, {}, false, 0, 0, {}
  work = work + 2
  if type(v) == 'table' then
    local shared = string.find(ARGV[1], '` + Readers + `')
    v, n = shared and redis.call('TYPE', key) or ask('type', 'TYPE', key) or false, -1
    if shared and v.ok == 'zset' and left >= 0 then
      if not now then
        local t = redis.call('TIME')
        now = t[1] * 1000 + math.floor(t[2] / 1000)
      end
      local found = redis.call('ZRANGE', key, -most, -1, 'WITHSCORES')
      for j = 1, #found, 2 do
        local ms = tonumber(found[j + 1]) - now
        if ms >= 0 then
          readers[#readers + 1] = string.sub(found[j], 1, 512)
          readers[#readers + 1] = math.floor(math.min(ms, 2 ^ 50))
          size = size + #readers[#readers - 1] + 16
        end
      end
      n = math.floor(#readers / 2)
      if short and n == most then
        n = redis.call('ZCOUNT', key, now, '+inf')
      end
      work = work + 20
    end
  elseif left == -2 then
    v = false
  elseif v then
    v = #v > ` + strconv.Itoa(longest) + ` and #v or v
    size = size + string.len(v)
  end
  if string.find(ARGV[1], '` + Fence + `') and string.sub(line, -13) ~= '}:permit:line' then
    local counter = string.sub(line, 1, -5) .. 'fence'
    fence = ask('fence', 'GET', counter) or false
    if fence then
      fence = type(fence) == 'string' and #fence < 32 and fence or 0
      ends = ask('fence', 'PTTL', counter) or 0
    end
  end
  if string.find(ARGV[1], '` + Line + `') then
    local ids, marked = ask('line', 'ZRANGE', line, 0, ` + strconv.Itoa(Listed) + `), false
    waiting = not ids and -1 or type(ids) == 'table' and #ids or 0
    for j = 1, waiting do
      local alive = line .. ':' .. ids[j] .. ':alive'
      local note = ids[j] ~= 'r:' and ask('line', 'GET', alive)
      if type(note) == 'string' then
        waiters[#waiters + 1] = string.sub(ids[j], 1, 64)
        waiters[#waiters + 1] = string.sub(note, 1, 160)
        waiters[#waiters + 1] = ask('line', 'PTTL', alive) or 0
        size = size + #ids[j] + #note + 16
      elseif ids[j] == 'r:' then
        marked = true
      else
        waiting = waiting - 1
      end
    end
    if type(ids) == 'table' and #ids > ` + strconv.Itoa(Listed) + ` then
      waiting = waiting + (ask('line', 'ZCARD', line) or #ids) - #ids
      marked = ask('line', 'ZSCORE', line, 'r:')
    end
    if marked then
      waiting = waiting - 1
    end
  end
  rows[#rows + 1] = {v, left, n, readers, fence, ends, waiting, waiters}
  if work > ` + strconv.Itoa(rowsWork) + ` or size > ` + strconv.Itoa(rowsBytes) + ` then
    break
  end
end
return rows`)

	// ARGV cursor, pattern, count, the longest name of interest. It returns the next cursor, and a page of the names of
	// all keys that match the pattern. If the names are too long for one reply, it returns nothing, and is to be called
	// again with a lower count.
	Page = script.NewRare(script.AnyKeys + `local page = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
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

	// KEYS or ARGV the slots of permits, or other keys with one value. It returns of each the value, or how long that is
	// if it is too long for a lock's, or the key's type if it holds none, or 0 if the user may not ask for it, and for how
	// many ms it lasts.
	Values = script.New(script.AnyKeys + `local out, blind = {}, false
for i, key in ipairs(#KEYS > 0 and KEYS or ARGV) do
  local v = redis.pcall('GET', key)
  ` + script.UnlessForeign + `  if type(v) == 'string' then
    v = #v > ` + strconv.Itoa(longest) + ` and #v or string.sub(v, 1, 512)
  elseif v then
    v = not blind and redis.pcall('TYPE', key) or {}
    blind = blind or v.err
    v = v.ok and v or 0
  end
  out[2 * i - 1] = v
  out[2 * i] = redis.call('PTTL', key)
end
return out`)
)

// JudgeRows judges Rows. Rows are a yes.
func JudgeRows(v resp.Value) mux.Verdict {
	for each, n := elems(v), 0; ; n++ {
		row, more := each.Next()
		switch {
		case more && row.Kind() == resp.Array && row.Len() == 8:
		case more || n == 0:
			return kind.JudgeError(v)
		default:
			return mux.VerdictYes
		}
	}
}

// NoExpiry is the TTL of a key that does not expire.
const NoExpiry time.Duration = -1

// Unknown is the token where a key holds something that is no lock.
var Unknown = conn.NewSecret("?")

// A Holder is who holds a key on a master.
type Holder struct {
	Token   conn.Secret   // Unknown if the key holds something that is no lock
	TTL     time.Duration // NoExpiry if the key does not expire
	Permit  int           // its number, from 1 on; 0 if it is none
	Size    int64         // bytes of the string that the key holds, if it is too long for a lock's; otherwise 0
	Type    string        // of a key that holds no string, as TYPE has it, if it is known
	Revoked bool
	Reason  string // ... of it
}

// Owner is the owner that the token names.
func (h Holder) Owner() string { return kind.Owner(h.Token.Reveal()) }

// Left reports whether the lock was released, and is only left there.
func (h Holder) Left() bool { return strings.HasPrefix(h.Token.Reveal(), kind.LeftMark) }

// Permits is how many permits there are, of a mark that says so; 0 if it says no such number.
func (h Holder) Permits() int {
	if n, err := strconv.Atoi(h.Token.Reveal()); err == nil && 0 < n && n <= kind.MaxPermits {
		return n
	}
	return 0
}

// A Row is what a master says of a key, or of the permits of one.
type Row struct {
	Holders  []Holder
	Readers  int // how many readers hold it; -1 if it holds what is no value
	Fence    uint64
	NoFence  bool          // the counter is no number that can be a fence
	FenceTTL time.Duration // of the counter
	Waiting  int           // -1 if it may not be read
	Waiters  []Waiter      // the first
}

// A Waiter is one that waits in line.
type Waiter struct {
	ID     string // a secret: who knows it can end the waiter's place
	Owner  string
	Waited time.Duration
	Reader bool
}

// ReadRows reads what Rows returns.
func ReadRows(reply resp.Value) (rows []Row) {
	elems := reply.Elems()
	for row, more := elems.Next(); more; row, more = elems.Next() {
		rows = append(rows, readRow(row))
	}
	return rows
}

func readRow(row resp.Value) (r Row) {
	fields := elems(row)
	one, there := nextHolder(&fields)
	r.Readers = int(nextInt(&fields))
	next, _ := fields.Next()
	each, named := elems(next), map[conn.Secret]bool{}
	for h, more := nextHolder(&each); more && len(r.Holders) < MostReaders; h, more = nextHolder(&each) {
		if !named[h.Token] { // it can name one as often as it likes
			named[h.Token], h.Type = true, "zset"
			r.Holders = append(r.Holders, h)
		}
	}
	if there && len(r.Holders) == 0 {
		r.Holders = []Holder{one}
	}
	if next, _ = fields.Next(); !next.IsNull() {
		n, err := strconv.ParseFloat(text(next), 64)
		if r.NoFence = err != nil || !(n >= 0 && n < quorum.MaxFence); !r.NoFence {
			r.Fence = uint64(n)
		}
	}
	r.FenceTTL = ttl(nextInt(&fields))
	r.Waiting = int(nextInt(&fields))
	next, _ = fields.Next()
	each = elems(next)
	for id, more := each.Next(); more && len(r.Waiters) < Listed; id, more = each.Next() {
		note, _ := each.Next()
		waited, owner, _ := kind.ReadNote([]byte(text(note)), ttl(nextInt(&each)))
		r.Waiters = append(r.Waiters, Waiter{text(id), owner, waited, strings.HasPrefix(text(id), kind.ReaderMark)})
	}
	return r
}

// ReadPermits reads what Values returns of the slots of permits.
func ReadPermits(reply resp.Value) (r Row) {
	each, named := elems(reply), map[conn.Secret]bool{}
	for permit := 1; permit <= reply.Len()/2; permit++ {
		h, there := nextHolder(&each)
		if h.Permit = permit; there && !named[h.Token] {
			named[h.Token] = h.Token != Unknown
			r.Holders = append(r.Holders, h)
		}
	}
	return r
}

func nextHolder(of *resp.Iter) (h Holder, there bool) {
	value, more := of.Next()
	pttl, _ := of.Next()
	h, there = ReadHolder(value, pttl)
	return h, there && more
}

// NoLock says what a key holds that is no lock.
func (h Holder) NoLock() string {
	const text = "a key that is no lock"
	switch {
	case h.Size > 0:
		return fmt.Sprintf("%s (string of %d bytes)", text, h.Size)
	case h.Type == "zset":
		return text + " (sorted set)"
	case h.Type != "":
		return text + " (" + h.Type + ")"
	}
	return text
}

// Other is NoLock of a key that was asked for readers, if it was.
func (h Holder) Other(readers bool) string {
	if !readers && h.Type == "zset" {
		return "readers, or " + h.NoLock()
	}
	return h.NoLock()
}

// MayBeReaders reports whether the key can be one that is shared, if it was not asked for readers.
func (h Holder) MayBeReaders() bool {
	return h.Token == Unknown && h.Size == 0 && (h.Type == "" || h.Type == "zset")
}

// ReadType reads the reply to TYPE. What a server can say is bounded: modules name types, too.
func ReadType(v resp.Value) string {
	const most = 32
	name := string(v.Bytes())
	if v.Kind() != resp.SimpleString || len(name) > most || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return ""
	}
	return name
}

// ReadHolder reads a key's value and PTTL. It returns there false if nobody holds the key.
func ReadHolder(value, pttl resp.Value) (h Holder, there bool) {
	ms, _ := pttl.Int()
	h.TTL = ttl(ms)
	h.Size, _ = value.Int()
	h.Type = ReadType(value)
	token := text(value)
	if of, reason, ok := kind.CutTombstone(token); ok {
		token, h.Revoked, h.Reason = of, true, reason
	}
	if h.Token = Unknown; token != "" {
		h.Token = conn.NewSecret(token)
	}
	return h, ms != -2
}

// ttl is what a PTTL says.
func ttl(ms int64) time.Duration {
	if ms < 0 {
		return NoExpiry
	}
	return kind.Milliseconds(ms)
}

func nextInt(of *resp.Iter) int64 {
	v, _ := of.Next()
	n, _ := v.Int()
	return n
}

func text(v resp.Value) string {
	if v.Kind() != resp.BulkString {
		return ""
	}
	return string(v.Bytes())
}

func elems(v resp.Value) resp.Iter {
	if v.Kind() != resp.Array {
		return resp.Iter{}
	}
	return v.Elems()
}
