package redlock

import (
	"testing"

	"github.com/redburst/redburst/mux"
	"github.com/stretchr/testify/require"
)

func TestATokenSaysItsSlot(t *testing.T) {
	for _, owner := range []string{"", "svc-a@host-7.example.org:311", "a.3.4"} {
		plain := appendToken(nil, owner)
		for _, c := range [][2]int{{1, 1}, {3, 4}, {10, 10}, {999, 1000}, {1000, 1000}} {
			token := appendSlot(append([]byte(nil), plain...), c[0], c[1])
			rest, slot, of := cutSlot(token)
			require.Equal(t, plain, rest)
			require.Equal(t, c, [2]int{slot, of})
			want := ownerOf(string(plain))
			require.Equal(t, want, ownerOf(string(token)), "the owner is found as without")
			err := redacted(&mux.ReplyError{Message: "no " + string(token) + " here"}, token)
			require.NotContains(t, err.Error(), string(plain[len(plain)-20:]))
		}
		_, slot, _ := cutSlot(plain)
		require.Zero(t, slot)
	}
	for _, token := range []string{"", ".", "x", "x.1", "x.1.", "x.", "x..", "x.0.1", "x.2.1", "x.01.2", "x.1.02", "x.+1.2", "x.1.2 ", "x.1.10000", "x.1,2"} {
		rest, slot, _ := cutSlot(token)
		require.Zero(t, slot, token)
		require.Equal(t, token, rest)
	}
	require.Zero(t, testing.AllocsPerRun(10, func() { cutSlot([]byte("a-long-owner-name@a-long-host-name.example.org:12345/abc.3.4")) }))
}

func TestASlotsKeyIsKnown(t *testing.T) {
	for _, key := range []string{"k", "", "a:b", "{a}:permit:1/2", "a/b"} {
		p := newPermits(key, ttl, 12)
		for _, want := range []int{1, 9, 12} {
			prefix, slot, of := cutSlotKey([]byte(p.name(want)))
			require.Equal(t, p.prefix, string(prefix))
			require.Equal(t, []int{want, 12}, []int{slot, of})
		}
	}
	for _, key := range []string{"", "k", "{k}:permits", "{k}:permit:", "{k}:permit:/", "{k}:permit:0/3", "{k}:permit:4/3", "{k}:permit:x/3", "1/3"} {
		_, slot, _ := cutSlotKey([]byte(key))
		require.Zero(t, slot, key)
	}
}
