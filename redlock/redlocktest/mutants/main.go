// Mutants plants faults in the library, one at a time, and runs the tests that should
// notice them.
//
//	go run ./redlock/redlocktest/mutants
//	go run ./redlock/redlocktest/mutants -only 'fence|permits' -v
//	go run ./redlock/redlocktest/mutants -area 'mux/|held/relay'
//	go run ./redlock/redlocktest/mutants -change main -within 2m
//	go run ./redlock/redlocktest/mutants -chaos
//	go run ./redlock/redlocktest/mutants -list
//
// Each fault is a file beside this one, NAME.mutant:
//
//	The validity is longer than it may be: nothing is subtracted for the drift.
//
//	Breaks: safety
//	Test: ./redlock TestValidityIsShorterThanTheTTL
//
//	--- old
//		return ttl - d
//	--- new
//		return ttl
//
// The first says what is wrong then. Breaks is one of safety (two may hold
// what excludes them), security (somebody sees a secret, or is taken for another), liveness
// (somebody waits for nothing), resources (something is left, or costs too much) and report
// (something wrong is said). Test names a package and
// its tests, in full, with their subtests; of these, one that fails is enough. It may
// stand several times. Tags are build tags, and Flags are of go test, such as -short. "Chaos: yes"
// says that chaos notices it, too. Way is the kind of test that notices it, where that matters: one of
// second time, one of several, bounds of time, window and not to be said.
//
// The old text is whole lines. It is looked up in all files of the module, also of the nested ones, but for tests. It must stand in one
// place: if it is not unique, it needs a line more. So code can move to another file or package, and the fault goes
// with it. A mutant may have several pairs of texts.
//
// -only takes those whose names match, -area those whose text is in a file whose path matches, and -change those whose text
// differs from a revision, or that differ themselves. With -within, none begins later than that: the order is
// by chance then, and what was not tried is said. With both, those come first that were committed last.
//
// Nothing is changed here: the files that git has, or would have, are copied to a temporary
// directory, as they are in the work tree. The tests of each fault must first pass there without it.
// Then a fault is noticed if its tests compile and one of them fails or panics. One that is noticed only because
// the tests do not end is the fault of the tests.
//
// With -chaos, chaos takes the place of the tests: a minute of it in all, in runs of 20 s with
// the seeds 1, 2 and 3. Only what breaks safety is tried, and of that what chaos should notice,
// or with -all the rest, too. Half of all that breaks safety is to be noticed. What chaos sees
// depends on chance, so not each must be. A fault with which it could not be done is not noticed.
//
// The exit status is 0 if all faults that were tried are noticed, or with -chaos half of them. It is 1 if not, or if one does
// not apply or does not compile, or its tests fail without it. It is 2 if nothing could be tried, but 0 if nothing has changed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// here is where the mutants are, in the module.
const here = "redlock/redlocktest/mutants"

// A job is what is to be tried.
type job struct {
	root    string // of the module
	mutants string // the directory
	only    *regexp.Regexp
	area    *regexp.Regexp
	change  string // a revision
	within  time.Duration
	atOnce  int
	timeout time.Duration // of the tests of one mutant
	list    bool
	verbose bool
	chaos   bool // in place of the tests
	all     bool

	timeIsUp <-chan struct{} // never, if within is 0
}

func main() {
	j := job{only: regexp.MustCompile(""), area: regexp.MustCompile("")}
	flag.Func("only", "a regular expression for the names of the mutants to try, such as 'fence|permits'",
		func(s string) (err error) { j.only, err = regexp.Compile(s); return err })
	flag.Func("area", "a regular expression for the paths of files; those whose text is in one are tried, such as 'mux/|held/relay'",
		func(s string) (err error) { j.area, err = regexp.Compile(s); return err })
	flag.StringVar(&j.change, "change", "", "a revision; those whose text differs from it are tried, or that differ themselves")
	flag.DurationVar(&j.within, "within", 0, "none begins later than that")
	flag.IntVar(&j.atOnce, "j", 1, "how many to try side by side")
	flag.DurationVar(&j.timeout, "timeout", 100*time.Second, "how long the tests of one mutant may take, more than a test waits for what must happen; longer is a failure of theirs")
	flag.BoolVar(&j.list, "list", false, "print the mutants and run nothing")
	flag.BoolVar(&j.verbose, "v", false, "print what the tests say")
	flag.BoolVar(&j.chaos, "chaos", false, "let chaos notice what breaks safety, in place of the tests")
	flag.BoolVar(&j.all, "all", false, "with -chaos, try also what chaos need not notice")
	flag.Parse()

	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := j.start(ctx, os.Stdout)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
	}
	os.Exit(code)
}

// start finds the module and does the job there.
func (j job) start(ctx context.Context, w io.Writer) (int, error) {
	root, err := output(command(ctx, "", "go", "list", "-m", "-f", "{{.Dir}}"))
	if err != nil {
		return 2, err
	}
	j.root = strings.TrimSpace(root)
	j.mutants = filepath.Join(j.root, filepath.FromSlash(here))
	return j.do(ctx, w)
}

// do returns the exit status.
func (j job) do(ctx context.Context, w io.Writer) (int, error) {
	all, err := load(j.mutants)
	if err != nil {
		return 2, err
	}
	files, err := tracked(ctx, j.root)
	if err != nil {
		return 2, err
	}
	src, err := read(j.root, files)
	if err != nil {
		return 2, err
	}
	changed := &change{}
	if j.change != "" {
		if changed, err = since(ctx, j.root, j.change); err != nil {
			return 2, err
		}
	}
	all = slices.DeleteFunc(all, func(m *mutant) bool {
		return !j.only.MatchString(m.name) || j.chaos && m.breaks != "safety" || !m.stands(src, func(p place) bool { return j.area.MatchString(p.file) }) ||
			j.change != "" && !changed.touches(m, src)
	})
	candidates := len(all)
	if j.chaos && !j.all {
		all = slices.DeleteFunc(all, func(m *mutant) bool { return !m.chaos })
	}
	switch {
	case len(all) == 0 && j.change != "":
		fmt.Fprintf(w, "no mutant's text differs from %s\n", j.change)
		return 0, nil
	case len(all) == 0:
		return 2, errors.New("there is none")
	}
	if j.within > 0 {
		rand.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
		if j.change != "" {
			if err := changed.newestFirst(ctx, j.root, j.change, all); err != nil {
				return 2, err
			}
		}
	}
	if j.list {
		for _, m := range all {
			fmt.Fprintf(w, "%-44s %-10s %s\n", m.name, m.breaks, m.fault)
		}
		return 0, nil
	}
	trees, clean, err := plant(j.root, files, max(1, j.atOnce))
	defer clean()
	if err != nil {
		return 2, err
	}
	begun := time.Now()
	if j.chaos {
		if err := calm(ctx, trees[0], w); err != nil {
			return 2, err
		}
	}
	results, err := j.tryAll(ctx, trees, all, src, w)
	if err != nil {
		return 2, err
	}
	status := sum(w, all, results, time.Since(begun))
	if j.chaos {
		status = half(w, results, candidates)
	}
	return status, nil
}

// sum says what became of the mutants, and returns the exit status.
func sum(w io.Writer, all []*mutant, results []result, took time.Duration) int {
	fmt.Fprintf(w, "\n%d mutants in %v\n", len(all), took.Round(time.Second))
	status := 0
	for _, o := range []outcome{noticed, untried, late, unnoticed, undone, unapplied, uncompiled, unsound} {
		var names []string
		for i, r := range results {
			if r.outcome == o {
				names = append(names, all[i].name)
			}
		}
		switch {
		case o == noticed, o == untried && len(names) > 0:
			fmt.Fprintf(w, "%s: %d\n", o, len(names))
		case len(names) > 0:
			fmt.Fprintf(w, "%s: %d: %s\n", o, len(names), strings.Join(names, ", "))
			status = 1
		}
	}
	return status
}

// half says whether chaos has noticed half of the faults that it could have, and returns the
// exit status.
func half(w io.Writer, results []result, candidates int) int {
	seen, status := 0, 0
	for _, r := range results {
		switch r.outcome {
		case noticed:
			seen++
		case unapplied, uncompiled:
			status = 1
		}
	}
	fmt.Fprintf(w, "chaos has noticed %d of %d that break safety\n", seen, candidates)
	if 2*seen < candidates {
		status = 1
	}
	return status
}
