package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"
	"unicode/utf8"
)

// width is what every terminal has; nothing that people read is wider.
const width = 80

// A colour is an SGR code.
type colour string

const (
	plain  colour = ""
	bold   colour = "1"
	dim    colour = "2"
	red    colour = "31"
	green  colour = "32"
	yellow colour = "33"
)

// A terminal is where people read. It writes colours only if they can be seen:
// https://no-color.org.
type terminal struct {
	io.Writer
	colours bool
	err     error // the first that a write gave
}

func newTerminal(f *os.File) *terminal {
	info, err := f.Stat()
	return &terminal{Writer: f, colours: err == nil && info.Mode()&os.ModeCharDevice != 0 && runtime.GOOS != "windows" &&
		os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
}

func (t *terminal) paint(c colour, s string) string {
	if !t.colours || c == plain {
		return s
	}
	return "\x1b[" + string(c) + "m" + s + "\x1b[0m"
}

func (t *terminal) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(t, format, args...); t.err == nil {
		t.err = err
	}
}

// say writes text in lines of at most 80 columns. The first begins with lead,
// the others are indented as far.
func (t *terminal) say(lead string, c colour, text string) {
	indent := utf8.RuneCountInString(lead)
	at := indent
	t.printf("%s", t.paint(c, lead))
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case at+1+n > width:
			t.printf("\n%*s", indent, "")
			at = indent
		default:
			t.printf(" ")
			at++
		}
		t.printf("%s", word)
		at += n
	}
	t.printf("\n")
}

// A cell is a text in a table.
type cell struct {
	text string
	colour
}

// table writes rows in columns, two spaces apart. Columns from right on are
// aligned to the right, except the last. If a terminal is too narrow, the first
// column is clipped, and then the last.
func (t *terminal) table(indent string, right int, rows [][]cell) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	last := len(widths) - 1
	excess := len(indent) + 2*last - width
	for _, w := range widths {
		excess += w
	}
	for _, i := range []int{0, last} {
		if cut := min(excess, widths[i]-15); cut > 0 {
			widths[i] -= cut
			excess -= cut
		}
	}
	for _, row := range rows {
		t.printf("%s", indent)
		for i, c := range row {
			text := clip(c.text, widths[i])
			space := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
			switch {
			case i == last:
				t.printf("%s", t.paint(c.colour, text))
			case i >= right:
				t.printf("%s%s  ", space, t.paint(c.colour, text))
			default:
				t.printf("%s%s  ", t.paint(c.colour, text), space)
			}
		}
		t.printf("\n")
	}
}

// header is a row of headings.
func header(names ...string) []cell {
	row := make([]cell, len(names))
	for i, name := range names {
		row[i] = cell{name, dim}
	}
	return row
}

// clip shortens s in its middle to at most n characters.
func clip(s string, n int) string {
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	head := (n - 1) / 2
	return string(r[:head]) + "…" + string(r[len(r)-(n-1-head):])
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
