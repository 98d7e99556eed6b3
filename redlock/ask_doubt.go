package redlock

import (
	"sync"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp"
)

// A doubt is whether the extensions of a lock that are under way find that it was lost. An extension sets the lock again
// where it is gone. A release that follows it finds the lock there, and says nothing of the time before. So an Unlock that
// the masters have confirmed asks the doubt, too: it returns nil only once the extensions that were under way are
// decided, and none has found the loss.
//
// An extension is decided when the masters have answered, and judged when its caller has come back from the mux. The
// doubt goes by the decision: who judges may be in an Observer, which may wait for the Unlock.
//
// Of a round that had too few answers in time, those that come later count, too. Otherwise nobody would ever learn of
// the loss, as the next round finds the lock that this one has set again.
type doubt struct {
	mu     sync.Mutex // no other lock is taken under it; it is taken under hold.mu, and with the Mux locked
	rounds int        // extensions that are not decided yet
	found  bool       // one of those that are decided has found the loss
	open   bool       // one of those that are decided may find it still
	then   func()     // called when the last is decided, with the Mux locked; nil if nobody waits
}

// begin notes that an extension is about to be posted.
func (d *doubt) begin() {
	d.mu.Lock()
	d.rounds++
	d.mu.Unlock()
}

// end notes that an extension is decided, and whether it has found that the lock was lost.
func (d *doubt) end(lost bool) {
	d.mu.Lock()
	d.rounds--
	d.found = d.found || lost
	then := d.then
	if d.rounds > 0 && !d.found {
		then = nil
	}
	if then != nil {
		d.then = nil
	}
	d.mu.Unlock()
	if then != nil {
		then()
	}
}

// late takes the votes of an extension that is decided, and returns what takes its late answers; nil if they can tell
// of no loss. The Mux is locked.
func (d *doubt) late(t tally, judge mux.VerdictFunc) func(master int, v resp.Value) {
	if t.lost() || t.yes >= t.quorum() {
		return nil
	}
	d.mu.Lock()
	d.open = true
	d.mu.Unlock()
	votes := t // a copy, as only a round that has failed may allocate
	return func(_ int, v resp.Value) {
		if judge(v) != VerdictNo {
			return
		}
		if votes.no++; votes.lost() {
			d.mu.Lock()
			d.found = true
			d.mu.Unlock()
		}
	}
}

// any reports whether there is a doubt, or may be one later, or the loss.
func (d *doubt) any() bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rounds > 0 || d.found || d.open
}

// lost reports whether the loss was found.
func (d *doubt) lost() bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.found
}

// wait reports whether the doubt is over. If it is not, then is called when it is.
func (d *doubt) wait(then func()) (over bool) {
	if d == nil {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.rounds == 0 || d.found {
		return true
	}
	d.then = then
	return false
}
