package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// A tree is a copy of the module, and a directory for what is compiled there.
type tree struct{ dir, bin string }

// plant copies the files of the module n times. What it returns removes the copies, also if it has failed.
func plant(root string, files []string, n int) (trees []tree, clean func(), err error) {
	tmp, err := os.MkdirTemp("", "redburst-mutants-")
	if err != nil {
		return nil, func() {}, err
	}
	clean = func() { os.RemoveAll(tmp) }
	for i := range n {
		t := tree{filepath.Join(tmp, fmt.Sprint(i), "tree"), filepath.Join(tmp, fmt.Sprint(i))}
		for _, name := range files {
			if err := copyFile(filepath.Join(t.dir, name), filepath.Join(root, name)); err != nil {
				return nil, clean, err
			}
		}
		trees = append(trees, t)
	}
	return trees, clean, nil
}

// tracked returns the paths of the files that git has, or would have.
func tracked(ctx context.Context, root string) ([]string, error) {
	out, err := output(command(ctx, root, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"))
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimRight(out, "\x00"), "\x00"), nil
}

// read returns the sources among these files: what is no test, no data of tests and no mutant.
func read(root string, files []string) (sources, error) {
	all := sources{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".mutant") || strings.Contains(name, "testdata/") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was removed, and git was not told
		}
		if err != nil {
			return nil, err
		}
		if utf8.Valid(text) {
			all[name] = string(text)
		}
	}
	return all, nil
}

func copyFile(to, from string) error {
	info, err := os.Stat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was removed, and git was not told
	}
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
	return os.WriteFile(to, text, info.Mode().Perm())
}

// write writes files of the tree anew.
func (t tree) write(files sources) error {
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(t.dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// command prepares a program that is asked to end when ctx ends. It knows nothing of a
// repository around: of git's variables, which a hook has, and of one above the copy.
func command(ctx context.Context, dir, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "GIT_") })
	cmd.Env = append(cmd.Env, "CI=true", "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// output runs it. Its error has what the program said.
func output(cmd *exec.Cmd) (string, error) {
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(said.String()))
	}
	return string(out), err
}
