package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A server is a program that masters can be started from.
type server struct {
	path    string // absolute
	kind    string // redis or valkey
	version string
}

func (s server) String() string { return s.kind + " " + s.version }

// "Redis server v=7.0.15 sha=00000000:0 malloc=...", "Valkey server v=9.1.2 sha=..."
var versionLine = regexp.MustCompile(`^(\w+) server v=([0-9][0-9.]*)`)

// ask makes the program say what it is, which also shows that it runs here.
func ask(ctx context.Context, path string) (server, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return server{}, err
	}
	out, err := output(ctx, []string{"LC_ALL=C"}, path, "--version")
	if err != nil {
		return server{}, err
	}
	m := versionLine.FindStringSubmatch(out)
	if m == nil {
		return server{}, fmt.Errorf("%s --version says %q, which is no version of Redis or Valkey", path, strings.TrimSpace(out))
	}
	return server{path, strings.ToLower(m[1]), m[2]}, nil
}

// installed returns the servers on the PATH.
func installed() (paths []string) {
	for _, kind := range kinds {
		if path, err := exec.LookPath(kind + "-server"); err == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

// A cache has the servers that were got: redis-8.6.3/redis-server, and for each
// release and kind a link experimental.redis to it, or an empty file if there is none.
type cache string

func cacheDir() (cache, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "redburst", "servers")
	return cache(dir), os.MkdirAll(dir, 0o755)
}

func (c cache) entry(r release, kind string) string {
	return filepath.Join(string(c), r.name+"."+kind)
}

// has reports whether it is known what server of this kind the release has.
func (c cache) has(r release, kind string) bool {
	_, err := os.Stat(c.entry(r, kind))
	return err == nil
}

// servers returns those that were got.
func (c cache) servers() (paths []string) {
	for _, kind := range kinds {
		found, _ := filepath.Glob(filepath.Join(string(c), kind+"-*", kind+"-server"))
		paths = append(paths, found...)
	}
	return paths
}

// getAll gets what is missing, from each release.
func (c cache) getAll(ctx context.Context, update bool) error {
	if update {
		if err := c.forget(); err != nil {
			return err
		}
	}
	m, err := configured(ctx)
	if errors.Is(err, errNotDebian) {
		fmt.Fprintln(os.Stderr, "servers: only those that are installed or given:", err)
		return nil
	}
	if err != nil {
		return err
	}
	for _, r := range releases {
		if getErr := c.get(ctx, m, r); getErr != nil {
			err = errors.Join(err, fmt.Errorf("%s of Debian: %w", r.name, getErr))
		}
	}
	return err
}

// get gets the servers that the release has and that are not in the cache.
func (c cache) get(ctx context.Context, m mirror, r release) error {
	missing := slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return c.has(r, kind) })
	if len(missing) == 0 {
		return nil
	}
	fmt.Fprintf(os.Stderr, "servers: looking into Debian %s for %s\n", r.name, strings.Join(missing, ", "))
	dir, err := os.MkdirTemp(string(c), ".get-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	a, err := open(ctx, m, r, filepath.Join(dir, "apt"))
	if err != nil {
		return err
	}
	for _, kind := range missing {
		switch kindErr := c.getKind(ctx, a, r, kind, filepath.Join(dir, kind)); {
		case errors.Is(kindErr, errNone):
			err = errors.Join(err, os.WriteFile(c.entry(r, kind), nil, 0o644))
		case kindErr != nil:
			err = errors.Join(err, fmt.Errorf("%s of %s: %w", kind, r.name, kindErr))
		}
	}
	return err
}

func (c cache) getKind(ctx context.Context, a *archive, r release, kind, dir string) error {
	pkg, name := kind+"-tools", kind+"-server" // the program is in the tools, the server is a link to it
	if _, err := a.version(ctx, pkg, r); err != nil {
		return err
	}
	pkgs, err := a.closure(ctx, pkg)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := a.unpack(ctx, pkgs, dir); err != nil {
		return err
	}
	if err := wrap(dir, name, kind); err != nil {
		return err
	}
	s, err := ask(ctx, filepath.Join(dir, name))
	if err != nil {
		return fmt.Errorf("it does not run here: %w", err)
	}
	if s.kind != kind {
		return fmt.Errorf("it says that it is %s", s)
	}
	final := kind + "-" + s.version
	if err := os.Rename(dir, filepath.Join(string(c), final)); err != nil && !os.IsExist(err) {
		return err // two releases may have the same version, which is then here already
	}
	fmt.Fprintf(os.Stderr, "servers: got %s\n", s)
	if err := os.Symlink(final, c.entry(r, kind)); !os.IsExist(err) {
		return err
	}
	return nil // somebody else got it meanwhile
}

// forget makes the next get look again, for newer versions.
func (c cache) forget() error {
	for _, r := range releases {
		for _, kind := range kinds {
			if err := os.Remove(c.entry(r, kind)); err != nil && !os.IsNotExist(err) {
				return err
			}
		}
	}
	return nil
}

// distinct sorts servers by kind and version and drops those that come again.
func distinct(all []server) []server {
	all = slices.Clone(all)
	slices.SortStableFunc(all, compare)
	return slices.CompactFunc(all, func(a, b server) bool { return compare(a, b) == 0 })
}

func compare(a, b server) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), slices.Compare(numbers(a.version), numbers(b.version)))
}

func numbers(version string) (all []int) {
	for part := range strings.SplitSeq(version, ".") {
		n, _ := strconv.Atoi(part)
		all = append(all, n)
	}
	return all
}

// ends returns the oldest of all, and the newest of each kind. (The oldest Valkey is younger than the oldest Redis.)
func ends(sorted []server) (some []server) {
	for i, s := range sorted {
		oldest := i == 0
		newest := i == len(sorted)-1 || sorted[i+1].kind != s.kind
		if oldest || newest {
			some = append(some, s)
		}
	}
	return some
}
