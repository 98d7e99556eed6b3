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
	late       outcome = "DEADLINE ALONE"
	unnoticed  outcome = "NOT NOTICED"
	unapplied  outcome = "DOES NOT APPLY"
	uncompiled outcome = "DOES NOT COMPILE"
	unsound    outcome = "FAILS WITHOUT IT"
	undone     outcome = "NO CHAOS" // it could not be done, in one run at the least
	untried    outcome = "not tried"
)

// A result is what became of a mutant, and what says so.
type result struct {
	outcome
	by   string // who noticed it
	how  string // by an assertion, a panic or a deadline
	took time.Duration
	said string
}

// tryAll tries each mutant in one of the trees. Those that have not begun when the time is up stay untried.
func (j job) tryAll(ctx context.Context, trees []tree, all []*mutant, src sources, w io.Writer) ([]result, error) {
	if j.within > 0 {
		timeIsUp, done := context.WithTimeout(ctx, j.within)
		defer done()
		j.timeIsUp = timeIsUp.Done()
	}
	results, errs := make([]result, len(all)), make([]error, len(all))
	free := make(chan tree, len(trees))
	for _, t := range trees {
		free <- t
	}
	var running sync.WaitGroup
	var printing sync.Mutex
	known := &passed{names: map[setup]map[string]bool{}, asking: map[string]*sync.Mutex{}}
	for i, m := range all {
		t := <-free
		select {
		case <-j.timeIsUp:
			results[i].outcome = untried
			free <- t
			continue
		default:
		}
		running.Go(func() {
			results[i], errs[i] = j.try(ctx, t, m, src, known)
			if errs[i] == nil { // otherwise the tree is not what it was, and whoever gets it fails, too
				printing.Lock()
				results[i].print(w, m, j.verbose)
				printing.Unlock()
			}
			free <- t
		})
	}
	running.Wait()
	return results, cmp.Or(errs...)
}

func (r result) print(w io.Writer, m *mutant, verbose bool) {
	line := fmt.Sprintf("%-16s %-44s %-10s", r.outcome, m.name, m.breaks)
	if r.by != "" {
		line += " " + r.by
	}
	if r.how != "" {
		line += fmt.Sprintf(": %s (%.1fs)", r.how, r.took.Seconds())
	}
	fmt.Fprintln(w, line)
	if verbose || r.outcome == unapplied || r.outcome == uncompiled || r.outcome == unsound || r.outcome == undone {
		io.WriteString(w, r.said)
	}
}

// try plants a mutant, runs its tests, and takes it out again.
func (j job) try(ctx context.Context, t tree, m *mutant, src sources, known *passed) (r result, err error) {
	if err := ctx.Err(); err != nil {
		return r, err
	}
	changed, err := m.plant(src)
	if err != nil {
		return result{outcome: unapplied, said: err.Error() + "\n"}, nil
	}
	if !j.chaos {
		if said, err := known.ask(ctx, t, m.tests); err != nil || said != "" {
			return result{outcome: unsound, said: said + "\n"}, err
		}
	}
	if err := t.write(changed); err != nil {
		return r, err
	}
	defer func() {
		if ctx.Err() == nil { // otherwise the copy is thrown away
			before := sources{}
			for file := range changed {
				before[file] = src[file]
			}
			err = errors.Join(err, t.write(before))
		}
	}()
	if j.chaos {
		return endure(ctx, t)
	}
	r.outcome = unnoticed
	for _, ts := range m.tests {
		overlay, err := t.prune(ts.setup, ts.names)
		if err != nil {
			return r, err
		}
		if t.compile(ctx, ts.setup, "", "-overlay", overlay) != nil { // perhaps the names have misled prune
			if err := t.compile(ctx, ts.setup, ""); err != nil {
				if ctx.Err() != nil {
					return r, ctx.Err()
				}
				return result{outcome: uncompiled, said: err.Error() + "\n"}, nil
			}
		}
		begun := time.Now()
		said, err := t.run(ctx, ts.setup, "", ts.names, j.timeout, "-test.failfast")
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
		r.said += said
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			r.outcome, r.took = noticed, time.Since(begun)
			r.by, r.how = by(said)
			if r.how != "deadline" {
				return r, nil
			}
			r.outcome = late // and perhaps the next one sees it
			continue
		}
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

// passed are the tests that have passed where there is no mutant. They must pass, and be there: a
// test that fails anyway, or is skipped, notices nothing.
type passed struct {
	mu     sync.Mutex
	names  map[setup]map[string]bool
	asking map[string]*sync.Mutex // held while tests run, by what they are: the next mutant mostly has the same
}

// missing returns those of the tests that are not known yet.
func (p *passed) missing(ts tests) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(ts.names), func(name string) bool { return p.names[ts.setup][name] })
}

// note notes that tests have passed.
func (p *passed) note(ts tests, names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.names[ts.setup] == nil {
		p.names[ts.setup] = map[string]bool{}
	}
	for _, name := range names {
		p.names[ts.setup][name] = true
	}
}

// lock has one at a time run these tests.
func (p *passed) lock(all []tests) (unlock func()) {
	key := fmt.Sprint(all)
	p.mu.Lock()
	one := p.asking[key]
	if one == nil {
		one = new(sync.Mutex)
		p.asking[key] = one
	}
	p.mu.Unlock()
	one.Lock()
	return one.Unlock
}

// ask runs those of the tests that are not known yet. It returns what is wrong with them.
func (p *passed) ask(ctx context.Context, t tree, all []tests) (wrong string, err error) {
	defer p.lock(all)()
	for _, ts := range all {
		wanted := p.missing(ts)
		if len(wanted) == 0 {
			continue
		}
		if err := t.compile(ctx, ts.setup, "-sound"); err != nil {
			if ctx.Err() != nil {
				return "", ctx.Err()
			}
			return err.Error(), nil
		}
		said, err := t.run(ctx, ts.setup, "-sound", wanted, 10*time.Minute, "-test.v")
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if err != nil {
			return fmt.Sprintf("%v does not pass: %v\n%s", ts.setup, err, said), nil
		}
		for _, name := range wanted {
			if !strings.Contains(said, "--- PASS: "+name+" (") {
				return fmt.Sprintf("%v does not run %s, or skips it", ts.setup, name), nil
			}
		}
		p.note(ts, wanted)
	}
	return "", nil
}

// sign is a line that says why a test binary has failed.
var sign = regexp.MustCompile(`(?m)^ *--- FAIL: (\S+)|^(panic: .*|fatal error: .*)$`)

// by returns the innermost test of the first that failed; or else what ended the tests. It also says how: by
// an assertion, by a panic, or only since the time of the tests was up.
func by(said string) (name, how string) {
	how = "assertion"
	for _, m := range sign.FindAllStringSubmatch(said, -1) {
		switch {
		case m[1] != "" && strings.HasPrefix(m[1], name) && how == "assertion":
			name = m[1]
		case strings.HasPrefix(m[2], "panic: test timed out"):
			if name == "" {
				return m[2], "deadline"
			}
		case m[2] != "" && how == "assertion":
			how = "panic"
			name = cmp.Or(name, m[2])
		}
	}
	return cmp.Or(name, "what is left"), how
}

// compile builds the tests, in the directory of their package, as that can be of a nested module. The paths of the copy are
// left out, so that the next copy's tests are in the cache already. Most of what a mutant costs is this. The compiler ends
// soon, and need not collect its garbage, which takes a third of its time.
func (t tree) compile(ctx context.Context, s setup, suffix string, flags ...string) error {
	args := []string{"test", "-c", "-trimpath", "-vet=off", "-ldflags=-s -w", "-tags", s.tags, "-o", t.binary(s) + suffix}
	cmd := command(ctx, t.of(s), "go", append(args, flags...)...)
	cmd.Env = append(cmd.Env, "GOGC=off", "GOMEMLIMIT=2GiB")
	_, err := output(cmd)
	return err
}

// of returns the directory of a package.
func (t tree) of(s setup) string { return filepath.Join(t.dir, filepath.FromSlash(s.pkg)) }

// run runs some of what compile has built.
func (t tree) run(ctx context.Context, s setup, suffix string, names []string, timeout time.Duration, args ...string) (string, error) {
	cmd := command(ctx, t.of(s), t.binary(s)+suffix, args...)
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
