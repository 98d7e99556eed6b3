package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/processes"
	"github.com/spf13/cobra"
)

func newDemo() *cobra.Command {
	var f mastersFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show how the lock works, on masters of its own",
		Long: `demo starts five Redis masters on this machine and shows a lock at work there:
how it is taken and refused, that a frozen and a killed master change nothing,
how it is extended and released. It checks what it shows, and leaves nothing.

The masters are redis-servers, or valkey-servers where there are no others. If
none is installed, --masters names masters of yours, or this command can be
built with embedded ones:

  go run -tags redburst_embedded \
    github.com/redburst/redburst/redlock/cmd/redlock@latest demo

With --masters or --masters-file demo uses your masters, and neither freezes nor
kills them. It ignores REDLOCK_MASTERS.

Exit status: 0 if everything was as told, 1 if not.`,
		Example: `  redlock demo
  redlock demo --masters redis-a:6379,redis-b:6379,redis-c:6379`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(*cobra.Command, []string) error {
			ctx, stop := untilSignal()
			defer stop()
			ctx, cancel := context.WithTimeoutCause(ctx, demoLimit, fmt.Errorf("it took longer than %v", demoLimit))
			defer cancel()
			d := &demo{terminal: newTerminal(os.Stdout), started: time.Now()}
			err := d.prepare(ctx, &f)
			if err == nil {
				if err = d.show(ctx); err != nil {
					err = fmt.Errorf("not as told: %w", err)
				}
			}
			d.close()
			return d.conclude(ctx, err)
		},
	}
	f.register(cmd)
	return cmd
}

const (
	demoMasters = 5
	demoTTL     = 10 * time.Second
	demoRounds  = 100                    // measured for each row,
	demoRowTime = 500 * time.Millisecond // or as many as this time allows
	demoPatient = 3 * time.Second        // for a round: a busy machine is no failure
	demoLimit   = 12 * time.Second       // for the whole demo, which usually takes one second
)

// A demo is the show, and what it has to clean up.
type demo struct {
	*terminal
	started  time.Time
	ours     demoServers // nil if they are the user's
	password string      // of these: other users of the machine cannot use them meanwhile
	masterSet
	key string

	frozen, killed int // the numbers of the masters that will fail, if they are ours

	alice, bob *redlock.Client
	told       atomic.Pointer[redlock.Event] // alice's last round
}

// prepare starts the masters, or takes the user's, and connects alice and bob.
func (d *demo) prepare(ctx context.Context, f *mastersFlags) (err error) {
	if len(f.masters) > 0 || f.file != "" {
		if d.masterSet, err = f.masterSet(); err != nil {
			return err
		}
		d.title(fmt.Sprintf("A lock on %s of yours", plural(len(d.masters), "master")))
	} else {
		how, err := d.start()
		if err != nil {
			return err
		}
		d.title(fmt.Sprintf("A lock on %s, %s", plural(demoMasters, "Redis master"), how))
		d.masters, d.connect.Password = d.ours.Addrs(), redlock.NewSecret(d.password)
	}
	d.key = "lock:redlock-demo:" + rand.Text()[:8]
	if d.alice, err = d.open(ctx, "alice"); err != nil {
		return err
	}
	d.bob, err = d.open(ctx, "bob")
	return err
}

// start starts real masters, or else embedded ones, and says which.
func (d *demo) start() (how string, err error) {
	why := "cannot be frozen here"
	d.password = rand.Text()
	if !processes.Supported {
		err = errors.New("a redis-server " + why)
	} else if d.ours, err = startRedisServers(demoMasters, d.password); err == nil {
		return "started for it", nil
	} else if _, missing := processes.RedisServer(); missing != nil {
		why = "is not installed"
	} else {
		why = "does not start"
	}
	if startEmbedded == nil {
		return "", &failure{exitNo, fmt.Errorf("the masters do not start: %w", err),
			"'redlock demo --help' says how to see it without a redis-server"}
	}
	if why == "does not start" {
		complain("redis-server does not start, so the masters are embedded: "+err.Error(), "")
	}
	d.ours, err = startEmbedded(demoMasters, d.password)
	return "embedded, as redis-server " + why, err
}

// open connects a client to all masters that are up.
func (d *demo) open(ctx context.Context, owner string) (*redlock.Client, error) {
	cfg := d.clientConfig("demo")
	cfg.RoundTimeout, cfg.Owner = demoPatient, owner
	if owner == "alice" {
		cfg.Observers = []redlock.Observer{func(_ context.Context, e *redlock.Event) {
			if e.Kind == redlock.EventRound {
				round := *e
				round.Votes = slices.Clone(e.Votes)
				d.told.Store(&round)
			}
		}}
	}
	client, err := redlock.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return client, d.until(ctx, time.Second, func() bool {
		return !slices.ContainsFunc(client.Stats().Masters, func(m redlock.MasterStats) bool { return m.Phase != "up" })
	})
}

// last returns alice's last round, of which her Observer is told a moment later.
func (d *demo) last() *redlock.Event {
	for d.alice.Stats().EventsWaiting > 0 {
		time.Sleep(10 * time.Microsecond)
	}
	return d.told.Load()
}

// until waits until reached is true, for at most limit. It is an error only if the
// context ends.
func (d *demo) until(ctx context.Context, limit time.Duration, reached func() bool) error {
	for end := time.Now().Add(limit); !reached() && time.Now().Before(end); {
		select {
		case <-time.After(2 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (d *demo) close() {
	for _, client := range []*redlock.Client{d.alice, d.bob} {
		if client != nil {
			client.Close()
		}
	}
	if d.ours != nil {
		d.ours.Close()
	}
}

// conclude says how the show went, and makes err the failure that it exits with.
func (d *demo) conclude(ctx context.Context, err error) error {
	var (
		s signalled
		f *failure
	)
	switch {
	case errors.As(context.Cause(ctx), &s):
		d.printf("\nStopped; nothing is left.\n")
		return &failure{status: statusOf(s.Signal)}
	case err == nil:
		d.printf("\n%s It took %s, and nothing is left of it.\n", d.paint(green, "Everything was as told."), brief(time.Since(d.started)))
		return nil
	case errors.As(err, &f):
		return err
	}
	if cause := context.Cause(ctx); cause != nil {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	remedy := ""
	if d.ours == nil {
		remedy = "'redlock doctor' with the same flags says what is wrong with the masters"
	}
	return &failure{exitNo, err, remedy}
}
