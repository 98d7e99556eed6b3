package redlock

import (
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/stretchr/testify/require"
)

func TestCommandsOnTheWire(t *testing.T) {
	c, _ := newFake(t, 3, Config{Owner: "me"})
	m := c.NewMutex("a key", 10*time.Second)
	k := newCall().(*call)

	k.acquire(&m.spec, c.owner)
	token := string(k.token)
	require.Equal(t, []string{"SET", "a key", token, "NX", "PX", "10000"}, words(k.op.Command))
	require.Empty(t, k.op.Fallback)
	require.True(t, strings.HasPrefix(token, "me/"))
	require.Zero(t, k.op.Persist, "an acquire is never delivered late")

	k.release(&m.spec, []byte(token))
	require.Equal(t, []string{"EVALSHA", releaseScript.hash, "1", "a key", token}, words(k.op.Command))
	require.Equal(t, []string{"EVAL", releaseScript.text, "1", "a key", token}, words(k.op.Fallback))
	require.Equal(t, 10*time.Second, k.op.Persist)

	k.extend(&m.spec, []byte(token), true)
	require.Equal(t, []string{"EVALSHA", extendScript.hash, "1", "a key", token, "10000", "1"}, words(k.op.Command))
	require.Equal(t, []string{"EVAL", extendScript.text, "1", "a key", token, "10000", "0"}, words(k.op.Fallback))
	require.Zero(t, k.op.Persist)

	k.holders("a key", time.Second)
	require.Equal(t, []string{"EVALSHA", holdersScript.hash, "1", "a key"}, words(k.op.Command))
	require.Equal(t, []string{"EVAL", holdersScript.text, "1", "a key"}, words(k.op.Fallback))
}

func TestRepliesAreJudged(t *testing.T) {
	type row struct {
		judge mux.Judge
		reply string
		want  mux.Verdict
	}
	for _, c := range []row{
		{judgeSet, "+OK\r\n", mux.VerdictYes},
		{judgeSet, "$-1\r\n", mux.VerdictNo},
		{judgeSet, "_\r\n", mux.VerdictNo},
		{judgeSet, "*-1\r\n", mux.VerdictNo},
		{judgeSet, "+QUEUED\r\n", mux.VerdictFailed},
		{judgeSet, ":1\r\n", mux.VerdictFailed},
		{judgeSet, "-OOM command not allowed\r\n", mux.VerdictFailed},
		{judgeSet, "-NOSCRIPT what\r\n", mux.VerdictFailed},
		{judgeScript, ":1\r\n", mux.VerdictYes},
		{judgeScript, ":0\r\n", mux.VerdictNo},
		{judgeScript, ":2\r\n", mux.VerdictNo},
		{judgeScript, "-NOSCRIPT No matching script.\r\n", mux.VerdictAgain},
		{judgeScript, "-NOPERM\r\n", mux.VerdictFailed},
		{judgeScript, "$1\r\n1\r\n", mux.VerdictFailed},
		{judgeHolders, "*2\r\n$1\r\nx\r\n:5\r\n", mux.VerdictYes},
		{judgeHolders, "*1\r\n:5\r\n", mux.VerdictFailed},
		{judgeHolders, "-NOSCRIPT\r\n", mux.VerdictAgain},
		{judgeHolders, "-ERR\r\n", mux.VerdictFailed},
	} {
		require.Equal(t, c.want, c.judge(parse([]byte(c.reply))), c.reply)
	}
}
