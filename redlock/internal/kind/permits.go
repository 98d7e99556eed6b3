package kind

import (
	"strconv"
	"time"

	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
)

// permits is a lock that up to k holders can have at a time. There are k slots, and each is a plain lock by
// itself, with a key, a quorum and a TTL of its own. So there are never more than k holders, whichever
// minority of the masters fails.
//
// A counter of free permits on each master would not do, if a holder needed one from a majority: with k=2,
// three masters have six permits together, which is enough for three majorities of two.
//
// All clients must agree on k. The slots' names contain k, so clients with different k never meet at a slot.
// They meet at the mark: a key beside the slots that holds k. A client's first attempt with a TTL, and one
// every [AgreedFor], sets its slot by a script. The script sets the mark to k, and fails where the mark is
// another number. The attempts in between are plain SETs (see internal/round/agreement.go). The mark outlives
// every lock that was taken meanwhile, and extends renew it. Two quorums share a master, so of two clients
// that differ the second is refused. A Lock that was refused for this reason waits, and asks for the mark
// (Agrees), only to know when to try again. Its next attempt looks at the mark as any other does.
type permits struct {
	k      int
	of     string        // "/k", the end of the slots' keys
	Prefix string        // of the slots' keys
	marker string        // the key of the mark
	life   time.Duration // of the mark
}

const (
	// MaxPermits is the greatest number of permits. A Look reads all slots on each master, and a waiter looks
	// after each change. With MaxPermits, a Look costs a master about half a millisecond.
	MaxPermits = 1000

	// AgreedFor is how long a client relies on the mark without looking at it.
	AgreedFor = time.Minute
	// AgreedPause is how long a Lock with another number of permits waits before it asks for the mark. The wait
	// is random, from AgreedPause to twice that.
	AgreedPause = time.Second
)

// PermitsFit reports whether a Look at k slots of a key can be sent. The Look names each slot three times, and its
// command and fallback may have 2 MiB.
func PermitsFit(key string, k int) bool {
	const overhead, most = 40, 2<<20/3 - 1<<10 // bytes of a slot's name beside the key; bytes of a third of the Look
	return k*(len(key)+overhead) <= most
}

// NewPermits returns the kind of a lock with k permits on a key, if each lock lasts for ttl at most.
func NewPermits(key string, ttl time.Duration, k int) *permits {
	return &permits{k: k, of: "/" + strconv.Itoa(k), Prefix: slotPrefix(key), marker: MarkKey(key), life: ttl + 2*AgreedFor}
}

// keepMark is the Lua that sets the mark to k. The mark then lives for its life at least, as another's lock
// may need it for longer. k and the life are the last two of ARGV.
const keepMark = `local k, life = ARGV[#ARGV - 1], ARGV[#ARGV]
if redis.pcall('GET', KEYS[2]) ~= k or redis.call('PTTL', KEYS[2]) < tonumber(life) then
  redis.call('SET', KEYS[2], k, 'PX', life)
end
`

var (
	// KEYS slot, mark; ARGV token, TTL in ms, k, life of the mark in ms. It returns 1, or 0 if the
	// slot is taken.
	permitAcquireScript = script.New(`local v = redis.pcall('GET', KEYS[2])
` + script.UnlessForeign + `if v ~= false and v ~= ARGV[3] then
  local said = type(v) == 'string' and string.match(v, '^%d%d?%d?%d?$') or 'no number'
  return redis.error_reply('PERMITS ' .. KEYS[2] .. ' says ' .. said .. ', and not ' .. ARGV[3])
end
` + keepMark + `if redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then
  return 1
end
return 0`)

	// KEYS slot, mark; ARGV token, TTL in ms, k, life of the mark in ms. It returns what the plain script does.
	permitExtendScript = script.New(`local v = redis.pcall('GET', KEYS[1])
if v == false then
  return -2
end
` + script.UnlessLock + `if v ~= ARGV[1] then
  ` + tellRevoked + `  return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
` + keepMark + `return 1`)

	// Likewise. It returns 1 if it has set the slot again.
	permitRepairScript = script.NewRare(`if not redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then
  return 0
end
` + keepMark + `return 1`)

	// KEYS mark; ARGV k. It returns 1 if the mark is k, or not there, and otherwise 0.
	agreesScript = script.New(`local v = redis.pcall('GET', KEYS[1])
` + script.UnlessForeign + `return (v == false or v == ARGV[1]) and 1 or 0`)

	// KEYS the slots. It returns the PTTL of each.
	slotsScript = script.New(`local ends = {}
for i, key in ipairs(KEYS) do
  ends[i] = redis.call('PTTL', key)
end
return ends`)
)

func (p *permits) Slots() int { return p.k }

func (p *permits) Mark(token []byte, slot int) []byte { return AppendSlot(token, slot, p.k) }

func (p *permits) Agrees(r *Request) {
	r.Judge = JudgeOne
	r.Call(agreesScript, 1, func(dst []byte) []byte { return resp.AppendBulkString(dst, p.of[1:]) }, p.marker)
}

func (p *permits) AppendKey(dst, token []byte) []byte {
	_, slot, _ := CutSlot(token)
	return p.appendName(dst, slot)
}

// appendName appends a slot's key.
func (p *permits) appendName(dst []byte, slot int) []byte {
	return append(strconv.AppendInt(append(dst, p.Prefix...), int64(slot), 10), p.of...)
}

// Names returns the keys of all slots.
func (p *permits) Names() []string {
	names := make([]string, p.k)
	for i := range names {
		names[i] = string(p.appendName(nil, i+1))
	}
	return names
}

func (p *permits) Acquire(r *Request, g Grant) {
	if g.Relies {
		Plain{}.Acquire(r, g)
		return
	}
	r.Judge = JudgeOne
	args := func(dst []byte) []byte { return p.appendMark(AppendTokenTTL(dst, g)) }
	r.Call(permitAcquireScript, 4, args, g.Key, p.marker)
}

// Extend renews the mark, too, so that it outlives the lock.
func (p *permits) Extend(r *Request, g Grant) {
	r.Judge = JudgeOne
	args := func(dst []byte) []byte { return p.appendMark(AppendTokenTTL(dst, g)) }
	r.Call(permitExtendScript, 4, args, g.Key, p.marker)
}

func (p *permits) Repair(r *Request, g Grant) {
	r.Judge = JudgeOne
	r.Text(permitRepairScript, 4, func(dst []byte) []byte { return p.appendMark(AppendTokenTTL(dst, g)) }, g.Key, p.marker)
}

// appendMark appends the number that the mark holds, and how long the mark is to live.
func (p *permits) appendMark(dst []byte) []byte {
	dst = resp.AppendBulkString(dst, p.of[1:])
	return resp.AppendBulkInt(dst, p.life.Milliseconds())
}

func (p *permits) Release(r *Request, g Grant) { Plain{}.Release(r, g) }

func (p *permits) Linger(r *Request, g Grant) { Plain{}.Linger(r, g) }

// Look reads all slots by a script. Of the keys that a script reads, old and new servers track different ones. So
// EXISTS is sent before the script: it reads all slots, too, and every server tracks them.
func (p *permits) Look(r *Request, _ string) {
	r.Judge = JudgeArray
	r.Tracked()
	r.Command = resp.AppendArray(r.Command, 1+p.k)
	r.Command = resp.AppendBulkString(r.Command, "EXISTS")
	names := func(dst []byte) []byte {
		for slot := 1; slot <= p.k; slot++ {
			r.Name = p.appendName(r.Name[:0], slot)
			dst = resp.AppendBulk(dst, r.Name)
		}
		return dst
	}
	r.Command = names(r.Command)
	r.CallOn(slotsScript, p.k, 0, names)
	r.Replies = 3
}

// AppendSlot appends to a token its slot and the number of slots, such as ".3.4". No other part of our tokens
// has a dot.
func AppendSlot(token []byte, slot, of int) []byte {
	token = strconv.AppendInt(append(token, '.'), int64(slot), 10)
	return strconv.AppendInt(append(token, '.'), int64(of), 10)
}

// CutSlot undoes AppendSlot. The slot is 0 if the token has none.
func CutSlot[T string | []byte](token T) (rest T, slot, of int) {
	rest, of = cutNumber(token)
	rest, slot = cutNumber(rest)
	if slot < 1 || slot > of {
		return token, 0, 0
	}
	return rest, slot, of
}

// cutNumber cuts a dot and a number off the end. If they are not there, it returns s and 0.
func cutNumber[T string | []byte](s T) (rest T, n int) {
	const most = 4 // digits
	for i, unit := len(s)-1, 1; i >= max(0, len(s)-1-most); i, unit = i-1, unit*10 {
		switch c := s[i]; {
		case c == '.' && i < len(s)-1 && s[i+1] != '0':
			return s[:i], n
		case c < '0' || c > '9':
			return s, 0
		default:
			n += unit * int(c-'0')
		}
	}
	return s, 0
}
