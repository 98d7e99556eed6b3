package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// chaosRuns are so many runs of chaos, each with so much of it: a minute in all.
const (
	chaosRuns = 3
	chaosRun  = 20 * time.Second
)

// endure has chaos look for the fault of a tree.
func endure(ctx context.Context, t tree) (r result, err error) {
	program, err := t.buildChaos(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return r, err
		}
		return result{outcome: uncompiled, said: err.Error() + "\n"}, nil
	}
	r.outcome = unnoticed
	for seed := 1; seed <= chaosRuns; seed++ {
		one, err := t.endureOne(ctx, program, seed)
		if err != nil {
			return r, err
		}
		r.said += one.said
		if one.outcome != unnoticed {
			r.outcome, r.by = one.outcome, fmt.Sprintf("seed %d: %s", seed, one.by)
		}
		if r.outcome == noticed {
			break
		}
	}
	return r, nil
}

// calm demands that chaos finds nothing where there is no fault.
func calm(ctx context.Context, t tree, w io.Writer) error {
	begun := time.Now()
	r, err := endure(ctx, t)
	if err == nil && r.outcome != unnoticed {
		err = fmt.Errorf("%s %s\n%s", r.outcome, r.by, r.said)
	}
	if err != nil {
		return fmt.Errorf("without a mutant: %w", err)
	}
	fmt.Fprintf(w, "%-16s without a mutant: %d runs of chaos (%.0fs)\n", "passed", chaosRuns, time.Since(begun).Seconds())
	return nil
}

func (t tree) buildChaos(ctx context.Context) (program string, err error) {
	program = filepath.Join(t.bin, "chaos")
	_, err = output(command(ctx, t.dir, "go", "build", "-trimpath", "-o", program, "./redlock/redlocktest/chaos"))
	return program, err
}

// found is what chaos says of a violation.
var found = regexp.MustCompile(`(?m)^ *(?:VIOLATION|LOST|DISORDER) +(.+)$`)

// endureOne runs chaos once. What has noticed the fault is the first violation that it has found.
func (t tree) endureOne(ctx context.Context, program string, seed int) (r result, err error) {
	cmd := command(ctx, t.dir, program, "-duration", chaosRun.String(), "-seed", strconv.Itoa(seed))
	cmd.Env = append(cmd.Env, "TMPDIR="+t.bin) // where it keeps the records of a violation
	out, err := cmd.CombinedOutput()
	said := string(out)
	if ctx.Err() != nil {
		return r, ctx.Err()
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return result{outcome: unnoticed, said: said}, nil
	case !errors.As(err, &exit):
		return r, err
	case exit.ExitCode() == 1: // a violation
		if m := found.FindStringSubmatch(said); m != nil {
			return result{outcome: noticed, by: m[1], said: said}, nil
		}
	}
	return result{outcome: undone, by: exit.String(), said: said}, nil
}
