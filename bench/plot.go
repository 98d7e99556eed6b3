package main

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

type picture struct{ file, title string }

// draw writes the pictures for which the run has the cases.
func (r Report) draw(dir string) ([]picture, error) {
	var out []picture
	for _, p := range []struct {
		picture
		draw func() *plot.Plot
	}{
		{picture{"latency.svg", "Latency of one caller, five masters"}, r.drawLatency},
		{picture{"throughput.svg", "Throughput by goroutines, a key each"}, r.drawThroughput},
		{picture{"hung.svg", "One of five masters hangs"}, r.drawHung},
	} {
		pl := p.draw()
		if pl == nil {
			continue
		}
		pl.Title.Text = p.title
		if err := save(pl, filepath.Join(dir, p.file)); err != nil {
			return nil, err
		}
		out = append(out, p.picture)
	}
	return out, nil
}

func save(p *plot.Plot, file string) error {
	const width, height, margin = 8 * vg.Inch, 4.5 * vg.Inch, 12
	p.BackgroundColor = color.White // readable on a dark page, too
	p.Title.TextStyle.Font.Size, p.Title.Padding = 14, 8
	p.Legend.TextStyle.Font.Size, p.Legend.Padding = 10, 3
	c := vgsvg.New(width, height)
	dc := draw.New(c)
	dc.SetColor(p.BackgroundColor)
	dc.Fill(dc.Rectangle.Path())
	p.Draw(draw.Crop(dc, margin, -2*margin, margin, -margin))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o666)
}

func (r Report) result(name string) (Result, bool) {
	for _, res := range r.Results {
		if res.Case.Name == name {
			return res, true
		}
	}
	return Result{}, false
}

// Colours that differ in brightness as well, for those who see few of them;
// redburst's is the strongest and the floor's are grey.
func shade(c Contestant) color.Color {
	palette := map[string]color.Color{
		floor + "-park":            color.Gray{0x99},
		floor + "-ppoll":           color.Gray{0x55},
		ours:                       color.RGBA{0xd6, 0x27, 0x28, 0xff},
		"redsync-goredis":          color.RGBA{0x1f, 0x77, 0xb4, 0xff},
		"redsync-goredis-failfast": color.RGBA{0x7f, 0xc4, 0xf0, 0xff},
		"redsync-redigo":           color.RGBA{0x2c, 0x7a, 0x2c, 0xff},
		"redsync-redigo-failfast":  color.RGBA{0x8f, 0xd6, 0x7a, 0xff},
		"redsync-rueidis":          color.RGBA{0x6a, 0x3d, 0x9a, 0xff},
		"redsync-rueidis-failfast": color.RGBA{0xc0, 0xa0, 0xdd, 0xff},
	}
	if s, ok := palette[c.Name]; ok {
		return s
	}
	return color.Black
}

func stroke(c Contestant) draw.LineStyle {
	s := draw.LineStyle{Color: shade(c), Width: vg.Points(1.5)}
	if c.Name == ours {
		s.Width = vg.Points(3)
	}
	return s
}

func (r Report) drawLatency() *plot.Plot {
	res, ok := r.result("serial")
	if !ok {
		return nil
	}
	p := logTime(plot.New())
	p.Y.Label.Text = "share of operations, %"
	p.Y.Min, p.Y.Max = 0, 100
	p.Y.Tick.Marker = plot.TickerFunc(func(_, _ float64) []plot.Tick { return even(0, 100, 25) })
	for i, c := range res.Contestants {
		s := res.Total(i)
		var line plotter.XYs
		for q := 0.005; q < 0.9995; q += 0.005 {
			if v := s.Quantile(q); v > 0 {
				line = append(line, plotter.XY{X: v.Seconds(), Y: 100 * q})
			}
		}
		addLine(p, c, line)
	}
	return p
}

func (r Report) drawThroughput() *plot.Plot {
	lines := map[string]plotter.XYs{}
	var order []Contestant
	for _, name := range []string{"serial", "goroutines=4", "goroutines=32", "goroutines=256"} {
		res, ok := r.result(name)
		if !ok {
			continue
		}
		for i, c := range res.Contestants {
			if _, seen := lines[c.Name]; !seen {
				order = append(order, c)
			}
			lines[c.Name] = append(lines[c.Name], plotter.XY{X: float64(res.Case.Goroutines), Y: res.Total(i).Throughput()})
		}
	}
	if len(order) == 0 || len(lines[order[0].Name]) < 2 {
		return nil
	}
	p := plot.New()
	p.X.Label.Text = "goroutines"
	p.X.Scale = plot.LogScale{}
	p.Add(plotter.NewGrid())
	p.X.Tick.Marker = plot.ConstantTicks{{Value: 1, Label: "1"}, {Value: 4, Label: "4"}, {Value: 32, Label: "32"}, {Value: 256, Label: "256"}}
	p.Y.Label.Text = "locks a second"
	p.Legend.Top, p.Legend.Left = true, true
	for _, c := range order {
		if len(lines[c.Name]) > 1 { // the floor that knows one goroutine is no line
			addLine(p, c, lines[c.Name])
		}
	}
	p.Y.Min = 0
	p.Y.Tick.Marker = plot.TickerFunc(func(_, hi float64) []plot.Tick {
		step := math.Pow(10, math.Floor(math.Log10(hi)))
		if hi < 3*step {
			step /= 2
		}
		return even(0, hi, step)
	})
	return p
}

// even is labelled ticks at a distance of step.
func even(from, to, step float64) []plot.Tick {
	var ticks []plot.Tick
	for v := from; v <= to; v += step {
		ticks = append(ticks, plot.Tick{Value: v, Label: fmt.Sprintf("%.0f", v)})
	}
	return ticks
}

// drawHung shows for each contestant the span from p50 to p99.9, thin while
// all masters are well, and thick while one hangs.
func (r Report) drawHung() *plot.Plot {
	hung, ok := r.result("hung")
	if !ok {
		return nil
	}
	well, _ := r.result("serial")
	p := logTime(plot.New())
	n := len(hung.Contestants)
	names := make([]string, n)
	for i, c := range hung.Contestants {
		row := float64(n - 1 - i)
		names[n-1-i] = c.Name
		addSpan(p, c, hung.Total(i), row, vg.Points(5))
		for j, w := range well.Contestants {
			if w.Name == c.Name {
				addSpan(p, c, well.Total(j), row+0.25, vg.Points(1.5))
			}
		}
	}
	p.NominalY(names...)
	p.Y.Min, p.Y.Max = -0.5, float64(n)-0.5
	p.Y.Tick.Label.Font.Size = 10
	p.X.Label.Text = "p50 to p99.9 (thick: one master hangs; thin: all are well)"
	return p
}

func addSpan(p *plot.Plot, c Contestant, s *Sample, y float64, width vg.Length) {
	if s.Ops() == 0 {
		return
	}
	lo, hi := s.Quantile(0.50).Seconds(), s.Quantile(0.999).Seconds()
	l, err := plotter.NewLine(plotter.XYs{{X: lo, Y: y}, {X: max(hi, lo*1.15), Y: y}})
	if err != nil {
		return // not a number: there is nothing to draw
	}
	l.LineStyle = draw.LineStyle{Color: shade(c), Width: width}
	p.Add(l)
}

func addLine(p *plot.Plot, c Contestant, xys plotter.XYs) {
	l, err := plotter.NewLine(xys)
	if err != nil {
		return // no point, or not a number: there is nothing to draw
	}
	l.LineStyle = stroke(c)
	p.Add(l)
	p.Legend.Add(c.Name, l)
}

// logTime gives the plot a logarithmic axis of time in seconds.
func logTime(p *plot.Plot) *plot.Plot {
	p.X.Label.Text = "latency"
	p.X.Scale = plot.LogScale{}
	p.Add(plotter.NewGrid())
	p.X.Tick.Marker = plot.TickerFunc(func(lo, hi float64) []plot.Tick {
		var ticks []plot.Tick
		narrow := hi < 200*lo // else the labels would overlap
		for e := math.Floor(math.Log10(lo)); e <= math.Ceil(math.Log10(hi)); e++ {
			for m := 1.0; m < 10; m++ {
				t := plot.Tick{Value: m * math.Pow(10, e)}
				if m == 1 || narrow && (m == 2 || m == 5) {
					t.Label = label(t.Value)
				}
				if t.Value >= lo && t.Value <= hi {
					ticks = append(ticks, t)
				}
			}
		}
		return ticks
	})
	return p
}

func label(seconds float64) string {
	d := time.Duration(math.Round(seconds * 1e9))
	switch {
	case d < time.Millisecond:
		return strconv.FormatInt(d.Microseconds(), 10) + " µs"
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	}
	return strconv.FormatFloat(d.Seconds(), 'g', 2, 64) + " s"
}
