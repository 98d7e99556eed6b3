//go:build linux

package main

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// TestMain makes the test's program serve as a client, too.
func TestMain(m *testing.M) {
	runAsClient()
	os.Exit(m.Run())
}

// run runs the program. It must leave no process and no file.
func run(t *testing.T, ctx context.Context, args ...string) (status int, out, errs string) {
	redlocktest.Start(t, 0).Close() // skips, or fails, where there is no Redis
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	var stdout, stderr bytes.Buffer
	status = chaos(ctx, args, &stdout, &stderr)
	t.Log(stdout.String(), stderr.String())
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
	_, err = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
	require.Equal(t, syscall.ECHILD, err, "a child is left")
	return status, stdout.String(), stderr.String()
}

func TestTheLockHoldsUnderFaults(t *testing.T) {
	status, out, _ := run(t, t.Context(), "-duration", "1s")
	require.Equal(t, exitFine, status)
	require.Contains(t, out, "no violation")
	require.Regexp(t, `go run ./redlock/redlocktest/chaos -seed \d+ -duration 1s -clients 4( -links)?\n`, out, "how to repeat it")
	require.Regexp(t, "network +(each master and each client has a namespace of its own|links, and so no faults .*: network: .*)\n", out)

	require.Regexp(t, `kinds +\d+: foreign \d+, permits \d+, plain \d+, plain fenced \d+, several \d+, several fenced \d+, shared \d+\n`, out)

	late, refused, lost := fencedLine(t, out)
	require.GreaterOrEqual(t, late, leastLate)
	require.Equal(t, late, refused)
	require.Zero(t, lost)
	require.NotContains(t, out, "LOST")
}

func TestIncrementsAreLostWhereTheFenceIsIgnored(t *testing.T) {
	status, out, _ := run(t, t.Context(), "-duration", "100ms", "-unfenced", "-links")
	require.Equal(t, exitFine, status)
	late, refused, lost := fencedLine(t, out)
	require.NotZero(t, late)
	require.Zero(t, refused)
	require.GreaterOrEqual(t, lost, leastLate)
	require.Contains(t, out, "LOST")
	require.Contains(t, out, "the fence was ignored")
	require.Regexp(t, `-seed \d+ -duration 100ms -clients 4 -unfenced -links\n`, out, "how to repeat it")
	require.Contains(t, out, "links, as they were asked for")
}

// fencedLine returns what the report says of the resource.
func fencedLine(t *testing.T, out string) (late, refused, lost int) {
	m := regexp.MustCompile(`(\d+) writes came late, and (\d+) were refused; (\d+) increments lost`).FindStringSubmatch(out)
	require.NotNil(t, m, out)
	for i, n := range []*int{&late, &refused, &lost} {
		var err error
		*n, err = strconv.Atoi(m[i+1])
		require.NoError(t, err)
	}
	return late, refused, lost
}

func TestTheCheckerFindsAViolation(t *testing.T) {
	status, out, _ := run(t, t.Context(), "-mode", "violate")
	require.Equal(t, exitFine, status)
	for _, b := range breaches {
		require.Regexp(t, "VIOLATION +"+b.key()+": .* had it at once", out)
		require.Contains(t, out, b.rule+": 1 found, and 1 by its history")
	}
	require.Contains(t, out, "both held valid locks")
	if redlocktest.Available(redlocktest.WithClocks()) == nil {
		require.Contains(t, out, "all masters 0.9 % fast: 0 overlaps, and 0 other violations")
		require.Contains(t, out, "a majority 30 % fast: 1 overlaps with the default drift, 0 with a DriftFactor of 0.31")
		require.Contains(t, out, "then a majority set forward: 1 overlaps")
	}
	require.Contains(t, out, "had its lock: 0 overlaps, 1 late writes were refused")
	require.Contains(t, out, "two lists of masters: 1 overlaps, and 1 by its history")
	for _, told := range []string{"at once: 6, as masters forgot", "after its time: 1, as a holder was frozen", "at once: 1, as two lists of masters"} {
		require.Contains(t, out, told, "explain")
	}
	if redlocktest.Available(redlocktest.WithClocks()) == nil {
		require.Equal(t, 2, strings.Count(out, "at once: 1, as a clock jumped"))
	}
	require.Equal(t, 3, strings.Count(out, "It stops A, the earlier holder"), "while the clocks differ by less than the downtime")
	require.Equal(t, 2, strings.Count(out, "It stops B, the later holder"))
}

func TestTheCheckerFindsWhatAFailoverForgets(t *testing.T) {
	status, out, _ := run(t, t.Context(), "-mode", "violate", "-arena", "cluster")
	require.Equal(t, exitFine, status)
	for _, b := range beliefs {
		if b.wrong {
			require.Regexp(t, "VIOLATION +"+b.key+": .* had it at once", out)
		}
	}
	require.Equal(t, 3, strings.Count(out, ": 1 overlaps, and 1 by its history"))
	require.Contains(t, out, "at once: 3, as masters forgot", "explain")
	for _, right := range []string{"it is known (", "it is known, and nothing is declared (", "the TTL of the others is that of its own (no "} {
		require.Contains(t, out, right+"Config.RestartGuard): 0 overlaps, and 0 by its history")
	}
}

func TestNothingIsLeftAfterAnInterrupt(t *testing.T) {
	for _, mode := range []string{"chaos", "violate"} {
		for _, after := range []time.Duration{0, 200 * ms, time.Second} {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()
			status, _, errs := run(t, ctx, "-mode", mode, "-duration", "1h")
			if status == exitFine && mode == "violate" {
				continue // it was faster
			}
			require.Equal(t, exitUnknown, status)
			require.Contains(t, errs, "interrupted")
		}
	}
}

func TestBadArgumentsAreRefused(t *testing.T) {
	for _, args := range [][]string{{"-mode", "calm"}, {"-duration", "0s"}, {"-clients", "0"}, {"-what"}, {"more"},
		{"-arena", "moon"}, {"-arena", "cluster", "-links"}, {"-arena", "cluster", "-masters", "0"}, {"-arena", "sentinel", "-mode", "violate"},
		{"-unfenced", "-mode", "violate"}, {"-unfenced", "-clients", "1"}} {
		var out, errs bytes.Buffer
		require.Equal(t, exitUnknown, chaos(t.Context(), args, &out, &errs), args)
		require.Empty(t, out.String())
		require.NotEmpty(t, errs.String())
	}
}
