package redlock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/redburst/redburst/conn/clock"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/internal/line"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/redlock/internal/tracking"
)

// Watch yields who holds the lock on a key: at once, and again after each change of the holder or
// its fence. It yields the latest state, and not every one: it leaves out what came and went
// while the loop's body ran, or within a few milliseconds. That the lock has no holder is a
// state, too.
//
//	for lock, err := range client.Watch(ctx, "lock:scheduler") {
//		switch {
//		case err != nil: // the holder is not known just now
//		case lock.Held:
//			connect(lock.Holders[0].Owner)
//		}
//	}
//
// The holder's Owner is what it has published: WithOwner, or Config.Owner. The fence is that of the holder, if its lock
// has one (WithFence, or Lead), and 0 if there is none, or if the masters do not agree on it yet. The rest is as
// [Client.Holders] has it.
//
// Watch ends without an error when ctx does, or the loop is left. If too few masters answer, it
// yields a *RoundError that wraps ErrNoQuorum, once, and goes on. When the state is known again,
// it yields that. After other errors it ends: ErrClosed, so many masters that refuse this client
// that no quorum is possible, and a key that is empty or too long.
//
// The masters notify it of a change (CLIENT TRACKING). So it asks them after each change,
// renewals included, when the key may have expired, and otherwise every 10 to 20 s. If too few
// masters can notify, it asks every 200 to 400 ms. It yields that a lock was taken, or that its
// holder has died, about a round trip later. So what it yields may already be over. Watch is for
// finding the leader, and for showing it. Do not rely on it as you rely on the lock and its
// fence.
//
// It is for locks with one holder. Readers appear as a holder without a name, and permits do not
// appear. Watch needs the rights to SCRIPT LOAD, EVAL and EVALSHA, to GET and PTTL of the key, and to GET
// {key}:fence. Without the last the fence is 0, and a master notes each question in its ACL LOG.
func (c *Client) Watch(ctx context.Context, key string) iter.Seq2[LockInfo, error] {
	mustContext(ctx)
	c.check()
	return func(yield func(LockInfo, error) bool) {
		if err := checkKey(key); err != nil {
			yield(LockInfo{}, fmt.Errorf("redlock: watch: %w", err))
			return
		}
		c.watcher(key).run(ctx, yield)
	}
}

// A watcher is one loop over Watch.
type watcher struct {
	tracking.Listener
	client    *Client
	key       string
	restraint tracking.Restraint

	last    leadership
	info    LockInfo // of the last read
	unknown bool     // an error was yielded last
	begun   bool     // something was yielded
	unsure  int      // reads in a row in which the masters differed about one holder's fence
}

// A leadership is what a read has shown.
type leadership struct {
	token      Secret // of the holder; zero if there is none
	fence      uint64
	agree      bool          // all masters that answered have that fence
	left       time.Duration // until the lock is free, if it is not renewed; clock.Forever if it does not expire
	willNotify bool          // the masters will notify of a change
}

const sureReads = 5 // after so many reads, a master whose fence differs is expected to keep it

func (c *Client) watcher(key string) *watcher { return &watcher{client: c, key: key} }

func (w *watcher) run(ctx context.Context, yield func(LockInfo, error) bool) {
	c := w.client
	w.Init(&c.tracking)
	w.Listen(1, 1, c.cfg.Prefix+w.key)
	defer w.End()
	timer := time.AfterFunc(clock.Forever, w.Wake)
	defer timer.Stop()
	for {
		w.TakeNotified() // the answers have what changed before
		w.Clear()
		now, e := w.read(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case e != nil && e.final():
			yield(LockInfo{}, e)
			return
		case !w.yieldNew(yield, now, e):
			return
		}
		timer.Reset(w.pause(now, e))
		if err := w.Sleep(ctx); err != nil && !errors.Is(err, mux.ErrClosed) {
			return
		}
		if !w.TakeNotified() {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(w.restraint.Due(c.now())-c.now(), c.round.Mux.RTT(), pollMin)): // the other masters are about to push the same
		}
	}
}

// yieldNew yields a state that is new. It returns false if the loop was left.
func (w *watcher) yieldNew(yield func(LockInfo, error) bool, now leadership, e *RoundError) bool {
	was, known, begun := w.last, !w.unknown, w.begun
	w.unknown, w.begun = e != nil, true
	if e != nil {
		return begun && !known || yield(LockInfo{}, e)
	}
	if now.agree || now.token != was.token {
		w.unsure = 0
	}
	w.unsure++
	w.last = now
	same := begun && known && now.token == was.token && now.fence == was.fence
	w.restraint.Learn(!same)
	if same {
		return true
	}
	return yield(w.info, nil)
}

// pause returns the time until the next read, if no master notifies.
func (w *watcher) pause(now leadership, e *RoundError) time.Duration {
	poll := pollMax + rand.N(pollMax)
	switch {
	case e != nil || !now.willNotify:
		return poll
	case !now.token.IsZero() && !now.agree && w.unsure < sureReads:
		return poll // a second round may be under way, which changes no key that is tracked
	}
	return min(now.left, lookInterval+rand.N(lookInterval)) + line.ExpirySlack
}

// read asks who holds the key: with a short timeout first, and with a longer one if not enough is known then.
func (w *watcher) read(ctx context.Context) (now leadership, e *RoundError) {
	c := w.client
	patient := c.cfg.questionTimeout()
	for _, timeout := range [...]time.Duration{c.round.ShortTimeout(patient, round.MinShortTimeout), patient} {
		now, e = w.readWithin(ctx, timeout)
		if e == nil || e.reason != ErrNoQuorum {
			break
		}
	}
	return now, e
}

func (w *watcher) readWithin(ctx context.Context, timeout time.Duration) (leadership, *RoundError) {
	c := w.client
	k := c.round.Take()
	defer c.round.Put(k)
	askRow(k, c.cfg.Prefix+w.key, census.Fence, timeout, true)
	t, err := c.tally(ctx, k, false)
	notifying := c.round.Notifying()
	for i, row := range t.Rows {
		if row == nil {
			notifying = notifying.Without(i)
		}
	}
	now, known := leadershipOf(t)
	w.info = c.lockInfo(w.key, t, false)
	w.info.Fence = now.fence
	now.willNotify = notifying.Len() >= quorum.Majority(len(c.masters))
	switch {
	case errors.Is(err, mux.ErrClosed):
		return now, unasked(opWatch, w.key, ErrClosed, "")
	case !known:
		return now, c.failure(opWatch, w.key, k, err, ErrNoQuorum)
	}
	return now, nil
}

// leadershipOf concludes from what the masters that have answered say. The holder is not known if
// the masters that have not answered could make it another.
func leadershipOf(t *census.Tally) (now leadership, known bool) {
	now = leadership{agree: true, left: clock.Forever}
	leader := t.Leader()
	if !leader.Held() {
		return now, !t.Open()
	}
	now.token = leader.Token
	now.fence, now.agree = leader.Fence()
	if left := leader.Lasts(); left >= 0 {
		now.left = left
	}
	return now, true
}
