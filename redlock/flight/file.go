package flight

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/redburst/redburst/redlock/internal/record"
)

// A file is one whose bytes are those of a ring, so that it has the events even if the process is killed. Where there is
// mmap(2), the ring's memory is the file's. Elsewhere each event is written by one call.
type file struct {
	*os.File
	memory []byte
	mapped bool
	err    error // how a write failed
}

// wrote is called when the ring has changed n bytes.
func (f *file) wrote(at, n int) {
	if f == nil || f.mapped || f.err != nil {
		return
	}
	_, f.err = f.WriteAt(f.memory[at:at+n], int64(at))
}

// errForeign means that a file is no record, and so is not overwritten.
var errForeign = errors.New("it is there, and is no flight record: it is not overwritten")

// openFile makes a file of so many bytes. A record that is there is renamed: its name then ends in .old. In the name,
// %p is the process's id.
func openFile(name string, size int) (*file, error) {
	name = strings.ReplaceAll(name, "%p", strconv.Itoa(os.Getpid()))
	for range 10 { // another process may make it, or rename it, meanwhile
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			if err = putAside(name); err != nil {
				return nil, &fs.PathError{Op: "record to", Path: name, Err: err}
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		out, ours := &file{File: f}, false
		if err = lockFile(f); err == nil {
			if ours, err = hasName(f, name); ours {
				err = out.fill(size)
			}
		}
		if ours && err == nil {
			return out, nil
		}
		f.Close()
		if ours {
			os.Remove(name)
		}
		if err != nil {
			return nil, &fs.PathError{Op: "record to", Path: name, Err: err}
		}
	}
	return nil, fmt.Errorf("record to %s: another process makes it at the same time", name)
}

// hasName reports whether a file has that name. Another process may have renamed it before we had the lock.
func hasName(f *os.File, name string) (bool, error) {
	is, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(is, named), err
}

// putAside renames the record of a process that has ended. It keeps the lock until then, so that the record of a process
// that has begun meanwhile is not renamed.
func putAside(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, errForeign)
	}
	if err := isRecord(f); err != nil {
		return err
	}
	if err := lockFile(f); err != nil {
		return err
	}
	if has, err := hasName(f, name); !has {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	old := name + ".old"
	if info.Size() > 0 {
		if err := mayReplace(old); err != nil {
			return fmt.Errorf("the former record cannot be put aside as %s: %w", filepath.Base(old), err)
		}
	}
	if !mapped {
		f.Close() // nothing is locked, and Windows would refuse to rename it
	}
	if info.Size() == 0 { // of a process that has just made it, and finds that it is gone
		return os.Remove(name)
	}
	return os.Rename(name, old)
}

// isRecord returns errForeign for a file that is no record. Zeros are one: it was killed before it had a head, or the power
// was lost before that was on the disk.
func isRecord(f *os.File) error {
	head := make([]byte, len(record.Magic))
	n, err := io.ReadFull(f, head)
	switch {
	case err != nil && err != io.EOF && err != io.ErrUnexpectedEOF:
		return err
	case n > 0 && string(head) != record.Magic && bytes.ContainsFunc(head, func(c rune) bool { return c != 0 }):
		return errForeign
	}
	return nil
}

// mayReplace returns an error if there is a file of that name that is no record.
func mayReplace(name string) error {
	info, err := os.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errForeign
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	return isRecord(f)
}

// fill gives the file its size and the ring its memory.
func (f *file) fill(size int) (err error) {
	if err = f.Truncate(int64(size)); err != nil {
		return err
	}
	if f.memory, err = mapFile(f.File, size); err == nil {
		f.mapped = true
		return nil
	}
	if !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	f.memory = make([]byte, size)
	return nil
}

func (f *file) close() error {
	if f.mapped {
		unmapFile(f.memory)
	}
	unlockFile(f.File)
	return f.File.Close()
}
