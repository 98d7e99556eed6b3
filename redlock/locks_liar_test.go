package redlock_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/conn/conntest"
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/redburst/redburst/resp"
	"github.com/stretchr/testify/require"
)

// A listLiar is a master that says what it likes to who lists locks.
type listLiar struct {
	page  func(cursor string) string
	row   func(key string) string // of a key, or of a mark
	rows  func(n int) int         // how many of those that it is asked for it answers
	pause time.Duration
}

func bulkReply(s string) string { return string(resp.AppendBulkString(nil, s)) }

func arrayReply(elems ...string) string {
	return string(resp.AppendArray(nil, len(elems))) + strings.Join(elems, "")
}

// emptyRow is what is said of a key that is not there; tokenRow of one that has a token.
var emptyRow = arrayReply("$-1\r\n", ":-2\r\n", ":0\r\n", "*0\r\n", "$-1\r\n", ":0\r\n", ":0\r\n", "*0\r\n")

func tokenRow(value string) string {
	return arrayReply(bulkReply(value), ":60000\r\n", ":0\r\n", "*0\r\n", "$-1\r\n", ":0\r\n", ":0\r\n", "*0\r\n")
}

// readersRow is what is said of a key that readers hold.
func readersRow(tokens ...string) string {
	var all []string
	for _, token := range tokens {
		all = append(all, bulkReply(token), ":60000\r\n")
	}
	return arrayReply("$-1\r\n", ":60000\r\n", fmt.Sprintf(":%d\r\n", len(tokens)), arrayReply(all...), "$-1\r\n", ":0\r\n", ":0\r\n", "*0\r\n")
}

func aToken(owner string) string {
	return owner + "/" + base64.RawURLEncoding.EncodeToString(make([]byte, 20))
}

// ofItself is what a master that lies says of itself in the handshake, and that it has no script; empty for another command.
func ofItself(command string) string {
	switch command {
	case "HELLO":
		return "%3\r\n+version\r\n+7.0.15\r\n+mode\r\n+standalone\r\n+role\r\n+master\r\n"
	case "INFO":
		return bulkReply("run_id:abc\r\nuptime_in_seconds:99999999\r\nrole:master\r\n")
	case "EVALSHA":
		return "-NOSCRIPT no\r\n"
	}
	return ""
}

func (l listLiar) listen(t testing.TB) string {
	return conntest.Listen(t, func(c net.Conn) {
		conntest.Answer(c, func(args []string) (string, bool) {
			if said := ofItself(args[0]); said != "" {
				return said, true
			}
			switch args[0] {
			case "CONFIG":
				return "%0\r\n", true
			case "EVAL":
			case "DELEX", "DELIFEQ", "MSETEX":
				return "-ERR unknown command\r\n", true
			default:
				return "+OK\r\n", true
			}
			time.Sleep(l.pause)
			text, keys := args[1], args[3:]
			switch {
			case strings.Contains(text, "'SCAN'"):
				return l.page(keys[0]), true
			case strings.Contains(text, "'ZCOUNT'"):
				names := keys[1:]
				n := len(names) / 2
				if l.rows != nil {
					n = l.rows(n)
				}
				var rows []string
				for i := range n {
					rows = append(rows, l.row(names[2*i]))
				}
				return arrayReply(rows...), true
			case strings.Contains(text, "ARGV) do"):
				return arrayReply(strings.Split(strings.Repeat("$-1\r\n :-2\r\n ", len(keys)), " ")[:2*len(keys)]...), true
			}
			return ":0\r\n", true
		})
	})
}

func lastPage(string) string { return arrayReply(bulkReply("0")) }

func namesPage(next string, n int, name func() string) string {
	page := []string{bulkReply(next)}
	for range n {
		page = append(page, bulkReply(name()))
	}
	return arrayReply(page...)
}

func freshName() string { return fmt.Sprintf("lock:%020d", rand.Uint64()) }

// besideALiar takes n locks on two honest masters. open opens a client of these and of one that lies.
func besideALiar(t *testing.T, liar listLiar, n int) (open func(timeout time.Duration) *redlock.Client, address string) {
	t.Helper()
	masters := redlocktest.Start(t, 2)
	address = liar.listen(t)
	honest := openWith(t, masters, redlock.Config{StallTime: busy, RoundTimeout: busy})
	for i := range n {
		take(t, honest, fmt.Sprint("lock:", i))
	}
	settled(t, honest)
	return func(timeout time.Duration) *redlock.Client {
		return openUp(t, redlock.Config{Masters: append(masters.Addrs(), address), RoundTimeout: timeout, DialTimeout: busy})
	}, address
}

// Two honest masters of three give the whole list, whatever the third says, and the error names that one.
func TestAListEndsWhateverOneMasterSays(t *testing.T) {
	t.Parallel()
	const many = 300 // more than a page
	nothing := func(string) string { return emptyRow }
	for name, liar := range map[string]listLiar{
		"no page":               {page: func(string) string { return arrayReply() }, row: nothing},
		"no cursor":             {page: func(string) string { return arrayReply(":0\r\n") }, row: nothing},
		"a cursor of words":     {page: func(string) string { return arrayReply(bulkReply("next")) }, row: nothing},
		"empty pages":           {page: func(string) string { return arrayReply(bulkReply("7")) }, row: nothing},
		"pages of locks":        {page: func(string) string { return namesPage("7", 200, freshName) }, row: func(string) string { return tokenRow(aToken("me")) }},
		"pages of nothing":      {page: func(string) string { return namesPage("7", 200, freshName) }, row: nothing},
		"a page without an end": {page: func(string) string { return namesPage("7", 30_000, freshName) }, row: nothing},
		"no rows":               {page: lastPage, row: nothing, rows: func(int) int { return 0 }},
		"slow":                  {page: lastPage, row: nothing, pause: 100 * time.Millisecond},
		"one row, slowly":       {page: lastPage, row: nothing, rows: func(int) int { return 1 }, pause: 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var held map[string]bool
			var alone int
			var last error
			var address string
			pause := liar.pause
			for scale := time.Duration(1); scale <= 32 && (held == nil || errors.Is(last, redlock.ErrNoQuorum)); scale *= 2 {
				timeout := scale * 250 * time.Millisecond
				liar.pause = scale * pause // it is as late
				var open func(time.Duration) *redlock.Client
				open, address = besideALiar(t, liar, many)
				ctx, cancel := context.WithTimeout(t.Context(), 80*timeout)
				held, alone, last = map[string]bool{}, 0, nil
				for l, err := range open(timeout).Locks(ctx, "lock:*") {
					require.NoError(t, last)
					switch last = err; {
					case err != nil:
					case l.Held:
						held[l.Key] = true
					default:
						alone++
					}
				}
				cancel() // on a busy machine an honest one is late, too, now and then
			}
			require.Len(t, held, many)
			require.ErrorIs(t, last, redlock.ErrIncomplete)
			var e *redlock.RoundError
			require.ErrorAs(t, last, &e)
			require.Equal(t, address, e.Votes[2].Addr)
			require.Error(t, e.Votes[2].Err)
			require.NoError(t, e.Votes[0].Err)
			require.NoError(t, e.Votes[1].Err)
			require.LessOrEqual(t, alone, 4<<20/200, "each costs 100 bytes for the key, and as many for the holder")
		})
	}
}

// The only master is the majority, and so is never late.
func TestTheOnlyMasterIsNotLateInAList(t *testing.T) {
	t.Parallel()
	const pages, timeout = 40, 2 * time.Second
	far := listLiar{pause: 100 * time.Millisecond, row: func(string) string { return tokenRow(aToken("me")) }}
	far.page = func(cursor string) string {
		at, _ := strconv.Atoi(cursor)
		return namesPage(fmt.Sprint((at+1)%pages), 1, func() string { return fmt.Sprint("lock:", at) })
	}
	c := openConfig(t, redlock.Config{Masters: []string{far.listen(t)}, RoundTimeout: timeout})
	reaches(t, c, 0, "up")
	begun := time.Now()
	require.Len(t, listed(t, c, "lock:*"), pages)
	require.Greater(t, time.Since(begun), 3*timeout, "what another could be late")
}

// What one master alone says of locks that are held is bounded, too, and changes nothing of what a majority says.
func TestOneMasterDoesNotDecorateLocks(t *testing.T) {
	t.Parallel()
	const many = 600
	token := aToken(strings.Repeat("w", 60))
	readers := make([]string, 100)
	for i := range readers {
		readers[i] = fmt.Sprint(i%50, "-", token) // each twice
	}
	open, _ := besideALiar(t, listLiar{page: lastPage, row: func(string) string { return readersRow(readers...) }}, many)
	c := open(busy)
	words, held := 0, 0
	for begun := time.Now(); (words <= 2<<20 || held < many) && time.Since(begun) < time.Minute; { // the list goes on without one that is late
		words, held = 0, 0
		var last error
		for l, err := range c.Locks(t.Context(), "lock:*") {
			if last = err; err != nil {
				continue
			}
			require.Equal(t, "plain", l.Kind)
			require.Zero(t, l.Readers)
			require.True(t, l.Held)
			held++
			for _, h := range l.Holders {
				require.Equal(t, len(h.Masters) == 2, h.Held, "it is named twice by one master")
				if !h.Held {
					words += len(h.Token.Reveal()) + 100
				}
			}
		}
		require.LessOrEqual(t, words, 4<<20)
		require.ErrorIs(t, last, redlock.ErrIncomplete)
	}
	require.Equal(t, many, held)
	require.Greater(t, words, 2<<20)

	row := func(key string) string { return readersRow(aToken(key+strings.Repeat("w", 100)), aToken(freshName())) }
	open, _ = besideALiar(t, listLiar{page: lastPage, row: row}, 1)
	c = open(busy)
	for range 2 { // each list has its own bound
		require.Eventually(t, func() bool {
			holders := 0
			for l, err := range c.Locks(t.Context(), "lock:*") {
				require.NoError(t, err)
				holders += len(l.Holders)
			}
			return holders == 3
		}, time.Minute, time.Millisecond)
	}
}

// A mark that one master has, or a few, hides no permits that are held.
func TestPermitsGoByTheMarkOfAMajority(t *testing.T) {
	t.Parallel()
	for n, marked := range map[int][]int{3: {0}, 5: {1, 4}} {
		masters, c := started(t, n)
		take(t, c, "gpu", redlock.WithPermits(3))
		take(t, c, "gpu", redlock.WithPermits(3))
		settled(t, c)
		for _, i := range marked {
			redlock.Says(t, masters, i, "SET", "{gpu}:permits", "1000", "PX", "60000")
		}
		for _, pattern := range []string{"gpu", "*"} {
			l := listedOne(t, c, pattern)
			require.Equal(t, 3, l.Permits, pattern)
			require.Equal(t, 2, l.Used, pattern)
			require.Len(t, l.Holders, 2, pattern)
		}
	}
}

// Marks that no majority has cost the masters little, and those of a majority so much and no more.
func TestAListCountsSoManyPermits(t *testing.T) {
	t.Parallel()
	mark := func(masters *redlocktest.Masters, on, keys int) {
		redlock.Says(t, masters, on, "EVAL", `for i = 1, `+strconv.Itoa(keys)+` do redis.call('SET', '{a' .. i .. '}:permits', '1000', 'PX', 600000) end`, "0")
	}
	masters, c := started(t, 3)
	take(t, c, "gpu", redlock.WithPermits(3))
	settled(t, c)
	mark(masters, 1, 1000)
	before := commands(t, masters)["get"]
	held := 0
	var last error
	for l, err := range c.Locks(t.Context(), "*") {
		if last = err; err == nil {
			require.Equal(t, "gpu", l.Key)
			held += l.Used
		}
	}
	require.Equal(t, 1, held)
	require.ErrorIs(t, last, redlock.ErrIncomplete)
	require.ErrorContains(t, last, masters.Addr(1))
	require.NotContains(t, last.Error(), masters.Addr(0))
	require.Less(t, commands(t, masters)["get"]-before, 20_000)

	one := redlocktest.Start(t, 1)
	c = openWith(t, one, redlock.Config{})
	mark(one, 0, 103)
	before = commands(t, one)["get"]
	all := listed(t, c, "*")
	require.Len(t, all, 3, "the others are free")
	for _, l := range all {
		require.Equal(t, "permits", l.Kind)
		require.Equal(t, 1000, l.Permits)
		require.Equal(t, -1, l.Used, "nobody knows")
		require.False(t, l.Held)
	}
	require.InDelta(t, 100_000, commands(t, one)["get"]-before, 1000)
	require.Empty(t, listed(t, c, "a1"), "one key is always asked for")
}
