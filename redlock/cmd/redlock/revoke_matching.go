package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/census"
)

// mostMatches is how many locks can be revoked at once.
const mostMatches = 1000

// checkMatch reports what is wrong with the flags.
func (r *revoker) checkMatch() error {
	switch {
	case r.match == "":
		return usageError("'*' matches all locks", "the pattern of --match is empty")
	case r.token != "" || r.permitted:
		return usageError("", "--match goes neither with --token nor with --permits: it finds the permits, too")
	case r.most < 1 || r.most > mostMatches:
		return usageError("", "--most %d: 1 to %d are possible", r.most, mostMatches)
	case !r.yes && !isTerminal(os.Stdin):
		return usageError("a script says --yes; 'redlock ls' shows what there is", "--match asks on a terminal, and stdin is none")
	}
	return nil
}

// A found is one lock that a pattern has found, with those of its holders that a majority named.
type found struct {
	redlock.LockInfo
	holders []census.Holder
	more    int // readers that hold it, too, and were not named
}

// kindOptions say what kind of lock it is.
func kindOptions(lock redlock.LockInfo) []redlock.Option {
	switch lock.Kind {
	case "shared":
		return []redlock.Option{redlock.WithShared()}
	case "permits":
		return []redlock.Option{redlock.WithPermits(lock.Permits)}
	}
	return nil
}

// revokeMatching revokes the locks whose keys match the pattern: of those that it has shown, and no others. Each is
// revoked by its token. A lock that another has taken since, has another.
func (r *revoker) revokeMatching(ctx context.Context) error {
	if err := r.read(); err != nil {
		return err
	}
	client, err := r.openAnyway(ctx, "revoke")
	if err != nil {
		return err
	}
	defer client.Close()
	deliver(ctx, client, r.given.dialTimeout)
	all, open, foreign, err := r.find(ctx, client)
	if err != nil {
		return err
	}
	if foreign > 0 {
		complain(plural(foreign, "key")+" that look like locks of another library are left alone", "to revoke one, name its KEY")
	}
	switch {
	case len(all) == 0 && open:
		return &failure{status: exitNoQuorum}
	case len(all) == 0:
		return &failure{exitNo, fmt.Errorf("no lock that matches %q is held", r.match), ""}
	}
	if !r.yes {
		if err := r.confirm(all); err != nil {
			return err
		}
	}
	status := 0
	if open {
		status = exitNoQuorum
	}
	return r.revokeAll(ctx, client, all, status)
}

// find lists the locks that are held, by whom a majority of the masters says, and the keys that may be those of others.
// open is set if there may be more holders.
func (r *revoker) find(ctx context.Context, client *redlock.Client) (all []found, open bool, foreign int, err error) {
	for lock, err := range client.Locks(ctx, r.match) {
		var round *redlock.RoundError
		switch {
		case errors.Is(err, redlock.ErrIncomplete):
			complain(err.Error(), "every lock that is held was found; "+doctorRemedy)
			continue
		case errors.As(err, &round):
			return nil, false, 0, &failure{exitNoQuorum, err, "nothing was revoked: " + doctorRemedy}
		case err != nil: // of the pattern
			return nil, false, 0, usageError("", "%w", err)
		}
		f, unsure := found{LockInfo: lock}, false
		for _, h := range lock.Holders {
			switch stateOf(lock, h) {
			case held:
				if !h.Left && !h.Token.IsZero() {
					f.holders = append(f.holders, census.Holder{Token: h.Token, Permit: h.Permit, TTL: h.TTL})
				}
			case unknown:
				unsure = true
			}
		}
		if unsure && lock.Kind != "other" && lock.Kind != "foreign" {
			complain(fmt.Sprintf("too few masters say whether %q is held, or by whom else", lock.Key), doctorRemedy)
			open = true
		}
		switch {
		case len(f.holders) == 0, lock.Kind == "other":
			continue
		case lock.Kind == "foreign":
			foreign++
			continue
		case lock.Kind == "shared":
			f.more = max(0, lock.Readers-len(f.holders))
		}
		if all = append(all, f); len(all) > r.most {
			return nil, false, 0, usageError("nothing was revoked: give a narrower pattern, or more --most",
				"more than %s match %q", plural(r.most, "lock"), r.match)
		}
	}
	slices.SortFunc(all, func(a, b found) int { return byKey(a.LockInfo, b.LockInfo) })
	return all, open, foreign, nil
}

// confirm shows the locks and asks on the terminal whether their holders are to lose them.
func (r *revoker) confirm(all []found) error {
	screen := newTerminal(os.Stderr)
	list := lister{out: screen}
	for _, f := range all {
		list.rows = append(list.rows, f.LockInfo)
	}
	list.table()
	return confirmed(screen, fmt.Sprintf("Revoke %s?", plural(len(all), "lock")))
}

// revokeAll revokes the locks, and waits until their holders have let go. status is the exit status if it revokes all.
func (r *revoker) revokeAll(ctx context.Context, client *redlock.Client, all []found, status int) error {
	out := newTerminal(os.Stdout)
	var revoked []revocation
	var by []*found
	began := time.Now()
	for i := range all {
		f := &all[i]
		var lost []census.Holder
		var why error
		for _, h := range f.holders {
			err := client.Revoke(ctx, f.Key, r.reason, append(kindOptions(f.LockInfo), redlock.WithToken(h.Token.Reveal()))...)
			if err == nil {
				lost = append(lost, h)
			} else if why == nil || !errors.Is(err, redlock.ErrNotHeld) {
				why = err
			}
		}
		switch {
		case why == nil:
		case errors.Is(why, redlock.ErrNotHeld):
			complain(fmt.Sprintf("%q is free, or another's by now, who keeps it", f.Key), "")
		case errors.Is(why, redlock.ErrHeld):
			complain(fmt.Sprintf(neverEnds, f.Key), r.remedy(f.Key))
			status = max(status, exitHeld)
		default:
			complain(fmt.Sprintf("%q: %s", f.Key, why), "its holder keeps it: "+doctorRemedy)
			status = max(status, exitNoQuorum)
		}
		if f.more > 0 {
			complain(fmt.Sprintf("%q has %s more, who keep it", f.Key, plural(f.more, "reader")), "run the command again")
		}
		if len(lost) > 0 {
			revoked = append(revoked, revocation{key: f.Key, reason: r.reason, holders: lost})
			by = append(by, f)
		}
	}
	for i := range revoked {
		revoked[i].await(ctx, client, kindOptions(by[i].LockInfo), r.wait, began)
		if r.json {
			revoked[i].writeJSON(out)
		} else {
			out.say("", plain, revoked[i].String())
		}
	}
	switch err := out.failure(); {
	case err != nil:
		return err
	case status != 0:
		return &failure{status: status}
	case len(revoked) == 0:
		return &failure{status: exitNo}
	}
	return nil
}
