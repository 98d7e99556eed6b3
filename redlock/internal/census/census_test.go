package census

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/quorum"
	"github.com/redburst/redburst/resp"
	"github.com/redburst/redburst/resp/resptest"
	"github.com/stretchr/testify/require"
)

func array(of ...string) string { return string(resp.AppendArray(nil, len(of))) + strings.Join(of, "") }

func bulk(s string) string { return string(resp.AppendBulkString(nil, s)) }

func number(n int) string { return string(resp.AppendInt(nil, int64(n))) }

const null = "$-1\r\n"

// A row is eight fields. A server that says anything else has failed, and is not read.
func TestRowsAreJudgedByTheirShape(t *testing.T) {
	row := array(bulk("x"), number(5), number(0), array(), null, number(0), number(0), array())
	for reply, want := range map[string]mux.Verdict{
		array(row):                              mux.VerdictYes,
		array(row, row):                         mux.VerdictYes,
		array():                                 mux.VerdictFailed,
		array(row, bulk("x")):                   mux.VerdictFailed,
		array(bulk("12345678")):                 mux.VerdictFailed,
		array(array(bulk("x"))):                 mux.VerdictFailed,
		array(row, array(row)):                  mux.VerdictFailed,
		bulk("x"):                               mux.VerdictFailed,
		"-NOSCRIPT no such script\r\n":          mux.VerdictAgain,
		"%4\r\n" + strings.Repeat(number(1), 8): mux.VerdictFailed,
	} {
		require.Equal(t, want, JudgeRows(resptest.Parse([]byte(reply))), "%q", reply)
	}
}

// A fence is a number that a counter can have. A counter that holds anything else is none.
func TestWhatACounterHolds(t *testing.T) {
	for said, c := range map[string]struct {
		fence uint64
		none  bool
	}{
		null:          {0, false},
		bulk("0"):     {0, false},
		bulk("7"):     {7, false},
		bulk("1.7e3"): {1700, false},
		bulk("-1"):    {0, true},
		bulk("NaN"):   {0, true},
		bulk("seven"): {0, true},
		bulk(fmt.Sprint(uint64(quorum.MaxFence))):     {0, true},
		bulk(fmt.Sprint(uint64(quorum.MaxFence) - 1)): {uint64(quorum.MaxFence) - 1, false},
	} {
		rows := ReadRows(resptest.Parse([]byte(array(array(bulk("x"), number(5), number(0), array(), said, number(-1), number(0), array())))))
		require.Equal(t, c.fence, rows[0].Fence, said)
		require.Equal(t, c.none, rows[0].NoFence, said)
		require.Equal(t, NoExpiry, rows[0].FenceTTL)
	}
}

// What a master can make us keep of a key has a bound. It can name a holder as often as it likes.
func TestARowHasABound(t *testing.T) {
	var readers, waiters []string
	for i := range MostReaders + 5 {
		readers = append(readers, bulk(fmt.Sprint("reader", i)), number(1000), bulk("reader0"), number(2000))
		waiters = append(waiters, bulk(fmt.Sprint("id", i)), bulk(""), number(10))
	}
	r := ReadRows(resptest.Parse([]byte(array(array(null, number(-2), number(len(readers)), array(readers...), null, number(0), number(5), array(waiters...))))))[0]
	require.Len(t, r.Holders, MostReaders)
	require.Equal(t, time.Second, r.Holders[0].TTL)
	require.Len(t, r.Waiters, Listed)
	require.Equal(t, fmt.Sprint("id", Listed-1), r.Waiters[Listed-1].ID)
}

// One permit has one holder, and a slot that another value is in has one that is unknown.
func TestPermitsAreReadOnce(t *testing.T) {
	list := number(700)
	r := ReadPermits(resptest.Parse([]byte(array(bulk("a"), number(9), null, number(-2), bulk("a"), number(8), list, number(7), list, number(-1)))))
	var of []string
	for _, h := range r.Holders {
		of = append(of, fmt.Sprint(h.Permit, " ", h.Token.Reveal(), " ", h.Size, " ", h.TTL))
	}
	require.Equal(t, []string{"1 a 0 9ms", "4 ? 700 7ms", fmt.Sprint("5 ? 700 ", NoExpiry)}, of)
}

// What a server says of a type is shown to people: it is a short word, or nothing.
func TestATypeIsAWord(t *testing.T) {
	long := strings.Repeat("m", 32)
	for said, want := range map[string]string{
		"+hash\r\n": "hash", "+" + long + "\r\n": long, "+" + long + "m\r\n": "", "+a b\r\n": "", "+~\r\n": "~", "+a\x7f\r\n": "", "+a\x1b[2J\r\n": "", bulk("hash"): "",
	} {
		require.Equal(t, want, ReadType(resptest.Parse([]byte(said))), "%q", said)
	}
	h, there := ReadHolder(resptest.Parse([]byte("+hash\r\n")), resptest.Parse([]byte(number(0))))
	require.True(t, there)
	require.Equal(t, []any{"hash", Unknown, time.Duration(0)}, []any{h.Type, h.Token, h.TTL}, "its last millisecond has begun")
}

// A key that was not asked for readers can be one that readers share.
func TestWhatAKeyIsThatIsNoLock(t *testing.T) {
	reader := Holder{Token: by("x").Token, Type: "zset"}
	for _, c := range []struct {
		h          Holder
		mayBe      bool
		text, seen string // seen if it was asked for readers
	}{
		{Holder{Token: Unknown}, true, "a key that is no lock", "a key that is no lock"},
		{Holder{Token: Unknown, Type: "zset"}, true, "readers, or a key that is no lock (sorted set)", "a key that is no lock (sorted set)"},
		{Holder{Token: Unknown, Type: "hash"}, false, "a key that is no lock (hash)", "a key that is no lock (hash)"},
		{Holder{Token: Unknown, Size: 700}, false, "a key that is no lock (string of 700 bytes)", "a key that is no lock (string of 700 bytes)"},
		{reader, false, "readers, or a key that is no lock (sorted set)", "a key that is no lock (sorted set)"},
	} {
		require.Equal(t, []any{c.mayBe, c.text, c.seen}, []any{c.h.MayBeReaders(), c.h.Other(false), c.h.Other(true)})
	}
}
