package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/internal/defaults"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/spf13/cobra"
)

func newFence() *cobra.Command {
	f := fenceCommand{ttl: 30 * time.Second}
	cmd := &cobra.Command{
		Use:   "fence [flags] KEY...",
		Short: "Show the counters of a lock's fence, or set them back",
		Long: `fence shows, for each master, the counter of the fence of the lock on each KEY,
and how far it is ahead of this machine's clock. Fences grow with the clock, so
a counter that is ahead by more than --skew was written by somebody, or by a
process whose clock is wrong. Nobody believes it. On a minority of the masters
a next holder that hears of it, and is no reader, sets it back. On a majority no
lock with a fence can be taken any more, and its error names this command. Look
first whether the clock here, or that of the process, is far back.

--reset-to N sets the counters of the KEYs to N on all masters: the next fence
is above N. N is a number or "now", the clock in microseconds, which is what
fences begin with. The command takes the lock itself meanwhile, so nobody else
must hold it. A lock on several keys has the greatest of their counters: name
all of them.

A fence may come after that which is lower than earlier ones. So keep to this
order:

  1. End every process that may have had the lock, or wait for longer than any
     of them can be paused. Nobody who has an old fence may write any more.
  2. redlock fence KEY --reset-to now
  3. If the resource has stored a greater fence than N, set that to N. Until
     then it refuses everybody, which does no harm. If it is done before step 1
     has ended, the resource may take a write of an old holder.

A master that does not answer keeps its counter. Run the command again when it
is up.

--json writes one object for each key: key, answered, quorum, and masters, each
with its counter, by how many milliseconds that is ahead of this clock, and
whether it is believed.

Exit status: 0 all is well, 1 a counter is too far ahead, 64 wrong usage, 74
write error, 96 another holds the lock (with --reset-to), 97 too few masters
answered, 128+n signal n has ended it (with --reset-to).
` + mastersHelp,
		Example: `  redlock fence lock:report
  redlock fence lock:report --reset-to now
  psql -c "UPDATE reports SET fence = $N WHERE fence > $N"   # step 3`,
		Args: someKeys,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if f.masterSet, err = f.given.masterSet(); err != nil {
				return err
			}
			if f.skew < 0 {
				return usageError("", "--skew is negative")
			}
			if f.json && cmd.Flags().Changed("reset-to") {
				return usageError("", "--json shows counters, and --reset-to sets them")
			}
			f.now = time.Now()
			if cmd.Flags().Changed("reset-to") {
				ctx, stop := untilSignal() // or its lock would stay behind
				defer stop()
				err := f.reset(ctx, args)
				var by signalled
				if err != nil && errors.As(context.Cause(ctx), &by) {
					return &failure{statusOf(by.Signal), errors.New("interrupted: some of the counters may be set"), "run the command again"}
				}
				return err
			}
			return f.show(cmd.Context(), args)
		},
	}
	f.given.register(cmd)
	registerKeyBase64(cmd)
	cmd.Flags().StringVar(&f.to, "reset-to", "", "set the counters to `N`, a number or \"now\"")
	cmd.Flags().BoolVar(&f.json, "json", false, "write JSON")
	cmd.Flags().DurationVar(&f.skew, "skew", round.FenceSkew, "how far ahead of the clock clients believe a counter: Config.FenceMemory, and 24h at most")
	return cmd
}

// A fenceCommand shows the counters of a fence, and sets them back.
type fenceCommand struct {
	given mastersFlags
	to    string
	json  bool
	skew  time.Duration
	now   time.Time
	ttl   time.Duration // of the lock that it has while it sets them
	masterSet
}

// A counter is what one master says about the counter of a key.
type counter struct {
	text string // as it is there; empty if there is none
	n    uint64 // quorum.MaxFence if that is no number that can grow
}

// far reports whether nobody believes the counter.
func (f *fenceCommand) far(c counter) bool {
	return c.n >= quorum.MaxFence || c.n > uint64(f.now.Add(f.skew).UnixMicro())
}

func newCounter(text string) (c counter) {
	c.text = text
	if n, err := strconv.ParseFloat(cmp.Or(text, "0"), 64); err != nil || !(n >= 0 && n < quorum.MaxFence) {
		c.n = quorum.MaxFence
	} else {
		c.n = uint64(n)
	}
	return c
}

func (f *fenceCommand) show(ctx context.Context, keys []string) error {
	out, wrong, noNumber := newTerminal(os.Stdout), false, false
	for i, key := range keys {
		all := make([]counter, len(f.masters))
		errs := f.askAll(ctx, func(i int, p *probe) error {
			row, err := p.values(ctx, kind.CounterKey(f.key(key)))
			if err != nil {
				return err
			}
			for _, h := range row.Holders {
				switch {
				case h.Token != census.Unknown:
					all[i] = newCounter(h.Token.Reveal())
				case h.Size > 0:
					all[i] = counter{fmt.Sprintf("%d bytes", h.Size), quorum.MaxFence}
				default:
					all[i] = counter{cmp.Or(h.Type, "no string"), quorum.MaxFence}
				}
			}
			return nil
		})
		if f.json {
			f.writeJSON(out, key, all, errs)
		}
		answered := 0
		rows := [][]cell{header("MASTER", "COUNTER", "AHEAD OF THE CLOCK")}
		for i, c := range all {
			row := []cell{{conn.Redact(f.masters[i]), plain}, {"-", dim}, {"-", dim}}
			switch {
			case errs[i] != nil:
				row[2] = cell{without(errs[i], f.masters[i]), red}
			case c.text != "":
				row[1], row[2] = cell{clip(c.text, 20), plain}, f.distance(c)
			}
			if errs[i] == nil {
				answered++
				wrong, noNumber = wrong || f.far(c), noNumber || c.n == quorum.MaxFence
			}
			rows = append(rows, row)
		}
		if !f.json {
			if i > 0 {
				out.printf("\n")
			}
			out.say("", plain, key)
			out.table("", 1, rows)
		}
		if err := out.failure(); err != nil {
			return err
		}
		if answered < quorum.Majority(len(all)) {
			return &failure{exitNoQuorum, fmt.Errorf("%d of %s answered", answered, plural(len(all), "master")), doctorRemedy}
		}
	}
	switch {
	case noNumber:
		return &failure{exitNo, errors.New("a counter is no number that can grow: somebody else has written it, and nobody believes it"),
			"'redlock fence --help' says how it is set"}
	case wrong:
		return &failure{exitNo, fmt.Errorf("a counter is more than %v ahead of this clock, %s: nobody with this clock believes it",
			f.skew, f.now.UTC().Format(time.RFC3339)), "if the clock is right, 'redlock fence --help' says how it is set back"}
	}
	return nil
}

// writeJSON writes what the masters say of a key, in the words of redlock status.
func (f *fenceCommand) writeJSON(out *terminal, key string, all []counter, errs []error) {
	type master struct {
		Master   string `json:"master"`
		Counter  string `json:"counter,omitempty"` // as it is there, which need not be a number
		AheadMS  *int64 `json:"ahead_ms,omitempty"`
		Believed bool   `json:"believed"` // false if it does not answer
		Error    string `json:"error,omitempty"`
	}
	of := struct {
		keyJSON
		Answered int      `json:"answered"`
		Quorum   int      `json:"quorum"`
		Masters  []master `json:"masters"`
	}{keyJSON: newKeyJSON(key), Quorum: quorum.Majority(len(all))}
	for i, c := range all {
		m := master{Master: conn.Redact(f.masters[i])}
		if errs[i] != nil {
			m.Error = without(errs[i], f.masters[i])
		} else {
			of.Answered++
			m.Counter, m.Believed = c.text, !f.far(c)
			if c.text != "" && c.n < quorum.MaxFence {
				m.AheadMS = new(int64(c.n)/1000 - f.now.UnixMilli())
			}
		}
		of.Masters = append(of.Masters, m)
	}
	writeJSON(out, of)
}

// distance says how far a counter is ahead of the clock.
func (f *fenceCommand) distance(c counter) cell {
	ahead := (time.Duration(c.n)*time.Microsecond - time.Duration(f.now.UnixMicro())*time.Microsecond).Round(time.Second)
	switch {
	case c.n == quorum.MaxFence:
		return cell{"it is no number that can grow", red}
	case f.far(c):
		return cell{ahead.String(), red}
	}
	return cell{ahead.String(), plain}
}

// resetScript sets the counters, which are the second half of the KEYS, where all keys are ours. ARGV token,
// number, how long the counters are to last at least in ms.
const resetScript = `local n = #KEYS / 2
for i = 1, n do
  if redis.call('GET', KEYS[i]) ~= ARGV[1] then
    return 0
  end
end
for i = n + 1, 2 * n do
  redis.call('SET', KEYS[i], ARGV[2], 'PX', math.max(redis.call('PTTL', KEYS[i]), tonumber(ARGV[3])))
end
return 1`

// number returns the number that the counters are to have.
func (f *fenceCommand) number() (uint64, error) {
	if f.to == "now" {
		return uint64(f.now.UnixMicro()), nil
	}
	n, err := strconv.ParseUint(f.to, 10, 64)
	switch {
	case err != nil || n == 0:
		return 0, usageError("give a number above zero, or \"now\"", "--reset-to %q is no number", f.to)
	case f.far(counter{n: n}):
		return 0, usageError("give a lower one, or \"now\"", "--reset-to %d is more than %v ahead of the clock, or cannot grow: nobody would believe it", n, f.skew)
	}
	return n, nil
}

func (f *fenceCommand) reset(ctx context.Context, keys []string) error {
	n, err := f.number()
	if err != nil {
		return err
	}
	client, err := redlock.Open(ctx, f.clientConfig("fence"))
	if err != nil {
		return &failure{exitNoQuorum, err, doctorRemedy}
	}
	defer client.Close()
	keys = slices.Clone(keys)
	slices.Sort(keys)
	keys = slices.Compact(keys)
	// While it has the lock nobody else moves the counters, and nobody is given one of them.
	if err := client.CheckMutex(keys[0], f.ttl, redlock.WithKeys(keys[1:]...)); err != nil {
		return usageError("", "%w", err)
	}
	m := client.NewMutex(keys[0], f.ttl, redlock.WithKeys(keys[1:]...))
	switch err := m.TryLock(ctx); {
	case errors.Is(err, redlock.ErrHeld):
		return &failure{exitHeld, err, "'redlock status' says who holds it, and 'redlock release' takes it away"}
	case errors.Is(err, redlock.ErrNoQuorum):
		return &failure{exitNoQuorum, err, doctorRemedy}
	case err != nil:
		return usageError("", "%w", err)
	}
	defer m.Unlock(ctx)

	args := []string{"EVAL", resetScript, strconv.Itoa(2 * len(keys))}
	for _, key := range keys {
		args = append(args, f.key(key))
	}
	for _, key := range keys {
		args = append(args, kind.CounterKey(f.key(key)))
	}
	args = append(args, m.Token(), strconv.FormatUint(n, 10), strconv.FormatInt(defaults.FenceMemory.Milliseconds(), 10))
	errs := f.askAll(ctx, func(_ int, p *probe) error { return resetOn(ctx, p, m, args) })
	if ctx.Err() != nil { // the errors do not say which counters were set
		return context.Cause(ctx)
	}
	valid := m.Remaining() > 0
	done := len(errs)
	for i, err := range errs {
		if err != nil {
			done--
			complain(fmt.Sprintf("%s keeps its counter: %s", conn.Redact(f.masters[i]), without(err, f.masters[i])), "")
		}
	}
	if done < quorum.Majority(len(errs)) || !valid {
		return &failure{exitNoQuorum, fmt.Errorf("the counters were set on %d of %s", done, plural(len(errs), "master")), doctorRemedy}
	}
	out := newTerminal(os.Stdout)
	for _, key := range keys {
		out.say("", plain, fmt.Sprintf("%s: the counter is %d on %d of %s, and the next fence is above it", key, n, done, plural(len(errs), "master")))
	}
	out.say("", plain, fmt.Sprintf("If the resource has stored a greater fence, set that to %d now, once nobody who has an old fence can write.", n))
	return out.failure()
}

// resetOn sets the counters on one master. The key can come later than the question, on another
// connection.
func resetOn(ctx context.Context, p *probe, m *redlock.Mutex, args []string) error {
	for until := time.Now().Add(time.Second); ; time.Sleep(10 * time.Millisecond) {
		replies, err := p.do(ctx, args)
		if err != nil {
			return err
		}
		v := replies[0]
		if v.IsError() {
			return errors.New(p.ErrorText(v))
		}
		if n, _ := v.Int(); n == 1 {
			return nil
		}
		if time.Now().After(until) || m.Remaining() == 0 {
			return errors.New("the lock could not be taken there")
		}
	}
}
