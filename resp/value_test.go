package resp_test

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/redburst/redburst/resp"
	"github.com/redburst/redburst/resp/resptest"
)

// read reads the one frame that input is.
func read(tb testing.TB, input string) resp.Value {
	tb.Helper()
	r := newReader()
	feed(r, input)
	v, err := r.Next()
	require.NoError(tb, err, "%q", input)
	require.Zero(tb, r.Buffered(), "%q", input)
	return v
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

func TestAccessorsReadTheirOwnTypeAndItsFormInRESP2(t *testing.T) {
	t.Parallel()
	type answer struct {
		int   any
		float any
		bool  any
		big   any
	}
	for input, want := range map[string]answer{
		":1\r\n":                        {int: int64(1), bool: true, big: "1"},
		":0\r\n":                        {int: int64(0), bool: false, big: "0"},
		":-0\r\n":                       {int: int64(0), bool: false, big: "0"},
		":+12\r\n":                      {int: int64(12), big: "12"},
		":-1\r\n":                       {int: int64(-1), big: "-1"},
		":9223372036854775807\r\n":      {int: int64(math.MaxInt64), big: "9223372036854775807"},
		":-9223372036854775808\r\n":     {int: int64(math.MinInt64), big: "-9223372036854775808"},
		"#t\r\n":                        {bool: true},
		"#f\r\n":                        {bool: false},
		",1.5\r\n":                      {float: 1.5},
		",-10e-1\r\n":                   {float: -1.0},
		",inf\r\n":                      {float: math.Inf(1)},
		",-inf\r\n":                     {float: math.Inf(-1)},
		",1e-999\r\n":                   {float: 0.0},
		",1.7976931348623157e308\r\n":   {float: math.MaxFloat64},
		"$4\r\n3.25\r\n":                {float: 3.25},
		"$3\r\n-12\r\n":                 {float: -12.0, big: "-12"},
		"$3\r\ninf\r\n":                 {float: math.Inf(1)},
		"+7\r\n":                        {float: 7.0, big: "7"},
		"(123456789012345678901234\r\n": {big: "123456789012345678901234"},
		"$25\r\n1234567890123456789012345\r\n": {float: 1234567890123456789012345.0,
			big: "1234567890123456789012345"},
		"$5\r\n1e999\r\n":    {},
		"+-1e400\r\n":        {},
		"+OK\r\n":            {},
		"$5\r\n1_000\r\n":    {},
		"$4\r\n0x10\r\n":     {},
		"$0\r\n\r\n":         {},
		"$-1\r\n":            {},
		"_\r\n":              {},
		"-1\r\n":             {},
		"!1\r\n1\r\n":        {},
		"=5\r\ntxt:1\r\n":    {},
		"*1\r\n:1\r\n":       {},
		"*-1\r\n":            {},
		"%1\r\n:1\r\n:1\r\n": {},
	} {
		for _, v := range []resp.Value{read(t, input), elems(read(t, "*2\r\n+x\r\n"+input))[1]} {
			var got answer
			if n, ok := v.Int(); ok {
				got.int = n
			}
			if f, ok := v.Float(); ok {
				got.float = f
			}
			if b, ok := v.Bool(); ok {
				got.bool = b
			}
			if n, ok := v.BigInt(); ok {
				got.big = n.String()
			}
			require.Equal(t, want, got, "%q", input)
		}
	}
	for _, text := range []string{"nan", "-nan", "NAN", "-NaN", "nan()", "NAN(0x7f_Zz)", "-nan(ind)"} {
		f, ok := readDouble(t, text)
		require.True(t, ok, text)
		require.True(t, math.IsNaN(f), text)
	}
	for _, text := range []string{"n", "na", "--nan", "+nan", "nana", "nan(", "nan)", "nan(a b)", "nan(a)b", "nan(@)", "nan([)", "INF", "n\x01n", "N\x01n"} {
		_, ok := readDouble(t, text)
		require.False(t, ok, text)
	}
}

// The text of a number is a double exactly if strconv finds a float64 for it.
func TestDoublesEndWhereFloat64Does(t *testing.T) {
	t.Parallel()
	// Halfway from the greatest float64 to the next one, if there were one.
	border := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), 1024), new(big.Int).Lsh(big.NewInt(1), 970))
	below := new(big.Int).Sub(border, big.NewInt(1))
	var mantissas []string
	for _, n := range []*big.Int{border, below} {
		digits := n.String()
		for _, size := range []int{309, 308, 20, 19, 17, 16, 1} {
			mantissas = append(mantissas, digits[:size], digits[:size]+"9", digits[:size]+"000", "000"+digits[:size])
		}
	}
	mantissas = append(mantissas, "0", "000", "1", "9", "1"+strings.Repeat("0", 308), "1"+strings.Repeat("0", 309))
	within, beyond := 0, 0
	check := func(text string) {
		t.Helper()
		want, err := strconv.ParseFloat(text, 64)
		got, ok := readDouble(t, text)
		require.Equal(t, err == nil, ok, text)
		if ok {
			within++
			require.Equal(t, want, got, text)
		} else {
			beyond++
		}
	}
	for _, m := range mantissas {
		for _, point := range []int{0, 1, len(m) / 2, len(m)} {
			text := m
			switch {
			case point == 0:
				text = "0." + m
			case point < len(m):
				text = m[:point] + "." + m[point:]
			}
			for _, sign := range []string{"", "-", "+"} {
				check(sign + text)
				for exp := 309 - point - 5; exp <= 309-point+5; exp++ {
					check(sign + text + "e" + strconv.Itoa(exp))
				}
				check(sign + text + "E-999999999999999999999")
				check(sign + text + "E+999999999999999999999")
			}
		}
	}
	require.Greater(t, within, 1000)
	require.Greater(t, beyond, 1000)
}

// Zeros may make up for any exponent, so no number of either is beyond float64 by itself.
func TestDoublesMayBeLong(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1000, 9999, 10_000, 99_999, 100_000, 200_000, 1_000_000} {
		for text, want := range map[string]bool{
			"1" + strings.Repeat("0", n) + "e-" + strconv.Itoa(n-308):         true,
			"1" + strings.Repeat("0", n) + "e-" + strconv.Itoa(n-309):         false,
			"0." + strings.Repeat("0", n) + "1e" + strconv.Itoa(n+309):        true,
			"0." + strings.Repeat("0", n) + "1e" + strconv.Itoa(n+310):        false,
			"1" + strings.Repeat("0", n) + "e-0" + strings.Repeat("9", 1000):  true,
			"0." + strings.Repeat("0", n) + "1e0" + strings.Repeat("9", 1000): false,
			"0." + strings.Repeat("0", n) + "e0" + strings.Repeat("9", 1000):  true,
		} {
			f, got := readDouble(t, text)
			require.True(t, want == got && !math.IsInf(f, 0), "%d zeros, %v: %v, %v", n, want, f, got)
		}
	}
}

// A double is as large as its text says, however long that is: of long ones strconv loses the magnitude.
func TestLongDoublesAreAsLargeAsTheySay(t *testing.T) {
	t.Parallel()
	zeros := func(n int) string { return strings.Repeat("0", n) }
	for text, want := range map[string]float64{
		"1" + zeros(800) + "e-800":                               1,
		"1" + zeros(1000) + "e-1000":                             1,
		"-1" + zeros(850) + ".5e-850":                            -1,
		"9007199254740993" + zeros(1000) + "e-1000":              9007199254740992,
		"9007199254740993" + zeros(1000) + "1e-1001":             9007199254740994,
		"9007199254740993." + zeros(1000):                        9007199254740992,
		"9007199254740993." + zeros(1000) + "1":                  9007199254740994,
		"3" + zeros(10300) + "e-100000":                          0,
		"-9" + zeros(10306) + "e-100000":                         math.Copysign(0, -1),
		"-" + zeros(1000):                                        math.Copysign(0, -1),
		"0." + zeros(1000) + "25e+1000":                          0.25,
		"0." + zeros(1000) + strings.Repeat("5", 1000) + "E1000": 5.0 / 9,
		"0." + zeros(100_000) + "7e100001":                       7,
	} {
		got, ok := readDouble(t, text)
		require.True(t, ok)
		require.Equal(t, math.Float64bits(want), math.Float64bits(got), "%.20s...: %v, not %v", text, got, want)
	}
}

// readDouble reads a number as a double and as a string, alike.
func readDouble(t *testing.T, text string) (f float64, ok bool) {
	t.Helper()
	r := resp.NewReader(0, resp.Limits{Bulk: 2 << 20})
	feed(r, "+"+text+"\r\n")
	v, err := r.Next()
	require.NoError(t, err)
	f, ok = v.Float()
	r.Reset()
	feed(r, ","+text+"\r\n")
	v, err = r.Next()
	if ok {
		require.NoError(t, err)
		g, _ := v.Float()
		require.True(t, f == g || f != f && g != g)
	} else {
		syntax, is := err.(*resp.SyntaxError)
		require.True(t, is && syntax.Fault == resp.BadDouble, "%q: %v", text, err)
	}
	return f, ok
}

func TestValueSaysWhatItIs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		input string
		kind  resp.Kind
		null  bool
		bytes []byte
		len   int
	}{
		{"+OK\r\n", resp.SimpleString, false, []byte("OK"), 0},
		{"+\r\n", resp.SimpleString, false, []byte{}, 0},
		{"-ERR x\r\n", resp.SimpleError, false, []byte("ERR x"), 0},
		{":12\r\n", resp.Integer, false, []byte("12"), 0},
		{":-1\r\n", resp.Integer, false, []byte("-1"), 0},
		{"$3\r\nfoo\r\n", resp.BulkString, false, []byte("foo"), 0},
		{"$0\r\n\r\n", resp.BulkString, false, []byte{}, 0},
		{"$-1\r\n", resp.BulkString, true, nil, 0},
		{"*2\r\n:1\r\n:2\r\n", resp.Array, false, nil, 2},
		{"*0\r\n", resp.Array, false, nil, 0},
		{"*-1\r\n", resp.Array, true, nil, 0},
		{"_\r\n", resp.Null, true, nil, 0},
		{"#t\r\n", resp.Boolean, false, []byte("t"), 0},
		{",1.5\r\n", resp.Double, false, []byte("1.5"), 0},
		{"(12\r\n", resp.BigNumber, false, []byte("12"), 0},
		{"!3\r\nE x\r\n", resp.BulkError, false, []byte("E x"), 0},
		{"=7\r\ntxt:abc\r\n", resp.VerbatimString, false, []byte("abc"), 0},
		{"%2\r\n+a\r\n:1\r\n+b\r\n:2\r\n", resp.Map, false, nil, 4},
		{"~1\r\n:1\r\n", resp.Set, false, nil, 1},
		{">1\r\n+x\r\n", resp.Push, false, nil, 1},
		{"*1\r\n+" + strings.Repeat("x", 300) + "\r\n", resp.Array, false, nil, 1},
	} {
		// As a frame, as an element, and cloned, it is the same.
		v := read(t, tt.input)
		views := []resp.Value{v, v.Clone()}
		if tt.kind != resp.Push {
			views = append(views, elems(read(t, "*3\r\n+x\r\n"+tt.input+":1\r\n"))[1])
			views = append(views, elems(read(t, "~2\r\n|1\r\n+k\r\n*0\r\n"+tt.input+":1\r\n").Clone())[0])
		}
		for _, v := range views {
			require.Equal(t, tt.kind, v.Kind(), "%q", tt.input)
			require.Equal(t, tt.input, string(v.Raw()), "%q", tt.input)
			require.Equal(t, tt.null, v.IsNull(), "%q", tt.input)
			require.Equal(t, tt.bytes, v.Bytes(), "%q", tt.input)
			require.Equal(t, tt.len, v.Len(), "%q", tt.input)
			require.Len(t, elems(v), tt.len, "%q", tt.input)
			require.Equal(t, tt.kind == resp.SimpleError || tt.kind == resp.BulkError, v.IsError(), "%q", tt.input)
		}
	}
}

func TestIsComparesStringsOnly(t *testing.T) {
	t.Parallel()
	require.True(t, read(t, "+OK\r\n").Is("OK"))
	require.True(t, read(t, "$2\r\nOK\r\n").Is("OK"))
	require.True(t, read(t, "$0\r\n\r\n").Is(""))
	for _, input := range []string{"+QUEUED\r\n", "+ok\r\n", "+O\r\n", "-OK\r\n", "=6\r\ntxt:OK\r\n", "*1\r\n+OK\r\n"} {
		require.False(t, read(t, input).Is("OK"), "%q", input)
	}
	for _, input := range []string{"$-1\r\n", "_\r\n", "*-1\r\n", "*0\r\n"} {
		require.False(t, read(t, input).Is(""), "%q", input)
	}
}

func TestErrorCodeIsTheFirstWord(t *testing.T) {
	t.Parallel()
	for input, want := range map[string]string{
		"-NOSCRIPT No matching script.\r\n": "NOSCRIPT",
		"-ERR\r\n":                          "ERR",
		"-\r\n":                             "",
		"!13\r\nWRONGTYPE a b\r\n":          "WRONGTYPE",
		"+ERR x\r\n":                        "",
		"$5\r\nERR x\r\n":                   "",
		"_\r\n":                             "",
	} {
		require.Equal(t, want, string(read(t, input).ErrorCode()), "%q", input)
	}
}

func TestFormatIsOfVerbatimStringsOnly(t *testing.T) {
	t.Parallel()
	require.Equal(t, "mkd", string(read(t, "=5\r\nmkd:x\r\n").Format()))
	require.Equal(t, "txt", string(read(t, "=4\r\ntxt:\r\n").Format()))
	require.Nil(t, read(t, "$5\r\ntxt:x\r\n").Format())
}

func TestZeroValueIsNothing(t *testing.T) {
	t.Parallel()
	var v resp.Value
	require.Zero(t, v.Kind())
	require.Equal(t, "no kind", v.Kind().String())
	require.Nil(t, v.Raw())
	require.Nil(t, v.Bytes())
	require.Nil(t, v.Format())
	require.Nil(t, v.ErrorCode())
	require.False(t, v.IsNull())
	require.False(t, v.IsError())
	require.False(t, v.Is(""))
	require.Zero(t, v.Len())
	require.Empty(t, elems(v))
	require.Zero(t, v.Clone())
	_, ok := v.Int()
	require.False(t, ok)
	_, ok = v.Float()
	require.False(t, ok)
	_, ok = v.Bool()
	require.False(t, ok)
	_, ok = v.BigInt()
	require.False(t, ok)
}

// A caller that appends to a borrowed slice must not write over what follows.
func TestBorrowedSlicesAreCapped(t *testing.T) {
	t.Parallel()
	const input = "*3\r\n-ERR x\r\n=7\r\ntxt:abc\r\n$3\r\nfoo\r\n+OK\r\n:1\r\n+last\r\n"
	r := newReader()
	feed(r, input)
	left := input
	for left != "" {
		v, err := r.Next()
		require.NoError(t, err)
		for _, e := range append(elems(v), v) {
			for _, b := range [][]byte{e.Raw(), e.Bytes(), e.Format(), e.ErrorCode()} {
				require.Equal(t, len(b), cap(b))
				_ = append(b, "overwritten"...)
			}
		}
		require.Equal(t, left[:len(v.Raw())], string(v.Raw()))
		left = left[len(v.Raw()):]
	}
}

func TestCloneOutlivesTheBuffer(t *testing.T) {
	t.Parallel()
	const input = "%1\r\n$3\r\nfoo\r\n*2\r\n:1\r\n$3\r\nbar\r\n"
	r := newReader()
	feed(r, input)
	v, err := r.Next()
	require.NoError(t, err)
	clone := v.Clone()
	free := r.Free(1)
	for i := range free {
		free[i] = '#'
	}
	require.NotEqual(t, input, string(v.Raw()), "the buffer is used again")
	require.Equal(t, input, string(clone.Raw()))
	require.Equal(t, `%[$"foo" *[:"1" $"bar"]]`, resptest.Dump(clone))
}

func TestACloneIsInTheBufferThatItIsGivenIfThatHasRoom(t *testing.T) {
	const input = "*2\r\n:1\r\n$3\r\nbar\r\n"
	v := read(t, input)
	for room := range 2 * len(input) {
		buf := make([]byte, 0, room)
		clone := v.CloneTo(buf)
		require.Equal(t, input, string(clone.Raw()))
		require.Equal(t, len(input), cap(clone.Raw()), "what is behind it is not its own")
		require.Equal(t, room >= len(input), room > 0 && &buf[:1][0] == &clone.Raw()[0])
	}
	require.Zero(t, testing.AllocsPerRun(100, func() { v.CloneTo(make([]byte, 0, 100)) }))
	require.Zero(t, resp.Value{}.CloneTo(make([]byte, 10)))
}
