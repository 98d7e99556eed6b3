package redlock

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
)

// No call may keep a master from its other clients for long. So each does a bounded amount of work, whatever the keys
// hold, and the lister calls the script again for the rest.
const (
	pageCount   = 200       // keys that one page looks at
	rowsAtOnce  = 50        // that one call asks for
	slotsAtOnce = 100       // that one call asks for
	askedBytes  = 400 << 10 // of the names in one call, about
)

// What bounds a list, whatever one master says. A page, a row and a slot cost honest masters something, too.
const (
	maxPages  = 1 << 18          // of one master
	maxLook   = 10 * time.Minute // for one master
	maxAlone  = 4 << 20          // bytes of each master that fewer say than are a majority, with what they cost us
	maxSlots  = 100_000          // of permits that a majority has agreed on
	wordCost  = 100              // of one holder, waiter or key, beside its bytes
	slotWords = 300              // what a slot counts that no majority has agreed on: each master is asked for it
)

// errAlone is why a master's words are not all in the list.
var errAlone = fmt.Errorf("it says more than %d MiB that no majority says, and not all of that is listed", maxAlone>>20)

var errLongList = errors.New("its list does not end, or takes too long")

// A look is how far a master was looked through.
type look struct {
	cursor string
	done   bool
	pages  int
	spent  time.Duration // what its pages took, but for the time that is late
	late   time.Duration // how much later than a majority it has answered
	alone  int           // bytes: see maxAlone
	capped bool          // not all that it says is listed
}

// took is how long the master has kept the list.
func (k *look) took() time.Duration { return k.spent + k.late }

// A lister is one loop over Locks.
//
// A key is on several masters, and each scan finds it. The lister yields it the first time, and remembers a hash of it.
// (It could instead leave a key to the first master that has it, and remember nothing. But a renewal sets a key again
// where it was lost, behind the scan of the first master: then nobody would list it, though it is held all the time.)
type lister struct {
	client  *Client
	pattern pattern // with Config.Prefix
	asked   string  // the pattern without it
	literal bool    // the pattern stands for one key
	call    *round.Call
	up      mux.Set // the masters that have answered so far
	votes   []Vote
	looks   []look
	whose   int           // the master whose page is being listed; -1 if it is nobody's
	charged time.Duration // until when the time of this list was counted
	slots   int           // of permits that were asked for
	seed    maphash.Seed
	seen    map[uint64]struct{} // the rows that were yielded
	ended   error               // the error of a context or a client that has ended
}

// next returns the master whose page is to be looked at: of those that are not done the one that took least. It is -1
// after the last. So one that is slow, or has no end, does not keep the list from the others.
func (l *lister) next() int {
	next := -1
	for i := range l.looks {
		if l.up.Has(i) && !l.looks[i].done && (next < 0 || l.looks[i].took() < l.looks[next].took()) {
			next = i
		}
	}
	if l.ended != nil {
		return -1
	}
	return next
}

// charge notes what the list has cost since the last charge: each master that has answered what it took longer than a
// majority, and the one whose page it is the rest. Those that took too long are left out.
func (l *lister) charge(answered mux.Set) {
	now := l.client.now()
	rest := now - l.charged
	l.charged = now
	if answered == 0 {
		return
	}
	var took []time.Duration
	for i := range l.votes {
		if answered.Has(i) {
			took = append(took, l.call.Op.Votes[i].RTT)
		}
	}
	slices.Sort(took)
	needed := quorum.Majority(len(l.votes))
	common := took[min(needed, len(took))-1]
	if len(took) == 1 {
		common = 0
	}
	for i := range l.votes {
		if answered.Has(i) {
			l.looks[i].late += max(0, l.call.Op.Votes[i].RTT-common)
		}
	}
	if l.whose >= 0 {
		l.looks[l.whose].spent += max(0, rest-(took[len(took)-1]-common))
	}
	limit := l.patience(needed)
	for i := range l.looks {
		if look := &l.looks[i]; l.up.Has(i) && (look.took() > limit || look.pages > maxPages) {
			l.leave(i, errLongList)
		}
	}
}

// patience is how long a master may take: some time longer than a majority, and twice as long.
func (l *lister) patience(needed int) time.Duration {
	var took []time.Duration
	for i := range l.looks {
		if l.up.Has(i) {
			took = append(took, l.looks[i].took())
		}
	}
	if len(took) < needed {
		return maxLook
	}
	slices.Sort(took)
	return min(maxLook, 3*l.client.cfg.questionTimeout()+2*took[needed-1])
}

// leave has the list go on without a master.
func (l *lister) leave(master int, why error) {
	l.up &^= mux.Set(0).With(master)
	l.votes[master].Verdict, l.votes[master].Err = voteFailed, why
}

// affords reports whether one of the masters may have something listed that they alone say, of so many bytes.
func (l *lister) affords(by mux.Set, bytes int) (ok bool) {
	if l.literal {
		return true
	}
	for i := range l.looks {
		if !by.Has(i) {
			continue
		}
		if look := &l.looks[i]; look.alone+bytes+wordCost <= maxAlone {
			look.alone += bytes + wordCost
			ok = true
		} else {
			look.capped = true
		}
	}
	return ok
}
