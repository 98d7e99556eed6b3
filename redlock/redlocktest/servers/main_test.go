package main

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redburst/redburst/redlock/internal/processes"
	"github.com/stretchr/testify/require"
)

func servers(all ...string) (s []server) {
	for _, name := range all {
		kind, version, _ := strings.Cut(name, " ")
		s = append(s, server{kind: kind, version: version})
	}
	return s
}

func names(all []server) (s []string) {
	for _, one := range all {
		s = append(s, one.String())
	}
	return s
}

func TestVersionsAreComparedByNumber(t *testing.T) {
	all := distinct(servers("valkey 9.1.2", "redis 8.10.0", "redis 8.6.3", "valkey 8.0.1", "redis 8.6.3", "redis 8.6"))
	require.Equal(t, []string{"redis 8.6", "redis 8.6.3", "redis 8.10.0", "valkey 8.0.1", "valkey 9.1.2"}, names(all))
}

func TestOfOneVersionTheFirstIsTaken(t *testing.T) {
	all := []server{{"/given", "redis", "7.0.15"}, {"/usr/bin", "redis", "7.0.15"}}
	require.Equal(t, all[:1], distinct(all))
}

func TestBriefTakesTheOldestAndTheNewestOfEachKind(t *testing.T) {
	for _, tt := range []struct{ all, brief []string }{
		{nil, nil},
		{[]string{"redis 7.0.15"}, []string{"redis 7.0.15"}},
		{
			[]string{"redis 6.0.16", "redis 7.0.15", "redis 8.6.3", "valkey 8.0.1", "valkey 9.1.2"},
			[]string{"redis 6.0.16", "redis 8.6.3", "valkey 9.1.2"},
		},
	} {
		require.Equal(t, tt.brief, names(ends(servers(tt.all...))))
	}
}

func TestServerSaysItsVersion(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the servers of this test are scripts for a shell")
	}
	for says, want := range map[string]string{
		"Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=ae4d7c971a948f0":  "redis 7.0.15",
		"Valkey server v=9.1.2 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=f2a0b1c3d4e5f607": "valkey 9.1.2",
	} {
		path := filepath.Join(t.TempDir(), "any-server")
		require.NoError(t, processes.WriteProgram(path, []byte("#!/bin/sh\necho '"+says+"'\n")))
		s, err := ask(t.Context(), path)
		require.NoError(t, err)
		require.Equal(t, want, s.String())
		require.Equal(t, path, s.path)
	}
	_, err := ask(t.Context(), "/bin/true")
	require.ErrorContains(t, err, "no version of Redis or Valkey")
}

// The loader of this test says how it was called.
func TestUnpackedServerIsStartedWithItsOwnLoader(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the script is one for a shell")
	}
	dir := filepath.Join(t.TempDir(), "with space")
	for name, text := range map[string]string{
		"usr/bin/redis-check-rdb":                         "the program",
		"usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2":   "#!/bin/sh\nprintf '%s\\n' \"$0\" \"$@\"\n",
		"lib/x86_64-linux-gnu/libjemalloc.so.2":           "",
		"usr/share/doc/redis-tools/copyright/is/not/here": "",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, processes.WriteProgram(filepath.Join(dir, name), []byte(text)))
	}
	require.NoError(t, wrap(dir, "redis-server", "redis"))
	moved := filepath.Join(t.TempDir(), "moved")
	require.NoError(t, os.Rename(dir, moved))

	out, err := output(t.Context(), nil, filepath.Join(moved, "redis-server"), "--save", "", "a b")
	require.NoError(t, err)
	require.Equal(t, []string{
		moved + "/loader/redis-server",
		"--library-path", moved + "/usr/lib/x86_64-linux-gnu:" + moved + "/lib/x86_64-linux-gnu",
		moved + "/program/redis-server",
		"--save", "", "a b",
	}, strings.Split(strings.TrimSuffix(out, "\n"), "\n"))

	require.ErrorContains(t, wrap(t.TempDir(), "redis-server", "redis"), "the packages have no usr/bin/redis-check-rdb")
}

func TestLibrariesAreTakenFromTheDependencies(t *testing.T) {
	require.Equal(t, []string{"libc6", "libsystemd0", "liblua5.1-0", "lua-cjson"}, libraries(`redis-tools
  Depends: adduser
  Depends: libc6
 |Depends: libsystemd0
  Depends: libelogind0
  Depends: liblua5.1-0
 |Depends: systemd
  Depends: libnever
  Depends: <systemd-sysusers>
    libneither
  Depends: lua-cjson
libc6
  PreDepends: libc6
`))
}

func TestMatrixIsATableOfMarkdown(t *testing.T) {
	var table strings.Builder
	matrix(&table, []result{
		{server: server{kind: "redis", version: "6.0.16"}, passed: 569, failed: []string{"conn TestTLS"}, skipped: 1, took: 89400 * time.Millisecond},
		{server: server{kind: "valkey", version: "9.1.2"}, passed: 570, took: time.Minute},
	})
	require.Equal(t, `| server | version | passed | failed | skipped | time  |
| ---    | ---     | ---    | ---    | ---     | ---   |
| redis  | 6.0.16  | 569    | 1      | 1       | 1m29s |
| valkey | 9.1.2   | 570    | 0      | 0       | 1m0s  |
`, table.String())
}

// A test that is renamed would else drop out of the core unnoticed.
func TestCoreNamesTestsThatThereAre(t *testing.T) {
	var tests []string
	for _, pkg := range packages {
		files, err := filepath.Glob(filepath.Join("../../..", pkg, "*_test.go"))
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(text), -1) {
				tests = append(tests, m[1])
			}
		}
	}
	for _, name := range core {
		pattern := regexp.MustCompile("^" + name + "$")
		found := false
		for _, test := range tests {
			found = found || pattern.MatchString(test)
		}
		require.True(t, found, "no test is named %s", name)
	}
}
