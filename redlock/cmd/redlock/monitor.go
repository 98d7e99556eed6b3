package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/behind"
)

// A monitor watches the masters during a run, and says on stderr what their failures
// mean.
type monitor struct {
	mu               sync.Mutex
	mayHaveForgotten bool            // a master may have forgotten the lock since it was taken
	refused          map[string]bool // masters that were said to refuse us; nil before Open, whose error says it
	left             time.Duration   // how long Lock waits
	lacked           bool            // it was said that Lock waits for masters

	verbose bool                      // says more
	watched bool                      // somebody sits at the terminal: a long wait is to be explained
	others  func() (what, who string) // says who holds the lock
	waited  int                       // how many waits there were
	waiting int                       // ... and which of them goes on; 0 if none does
	phases  map[string]string         // of the masters, as they were said to be
	failing bool                      // it was said that the lock is not renewed
}

// told is the monitor's Observer.
func (w *monitor) told(_ context.Context, e *redlock.Event) {
	switch e.Kind {
	case redlock.EventMaster:
		w.master(*e.Master)
	case redlock.EventRound:
		w.round(e)
	case behind.Wait:
		w.waitStarts()
	case redlock.EventWaited:
		w.waitEnds()
	}
}

func (w *monitor) master(m redlock.MasterStats) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mayHaveForgotten = w.mayHaveForgotten || m.Phase == "quarantined"
	if m.Phase == "refused" && w.refused != nil && !w.refused[m.Addr] {
		w.refused[m.Addr] = true
		complain(m.Err, "going on without it, as if it were down; "+doctorRemedy)
	}
	if w.verbose && w.refused != nil && w.phases[m.Addr] != m.Phase {
		w.phaseChanged(m)
	}
}

// silence ends what only a verbose monitor says.
func (w *monitor) silence() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.verbose = false
}

// phaseChanged says that a master has failed, or is back.
func (w *monitor) phaseChanged(m redlock.MasterStats) {
	was := w.phases[m.Addr]
	switch why := strings.TrimPrefix(strings.TrimPrefix(m.Err, "conn: "), m.Addr+": "); {
	case m.Phase == "dialing":
		return
	case m.Phase == "refused": // which is said of all
	case m.Phase != "up" && why != "":
		complain(fmt.Sprintf("%s is %s: %s", m.Addr, m.Phase, why), "")
	case m.Phase != "up":
		complain(fmt.Sprintf("%s is %s", m.Addr, m.Phase), "")
	case was != "":
		complain(m.Addr+" is up again", "")
	}
	w.phases[m.Addr] = m.Phase
}

// explainAfter is how long somebody at a terminal may wonder why nothing happens.
const explainAfter = 1500 * time.Millisecond

// waitStarts says who is waited for: a moment later if that was asked for, or else when somebody at the terminal begins
// to wonder.
func (w *monitor) waitStarts() {
	w.mu.Lock()
	defer w.mu.Unlock()
	var pause time.Duration
	switch {
	case w.verbose:
	case w.watched:
		pause = explainAfter
	default:
		return
	}
	w.waited++
	w.waiting = w.waited
	number := w.waited
	waits := func() bool { return w.waiting == number }
	time.AfterFunc(pause, func() {
		w.mu.Lock()
		still := waits()
		w.mu.Unlock()
		if !still {
			return
		}
		what, who := w.others()
		w.mu.Lock()
		defer w.mu.Unlock()
		if waits() {
			complain("waiting: "+what, who)
		}
	})
}

// explained says that somebody at the terminal knows whom we wait for.
func (w *monitor) explained() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watched = false
}

func (w *monitor) waitEnds() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = 0
}

// renewed says when renewals begin to fail, and when they succeed again.
func (w *monitor) renewed(err error) {
	switch failed := err != nil; {
	case !w.verbose || failed == w.failing:
		return
	case failed:
		complain("the lock was not renewed: "+err.Error(), "trying again for as long as it is valid")
	default:
		complain("the lock is renewed again", "")
	}
	w.failing = err != nil
}

// opened makes the monitor say which masters can never serve. A minority of them does not
// stop the run, so nobody else would say it.
func (w *monitor) opened(masters []redlock.MasterStats) {
	w.mu.Lock()
	w.refused, w.phases = map[string]bool{}, map[string]string{}
	w.mu.Unlock()
	w.all(masters)
}

func (w *monitor) all(masters []redlock.MasterStats) {
	for _, m := range masters {
		w.master(m)
	}
}

func (w *monitor) round(r *redlock.Event) {
	w.mu.Lock()
	for _, v := range r.Votes {
		w.mayHaveForgotten = w.mayHaveForgotten || inQuarantine(v.Err)
	}
	if r.Op == "renew" {
		w.renewed(r.Err)
	}
	left := w.left
	w.mu.Unlock()
	if r.Op == "lock" && left > 0 && errors.Is(r.Err, redlock.ErrNoQuorum) && !refused(r.Err, userRefused) {
		w.lacks(r.Err, left)
	}
}

// setWait tells the monitor for how long Lock waits.
func (w *monitor) setWait(left time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = left
}

// lacks says, once, that too few masters can vote, so that it is known what the run waits
// for.
func (w *monitor) lacks(why error, left time.Duration) {
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

// acquired makes the monitor watch over a lock that was just taken. What a master forgot earlier does not count,
// except for masters that are still in quarantine.
func (w *monitor) acquired(masters []redlock.MasterStats) {
	w.mu.Lock()
	w.mayHaveForgotten = false
	w.mu.Unlock()
	w.all(masters)
}

// aftermath says what the loss of the lock may have done. still tells whether others were kept out until the command
// had ended; masters is their state at that time.
func (w *monitor) aftermath(lost error, still bool, masters []redlock.MasterStats) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !still || w.mayHaveForgotten || inQuarantine(lost) {
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

// afterRevocation says what became of a lock that was revoked while a command had it, by what its release has returned
// when the command had ended. If the tombstones are still on so many masters, nobody else had the lock, whatever else has
// failed meanwhile.
func afterRevocation(released error) string {
	switch {
	case errors.Is(released, redlock.ErrRevoked):
		return "nobody else had it before that: the command was ended in time"
	case errors.Is(released, redlock.ErrNotHeld):
		return "its keys had ended before the command did: another may have held it since"
	}
	return anotherToo // the masters do not say
}

const anotherToo = "another may have held it at the same time"

func inQuarantine(err error) bool {
	var q *mux.QuarantineError
	return errors.As(err, &q)
}
