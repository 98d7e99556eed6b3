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
	"github.com/spf13/cobra"
)

func newRevoke() *cobra.Command {
	var r revoker
	cmd := &cobra.Command{
		Use:   "revoke [flags] {KEY | --match PATTERN} --reason TEXT",
		Short: "Take a lock away, and have its holder stop first",
		Long: `revoke takes a lock away from its holder, and tells it the reason. The holder
learns of it at once if the masters notify it, and otherwise when it renews the
lock the next time: its work is told to stop.
When it has let go, the next one has the lock at once. A holder that is hung,
cut off or gone keeps the others out until the key ends, and no longer. So no
two hold the lock at a time, as they can after 'redlock release'.

It takes the lock from whoever holds it now. If readers hold it, all of them
lose it, and with --permits N all permits are taken away. --token T names one
holder: 'redlock status --json' shows the tokens. --token - reads it from stdin,
where others cannot see it.

--match PATTERN names all locks that 'redlock ls PATTERN' shows as held, but for
those of another library. revoke shows them and asks on the terminal, or does
not ask with --yes. It revokes those that it has found, for the holders that
a majority of the masters has named, and for no others: who takes a lock in the
meantime keeps it. If there are more locks than --most, it revokes none. The
user needs the rights of an operator, as for ls.

revoke waits up to --wait until the holder has let go, and says what came of it.
If too few masters answer, the holder keeps the lock. A lock of another library
is revoked, too, but its key stays until it ends. One that never ends is left
alone: 'redlock release --force' deletes it.

Exit status: 0 it was revoked, whether or not the holder has let go yet, 1 it is
free, 64 wrong usage or the answer was no, 74 write error, 96 another holds it
(with --token), or it never ends, 97 too few masters answered. With --match, 0
all that are still held were revoked, 1 none is, 96 or 97 one of them was not.
` + mastersHelp,
		Example: `  redlock revoke lock:report --reason 'deploy of version 2'
  redlock revoke lock:report --reason maintenance --wait 1m --json
  redlock revoke --match 'lock:web-3:*' --reason 'web-3 is shut down' --yes
  redlock revoke lock:gpu --permits 4 --reason 'driver update'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("match") {
				return keyOnly(cmd, args)
			}
			if len(args) > 0 {
				return usageError("", "a KEY and --match do not go together")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r.permitted = cmd.Flags().Changed("permits")
			switch {
			case r.reason == "":
				return usageError("the holder is to know why: --reason 'deploy of version 2'", "give a --reason")
			case r.token == stdin && r.given.file == stdin:
				return usageError("", "--token and --masters-file cannot both be stdin")
			case r.wait < 0:
				return usageError("", "--wait %v is below zero", r.wait)
			case cmd.Flags().Changed("match"):
				if err := r.checkMatch(); err != nil {
					return err
				}
				return r.revokeMatching(cmd.Context())
			case r.yes || cmd.Flags().Changed("most"):
				return usageError("", "--yes and --most are for --match")
			}
			if r.permitted {
				if err := checkPermits(r.permits); err != nil {
					return err
				}
			}
			return r.revoke(cmd.Context(), args[0])
		},
	}
	r.given.register(cmd)
	registerKeyBase64(cmd)
	flags := cmd.Flags()
	flags.StringVar(&r.reason, "reason", "", "why, as the holder is told: `text` of 1 to 128 bytes")
	flags.StringVar(&r.token, "token", "", "revoke the lock that has this `token`; - reads it from stdin")
	flags.IntVar(&r.permits, "permits", 0, "revoke the `N` permits of the key, 1 to 1000")
	flags.DurationVar(&r.wait, "wait", 5*time.Second, "how `long` to wait until the holder has let go")
	flags.StringVar(&r.match, "match", "", "revoke all locks whose keys match this `pattern`")
	flags.BoolVar(&r.yes, "yes", false, "with --match: do not ask")
	flags.IntVar(&r.most, "most", 100, fmt.Sprintf("with --match: revoke none if there are more than `N` locks, 1 to %d", mostMatches))
	flags.BoolVar(&r.json, "json", false, "write JSON")
	return cmd
}

// A revoker revokes a lock of another process.
type revoker struct {
	target
	reason string
	wait   time.Duration
	json   bool

	match string
	yes   bool
	most  int
}

func (r *revoker) revoke(ctx context.Context, key string) error {
	if err := r.read(); err != nil {
		return err
	}
	holders, more, opts, err := r.choose(ctx, key)
	if err != nil {
		return err
	}
	client, err := r.openAll(ctx, "revoke")
	if err != nil {
		return err
	}
	defer client.Close()
	asked := opts
	if len(holders) == 1 && !more {
		asked = append(asked, redlock.WithToken(holders[0].Token.Reveal()))
	}
	began := time.Now()
	err = client.Revoke(ctx, key, r.reason, asked...)
	var round *redlock.RoundError
	switch {
	case errors.Is(err, redlock.ErrNotHeld):
		return &failure{exitNo, fmt.Errorf("%q is free, or another's by now", key), ""}
	case errors.Is(err, redlock.ErrHeld) && len(holders) == 1:
		return &failure{exitHeld, fmt.Errorf(neverEnds, key), r.remedy(key)}
	case errors.Is(err, redlock.ErrHeld):
		return &failure{exitHeld, err, r.remedy(key)}
	case err != nil && !errors.As(err, &round):
		return usageError("", "%w", err)
	case err != nil && (more || len(holders) > 1):
		return &failure{exitNoQuorum, err, "who was not revoked keeps it: " + doctorRemedy}
	case err != nil:
		return &failure{exitNoQuorum, err, "its holder keeps it: " + doctorRemedy}
	}
	out := revocation{key: key, reason: r.reason, holders: holders}
	out.await(ctx, client, opts, r.wait, began)
	t := newTerminal(os.Stdout)
	if r.json {
		out.writeJSON(t)
	} else {
		t.say("", plain, out.String())
	}
	return t.failure()
}

// neverEnds says of a lock why it was not revoked.
const neverEnds = "%q does not expire, so it cannot be revoked: it would stay for ever"

// remedy is what takes such a lock away.
func (r *revoker) remedy(key string) string {
	if r.permitted {
		return fmt.Sprintf("if its holder is gone: redlock release --permits %d --token TOKEN %s", r.permits, quoted(key))
	}
	return "if its holder is gone: redlock release --force " + quoted(key)
}

// choose finds the holders that are to lose the lock, and says what kind of lock they have, and whether there may be more of them.
func (r *revoker) choose(ctx context.Context, key string) (holders []census.Holder, more bool, opts []redlock.Option, err error) {
	wanted := func(c *census.Claim) bool { return r.token == "" || c.Token.Reveal() == r.token }
	if r.permitted {
		a := r.permitStatus(ctx, key, r.permits)
		if err := a.check(); err != nil {
			return nil, false, nil, err
		}
		for _, s := range a.permits {
			if s.state == held && wanted(s.leader) {
				holders = append(holders, s.leader.Holder)
			}
		}
		more = a.free+a.held < len(a.permits) && (r.token == "" || len(holders) == 0)
		if len(holders) == 0 {
			if more {
				return nil, false, nil, a.unsure()
			}
			if a.held == 0 {
				none := &failure{exitNo, fmt.Errorf("no permit of %q is held", key), ""}
				if s := r.lockStatus(ctx, key); s.state == held {
					none.remedy = fmt.Sprintf("%s has it as a lock: to revoke that, leave out --permits", s.holder())
				}
				return nil, false, nil, none
			}
			return nil, false, nil, r.missing(a.lockStatus)
		}
		return holders, more, []redlock.Option{redlock.WithPermits(r.permits)}, nil
	}
	s := r.lockStatus(ctx, key)
	for _, c := range s.readers {
		if c.Held() && wanted(c) {
			holders = append(holders, c.Holder)
		}
		more = more || c.Open() && wanted(c)
	}
	switch {
	case len(holders) > 0:
		return holders, more, []redlock.Option{redlock.WithShared()}, nil
	case more:
		return nil, false, nil, s.unsure()
	case s.state == free && s.agreed() > 0:
		if a := r.permitStatus(ctx, key, s.agreed()); a.held > 0 {
			return nil, false, nil, &failure{exitNo, fmt.Errorf("%q is free as a lock; held of its %s: %d", key, plural(len(a.permits), "permit"), a.held),
				fmt.Sprintf("--permits %d takes all of them away, and with --token one", len(a.permits))}
		}
		return nil, false, nil, r.missing(s)
	case s.state != held || !wanted(s.leader):
		return nil, false, nil, r.missing(s)
	case s.leader.Left():
		return nil, false, nil, &failure{exitNo, fmt.Errorf("%q is %s, and nobody runs it", key, leftUntil(s.leader)), "to end that: redlock release --token TOKEN " + quoted(key)}
	case s.leader.Token == census.Unknown:
		return nil, false, nil, usageError("look at it with redis-cli, and delete it there", "%q is %s", key, ownerText(s.leader.Holder))
	}
	return []census.Holder{s.leader.Holder}, false, nil, nil
}

// A revocation is what came of one.
type revocation struct {
	key     string
	reason  string
	holders []census.Holder
	after   time.Duration // since the revocation
	remain  int           // of the holders, how many had not let go by then
	left    time.Duration // until their last key ends; below 0: never
	ended   bool          // the keys have ended by themselves
	unknown bool          // the masters did not say
}

// await waits until all holders have let go, for wait at most.
func (r *revocation) await(ctx context.Context, client *redlock.Client, opts []redlock.Option, wait time.Duration, began time.Time) {
	const pause = 10 * time.Millisecond
	var ends time.Time // of the last key, as far as is known
	for first := true; ; first = false {
		lock, err := client.Holders(ctx, r.key, opts...)
		r.after = time.Since(began)
		if r.unknown = err != nil; !r.unknown {
			r.count(lock)
			if r.remain == 0 && !r.unknown {
				r.ended = !first && !ends.IsZero() && !time.Now().Before(ends)
				return
			}
			if ends = (time.Time{}); r.left >= 0 && !r.unknown {
				ends = time.Now().Add(r.left)
			}
		}
		if r.after >= wait || ctx.Err() != nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(pause, wait-r.after)):
		}
	}
}

// count counts those of the holders whom a quorum of the masters still names. It is unknown how many there are if those who are
// silent could make a quorum with those that name one.
func (r *revocation) count(lock redlock.LockInfo) {
	r.remain, r.left, r.unknown = 0, 0, false
	for _, n := range lock.Holders {
		if !slices.ContainsFunc(r.holders, func(h census.Holder) bool { return h.Token == n.Token }) {
			continue
		}
		switch stateOf(lock, n) {
		case held:
			r.remain++
			r.left = time.Duration(max(uint64(r.left), uint64(n.TTL))) // below 0 is the longest
		case unknown:
			r.unknown = true
		}
	}
}

func (r *revocation) who() string {
	if len(r.holders) > 1 {
		return plural(len(r.holders), "holder")
	}
	return ownerText(r.holders[0])
}

func (r *revocation) String() string {
	text, they, have := fmt.Sprintf("%s of %s is revoked; ", r.key, r.who()), "it", "has"
	if len(r.holders) > 1 {
		they, have = "they", "have"
	}
	switch {
	case r.unknown:
		return text + fmt.Sprintf("too few masters say whether %s %s let go", they, have)
	case r.ended:
		return text + fmt.Sprintf("%s %s not let go, and the key has ended", they, have)
	case r.remain == 0:
		return text + fmt.Sprintf("%s let go after %s", they, brief(r.after))
	case len(r.holders) > 1:
		text += fmt.Sprintf("%d of them %s not let go; ", r.remain, have)
	default:
		text += "it has not let go; "
	}
	if r.left < 0 {
		return text + "the key does not end"
	}
	return text + fmt.Sprintf("the key ends in %s", brief(r.left))
}

func (r *revocation) writeJSON(t *terminal) {
	out := struct {
		keyJSON
		Reason  string   `json:"reason"`
		Owners  []string `json:"owners"` // of those who have lost it; "" for one that left no name
		LetGo   *bool    `json:"let_go"` // null if it is not known
		AfterMS int64    `json:"after_ms"`
		LeftMS  *int64   `json:"left_ms,omitempty"` // until the key ends, if one has not let go
	}{keyJSON: newKeyJSON(r.key), Reason: r.reason, AfterMS: r.after.Milliseconds()}
	for _, h := range r.holders {
		out.Owners = append(out.Owners, h.Owner())
	}
	if !r.unknown {
		out.LetGo = new(r.remain == 0 && !r.ended)
		if r.remain > 0 {
			out.LeftMS = leftMS(r.left)
		}
	}
	writeJSON(t, out)
}
