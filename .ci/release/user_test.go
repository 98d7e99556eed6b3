package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const seenVersion = "v0.0.1-seen.by.a.user"

// A user has the go command, a module of their own, and what is published. The tree is published as it stands, into a
// folder that is a module proxy.
func TestWhatAUserGets(t *testing.T) {
	proxy, tree := published(t)
	own := func(t *testing.T, get []string, files map[string]string) *user {
		u := newUser(t, proxy)
		u.module(files)
		for _, path := range get {
			u.goes("get", path+"@"+seenVersion)
		}
		return u
	}

	t.Run("library", func(t *testing.T) {
		t.Parallel()
		u := own(t, []string{rootModule + "/redlock"}, map[string]string{"main.go": readmeProgram(t, tree)})
		u.env = append(u.env, "GOMODCACHE="+t.TempDir()) // an empty one: what is downloaded is seen
		u.goes("build", "./...")
		require.Equal(t, []string{"github.com/redburst/redburst@" + seenVersion, "golang.org/x/sys"}, u.downloaded(t),
			"the modules whose code a program downloads that uses redlock")
		sum, err := os.ReadFile(filepath.Join(u.dir, "go.sum"))
		require.NoError(t, err)
		for line := range strings.Lines(string(sum)) {
			for _, tool := range []string{"honnef.co", "x/vuln", "x/perf", "x/tools", "nfpm", "etcd", "redsync"} {
				require.NotContains(t, line, tool, "go.sum of a user")
			}
		}
		t.Logf("go.sum of a program that uses redlock has %d lines", strings.Count(string(sum), "\n"))
	})

	// Each is what the package's documentation begins with.
	for path, program := range map[string]string{
		"redlock/contrib/etcd": `package main

import (
	"time"

	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/contrib/etcd"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func main() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:2379"}, DialTimeout: time.Second})
	if err != nil {
		panic(err)
	}
	second, err := etcd.New(client)
	if err != nil {
		panic(err)
	}
	defer second.Close()
	_ = redlock.WithSecond(second)
}
`,
		"redlock/contrib/zookeeper": `package main

import (
	"github.com/redburst/redburst/redlock"
	"github.com/redburst/redburst/redlock/contrib/zookeeper"
)

func main() {
	second, err := zookeeper.New([]string{"127.0.0.1:2181"})
	if err != nil {
		panic(err)
	}
	defer second.Close()
	_ = redlock.WithSecond(second)
}
`,
		"redlock/contrib/prometheus": `package main

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redburst/redburst/redlock"
	redlockprom "github.com/redburst/redburst/redlock/contrib/prometheus"
)

func main() {
	metrics := redlockprom.New()
	_ = redlock.Config{Observers: []redlock.Observer{metrics.Observer()}}
	prometheus.MustRegister(metrics)
}
`,
		"redlock/contrib/gocron": `package main

import (
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/redburst/redburst/redlock"
	redgocron "github.com/redburst/redburst/redlock/contrib/gocron"
)

func main() {
	client, err := redlock.New(redlock.Config{Masters: []string{"a:6379", "b:6379", "c:6379"}})
	if err != nil {
		panic(err)
	}
	locker := redgocron.NewLocker(client, "lock:cron:", 30*time.Second, redlock.WithMinHold(time.Minute))
	_, err = gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	_ = err
}
`,
		"redlock/contrib/certmagic": `package main

import (
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/redburst/redburst/redlock"
	redcertmagic "github.com/redburst/redburst/redlock/contrib/certmagic"
)

func main() {
	client, err := redlock.New(redlock.Config{Masters: []string{"a:6379", "b:6379", "c:6379"}})
	if err != nil {
		panic(err)
	}
	certmagic.Default.Storage = redcertmagic.WithLocks(certmagic.Default.Storage, client, "lock:certmagic:", 30*time.Second)
}
`,
		"redlock/contrib/otel":      "", // its example
		"redlock/examples/fencesql": "",
		"redlock/redlocktest":       "",
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			files := map[string]string{"main.go": program}
			if program == "" {
				text, err := os.ReadFile(filepath.Join(tree, path, "example_test.go"))
				require.NoError(t, err)
				files = map[string]string{"example_test.go": string(text)}
			}
			u := own(t, nil, files)
			u.goes("get", rootModule+"/"+path+"@"+seenVersion)
			u.goes("mod", "tidy", "-e") // what else a user's program names; -e as others' tests may need what is not to be had
			u.goes("vet", "./...")
		})
	}

	t.Run("command", func(t *testing.T) {
		t.Parallel()
		u := newUser(t, proxy)
		bin := t.TempDir()
		u.env = append(u.env, "GOBIN="+bin)
		u.goes("install", rootModule+"/redlock/cmd/redlock@"+seenVersion)
		redlock := filepath.Join(bin, "redlock")
		said, err := run(u.dir, redlock, "version")
		require.NoError(t, err)
		require.Contains(t, said, seenVersion)
		_, err = run(u.dir, redlock, "demo")
		require.NoError(t, err)
	})
}

// published returns the tree as a user finds it: in a proxy, and as files.
func published(t *testing.T) (fileProxy, string) {
	root, err := run(".", "git", "rev-parse", "--show-toplevel")
	require.NoError(t, err)
	tree := t.TempDir()
	require.NoError(t, copyTree(strings.TrimSpace(root), ".", tree))
	for _, args := range [][]string{{"init", "--quiet"}, {"add", "--all"}} {
		_, err = run(tree, "git", args...)
		require.NoError(t, err)
	}
	all, err := modulesOf(tree)
	require.NoError(t, err)
	proxy := fileProxy{t.TempDir()}
	require.NoError(t, publish(tree, seenVersion, all, proxy))
	return proxy, tree
}

// A user is a folder outside the tree.
type user struct {
	t   *testing.T
	dir string
	env []string
}

func newUser(t *testing.T, proxy fileProxy) *user {
	return &user{t: t, dir: t.TempDir(), env: proxy.env()}
}

func (u *user) goes(args ...string) string {
	u.t.Helper()
	said, err := runEnv(u.dir, u.env, "go", args...)
	require.NoError(u.t, err)
	return said
}

func (u *user) module(files map[string]string) {
	u.goes("mod", "init", "example.com/service")
	for name, text := range files {
		require.NoError(u.t, os.WriteFile(filepath.Join(u.dir, name), []byte(text), 0o644))
	}
}

// downloaded returns the modules whose code lies in the cache.
func (u *user) downloaded(t *testing.T) (all []string) {
	dir := strings.TrimSpace(u.goes("env", "GOMODCACHE"))
	for _, pattern := range []string{"*/*@*", "*/*/*@*", "*/*/*/*@*"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		require.NoError(t, err)
		for _, name := range found {
			rel, err := filepath.Rel(dir, name)
			require.NoError(t, err)
			if strings.HasPrefix(rel, "cache/") {
				continue
			}
			if path, _, _ := strings.Cut(rel, "@"); path != rootModule {
				rel = path
			}
			all = append(all, rel)
		}
	}
	return all
}

// readmeProgram returns the program that the README shows as a whole.
func readmeProgram(t *testing.T, tree string) string {
	text, err := os.ReadFile(filepath.Join(tree, "README.md"))
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), "```go\npackage main\n")
	program, _, found := strings.Cut(rest, "\n```")
	require.True(t, found, "README.md shows a program")
	return "package main\n" + program + "\n"
}
