package kind

import (
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
)

// AppendNoticeKey appends the key of the notice that an id has beside its queue.
func AppendNoticeKey(dst, queue, id []byte) []byte {
	return append(append(append(dst, queue...), ':'), id...)
}

// appendAliveKey appends the key that says that an id's waiter is alive.
func appendAliveKey(dst, queue, id []byte) []byte {
	return append(AppendNoticeKey(dst, queue, id), aliveSuffix...)
}

const aliveSuffix = ":alive"

// luaReads is the Lua of a function that says whether an id is a reader's or the mark.
const luaReads = `local function reads(id) return string.sub(id, 1, 2) == 'r:' end
`

// A queue is a sorted set of the waiters' ids, called line in the scripts. The score of an id is above the scores of all
// ids ahead of it. Readers that share a rank have one score. While other readers can join them, [ReaderMark] has that
// score, too.
//
// Each id has two keys beside the queue. One says that its waiter is alive, and is renewed. It holds a note: for how
// long the waiter has waited, in ms, a space, and the waiter's owner. The note is for people. It is empty if it was
// written by a version that wrote none. The other key is the id's notice,
// called bell in the scripts. The notice is there while the successor is subscribed to it, and is deleted when
// either leaves. It is not renewed, as the master would notify of that, too. If it expires, the successor enters
// again. So if both waiters die, a notice is left for a minute at most.
var (
	// KEYS queue. ARGV id, its life in ms, the life of a notice in ms, the note. If the id is not in the queue, the script
	// puts it at the end, or, if it is a reader's, at the rank of the readers. It notes that the waiter is alive,
	// and takes out predecessors that are dead. It returns the predecessor. That is empty if the id is the head, or
	// if it is a reader's and only readers are ahead. If a reader finds the mark gone, or at another rank, its own
	// rank has been at the head already.
	//
	// A member that is longer than any id is no waiter's, and counts as dead: the reply names the predecessor.
	//
	// If the predecessor's entry is alive for longer than an entry's life, the master's clock was set back. The script
	// then gives it that life, and also the entries ahead of it, as their waiters may be dead, too.
	EnterScript = script.New(script.AnyKeys + `local line, me = KEYS[1], ARGV[1]
` + luaReads + `local rank = redis.call('ZRANK', line, me)
if not rank then
  local place = reads(me) and redis.call('ZSCORE', line, 'r:')
    or (redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')[2] or 0) + 1
  if reads(me) then
    redis.call('ZADD', line, place, 'r:')
  end
  redis.call('ZADD', line, place, me)
  rank = redis.call('ZRANK', line, me)
end
redis.call('SET', line .. ':' .. me .. ':alive', ARGV[4] or '', 'PX', ARGV[2])
redis.call('PEXPIRE', line, ARGV[2])
if reads(me) then
  if redis.call('ZSCORE', line, 'r:') ~= redis.call('ZSCORE', line, me) then
    return ''
  end
  rank = redis.call('ZRANK', line, 'r:')
end
for i = rank - 1, 0, -1 do
  local before = redis.call('ZRANGE', line, i, i)[1]
  if reads(me) and reads(before) then
    break
  end
  local bell = line .. ':' .. before
  local left = #before <= 256 and redis.call('PTTL', bell .. ':alive') or -2
  if left ~= -2 then
    redis.call('SET', bell, '', 'PX', ARGV[3], 'NX')
    if left > tonumber(ARGV[2]) then
      for _, id in ipairs(redis.call('ZRANGE', line, 0, i)) do
        redis.call('PEXPIRE', line .. ':' .. id .. ':alive', ARGV[2])
      end
    end
    return before
  end
  redis.call('ZREM', line, before)
  redis.call('DEL', bell)
end
if reads(me) then
  redis.call('ZREM', line, 'r:')
end
return ''`)

	// KEYS queue. ARGV how the ids of a client's writers begin. It returns 1 if the first two in the queue are that
	// client's, or there are none, and otherwise 0.
	FirstScript = script.New(`for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, 1)) do
  if string.sub(id, 1, #ARGV[1]) ~= ARGV[1] then
    return 0
  end
end
return 1`)

	// KEYS queue, notice, alive. ARGV id. The script takes the id out of the queue. If no reader is left at the rank
	// that can still be joined, it takes the mark out, too. It also deletes the predecessor's notice: no other waiter
	// is subscribed to it, and the predecessor may be dead.
	LeaveScript = script.New(script.AnyKeys + `local line, rank = KEYS[1], redis.call('ZRANK', KEYS[1], ARGV[1])
` + luaReads + `redis.call('DEL', KEYS[2], KEYS[3])
local stood = redis.call('ZREM', line, ARGV[1])
local mark = reads(ARGV[1]) and redis.call('ZRANK', line, 'r:')
if mark and not reads(redis.call('ZRANGE', line, mark + 1, mark + 1)[1] or '') then
  redis.call('ZREM', line, 'r:')
  rank = mark
end
if rank and rank > 0 then
  local before = redis.call('ZRANGE', line, rank - 1, rank - 1)[1]
  redis.call('DEL', line .. ':' .. before)
end
return stood`)

	// KEYS queue. ARGV id. It returns the place of the id, from 1 on, and how many are in the queue. Readers that share
	// a rank have one place, and the mark has none. Both are 0 if the id is not in the queue. The commands are those of
	// the enter script, so that no user lacks the right to another.
	PlaceScript = script.NewRare(`local line, me = KEYS[1], ARGV[1]
` + luaReads + `local function rank(id)
  return redis.call('ZRANK', line, id)
end
local place, mark = rank(me), rank('r:')
if not place then
  return {0, 0}
end
local n = rank(redis.call('ZRANGE', line, -1, -1)[1]) + (mark and 0 or 1)
if not reads(me) then
  place = place - (mark and mark < place and 1 or 0)
elseif mark and redis.call('ZSCORE', line, 'r:') == redis.call('ZSCORE', line, me) then
  place = mark
else
  place = 0
end
return {place + 1, n}`)
)

// NoticeLife is how long a notice lives. It is not renewed.
const NoticeLife = time.Minute

// judgeEnter judges the enter script: an id is a yes, even if it is empty.
func judgeEnter(v resp.Value) mux.Verdict {
	if v.Kind() == resp.BulkString {
		return mux.VerdictYes
	}
	return JudgeError(v)
}

// BeginRenewals makes the request one that renews entries.
func BeginRenewals(r *Request) {
	r.Reset()
	r.Judge = JudgeInt
}

// AppendRenewal appends the renewal of one entry.
func AppendRenewal(r *Request, queue, id []byte, waited time.Duration, owner string) {
	life := EntryLife.Milliseconds()
	r.Name = appendAliveKey(r.Name[:0], queue, id)
	r.Command = resp.AppendArray(r.Command, 5)
	r.Command = resp.AppendBulkString(r.Command, "SET")
	r.Command = resp.AppendBulk(r.Command, r.Name)
	r.Name = AppendNote(r.Name[:0], waited, owner)
	r.Command = resp.AppendBulk(r.Command, r.Name)
	r.Command = resp.AppendBulkString(r.Command, "PX")
	r.Command = resp.AppendBulkInt(r.Command, life)
	r.Command = resp.AppendArray(r.Command, 3)
	r.Command = resp.AppendBulkString(r.Command, "PEXPIRE")
	r.Command = resp.AppendBulk(r.Command, queue)
	r.Command = resp.AppendBulkInt(r.Command, life)
	r.Replies += 2
}

// EnterQueue makes the request one of the enter script.
func EnterQueue(r *Request, queue, id []byte, waited time.Duration, owner string) {
	r.Name = AppendNote(r.Name[:0], waited, owner)
	r.Reset()
	r.Judge = judgeEnter
	r.CallOn(EnterScript, 1, 4, func(dst []byte) []byte {
		dst = resp.AppendBulk(dst, queue)
		dst = resp.AppendBulk(dst, id)
		dst = resp.AppendBulkInt(dst, EntryLife.Milliseconds())
		dst = resp.AppendBulkInt(dst, NoticeLife.Milliseconds())
		return resp.AppendBulk(dst, r.Name)
	})
}

// AskPlace makes the request one of the place script. It sends the script as text: a leave follows, and would come before
// the text if the master did not know the hash.
func AskPlace(r *Request, queue, id []byte) {
	r.Reset()
	r.Judge = JudgeArray
	r.Command = resp.AppendBulk(resp.AppendBulk(PlaceScript.AppendHead(r.Command, true, 1, 1), queue), id)
}

// AskOthers makes the request one of the first script, for the queue of one of a lock's names. tag begins the ids of the
// client's writers.
func AskOthers(r *Request, name string, tag []byte) {
	r.Reset()
	r.Name = AppendQueueKey(r.Name[:0], name)
	r.Judge = JudgeOne
	r.CallOn(FirstScript, 1, 1, func(dst []byte) []byte { return resp.AppendBulk(resp.AppendBulk(dst, r.Name), tag) })
}

// LeaveQueue makes the request one of the leave script.
func LeaveQueue(r *Request, queue, id []byte) {
	alive := appendAliveKey(r.Name[:0], queue, id)
	r.Name = alive
	notice := alive[:len(alive)-len(aliveSuffix)]
	r.Reset()
	r.Judge = JudgeInt
	r.CallOn(LeaveScript, 3, 1, func(dst []byte) []byte {
		dst = resp.AppendBulk(dst, queue)
		dst = resp.AppendBulk(dst, notice)
		dst = resp.AppendBulk(dst, alive)
		return resp.AppendBulk(dst, id)
	})
}
