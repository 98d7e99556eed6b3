package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
	modmodule "golang.org/x/mod/module"
	"golang.org/x/mod/sumdb/dirhash"
	"golang.org/x/mod/zip"
)

// A goModule is one of the modules of the tree.
type goModule struct {
	dir   string // from the root of the tree, with slashes; "." for the root
	path  string
	needs []string // the paths of the modules of the tree that its go.mod names
}

// tag returns the name of the tag that publishes a version of the module.
func (m goModule) tag(version string) string {
	if m.dir == "." {
		return version
	}
	return m.dir + "/" + version
}

// modulesOf returns the modules of a tree, each behind those that it needs. Those in folders that begin with a dot are
// tools of the tree, and nobody gets them.
func modulesOf(root string) ([]goModule, error) {
	out, err := run(root, "git", "ls-files", "go.mod", "*/go.mod")
	if err != nil {
		return nil, err
	}
	var all []goModule
	own := make(map[string]bool)
	files := make(map[string]*modfile.File)
	for _, name := range strings.Fields(out) {
		if strings.HasPrefix(name, ".") {
			continue
		}
		file, err := readModule(filepath.Join(root, name))
		if err != nil {
			return nil, err
		}
		m := goModule{dir: path.Dir(name), path: file.Module.Mod.Path}
		own[m.path], files[m.path] = true, file
		all = append(all, m)
	}
	for i := range all {
		for _, r := range files[all[i].path].Require {
			if own[r.Mod.Path] {
				all[i].needs = append(all[i].needs, r.Mod.Path)
			}
		}
	}
	return inOrder(all)
}

// inOrder sorts modules so that each stands behind those that it needs.
func inOrder(all []goModule) (sorted []goModule, err error) {
	done := make(map[string]bool)
	for len(sorted) < len(all) {
		before := len(sorted)
		for _, m := range all {
			if !done[m.path] && !slices.ContainsFunc(m.needs, func(p string) bool { return !done[p] }) {
				done[m.path] = true
				sorted = append(sorted, m)
			}
		}
		if len(sorted) == before {
			return nil, fmt.Errorf("modules need each other in a circle")
		}
	}
	return sorted, nil
}

func readModule(name string) (*modfile.File, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	return modfile.Parse(name, text, nil)
}

func writeModule(name string, file *modfile.File) error {
	file.Cleanup()
	text, err := file.Format()
	if err != nil {
		return err
	}
	return os.WriteFile(name, text, 0o644)
}

// publish rewrites the go.mod and the go.sum of each module so that it needs the others at version, and no folder of
// the tree. It puts each module into proxy, in their order, and first builds it with what proxy has by then.
func publish(root, version string, all []goModule, proxy fileProxy) error {
	sums := make(map[string][]string) // of go.sum, by the module's path
	for _, m := range all {
		dir := filepath.Join(root, filepath.FromSlash(m.dir))
		if err := requireAt(dir, version, m.needs); err != nil {
			return err
		}
		var own []string
		for _, p := range m.needs {
			own = append(own, sums[p]...)
		}
		if err := addSums(filepath.Join(dir, "go.sum"), own); err != nil {
			return err
		}
		if _, err := run(dir, "git", "add", "go.mod", "go.sum"); err != nil && len(own) > 0 { // so that the archive has both
			return err
		}
		if _, err := runEnv(dir, proxy.env(), "go", "build", "./..."); err != nil {
			return fmt.Errorf("%s, with nothing but what is published: %w", m.path, err)
		}
		var err error
		if sums[m.path], err = proxy.add(root, m, version); err != nil {
			return err
		}
	}
	return nil
}

// requireAt makes the go.mod in dir require those modules at version, without replacements for them.
func requireAt(dir, version string, paths []string) error {
	name := filepath.Join(dir, "go.mod")
	file, err := readModule(name)
	if err != nil {
		return err
	}
	for _, p := range paths {
		if err := file.AddRequire(p, version); err != nil {
			return err
		}
	}
	for _, r := range slices.Clone(file.Replace) {
		if r.New.Version == "" { // by a folder
			if err := file.DropReplace(r.Old.Path, r.Old.Version); err != nil {
				return err
			}
		}
	}
	return writeModule(name, file)
}

// addSums adds lines to a go.sum, in their place.
func addSums(name string, lines []string) error {
	if len(lines) == 0 {
		return nil
	}
	text, err := os.ReadFile(name)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	all := append(strings.Split(strings.TrimSpace(string(text)), "\n"), lines...)
	slices.Sort(all)
	all = slices.DeleteFunc(slices.Compact(all), func(s string) bool { return s == "" })
	return os.WriteFile(name, []byte(strings.Join(all, "\n")+"\n"), 0o644)
}

// A fileProxy is a folder that the go command takes as a module proxy. dir/cache is its module cache: what is tried out
// must not stay in the user's.
type fileProxy struct{ dir string }

// env makes the go command look into the proxy, then into the user's module cache, and then where it looks anyway. The
// checksum database knows nothing of modules that are not public yet. What is built does not depend on where it lies,
// so that nothing is built twice.
func (p fileProxy) env() []string {
	said, _ := run("", "go", "env", "GOMODCACHE", "GOPROXY")
	cache, others, _ := strings.Cut(strings.TrimSpace(said), "\n")
	from := []string{"file://" + filepath.ToSlash(p.dir), "file://" + filepath.ToSlash(cache) + "/cache/download", others}
	return []string{
		"GOPROXY=" + strings.Join(from, ","), "GOMODCACHE=" + filepath.Join(p.dir, "cache"),
		"GONOSUMDB=" + rootModule, "GOFLAGS=-buildvcs=false -trimpath -modcacherw", "GOWORK=off",
	}
}

// add puts a module of the tree into the proxy. It returns the lines that go.sum has for it.
func (p fileProxy) add(root string, m goModule, version string) ([]string, error) {
	escaped, err := modmodule.EscapePath(m.path)
	if err != nil {
		return nil, err
	}
	to := filepath.Join(p.dir, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return nil, err
	}
	from, err := os.MkdirTemp("", "module")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(from)
	if err := copyTree(root, m.dir, from); err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	mv := modmodule.Version{Path: m.path, Version: version}
	if err := zip.CreateFromDir(&packed, mv, from); err != nil {
		return nil, err
	}
	mod, err := os.ReadFile(filepath.Join(from, "go.mod"))
	if err != nil {
		return nil, err
	}
	list, _ := os.ReadFile(filepath.Join(to, "list"))
	for name, text := range map[string][]byte{
		version + ".zip": packed.Bytes(), version + ".mod": mod,
		version + ".info": fmt.Appendf(nil, "{\"Version\":%q}", version), "list": fmt.Appendf(list, "%s\n", version),
	} {
		if err := os.WriteFile(filepath.Join(to, name), text, 0o644); err != nil {
			return nil, err
		}
	}
	sum, err := dirhash.HashZip(filepath.Join(to, version+".zip"), dirhash.Hash1)
	if err != nil {
		return nil, err
	}
	modSum, err := dirhash.Hash1([]string{"go.mod"}, func(string) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(mod)), nil
	})
	if err != nil {
		return nil, err
	}
	return []string{
		fmt.Sprintf("%s %s %s", m.path, version, sum),
		fmt.Sprintf("%s %s/go.mod %s", m.path, version, modSum),
	}, nil
}

// copyTree copies the files of a folder of the tree that git knows, as they are now. A folder without a licence gets
// the root's, as the go command does it with a module that it finds in a repository.
func copyTree(root, dir, to string) error {
	out, err := run(root, "git", "ls-files", "-z", "--", dir)
	if err != nil {
		return err
	}
	names := strings.Split(strings.TrimRight(out, "\x00"), "\x00")
	for _, name := range names {
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		if err := copyFile(filepath.Join(root, name), filepath.Join(to, rel)); err != nil {
			return err
		}
	}
	if _, err := os.Stat(filepath.Join(to, "LICENSE")); os.IsNotExist(err) {
		return copyFile(filepath.Join(root, "LICENSE"), filepath.Join(to, "LICENSE"))
	}
	return nil
}

func copyFile(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, text, info.Mode())
}

// run runs a command in dir, and returns what it has written. An error says all that it has written.
func run(dir, name string, args ...string) (string, error) { return runEnv(dir, nil, name, args...) }

func runEnv(dir string, env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var said, failed bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &failed
	if err := cmd.Run(); err != nil {
		return said.String(), fmt.Errorf("%s %s: %w\n%s%s", name, strings.Join(args, " "), err, said.String(), failed.String())
	}
	return said.String(), nil
}

// updateRefs changes references of a repository, all or none, by the commands of git update-ref.
func updateRefs(root, commands string) error {
	cmd := exec.Command("git", "update-ref", "--stdin")
	cmd.Dir, cmd.Stdin = root, strings.NewReader(commands)
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git update-ref: %w: %s", err, said)
	}
	return nil
}
