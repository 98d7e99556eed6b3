package redlock

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"testing"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A pattern means what it means to Redis, and around finds what it matches, also with something on both sides.
func TestPatternMeansWhatItMeansToRedis(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 1)
	letters := []string{"a", "b", "c", "-", "*", "?", "[", "]", "^", `\`, "[ab]", "[^a]", "[a-c]", "[c-a]", `\*`, "**", `[\]]`, "é", "\n"}
	random := func(n int) (text string) {
		for range rand.N(n) {
			text += letters[rand.N(len(letters))]
		}
		return text
	}
	signed := regexp.MustCompile(`[^[:ascii:]]-|-[^[:ascii:]]`) // whether such bytes are below the others depends on the server's machine
	checked := 0
	for range 3000 {
		p, key := pattern(random(6)), random(5)
		if key == "" || p == "" || signed.MatchString(string(p)) {
			continue
		}
		Says(t, masters, 0, "FLUSHALL")
		Says(t, masters, 0, "MSET", key, "", "{"+key+"}:line", "")
		found := func(p string) []any {
			return Says(t, masters, 0, "KEYS", p).([]any)
		}
		if p.check() != nil {
			continue
		}
		checked++
		want := false
		for _, k := range found(string(p)) {
			want = want || k == key
		}
		require.Equal(t, want, p.matches(key), "%q %q", p, key)
		if want {
			require.Len(t, found(p.around()), 2, "%q %q", p, key)
		}
		if only, ok := p.literal(); ok {
			require.Equal(t, only == key, want, "%q %q", p, key)
		}
	}
	require.Greater(t, checked, 300)
}

func TestAroundIsCheap(t *testing.T) {
	for p, want := range map[pattern]string{"*": "*", "**": "*", "lock:*": "*lock:*", "*a": "*a*", `a\*`: `*a\**`, `\**`: `*\***`, `*\\*`: `*\\**`} {
		require.Equal(t, want, p.around(), "%s", p)
	}
}

// A pattern with many stars ends, whatever the key is.
func TestPatternWithManyStars(t *testing.T) {
	p, key := pattern(""), ""
	for range 1000 {
		p += "*a"
		key += "a"
	}
	require.True(t, p.matches(key))
	require.False(t, (p + "b").matches(key+key))
	require.False(t, pattern(fmt.Sprint(p, "?")).matches(key))
}
