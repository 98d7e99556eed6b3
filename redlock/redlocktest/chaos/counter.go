//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// A counter is what holders increment. They read it, and write the next count.
type counter interface {
	read() (int, error)
	// increment writes n+1 after n was read, and reports whether it was allowed to.
	increment(n int) (bool, error)
}

// A fileCounter is a directory with one file, whose name is the count. To increment
// it is to rename the file from the count that was read to the next one. That
// fails if another has done so since: the writer was overtaken. And it is atomic,
// whenever a writer dies.
type fileCounter struct{ dir string }

func newFileCounter(dir string) (fileCounter, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fileCounter{}, err
	}
	return fileCounter{dir}, os.WriteFile(filepath.Join(dir, "0"), nil, 0o600)
}

func (c fileCounter) read() (int, error) {
	for {
		files, err := os.ReadDir(c.dir)
		if err != nil {
			return 0, err
		}
		if len(files) == 1 {
			return strconv.Atoi(files[0].Name())
		}
		// It was renamed while the directory was being read.
		if len(files) > 2 {
			return 0, fmt.Errorf("%s has %d files", c.dir, len(files))
		}
	}
}

// increment writes n+1, and reports whether the count was n.
func (c fileCounter) increment(n int) (bool, error) {
	err := os.Rename(c.file(n), c.file(n+1))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func (c fileCounter) file(n int) string { return filepath.Join(c.dir, strconv.Itoa(n)) }
