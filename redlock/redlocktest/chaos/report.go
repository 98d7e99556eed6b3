//go:build linux

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	maxShown = 50 // violations
	maxHarm  = 5  // of what an ignored fence has done
)

// report prints what happened.
func report(out io.Writer, f finding, faults map[fault]int) {
	line(out, "faults", "%s", counts(faults))
	acquired := make(map[op]int)
	for _, o := range []op{opTry, opLock, opDo, opLead} {
		acquired[o] = f.Outcomes[o][ok]
	}
	line(out, "acquisitions", "%s", counts(acquired))
	line(out, "kinds", "%s", counts(f.Kinds))
	line(out, "locks", "%s", counts(f.Taken))
	line(out, "at once", "at most %s", numbers(f.AtOnce))
	line(out, "overlaps", "%s", counts(f.Overlaps))
	line(out, "histories", "%d, of up to %d locks; %d not linearizable", f.Histories, f.Longest, len(f.Disorders))
	line(out, "increments", "%d, of which %d when the validity had ended; %d overtaken, %d given up", f.Increments, f.Stale, f.Overtaken, f.GivenUp)
	line(out, "fenced", "%d increments; %d writes came late, and %d were refused; %d increments lost", f.Written, f.Late, f.Outcomes[opWrote][refused], f.Lost)
	line(out, "fences", "%d took a second round", f.Raised)
	line(out, "logs blocked", "%d records meanwhile; %d locks were kept, and %d lost", f.During, f.Kept, f.Unkept)
	for _, o := range slices.Sorted(maps.Keys(f.Outcomes)) {
		line(out, string(o), "%s", counts(f.Outcomes[o]))
	}
	if f.StallKey != "" {
		line(out, "progress", "the longest time without, while a majority was up, was %v (%s)", f.Stall.Round(time.Millisecond), f.StallKey)
	}
	list(out, "LOST", f.Harm, maxHarm)
	list(out, "DISORDER", f.Disorders, maxShown)
	list(out, "VIOLATION", f.Violations, maxShown)
}

func list[T any](out io.Writer, what string, all []T, most int) {
	for i, v := range all {
		if i == most {
			line(out, "", "and %d more", len(all)-i)
			break
		}
		line(out, what, "%v", v)
	}
}

func line(out io.Writer, what, format string, args ...any) {
	fmt.Fprintf(out, "  %-14s %s\n", what, fmt.Sprintf(format, args...))
}

// counts lists what was counted, with its sum.
func counts[K ~string](all map[K]int) string {
	if len(all) == 0 {
		return "0"
	}
	sum := 0
	for _, n := range all {
		sum += n
	}
	return fmt.Sprintf("%d: %s", sum, numbers(all))
}

func numbers[K ~string](all map[K]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(all)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, all[k]))
	}
	return strings.Join(parts, ", ")
}
