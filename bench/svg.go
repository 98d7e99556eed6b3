package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"unicode/utf8"
)

// A drawing is an SVG picture without a background. It stands on white pages and on dark ones, and does not
// know on which: a picture may be told another scheme than the page has. So all its colours are of a middle
// brightness.
type drawing struct {
	width, height float64
	body          bytes.Buffer
	texts         []placed // for the tests: labels must not overlap
}

// A placed text is where a text is, about.
type placed struct {
	text                     string
	left, top, right, bottom float64
}

// An ink is what a contestant, or all that is not one, is drawn with.
type ink string

const (
	inkOurs ink = "ours"
	inkPeer ink = "peer" // the best one
	inkRest ink = "rest"
	inkText ink = "text"
)

// colours have enough contrast to #ffffff and to GitHub's #0d1117.
var colours = map[ink]string{
	inkOurs: "#e0433f",
	inkPeer: "#2f7fe6",
	inkRest: "#7d868f",
	inkText: "#6e7781",
}

// Sizes of letters, and about how wide one is. The fonts are those that the reader has.
const (
	titleSize = 17.0
	textSize  = 13.0
	emWidth   = 0.58
	boldWidth = 0.65
)

func newDrawing(width, height float64, title, subtitle string) *drawing {
	d := &drawing{width: width, height: height}
	d.write(margin, margin+titleSize, titleSize, inkText, "start", true, title)
	d.write(margin, margin+titleSize+8+textSize, textSize, inkText, "start", false, subtitle)
	return d
}

const (
	margin = 10.0
	header = margin + titleSize + 8 + textSize + 14 // where the plot may begin
)

// textWidth is about how wide the text becomes.
func textWidth(text string, size float64, bold bool) float64 {
	em := emWidth
	if bold {
		em = boldWidth
	}
	return float64(utf8.RuneCountInString(text)) * size * em
}

// text writes at the baseline y. The anchor is start, middle or end.
func (d *drawing) text(x, y float64, c ink, anchor, text string) {
	d.write(x, y, textSize, c, anchor, c == inkOurs || c == inkPeer, text)
}

func (d *drawing) write(x, y, size float64, c ink, anchor string, bold bool, text string) {
	var escaped bytes.Buffer
	xml.EscapeText(&escaped, []byte(text)) // a buffer does not fail
	weight := ""
	if bold {
		weight = ` font-weight="bold"`
	}
	fmt.Fprintf(&d.body, `<text x="%.1f" y="%.1f" font-size="%g" fill="%s" text-anchor="%s"%s>%s</text>`+"\n",
		x, y, size, colours[c], anchor, weight, escaped.String())
	w := textWidth(text, size, bold)
	left := x - map[string]float64{"start": 0, "middle": w / 2, "end": w}[anchor]
	d.texts = append(d.texts, placed{text, left, y - 0.75*size, left + w, y + 0.2*size})
}

func (d *drawing) line(x1, y1, x2, y2, width float64, c ink) {
	fmt.Fprintf(&d.body, `<polyline points="%.1f,%.1f %.1f,%.1f" fill="none" stroke="%s" stroke-width="%g" stroke-linejoin="round"/>`+"\n", x1, y1, x2, y2, colours[c], width)
}

// grid is a line that stays in the background.
func (d *drawing) grid(x1, y1, x2, y2 float64) {
	fmt.Fprintf(&d.body, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-opacity="0.25"/>`+"\n", x1, y1, x2, y2, colours[inkText])
}

func (d *drawing) bar(x, y, width, height float64, c ink) {
	fmt.Fprintf(&d.body, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"%s/>`+"\n", x, y, width, height, colours[c], faint(c))
}

// faint lets large areas of the rest step back.
func faint(c ink) string {
	if c == inkRest {
		return ` fill-opacity="0.6"`
	}
	return ""
}

func (d *drawing) svg() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%g" height="%g" `+
		`font-family="system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif">`+"\n", d.width, d.height, d.width, d.height)
	b.Write(d.body.Bytes())
	b.WriteString("</svg>\n")
	return b.Bytes()
}
