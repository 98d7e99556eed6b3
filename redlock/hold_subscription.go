package redlock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/resp"
)

// heldSubscriptions are the subscriptions of the locks that are kept alive: once such a lock was held for a while, the
// masters are asked to notify of the next change of its keys. If they do, the lock is renewed at once. That is all:
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
// # Storms
//
// A lock is renewed at most once in notifyPause for this reason. The pause doubles, up to the time between two
// renewals, while masters notify of nothing that the renewal finds: two processes may keep one token alive, or a
// master's table of promises is full (tracking-table-max-keys), so that each promise ends another. When all keys of a
// master have changed (FLUSHALL), the renewals are spread.
//
// Readers are left out: each renewal of one changes the key of all others. They would renew without end.
type heldSubscriptions struct {
	core    *core
	heed    func(changes []change, connected bool) // renewer.heed
	running *sync.WaitGroup
	sleeper sleeper       // of the goroutine that reads the pushes and has the locks renewed
	asked   atomic.Uint32 // bursts with questions

	// Guarded by notices.mu.
	n         int // of subscriptions
	changes   []change
	refused   mux.Set // masters that have refused the question on this connection
	connected bool    // a master was connected since the goroutine last looked
	listening bool    // the goroutine runs
}

// A heldSubscription is that of one lock. It is enough if no quorum may have the lock any more.
type heldSubscription struct {
	subscription
	of        *heldSubscriptions
	keepAlive *keepAlive // that has asked
	keys      [1]interest
	news      mux.Set // masters that have notified, or answered without the token, since the last own write; see hearer
	change    int     // changes[change-1] is its own; 0 if it has none there. A master may notify without end.

	// Guarded by renewer.mu.
	wantedAt time.Duration // when the lock is to be renewed because of a change; 0 if there was none
	notUntil time.Duration // ... but not before then
	pause    time.Duration // between two such renewals
}

// A change is one of which masters have notified.
type change struct {
	of     *heldSubscription
	all    bool // all keys of the master have changed
	urgent bool // so many masters have changed that no quorum may be left
}

const (
	notifyAfter = 100 * time.Millisecond // for how long a lock is held before the masters are asked to notify
	notifyGrid  = 10 * time.Millisecond  // so that questions share a burst

	// After the first notification the others are waited for, unless no quorum may be left. If some masters have
	// lost the key because all are losing it, a renewal in between would set it again on those.
	gatherFor = 20 * time.Millisecond

	spreadEach = 100 * time.Microsecond // for each lock, when all are to be renewed or asked for

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

func (hs *heldSubscriptions) init(c *core, heed func([]change, bool), running *sync.WaitGroup) {
	hs.core, hs.heed, hs.running = c, heed, running
	hs.sleeper = newSleeper(c)
	hs.sleeper.op.Patient = true // callers need not be told by this goroutine what the masters have answered
}

// askFrom returns when the masters may be asked to notify of changes of a lock that was taken then.
func askFrom(takenAt time.Duration) time.Duration {
	return (takenAt + notifyAfter + notifyGrid - 1).Truncate(notifyGrid)
}

// able returns the masters that can be asked.
func (hs *heldSubscriptions) able() mux.Set {
	able := hs.core.round.Notifying()
	hs.core.notices.mu.Lock()
	defer hs.core.notices.mu.Unlock()
	return able &^ hs.refused
}

// add subscribes to the keys of a lock. The locks of the renewer and of the hold are held.
func (hs *heldSubscriptions) add(k *keepAlive) *heldSubscription {
	s := &heldSubscription{of: hs, keepAlive: k, pause: notifyPause}
	s.hearer, s.kept, s.interests = s, true, s.keys[:0]
	k.subscription = s
	n := len(hs.core.masters)
	hs.core.notices.add(&s.subscription, 1, n-quorum.Majority(n)+1, k.hold.spec.KeysOf(k.hold.token())...)
	hs.core.notices.mu.Lock()
	defer hs.core.notices.mu.Unlock()
	hs.n++
	if !hs.listening {
		hs.listening = true
		hs.running.Add(1)
		go hs.listen()
	}
	return s
}

// remove ends a subscription. renewer.mu is held.
func (hs *heldSubscriptions) remove(s *heldSubscription) {
	hs.core.notices.mu.Lock()
	hs.core.notices.remove(&s.subscription)
	hs.n--
	last := hs.n == 0
	hs.core.notices.mu.Unlock()
	if last {
		hs.sleeper.wake()
	}
}

// wrote notes that an own command is about to be posted that writes the keys.
func (s *heldSubscription) wrote() {
	s.of.core.notices.mu.Lock()
	s.forget()
	s.of.core.notices.mu.Unlock()
}

func (s *heldSubscription) changed(int) *mux.Set { return &s.news }

// told gives a change to the goroutine. Those that it has not taken yet are one.
func (s *heldSubscription) told(enough, all bool) {
	if s.change > 0 {
		c := &s.of.changes[s.change-1]
		c.all, c.urgent = c.all && all, c.urgent || enough
		return
	}
	s.of.changes = append(s.of.changes, change{s, all, enough})
	s.change = len(s.of.changes)
	s.of.sleeper.wakeInHook()
}

// wasConnected is called for each new connection: what the master has promised before has ended with the former one.
func (hs *heldSubscriptions) wasConnected(master int) {
	hs.core.notices.mu.Lock()
	defer hs.core.notices.mu.Unlock()
	hs.refused = hs.refused.Without(master)
	if hs.listening {
		hs.connected = true
		hs.sleeper.wakeInHook()
	}
}

// listen is a goroutine. It sleeps in the mux, and reads the pushes itself if no other goroutine drives.
func (hs *heldSubscriptions) listen() {
	defer hs.running.Done()
	var changes []change
	for hs.sleeper.sleep(context.Background()) == nil {
		hs.core.notices.mu.Lock()
		connected, over := hs.connected, hs.n == 0
		changes, hs.changes = hs.changes, changes[:0]
		for i := range changes {
			changes[i].of.change = 0
		}
		hs.connected, hs.listening = false, !over
		hs.core.notices.mu.Unlock()
		if over {
			return
		}
		hs.heed(changes, connected)
		clear(changes)
	}
}

// begin notes that a renewal is about to be posted, and returns the masters whose notifications are its reason, if
// they are. renewer.mu is held.
func (s *heldSubscription) begin(now time.Duration) (reason mux.Set) {
	if s.wantedAt != 0 && now >= s.wantedAt {
		if now-s.notUntil >= s.pause { // there was no change for a while
			s.pause = notifyPause
		}
		s.notUntil = now + s.pause
		s.of.core.notices.mu.Lock()
		reason = s.news
		s.of.core.notices.mu.Unlock()
		s.of.core.stats.renewalsNotified.Add(1)
	}
	s.wantedAt = 0
	return reason
}

// end notes the votes of a renewal for that reason. The pause grows if a master has notified and had the lock all the
// same. renewer.mu is held.
func (s *heldSubscription) end(reason mux.Set, votes []mux.Vote) {
	yes, no := false, false
	for i := range votes {
		if reason.Has(i) {
			yes = yes || votes[i].Verdict == mux.VerdictYes
			no = no || votes[i].Verdict == mux.VerdictNo
		}
	}
	switch {
	case no:
		s.pause = notifyPause
	case yes:
		s.notUntil += s.pause
		s.pause = min(2*s.pause, s.keepAlive.hold.spec.Term.TTL/quorum.RenewAfter)
	}
}

// A holdersQuestion asks masters to notify of changes of the keys of some locks.
type holdersQuestion struct {
	of     *heldSubscriptions
	op     mux.Op
	number uint32
	values bool // it compares the values; otherwise it follows renewals, which have told what the masters have
	asked  []*heldSubscription
	keys   []byte // encoded
	n      int    // number of keys
	tokens []byte // with values: for each lock the number of its keys, and its token, encoded
}

// KEYS the keys of some locks. ARGV for each lock the number of its keys, and its token. It returns for each lock 1 if all
// its keys hold the token, and otherwise 0. Its answer is NOPERM if the user may not call EXISTS: only the last of several
// answers is looked at.
var compareScript = script.New(`local got = redis.pcall('EXISTS', KEYS[1])
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
func (q *holdersQuestion) prepare(masters mux.Set, ends bool) *mux.Op {
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
			return append(append(compareScript.AppendHead(dst, text, q.n, 2*len(q.asked)), q.keys...), q.tokens...)
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
func (q *holdersQuestion) answer(master int, v resp.Value) {
	hs := q.of
	hs.core.notices.mu.Lock()
	defer hs.core.notices.mu.Unlock()
	if v.IsError() {
		if string(v.ErrorCode()) == "NOPERM" { // it would refuse each question, and note each in its ACL LOG
			hs.refused = hs.refused.With(master)
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

// questions are as many as some locks need.
type questions struct {
	of     *heldSubscriptions
	number uint32
	values bool
	able   mux.Set // the masters that are asked
	all    []*holdersQuestion
}

func (hs *heldSubscriptions) questions(values bool) questions {
	return questions{hs, hs.asked.Add(1), values, hs.able(), nil}
}

// add adds a lock, whose mu is held.
func (qs *questions) add(s *heldSubscription) {
	var q *holdersQuestion
	if n := len(qs.all); n > 0 {
		q = qs.all[n-1]
	}
	if q == nil || q.n >= maxKeysAsked || len(q.keys)+len(q.tokens) >= maxAsked {
		q = &holdersQuestion{of: qs.of, number: qs.number, values: qs.values}
		qs.all = append(qs.all, q)
	}
	q.asked = append(q.asked, s)
	q.n += len(s.interests)
	qs.of.core.notices.mu.Lock()
	s.asked = q.number
	for _, in := range s.interests { // others with an interest in the key change whose is next
		q.keys = resp.AppendBulkString(q.keys, in.key)
	}
	qs.of.core.notices.mu.Unlock()
	if q.values {
		q.tokens = resp.AppendBulk(resp.AppendBulkInt(q.tokens, int64(len(s.interests))), s.keepAlive.hold.token())
	}
}

// appendOps appends what is posted behind so many renewals. If a quiet burst is worth it, it also returns what begins
// that. The first question ends it.
func (qs *questions) appendOps(dst []*mux.Op, renewals int) (ops []*mux.Op, begin *mux.Op) {
	if len(qs.all) > 0 && renewals >= quietAt {
		begin = &mux.Op{Command: quiet, Only: qs.able, Quorum: 1, Patient: true, Verdict: judgeAnswer}
	}
	for i, q := range qs.all {
		dst = append(dst, q.prepare(qs.able, i == 0 && begin != nil))
	}
	return dst, begin
}
