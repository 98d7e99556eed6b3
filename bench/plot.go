package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

type picture struct{ file, title string }

// draw writes the pictures for which the run has the cases.
func (r Report) draw(dir string) (out []picture, err error) {
	for _, p := range []struct {
		file string
		draw func() (*drawing, string)
	}{
		{"latency.svg", r.drawLatency},
		{"throughput.svg", r.drawThroughput},
		{"hung.svg", r.drawHung},
	} {
		file := filepath.Join(dir, p.file)
		d, title := p.draw()
		if d == nil {
			if gone := os.Remove(file); gone != nil && !os.IsNotExist(gone) { // an earlier run's
				err = errors.Join(err, gone)
			}
			continue
		}
		err = errors.Join(err, os.WriteFile(file, d.svg(), 0o666))
		out = append(out, picture{p.file, title})
	}
	return out, err
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
	at, also float64 // in seconds; NaN: it has no figure
	failing  bool    // more often than tolerable, so it is not the best, however fast
}

// rows are those of the floor, of redburst and of the peers, the fastest first. The other way in which the
// floor can wait has none.
func (r Result) rows(at, also func(*Sample) float64) (rows []row) {
	bestFloor, bestPeer := r.best(Contestant.Floor), r.best(Contestant.Peer)
	for i, c := range r.Contestants {
		if c.Floor() && i != bestFloor {
			continue
		}
		row := row{name: caption(c), ink: inkOf(c, i == bestPeer), at: math.NaN(), also: math.NaN()}
		if s := r.Total(i); s.Ops() > 0 {
			row.at, row.also = at(s), also(s)
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

func quantile(q float64) func(*Sample) float64 {
	return func(s *Sample) float64 { return s.Quantile(q).Seconds() }
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

// axis draws the ticks of an axis of time under the rows, at the places that it is given.
func (d *drawing) axis(ticks []tick, place func(v float64) float64, bottom float64) {
	for _, t := range ticks {
		x := place(t.value)
		d.grid(x, header, x, bottom+4)
		d.text(x, bottom+6+textSize, inkText, "middle", t.label)
	}
}

func (r Report) drawLatency() (*drawing, string) {
	const title = "One caller takes a lock on five masters and releases it"
	res, ok := r.result("serial")
	if !ok {
		return nil, title
	}
	rows := res.rows(quantile(0.50), quantile(0.99))
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
	d.axis(evenTicks(longest, label), place, bottom)
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

// drawHung shows the medians while all masters are well, and while one hangs.
func (r Report) drawHung() (*drawing, string) {
	const title = "One of five masters hangs: how long a lock and its release take"
	hung, ok := r.result("hung")
	if !ok {
		return nil, title
	}
	rows := hung.rows(quantile(0.50), func(*Sample) float64 { return math.NaN() })
	if well, ok := r.result("serial"); ok {
		for i, c := range well.Contestants {
			at := slices.IndexFunc(rows, func(r row) bool { return r.name == caption(c) })
			if s := well.Total(i); at >= 0 && s.Ops() > 0 {
				rows[at].also = s.Quantile(0.50).Seconds()
			}
		}
	}
	least, most := math.Inf(1), 0.0
	for _, row := range rows {
		for _, v := range []float64{row.at, row.also} {
			if v > 0 { // and a number
				least, most = min(least, v), max(most, v)
			}
		}
	}
	if most == 0 {
		return nil, title
	}
	d, from, to, bottom := rowsDrawing(rows, title, "Median, lower is better. ○ all are well, ● one hangs. Each grey line is ten times the one before.")
	least, most = math.Pow(10, math.Floor(math.Log10(least))), max(most, 10*least)
	place := func(v float64) float64 { return from + (to-from)*math.Log(v/least)/math.Log(most/least) }
	var ticks []tick
	for v := least; v <= most*1.001; v *= 10 {
		ticks = append(ticks, tick{v, label(v)})
	}
	d.axis(ticks, place, bottom)
	for i, row := range rows {
		y := middle(i)
		if row.at > 0 && row.also > 0 {
			d.line(place(row.also), y, place(row.at), y, 2, row.ink)
		}
		if row.also > 0 {
			d.dot(place(row.also), y, true, row.ink)
		}
		if row.at > 0 {
			d.dot(place(row.at), y, false, row.ink)
		}
	}
	return d, title
}

// A curve is what a contestant achieves by the number of goroutines.
type curve struct {
	Contestant
	points [][2]float64 // goroutines, locks a second
}

func (c curve) last() float64 { return c.points[len(c.points)-1][1] }

// curves are those of who was measured with more than one number of goroutines. It returns the numbers, too.
func (r Report) curves() (curves []curve, counts []float64) {
	for _, name := range []string{"serial", "goroutines=4", "goroutines=32", "goroutines=256"} {
		res, ok := r.result(name)
		if !ok {
			continue
		}
		n := float64(res.Case.Goroutines)
		counts = append(counts, n)
		for i, c := range res.Contestants {
			at := slices.IndexFunc(curves, func(l curve) bool { return l.Name == c.Name })
			if at < 0 {
				at, curves = len(curves), append(curves, curve{Contestant: c})
			}
			curves[at].points = append(curves[at].points, [2]float64{n, res.Total(i).Throughput()})
		}
	}
	return slices.DeleteFunc(curves, func(c curve) bool { return len(c.points) < 2 }), counts
}

func (r Report) drawThroughput() (*drawing, string) {
	const title = "Locks that are taken and released in a second, on five masters"
	curves, counts := r.curves()
	most := 0.0
	for _, c := range curves {
		for _, p := range c.points {
			most = max(most, p[1])
		}
	}
	if most == 0 {
		return nil, title
	}
	best, bestLast := "", 0.0
	for _, c := range curves {
		if c.Peer() && c.last() > bestLast {
			best, bestLast = c.Name, c.last()
		}
	}
	labels, widest := make([]string, len(curves)), 0.0
	for i, c := range curves {
		labels[i] = caption(c.Contestant) + " " + thousands(c.last())
		widest = max(widest, textWidth(labels[i], textSize, true))
	}
	const height, bottom, gap = 430.0, 430.0 - margin - 2*textSize - 18, 16.0
	d := newDrawing(pictureWidth, height, title, "By the number of goroutines that each have a key of their own. Higher is better.")
	ticks := evenTicks(most, thousands)
	from := margin + 8 + textWidth(ticks[len(ticks)-1].label, textSize, false)
	to := pictureWidth - margin - widest - gap - 4
	x := func(goroutines float64) float64 {
		least, most := counts[0], counts[len(counts)-1]
		return from + (to-from)*math.Log(goroutines/least)/math.Log(most/least)
	}
	y := func(v float64) float64 { return bottom - (bottom-header)*v/most }
	for _, t := range ticks {
		d.grid(from, y(t.value), to, y(t.value))
		d.text(from-8, y(t.value)+0.35*textSize, inkText, "end", t.label)
	}
	for _, n := range counts {
		d.text(x(n), bottom+6+textSize, inkText, "middle", strconv.Itoa(int(n)))
	}
	d.text((from+to)/2, bottom+10+2*textSize, inkText, "middle", "goroutines")
	ends := make([]float64, len(curves))
	for i, c := range curves {
		ends[i] = y(c.last())
	}
	places := apart(ends, textSize+4, header, bottom)
	for _, emphasised := range []bool{false, true} { // these over the others
		for i, curve := range curves {
			c := inkOf(curve.Contestant, curve.Name == best)
			if (c != inkRest) != emphasised {
				continue
			}
			width := 1.2
			if emphasised {
				width = 3
			}
			var points [][2]float64
			for _, p := range curve.points {
				points = append(points, [2]float64{x(p[0]), y(p[1])})
			}
			d.path(points, width, c)
			d.line(to+2, ends[i], to+gap-3, places[i], 1, c)
			d.text(to+gap, places[i]+0.35*textSize, c, "start", labels[i])
		}
	}
	return d, title
}

// evenTicks are at a round distance, from zero up to the most.
func evenTicks(most float64, label func(float64) string) (ticks []tick) {
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

// thousands is a whole number with commas, to three digits.
func thousands(v float64) string {
	if v >= 1000 {
		unit := math.Pow(10, math.Floor(math.Log10(v))-2)
		v = math.Round(v/unit) * unit
	}
	digits := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	var groups []string
	for len(digits) > 3 {
		groups = append([]string{digits[len(digits)-3:]}, groups...)
		digits = digits[:len(digits)-3]
	}
	return strings.Join(append([]string{digits}, groups...), ",")
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
