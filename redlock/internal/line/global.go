package line

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/internal/tracking"
	"github.com/redburst/redburst/resp"
)

// GlobalQueues are the queues in which waiters of all processes wait for locks, one for each key. The head of each
// client's local queue enters the global queue. Its entry is on one master, the queue master: the first in the key's
// order of masters (weight) that can notify of changes. The queue master notifies a waiter when the entry of its
// predecessor ends, and not when the lock ends. Only the head of the queue subscribes to the lock on all masters,
// and tries to take it. So one release wakes one waiter, the waiter that came first gets the lock next, and the
// number of commands for one lock does not grow with the number of waiters.
//
// The queue is a courtesy: no exclusion depends on it. TryLock, the first attempt of a Lock, a hand-over
// within a client, and other libraries bypass it. A waiter that gets no answer from the queue master
// contends as if there were no queue, for [EntryPause], and keeps its place meanwhile. If that master is lost, or
// if clients see different masters up, there are two queues for a moment and two contenders. The quorum decides
// between them.
//
// An entry is renewed while its waiter waits. It ends at most [kind.EntryLife] after the waiter has died. A waiter at the
// head that finds no quorum goes to the end, as others may see more masters than it does.
//
// A waiter for several keys enters their queues one after the other, in the order of the keys. It enters the next
// queue only while it is at the head of the queues before. So no two waiters wait for each other.
//
// All waiting readers share one rank in the queue. The first reader takes a rank at the end, and the others join it.
// When no writer is ahead, all of them are at the head, and can all have the lock. From then on the rank is closed:
// a reader that comes later takes a new rank. Otherwise readers that come and go, but see too few masters to take
// the lock, could keep the rank at the head for ever. A reader enters the queue only when it was refused: beside
// readers alone it needs no entry.
//
// A timer renews the entries of all heads together, with few writes and without waking a waiter. The other waiters
// renew their own entries, as they need the answer: the predecessor may have died.
type GlobalQueues struct {
	core       *Core
	avoidUntil []atomic.Int64 // for each master, until when its queues are not used
	tag        []byte         // begins the ids of this client's writers

	mu      sync.Mutex // under it only the lock of the mux is taken
	heads   map[*Waiter]struct{}
	timer   *time.Timer   // renews the entries of the heads; nil if no waiter was ever at the head
	queued  int           // the number of waiters that have an entry
	drained chan struct{} // made when the client is being closed, and closed when queued is 0; nil before
}

// EntryPause is the time between two renewals of an entry, and for how long a waiter does without the queue.
const EntryPause = time.Second

const (
	minQueueTimeout = 250 * time.Millisecond // the least timeout of a question: a waiter has the time
	enterTries      = 3                      // how often a waiter enters one queue again, if predecessors end meanwhile
	renewalBatch    = 64 << 10               // bytes of one operation above which the next renewals go into another
	closeLinger     = 100 * time.Millisecond // the longest that Close waits for the waiters to leave
	refusedPause    = time.Minute            // how long to avoid the queues of a master that has refused them
	tagLength       = 8                      // characters: few enough for the wire, and enough to tell clients apart
)

// A ticket is what a waiter has in the global queues. The zero value has no entries.
type ticket struct {
	id                []byte             // in all queues
	predecessor       []byte             // the id ahead of it in the queue that it entered last; empty if it is the head
	predecessorNotice []byte             // buffer for the key of the predecessor's notice
	awaited           []byte             // the key of the notice whose end it has waited for last; it does not change while it does
	entries           []entry            // in the queues of the lock's names, as many as it has entered
	atHead            bool               // it is the head of all queues; its entries change only when it enters again or leaves
	moved             atomic.Bool        // it was the head, and a queue has another queue master now
	enterAfter        time.Duration      // it does not use the queues before this time
	since             time.Duration      // when its waiter began to wait
	owner             string             // the waiter's
	restraint         tracking.Restraint // on notices that the lock may be free, or that the predecessor has left
}

// An entry is a waiter's place in the queue of one of the lock's names.
type entry struct {
	name   string
	key    []byte // of the queue
	master int    // the queue master
}

// addEntry adds an entry. It reuses the memory of a former entry.
func (t *ticket) addEntry(name string, master int) {
	t.entries = slices.Grow(t.entries, 1)[:len(t.entries)+1]
	at := &t.entries[len(t.entries)-1]
	at.name, at.key, at.master = name, kind.AppendQueueKey(at.key[:0], name), master
}

// reset makes the ticket another waiter's. It keeps its memory.
func (t *ticket) reset() {
	*t = ticket{
		id: t.id[:0], predecessor: t.predecessor[:0], predecessorNotice: t.predecessorNotice[:0],
		awaited: t.awaited[:0], entries: t.entries[:0],
	}
}

// Init makes the queues ready.
func (gq *GlobalQueues) Init(c *Core) {
	gq.core, gq.avoidUntil = c, make([]atomic.Int64, c.Masters)
	gq.tag = round.AppendToken(nil, "")[:tagLength]
}

// Enter puts a waiter into the queues of its lock's names, or renews its entries. It reports whether the waiter may
// contend: it is the head of all queues, or a queue master serves no queue. If it may not, it is
// notified when its predecessor's entry ends. The error is that of a context or a client that has ended.
func (gq *GlobalQueues) Enter(ctx context.Context, w *Waiter, since time.Duration, owner string) (bool, error) {
	t, s := &w.ticket, w.spec
	if len(t.entries) == 0 { // otherwise a renewal may be reading these
		t.since, t.owner = since, owner
	}
	gq.setHead(w, false)
	if len(t.id) == 0 { // a new id after each leave: a leave that comes late must not end a later entry
		if s.Reader {
			t.id = append(t.id, kind.ReaderMark...)
		}
		t.id = round.AppendToken(append(t.id, gq.tag...), "")
	}
	for i, name := range s.Names() {
		err := gq.enterOne(ctx, w, i, name)
		for tries := 0; err == nil && len(t.predecessor) > 0; tries++ {
			gq.leaveFrom(t, i+1) // otherwise its predecessor here could wait for it in a later queue
			if tries == enterTries {
				err = errNoQueue
				break
			}
			there, lost := gq.awaitPredecessor(ctx, w, i)
			if there {
				return false, nil
			}
			if err = lost; err == nil {
				err = gq.enterOne(ctx, w, i, name)
			}
		}
		if err == errNoQueue || err == errPaused {
			if err == errNoQueue {
				gq.Leave(w)
			} else { // its entries outlive the pause, and so does its place
				gq.keep(t)
			}
			t.enterAfter = gq.core.Now() + EntryPause
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	gq.setHead(w, true)
	return true, nil
}

// setHead adds a waiter to the heads, or removes it.
func (gq *GlobalQueues) setHead(w *Waiter, is bool) {
	gq.mu.Lock()
	defer gq.mu.Unlock()
	w.ticket.atHead = is
	if !is || gq.drained != nil { // Close has stopped the timer
		delete(gq.heads, w)
		return
	}
	if gq.heads == nil {
		gq.heads = map[*Waiter]struct{}{}
		gq.timer = time.AfterFunc(EntryPause, gq.renew)
	} else if len(gq.heads) == 0 {
		gq.timer.Reset(EntryPause)
	}
	gq.heads[w] = struct{}{}
}

// These say that the queue master does not serve a queue, and that its queues are not used for a moment.
var (
	errNoQueue = errors.New("redlock: no queue")
	errPaused  = errors.New("redlock: no queue for a moment")
)

// enterOne puts the waiter into one queue, or renews its entry, and notes its predecessor. Its error is errNoQueue,
// errPaused, or that of a context or a client that has ended.
func (gq *GlobalQueues) enterOne(ctx context.Context, w *Waiter, i int, name string) error {
	c, t := gq.core, &w.ticket
	master, ok := gq.QueueMaster(name)
	switch {
	case !ok && (master < 0 || gq.refused(master)):
		return errNoQueue
	case !ok:
		return errPaused
	}
	if i == len(t.entries) {
		if i == 0 && !gq.countIn() {
			return mux.ErrClosed
		}
		t.addEntry(name, master)
	}
	at := &t.entries[i]
	if at.master != master { // another master is the queue master now
		gq.endEntry(at, t.id)
		w.End()
		at.master = master
	}
	k := c.Round.Take()
	defer c.Round.Put(k)
	kind.EnterQueue(&k.Request, at.key, t.id, c.Now()-t.since, t.owner)
	v, err := gq.askMaster(ctx, w, k, master)
	if err != nil {
		return err
	}
	t.predecessor = append(t.predecessor[:0], v.Reply.Bytes()...)
	v.Reply = resp.Value{}
	return nil
}

// keep renews the entries of a waiter that is no head. It waits for no answer.
func (gq *GlobalQueues) keep(t *ticket) {
	c := gq.core
	k := c.Round.Take()
	defer c.Round.Put(k)
	for i := range t.entries {
		kind.BeginRenewals(&k.Request)
		kind.AppendRenewal(&k.Request, t.entries[i].key, t.id, c.Now()-t.since, t.owner)
		gq.send(k, t.entries[i].master, 0)
	}
}

// renew renews the entries of the heads. It waits for no answer, as the heads contend whatever the queues say. It
// wakes a waiter if the master of one of its entries is no longer the queue master.
func (gq *GlobalQueues) renew() {
	gq.mu.Lock()
	defer gq.mu.Unlock()
	if len(gq.heads) == 0 || gq.drained != nil {
		return
	}
	gq.timer.Reset(EntryPause)
	c := gq.core
	r := c.Round.TakeStates()
	defer c.Round.PutStates(r)
	for w := range gq.heads {
		t := &w.ticket
		for i := range t.entries {
			at := &t.entries[i]
			if master, ok := gq.queueMasterOf(at.name, r.States); master != at.master || !ok && gq.refused(master) {
				t.moved.Store(true)
				w.Wake()
				break
			}
		}
	}
	k := c.Round.Take()
	defer c.Round.Put(k)
	for master := range r.States {
		kind.BeginRenewals(&k.Request)
		for w := range gq.heads {
			t := &w.ticket
			for i := range t.entries {
				if at := &t.entries[i]; at.master == master {
					kind.AppendRenewal(&k.Request, at.key, t.id, c.Now()-t.since, t.owner)
				}
				if len(k.Request.Command) > renewalBatch {
					gq.send(k, master, 0)
					kind.BeginRenewals(&k.Request)
				}
			}
		}
		if k.Request.Replies > 0 {
			gq.send(k, master, 0)
		}
	}
}

// send sends a request to one master, and waits for no answer. If persist is not zero and the master is away, the
// master gets the request if it is back within that time.
func (gq *GlobalQueues) send(k *round.Call, master int, persist time.Duration) {
	k.Prepare(0)
	k.Op.Only, k.Op.Quorum, k.Op.Persist = mux.Set(0).With(master), 1, persist
	gq.core.Round.Mux.Send(&k.Op)
}

// AskOthers makes a call ask the queue master of a name whether anybody but this client's writers stands in its queue: yes
// if nobody does. It returns false if there is no such master. A waiter of this client that is in the queue is the next in
// its local queue, too.
func (gq *GlobalQueues) AskOthers(k *round.Call, name string) bool {
	master, ok := gq.QueueMaster(name)
	if !ok {
		return false
	}
	kind.AskOthers(&k.Request, name, gq.tag)
	k.Prepare(0)
	k.Op.Only, k.Op.Quorum = mux.Set(0).With(master), 1
	return true
}

// QueueMaster returns the queue master of a name. It is the same for all clients that see the same masters up. ok is
// false if its queues are not used now. If there is no such master, or the queue would be another lock's, too, it is -1.
func (gq *GlobalQueues) QueueMaster(name string) (master int, ok bool) {
	r := gq.core.Round.TakeStates()
	defer gq.core.Round.PutStates(r)
	return gq.queueMasterOf(name, r.States)
}

func (gq *GlobalQueues) queueMasterOf(name string, states []mux.State) (master int, ok bool) {
	if kind.Ambiguous(name) {
		return -1, false
	}
	master = -1
	best := uint64(0)
	for i := range states {
		s := &states[i]
		if !round.CanNotify(s) {
			continue
		}
		if h := weight(name, s); master < 0 || h < best {
			master, best = i, h
		}
	}
	return master, master >= 0 && gq.avoidedFor(master) <= 0
}

// avoidedFor returns for how long a master's queues are not used yet.
func (gq *GlobalQueues) avoidedFor(master int) time.Duration {
	return time.Duration(gq.avoidUntil[master].Load()) - gq.core.Now()
}

// refused reports whether a master's queues are not used for longer than a pause, as it has refused them.
func (gq *GlobalQueues) refused(master int) bool { return gq.avoidedFor(master) > EntryPause }

// weight returns the weight of a master in the order for a name: the least comes first. The order is by a hash of
// the name and the server's own identity, which is the same to all processes, whatever the server's address is to them.
func weight(name string, s *mux.State) uint64 { return hash(name, cmp.Or(s.Server.RunID, s.Addr)) }

// hash returns FNV-1a of two strings, and a finalizer spreads it over all bits. It is the same in
// every process.
func hash(a, b string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(a) {
		h = (h ^ uint64(a[i])) * 1099511628211
	}
	h *= 1099511628211 // the NUL between them
	for i := range len(b) {
		h = (h ^ uint64(b[i])) * 1099511628211
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	return h
}

// awaitPredecessor subscribes the waiter to the notice of its predecessor. It reports whether the notice is there. If
// so, the master will notify of its end. The errors are those of enterOne.
func (gq *GlobalQueues) awaitPredecessor(ctx context.Context, w *Waiter, i int) (there bool, err error) {
	t := &w.ticket
	at := &t.entries[i]
	t.predecessorNotice = kind.AppendNoticeKey(t.predecessorNotice[:0], at.key, t.predecessor)
	if w.ListensTo(t.predecessorNotice) {
		return true, nil // the master has promised it already
	}
	t.restraint.Learn(!bytes.Equal(t.predecessorNotice, t.awaited))
	t.predecessorNotice, t.awaited = t.awaited, t.predecessorNotice
	notice := unsafe.String(unsafe.SliceData(t.awaited), len(t.awaited))
	w.Listen(1, 1, notice)
	k := gq.core.Round.Take()
	defer gq.core.Round.Put(k)
	k.Request.Reset()
	kind.Plain{}.Look(&k.Request, notice)
	v, err := gq.askMaster(ctx, w, k, at.master)
	if err == nil && v.Verdict == mux.VerdictNo {
		return true, nil
	}
	w.End()
	return false, err
}

// askMaster asks one master, with a short timeout. It returns errNoQueue if the master refuses, and errPaused if it gives no
// answer. Unless only this queue is at fault, the client does not use the master's queues for a while then.
func (gq *GlobalQueues) askMaster(ctx context.Context, w *Waiter, k *round.Call, master int) (*mux.Vote, error) {
	c := gq.core
	k.Prepare(c.Round.ShortTimeout(EntryPause/2, minQueueTimeout))
	k.Op.Only, k.Op.Quorum, k.Op.Keep = mux.Set(0).With(master), 1, true
	if err := w.Ask(ctx, k); err != nil && err != mux.ErrTimeout {
		return nil, err
	}
	v := &k.Op.Votes[master]
	if v.Verdict == mux.VerdictYes || v.Verdict == mux.VerdictNo {
		return v, nil
	}
	var reply *mux.ReplyError
	switch {
	case v.Err != nil && gq.core.Refused(v.Err): // few lines in the master's ACL LOG
		gq.avoidUntil[master].Store(int64(c.Now() + refusedPause))
	case !errors.As(v.Err, &reply): // an error reply concerns this queue alone: its key has the wrong type
		if !gq.refused(master) {
			gq.avoidUntil[master].Store(int64(c.Now() + EntryPause))
		}
		return nil, errPaused
	case reply.Code == "BUSY": // for a moment
		return nil, errPaused
	}
	return nil, errNoQueue
}

// AskPlace asks for the waiter's place in the queue that it entered last. It waits for no answer: ReadPlace does. It
// returns nil if the waiter is in no queue. The question goes out before the leave of a waiter that gives up, so it costs
// that no round trip of its own.
func (gq *GlobalQueues) AskPlace(w *Waiter, timeout time.Duration) *round.Call {
	t := &w.ticket
	if len(t.entries) == 0 {
		return nil
	}
	k := gq.core.Round.Take()
	at := &t.entries[len(t.entries)-1]
	kind.AskPlace(&k.Request, at.key, t.id)
	k.Prepare(timeout)
	k.Op.Only, k.Op.Quorum, k.Op.Keep = mux.Set(0).With(at.master), 1, true
	gq.core.Round.Post(k)
	return k
}

// ReadPlace returns the answer to AskPlace: the place, from 1 on, and how many are in the queue. Both are 0 if they are
// not known.
func (gq *GlobalQueues) ReadPlace(k *round.Call) (place, of int) {
	if k == nil {
		return 0, 0
	}
	defer gq.core.Round.Put(k)
	if gq.core.Round.Mux.Wait(context.Background(), &k.Op) != nil { // it has a short timeout
		return 0, 0
	}
	for i := range k.Op.Votes {
		if v := &k.Op.Votes[i]; v.Verdict == mux.VerdictYes {
			numbers := v.Reply.Elems()
			first, _ := numbers.Next()
			second, _ := numbers.Next()
			p, _ := first.Int()
			n, _ := second.Int()
			place, of = int(p), int(n)
			v.Reply = resp.Value{}
		}
	}
	return place, of
}

// Leave has the waiter leave all queues, if it is in any, and waits for no answer.
func (gq *GlobalQueues) Leave(w *Waiter) {
	if len(w.ticket.entries) == 0 {
		return
	}
	gq.setHead(w, false)
	gq.leaveFrom(&w.ticket, 0)
}

func (gq *GlobalQueues) leaveFrom(t *ticket, i int) {
	if i < len(t.entries) {
		for j := range t.entries[i:] {
			gq.endEntry(&t.entries[i+j], t.id)
		}
		t.entries = t.entries[:i]
		if i == 0 {
			t.id = t.id[:0]
			gq.countOut()
		}
	}
}

// countIn and countOut count the waiters that have an entry. countIn returns false, and does not count the waiter, if
// the client is being closed.
func (gq *GlobalQueues) countIn() bool {
	gq.mu.Lock()
	defer gq.mu.Unlock()
	if gq.drained != nil {
		return false
	}
	gq.queued++
	return true
}

func (gq *GlobalQueues) countOut() {
	gq.mu.Lock()
	defer gq.mu.Unlock()
	if gq.queued--; gq.queued == 0 && gq.drained != nil {
		close(gq.drained)
	}
}

// Close waits until no waiter has an entry, but for closeLinger at most: a context can delay the
// waiters, and the entries end by themselves.
func (gq *GlobalQueues) Close() {
	gq.mu.Lock()
	if gq.drained != nil {
		gq.mu.Unlock()
		return
	}
	gq.drained = make(chan struct{})
	if gq.queued == 0 {
		close(gq.drained)
	}
	if gq.timer != nil {
		gq.timer.Stop()
	}
	gq.mu.Unlock()
	select {
	case <-gq.drained:
	case <-time.After(closeLinger):
	}
}

// endEntry ends an entry, even while the client is being closed. It is persistent for the entry's life, after which
// the entry has ended anyway.
func (gq *GlobalQueues) endEntry(at *entry, id []byte) {
	c := gq.core
	k := c.Round.Take()
	defer c.Round.Put(k)
	kind.LeaveQueue(&k.Request, at.key, id)
	gq.send(k, at.master, kind.EntryLife)
}
