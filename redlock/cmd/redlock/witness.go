package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
)

// A witness watches the masters during a run, and says on stderr what their failures
// mean.
type witness struct {
	mu      sync.Mutex
	doubts  bool            // a master may have forgotten the lock since it was taken
	refused map[string]bool // masters that were said to refuse us; nil before Open, whose error says it
	left    time.Duration   // how long Lock waits
	lacked  bool            // it was said that Lock waits for masters
}

// observer returns an Observer that tells the witness.
func (w *witness) observer() *redlock.Observer {
	return &redlock.Observer{
		Master: w.master,
		Round:  func(_ context.Context, r redlock.Round) { w.round(r) },
	}
}

func (w *witness) master(m redlock.MasterStats) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.doubts = w.doubts || m.Phase == "quarantined"
	if m.Phase == "refused" && w.refused != nil && !w.refused[m.Address] {
		w.refused[m.Address] = true
		complain(m.Err, "going on without it, as if it were down; "+doctorRemedy)
	}
}

// opened makes the witness say which masters can never serve. A minority of them does not
// stop the run, so nobody else would say it.
func (w *witness) opened(masters []redlock.MasterStats) {
	w.mu.Lock()
	w.refused = map[string]bool{}
	w.mu.Unlock()
	w.all(masters)
}

func (w *witness) all(masters []redlock.MasterStats) {
	for _, m := range masters {
		w.master(m)
	}
}

func (w *witness) round(r redlock.Round) {
	w.mu.Lock()
	for _, v := range r.Votes {
		w.doubts = w.doubts || inQuarantine(v.Err)
	}
	left := w.left
	w.mu.Unlock()
	if r.Op == "lock" && left > 0 && errors.Is(r.Err, redlock.ErrNoQuorum) && !refused(r.Err, userRefused, permitsDisagreed) {
		w.lacks(r.Err, left)
	}
}

// waits tells the witness for how long Lock waits.
func (w *witness) waits(left time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = left
}

// lacks says, once, that too few masters can vote, so that it is known what the run waits
// for.
func (w *witness) lacks(why error, left time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.lacked {
		w.lacked = true
		upTo := ""
		if left != forever {
			upTo = fmt.Sprintf(" for up to %v", left.Round(time.Millisecond))
		}
		complain(why.Error(), "waiting for them"+upTo)
	}
}

// taken makes the witness watch over a lock that was just taken. Earlier doubts are over,
// except for masters that are still in quarantine.
func (w *witness) taken(masters []redlock.MasterStats) {
	w.mu.Lock()
	w.doubts = false
	w.mu.Unlock()
	w.all(masters)
}

// aftermath says what the loss of the lock may have done. still tells whether the lock was
// valid when the command had ended; masters is their state at that time.
func (w *witness) aftermath(lost error, still bool, masters []redlock.MasterStats) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !still || w.doubts || inQuarantine(lost) {
		return anotherToo
	}
	unless := ""
	for _, m := range masters {
		if m.Phase != "up" { // it may have been restarted since we knew it
			unless = ", unless a master that is not up has forgotten it"
		}
	}
	return "nobody else had it before that" + unless + ": the command was ended in time"
}

const anotherToo = "another may have held it at the same time"

func inQuarantine(err error) bool {
	var q *mux.QuarantineError
	return errors.As(err, &q)
}
