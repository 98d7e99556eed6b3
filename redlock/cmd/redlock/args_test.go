package main

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redburst/redburst/redlock/redlocktest"
	"github.com/stretchr/testify/require"
)

func TestWrongUsageExitsWith64AndSaysWhatToDo(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	for name, test := range map[string]struct {
		args []string
		says string
	}{
		"unknown command":      {[]string{"sing"}, "unknown command"},
		"almost a command":     {[]string{"stauts"}, "Did you mean this? status"},
		"watch":                {[]string{"watch", "k"}, "status --watch"},
		"lock":                 {[]string{"lock", "k"}, "redlock run KEY -- COMMAND"},
		"unlock":               {[]string{"unlock", "k"}, "redlock release KEY"},
		"unknown flag":         {[]string{"status", "--loud", "k"}, "unknown flag"},
		"run without key":      {[]string{"run", "--", "true"}, "KEY is missing"},
		"run without command":  {[]string{"run", "k"}, "COMMAND is missing"},
		"run with an empty":    {[]string{"run", "", "--", "true"}, "KEY is empty"},
		"run with two keys":    {[]string{"run", "k", "l", "--", "true"}, "2 words before the --"},
		"run without --":       {[]string{"run", "k", "ls", "-l"}, "behind a --"},
		"run both waits":       {[]string{"run", "-n", "-w", "1s", "k", "--", "true"}, "wait"},
		"lead no command":      {[]string{"lead", "k"}, "COMMAND is missing"},
		"lead without --":      {[]string{"lead", "k", "ls", "-l"}, "behind a --"},
		"lead a bad TTL":       {[]string{"lead", "--ttl", "10", "k", "--", "true"}, "--ttl 10 has no unit"},
		"lead a short guard":   {[]string{"lead", "-m", "127.0.0.1:1", "--restart-guard", "9s", "k", "--", "true"}, "below the --ttl"},
		"lead no grace":        {[]string{"lead", "--grace", "-1s", "k", "--", "true"}, "below zero"},
		"hold a command":       {[]string{"hold", "k", "--", "true"}, "one KEY is wanted, 2 were given"},
		"hold both waits":      {[]string{"hold", "-n", "-w", "1s", "k"}, "wait"},
		"status an empty key":  {[]string{"status", "k", ""}, "KEY is empty"},
		"watch permits":        {[]string{"status", "--watch", "--permits", "2", "k"}, "--watch goes neither"},
		"watch quietly":        {[]string{"status", "--watch", "-q", "k"}, "--watch goes neither"},
		"revoke why":           {[]string{"revoke", "k"}, "give a --reason"},
		"revoke no pattern":    {[]string{"revoke", "--match", "", "--reason", "r"}, "the pattern of --match is empty"},
		"revoke none at most":  {[]string{"revoke", "--match", "*", "--yes", "--most", "0", "--reason", "r"}, "1 to 1000 are possible"},
		"revoke key and match": {[]string{"revoke", "--match", "*", "--yes", "--reason", "r", "k"}, "do not go together"},
		"revoke match, token":  {[]string{"revoke", "--match", "*", "--yes", "--token", "t", "--reason", "r"}, "goes neither with --token"},
		"revoke yes":           {[]string{"revoke", "--yes", "--reason", "r", "k"}, "are for --match"},
		"revoke no permits":    {[]string{"revoke", "--permits", "0", "--reason", "r", "k"}, "1 to 1000 are"},
		"revoke no wait":       {[]string{"revoke", "--wait", "-1s", "--reason", "r", "k"}, "is below zero"},
		"release whose":        {[]string{"release", "k"}, "give the lock's --token, or --force"},
		"release both":         {[]string{"release", "--token", "t", "--force", "k"}, "token"},
		"release permits":      {[]string{"release", "--permits", "2", "--force", "k"}, "name the permit by its --token"},
		"release no permits":   {[]string{"release", "--permits", "0", "--token", "t", "k"}, "1 to 1000 are"},
		"release no token":     {[]string{"release", "-m", "127.0.0.1:1", "--token", "-", "k"}, "stdin is empty"},
		"run no exit status":   {[]string{"run", "-E", "256", "k", "--", "true"}, "0 to 255"},
		"run a negative wait":  {[]string{"run", "-w", "-1s", "k", "--", "true"}, "below zero"},
		"run a bad TTL":        {[]string{"run", "-m", "127.0.0.1:1", "--ttl", "10", "k", "--", "true"}, "--ttl 10 has no unit\n  write 10s"},
		"run a bad wait":       {[]string{"run", "-w", "10", "k", "--", "true"}, "--wait 10 has no unit\n  write 10s"},
		"doctor a bad TTL":     {[]string{"doctor", "--ttl", "10"}, "--ttl 10 has no unit\n  write 10s"},
		"-v is no --version":   {[]string{"-v"}, "unknown shorthand flag"},
		"version of what":      {[]string{"version", "k"}, "unknown command"},
		"run an unlikely TTL":  {[]string{"run", "-m", "EMBEDDED", "--ttl", "1ms", "k", "--", "true"}, "TTL 1ms"},
		"run a short guard":    {[]string{"run", "-m", "127.0.0.1:1", "--restart-guard", "9s", "k", "--", "true"}, "--restart-guard 9s is below the --ttl of 10s"},
		"run a bad owner":      {[]string{"run", "-m", "127.0.0.1:1", "--owner", "a b", "k", "--", "true"}, "owner"},
		"run no permits":       {[]string{"run", "--permits", "0", "k", "--", "true"}, "--permits 0 is not possible: 1 to 1000 are"},
		"run too many permits": {[]string{"run", "--permits", "1001", "k", "--", "true"}, "--permits 1001 is not possible: 1 to 1000 are"},
		"run x permits":        {[]string{"run", "--permits", "x", "k", "--", "true"}, `"x" for "--permits"`},
		"run shared hold":      {[]string{"run", "--min-hold", "1m", "--shared", "k", "--", "true"}, "--shared and --min-hold do not go together"},
		"run a negative hold":  {[]string{"run", "--min-hold", "-1s", "k", "--", "true"}, "below zero"},
		"run hold for nothing": {[]string{"run", "--hold-on-error", "k", "--", "true"}, "only with --min-hold"},
		"run waits never":      {[]string{"run", "--wait", "never", "k", "--", "true"}, "never"},
		"run also nothing":     {[]string{"run", "--also", "", "k", "--", "true"}, "a KEY of --also is empty"},
		"run shared permits":   {[]string{"run", "--permits", "2", "--shared", "k", "--", "true"}, "--permits and --shared do not go together"},
		"run also permits":     {[]string{"run", "--permits", "2", "--also", "l", "k", "--", "true"}, "--permits and --also do not go together"},
		"run fenced permits":   {[]string{"run", "--permits", "2", "--fence", "k", "--", "true"}, "--permits and --fence do not go together"},
		"run also shared":      {[]string{"run", "--shared", "--also", "l", "k", "--", "true"}, "--shared and --also do not go together"},
		"run too many keys":    {append(manyKeys(64), "k", "--", "true"), "65 keys, and 64 are the most"},
		"status no permits":    {[]string{"status", "--permits", "0", "k"}, "--permits 0 is not possible: 1 to 1000 are"},
		"status many permits":  {[]string{"status", "--permits", "1001", "k"}, "--permits 1001 is not possible: 1 to 1000 are"},
		"status x permits":     {[]string{"status", "--permits", "x", "k"}, `"x" for "--permits"`},
		"no masters":           {[]string{"doctor"}, "REDLOCK_MASTERS"},
		"no such file":         {[]string{"doctor", "--masters-file", missing}, "no such file"},
		"no such certificate":  {[]string{"doctor", "-m", "127.0.0.1:1", "--cacert", missing}, "no such file"},
		"a cert without key":   {[]string{"doctor", "-m", "127.0.0.1:1", "--cert", missing}, "cert"},
		"no such password":     {[]string{"doctor", "-m", "127.0.0.1:1", "--password-file", missing}, "no such file"},
		"a password, stdin":    {[]string{"run", "-m", "127.0.0.1:1", "--password-file", "-", "k", "--", "true"}, "--password-file cannot be stdin"},
		"a CA of stdin":        {[]string{"lead", "-m", "127.0.0.1:1", "--cacert", "-", "k", "--", "true"}, "--cacert cannot be stdin"},
		"a cert of stdin":      {[]string{"hold", "-m", "127.0.0.1:1", "--cert", "-", "--key", "x", "k"}, "--cert cannot be stdin"},
		"a key of stdin":       {[]string{"status", "-m", "127.0.0.1:1", "--cert", "x", "--key", "-", "k"}, "--key cannot be stdin"},
		"masters twice":        {[]string{"doctor", "-m", "127.0.0.1:1", "--masters-file", missing}, "masters-file"},
		"a list":               {[]string{"doctor", "-m", "a;b;c"}, "list"},
		"a bad address":        {[]string{"doctor", "-m", "127.0.0.1:0"}, "port"},
		"a password":           {[]string{"doctor", "-m", "redis://u:secret@127.0.0.1:1"}, "REDLOCK_PASSWORD"},
		"a password, bare":     {[]string{"doctor", "-m", "u:secret@127.0.0.1:1"}, "REDLOCK_PASSWORD"},
		"a password, a comma":  {[]string{"doctor", "--masters=redis://u:1,secret@127.0.0.1:1"}, "REDLOCK_PASSWORD"},
		"a password, flags":    {[]string{"doctor", "-m", "redis://u:1", "-m", "secret@127.0.0.1:1"}, "REDLOCK_PASSWORD"},
		"a password, quoted":   {[]string{"doctor", "-m", `"redis://u:1,secret@127.0.0.1:1"`}, "REDLOCK_PASSWORD"},
		"a password, spaces":   {[]string{"doctor", "-m", "127.0.0.1:1, redis://u:1 secret@127.0.0.1:1 "}, "REDLOCK_PASSWORD"},
		"a password, a slash":  {[]string{"doctor", "-m", "redis:///:secret@127.0.0.1:1"}, "REDLOCK_PASSWORD"},
		"a password, encoded":  {[]string{"doctor", "-m", "redis://u%3Asecret@127.0.0.1:1"}, "REDLOCK_PASSWORD"},
		"a password, an @":     {[]string{"doctor", "-m", "redis://u:secret@secret@127.0.0.1:1"}, "REDLOCK_PASSWORD"},
		"a password, alone":    {[]string{"doctor", "-m", "redis://secret@127.0.0.1:1"}, "REDLOCK_PASSWORD"},
		"a password, socket":   {[]string{"doctor", "-m", "unix://u:1,secret@/run/redis"}, "REDLOCK_PASSWORD"},
		"a password, group":    {[]string{"doctor", "-m", "sentinel://u:1,secret@127.0.0.1:1,127.0.0.2:1/g"}, "REDLOCK_PASSWORD"},
		"a password, a quote":  {[]string{"doctor", "-m", `redis://u:x"secret@127.0.0.1:1`}, "REDLOCK_PASSWORD"},
		"a password, no @":     {[]string{"doctor", "-m", "redis://127.0.0.1:1?password=secret"}, "after the ?"},
		"status without key":   {[]string{"status", "-m", "127.0.0.1:1"}, "KEY"},
		"an order of ls":       {[]string{"ls", "-m", "127.0.0.1:1", "--sort", "owner"}, "it is key, age or waiting"},
		"doctor with a key":    {[]string{"doctor", "k"}, "unknown command"},
		"doctor without a TTL": {[]string{"doctor", "-m", "127.0.0.1:1", "--ttl", "0s"}, "--ttl"},
	} {
		t.Run(name, func(t *testing.T) {
			if i := slices.Index(test.args, "EMBEDDED"); i >= 0 {
				test.args[i] = redlocktest.Embedded(t, 1).Addr(0)
			}
			status, stdout, stderr := do(t, nil, test.args...)
			require.Equal(t, exitUsage, status)
			require.Empty(t, stdout)
			require.Contains(t, stderr, test.says)
			require.Regexp(t, "^redlock: ", stderr)
			require.NotContains(t, stderr, "secret")
		})
	}
}

// manyKeys begins the command line of a run with n further keys, which needs a master.
func manyKeys(n int) []string {
	args := []string{"run", "-m", "EMBEDDED"}
	for i := range n {
		args = append(args, "--also", strconv.Itoa(i))
	}
	return args
}

// The child of a test speaks the protocol of the shells' scripts.
func TestTheShellCompletesCommandsAndFlags(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]string{"st": "status\t", "run --min": "--min-hold\t", "completion f": "fish\t", "run k --": "--grace\t"} {
		status, stdout, _ := do(t, nil, append([]string{"__complete"}, strings.Split(words, " ")...)...)
		require.Zero(t, status)
		require.Contains(t, stdout, want)
	}
}

// bash completes the keys of locks, once each, and no key that it would take for something else.
func TestTheShellCompletesKeys(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	masters := redlocktest.Start(t, 3)
	for _, key := range []string{"lock:report", "lock:{a}:rest", "lock:re$(touch x)", "lock:re x", "lock:re{1..9}", "lock:?", "other", "-lock"} {
		onAll(t, masters, "SET", key, "me/ABCDEFGHIJKLMNOPQRSTUVWXYZ0", "PX", "600000")
	}
	_, script, _ := do(t, nil, "completion", "bash")
	// The function is bash-completion's: it finds the words, which a colon does not end.
	script += `
_get_comp_words_by_ref() { words=("${given[@]}") cword=$((${#given[@]} - 1)) cur=${given[-1]} prev=${given[-2]}; }
given=("$@") COMP_TYPE=9 COMP_WORDBREAKS=' '
__start_redlock
printf '%s\n' "${COMPREPLY[@]}"`
	complete := func(env string, words ...string) []string {
		t.Helper()
		s := beginBy(t, []string{env}, bash, append([]string{"-c", script, "bash", binary}, words...)...)
		require.Zero(t, s.end())
		return strings.Fields(s.out.String())
	}
	env, both := mastersEnv(masters), []string{"lock:report", "lock:{a}:rest"}
	for _, command := range []string{"status", "run", "lead", "hold", "release", "revoke", "fence", "ls", "ui"} {
		require.Equal(t, both, complete(env, command, "lock:"), command)
	}
	require.Equal(t, both[:1], complete(env, "status", "lock:re"))
	require.Equal(t, []string{`lock:\{a\}:rest`}, complete(env, "status", both[0], "lock:"), "one is there already, and bash quotes the other")
	require.Equal(t, both, complete("REDLOCK_MASTERS=", "status", "-m", strings.Join(masters.Addrs(), ","), "lock:"))
	for _, none := range [][]string{{"status", "lock:?"}, {"hold", "k", "lock:"}, {"doctor", ""}, {"status", "--masters-file", "-", ""}} {
		require.Empty(t, complete(env, none...))
	}
	require.Empty(t, complete("REDLOCK_MASTERS=127.0.0.1:1", "status", ""))
	require.NotContains(t, complete(env, "run", "k", ""), "other")
}
