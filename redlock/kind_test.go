package redlock

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/mux"
	"github.com/redburst/redburst/redlock/internal/census"
	"github.com/redburst/redburst/redlock/internal/script"
	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

// A user without a right gets an error that says so, whatever the right and the kind of lock: never that
// another has the lock, or that it was lost.
func TestDeniedRightIsNoAnswer(t *testing.T) {
	t.Parallel()
	masters := redlocktest.Start(t, 3)
	grants := func(rights ...string) {
		t.Helper()
		for i := range 3 {
			args := append([]string{"ACL", "SETUSER", "u", "on", ">pw", "~*", "+@all"}, rights...)
			Says(t, masters, i, args...)
		}
	}
	grants()
	c := openedWith(t, Config{Masters: masters.Addrs(), Username: "u", Password: NewSecret("pw")})
	var commands []string
	for _, text := range script.Texts {
		for _, m := range regexp.MustCompile(`redis\.p?call\('([A-Z]+)'`).FindAllStringSubmatch(text, -1) {
			commands = append(commands, strings.ToLower(m[1]))
		}
	}
	slices.Sort(commands)
	commands = slices.Compact(commands)
	require.Subset(t, commands, []string{"get", "set", "pexpire", "zadd", "time"})

	told := func(t *testing.T, op string, err error) {
		t.Helper()
		if err == nil { // it needs no such right
			return
		}
		require.NotErrorIs(t, err, ErrHeld, op)
		require.NotErrorIs(t, err, ErrNotHeld, op)
		var reply *mux.ReplyError
		require.ErrorAs(t, err, &reply, op)
		require.Equal(t, "NOPERM", reply.Code, "%s: %s", op, err)
	}
	with := func(o *options) { o.more = []string{"lock:b"} }
	for name, opts := range map[string][]Option{
		"plain":          nil,
		"left":           {WithMinHold(time.Hour)},
		"fenced":         {WithFence()},
		"several":        {with},
		"several left":   {with, WithMinHold(time.Hour)},
		"several fenced": {with, WithFence()},
		"reader":         {WithShared()},
		"fenced reader":  {WithShared(), WithFence()},
		"permit":         {WithPermits(2)},
	} {
		for _, command := range commands {
			t.Run(name+" without "+command, func(t *testing.T) {
				for i := range 3 { // not what the masters are believed by
					Says(t, masters, i, "EVAL", "for _, key in ipairs(redis.call('KEYS', '*lock:*')) do redis.call('DEL', key) end", "0")
				}
				grants()
				m := c.NewMutex("lock:a", time.Minute, opts...)
				require.NoError(t, m.TryLock(t.Context()))
				given := c.NewMutex("lock:a", time.Minute, append(opts, WithToken(m.Token()))...)
				grants("-" + command)
				told(t, "Extend", m.Extend(t.Context()))
				told(t, "Extend of a lock that was handed over", given.Extend(t.Context()))
				holders, err := OnEach(c, t.Context(), "lock:a", opts...)
				told(t, "Holders", err)
				for _, h := range holders {
					require.True(t, name == "reader" || name == "fenced reader" || h.Token != census.Unknown)
				}
				told(t, "Unlock", m.Unlock(t.Context()))
				told(t, "TryLock", c.NewMutex("lock:free", time.Minute, append(opts, func(o *options) {
					if o.more != nil {
						o.more = []string{"lock:free too"}
					}
				})...).TryLock(t.Context()))
			})
		}
	}
}
