package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock"
)

// A reader reads the list of masters again while we run, and has a master replaced that is another one there.
type reader struct {
	follows bool                     // a SIGHUP makes it read the list
	list    atomic.Pointer[[]string] // as it was read last; nil if it has not changed since the start
	asked   atomic.Bool              // somebody waits for mu to read it: more SIGHUPs ask for no more

	mu     sync.Mutex      // held while it reads
	client *redlock.Client // nil before it is opened
	missed bool            // a SIGHUP came before that
}

// inForce returns the masters that we use now.
func (r *acquirer) inForce() masterSet {
	set := r.masterSet
	if list := r.reader.list.Load(); list != nil {
		set.masters = *list
	}
	return set
}

// rereads reports whether a signal makes us read the list of masters again, and does so if it does.
func (r *acquirer) rereads(s os.Signal) bool {
	if s != syscall.SIGHUP {
		return false
	}
	if r.reader.asked.CompareAndSwap(false, true) {
		go r.reread()
	}
	return r.reader.follows
}

// opened has the reader replace masters in a client, from then on. It does not wait until a look at the files has ended.
func (r *acquirer) opened(client *redlock.Client) {
	go func() {
		r.reader.mu.Lock()
		r.reader.client = client
		missed := r.reader.missed
		r.reader.mu.Unlock()
		if missed {
			r.reread()
		}
	}()
}

const stayRemedy = "the masters stay what they were; SIGHUP reads the list again"

func (r *acquirer) reread() {
	r.reader.mu.Lock()
	defer r.reader.mu.Unlock()
	r.reader.asked.Store(false) // a SIGHUP from here on may have come after what is read now
	switch {
	case !r.reader.follows:
		if r.keyring != nil {
			r.keyring.ask(r.keyring.ctx, keepRemedy)
		}
		return
	case r.reader.client == nil:
		r.reader.missed = true
		return
	}
	if r.keyring != nil {
		if !r.keyring.ask(r.keyring.ctx, stayRemedy) {
			return
		}
		defer func() { r.keyring.keep(r.inForce().masters) }()
	}
	list, down, err := r.given.addresses()
	if err != nil {
		complain(err.Error(), stayRemedy)
		return
	}
	gone, come := changes(r.inForce().masters, list)
	switch {
	case len(gone) == 0 && len(come) == 0:
		r.note("the list of masters is the same")
	case len(gone) != 1 || len(come) != 1:
		complain(fmt.Sprintf("the list of masters has %s, and lacks %d: only one at a time can be replaced by another", plural(len(come), "newcomer"), len(gone)),
			"a newcomer has no vote at first, so two of three leave no majority; for another number of masters, end all processes, and start them with the new list after the longest TTL")
	default:
		from, to := conn.Redact(gone[0]), conn.Redact(come[0])
		var opts []redlock.ReplaceOption
		if contains(down, gone[0]) {
			opts = append(opts, redlock.ShutDown())
		}
		if err := r.reader.client.Replace(context.Background(), gone[0], come[0], opts...); err != nil {
			remedy := stayRemedy
			if errors.Is(err, mux.ErrMayAnswer) {
				remedy = fmt.Sprintf("if it is shut down for good, or its machine is gone, say so in the file with a line '%s %s'; %s", shutDown, bare(gone[0]), stayRemedy)
			}
			complain(fmt.Sprintf("%s does not take the place of %s: %v", to, from, err), remedy)
			return
		}
		complain(fmt.Sprintf("%s has the place of %s now", to, from), "it votes when the longest TTL has passed")
		r.reader.list.Store(&list)
	}
}

// changes returns the masters of a list that are not in another one, and those that are there alone.
func changes(was, is []string) (gone, come []string) {
	in := func(list []string) func(string) bool {
		known := conn.RedactAll(list)
		return func(a string) bool { return slices.Contains(known, conn.Redact(a)) }
	}
	return slices.DeleteFunc(slices.Clone(was), in(is)), slices.DeleteFunc(slices.Clone(is), in(was))
}
