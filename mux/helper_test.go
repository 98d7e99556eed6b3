package mux_test

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
)

const releaseScript = `if redis.call("GET",KEYS[1])==ARGV[1] then return redis.call("DEL",KEYS[1]) end return 0`

// TestMain lets more tests run at once than there are processors, unless -parallel says how
// many: parallel tests wait for masters nearly all the time. Tests that measure what the
// whole process uses (heap, goroutines, descriptors, processor time) are not parallel.
func TestMain(m *testing.M) {
	flag.Parse()
	chosen := false
	flag.Visit(func(f *flag.Flag) { chosen = chosen || f.Name == "test.parallel" })
	if !chosen {
		flag.Set("test.parallel", "8")
	}
	os.Exit(m.Run())
}

// patience bounds what a test does not measure; a loaded machine may need all of it.
const patience = 60 * time.Second

// patiently sets what a test has left open, so that it does not depend on how fast the
// machine is: a dial may take long, a master may be silent for long, and a master that is
// back is redialled soon.
func patiently(cfg mux.Config) mux.Config {
	if cfg.StallTime == 0 {
		cfg.StallTime = patience
	}
	if cfg.Conn.DialTimeout == 0 {
		cfg.Conn.DialTimeout = patience
	}
	if cfg.BackoffMax == 0 {
		cfg.BackoffMax = 20 * time.Millisecond
	}
	return cfg
}

func open(t testing.TB, cfg mux.Config) *mux.Mux {
	t.Helper()
	m, err := mux.Open(context.Background(), patiently(cfg))
	require.NoError(t, err)
	t.Cleanup(func() {
		if books := m.Books(); books != "" {
			t.Error(books) // whatever the test is about
		}
		m.Close()
	})
	return m
}

// nobodyAt is an address where nobody listens.
func nobodyAt(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// says returns what a master says to a command, and requires that it is no error.
func says(t testing.TB, masters *redlocktest.Masters, i int, args ...string) any {
	t.Helper()
	v, err := masters.Do(i, args...)
	require.NoError(t, err, "%q", args)
	return v
}

// count counts the votes of each kind. One that is pending was not asked for, or had not come at the decision.
func count(op *mux.Op) (yes, no, failed, pending int) {
	for i := range op.Votes {
		switch op.Votes[i].Verdict {
		case mux.VerdictYes:
			yes++
		case mux.VerdictNo:
			no++
		case mux.VerdictFailed:
			failed++
		default:
			pending++
		}
	}
	return yes, no, failed, pending
}

// granted reports whether a quorum has said yes.
func granted(op *mux.Op) bool {
	yes, _, _, _ := count(op)
	quorum := op.Quorum
	if quorum <= 0 {
		quorum = len(op.Votes)/2 + 1
	}
	return yes >= quorum && yes > 0
}

// eventually waits for a condition for as long as a loaded machine may need.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func waitUp(t testing.TB, m *mux.Mux, n int) {
	t.Helper()
	eventually(t, fmt.Sprint(n, " masters up"), func() bool { return upCount(m) == n })
}

func upCount(m *mux.Mux) int {
	up := 0
	for _, s := range m.Masters() {
		if s.Phase == mux.Up {
			up++
		}
	}
	return up
}

// outstanding is the number of replies that are owed.
func outstanding(m *mux.Mux) (n int) {
	for _, s := range m.Masters() {
		n += s.Owed
	}
	return n
}

func verdictOK(v resp.Value) mux.Verdict {
	switch {
	case v.Is("OK"):
		return mux.VerdictYes
	case v.IsNull():
		return mux.VerdictNo
	}
	return mux.VerdictFailed
}

func verdictOne(v resp.Value) mux.Verdict {
	switch n, ok := v.Int(); {
	case ok && n == 1:
		return mux.VerdictYes
	case ok:
		return mux.VerdictNo
	case string(v.ErrorCode()) == "NOSCRIPT":
		return mux.VerdictAgain
	}
	return mux.VerdictFailed
}

func verdictAnyInt(v resp.Value) mux.Verdict {
	if _, ok := v.Int(); ok {
		return mux.VerdictYes
	}
	return mux.VerdictFailed
}

func acquire(key, token string) *mux.Op {
	return &mux.Op{
		Command: resp.AppendCommand(nil, "SET", key, token, "NX", "PX", "60000"),
		Verdict: verdictOK,
		Timeout: 30 * time.Second,
	}
}

func release(key, token string) *mux.Op {
	return &mux.Op{
		Command:  resp.AppendCommand(nil, "EVALSHA", strings.Repeat("0", 40), "1", key, token),
		Fallback: resp.AppendCommand(nil, "EVAL", releaseScript, "1", key, token),
		Verdict:  verdictOne,
		Timeout:  30 * time.Second,
		Persist:  time.Minute,
	}
}

func releaseSHA(key, token string) []byte {
	sum := sha1.Sum([]byte(releaseScript))
	return resp.AppendCommand(nil, "EVALSHA", hex.EncodeToString(sum[:]), "1", key, token)
}

func vote(id string) *mux.Op {
	return &mux.Op{Command: resp.AppendCommand(nil, "VOTE", id), Verdict: verdictAnyInt}
}

func verdicts(op *mux.Op) (all []mux.Verdict) {
	for _, v := range op.Votes {
		all = append(all, v.Verdict)
	}
	return all
}

func keysOn(t testing.TB, masters *redlocktest.Masters, i int) int64 {
	t.Helper()
	return says(t, masters, i, "DBSIZE").(int64)
}

func openFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}
