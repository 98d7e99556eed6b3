package fuzz

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/redburst/redburst/resp"
	"github.com/redburst/redburst/resp/resptest"
)

const corpus = "testdata/fuzz/FuzzNext"

// streams are the first inputs of all targets that take a stream: the tables of
// resptest and the corpus of FuzzNext.
func streams(tb testing.TB) (all []string) {
	for _, s := range resptest.Streams {
		all = append(all, s.Input)
	}
	for _, h := range resptest.HostileStreams {
		if len(h.Input) < 16<<10 { // the engine is slow with long ones, and finds little in them
			all = append(all, h.Input)
		}
	}
	files, err := filepath.Glob(filepath.Join(corpus, "*"))
	if err != nil {
		tb.Fatal(err)
	}
	for _, file := range files {
		all = append(all, readSeed(tb, file))
	}
	return all
}

const seedFormat = "go test fuzz v1\n[]byte(%s)\n"

func readSeed(tb testing.TB, file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	head, tail, _ := strings.Cut(seedFormat, "%s")
	quoted, ok := strings.CutPrefix(string(b), head)
	if ok {
		quoted, ok = strings.CutSuffix(quoted, tail)
	}
	stream, err := strconv.Unquote(quoted)
	if !ok || err != nil {
		tb.Fatalf("%s is no seed of one []byte", file)
	}
	return stream
}

func writeSeed(tb testing.TB, name, stream string) {
	seed := fmt.Sprintf(seedFormat, strconv.Quote(stream))
	if err := os.WriteFile(filepath.Join(corpus, name), []byte(seed), 0o644); err != nil {
		tb.Fatal(err)
	}
}

// limits are the defaults, which only the headers of a fuzzed stream can exceed,
// and narrow ones, which a fuzzed stream meets, without and with room to skip.
var limits = []resp.Limits{
	{},
	{Depth: 3, Bulk: 64, Elements: 12, Frame: 160},
	{Depth: 3, Bulk: 64, Elements: 12, Frame: 160, Skip: 400},
}

// frames takes every frame out of a stream that arrives in one piece. They
// borrow its reader, which nobody else uses.
func frames(stream []byte, l resp.Limits) (all []resp.Value, err error) {
	r := resp.NewReader(len(stream), l)
	r.Advance(copy(r.Free(len(stream)), stream))
	for {
		v, err := r.Next()
		if err != nil {
			return all, err
		}
		all = append(all, v)
	}
}

func elems(v resp.Value) (all []resp.Value) {
	for it := v.Elems(); ; {
		e, ok := it.Next()
		if !ok {
			return all
		}
		all = append(all, e)
	}
}
