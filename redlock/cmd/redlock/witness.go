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

// A witness is what a run sees of its masters, and what it says about them.
type witness struct {
	mu      sync.Mutex
	doubts  bool            // a master may have forgotten the lock since it was taken
	refused map[string]bool // masters of which that was said; nil while it is left to the error of Open
	left    time.Duration   // how long a Lock waits
	lacked  bool            // it was said that it waits for masters
}

// observer has the witness see.
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

// opened begins to say which masters can never serve. A minority of them stops nobody, and
// nobody would know.
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
	if r.Op == "lock" && left > 0 && errors.Is(r.Err, redlock.ErrNoQuorum) {
		w.lacks(r.Err, left)
	}
}

// waits begins to watch over a Lock that waits for so long.
func (w *witness) waits(left time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = left
}

// lacks says, once, that too few masters can vote: or nobody knew what it stands still
// for.
func (w *witness) lacks(why error, left time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.lacked {
		w.lacked = true
		complain(why.Error(), fmt.Sprintf("waiting for them for up to %v", left.Round(time.Millisecond)))
	}
}

// taken begins to watch over a lock. What was before is over, save a quarantine that
// still stands.
func (w *witness) taken(masters []redlock.MasterStats) {
	w.mu.Lock()
	w.doubts = false
	w.mu.Unlock()
	w.all(masters)
}

// aftermath says what a loss may have done. Still is whether the lock was valid when the
// command had ended, and masters is how they were then.
func (w *witness) aftermath(lost error, still bool, masters []redlock.MasterStats) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !still || w.doubts || inQuarantine(lost) {
		return "another may have held it at the same time"
	}
	unless := ""
	for _, m := range masters {
		if m.Phase != "up" { // it may have been restarted since we knew it
			unless = ", unless a master that is not up has forgotten it"
		}
	}
	return "nobody else had it before that" + unless + ": the command was ended in time"
}

func inQuarantine(err error) bool {
	var q *mux.QuarantineError
	return errors.As(err, &q)
}
