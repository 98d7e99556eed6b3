package rights

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/internal/kind"
	"github.com/stretchr/testify/require"
)

var (
	anyCall = regexp.MustCompile(`redis\.p?call\('([A-Z]+)'`)
	rule    = regexp.MustCompile(`[+~]\S+`)
)

// commandsOf returns the commands in what a master is sent, and those that scripts in it call.
func commandsOf(t *testing.T, sent []byte, into map[string]bool) {
	for len(sent) > 0 {
		last := lastCommand(sent)
		require.NotEmpty(t, last, "%q", sent)
		name := strings.ToLower(last[0])
		if name == "client" {
			name += "|" + strings.ToLower(last[1])
		}
		into[name] = true
		text := scriptOf(last)
		require.Equal(t, strings.HasPrefix(name, "eval"), text != "", "%q", last)
		for _, m := range anyCall.FindAllStringSubmatch(text, -1) {
			into[strings.ToLower(m[1])] = true
		}
		size := len("*\r\n") + len(strconv.Itoa(len(last)))
		for _, arg := range last {
			size += len("$\r\n\r\n") + len(strconv.Itoa(len(arg))) + len(arg)
		}
		sent = sent[:len(sent)-size]
	}
}

// sentBy returns what the methods of a kind send that fill in a request, but for those that are left out.
func sentBy(t *testing.T, k kind.Kind, leaveOut ...string) map[string]bool {
	all, of := map[string]bool{}, reflect.ValueOf(k)
	methods := 0
	for i := range of.NumMethod() {
		m, name := of.Method(i), of.Type().Method(i).Name
		if m.Type().NumIn() == 0 || m.Type().In(0) != reflect.TypeFor[*kind.Request]() || slices.Contains(leaveOut, name) {
			continue
		}
		if _, numbered := k.(kind.Numbered); !numbered && (name == "Raise" || name == "Mend") {
			continue
		}
		methods++
		for _, grant := range []kind.Grant{
			{Key: "k", Token: []byte("token.1.2"), TTL: time.Second, Fence: 7},
			{Key: "k", Token: []byte("token.1.2"), TTL: time.Second, Relies: true}, // and without a fence
		} {
			var r kind.Request
			args := []reflect.Value{reflect.ValueOf(&r)}
			for j := 1; j < m.Type().NumIn(); j++ {
				switch in := m.Type().In(j); in {
				case reflect.TypeFor[kind.Grant]():
					args = append(args, reflect.ValueOf(grant))
				case reflect.TypeFor[string]():
					args = append(args, reflect.ValueOf("k"))
				case reflect.TypeFor[[]byte]():
					args = append(args, reflect.ValueOf([]byte("token")))
				default:
					args = append(args, reflect.Zero(in))
				}
			}
			if name == "Mend" && strings.Contains(of.Type().String(), "shared") {
				continue // a reader mends nothing
			}
			m.Call(args)
			for _, sent := range [][]byte{r.Command, r.Fallback, r.Dialects[0].Command, r.Dialects[1].Command} {
				commandsOf(t, sent, all)
			}
		}
	}
	require.Greater(t, methods, 3)
	return all
}

// A user with the rights that stand here for a kind can do all that the kind sends, and there is none that
// it does not send.
func TestTheTableHasWhatEachKindSends(t *testing.T) {
	t.Parallel()
	c := &kind.Counters{Memory: time.Hour}
	several := kind.NewSeveral([]string{"k", "l"})
	writers := []string{"Intend", "Withdraw"} // a part of the shared kind
	for name, test := range map[string]struct {
		needs []Need
		sends []map[string]bool
	}{
		"plain":   {nil, []map[string]bool{sentBy(t, kind.Plain{}, writers...)}},
		"fence":   {[]Need{Fence}, []map[string]bool{sentBy(t, kind.NewFenced("k", time.Minute, c), writers...)}},
		"several": {[]Need{Several}, []map[string]bool{sentBy(t, several, writers...)}},
		"several, with a fence": {[]Need{Several, Fence}, []map[string]bool{sentBy(t, several, writers...),
			sentBy(t, kind.NewSeveralFenced(several, time.Minute, c), writers...)}},
		"shared": {[]Need{Shared}, []map[string]bool{sentBy(t, kind.NewShared("k")), sentBy(t, kind.Plain{}), sentBy(t, several, "Acquire", "Release", "Linger", "Read")}},
		"shared, with a fence": {[]Need{Shared, Fence}, []map[string]bool{sentBy(t, kind.NewShared("k")), sentBy(t, kind.Plain{}),
			sentBy(t, kind.NewSharedFenced("k", time.Minute, c))}},
		"permits": {[]Need{Permits}, []map[string]bool{sentBy(t, kind.NewPermits("k", time.Minute, 2), writers...)}},
	} {
		granted, sent := map[string]bool{}, map[string]bool{}
		for _, n := range append([]Need{Lock, Telling, Native}, test.needs...) {
			for _, command := range n.Commands {
				granted[command] = true
			}
		}
		for _, kind := range test.sends {
			for command := range kind {
				sent[command] = true
				require.Contains(t, granted, command, name)
			}
		}
		for _, n := range test.needs {
			for _, command := range n.Commands {
				require.Contains(t, sent, command, "%s needs it not", name)
			}
		}
		if name == "plain" {
			for _, command := range Lock.Commands {
				require.True(t, sent[command] || command == "script|load", command) // which is a part of the handshake
			}
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

// rulesOf returns the rules of a line that grant something, in order.
func rulesOf(line string) []string {
	all := rule.FindAllString(line, -1)
	slices.Sort(all)
	return slices.Compact(all)
}

func sorted(all []string) []string {
	slices.Sort(all)
	return all
}

// The documentation of package conn has the rights that stand here, and no others.
func TestTheDocumentationHasTheRightsOfLocks(t *testing.T) {
	t.Parallel()
	_, text, found := strings.Cut(read(t, "../../../conn/doc.go"), "ACL SETUSER locker on >password resetkeys ")
	require.True(t, found)
	text, _, found = strings.Cut(text, "\n//\n")
	require.True(t, found)
	require.Equal(t, sorted(append(Rules("lock:*", Locks...), "~lock:*")), rulesOf(text))
}

// userOf returns the rules of a user that is deployed.
func userOf(t *testing.T, name string) []string {
	t.Helper()
	m := regexp.MustCompile(`(?m)^user ` + name + ` .*$`).FindString(read(t, "../../contrib/deploy/users.acl"))
	require.Contains(t, m, " resetkeys ")
	require.Contains(t, m, " -@all ")
	return rulesOf(m)
}

// The users that are deployed have the rights that stand here, and a PING. Servers do not start with a right to
// a command that they do not know, and what is deployed has one database, and is no cluster.
func TestTheDeployedUsersHaveTheRightsThatTheyNeed(t *testing.T) {
	t.Parallel()
	locks := slices.DeleteFunc(slices.Clone(Locks), func(n Need) bool { return n.For == Native.For || n.For == Database.For || n.For == Cluster.For })
	require.Equal(t, sorted(append(Rules("lock:*", locks...), "~lock:*", "+ping")), userOf(t, "locker"))
	require.Equal(t, sorted(append(Rules("lock:*", append(locks, Operators...)...), "~lock:*", "+ping")), userOf(t, "operator"))
}

func TestRulesStandOnce(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"+time", "~{a*}:fence"}, Rules("a*", Fence, Fence))
	require.Equal(t, []string{"+exists", "+mget"}, Rules("", Several, Permits))
	require.Equal(t, []string{"+exists"}, Rules("{locks}:*", Permits), "the keys beside a lock begin as it does")
	require.Equal(t, []Need{Several, Permits, Loss}, Uses("exists"))
	require.Empty(t, Uses("flushall"))
}
