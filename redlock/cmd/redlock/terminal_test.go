package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func TestTextsAreShort(t *testing.T) {
	require.Equal(t, "74.2µs", brief(74213*time.Nanosecond))
	require.Equal(t, "1.24ms", brief(1236*time.Microsecond))
	require.Equal(t, "999ns", brief(999))
	require.Equal(t, "0s", brief(0))
	require.Equal(t, "59s", age(59*time.Second))
	require.Equal(t, "3h", age(200*time.Minute))
	require.Equal(t, "12d", age(300*time.Hour))
	require.Equal(t, "abc", clip("abc", 3))
	require.Equal(t, "a…d", clip("abcd", 3))
	var out bytes.Buffer
	(&terminal{Writer: &out}).say("lead  ", red, strings.Repeat("word ", 40))
	requireReadable(t, out.String())
	require.Equal(t, 40, strings.Count(out.String(), "word"))
	for line := range strings.Lines(out.String()) {
		require.Regexp(t, `^(lead| {4})  word`, line)
	}
}

func TestTablesFitIntoATerminal(t *testing.T) {
	for _, text := range []string{"short", strings.Repeat("long", 30)} {
		var out bytes.Buffer
		(&terminal{Writer: &out}).table("   ", 1, [][]cell{header("FIRST", "SECOND", "THIRD"), {{text, red}, {"middle", plain}, {text, plain}}})
		requireReadable(t, out.String())
		require.Contains(t, out.String(), "middle")
		var last string
		for _, line := range lines(out.String())[1:] {
			last += line[strings.LastIndexByte(line, ' ')+1:]
		}
		require.Equal(t, text, last, "it is not cut")
	}
}

func TestForeignTextsAreEscaped(t *testing.T) {
	var out bytes.Buffer
	screen := &terminal{Writer: &out}
	screen.say("lead", plain, "a\x1b[2Jb\nc")
	screen.table("", 1, [][]cell{{{"a\x1b[2J", plain}, {"b\nc\x07", plain}}})
	require.Equal(t, `leada\x1b[2Jb\nc`+"\n"+`a\x1b[2J  b\nc\a`+"\n", out.String())
}

// What is written into a pipe is whole, in as many lines as there are sentences and rows. COLUMNS says otherwise, of any output.
func TestWhatGoesIntoAPipeIsNeitherBrokenNorClipped(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Embedded(t, 1)
	key, owner := "k"+strings.Repeat("-long", 24), "somebody"+strings.Repeat("-else", 24)
	ask(t, masters, 0, "SET", key, owner+"/ABCDEFGHIJKLMNOPQRSTUVWXYZ0")
	whole := func(columns string, args ...string) (n int, widest int) {
		_, stdout, _ := do(t, []string{mastersEnv(masters), "COLUMNS=" + columns}, args...)
		for _, line := range lines(stdout) {
			if strings.Contains(line, key) && strings.Contains(line, owner) {
				n++
			}
			widest = max(widest, utf8.RuneCountInString(line))
		}
		return n, widest
	}
	for _, columns := range []string{"", "nonsense", "0", "-1", "1"} {
		n, _ := whole(columns, "ls", "*")
		require.Equal(t, 1, n, columns)
	}
	for columns, most := range map[string]int{"80": 80, "100": 100} {
		n, widest := whole(columns, "ls", "*")
		require.Zero(t, n)
		require.LessOrEqual(t, widest, most)
	}
}
