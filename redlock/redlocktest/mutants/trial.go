package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// An outcome is what became of a mutant.
type outcome string

const (
	noticed    outcome = "noticed"
	unnoticed  outcome = "NOT NOTICED"
	unapplied  outcome = "DOES NOT APPLY"
	uncompiled outcome = "DOES NOT COMPILE"
)

// A result is what became of a mutant, and what says so.
type result struct {
	outcome
	by   string // who noticed it
	said string
}

// passes runs the tests of all mutants where there is none. They must pass, and be there: a
// test that fails anyway, or is skipped, notices nothing.
func (j job) passes(ctx context.Context, t tree, all []*mutant, w io.Writer) error {
	var setups []setup
	names := map[setup][]string{}
	for _, m := range all {
		for _, ts := range m.tests {
			if names[ts.setup] == nil {
				setups = append(setups, ts.setup)
			}
			names[ts.setup] = append(names[ts.setup], ts.names...)
		}
	}
	for _, s := range setups {
		wanted := names[s]
		slices.Sort(wanted)
		wanted = slices.Compact(wanted)
		begun := time.Now()
		if err := t.compile(ctx, s); err != nil {
			return fmt.Errorf("without a mutant: %w", err)
		}
		said, err := t.run(ctx, s, wanted, 10*time.Minute, "-test.v")
		if j.verbose {
			io.WriteString(w, said)
		}
		if err != nil {
			return fmt.Errorf("without a mutant, %v does not pass: %w\n%s", s, err, said)
		}
		for _, name := range wanted {
			if !strings.Contains(said, "--- PASS: "+name+" (") {
				return fmt.Errorf("without a mutant, %v does not run %s, or skips it", s, name)
			}
		}
		fmt.Fprintf(w, "%-16s without a mutant: %v: %d tests (%.0fs)\n", "passed", s, len(wanted), time.Since(begun).Seconds())
	}
	return nil
}

// tryAll tries each mutant in one of the trees.
func (j job) tryAll(ctx context.Context, trees []tree, all []*mutant, w io.Writer) ([]result, error) {
	results, errs := make([]result, len(all)), make([]error, len(all))
	free := make(chan tree, len(trees))
	for _, t := range trees {
		free <- t
	}
	var running sync.WaitGroup
	var printing sync.Mutex
	for i, m := range all {
		t := <-free
		running.Go(func() {
			begun := time.Now()
			results[i], errs[i] = j.try(ctx, t, m)
			if errs[i] == nil { // otherwise the tree is not what it was, and whoever gets it fails, too
				printing.Lock()
				results[i].print(w, m, time.Since(begun), j.verbose)
				printing.Unlock()
			}
			free <- t
		})
	}
	running.Wait()
	return results, cmp.Or(errs...)
}

func (r result) print(w io.Writer, m *mutant, took time.Duration, verbose bool) {
	line := fmt.Sprintf("%-16s %-44s %-10s %s (%.0fs)", r.outcome, m.name, m.kind, r.by, took.Seconds())
	fmt.Fprintln(w, line)
	if verbose || r.outcome == unapplied || r.outcome == uncompiled {
		io.WriteString(w, r.said)
	}
}

// try applies a mutant, runs its tests, and takes it out again.
func (j job) try(ctx context.Context, t tree, m *mutant) (r result, err error) {
	if err := ctx.Err(); err != nil {
		return r, err
	}
	if err := t.apply(ctx, m.path); err != nil {
		if ctx.Err() != nil {
			return r, err
		}
		return result{outcome: unapplied, said: err.Error() + "\n"}, nil
	}
	defer func() {
		if ctx.Err() == nil { // otherwise the copy is thrown away
			err = errors.Join(err, t.apply(ctx, m.path, "-R"))
		}
	}()
	if j.chaos {
		return endure(ctx, t)
	}
	r.outcome = unnoticed
	for _, ts := range m.tests {
		if err := t.compile(ctx, ts.setup); err != nil {
			if ctx.Err() != nil {
				return r, err
			}
			return result{outcome: uncompiled, said: err.Error() + "\n"}, nil
		}
		said, err := t.run(ctx, ts.setup, ts.names, j.timeout, "-test.failfast")
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
		r.said += said
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			r.outcome, r.by = noticed, by(said)
			return r, nil
		}
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

// sign is a line that says why a test binary has failed.
var sign = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)|^(panic: .*|fatal error: .*)$`)

// by returns the innermost test of the first that failed; or else what ended the tests.
func by(said string) (name string) {
	for _, m := range sign.FindAllStringSubmatch(said, -1) {
		switch {
		case m[1] != "" && strings.HasPrefix(m[1], name):
			name = m[1]
		case name == "":
			name = m[2]
		}
	}
	return cmp.Or(name, "what is left")
}

// compile builds the tests, in the directory of their package, as that can be of a nested module. The paths of the copy are
// left out, so that the next copy's tests are in the cache already.
func (t tree) compile(ctx context.Context, s setup) error {
	_, err := output(command(ctx, t.of(s), "go", "test", "-c", "-trimpath", "-ldflags=-s -w", "-tags", s.tags, "-o", t.binary(s)))
	return err
}

// of returns the directory of a package.
func (t tree) of(s setup) string { return filepath.Join(t.dir, filepath.FromSlash(s.pkg)) }

// run runs some of what compile has built.
func (t tree) run(ctx context.Context, s setup, names []string, timeout time.Duration, args ...string) (string, error) {
	cmd := command(ctx, t.of(s), t.binary(s), args...)
	for flag := range strings.FieldsSeq(s.flags) {
		cmd.Args = append(cmd.Args, "-test."+strings.TrimLeft(flag, "-"))
	}
	cmd.Args = append(cmd.Args, "-test.run="+pattern(names), "-test.timeout="+timeout.String())
	said, err := cmd.CombinedOutput()
	return string(said), err
}

// pattern is the regular expression, of go test, for exactly these tests.
func pattern(names []string) string {
	var all []string
	for _, name := range names {
		var parts []string
		for part := range strings.SplitSeq(name, "/") {
			parts = append(parts, "^"+regexp.QuoteMeta(part)+"$")
		}
		all = append(all, strings.Join(parts, "/"))
	}
	return strings.Join(all, "|")
}

func (t tree) binary(s setup) string {
	name := strings.NewReplacer("/", "-", ".", "", " ", "-").Replace(s.pkg + " " + s.tags)
	return filepath.Join(t.bin, strings.Trim(name, "-")+".test")
}
