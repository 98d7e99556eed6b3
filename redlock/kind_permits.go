package redlock

import (
	"bytes"
	"hash/maphash"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp"
)

// permits is a lock that up to k can hold at a time. There are k slots, and each is a plain lock by
// itself, with a key, a quorum and a TTL of its own. So there are never more than k holders,
// whichever minority fails, for any k.
//
// A counter on each master, with a majority of those that have one left, would not do: k=2 on three
// masters has six permits there, which is three majorities of two.
//
// All must agree on k. A slot's key says it, so those who do not agree never meet at a slot. They
// meet at the mark: a key beside the slots that holds k. A client's first attempt with a TTL, and one every
// [agreedFor], sets its slot by a script that compares the mark with k, sets it, and fails where it
// is another. Those in between are plain SETs ([agreements]). The mark is there for as long as any lock
// that was taken meanwhile, and extends renew it. Two quorums share a master, so of two that differ the
// second is refused. A Lock that is refused so waits, and asks for the mark (agrees). That is only to know
// when to try again: its attempt looks at the mark as any other does.
type permits struct {
	k      int
	of     string // "/k"
	prefix string // of the slots' keys
	marker string // the key of the mark
	life   time.Duration

	used atomic.Pointer[slotKey] // the last: who reuses a Mutex mostly has the same slot again
}

type slotKey struct {
	slot int
	key  string
}

const (
	// A look reads all slots on each master, and a waiter looks after each change. With so many
	// that costs a master about half a millisecond.
	maxPermits = 1000

	// A look names each slot three times, and its command and fallback may have 2 MiB. All that is
	// in it beside the key is less than the overhead.
	slotOverhead = 40
	maxSlotBytes = 2<<20/3 - 1<<10

	agreedFor   = time.Minute // how long a client relies on the mark without looking at it
	agreedPause = time.Second // how long whoever has another number waits before it asks for the mark, up to twice that
)

func newPermits(key string, ttl time.Duration, k int) *permits {
	return &permits{k: k, of: "/" + strconv.Itoa(k), prefix: slotPrefix(key), marker: "{" + key + "}:permits", life: ttl + 2*agreedFor}
}

// slotInfix is between the key and the slot.
const slotInfix = ":permit:"

// slotPrefix is what the names of all slots of a key begin with. What follows is the slot's number,
// a slash, and how many there are.
func slotPrefix(key string) string { return "{" + key + "}" + slotInfix }

// cutSlotKey splits the name of a slot's key into the prefix and what follows. The slot is 0 if
// it is no such name.
func cutSlotKey(key []byte) (prefix []byte, slot, of int) {
	i := bytes.LastIndexByte(key, ':')
	j := bytes.LastIndexByte(key, '/')
	if i < 0 || j < i {
		return nil, 0, 0
	}
	slot, err := strconv.Atoi(string(key[i+1 : j]))
	of, err2 := strconv.Atoi(string(key[j+1:]))
	if err != nil || err2 != nil || slot < 1 || slot > of {
		return nil, 0, 0
	}
	return key[:i+1], slot, of
}

// agreements are the slotted locks whose number of slots was agreed to lately. An attempt that relies on one
// is a plain SET, and does not look at the mark. Each of its voters has the mark nevertheless, or one that was
// there says so:
//
//   - The attempt that has agreed was sent to every master that was connected, and what follows it
//     on a connection comes after it.
//   - Where the script has failed, the number was another perhaps. Its answer comes before the SET's, also if
//     nobody waits for it any more. It ends all agreements.
//   - A master that is connected again may have forgotten the mark, or was not asked. That ends
//     all agreements, too.
//
// An attempt that has relied on an agreement which has ended meanwhile does not count, and is made once more.
//
// They are a table of fixed size: a lock whose entry was taken by another is only asked about once more.
type agreements struct {
	table [4096]atomic.Uint64
	epoch atomic.Uint64   // of those that have not ended
	judge mux.VerdictFunc // of an attempt that looks at the mark
}

var agreedSeed = maphash.MakeSeed()

func (a *agreements) init() {
	a.judge = func(v resp.Value) mux.Verdict {
		if _, ok := v.Int(); !ok {
			a.end()
		}
		return judgeOne(v)
	}
}

// end ends all agreements. It may be called with the Mux locked.
func (a *agreements) end() { a.epoch.Add(1) }

// entry returns the place of a lock, and what is there if it was agreed to in that epoch and in the minute of
// now. Its life is a part of it, as the mark lasts for as long as that asks for.
func (a *agreements) entry(s *spec, epoch uint64, now time.Duration) (at *atomic.Uint64, want uint64) {
	h := maphash.String(agreedSeed, s.key) + uint64(s.slots())<<48 + uint64(s.life())*0x9e3779b97f4a7c15
	return &a.table[h%uint64(len(a.table))], h + uint64(now/agreedFor) + epoch*0xbf58476d1ce4e5b9 + 1
}

// lately reports whether a lock was agreed to, and in which epoch an attempt begins.
func (a *agreements) lately(s *spec, now time.Duration) (sure bool, epoch uint64) {
	epoch = a.epoch.Load()
	at, want := a.entry(s, epoch, now)
	return at.Load() == want, epoch
}

// note takes note of an attempt that a quorum has agreed to. It began in that epoch.
func (a *agreements) note(s *spec, epoch uint64, now time.Duration) {
	at, want := a.entry(s, epoch, now)
	at.Store(want)
}

// keepMark sets the mark to k, for its life at least: another's lock may need it for longer. Both are
// the last of ARGV.
const keepMark = `local k, life = ARGV[#ARGV - 1], ARGV[#ARGV]
if redis.pcall('GET', KEYS[2]) ~= k or redis.call('PTTL', KEYS[2]) < tonumber(life) then
  redis.call('SET', KEYS[2], k, 'PX', life)
end
`

var (
	// KEYS slot, mark; ARGV token, TTL in ms, k, life of the mark in ms. It returns 1, or 0 if the
	// slot is taken.
	permitAcquireScript = newScript(`local v = redis.pcall('GET', KEYS[2])
` + unlessForeign + `if v ~= false and v ~= ARGV[3] then
  local said = type(v) == 'string' and string.match(v, '^%d%d?%d?%d?$') or 'no number'
  return redis.error_reply('PERMITS ' .. KEYS[2] .. ' says ' .. said .. ', and not ' .. ARGV[3])
end
` + keepMark + `if redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then
  return 1
end
return 0`)

	// KEYS slot, mark; ARGV token, TTL in ms, whether the slot may be set again, k, life of the mark in
	// ms. It returns what the plain one does.
	permitExtendScript = newScript(`local v, reply = redis.pcall('GET', KEYS[1]), 1
` + unlessForeign + `if v == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
elseif v == false and ARGV[3] == '1' then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX')
  reply = 2
else
  return 0
end
` + keepMark + `return reply`)

	// KEYS the slots. It returns what PTTL says of each.
	slotsScript = newScript(`local ends = {}
for i, key in ipairs(KEYS) do
  ends[i] = redis.call('PTTL', key)
end
return ends`)
)

func (p *permits) slots() int { return p.k }

func (p *permits) mark(token []byte, slot int) []byte { return appendSlot(token, slot, p.k) }

func (p *permits) agrees(r *request) {
	r.command = resp.AppendCommand(r.command, "GET", p.marker)
	r.judge = func(v resp.Value) mux.Verdict {
		switch {
		case v.IsNull(), v.Kind() == resp.BulkString && string(v.Bytes()) == p.of[1:]:
			return mux.VerdictYes
		case v.Kind() == resp.BulkString:
			return mux.VerdictNo
		}
		return judgeError(v)
	}
}

// name returns the name of a slot's key.
func (p *permits) name(slot int) string {
	if u := p.used.Load(); u != nil && u.slot == slot {
		return u.key
	}
	u := &slotKey{slot, p.prefix + strconv.Itoa(slot) + p.of}
	p.used.Store(u)
	return u.key
}

// names returns the names of all slots' keys.
func (p *permits) names() []string {
	names := make([]string, p.k)
	for i := range names {
		names[i] = p.prefix + strconv.Itoa(i+1) + p.of
	}
	return names
}

// at returns the grant as that of the plain lock which its slot is.
func (p *permits) at(g grant) grant {
	_, slot, _ := cutSlot(g.token)
	g.key = p.name(slot)
	return g
}

func (p *permits) acquire(r *request, g grant) {
	g = p.at(g)
	if g.relies {
		plain{}.acquire(r, g)
		return
	}
	r.judge = judgeOne
	args := func(dst []byte) []byte { return p.appendMark(appendTokenTTL(dst, g)) }
	r.call(permitAcquireScript, 4, args, g.key, p.marker)
}

// extend keeps the mark, too, so that it outlives the lock.
func (p *permits) extend(r *request, g grant, restore bool) {
	g = p.at(g)
	r.judge = judgeOne
	args := func(dst []byte) []byte { return p.appendMark(appendExtendArgs(dst, g, restore)) }
	r.call(permitExtendScript, 5, args, g.key, p.marker)
}

// appendMark appends what the mark says, and how long it is to last.
func (p *permits) appendMark(dst []byte) []byte {
	dst = resp.AppendBulkString(dst, p.of[1:])
	return resp.AppendBulkInt(dst, p.life.Milliseconds())
}

func (p *permits) release(r *request, g grant) { plain{}.release(r, p.at(g)) }

func (p *permits) linger(r *request, g grant) { plain{}.linger(r, p.at(g)) }

// look reads all slots. Of what a script reads, servers of different ages track different keys, so
// EXISTS goes before it: that reads them all, too.
func (p *permits) look(r *request, _ string) {
	names := p.names()
	r.judge = judgeSlots
	r.tracked()
	r.command = resp.AppendArray(r.command, 1+p.k)
	r.command = resp.AppendBulkString(r.command, "EXISTS")
	for _, name := range names {
		r.command = resp.AppendBulkString(r.command, name)
	}
	r.command = slotsScript.appendHash(r.command, 0, names...)
	r.fallback = slotsScript.appendText(r.fallback, 0, names...)
	r.replies = 3
}

// judgeSlots judges the look: an answer is a yes.
func judgeSlots(v resp.Value) mux.Verdict {
	if v.Kind() == resp.Array {
		return mux.VerdictYes
	}
	return judgeError(v)
}
