package redlock

import "sync"

// A doubt is whether the extensions of a lock that are under way find that it was lost. An extension sets the lock again
// where it is gone. A release that follows it finds the lock there, and says nothing of the time before. So an Unlock that
// the masters have confirmed asks the doubt, too: it returns nil only once the extensions that were under way are
// decided, and none has found the loss.
//
// An extension is decided when the masters have answered, and judged when its caller has come back from the mux. The
// doubt goes by the decision: who judges may be in an Observer, which may wait for the Unlock.
type doubt struct {
	mu     sync.Mutex // no other lock is taken under it; it is taken under hold.mu, and with the Mux locked
	rounds int        // extensions that are not decided yet
	found  bool       // one of those that are decided has found the loss
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

// any reports whether there is a doubt, or the loss.
func (d *doubt) any() bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rounds > 0 || d.found
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
