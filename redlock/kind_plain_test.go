package redlock

import (
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/redburst/redburst/redlock/internal/round"
	"github.com/redburst/redburst/resp/resptest"
	"github.com/stretchr/testify/require"
)

func TestCommandsOnTheWire(t *testing.T) {
	c, _ := newFake(t, 3, Config{Owner: "me"})
	m := c.NewMutex("a key", 10*time.Second)
	k := new(round.Call)

	k.Acquire(m.spec(), c.owner, 0)
	token := string(k.Token)
	require.Equal(t, []string{"SET", "a key", token, "NX", "PX", "10000"}, words(k.Op.Command))
	require.Empty(t, k.Op.Fallback)
	for _, d := range k.Op.Dialects {
		require.Empty(t, d.Command, "every server understands it")
	}
	require.True(t, strings.HasPrefix(token, "me/"))
	require.Zero(t, k.Op.Persist, "an acquire is never delivered late")

	k.Release(m.spec(), []byte(token))
	require.Equal(t, []string{"EVALSHA", kind.ReleaseScript.Hash, "1", "a key", token}, words(k.Op.Command))
	require.Equal(t, []string{"EVAL", kind.ReleaseScript.Text, "1", "a key", token}, words(k.Op.Fallback))
	require.Equal(t, 10*time.Second, k.Op.Persist)

	require.Equal(t, []string{"DELEX", "a key", "IFEQ", token}, words(k.Op.Dialects[0].Command))
	require.Equal(t, conn.DelEx, k.Op.Dialects[0].Needs)
	require.Equal(t, []string{"DELIFEQ", "a key", token}, words(k.Op.Dialects[1].Command))
	require.Equal(t, conn.DelIfEq, k.Op.Dialects[1].Needs)

	k.Extend(m.spec(), []byte(token), 0, 10*time.Second)
	require.Equal(t, []string{"SET", "a key", token, "IFEQ", token, "PX", "10000"}, words(k.Op.Dialects[0].Command))
	require.Equal(t, conn.SetIfEq, k.Op.Dialects[0].Needs)
	require.Empty(t, k.Op.Dialects[1].Command)
	require.Equal(t, []string{"EVALSHA", kind.ExtendScript.Hash, "1", "a key", token, "10000"}, words(k.Op.Command))
	require.Equal(t, []string{"EVAL", kind.ExtendScript.Text, "1", "a key", token, "10000"}, words(k.Op.Fallback))
	require.Zero(t, k.Op.Persist)

	k.Repair(m.spec(), []byte(token), 0, 10*time.Second, mux.Set(0).With(1))
	require.Equal(t, []string{"SET", "a key", token, "NX", "PX", "10000"}, words(k.Op.Command))
	require.Empty(t, k.Op.Fallback, "it is not sent a second time")
	require.Empty(t, k.Op.Dialects[0].Command)
	require.Equal(t, mux.Set(0).With(1), k.Op.Only)
	require.Zero(t, k.Op.Persist)

	askRow(k, "a key", census.Fence+census.Readers, time.Second, false)
	require.Empty(t, k.Op.Dialects[0].Command)
	require.Equal(t, []string{"EVALSHA", census.Rows.Hash, "1", "a key", "fr", "a key", "{a key}:line"}, words(k.Op.Command))
	require.Equal(t, []string{"EVAL", census.Rows.Text, "1", "a key", "fr", "a key", "{a key}:line"}, words(k.Op.Fallback))
}

func TestRepliesAreJudged(t *testing.T) {
	const row = "*8\r\n$-1\r\n:-2\r\n:0\r\n*0\r\n$-1\r\n:0\r\n:0\r\n*0\r\n"
	type test struct {
		judge mux.VerdictFunc
		reply string
		want  mux.Verdict
	}
	for _, c := range []test{
		{kind.JudgeSet, "+OK\r\n", mux.VerdictYes},
		{kind.JudgeSet, "$-1\r\n", mux.VerdictNo},
		{kind.JudgeSet, "_\r\n", mux.VerdictNo},
		{kind.JudgeSet, "*-1\r\n", mux.VerdictNo},
		{kind.JudgeSet, "+QUEUED\r\n", mux.VerdictFailed},
		{kind.JudgeSet, ":1\r\n", mux.VerdictFailed},
		{kind.JudgeSet, "-OOM command not allowed\r\n", mux.VerdictFailed},
		{kind.JudgeSet, "-NOSCRIPT what\r\n", mux.VerdictFailed},
		{kind.JudgeInt, ":1\r\n", mux.VerdictYes},
		{kind.JudgeInt, ":0\r\n", mux.VerdictNo},
		{kind.JudgeInt, ":2\r\n", mux.VerdictNo},
		{kind.JudgeInt, "-NOSCRIPT No matching script.\r\n", mux.VerdictAgain},
		{kind.JudgeInt, "-NOPERM\r\n", mux.VerdictFailed},
		{kind.JudgeInt, "$1\r\n1\r\n", mux.VerdictFailed},
		{kind.JudgeInt, "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", mux.VerdictNo},
		{kind.JudgeInt, "-ERR Key should be of string type if conditions are specified\r\n", mux.VerdictNo},
		{kind.JudgeInt, "-ERR syntax error\r\n", mux.VerdictFailed},
		{kind.JudgeExtend, "+OK\r\n", mux.VerdictYes},
		{kind.JudgeExtend, "_\r\n", mux.VerdictAgain},
		{kind.JudgeExtend, ":1\r\n", mux.VerdictYes},
		{kind.JudgeExtend, ":2\r\n", mux.VerdictNo},
		{kind.JudgeExtend, "-NOSCRIPT\r\n", mux.VerdictAgain},
		{kind.JudgeExtend, "-WRONGTYPE Operation\r\n", mux.VerdictNo},
		{kind.JudgeExtend, "$12\r\nrevoked:t\nwh\r\n", mux.VerdictNo},
		{kind.JudgeExtend, "$3\r\nwhy\r\n", mux.VerdictFailed},
		{kind.JudgeOne, "$12\r\nrevoked:t\nwh\r\n", mux.VerdictNo},
		{kind.JudgeRelease, ":1\r\n", mux.VerdictYes},
		{kind.JudgeRelease, ":0\r\n", mux.VerdictAgain},
		{kind.JudgeRelease, ":-1\r\n", mux.VerdictNo},
		{kind.JudgeRelease, "$12\r\nrevoked:t\nwh\r\n", mux.VerdictNo},
		{kind.JudgeRelease, "-WRONGTYPE Operation\r\n", mux.VerdictAgain},
		{kind.JudgeRelease, "-NOSCRIPT\r\n", mux.VerdictAgain},
		{kind.JudgeRelease, "-NOPERM\r\n", mux.VerdictFailed},
		{census.JudgeRows, "*1\r\n" + row, mux.VerdictYes},
		{census.JudgeRows, "*2\r\n" + row + row, mux.VerdictYes},
		{census.JudgeRows, "*2\r\n" + row + ":5\r\n", mux.VerdictFailed},
		{census.JudgeRows, "*1\r\n*1\r\n:5\r\n", mux.VerdictFailed},
		{census.JudgeRows, "*0\r\n", mux.VerdictFailed},
		{census.JudgeRows, ":5\r\n", mux.VerdictFailed},
		{census.JudgeRows, "-NOSCRIPT\r\n", mux.VerdictAgain},
		{census.JudgeRows, "-ERR\r\n", mux.VerdictFailed},
		{kind.JudgeArray, "*0\r\n", mux.VerdictYes},
		{kind.JudgeArray, ":5\r\n", mux.VerdictFailed},
	} {
		require.Equal(t, c.want, c.judge(resptest.Parse([]byte(c.reply))), c.reply)
	}
}
