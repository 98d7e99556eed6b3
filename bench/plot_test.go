package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sketch is a run of the cases with these names, by all contestants, with figures that were invented.
func sketch(t *testing.T, names ...string) Report {
	t.Helper()
	var r Report
	for _, name := range names {
		k := caseNamed(t, name)
		res := Result{Case: k, Rounds: make([][]*Sample, 1)}
		for _, c := range Contestants() {
			if !k.Wants(c) {
				continue
			}
			took := time.Duration(400+len(c.Name)) * time.Microsecond
			switch {
			case c.Floor():
				took = 194 * time.Microsecond
			case c.Name == ours:
				took = 265 * time.Microsecond
			case k.Fault == Hung && !c.failFast:
				took = time.Second
			}
			s := newSample()
			for i := range 100 {
				s.Record(took * time.Duration(100+i) / 100)
			}
			s.Wall = 100 * took / time.Duration(min(k.Goroutines, 8))
			if c.Name == ours {
				s.Wall = 100 * took / time.Duration(k.Goroutines)
			}
			res.Contestants, res.Rounds[0] = append(res.Contestants, c), append(res.Rounds[0], s)
		}
		r.Results = append(r.Results, res)
	}
	return r
}

var pictured = []string{"serial", "goroutines=4", "goroutines=32", "goroutines=256", "hung"}

func TestPicturesAreOfTheCasesThatRan(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ cases, files []string }{
		{pictured, []string{"latency.svg", "throughput.svg", "hung.svg"}},
		{[]string{"hung"}, []string{"hung.svg"}}, // and the others of before are gone
		{[]string{"serial"}, []string{"latency.svg"}},
		{[]string{"serial", "goroutines=32"}, []string{"latency.svg", "throughput.svg"}},
		{[]string{"N=1"}, nil},
	} {
		r := sketch(t, c.cases...)
		pictures, err := r.draw(dir)
		require.NoError(t, err)
		var named []string
		for _, p := range pictures {
			named = append(named, p.file)
			require.Contains(t, string(r.markdown(pictures)), "!["+p.title+"]("+p.file+")")
		}
		require.Equal(t, c.files, named)
		there, err := filepath.Glob(filepath.Join(dir, "*.svg"))
		require.NoError(t, err)
		require.Len(t, there, len(c.files))
		for _, file := range there {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			d := xml.NewDecoder(strings.NewReader(string(text)))
			for err == nil {
				_, err = d.Token()
			}
			require.ErrorIs(t, err, io.EOF, "%s is no XML", file)
			require.NotContains(t, string(text), "NaN")
			require.NotContains(t, string(text), "Inf")
		}
	}
}

func drawings(r Report) map[string]*drawing {
	latency, _ := r.drawLatency()
	throughput, _ := r.drawThroughput()
	hung, _ := r.drawHung()
	return map[string]*drawing{"serial": latency, "goroutines=32": throughput, "hung": hung}
}

func TestEveryContestantHasALabel(t *testing.T) {
	r := sketch(t, pictured...)
	for name, d := range drawings(r) {
		res, _ := r.result(name)
		for i, c := range res.Contestants {
			labels := 0
			for _, text := range d.texts {
				words := strings.FieldsFunc(text.text, func(r rune) bool { return strings.ContainsRune(" ()", r) })
				if slices.Contains(words, c.Name) {
					labels++
				}
			}
			want := 1
			if c.Floor() && i != res.best(Contestant.Floor) && name != "goroutines=32" { // where each is a curve
				want = 0 // one floor is enough
			}
			require.Equal(t, want, labels, "%s in the picture of %s", c.Name, name)
		}
	}
}

func TestAPeerThatIsFastAndFailsIsNotEmphasised(t *testing.T) {
	r := sketch(t, "serial")
	res := r.Results[0]
	hasty := slices.IndexFunc(res.Contestants, Contestant.Peer)
	s := newSample()
	s.Record(time.Microsecond)
	s.Fail(errors.New("it fails"))
	res.Rounds[0][hasty] = s
	rows := res.rows(quantile(0.50), quantile(0.99))
	require.Equal(t, res.Contestants[hasty].Name, rows[0].name)
	require.Equal(t, inkRest, rows[0].ink)
	require.Equal(t, "fails, 1.00 µs", rows[0].figure())
}

func TestLabelsDoNotOverlap(t *testing.T) {
	calm := sketch(t, pictured...)
	same := sketch(t, pictured...) // all lines end at one point
	failed := sketch(t, pictured...)
	for i, res := range same.Results {
		for j := range res.Rounds[0] {
			same.Results[i].Rounds[0][j] = res.Rounds[0][0]
		}
	}
	for i, res := range failed.Results {
		s := newSample()
		s.Fail(errors.New("it fails"))
		failed.Results[i].Rounds[0][len(res.Contestants)-1] = s
	}
	for kind, r := range map[string]Report{"calm": calm, "same": same, "failed": failed} {
		for name, d := range drawings(r) {
			require.NotNil(t, d, "%s %s", kind, name)
			for i, a := range d.texts {
				require.True(t, a.left >= 0 && a.top >= 0 && a.right <= d.width && a.bottom <= d.height,
					"%s %s: %q is not within the picture: %+v", kind, name, a.text, a)
				for _, b := range d.texts[:i] {
					require.False(t, a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom,
						"%s %s: %q and %q overlap", kind, name, a.text, b.text)
				}
			}
		}
	}
}

func TestLabelsMoveApart(t *testing.T) {
	for _, c := range []struct{ at, want []float64 }{
		{[]float64{10, 50, 90}, []float64{10, 50, 90}},
		{[]float64{50, 10, 55}, []float64{50, 10, 60}},
		{[]float64{95, 100, 100}, []float64{80, 90, 100}},
		{[]float64{0, 0, 0}, []float64{0, 10, 20}},
	} {
		require.Equal(t, c.want, apart(c.at, 10, 0, 100))
	}
}

// WCAG asks for a contrast of 3 for what is drawn, and for large or bold text, and of 4.5 for other text.
// No grey has 4.5 on both pages; the best there is has a little more than 4.
func TestColoursAreReadableOnLightAndDarkPages(t *testing.T) {
	luminance := func(hex string) float64 {
		sum := 0.0
		for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
			v, err := strconv.ParseUint(hex[1+2*i:3+2*i], 16, 8)
			require.NoError(t, err)
			if c := float64(v) / 255; c <= 0.04045 {
				sum += weight * c / 12.92
			} else {
				sum += weight * math.Pow((c+0.055)/1.055, 2.4)
			}
		}
		return sum
	}
	contrast := func(a, b string) float64 {
		x, y := luminance(a), luminance(b)
		return (max(x, y) + 0.05) / (min(x, y) + 0.05)
	}
	for ink, colour := range colours {
		want := 3.5
		if ink == inkText {
			want = 4
		}
		for _, page := range []string{"#ffffff", "#0d1117"} {
			require.GreaterOrEqual(t, contrast(colour, page), want, "%s on %s", ink, page)
		}
	}
}

func TestAxesHaveRoundNumbers(t *testing.T) {
	for most, want := range map[float64]string{
		0.0019:   "0 250 µs 500 µs 750 µs 1 ms 1.25 ms 1.5 ms 1.75 ms",
		0.0031:   "0 500 µs 1 ms 1.5 ms 2 ms 2.5 ms 3 ms",
		0.000531: "0 100 µs 200 µs 300 µs 400 µs 500 µs",
	} {
		var labels []string
		for _, tick := range evenTicks(most, label) {
			labels = append(labels, tick.label)
		}
		require.Equal(t, want, strings.Join(labels, " "))
	}
	for want, v := range map[string]float64{"0": 0, "987": 987.4, "44,100": 44062, "8,990": 8987, "1,230,000": 1234567} {
		require.Equal(t, want, thousands(v))
	}
}
