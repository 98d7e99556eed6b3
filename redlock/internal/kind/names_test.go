package kind

import (
	"testing"
	"time"

	"github.com/redburst/redburst/conn"
	"github.com/stretchr/testify/require"
)

func TestATokenSaysItsSlot(t *testing.T) {
	for _, plain := range []string{"/abc", "svc-a@host-7.example.org:311/abc", "a.3.4/abc"} {
		for _, c := range [][2]int{{1, 1}, {3, 4}, {10, 10}, {999, 1000}, {1000, 1000}} {
			rest, slot, of := CutSlot(AppendSlot([]byte(plain), c[0], c[1]))
			require.Equal(t, plain, string(rest))
			require.Equal(t, c, [2]int{slot, of})
		}
		_, slot, _ := CutSlot(plain)
		require.Zero(t, slot)
	}
	for _, token := range []string{"", ".", "x", "x.1", "x.1.", "x.", "x..", "x.0.1", "x.2.1", "x.01.2", "x.1.02", "x.+1.2", "x.1.2 ", "x.1.10000", "x.1,2"} {
		rest, slot, _ := CutSlot(token)
		require.Zero(t, slot, token)
		require.Equal(t, token, rest)
	}
	require.Zero(t, testing.AllocsPerRun(10, func() { CutSlot([]byte("a-long-owner-name@a-long-host-name.example.org:12345/abc.3.4")) }))
}

func TestASlotsKeyIsKnown(t *testing.T) {
	for _, key := range []string{"k", "", "a:b", "{a}:permit:1/2", "a/b"} {
		p := NewPermits(key, time.Second, 12)
		for _, want := range []int{1, 9, 12} {
			name := p.AppendKey(nil, AppendSlot([]byte("t"), want, 12))
			require.Contains(t, AppendSubjects(nil, name), Subject{[]byte(p.Prefix), want, 12})
		}
	}
	for _, key := range []string{"", "k", "{k}:permits", "{k}:permit:", "{k}:permit:/", "{k}:permit:0/3", "{k}:permit:4/3", "{k}:permit:x/3", "1/3"} {
		require.Equal(t, []Subject{{Name: []byte(key)}}, AppendSubjects(nil, []byte(key)), "only the key itself")
	}
}

// What is kept beside a key with a hash tag has the same tag, and so is in the same slot of a cluster. No lock can have
// such a name.
func TestNamesBesideAKeyAreInItsSlot(t *testing.T) {
	for key, counter := range map[string]string{
		"{a}": "{a}}:fence", "{locks}:k": "{locks}:k}:fence", "app:{locks}:k": "app:{locks}:k}:fence", "{a}{b}": "{a}{b}}:fence",
		"k": "{k}:fence", "{k": "{{k}:fence", "k}": "{k}}:fence", "{}k": "{{}k}:fence",
	} {
		require.Equal(t, counter, CounterKey(key))
		p := NewPermits(key, time.Second, 2)
		queue := AppendQueueKey(nil, key)
		for _, name := range append(p.Names(), counter, IntentKey(key), MarkKey(key), WitnessKey(key), string(queue), string(queue)+":id",
			string(AppendQueueKey(nil, p.Prefix))) {
			if conn.HashTag(key) != "" {
				require.Equal(t, conn.HashSlot(key), conn.HashSlot(name), name)
			}
			require.True(t, Reserved(name), name)
		}
		require.Contains(t, AppendSubjects(nil, []byte(IntentKey(key))), Subject{Name: []byte(key)})
		require.False(t, Reserved(key))
	}
}

// The names of keys beside a lock are written into memory that is reused, however often they change.
func TestNamesAreNotAllocated(t *testing.T) {
	var r Request
	token, permits, several := []byte("token.3.4"), NewPermits("k", time.Second, 4), NewSeveral([]string{"a", "b"})
	for what, encode := range map[string]func(){
		"key of a slot":       func() { r.Name = permits.AppendKey(r.Name[:0], token) },
		"look at all slots":   func() { permits.Look(&r, "k") },
		"intent":              func() { Plain{}.Intend(&r, "k", token) },
		"end of an intent":    func() { Plain{}.Withdraw(&r, "k", token) },
		"intent on each key":  func() { several.Intend(&r, "", token) },
		"ends of the intents": func() { several.Withdraw(&r, "", token) },
	} {
		require.Zero(t, testing.AllocsPerRun(10, func() { r.Reset(); encode() }), what)
	}
}

// Readers wait for an intent to go: they are told by its name, and no other kind is.
func TestAnIntentConcernsTheReadersOfItsLock(t *testing.T) {
	for _, key := range []string{"k", "a:b", "{a"} {
		intent := []byte(IntentKey(key))
		require.Equal(t, []Subject{{Name: intent}, {Name: []byte(key)}}, AppendSubjects(nil, intent))
	}
	key := []byte("{a key}:permit:3/4")
	require.Zero(t, testing.AllocsPerRun(10, func() {
		var buf [3]Subject
		AppendSubjects(buf[:0], key)
	}))
}
