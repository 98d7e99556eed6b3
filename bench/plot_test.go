package main

import (
	"bytes"
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

// sketch is a run of the case with this name, by all contestants, with figures that were invented.
func sketch(t *testing.T, name string) Report {
	t.Helper()
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
		}
		s := newSample()
		for i := range 100 {
			s.Record(took * time.Duration(100+i) / 100)
		}
		res.Contestants, res.Rounds[0] = append(res.Contestants, c), append(res.Rounds[0], s)
	}
	return Report{Results: []Result{res}}
}

func TestThePictureIsOfTheCaseThatRan(t *testing.T) {
	dir := t.TempDir()
	r := sketch(t, "serial")
	title, err := r.draw(dir)
	require.NoError(t, err)
	require.Contains(t, string(r.markdown(title)), "!["+title+"]("+pictureFile+")")
	text, err := os.ReadFile(filepath.Join(dir, pictureFile))
	require.NoError(t, err)
	d := xml.NewDecoder(bytes.NewReader(text))
	for err == nil {
		_, err = d.Token()
	}
	require.ErrorIs(t, err, io.EOF, "it is no XML")
	require.NotContains(t, string(text), "NaN")
	require.NotContains(t, string(text), "Inf")

	r = sketch(t, "N=1")
	title, err = r.draw(dir)
	require.NoError(t, err)
	require.NotContains(t, string(r.markdown(title)), "![")
	require.NoFileExists(t, filepath.Join(dir, pictureFile), "that of before is gone")
}

func TestEveryContestantHasALabel(t *testing.T) {
	r := sketch(t, "serial")
	res := r.Results[0]
	d, _ := r.drawLatency()
	for i, c := range res.Contestants {
		labels := 0
		for _, text := range d.texts {
			words := strings.FieldsFunc(text.text, func(r rune) bool { return strings.ContainsRune(" ()", r) })
			if slices.Contains(words, c.Name) {
				labels++
			}
		}
		want := 1
		if c.Floor() && i != res.best(Contestant.Floor) || c.cases != nil {
			want = 0 // one floor is enough, and etcd takes no lock on masters
		}
		require.Equal(t, want, labels, c.Name)
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
	rows := res.rows()
	require.Equal(t, res.Contestants[hasty].Name, rows[0].name)
	require.Equal(t, inkRest, rows[0].ink)
	require.Equal(t, "fails, 1.00 µs", rows[0].figure())
}

func TestLabelsDoNotOverlap(t *testing.T) {
	calm, failed := sketch(t, "serial"), sketch(t, "serial")
	s := newSample()
	s.Fail(errors.New("it fails"))
	failed.Results[0].Rounds[0][len(failed.Results[0].Contestants)-1] = s
	for kind, r := range map[string]Report{"calm": calm, "failed": failed} {
		d, _ := r.drawLatency()
		for i, a := range d.texts {
			require.True(t, a.left >= 0 && a.top >= 0 && a.right <= d.width && a.bottom <= d.height,
				"%s: %q is not within the picture: %+v", kind, a.text, a)
			for _, b := range d.texts[:i] {
				require.False(t, a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom,
					"%s: %q and %q overlap", kind, a.text, b.text)
			}
		}
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
		for _, tick := range evenTicks(most) {
			labels = append(labels, tick.label)
		}
		require.Equal(t, want, strings.Join(labels, " "))
	}
}
