package tracking

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
)

// KeptLocks are the subscriptions of the locks that are kept alive: once such a lock was held for a while, the
// masters are asked to notify of the next change of its keys. If they do, its holder renews it at once. That is all:
// the renewal finds out what has changed, sets the keys again where a minority has lost them, and finds a loss.
//
// # Whose change it is
//
// A master notifies a client of its own writes, too, and forgets the promise with each notification. So a question
// follows each renewal, in the same burst. An own write, before it is posted, takes note that no master has promised
// anything any more. A master has promised again when its answer to the question comes that was posted after the last
// own write. The notification of that write is before this answer on the connection. What comes after the answer is
// another's change. What another has changed before the question, the renewal before it has found. A fallback can follow
// the question. Then one renewal too many is sent.
//
// # Cost
//
// The questions of a burst are one command for each master (EXISTS). If the burst has many renewals, the masters do not
// notify us of our own writes meanwhile (NOLOOP), which cost a third of a renewal. Listeners miss nothing by that: they
// would only learn that the lock was renewed, and they look again anyway when it would expire. A lock that was not asked
// for before, or not on a new connection, is asked for without a renewal. A script behind the question then compares the
// values, which finds what was lost by then. The values stay on the master: others may keep theirs under a lock's name,
// of any size. A lock that is held for a short time costs nothing.
//
// Readers are left out: each renewal of one changes the key of all others. They would renew without end.
type KeptLocks struct {
	registry *Registry
	masters  int
	heed     func(changes []Change, connected bool)
	running  *sync.WaitGroup
	sleeper  sleeper       // of the goroutine that reads the pushes
	asked    atomic.Uint32 // bursts with questions

	// Guarded by Registry.mu.
	n         int // of subscriptions
	changes   []Change
	refused   mux.Set // masters that have refused the question on this connection
	connected bool    // a master was connected since the goroutine last looked
	listening bool    // the goroutine runs
}

// A KeptLock is that of one lock. It is enough if no quorum may have the lock any more.
type KeptLock struct {
	subscription
	of     *KeptLocks
	whose  any
	keys   [1]interest
	news   mux.Set // masters that have notified, or answered without the token, since the last own write; see hearer
	change int     // changes[change-1] is its own; 0 if it has none there. A master may notify without end.
}

// A Change is one of which masters have notified.
type Change struct {
	Of     any  // whose the lock is, as Add was told
	All    bool // all keys of the master have changed
	Urgent bool // so many masters have changed that no quorum may be left

	of *KeptLock
}

const (
	quietAt = 8 // renewals in a burst

	// A question that has as many is about no further lock.
	maxKeysAsked = 256
	maxAsked     = 64 << 10 // bytes of keys and tokens
)

// These begin and end a quiet burst.
var (
	quiet = resp.AppendCommand(nil, "CLIENT", "TRACKING", "ON", "OPTIN", "NOLOOP")
	loud  = resp.AppendCommand(nil, "CLIENT", "TRACKING", "ON", "OPTIN")
)

// Init makes it ready. heed is called by a goroutine, which runs while there are such locks, and is counted in running: with
// the changes, and with whether a master was connected, so that all locks are to be asked for again.
func (ks *KeptLocks) Init(r *Registry, masters int, heed func(changes []Change, connected bool), running *sync.WaitGroup) {
	ks.registry, ks.masters, ks.heed, ks.running = r, masters, heed, running
	ks.sleeper = newSleeper(r)
	ks.sleeper.op.Patient = true // callers need not be told by this goroutine what the masters have answered
}

// Able returns the masters that can be asked.
func (ks *KeptLocks) Able() mux.Set {
	able := ks.registry.core.Notifying()
	ks.registry.mu.Lock()
	defer ks.registry.mu.Unlock()
	return able &^ ks.refused
}

// Add subscribes to the keys of a lock. Its changes are told as those of whose.
func (ks *KeptLocks) Add(s *KeptLock, whose any, keys []string) {
	s.of, s.whose = ks, whose
	s.hearer, s.kept, s.interests = s, true, s.keys[:0]
	ks.registry.add(&s.subscription, 1, quorum.Spare(ks.masters)+1, keys...)
	ks.registry.mu.Lock()
	defer ks.registry.mu.Unlock()
	ks.n++
	if !ks.listening {
		ks.listening = true
		ks.running.Add(1)
		go ks.listen()
	}
}

// Remove ends a subscription.
func (ks *KeptLocks) Remove(s *KeptLock) {
	ks.registry.mu.Lock()
	ks.registry.remove(&s.subscription)
	ks.n--
	last := ks.n == 0
	ks.registry.mu.Unlock()
	if last {
		ks.sleeper.Wake()
	}
}

// Wrote notes that an own command is about to be posted that writes the keys.
func (s *KeptLock) Wrote() {
	s.of.registry.mu.Lock()
	s.forget()
	s.of.registry.mu.Unlock()
}

// Changed returns the masters that have changed since the last own write: they have notified, or have answered without the
// token.
func (s *KeptLock) Changed() mux.Set {
	s.of.registry.mu.Lock()
	defer s.of.registry.mu.Unlock()
	return s.news
}

// Promised returns the masters that have promised to notify of another's change, since the last own write. Tests ask.
func (s *KeptLock) Promised() mux.Set {
	s.of.registry.mu.Lock()
	defer s.of.registry.mu.Unlock()
	return ^s.untracked
}

func (s *KeptLock) changed(int) *mux.Set { return &s.news }

// told gives a change to the goroutine. Those that it has not taken yet are one.
func (s *KeptLock) told(enough, all bool) {
	if s.change > 0 {
		c := &s.of.changes[s.change-1]
		c.All, c.Urgent = c.All && all, c.Urgent || enough
		return
	}
	s.of.changes = append(s.of.changes, Change{s.whose, all, enough, s})
	s.change = len(s.of.changes)
	s.of.sleeper.wakeInHook()
}

// Connected is called for each new connection, with the mux locked: what the master has promised before has ended with the
// former one.
func (ks *KeptLocks) Connected(master int) {
	ks.registry.mu.Lock()
	defer ks.registry.mu.Unlock()
	ks.refused = ks.refused.Without(master)
	if ks.listening {
		ks.connected = true
		ks.sleeper.wakeInHook()
	}
}

// listen is a goroutine. It sleeps in the mux, and reads the pushes itself if no other goroutine drives.
func (ks *KeptLocks) listen() {
	defer ks.running.Done()
	var changes []Change
	for ks.sleeper.Sleep(context.Background()) == nil {
		ks.registry.mu.Lock()
		connected, over := ks.connected, ks.n == 0
		changes, ks.changes = ks.changes, changes[:0]
		for i := range changes {
			changes[i].of.change = 0
		}
		ks.connected, ks.listening = false, !over
		ks.registry.mu.Unlock()
		if over {
			return
		}
		ks.heed(changes, connected)
		clear(changes)
	}
}

// A question asks masters to notify of changes of the keys of some locks.
type question struct {
	of     *KeptLocks
	op     mux.Op
	number uint32
	values bool // it compares the values; otherwise it follows renewals, which have told what the masters have
	asked  []*KeptLock
	keys   []byte // encoded
	n      int    // number of keys
	tokens []byte // with values: for each lock the number of its keys, and its token, encoded
}

// CompareScript: KEYS the keys of some locks. ARGV for each lock the number of its keys, and its token. It returns for each
// lock 1 if all its keys hold the token, and otherwise 0. Its answer is NOPERM if the user may not call EXISTS: only the last of several
// answers is looked at.
var CompareScript = script.New(`local got = redis.pcall('EXISTS', KEYS[1])
if type(got) == 'table' then
  return redis.error_reply('NOPERM EXISTS: ' .. got.err)
end
local out, i = {}, 0
for a = 1, #ARGV, 2 do
  local ours = 1
  for _ = 1, tonumber(ARGV[a]) do
    i = i + 1
    local v = redis.pcall('GET', KEYS[i])
    ` + script.UnlessForeign + `    if v ~= ARGV[a + 1] then
      ours = 0
    end
  end
  out[#out + 1] = ours
end
return out`)

// prepare encodes the operation. Nobody waits for it: all that matters is the order of each master's answers and
// pushes.
func (q *question) prepare(masters mux.Set, ends bool) *mux.Op {
	op := &q.op
	op.Replies = 2
	if ends {
		op.Command, op.Replies = append(op.Command, loud...), 3
	}
	op.Command = resp.AppendCommand(op.Command, "CLIENT", "CACHING", "YES")
	op.Command = resp.AppendBulkString(resp.AppendArray(op.Command, 1+q.n), "EXISTS")
	op.Command = append(op.Command, q.keys...)
	if q.values { // what a script reads is not tracked alike by all servers, so the promise is that of EXISTS
		op.Replies++
		compare := func(dst []byte, text bool) []byte {
			return append(append(CompareScript.AppendHead(dst, text, q.n, 2*len(q.asked)), q.keys...), q.tokens...)
		}
		op.Command, op.Fallback = compare(op.Command, false), compare(nil, true)
	}
	op.Only, op.Quorum, op.Patient = masters, 1, true
	op.Verdict, op.OnReply = judgeAnswer, q.answer
	return op
}

func judgeAnswer(v resp.Value) mux.Verdict {
	if v.IsError() {
		return kind.JudgeError(v)
	}
	return mux.VerdictYes
}

// answer takes a master's answer. The mux is locked.
func (q *question) answer(master int, v resp.Value) {
	ks := q.of
	ks.registry.mu.Lock()
	defer ks.registry.mu.Unlock()
	if v.IsError() {
		if string(v.ErrorCode()) == "NOPERM" { // it would refuse each question, and note each in its ACL LOG
			ks.refused = ks.refused.With(master)
		}
		return
	}
	ours := v.Elems()
	for _, s := range q.asked {
		there := true
		if q.values {
			one, _ := ours.Next()
			n, _ := one.Int()
			there = n == 1
		}
		switch {
		case s.asked != q.number: // an own write has followed
		case there:
			s.untracked = s.untracked.Without(master)
		case s.note(0, 1<<master, 0):
			s.told(true, false)
		}
	}
}

// Questions are as many as some locks need.
type Questions struct {
	Able   mux.Set // the masters that are asked
	of     *KeptLocks
	number uint32
	values bool
	all    []*question
}

// Questions begins questions. values says that no renewals are before them, so that the values are compared.
func (ks *KeptLocks) Questions(values bool) Questions {
	return Questions{ks.Able(), ks, ks.asked.Add(1), values, nil}
}

// Add adds a lock. It must have that token until the questions are posted.
func (qs *Questions) Add(s *KeptLock, token []byte) {
	var q *question
	if n := len(qs.all); n > 0 {
		q = qs.all[n-1]
	}
	if q == nil || q.n >= maxKeysAsked || len(q.keys)+len(q.tokens) >= maxAsked {
		q = &question{of: qs.of, number: qs.number, values: qs.values}
		qs.all = append(qs.all, q)
	}
	q.asked = append(q.asked, s)
	q.n += len(s.interests)
	qs.of.registry.mu.Lock()
	s.asked = q.number
	for _, in := range s.interests { // others with an interest in the key change whose is next
		q.keys = resp.AppendBulkString(q.keys, in.key)
	}
	qs.of.registry.mu.Unlock()
	if q.values {
		q.tokens = resp.AppendBulk(resp.AppendBulkInt(q.tokens, int64(len(s.interests))), token)
	}
}

// AppendOps appends what is posted behind so many renewals. If a quiet burst is worth it, it also returns what begins
// that. The first question ends it.
func (qs *Questions) AppendOps(dst []*mux.Op, renewals int) (ops []*mux.Op, begin *mux.Op) {
	if len(qs.all) > 0 && renewals >= quietAt {
		begin = &mux.Op{Command: quiet, Only: qs.Able, Quorum: 1, Patient: true, Verdict: judgeAnswer}
	}
	for i, q := range qs.all {
		dst = append(dst, q.prepare(qs.Able, i == 0 && begin != nil))
	}
	return dst, begin
}
