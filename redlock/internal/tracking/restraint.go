package tracking

import "time"

// A Restraint keeps back who is notified again and again of nothing. Masters do that when their table of promises is
// full (tracking-table-max-keys): each promise ends another, and whoever asks anew ends the next. The first few such
// notices are acted on at once, since one may be due to a change that was undone. The zero value is ready for use.
type Restraint struct {
	vain  int           // notices in a row that told of nothing, less twice those that did
	acted time.Duration // when the latest notice was acted on, or will be
}

// NotifyPause is the least pause between two things that are done because of notices.
const NotifyPause = 50 * time.Millisecond

const (
	maxVainNotices = 8               // after so many, notices are acted on with a pause
	noticePauseMax = 8 * NotifyPause // the longest; longer ago is another row
)

// Due returns when to act on a notice that has come now.
func (r *Restraint) Due(now time.Duration) time.Duration {
	if now-r.acted > 2*noticePauseMax {
		r.vain = 0
	}
	if r.Doubts() {
		now = max(now, r.acted+min(NotifyPause<<(r.vain-maxVainNotices), noticePauseMax))
	}
	r.acted = now
	return now
}

// Doubts reports whether a notice is likely to tell of nothing.
func (r *Restraint) Doubts() bool { return r.vain >= maxVainNotices }

// Learn learns whether the latest notice told of a change. One that did among many that did not ends no row: those who
// renew their locks because of such notices change them.
func (r *Restraint) Learn(changed bool) {
	if changed {
		r.vain = max(0, r.vain-2)
	} else {
		r.vain = min(r.vain+1, 2*maxVainNotices)
	}
}
