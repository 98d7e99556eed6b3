package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// pictureFile is that of the one picture, which the README shows.
const pictureFile = "latency.svg"

// draw writes the picture, if the run has its case, and returns its title.
func (r Report) draw(dir string) (title string, err error) {
	file := filepath.Join(dir, pictureFile)
	d, title := r.drawLatency()
	if d == nil {
		if err := os.Remove(file); err != nil && !os.IsNotExist(err) { // an earlier run's
			return "", err
		}
		return "", nil
	}
	return title, os.WriteFile(file, d.svg(), 0o666)
}

func (r Report) result(name string) (Result, bool) {
	for _, res := range r.Results {
		if res.Case.Name == name {
			return res, true
		}
	}
	return Result{}, false
}

const pictureWidth = 800

// A row is one contestant's in a picture.
type row struct {
	name     string
	ink      ink
	at, also float64 // the median, and of 99 of 100 the longest, in seconds; NaN: it has no figure
	failing  bool    // more often than tolerable, so it is not the best, however fast
}

// rows are those of the floor, of redburst and of the peers, the fastest first. The other way in which the
// floor can wait has none, nor has who is on no masters.
func (r Result) rows() (rows []row) {
	bestFloor, bestPeer := r.best(Contestant.Floor), r.best(Contestant.Peer)
	for i, c := range r.Contestants {
		if c.Floor() && i != bestFloor || c.cases != nil {
			continue
		}
		row := row{name: caption(c), ink: inkOf(c, i == bestPeer), at: math.NaN(), also: math.NaN()}
		if s := r.Total(i); s.Ops() > 0 {
			row.at, row.also = s.Quantile(0.50).Seconds(), s.Quantile(0.99).Seconds()
			row.failing = float64(s.Errors) > tolerable*float64(s.Ops()+s.Errors)
		}
		rows = append(rows, row)
	}
	slices.SortStableFunc(rows, func(a, b row) int {
		switch {
		case a.at < b.at || math.IsNaN(b.at) && !math.IsNaN(a.at):
			return -1
		case a.at > b.at || math.IsNaN(a.at) && !math.IsNaN(b.at):
			return 1
		}
		return 0
	})
	return rows
}

// caption is the contestant's name, with what the floor is for those who see no more than the picture.
func caption(c Contestant) string {
	if c.Floor() {
		return "raw sockets (" + c.Name + ")"
	}
	return c.Name
}

func inkOf(c Contestant, best bool) ink {
	switch {
	case c.Name == ours:
		return inkOurs
	case best:
		return inkPeer
	}
	return inkRest
}

// Of a picture with rows: their height, and where what is in them is drawn.
const rowHeight = 27.0

// rowsDrawing begins a picture with a row for each contestant: its name, its figure and room for what is
// drawn. It returns where that begins, and its end.
func rowsDrawing(rows []row, title, subtitle string) (d *drawing, from, to, bottom float64) {
	bottom = header + rowHeight*float64(len(rows))
	d = newDrawing(pictureWidth, bottom+textSize+12+margin, title, subtitle)
	var names, figures float64
	for _, row := range rows {
		names = max(names, textWidth(row.name, textSize, row.ink != inkRest))
		figures = max(figures, textWidth(row.figure(), textSize, row.ink != inkRest))
	}
	for i, row := range rows {
		y := middle(i) + 0.35*textSize
		d.text(margin+names, y, row.ink, "end", row.name)
		d.text(margin+names+14+figures, y, row.ink, "end", row.figure())
	}
	return d, margin + names + 14 + figures + 14, pictureWidth - 40, bottom
}

// middle is that of row i.
func middle(i int) float64 { return header + rowHeight*(float64(i)+0.5) }

func (r row) figure() string {
	if math.IsNaN(r.at) {
		return "failed"
	}
	figure := short(time.Duration(math.Round(r.at * 1e9)))
	if r.failing {
		figure = "fails, " + figure
	}
	return figure
}

// A tick is a value of an axis with its label.
type tick struct {
	value float64
	label string
}

func (r Report) drawLatency() (*drawing, string) {
	const title = "One caller takes a lock on five masters and releases it"
	res, ok := r.result("serial")
	if !ok {
		return nil, title
	}
	rows := res.rows()
	longest := 0.0
	for _, row := range rows {
		if !math.IsNaN(row.also) {
			longest = max(longest, row.also)
		}
	}
	if longest == 0 {
		return nil, title
	}
	d, from, to, bottom := rowsDrawing(rows, title, "Time, lower is better. The bar is the median; 99 of 100 are within the thin line.")
	place := func(v float64) float64 { return from + (to-from)*v/longest }
	for _, t := range evenTicks(longest) {
		x := place(t.value)
		d.grid(x, header, x, bottom+4)
		d.text(x, bottom+6+textSize, inkText, "middle", t.label)
	}
	for i, row := range rows {
		if math.IsNaN(row.at) {
			continue
		}
		y := middle(i)
		d.bar(from, y-8, place(row.at)-from, 16, row.ink)
		d.line(place(row.at), y, place(row.also), y, 2, row.ink)
	}
	return d, title
}

// evenTicks are at a round distance, from zero up to the most.
func evenTicks(most float64) (ticks []tick) {
	step := math.Pow(10, math.Floor(math.Log10(most)))
	switch {
	case most < 2*step:
		step /= 4
	case most < 4*step:
		step /= 2
	case most > 8*step:
		step *= 2
	}
	for i := 0; float64(i)*step <= most; i++ {
		ticks = append(ticks, tick{float64(i) * step, label(float64(i) * step)})
	}
	return ticks
}

// label is a time of an axis.
func label(seconds float64) string {
	d := time.Duration(math.Round(seconds * 1e9))
	number := func(unit time.Duration) string { return strconv.FormatFloat(float64(d)/float64(unit), 'g', 4, 64) }
	switch {
	case d == 0:
		return "0"
	case d < time.Millisecond:
		return number(time.Microsecond) + " µs"
	case d < time.Second:
		return number(time.Millisecond) + " ms"
	}
	return fmt.Sprint(number(time.Second), " s")
}
