package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

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
