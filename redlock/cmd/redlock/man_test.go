package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

func TestTheManualHasEveryCommandAndFlag(t *testing.T) {
	t.Parallel()
	status, page, _ := do(t, nil, "man")
	require.Zero(t, status)
	require.Regexp(t, `^\.TH REDLOCK 1 `, page)
	for _, cmd := range newRoot().Commands() {
		require.Contains(t, page, `\fBredlock `+cmd.Name()+`\fR`)
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			require.Contains(t, page, `\fB\-\-`+strings.ReplaceAll(f.Name, "-", `\-`)+`\fR`)
		})
	}
	require.Equal(t, 1, strings.Count(page, "sentinels://"), "what all commands share is said once")
	for _, line := range lines(page) {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			require.Regexp(t, `^\.(TH|SH|PP|TP|B|nf|fi)\b`, line)
		}
		require.NotRegexp(t, `[^\\]-`, strings.Replace(line, `(devel)`, "", 1), "a minus, as it is to be copied")
	}
}
