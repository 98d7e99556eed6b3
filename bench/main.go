// The benchmark compares redburst with the libraries that users could choose
// instead. It starts masters of its own and writes a report: a Markdown table with
// the spread of every ratio, and a picture.
//
//	go run .            # everything
//	go run . -quick     # five cases, in a minute
//	go run . -cases 'hot=*' -libs 'redburst,redsync-*'
//	go test -bench .    # the same cases for benchstat
//
// All contestants take turns in every round of a case, so that noise of the machine
// hits all alike. Ratios are between figures of the same round. The speed of a machine
// wanders within seconds, so many short rounds say more than a few long ones: on one that
// others used as well, the interval of a ratio was about a fifth as wide with 60 rounds of
// 50 ms as with 5 of 600 ms, for a quarter more time. The absolute figures hold for one machine that runs the clients and all masters;
// ratios hold on others, too.
//
// It needs Linux and a redis-server that speaks TLS.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	if playRole() {
		return
	}
	var (
		quick  = flag.Bool("quick", false, "the five cases that matter most, with few contestants, in a minute; it prints a table")
		rounds = flag.Int("rounds", 25, "how many `times` each contestant takes its turn in a case; fewer in a case of longer turns")
		length = flag.Duration("slice", 50*time.Millisecond, "how long a turn lasts; longer where a case needs it")
		cases  = flag.String("cases", "", "comma-separated `names` of the cases, or patterns as handover*; all if empty, or the five of -quick")
		libs   = flag.String("libs", "", "comma-separated `names` of the contestants; all if empty")
		out    = flag.String("out", "", "the `directory` of the report; report if empty, or report/part if some cases or contestants were chosen")
	)
	flag.Var(&pins, "cpuset", "pin masters and clients to `CPUs` that are apart, as in masters=2-5,clients=0-1")
	flag.Parse()
	if *out == "" {
		*out = "report"
		if *quick || *cases != "" || *libs != "" { // git ignores it
			*out = "report/part"
		}
	}
	if *quick {
		given := map[string]bool{}
		flag.Visit(func(f *flag.Flag) { given[f.Name] = true })
		if !given["rounds"] {
			*rounds = mostRounds
		}
		if *cases == "" {
			*cases = quickCases
		}
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := benchmark(ctx, *quick, *rounds, *length, *cases, *libs, *out); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// What a quick run measures and spends.
const (
	quickCases = "serial,goroutines=256,contended,hung,handover"
	quickTime  = 12 * time.Second // for each case, however many rounds that is
	quickLeast = 250 * time.Millisecond
	quickKeys  = 1000
	mostRounds = 1000
)

// hurried is the case as a quick run has it: in rounds as short as can be, of which there are many.
func (k Case) hurried() Case {
	if k.many { // every lock is renewed about once
		k.Keys, k.least, k.TTL = quickKeys, lockTTL/3, 0
		return k
	}
	k.least, k.spend = min(k.least, quickLeast), quickTime
	k.rounds = 0
	if k.group != "" {
		k.rounds = 1
	}
	return k
}

// hurries reports whether the contestant takes part in the case in a quick run: in the mode that suits the case best.
func (c Contestant) hurries(k Case) bool {
	switch {
	case c.Peer():
		return c.quick && (!k.waits || c.patient || c.single)
	case c.Floor():
		return c.quick && c.shared == (k.Goroutines > 1)
	}
	return c.quick
}

func benchmark(ctx context.Context, quick bool, rounds int, length time.Duration, cases, libs, out string) error {
	if rounds < 1 || rounds > mostRounds || length <= 0 {
		return errors.New("there must be 1 to 1000 rounds, and a slice of some length")
	}
	if err := pins.pinClients(); err != nil {
		return err
	}
	ks, err := choose(cases, Cases(), caseName)
	if err != nil {
		return fmt.Errorf("-cases: %w", err)
	}
	cs, err := choose(libs, Contestants(), contestantName)
	if err != nil {
		return fmt.Errorf("-libs: %w", err)
	}
	began := time.Now()
	report := Report{Rounds: rounds, Slice: length, Command: invocation(os.Args[1:]), Revision: revision()}
	for i, k := range ks {
		if quick {
			k = k.hurried()
		}
		var takes []Contestant
		for _, c := range cs {
			if k.Wants(c) && (!quick || libs != "" || c.hurries(k)) {
				takes = append(takes, c)
			}
		}
		fmt.Fprintf(os.Stderr, "%5.0fs  %2d/%d  %s: %s\n", time.Since(began).Seconds(), i+1, len(ks), k.Name, k.About)
		r, err := k.run(ctx, takes, k.turns(rounds, length), length)
		if err != nil {
			return fmt.Errorf("case %s: %w", k.Name, err)
		}
		report.Results = append(report.Results, r)
	}
	report.Took = time.Since(began)
	if err := report.Write(out); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%5.0fs  %s\n", report.Took.Seconds(), report.path(out))
	if quick || cases != "" || libs != "" {
		if _, err := os.Stdout.Write(report.table()); quick || err != nil {
			return err
		}
	}
	if noisy := report.Noisy(); len(noisy) > 0 {
		fmt.Fprintf(os.Stderr, "WARNING: the rounds differ so much that these ratios say nothing. Run the cases again with less beside them, or with more -rounds.\n  %s\n",
			strings.Join(noisy, "\n  "))
	}
	return nil
}

// A Result is what a case came to.
type Result struct {
	Case        Case
	Server      string // what the masters are
	Contestants []Contestant
	Rounds      [][]*Sample // by round, then as Contestants
}

// run measures the case. The order of turns moves on from round to round, so
// that nobody always follows the same one.
func (k Case) run(ctx context.Context, cs []Contestant, rounds int, length time.Duration) (r Result, err error) {
	r = Result{Case: k, Contestants: cs}
	f, err := StartFleet(k)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	r.Server = f.server()
	began := time.Now()
	for round := range rounds {
		if k.spend > 0 && round >= leastRounds && time.Since(began) > k.spend {
			break
		}
		samples := make([]*Sample, len(cs))
		for turn := range cs {
			if err := ctx.Err(); err != nil {
				return r, err
			}
			i := (turn + round) % len(cs)
			s := slice{Case: k, contestant: cs[i], fleet: f, length: length}
			if samples[i], err = s.run(); err != nil {
				return r, fmt.Errorf("%s: %w", cs[i].Name, err)
			}
		}
		r.Rounds = append(r.Rounds, samples)
	}
	return r, nil
}
