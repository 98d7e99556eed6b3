package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/redburst/redburst/redlock/internal/processes"
)

// releases are the releases of Debian that servers are taken from, oldest first, by
// the names that move on with each release. One that is not complete by itself names
// the one that it adds to. Testing is left out: what it has is in unstable.
var releases = []release{
	{name: "oldoldstable"},
	{name: "oldstable"},
	{name: "oldstable-backports", base: "oldstable"},
	{name: "stable"},
	{name: "stable-backports", base: "stable"},
	{name: "unstable"},
	{name: "experimental", base: "unstable"},
}

type release struct{ name, base string }

// kinds are the servers that are looked for in each release.
var kinds = []string{"redis", "valkey"}

// errNone says that a release has no package of this server, or none of its own.
var errNone = errors.New("has no such package")

// errNotDebian says that apt, if there is any, does not know where Debian's packages are.
var errNotDebian = errors.New("this system is not Debian")

// A mirror is where this system's apt takes Debian's packages from.
type mirror struct{ uri, keyring string }

// configured returns the mirror that apt is configured for.
func configured(ctx context.Context) (mirror, error) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return mirror{}, fmt.Errorf("%w: it has no apt-get", errNotDebian)
	}
	system, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return mirror{}, err
	}
	id, codename := setting(system, "ID"), setting(system, "VERSION_CODENAME")
	if id != "debian" {
		return mirror{}, fmt.Errorf("%w: it is %q", errNotDebian, id)
	}
	out, err := output(ctx, nil, "apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages")
	if err != nil {
		return mirror{}, err
	}
	for line := range strings.Lines(out) {
		if name, uri, _ := strings.Cut(strings.TrimSpace(line), " "); name == codename {
			return mirror{uri, "/usr/share/keyrings/debian-archive-keyring.gpg"}, nil
		}
	}
	return mirror{}, fmt.Errorf("apt has no source for %s", codename)
}

// setting returns the value of a line key=value, of which each key has one.
func setting(file []byte, key string) string {
	for line := range strings.Lines(string(file)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
			return strings.Trim(value, `"`)
		}
	}
	return ""
}

// An archive is apt, configured for one release of Debian in a directory of its own.
// It reads and writes nothing of the system's apt but how the mirror is reached.
type archive struct {
	dir string
	env []string
}

func open(ctx context.Context, m mirror, r release, dir string) (*archive, error) {
	a := &archive{dir: dir, env: []string{"APT_CONFIG=" + filepath.Join(dir, "apt.conf"), "LC_ALL=C"}}
	for _, sub := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, err
		}
	}
	acquire, err := output(ctx, nil, "apt-config", "dump", "Acquire")
	if err != nil {
		return nil, err
	}
	var conf, sources, preferences strings.Builder
	for line := range strings.Lines(acquire) {
		if !strings.HasPrefix(line, "Acquire::IndexTargets") { // descriptions and icons
			conf.WriteString(line)
		}
	}
	fmt.Fprintf(&conf, `
Dir::Etc::main "/dev/null";
Dir::Etc::parts "/dev/null";
Dir::Etc::sourcelist "%[1]s/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "%[1]s/preferences";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "%[1]s";
Dir::State::lists "%[1]s/lists";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s/cache";
APT::Sandbox::User "root";
`, dir)
	for _, name := range []string{r.base, r.name} {
		if name != "" {
			fmt.Fprintf(&sources, "deb [signed-by=%s] %s %s main\n", m.keyring, m.uri, name)
		}
	}
	// Otherwise the base would win.
	fmt.Fprintf(&preferences, "Package: redis-* valkey-*\nPin: release a=%s\nPin-Priority: 900\n", r.name)
	for name, text := range map[string]string{
		"apt.conf": conf.String(), "sources.list": sources.String(), "preferences": preferences.String(), "status": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	_, err = output(ctx, a.env, "apt-get", "update", "-q", "-o", "APT::Update::Error-Mode=any")
	return a, err
}

// version returns the version of the package that the release itself has.
func (a *archive) version(ctx context.Context, pkg string, r release) (string, error) {
	out, err := output(ctx, a.env, "apt-cache", "madison", pkg)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) { // redis-tools | 5:8.6.3-1 | http://mirror/debian experimental/main amd64 Packages
		fields := strings.Fields(line)
		if len(fields) > 5 && strings.HasPrefix(fields[5], r.name+"/") {
			return fields[2], nil
		}
	}
	return "", errNone
}

// closure returns the package and all libraries that it needs.
func (a *archive) closure(ctx context.Context, pkg string) ([]string, error) {
	all := []string{pkg}
	for next := all; len(next) > 0; {
		out, err := output(ctx, a.env, "apt-cache", append([]string{"depends", "--important"}, next...)...)
		if err != nil {
			return nil, err
		}
		next = slices.DeleteFunc(libraries(out), func(l string) bool { return slices.Contains(all, l) })
		all = append(all, next...)
	}
	return all, nil
}

// libraries returns the libraries among the dependencies that apt-cache prints, each
// once. Of alternatives, whose lines begin with | but for the last, it takes the first.
func libraries(depends string) (all []string) {
	another := false
	for line := range strings.Lines(depends) {
		more, name, ok := strings.Cut(strings.TrimSpace(line), "Depends: ")
		if !ok {
			continue
		}
		library := strings.HasPrefix(name, "lib") || strings.HasPrefix(name, "lua-")
		if !another && library && !slices.Contains(all, name) {
			all = append(all, name)
		}
		another = strings.HasPrefix(more, "|")
	}
	return all
}

// unpack downloads the packages and unpacks them into the directory.
func (a *archive) unpack(ctx context.Context, pkgs []string, into string) error {
	debs := filepath.Join(a.dir, "debs")
	if err := os.RemoveAll(debs); err != nil {
		return err
	}
	if err := os.Mkdir(debs, 0o755); err != nil {
		return err
	}
	cmd := command(ctx, a.env, "apt-get", append([]string{"download", "-q"}, pkgs...)...)
	cmd.Dir = debs
	if _, err := say(cmd); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return err
	}
	for _, deb := range files {
		if _, err := output(ctx, nil, "dpkg-deb", "-x", deb, into); err != nil {
			return err
		}
	}
	return nil
}

// wrapper starts a server with its own loader and libraries, as it may need a newer
// libc than this system has. exec keeps the process id. The loader has the name of
// the server, so that ps and /proc show that name. And so has the program, which is
// in truth called redis-check-rdb and decides by its name what it is.
const wrapper = `#!/bin/sh
here=${0%%/*}
exec "$here/loader/%[1]s" --library-path "%[2]s" "$here/program/%[1]s" "$@"
`

// wrap makes the unpacked packages a server that can be started by name.
func wrap(dir, name, kind string) error {
	program, err := one(dir, "usr/bin/"+kind+"-check-rdb")
	if err != nil {
		return err
	}
	loader, err := one(dir, "usr/lib/*-linux-*/ld-*.so*", "lib/*-linux-*/ld-*.so*")
	if err != nil {
		return err
	}
	for sub, target := range map[string]string{"program": program, "loader": loader} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(filepath.Join("..", target), filepath.Join(dir, sub, name)); err != nil {
			return err
		}
	}
	var libraries []string
	for _, pattern := range []string{"usr/lib/*-linux-*", "lib/*-linux-*"} {
		found, _ := filepath.Glob(filepath.Join(dir, pattern))
		for _, l := range found {
			rel, _ := filepath.Rel(dir, l)
			libraries = append(libraries, "$here/"+rel)
		}
	}
	text := fmt.Sprintf(wrapper, name, strings.Join(libraries, ":"))
	return processes.WriteProgram(filepath.Join(dir, name), []byte(text))
}

// one returns the first file, not a link, that matches a pattern, relative to dir.
func one(dir string, patterns ...string) (string, error) {
	for _, pattern := range patterns {
		found, _ := filepath.Glob(filepath.Join(dir, pattern))
		for _, path := range found {
			if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() {
				return filepath.Rel(dir, path)
			}
		}
	}
	return "", fmt.Errorf("the packages have no %s", cmp.Or(patterns[0], ""))
}

func command(ctx context.Context, env []string, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

func output(ctx context.Context, env []string, name string, args ...string) (string, error) {
	return say(command(ctx, env, name, args...))
}

// say returns what the command says. Its error has what it complains of.
func say(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args[:min(2, len(cmd.Args))], " "), err,
			bytes.TrimSpace(stderr.Bytes()))
	}
	return stdout.String(), nil
}
