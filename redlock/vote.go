package redlock

import (
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/mux"
)

// A Vote is one master's part in a round.
type Vote struct {
	Addr string // the master's address, never with a password
	// Verdict is what it said:
	//
	//	yes      it did what it was asked
	//	no       the key is another's there, or gone
	//	failed   it did not answer, or answered with an error
	//	pending  no answer came before the round was decided or cut short
	Verdict string
	RTT     time.Duration // from the round's start to its answer; 0 without one
	Err     error         // why it failed; nil if it did not
}

// The verdicts.
const (
	votedYes    = "yes"
	votedNo     = "no"
	voteFailed  = "failed"
	votePending = "pending"
)

// appendVotes appends the votes, with nothing of the token in their errors.
func appendVotes(dst []Vote, masters addresses, votes []mux.Vote, token []byte) []Vote {
	for i := range votes {
		v := &votes[i]
		dst = append(dst, Vote{masters.at(i), v.Verdict.String(), v.RTT, redacted(v.Err, token)})
	}
	return dst
}

// addresses are those of the masters. A place can be given to another master at any time.
type addresses []atomic.Pointer[string]

func newAddresses(masters []mux.State) addresses {
	as := make(addresses, len(masters))
	for i := range masters {
		as.set(i, masters[i].Addr)
	}
	return as
}

func (as addresses) at(i int) string        { return *as[i].Load() }
func (as addresses) set(i int, addr string) { as[i].Store(&addr) }

func (as addresses) all() []string {
	list := make([]string, len(as))
	for i := range as {
		list[i] = as.at(i)
	}
	return list
}
