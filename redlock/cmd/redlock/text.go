package main

import (
	"fmt"
	"strings"
	"time"
)

// This file has the words in which all commands write times, counts, shell words and errors.

// timeText is a time as all commands write it.
func timeText(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05 MST") }

// clockText is a time of today, or a time with its day.
func clockText(at time.Time) string {
	at = at.UTC()
	if at.Format(time.DateOnly) == time.Now().UTC().Format(time.DateOnly) {
		return at.Format("15:04 MST")
	}
	return at.Format("2006-01-02 15:04 MST")
}

// brief writes d with three digits: "74.2µs", "1.24ms", "9.9s".
func brief(d time.Duration) string {
	unit := time.Nanosecond
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}

// age writes d in its greatest unit: "12d", "3h", "4m", "9s".
func age(d time.Duration) string {
	switch {
	case d >= 48*time.Hour:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	case d >= 2*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

// briefly writes what is left of a TTL, or was waited: "9.3s", "2m5s", "no end".
func briefly(left time.Duration) string {
	switch {
	case left < 0:
		return "no end"
	case left >= 100*time.Second:
		return left.Round(time.Second).String()
	}
	return fmt.Sprintf("%.1fs", left.Seconds())
}

// leftText says how much of a TTL is left.
func leftText(left time.Duration) string {
	if left < 0 {
		return "without expiry"
	}
	return briefly(left) + " left"
}

// rounded is d as it is told to people.
func rounded(d time.Duration) time.Duration {
	if d > time.Second {
		return d.Round(time.Second)
	}
	return d.Round(time.Millisecond)
}

// plural is "1 master", "2 masters".
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// quoted is a word as a shell reads it.
func quoted(word string) string {
	plain := func(r rune) bool {
		return r < 128 && (strings.ContainsRune("-_./:@+,%", r) || '0' <= r && r <= '9' || 'a' <= r|0x20 && r|0x20 <= 'z')
	}
	if strings.ContainsFunc(word, func(r rune) bool { return !plain(r) }) {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return word
}

// without is an error's text without the master's name, which stands beside it; empty for none.
func without(err error, master string) string {
	if err == nil {
		return ""
	}
	s := strings.TrimPrefix(err.Error(), "conn: ")
	if prefix := master + ": "; len(s) > len(prefix) && s[:len(prefix)] == prefix {
		return s[len(prefix):]
	}
	return s
}
