package mux_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/conn"
	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/resp"
)

// oneName requires that a text is one line, and names the package once at most.
func oneName(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	require.LessOrEqual(t, strings.Count(err.Error(), "mux: "), 1, err)
	require.LessOrEqual(t, strings.Count(err.Error(), "conn: "), 1, err)
	require.NotContains(t, err.Error(), "\n")
	require.NotContains(t, err.Error(), "file already closed")
}

func TestEachErrorNamesThePackageOnce(t *testing.T) {
	t.Parallel()
	for _, err := range []error{mux.ErrClosed, mux.ErrTimeout, mux.ErrForgotten, mux.ErrNoQuorum, mux.ErrConnecting, mux.ErrStalled,
		mux.ErrBacklog, mux.ErrTooLong, mux.ErrUnexpected, mux.ErrSwitched, mux.ErrDemoted, mux.ErrDuplicate,
		&mux.QuarantineError{Reason: "it was started 1s ago", Until: time.Now()}} {
		oneName(t, err)
		require.True(t, strings.HasPrefix(err.Error(), "mux: "), err)
	}
	require.ErrorIs(t, mux.ErrClosed, os.ErrClosed)
	for _, list := range [][]string{{}, {"http://a"}, {"a:1", "a:1"}, {"a:1", "redis://a:1"}, make([]string, 65)} {
		_, err := mux.New(mux.Config{Masters: list})
		oneName(t, err)
	}
}

func TestErrorOfOpenNamesThePackageOnce(t *testing.T) {
	t.Parallel()
	hung := conntest.Listen(t, func(c net.Conn) { io.Copy(io.Discard, c) })
	f := newFake(t, "steady", steady(0))
	_, port, _ := strings.Cut(f.addr(), ":")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := mux.Open(ctx, mux.Config{Masters: []string{hung, f.addr()}})
	oneName(t, err)

	_, err = mux.Open(t.Context(), mux.Config{Masters: []string{hung}, Conn: conn.Options{DialTimeout: 20 * time.Millisecond}})
	oneName(t, err)

	_, err = mux.Open(t.Context(), patiently(mux.Config{Masters: []string{f.addr(), "localhost:" + port}}))
	oneName(t, err)

	// A majority has become impossible, and then the context ends.
	down := []string{nobodyAt(t), nobodyAt(t)}
	told := make(chan int, 100)
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	go func() {
		for range down {
			<-told
		}
		cancel()
	}()
	_, err = mux.Open(ctx, patiently(mux.Config{Masters: append(down, hung),
		OnState: func(i int, s mux.State) { told <- i }}))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, mux.ErrNoQuorum)
	oneName(t, err)
}

func TestErrorOfAConnectionNamesThePackageOnce(t *testing.T) {
	t.Parallel()
	f := newFake(t, "garbage", func() script {
		return func([]string) (string, bool) { return "?what\r\n", true }
	})
	m := open(t, mux.Config{Masters: []string{f.addr()}, OnDisconnect: func(int) { panic("the user's") }})
	op := vote("a")
	require.NoError(t, m.Do(t.Context(), op))
	oneName(t, op.Votes[0].Err)
	require.ErrorContains(t, op.Votes[0].Err, "the user's")

	f = newFake(t, "panics", steady(0))
	m = open(t, mux.Config{Masters: []string{f.addr()}})
	op.Verdict = func(resp.Value) mux.Verdict { panic(errors.New("the function's")) }
	require.NoError(t, m.Do(t.Context(), op))
	oneName(t, op.Votes[0].Err)
	require.ErrorContains(t, op.Votes[0].Err, "the function's")
}

// Whoever reads an error at night learns nothing from the hash of a script.
func TestAnErrorDoesNotSayInWhichScriptItWas(t *testing.T) {
	t.Parallel()
	const sha, full = "1028a5dba704e1d8a01fd96efeba25bb78f62df2", "NOREPLICAS Not enough good replicas to write."
	for said, want := range map[string]string{
		full: full,
		full + " script: " + sha + ", on @user_script:1.":                                                               full,
		full + " script: " + sha + ", on @user_script:12. (the user lacks +get)":                                        full + " (the user lacks +get)",
		"ERR ACL failure in script: User locker has no permissions to run the 'get' command script: on @user_script:9.": "ERR ACL failure in script: User locker has no permissions to run the 'get' command",
		"ERR Error running script (call to f_" + sha + "): @user_script:2: @user_script: 2: -" + full + " ":             full,
		"@user_script: 3: -" + full:                    full,
		"@user_script: 1: Wrong number of args":        "Wrong number of args",
		"ERR unknown script: on the road":              "ERR unknown script: on the road",
		"NOSCRIPT No matching script. Please use EVAL": "NOSCRIPT No matching script. Please use EVAL",
	} {
		require.Equal(t, want, (&mux.ReplyError{Message: said}).Error())
	}
}
