package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/spf13/cobra"
)

func newRelease() *cobra.Command {
	var r releaser
	cmd := &cobra.Command{
		Use:   "release [flags] KEY",
		Short: "Take a stuck lock away from its holder",
		Long: `release frees a lock that another holds, and says whom it took it from. Nothing
excludes the holder any more. It learns of that when the masters notify it, or
when it renews the lock the next time: another may have the lock by then. So
make sure first that the holder is gone, or end it. 'redlock revoke' is the safe
way: it has the holder stop first. A lock that nobody renews is free after its
TTL anyway.

  --token T   releases the lock if its token is T, and no other: that of the one
              which was given the token (REDLOCK_TOKEN), or was looked at with
              'redlock status --json'. --token - reads it from stdin, where
              others cannot see it.
  --force     shows who holds the lock, asks on the terminal, and releases the
              lock of this holder. One of several readers, or of permits, is
              named by its token.

Exit status: 0 it was released, 1 it is free, 64 wrong usage or the answer was
no, 74 write error, 96 another holds it (with --token), 97 too few masters
answered.
` + mastersHelp,
		Example: `  redlock release --force lock:report
  echo "$REDLOCK_TOKEN" | redlock release --token - lock:report
  redlock status --json lock:gpu --permits 4 | jq -r '.permits[0].token' |
    redlock release --token - --permits 4 lock:gpu`,
		Args: keyOnly,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.permitted = cmd.Flags().Changed("permits")
			switch {
			case r.token == "" && !r.force:
				return usageError("'redlock status --json' shows the token of the holder", "give the lock's --token, or --force")
			case r.token == stdin && r.given.file == stdin:
				return usageError("", "--token and --masters-file cannot both be stdin")
			case r.permitted && r.force:
				return usageError("name the permit by its --token", "--permits and --force do not go together")
			}
			if r.permitted {
				if err := checkPermits(r.permits); err != nil {
					return err
				}
			}
			return r.release(cmd.Context(), args[0])
		},
	}
	r.given.register(cmd)
	registerKeyBase64(cmd)
	flags := cmd.Flags()
	flags.StringVar(&r.token, "token", "", "release the lock that has this `token`; - reads it from stdin")
	flags.BoolVar(&r.force, "force", false, "release the lock of whoever holds it, after a question")
	flags.IntVar(&r.permits, "permits", 0, "release one of the `N` permits of the key, 1 to 1000")
	cmd.MarkFlagsMutuallyExclusive("token", "force")
	return cmd
}

// A target is the lock of another process that a command is to take away.
type target struct {
	given     mastersFlags
	token     string
	permits   int
	permitted bool
	masterSet
}

// read reads what the flags name: the masters, and the token if stdin has it.
func (t *target) read() (err error) {
	if t.masterSet, err = t.given.masterSet(); err != nil {
		return err
	}
	if t.token == stdin {
		line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		if t.token = strings.TrimSpace(line); t.token == "" {
			return usageError("the token is its first line", "--token: stdin is empty")
		}
	}
	return nil
}

// missing is the error if nobody has the lock under the token.
func (t *target) missing(s *lockStatus) error {
	status := exitHeld
	if s.state == free {
		status = exitNo
	}
	switch {
	case s.state == unknown:
		return s.unsure()
	case t.permitted:
		return &failure{status, fmt.Errorf("no permit of %q has this token", s.key), ""}
	case s.state == free:
		return &failure{status, fmt.Errorf("%q is free", s.key), ""}
	}
	return &failure{status, fmt.Errorf("%q is held under another token", s.key), fmt.Sprintf("by %s, %s", s.holder(), leftText(s.left()))}
}

// A releaser releases a lock of another process.
type releaser struct {
	target
	force bool
}

func (r *releaser) release(ctx context.Context, key string) error {
	if err := r.read(); err != nil {
		return err
	}
	who, opts, err := r.choose(ctx, key)
	if err != nil {
		return err
	}
	out := newTerminal(os.Stdout)
	if r.force {
		if err := r.ask(key, who); err != nil {
			return err
		}
	}
	if err := r.take(ctx, key, opts); err != nil {
		return err
	}
	if err := r.keepAway(ctx, key, opts); err != nil {
		return err
	}
	out.say("", plain, fmt.Sprintf("%s was taken from %s", key, who))
	return out.failure()
}

// choose finds the holder that is to lose the lock. It leaves its token, and returns who it is and what
// kind of lock it has.
func (r *releaser) choose(ctx context.Context, key string) (who string, opts []redlock.Option, err error) {
	if r.permitted {
		a := r.permitStatus(ctx, key, r.permits)
		if err := a.check(); err != nil {
			return "", nil, err
		}
		for i, s := range a.permits {
			if r.means(s.leader) {
				return fmt.Sprintf("%s (permit %d)", ownerText(s.leader.Holder), i+1), []redlock.Option{redlock.WithPermits(r.permits)}, nil
			}
		}
		return "", nil, r.missing(a.lockStatus)
	}
	s := r.lockStatus(ctx, key)
	for _, c := range append([]*census.Claim{s.leader}, s.readers...) {
		if !r.means(c) {
			continue
		}
		if c.Reader {
			opts = append(opts, redlock.WithShared())
		}
		return fmt.Sprintf("%s, %s", ownerText(c.Holder), leftText(c.Lasts())), opts, nil
	}
	switch {
	case !r.force || s.state != held:
		return "", nil, r.missing(s)
	case s.leader.Token == census.Unknown:
		return "", nil, usageError("look at it with redis-cli, and delete it there", "%q is %s", key, ownerText(s.leader.Holder))
	case s.sharing > 0:
		return "", nil, usageError("name one by its --token: 'redlock status --json' shows them", "%q is held by %s", key, readersText(s.sharing))
	}
	r.token = s.leader.Token.Reveal()
	return fmt.Sprintf("%s, %s", ownerText(s.leader.Holder), leftText(s.leader.Lasts())), nil, nil
}

// means reports whether the token is that of a claim, or was: a lock that is only left there has another. It takes the
// claim's.
func (r *releaser) means(c *census.Claim) bool {
	switch token := c.Token.Reveal(); {
	case token == "", strings.TrimPrefix(token, kind.LeftMark) != strings.TrimPrefix(r.token, kind.LeftMark):
		return false
	default:
		r.token = token
		return true
	}
}

// ask asks on the terminal whether the holder is to lose the lock.
func (r *releaser) ask(key, who string) error {
	if !isTerminal(os.Stdin) {
		return usageError("a script names the holder by its --token", "--force asks on a terminal, and stdin is none")
	}
	screen := newTerminal(os.Stderr)
	screen.say("", plain, fmt.Sprintf("%s is held by %s. If this holder is still at work, another may be at the same time.", key, who))
	return confirmed(screen, "Take it away?")
}

// confirmed asks on the terminal, and returns an error unless the answer is yes.
func confirmed(screen *terminal, question string) error {
	screen.printf("%s Type yes: ", question)
	answer, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	if strings.TrimSpace(answer) != "yes" {
		return usageError("", "nothing was changed")
	}
	return nil
}

// take releases the lock.
func (r *releaser) take(ctx context.Context, key string, opts []redlock.Option) error {
	client, err := r.openAll(ctx, "release")
	if err != nil {
		return err
	}
	defer client.Close()
	const ttl = time.Minute // it means nothing: the lock is not extended
	opts = append(opts, redlock.WithToken(r.token))
	if err := client.CheckMutex(key, ttl, opts...); err != nil {
		return usageError("", "%w", err)
	}
	err = client.NewMutex(key, ttl, opts...).Unlock(ctx)
	deliver(ctx, client, r.given.dialTimeout)
	switch {
	case errors.Is(err, redlock.ErrRevoked): // its keys are deleted nevertheless
	case errors.Is(err, redlock.ErrNotHeld):
		return &failure{exitNo, fmt.Errorf("%q is free, or another's by now", key), ""}
	case err != nil:
		return &failure{exitNoQuorum, err, "it may be released all the same: see 'redlock status'"}
	}
	return nil
}

// keepAway releases the lock again if its holder has set it again. A holder that keeps its lock alive is notified of a
// master that has lost it, and repairs that. It finds that the lock is over when a majority has lost it, which
// takes longer than usual where masters are slow.
func (r *releaser) keepAway(ctx context.Context, key string, opts []redlock.Option) error {
	const (
		pause = 100 * time.Millisecond // longer than a holder waits until it looks at its lock
		tries = 10
	)
	r.force = false // nobody else is to lose the lock
	again := 0      // how often a majority had it again
	for range tries {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		if _, _, err := r.choose(ctx, key); err != nil {
			return nil // it is gone, as far as one can see
		}
		var f *failure
		switch err := r.take(ctx, key, opts); {
		case err == nil:
			again++
		case errors.As(err, &f) && f.status != exitNo:
			return err
		}
	}
	if again < tries { // few masters name it: they may refuse to delete it
		return nil
	}
	return &failure{exitHeld, fmt.Errorf("%q was released %d times, and its holder has set it again each time", key, tries+1), "'redlock revoke' has it stop"}
}
