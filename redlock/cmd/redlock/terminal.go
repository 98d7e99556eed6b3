package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/redburst/redburst/conn"
)

// width is the columns that every terminal has. Nothing that people read on one is wider.
const width = 80

// What is written elsewhere, as into a pipe, is for other programs, too: it is neither broken into lines nor clipped.
const unlimited = 1 << 20

// columnsOf is how wide a line of an output may be. COLUMNS says so of any output, if it leaves room for words.
func columnsOf(f *os.File) int {
	n, err := strconv.Atoi(os.Getenv("COLUMNS"))
	switch {
	case err == nil && n >= width/2:
		return min(n, unlimited)
	case isTerminal(f):
		return width
	}
	return unlimited
}

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

// A terminal writes what people read. It writes colours only to a real terminal, and not
// if the user wants none (https://no-color.org).
type terminal struct {
	io.Writer
	colours bool
	columns int   // of a line; 0 is width
	screen  bool  // what was written can be cleared
	err     error // the first error of a write
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull) // a device of characters, and nobody sits there
	return err != nil || !os.SameFile(info, null)
}

func newTerminal(f *os.File) *terminal {
	screen := isTerminal(f) && runtime.GOOS != "windows" && os.Getenv("TERM") != "dumb"
	return &terminal{Writer: f, columns: columnsOf(f), screen: screen, colours: screen && os.Getenv("NO_COLOR") == ""}
}

// width is how many characters a line may have.
func (t *terminal) width() int { return cmp.Or(t.columns, width) }

func (t *terminal) paint(c colour, s string) string {
	if !t.colours || c == plain {
		return s
	}
	return "\x1b[" + string(c) + "m" + s + "\x1b[0m"
}

// failure is nil unless a write has failed.
func (t *terminal) failure() error {
	if t.err == nil {
		return nil
	}
	return &failure{exitIO, t.err, ""}
}

func (t *terminal) printf(format string, args ...any) {
	if _, err := fmt.Fprintf(t, format, args...); t.err == nil {
		t.err = err
	}
}

// say writes text in lines of the terminal's width. The first line begins with lead, and
// the others are indented as far. What is not printable in text is escaped.
func (t *terminal) say(lead string, c colour, text string) {
	indent := utf8.RuneCountInString(lead)
	t.printf("%s", t.paint(c, lead))
	t.lines(indent, plain, wrap(conn.Printable(text), t.width()-indent, false))
}

// lines writes lines. The first continues the current line; the others are indented.
func (t *terminal) lines(indent int, c colour, lines []string) {
	for i, line := range lines {
		if i > 0 {
			t.printf("%*s", indent, "")
		}
		t.printf("%s\n", t.paint(c, line))
	}
}

// A cell is a text in a table.
type cell struct {
	text string
	colour
}

// table writes rows in columns, two spaces apart. The columns from number right on are
// aligned to the right, except the last. If the width is too small, the last column is
// wrapped, and then the first is clipped. What is not printable is escaped.
func (t *terminal) table(indent string, right int, rows [][]cell) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i := range row {
			row[i].text = conn.Printable(row[i].text)
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i].text))
		}
	}
	last := len(widths) - 1
	excess := len(indent) + 2*last - t.width()
	for _, w := range widths {
		excess += w
	}
	for _, column := range []struct{ i, least int }{{last, 30}, {0, 15}, {last, 15}} {
		if cut := min(excess, widths[column.i]-column.least); cut > 0 {
			widths[column.i] -= cut
			excess -= cut
		}
	}
	for _, row := range rows {
		t.printf("%s", indent)
		at := utf8.RuneCountInString(indent)
		for i, c := range row[:last] {
			text := clip(c.text, widths[i])
			space := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
			if i >= right {
				t.printf("%s%s  ", space, t.paint(c.colour, text))
			} else {
				t.printf("%s%s  ", t.paint(c.colour, text), space)
			}
			at += widths[i] + 2
		}
		t.lines(at, row[last].colour, wrap(row[last].text, widths[last], true))
	}
}

// wrap breaks a text between words into lines of at most n characters. With within, it
// also breaks words that are longer.
func wrap(text string, n int, within bool) (lines []string) {
	line := []rune{}
	for _, word := range strings.Fields(text) {
		r := []rune(word)
		if len(line) > 0 && len(line)+1+len(r) > n {
			lines, line = append(lines, string(line)), nil
		}
		if len(line) > 0 {
			line = append(line, ' ')
		}
		for line = append(line, r...); within && len(line) > n; line = line[n:] {
			lines = append(lines, string(line[:n]))
		}
	}
	return append(lines, string(line))
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
