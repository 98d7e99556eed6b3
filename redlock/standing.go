package redlock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp"
)

// standings is how waiters of all processes stand in a line for a lock. The first of each client's own
// line (lines) does. It has an entry on one master, the first in the key's ranking that can tell of
// changes. That master tells it of the end of the entry before it, and not of the lock's. Only the first
// of the line watches the lock on all masters, and tries for it. So one release wakes one waiter,
// whoever waits for longest has the lock next, and the commands for one lock do not grow with the
// number of those who wait.
//
// The line is a courtesy: no exclusion depends on it. TryLock, the first attempt of a Lock, a hand-over
// within a client, and other libraries pass it by. A waiter that gets no answer from the line's master
// contends as if there were no line, for [standPause]. If that master is lost, or clients see different
// masters up, there are two lines for a moment and two contenders, and the quorum decides.
//
// An entry is renewed while its waiter waits, and counts for [standLife] after that has died. A waiter
// that is the first and finds no quorum goes to the end: others may see more masters than it does.
//
// A waiter for several keys stands in the line of one after the other, in their order: in the next only
// while it is the first of those before. So no two wait for each other.
//
// Readers have one place in the line, all of them together. The first that comes takes it at the end, and
// the others join it. When no writer stands before it they are all the first, and can all have the lock.
// From then on it is closed: a reader that comes later takes a new one. Otherwise readers that come and go
// and never have the lock, as they see too few masters, could keep it for ever. A reader enters the line when
// it was refused, and not before: among readers it needs no place.
//
// The entries of those who are the first are renewed together, by a timer: so few writes do for all of
// them, and nobody is woken. Those who stand behind renew theirs themselves, as they want the answer:
// the entry before may have died.
type standings struct {
	core    *core
	watches *watches
	without []atomic.Int64 // for each master, until when its lines are not used

	mu     sync.Mutex // under it only the lock of the mux is taken
	firsts map[*standing]*watch
	timer  *time.Timer   // of renewals; nil if nobody ever was the first
	many   int           // who have a spot
	gone   chan struct{} // of a client that is being closed: closed when nobody has; nil before
}

const (
	standLife   = 3 * time.Second
	standPause  = time.Second            // between two renewals
	standBrief  = 250 * time.Millisecond // the least time for a question: who waits has it
	standTries  = 3                      // questions to one line, if the entries before it end meanwhile
	standBatch  = 64 << 10               // bytes above which no more entries are renewed by one operation
	standLinger = 100 * time.Millisecond // how long Close waits for those who stand in line
	refusedLine = time.Minute            // how long to avoid the lines of a master that has refused them
)

// A standing is a waiter's place in the lines. The zero value is none.
type standing struct {
	id     []byte
	ahead  []byte        // the id before it in the line that it entered last; empty if it is the first
	bell   []byte        // ... and its bell
	spots  []spot        // in the line of each of the lock's names, as far as it has come
	first  bool          // in all of them; its spots do not change before it stands anew, or leaves
	moved  atomic.Bool   // ... and a line has another master now
	before string        // the bell of the entry that it waits for; empty if it watches none
	idle   time.Duration // it does not stand in line before then
}

// A spot is its place in the line of one of the lock's names.
type spot struct {
	name   string
	line   []byte
	master int
}

// add adds a spot, in the memory of one that was there before.
func (s *standing) add(name string, master int) {
	if n := len(s.spots); n < cap(s.spots) {
		s.spots = s.spots[:n+1]
	} else {
		s.spots = append(s.spots, spot{})
	}
	at := &s.spots[len(s.spots)-1]
	at.name, at.line, at.master = name, appendLineKey(at.line[:0], name), master
}

// appendLineKey appends the key of the line of one of a lock's names: {key}:line, and {key}:permit:line
// for permits.
func appendLineKey(dst []byte, name string) []byte {
	if strings.HasPrefix(name, "{") && strings.HasSuffix(name, slotInfix) {
		return append(append(dst, name...), "line"...)
	}
	return append(append(append(dst, '{'), name...), "}:line"...)
}

// appendBellKey and appendAliveKey append the keys that an id has beside its line.
func appendBellKey(dst, line, id []byte) []byte {
	return append(append(append(dst, line...), ':'), id...)
}

func appendAliveKey(dst, line, id []byte) []byte {
	return append(appendBellKey(dst, line, id), aliveSuffix...)
}

const aliveSuffix = ":alive"

// readerMark begins the ids of readers, and is the mark of the place that readers have in a line. No other id
// has a colon.
const readerMark = "r:"

// luaReads is the Lua that says whether an id is a reader's, or the mark.
const luaReads = `local function reads(id) return string.sub(id, 1, 2) == 'r:' end
`

// A line is a sorted set of the ids of those who stand in it, each with a number above all before it.
// Readers who have a place together have one number. While others can join them, [readerMark] has it, too.
// Each id has two keys beside it. One says that its waiter is alive, and is renewed. The other is its
// bell: it is there while another stands behind it and watches it, and is deleted when either leaves. It is
// not renewed, as the master would tell of that, too. If it expires, whoever watches it asks again. So of two
// who both die, a bell is left for a minute at most.
var (
	// KEYS line. ARGV id, its life in ms, the life of a bell in ms. The script puts the id at the end, or
	// a reader's where readers wait, unless it stands in the line. It notes that it is alive, and returns
	// the id before it: empty if it is the first, and of a reader if none but readers are before it. It
	// takes out those before it that are dead. If a reader finds the mark gone, or another's, then its
	// place was the first already. Where one is said to be alive for longer than an entry's life, the
	// master's clock was set back since. From now on it has that life, and so have those before it, as they
	// may be dead, too.
	standScript = newScript(`local line, me = KEYS[1], ARGV[1]
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
redis.call('SET', line .. ':' .. me .. ':alive', '', 'PX', ARGV[2])
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
  local left = redis.call('PTTL', bell .. ':alive')
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

	// KEYS line, bell, alive. ARGV id. The last of the readers that could still be joined takes the mark
	// along. The bell of the id before it goes, too: nobody else watches that, and its owner may be dead.
	leaveScript = newScript(`local line, rank = KEYS[1], redis.call('ZRANK', KEYS[1], ARGV[1])
` + luaReads + `redis.call('DEL', KEYS[2], KEYS[3])
local stood = redis.call('ZREM', line, ARGV[1])
local mark = reads(ARGV[1]) and redis.call('ZRANK', line, 'r:')
if mark and not reads(redis.call('ZRANGE', line, mark + 1, mark + 1)[1] or '') then
  redis.call('ZREM', line, 'r:')
  rank = mark
end
if rank and rank > 0 then
  redis.call('DEL', line .. ':' .. redis.call('ZRANGE', line, rank - 1, rank - 1)[1])
end
return stood`)
)

const bellLife = time.Minute

// judgeStand judges the stand script: an id, or none, is a yes.
func judgeStand(v resp.Value) mux.Verdict {
	if v.Kind() == resp.BulkString {
		return mux.VerdictYes
	}
	return judgeError(v)
}

func (ss *standings) init(c *core, ws *watches, masters int) {
	ss.core, ss.watches, ss.without = c, ws, make([]atomic.Int64, masters)
}

// stand puts a waiter into the lines of these names, or renews its entries. It reports whether the
// waiter may contend: it is the first of all, or there is no line. If not, the end of the entry before
// it is told to its watch. The error is that of a context or a client that has ended.
func (ss *standings) stand(ctx context.Context, s *standing, w *watch, reader bool, names []string) (bool, error) {
	ss.step(s, nil)
	if len(s.id) == 0 { // a new one each time: a leave that is late must not end a later entry
		if reader {
			s.id = append(s.id, readerMark...)
		}
		s.id = appendToken(s.id, "")
	}
	for i, name := range names {
		err := ss.enter(ctx, s, i, name)
		for tries := 0; err == nil && len(s.ahead) > 0; tries++ {
			ss.leaveFrom(s, i+1) // or another could wait for it there that it waits for here
			if tries == standTries {
				err = errNoLine
				break
			}
			there, lost := ss.await(ctx, s, w, i)
			if there {
				return false, nil
			}
			if err = lost; err == nil {
				err = ss.enter(ctx, s, i, name)
			}
		}
		if err == errNoLine {
			ss.leave(s)
			s.idle = ss.core.now() + standPause
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	ss.forget(s)
	ss.step(s, w)
	return true, nil
}

// step makes a waiter one of those who are the first, or, without a watch, none of them.
func (ss *standings) step(s *standing, w *watch) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	s.first = w != nil
	if w == nil {
		delete(ss.firsts, s)
		return
	}
	if ss.firsts == nil {
		ss.firsts = map[*standing]*watch{}
		ss.timer = time.AfterFunc(standPause, ss.renew)
	} else if len(ss.firsts) == 0 {
		ss.timer.Reset(standPause)
	}
	ss.firsts[s] = w
}

// errNoLine says that the master of a line does not serve it.
var errNoLine = errors.New("redlock: no line")

// enter puts the waiter into one line, or renews its entry, and notes the id before it. errNoLine and
// those of a context or a client that has ended are the errors.
func (ss *standings) enter(ctx context.Context, s *standing, i int, name string) error {
	c := ss.core
	master, ok := ss.keeper(name)
	if !ok {
		return errNoLine
	}
	if i == len(s.spots) {
		if i == 0 && !ss.arrive() {
			return mux.ErrClosed
		}
		s.add(name, master)
	}
	at := &s.spots[i]
	if at.master != master { // another has come up, or is up no more
		ss.end(at, s.id)
		ss.forget(s)
		at.master = master
	}
	k := c.takeCall()
	defer c.putCall(k)
	k.stand(at.line, s.id)
	v, err := ss.ask(ctx, k, master)
	if err != nil {
		return err
	}
	s.ahead = append(s.ahead[:0], v.Reply.Bytes()...)
	v.Reply = resp.Value{}
	return nil
}

// renew renews the entries of those who are the first. It waits for no answer: they contend, whatever
// the lines say. Whoever has an entry where it should not be is woken.
func (ss *standings) renew() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if len(ss.firsts) == 0 {
		return
	}
	ss.timer.Reset(standPause)
	c := ss.core
	r := c.takeRoster()
	defer c.putRoster(r)
	for s, w := range ss.firsts {
		for i := range s.spots {
			at := &s.spots[i]
			if master, ok := ss.keeperOf(at.name, r.states); !ok || master != at.master {
				s.moved.Store(true)
				w.wake()
				break
			}
		}
	}
	k := c.takeCall()
	defer c.putCall(k)
	for master := range r.states {
		k.lives()
		for s := range ss.firsts {
			for i := range s.spots {
				if at := &s.spots[i]; at.master == master {
					k.live(at.line, s.id)
				}
				if len(k.request.command) > standBatch {
					ss.send(k, master, 0)
					k.lives()
				}
			}
		}
		if k.request.replies > 0 {
			ss.send(k, master, 0)
		}
	}
}

// send sends a request to one master, and waits for no answer. If persist is not zero, it is delivered
// within that time though the master is away.
func (ss *standings) send(k *call, master int, persist time.Duration) {
	k.prepare(0)
	k.op.Only, k.op.Quorum, k.op.Persist = mux.Set(0).With(master), 1, persist
	ss.core.rounds.Send(&k.op)
}

// lives makes the call one that says who is alive, and live appends one waiter.
func (k *call) lives() {
	k.request.reset()
	k.request.judge = judgeInt
}

func (k *call) live(line, id []byte) {
	r, life := &k.request, standLife.Milliseconds()
	k.key = appendAliveKey(k.key[:0], line, id)
	r.command = resp.AppendArray(r.command, 5)
	r.command = resp.AppendBulkString(r.command, "SET")
	r.command = resp.AppendBulk(r.command, k.key)
	r.command = resp.AppendBulkString(r.command, "")
	r.command = resp.AppendBulkString(r.command, "PX")
	r.command = resp.AppendBulkInt(r.command, life)
	r.command = resp.AppendArray(r.command, 3)
	r.command = resp.AppendBulkString(r.command, "PEXPIRE")
	r.command = resp.AppendBulk(r.command, line)
	r.command = resp.AppendBulkInt(r.command, life)
	r.replies += 2
}

// stand makes the call one of the stand script.
func (k *call) stand(line, id []byte) {
	k.request.reset()
	k.request.judge = judgeStand
	k.request.callOn(standScript, 1, 3, func(dst []byte) []byte {
		dst = resp.AppendBulk(dst, line)
		dst = resp.AppendBulk(dst, id)
		dst = resp.AppendBulkInt(dst, standLife.Milliseconds())
		return resp.AppendBulkInt(dst, bellLife.Milliseconds())
	})
}

// leaveLine makes the call one of the leave script.
func (k *call) leaveLine(line, id []byte) {
	k.key = appendAliveKey(k.key[:0], line, id)
	alive, bell := k.key, k.key[:len(k.key)-len(aliveSuffix)]
	k.request.reset()
	k.request.judge = judgeInt
	k.request.callOn(leaveScript, 3, 1, func(dst []byte) []byte {
		dst = resp.AppendBulk(dst, line)
		dst = resp.AppendBulk(dst, bell)
		dst = resp.AppendBulk(dst, alive)
		return resp.AppendBulk(dst, id)
	})
}

// keeper returns the master that has a key's line, for all who see the same masters. It is false if
// none has, or if that one does not serve lines.
func (ss *standings) keeper(name string) (master int, ok bool) {
	r := ss.core.takeRoster()
	defer ss.core.putRoster(r)
	return ss.keeperOf(name, r.states)
}

func (ss *standings) keeperOf(name string, states []mux.State) (master int, ok bool) {
	best := uint64(0)
	for i := range states {
		s := &states[i]
		if !tells(s) {
			continue
		}
		if h := rank(name, s); !ok || h < best {
			master, best, ok = i, h, true
		}
	}
	return master, ok && ss.core.now() >= time.Duration(ss.without[master].Load())
}

// await watches the bell of the id before the waiter (standing.ahead). It reports whether the bell is there, and so will
// be told of. The errors are those of enter.
func (ss *standings) await(ctx context.Context, s *standing, w *watch, i int) (there bool, err error) {
	at := &s.spots[i]
	s.bell = appendBellKey(s.bell[:0], at.line, s.ahead)
	if s.before == string(s.bell) {
		return true, nil // as was promised
	}
	ss.forget(s)
	s.before = string(s.bell)
	ss.watches.add(w, 1, 1, s.before)
	k := ss.core.takeCall()
	defer ss.core.putCall(k)
	k.request.reset()
	plain{}.look(&k.request, s.before)
	v, err := ss.ask(ctx, k, at.master)
	if err == nil && v.Verdict == VerdictNo {
		return true, nil
	}
	ss.forget(s)
	return false, err
}

// ask asks one master, briefly. It returns errNoLine if that gives no answer.
func (ss *standings) ask(ctx context.Context, k *call, master int) (*mux.Vote, error) {
	c := ss.core
	k.prepare(c.brief(standPause/2, standBrief))
	k.op.Only, k.op.Quorum, k.op.Keep = mux.Set(0).With(master), 1, true
	if err := c.do(ctx, k); err != nil && err != mux.ErrTimeout {
		return nil, err
	}
	v := &k.op.Votes[master]
	if v.Verdict == VerdictYes || v.Verdict == VerdictNo {
		return v, nil
	}
	var reply *mux.ReplyError
	switch {
	case v.Err != nil && permanent(v.Err): // one line in its ACL LOG is enough
		ss.without[master].Store(int64(c.now() + refusedLine))
	case !errors.As(v.Err, &reply): // else it is this line's matter: a key of the wrong type is there
		ss.without[master].Store(int64(c.now() + standPause))
	}
	return nil, errNoLine
}

// forget ends the watch of the entry before.
func (ss *standings) forget(s *standing) {
	if s.before != "" {
		ss.watches.remove(s.before)
		s.before = ""
	}
}

// leave has the waiter leave all lines, if it stands in any, and waits for no answer.
func (ss *standings) leave(s *standing) {
	if len(s.spots) == 0 {
		return
	}
	ss.forget(s)
	ss.step(s, nil)
	ss.leaveFrom(s, 0)
}

func (ss *standings) leaveFrom(s *standing, i int) {
	if i < len(s.spots) {
		for j := range s.spots[i:] {
			ss.end(&s.spots[i+j], s.id)
		}
		s.spots = s.spots[:i]
		if i == 0 {
			s.id = s.id[:0]
			ss.depart()
		}
	}
}

// arrive and depart count who has a spot. arrive is false if the client is being closed.
func (ss *standings) arrive() bool {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.gone != nil {
		return false
	}
	ss.many++
	return true
}

func (ss *standings) depart() {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.many--; ss.many == 0 && ss.gone != nil {
		close(ss.gone)
	}
}

// close waits until nobody has a spot, but not for long: an Observer or a context can keep them, and
// the entries end by themselves.
func (ss *standings) close() {
	ss.mu.Lock()
	if ss.gone != nil {
		ss.mu.Unlock()
		return
	}
	ss.gone = make(chan struct{})
	if ss.many == 0 {
		close(ss.gone)
	}
	ss.mu.Unlock()
	select {
	case <-ss.gone:
	case <-time.After(standLinger):
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if ss.timer != nil {
		ss.timer.Stop()
	}
}

// end ends an entry, also of a client that is being closed. After its life it has ended anyway.
func (ss *standings) end(at *spot, id []byte) {
	c := ss.core
	k := c.takeCall()
	defer c.putCall(k)
	k.leaveLine(at.line, id)
	ss.send(k, at.master, standLife)
}
