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
)

// A tree is a copy of the module, and a directory for what is compiled there.
type tree struct{ dir, bin string }

// plant copies the files of the module that git has, or would have, n times. What it returns removes the copies, also if it has
// failed.
func plant(ctx context.Context, root string, n int) (trees []tree, clean func(), err error) {
	tmp, err := os.MkdirTemp("", "redburst-mutants-")
	if err != nil {
		return nil, func() {}, err
	}
	clean = func() { os.RemoveAll(tmp) }
	tracked, err := output(command(ctx, root, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"))
	if err != nil {
		return nil, clean, err
	}
	for i := range n {
		t := tree{filepath.Join(tmp, fmt.Sprint(i), "tree"), filepath.Join(tmp, fmt.Sprint(i))}
		for name := range strings.SplitSeq(strings.TrimRight(tracked, "\x00"), "\x00") {
			if err := copyFile(filepath.Join(t.dir, name), filepath.Join(root, name)); err != nil {
				return nil, clean, err
			}
		}
		trees = append(trees, t)
	}
	return trees, clean, nil
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

// apply applies a patch. An option is -R, which takes it out again.
func (t tree) apply(ctx context.Context, patch string, options ...string) error {
	args := append(append([]string{"apply"}, options...), patch)
	_, err := output(command(ctx, t.dir, "git", args...))
	return err
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
