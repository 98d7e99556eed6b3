package redlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/resp"
)

// globalQueues are the queues in which waiters of all processes wait for locks, one for each key. The head
// of each client's local queue enters the global queue. Its entry is on one master, the queue master: the
// first in the key's ranking that can notify of changes. That master notifies a waiter when the entry of its
// predecessor ends, and not when the lock does. Only the head of the queue subscribes to the lock on
// all masters, and tries to take it. So one release wakes one waiter, the one that has waited longest gets the
// lock next, and the number of commands for one lock does not grow with the number of waiters.
//
// The queue is a courtesy: no exclusion depends on it. TryLock, the first attempt of a Lock, a hand-over
// within a client, and other libraries bypass it. A waiter that gets no answer from the queue master
// contends as if there were no queue, for [entryPause]. If that master is lost, or clients see different
// masters up, there are two queues for a moment and two contenders, and the quorum decides.
//
// An entry is renewed while its waiter waits. It ends [entryLife] after the waiter has died. A waiter
// at the head that finds no quorum goes to the end: others may see more masters than it does.
//
// A waiter for several keys enters their queues one after the other, in the order of the keys. It enters the
// next queue only while it is at the head of the ones before. So no two wait for each other.
//
// All readers share one rank in the queue. The first reader takes it at the end, and the others join it.
// When no writer is ahead, all of them are at the head, and can all have the lock. From then on the rank is
// closed: a reader that comes later takes a new one. Otherwise readers that come and go, and never have the
// lock as they see too few masters, could keep it for ever. A reader enters the queue when it was
// refused, and not before: among readers it needs no entry.
//
// A timer renews the entries of all heads together. So few writes do for all of them, and no waiter wakes.
// The others renew their own entries, as they want the answer: the predecessor may have died.
type globalQueues struct {
	core          *core
	subscriptions *subscriptions
	avoidUntil    []atomic.Int64 // for each master, until when its queues are not used

	mu      sync.Mutex // under it only the lock of the mux is taken
	heads   map[*ticket]*subscription
	timer   *time.Timer   // of renewals; nil if no waiter was ever at the head
	queued  int           // waiters that have an entry
	drained chan struct{} // of a client that is being closed: closed when queued is 0; nil before
}

const (
	entryPause      = time.Second            // between two renewals
	minQueueTimeout = 250 * time.Millisecond // the least time for a question: a waiter has it
	enterTries      = 3                      // questions to one queue, if its predecessors end meanwhile
	renewalBatch    = 64 << 10               // bytes above which no more entries are renewed by one operation
	closeLinger     = 100 * time.Millisecond // how long Close waits until the waiters have left
	refusedPause    = time.Minute            // how long to avoid the queues of a master that has refused them
)

// A ticket is what a waiter has in the global queues. The zero value has no entries.
type ticket struct {
	id                []byte
	predecessor       []byte        // the id ahead of it in the queue that it entered last; empty if it is the head
	predecessorNotice []byte        // ... and the name of its notice
	entries           []entry       // in the queue of each of the lock's names, as far as it has come
	atHead            bool          // of all queues; its entries do not change before it enters again, or leaves
	moved             atomic.Bool   // ... and a queue has another master now
	awaitedNotice     string        // the notice whose end it is notified of; empty if it waits for none
	enterAfter        time.Duration // it does not use the queues before then
}

// An entry is its place in the queue of one of the lock's names.
type entry struct {
	name   string
	key    []byte
	master int
}

// addEntry adds an entry, in the memory of one that was there before.
func (t *ticket) addEntry(name string, master int) {
	if n := len(t.entries); n < cap(t.entries) {
		t.entries = t.entries[:n+1]
	} else {
		t.entries = append(t.entries, entry{})
	}
	at := &t.entries[len(t.entries)-1]
	at.name, at.key, at.master = name, kind.AppendQueueKey(at.key[:0], name), master
}

func (gq *globalQueues) init(c *core, ws *subscriptions, masters int) {
	gq.core, gq.subscriptions, gq.avoidUntil = c, ws, make([]atomic.Int64, masters)
}

// enter puts a waiter into the queues of these names, or renews its entries. It reports whether the
// waiter may contend: it is the head of all, or there is no queue. If not, its subscription is notified
// when its predecessor's entry ends. The error is that of a context or a client that has ended.
func (gq *globalQueues) enter(ctx context.Context, t *ticket, sub *subscription, reader bool, names []string) (bool, error) {
	gq.setHead(t, nil)
	if len(t.id) == 0 { // a new one each time: a leave that is late must not end a later entry
		if reader {
			t.id = append(t.id, readerMark...)
		}
		t.id = appendToken(t.id, "")
	}
	for i, name := range names {
		err := gq.enterOne(ctx, t, i, name)
		for tries := 0; err == nil && len(t.predecessor) > 0; tries++ {
			gq.leaveFrom(t, i+1) // or another, for which it waits here, could wait for it there
			if tries == enterTries {
				err = errNoQueue
				break
			}
			there, lost := gq.awaitPredecessor(ctx, t, sub, i)
			if there {
				return false, nil
			}
			if err = lost; err == nil {
				err = gq.enterOne(ctx, t, i, name)
			}
		}
		if err == errNoQueue {
			gq.leave(t)
			t.enterAfter = gq.core.now() + entryPause
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	gq.stopAwaiting(t)
	gq.setHead(t, sub)
	return true, nil
}

// setHead makes a waiter one of the heads, or, without a subscription, none of them.
func (gq *globalQueues) setHead(t *ticket, sub *subscription) {
	gq.mu.Lock()
	defer gq.mu.Unlock()
	t.atHead = sub != nil
	if sub == nil {
		delete(gq.heads, t)
		return
	}
	if gq.heads == nil {
		gq.heads = map[*ticket]*subscription{}
		gq.timer = time.AfterFunc(entryPause, gq.renew)
	} else if len(gq.heads) == 0 {
		gq.timer.Reset(entryPause)
	}
	gq.heads[t] = sub
}

// errNoQueue says that the queue master does not serve a queue.
var errNoQueue = errors.New("redlock: no queue")

// enterOne puts the waiter into one queue, or renews its entry, and notes its predecessor. The errors are
// errNoQueue and those of a context or a client that has ended.
func (gq *globalQueues) enterOne(ctx context.Context, t *ticket, i int, name string) error {
	c := gq.core
	master, ok := gq.queueMaster(name)
	if !ok {
		return errNoQueue
	}
	if i == len(t.entries) {
		if i == 0 && !gq.countIn() {
			return mux.ErrClosed
		}
		t.addEntry(name, master)
	}
	at := &t.entries[i]
	if at.master != master { // another has come up, or is up no more
		gq.endEntry(at, t.id)
		gq.stopAwaiting(t)
		at.master = master
	}
	k := c.takeCall()
	defer c.putCall(k)
	k.enterQueue(at.key, t.id)
	v, err := gq.askMaster(ctx, k, master)
	if err != nil {
		return err
	}
	t.predecessor = append(t.predecessor[:0], v.Reply.Bytes()...)
	v.Reply = resp.Value{}
	return nil
}

// renew renews the entries of the heads. It waits for no answer: they contend, whatever the queues say. It
// wakes a waiter whose entry is on a master that is no longer the queue master.
func (gq *globalQueues) renew() {
	gq.mu.Lock()
	defer gq.mu.Unlock()
	if len(gq.heads) == 0 {
		return
	}
	gq.timer.Reset(entryPause)
	c := gq.core
	r := c.takeStates()
	defer c.putStates(r)
	for t, sub := range gq.heads {
		for i := range t.entries {
			at := &t.entries[i]
			if master, ok := gq.queueMasterOf(at.name, r.states); !ok || master != at.master {
				t.moved.Store(true)
				sub.wake()
				break
			}
		}
	}
	k := c.takeCall()
	defer c.putCall(k)
	for master := range r.states {
		k.beginRenewals()
		for t := range gq.heads {
			for i := range t.entries {
				if at := &t.entries[i]; at.master == master {
					k.appendRenewal(at.key, t.id)
				}
				if len(k.request.Command) > renewalBatch {
					gq.send(k, master, 0)
					k.beginRenewals()
				}
			}
		}
		if k.request.Replies > 0 {
			gq.send(k, master, 0)
		}
	}
}

// send sends a request to one master, and waits for no answer. If persist is not zero, it is delivered
// within that time though the master is away.
func (gq *globalQueues) send(k *call, master int, persist time.Duration) {
	k.prepare(0)
	k.op.Only, k.op.Quorum, k.op.Persist = mux.Set(0).With(master), 1, persist
	gq.core.rounds.Send(&k.op)
}

// queueMaster returns the master that has a key's queue: the same for all who see the same masters. It is false
// if there is none, or if that one does not serve queues.
func (gq *globalQueues) queueMaster(name string) (master int, ok bool) {
	r := gq.core.takeStates()
	defer gq.core.putStates(r)
	return gq.queueMasterOf(name, r.states)
}

func (gq *globalQueues) queueMasterOf(name string, states []mux.State) (master int, ok bool) {
	best := uint64(0)
	for i := range states {
		s := &states[i]
		if !canNotify(s) {
			continue
		}
		if h := rank(name, s); !ok || h < best {
			master, best, ok = i, h, true
		}
	}
	return master, ok && gq.core.now() >= time.Duration(gq.avoidUntil[master].Load())
}

// awaitPredecessor subscribes the waiter to the notice of its predecessor. It reports whether the notice is there, so
// that the master will notify of its end. The errors are those of enterOne.
func (gq *globalQueues) awaitPredecessor(ctx context.Context, t *ticket, sub *subscription, i int) (there bool, err error) {
	at := &t.entries[i]
	t.predecessorNotice = appendNoticeKey(t.predecessorNotice[:0], at.key, t.predecessor)
	if t.awaitedNotice == string(t.predecessorNotice) {
		return true, nil // as was promised
	}
	gq.stopAwaiting(t)
	t.awaitedNotice = string(t.predecessorNotice)
	gq.subscriptions.add(sub, 1, 1, t.awaitedNotice)
	k := gq.core.takeCall()
	defer gq.core.putCall(k)
	k.request.Reset()
	kind.Plain{}.Look(&k.request, t.awaitedNotice)
	v, err := gq.askMaster(ctx, k, at.master)
	if err == nil && v.Verdict == VerdictNo {
		return true, nil
	}
	gq.stopAwaiting(t)
	return false, err
}

// askMaster asks one master, with a short timeout. It returns errNoQueue if that gives no answer.
func (gq *globalQueues) askMaster(ctx context.Context, k *call, master int) (*mux.Vote, error) {
	c := gq.core
	k.prepare(c.shortTimeout(entryPause/2, minQueueTimeout))
	k.op.Only, k.op.Quorum, k.op.Keep = mux.Set(0).With(master), 1, true
	if err := c.doUndoable(ctx, k); err != nil && err != mux.ErrTimeout {
		return nil, err
	}
	v := &k.op.Votes[master]
	if v.Verdict == VerdictYes || v.Verdict == VerdictNo {
		return v, nil
	}
	var reply *mux.ReplyError
	switch {
	case v.Err != nil && permanent(v.Err): // one line in its ACL LOG is enough
		gq.avoidUntil[master].Store(int64(c.now() + refusedPause))
	case !errors.As(v.Err, &reply): // else it concerns this queue alone: a key of the wrong type is there
		gq.avoidUntil[master].Store(int64(c.now() + entryPause))
	}
	return nil, errNoQueue
}

// stopAwaiting ends the subscription to the predecessor's notice.
func (gq *globalQueues) stopAwaiting(t *ticket) {
	if t.awaitedNotice != "" {
		gq.subscriptions.remove(t.awaitedNotice)
		t.awaitedNotice = ""
	}
}

// leave has the waiter leave all queues, if it is in any, and waits for no answer.
func (gq *globalQueues) leave(t *ticket) {
	if len(t.entries) == 0 {
		return
	}
	gq.stopAwaiting(t)
	gq.setHead(t, nil)
	gq.leaveFrom(t, 0)
}

func (gq *globalQueues) leaveFrom(t *ticket, i int) {
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

// countIn and countOut count the waiters that have an entry. countIn is false if the client is being closed.
func (gq *globalQueues) countIn() bool {
	gq.mu.Lock()
	defer gq.mu.Unlock()
	if gq.drained != nil {
		return false
	}
	gq.queued++
	return true
}

func (gq *globalQueues) countOut() {
	gq.mu.Lock()
	defer gq.mu.Unlock()
	if gq.queued--; gq.queued == 0 && gq.drained != nil {
		close(gq.drained)
	}
}

// close waits until no waiter has an entry, but not for long: an Observer or a context can delay them, and
// the entries end by themselves.
func (gq *globalQueues) close() {
	gq.mu.Lock()
	if gq.drained != nil {
		gq.mu.Unlock()
		return
	}
	gq.drained = make(chan struct{})
	if gq.queued == 0 {
		close(gq.drained)
	}
	gq.mu.Unlock()
	select {
	case <-gq.drained:
	case <-time.After(closeLinger):
	}
	gq.mu.Lock()
	defer gq.mu.Unlock()
	if gq.timer != nil {
		gq.timer.Stop()
	}
}

// endEntry ends an entry, also of a client that is being closed. After its life it has ended anyway.
func (gq *globalQueues) endEntry(at *entry, id []byte) {
	c := gq.core
	k := c.takeCall()
	defer c.putCall(k)
	k.leaveQueue(at.key, id)
	gq.send(k, at.master, entryLife)
}
