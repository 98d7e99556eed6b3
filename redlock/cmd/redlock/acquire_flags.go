package main

import (
	"math"
	"slices"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/spf13/cobra"
)

// register adds the flags of all that take a lock.
func (r *acquirer) register(cmd *cobra.Command) {
	r.command = cmd.Name()
	r.given.register(cmd)
	flags := cmd.Flags()
	flags.DurationVar(&r.ttl, "ttl", 10*time.Second, "how long the lock outlives us if we die; it is renewed every third of it")
	flags.DurationVar(&r.restartGuard, "restart-guard", 0, "the longest TTL or --min-hold in use on these masters: a master that was started less than this ago does not vote; with 0, new masters that nobody has used do (default: the --ttl)")
	flags.StringVar(&r.owner, "owner", "", "`name` under which others see who holds the lock (default: redlock-"+r.command+"@host:pid)")
	flags.StringVar(&r.record, "flight", "", "`file` that records what happens to the lock, for 'redlock explain'; %p is our process's id (or REDLOCK_FLIGHT)")
	flags.BoolVarP(&r.verbose, "verbose", "v", false, "say on stderr what happens to the lock: whom we wait for, when it is taken, not renewed and released, and when a master fails")
}

// registerWait adds the flags of those that can give up.
func (r *acquirer) registerWait(cmd *cobra.Command) {
	flags := cmd.Flags()
	r.wait = 30 * time.Second
	flags.VarP((*bound)(&r.wait), "wait", "w", "how long to wait for the lock; 0 means not at all, forever without end")
	flags.BoolVarP(&r.noWait, "no-wait", "n", false, "do not wait for the lock, as --wait 0")
	flags.IntVarP(&r.heldStatus, "conflict-exit-code", "E", exitHeld, "exit `status` if the lock is held by another")
	flags.BoolVarP(&r.quiet, "quiet", "q", false, "say nothing if the lock is held by another, only exit")
	cmd.MarkFlagsMutuallyExclusive("wait", "no-wait")
}

// registerKind adds the flags that say what kind of lock it is.
func (r *acquirer) registerKind(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&r.fence, "fence", false, "fail if there can be no REDLOCK_FENCE; --fence=false asks for none (default: it is left out with --permits, and where the user may not use its key)")
	flags.StringArrayVar(&r.also, "also", nil, "lock this `KEY`, too, all or none; can be repeated")
	flags.BoolVar(&r.shared, "shared", false, "share the lock with other readers, which exclude a run without --shared")
	flags.IntVar(&r.permits, "permits", 0, "let `N` hold the lock at a time, 1 to 1000")
}

// checkFlags checks the flags, and sets those that were left out.
func (r *acquirer) checkFlags(cmd *cobra.Command) error {
	flags := cmd.Flags()
	r.reader.follows = r.given.inFile()
	if r.noWait {
		r.wait = 0
	}
	switch {
	case r.heldStatus < 0 || r.heldStatus > 255:
		return usageError("", "-E %d is no exit status: those are 0 to 255", r.heldStatus)
	case min(r.wait, r.lifetime, r.restartGuard, r.minHold) < 0:
		return usageError("", "--wait, --min-hold, --max-lifetime and --restart-guard cannot be below zero")
	}
	if err := r.guard(flags.Changed("restart-guard")); err != nil {
		return err
	}
	if err := r.checkKind(flags.Changed("permits")); err != nil {
		return err
	}
	r.numbered = r.fence || !flags.Changed("fence") && r.permits == 0
	return nil
}

// life is for how long the masters have the lock: for the TTL, or for the least hold with the drift of
// their clocks, if that is longer.
func (r *acquirer) life() time.Duration {
	if r.minHold == 0 {
		return r.ttl
	}
	return max(r.ttl, r.minHold+r.minHold/50+time.Second).Round(time.Millisecond)
}

// guard makes our TTL the restart guard, unless one was given. Each run is a new client,
// which has not seen whether a master was restarted: without the guard it would count the
// votes of those that have forgotten a lock.
func (r *acquirer) guard(given bool) error {
	switch {
	case !given:
		r.restartGuard = max(r.life(), 0)
	case 0 < r.restartGuard && r.restartGuard < r.ttl:
		return usageError("leave it out, and it is the --ttl; or give the longest TTL of all; or 0, for new masters",
			"--restart-guard %v is below the --ttl of %v: a master that was started %v ago may have forgotten a lock of %v",
			r.restartGuard, r.ttl, r.restartGuard, r.ttl)
	case 0 < r.restartGuard && r.restartGuard < r.life():
		return usageError("leave it out, and it is the --min-hold, and a little more; or give the longest of all; or 0, for new masters",
			"--restart-guard %v is too short for a --min-hold of %v: a master that was started %v ago may have forgotten such a lock",
			r.restartGuard, r.minHold, r.restartGuard)
	}
	return nil
}

// checkKind checks what kind of lock the flags ask for. The library does, too, but only when
// the masters are connected, and it does not know the flags.
func (r *acquirer) checkKind(permits bool) error {
	if permits {
		if err := checkPermits(r.permits); err != nil {
			return err
		}
	}
	switch {
	case slices.Contains(r.also, ""):
		return usageError("", "a KEY of --also is empty")
	case permits && r.shared:
		return usageError("", "--permits and --shared do not go together: a lock with permits has no readers")
	case permits && len(r.also) > 0:
		return usageError("", "--permits and --also do not go together: permits are those of one key")
	case permits && r.fence:
		return usageError("leave --fence out", "--permits and --fence do not go together: a lock with permits has no fence")
	case r.shared && r.minHold > 0:
		return usageError("", "--shared and --min-hold do not go together: readers hold the lock together, and writers wait")
	case r.shared && len(r.also) > 0:
		return usageError("", "--shared and --also do not go together: a shared lock is one on one key")
	}
	return nil
}

func (r *acquirer) options() (opts []redlock.Option) {
	if r.lifetime > 0 {
		opts = append(opts, redlock.WithMaxLifetime(r.lifetime))
	}
	if r.numbered {
		opts = append(opts, redlock.WithFence())
	}
	if len(r.also) > 0 {
		opts = append(opts, redlock.WithKeys(r.also...))
	}
	if r.shared {
		opts = append(opts, redlock.WithShared())
	}
	if r.permits > 0 {
		opts = append(opts, redlock.WithPermits(r.permits))
	}
	if r.minHold > 0 {
		opts = append(opts, redlock.WithMinHold(r.minHold))
	}
	return opts
}

// forever is a --wait without end.
const forever time.Duration = math.MaxInt64

// A bound is a flag's value: a duration, or forever.
type bound time.Duration

func (b *bound) Set(s string) (err error) {
	if s == "forever" {
		*b = bound(forever)
		return nil
	}
	d, err := time.ParseDuration(s)
	*b = bound(d)
	return err
}

func (b *bound) String() string {
	if d := time.Duration(*b); d != forever {
		return d.String()
	}
	return "forever"
}

func (b *bound) Type() string { return "duration" }
