package flight

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
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
	for range 3 { // another process may make it, or rename it, meanwhile
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
		out := &file{File: f}
		if err = lockFile(f); err == nil {
			err = out.fill(size)
		}
		if err != nil {
			f.Close()
			os.Remove(name)
			return nil, &fs.PathError{Op: "record to", Path: name, Err: err}
		}
		return out, nil
	}
	return nil, fmt.Errorf("record to %s: another process makes it at the same time", name)
}

// putAside renames the record of a process that has ended.
func putAside(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, errForeign)
	}
	head := make([]byte, len(magic))
	if n, err := io.ReadFull(f, head); n > 0 && string(head) != magic {
		return errForeign
	} else if err != nil && n > 0 {
		return err
	}
	if err := lockFile(f); err != nil {
		return err
	}
	f.Close() // before the rename: Windows would refuse that
	return os.Rename(name, name+".old")
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
	return f.File.Close()
}
