package fuzz

import (
	"bytes"
	"errors"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	tidwall "github.com/tidwall/resp"

	"github.com/redburst/redburst/resp"
)

// FuzzTidwall reads each stream with both readers. The documentation of the package
// explains the disagreements that it allows.
func FuzzTidwall(f *testing.F) {
	for _, s := range streams(f) {
		f.Add([]byte(s))
	}
	for _, s := range []string{"*-7\r\n", "$+5\r\nhello\r\n", "$005\r\nhello\r\n", ":+5\r\n", ":007\r\n", "+a\nb\rc\r\n", "*1048577\r\n", "*1\r\n*1048577\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		if announcesMuch(stream) {
			return
		}
		// As generous as tidwall, so that the limits do not hide what differs.
		l := resp.Limits{Depth: 1 << 20, Bulk: 512 << 20, Elements: 1 << 20, Frame: 1 << 30}
		for isRESP2(stream) {
			ours, ourErr := first(stream, l)
			theirs, n, theirErr := tidwall.NewReader(bytes.NewReader(stream)).ReadValue()
			if ourErr == nil && theirErr == nil {
				require.Equal(t, n, len(ours.Raw()))
				requireAlike(t, ours, theirs)
				stream = stream[n:]
				continue
			}
			if ourErr == nil {
				require.False(t, speaksRESP2(ours), "refused by tidwall: %v", theirErr)
			} else if theirErr == nil {
				var se *resp.SyntaxError
				require.True(t, errors.As(ourErr, &se), "accepted by tidwall: %v", theirs)
				switch se.Fault {
				case resp.BadLength, resp.BadInteger, resp.BadLineEnd:
				case resp.TooMany:
					digits, _, _ := bytes.Cut(stream[se.Offset:], []byte("\r"))
					n, err := strconv.ParseInt(string(digits), 10, 64)
					require.NoError(t, err)
					require.Greater(t, n, int64(1<<20), "accepted by tidwall: %v", theirs)
				default:
					require.Fail(t, "accepted by tidwall", "%v: %v", se, theirs)
				}
			}
			return
		}
	})
}

func first(stream []byte, l resp.Limits) (resp.Value, error) {
	r := resp.NewReader(len(stream), l)
	r.Advance(copy(r.Free(len(stream)), stream))
	return r.Next()
}

func isRESP2(stream []byte) bool {
	return len(stream) > 0 && bytes.IndexByte([]byte("+-:$*"), stream[0]) >= 0
}

// speaksRESP2 reports whether a frame has neither types of RESP3 nor attributes,
// which leave a gap between the elements.
func speaksRESP2(v resp.Value) bool {
	if v.Len() == 0 {
		return isRESP2(v.Raw())
	}
	size := bytes.IndexByte(v.Raw(), '\n') + 1
	for _, e := range elems(v) {
		if !speaksRESP2(e) {
			return false
		}
		size += len(e.Raw())
	}
	return isRESP2(v.Raw()) && size == len(v.Raw())
}

func requireAlike(t *testing.T, ours resp.Value, theirs tidwall.Value) {
	require.Equal(t, byte(ours.Kind()), byte(theirs.Type()))
	require.Equal(t, ours.IsNull(), theirs.IsNull())
	switch ours.Kind() {
	case resp.Integer:
		n, ok := ours.Int()
		require.True(t, ok)
		require.Equal(t, n, int64(theirs.Integer()))
	case resp.Array:
		all := elems(ours)
		require.Len(t, theirs.Array(), len(all))
		for i, e := range all {
			requireAlike(t, e, theirs.Array()[i])
		}
	default:
		require.Equal(t, string(ours.Bytes()), theirs.String())
		require.Equal(t, ours.IsError(), theirs.Error() != nil)
	}
}

// announcesMuch reports whether there is a header, or the beginning of one, for
// which tidwall would allocate much more than the stream has bytes.
func announcesMuch(stream []byte) bool {
	for i, c := range stream {
		if c != '*' && c != '$' {
			continue
		}
		digits := bytes.TrimLeft(bytes.TrimPrefix(stream[i+1:], []byte("+")), "0")
		n := 0
		for len(digits) > 0 && digits[0]-'0' <= 9 && n <= 512<<20 {
			n = n*10 + int(digits[0]-'0')
			digits = digits[1:]
		}
		if c == '*' && n > 4096 && n <= 1<<20 || c == '$' && n > 64<<10 && n <= 512<<20 {
			return true
		}
	}
	return false
}
