package redlocktest

import (
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

//go:embed preload
var preloadSources embed.FS

// compiler returns the path of a C compiler, for what is preloaded.
func compiler() (string, error) {
	if runtime.GOOS != "linux" {
		return "", errors.New("redlocktest: masters have clocks and disks of their own on Linux only")
	}
	names := []string{"cc", "gcc", "clang"}
	if name := os.Getenv("CC"); name != "" {
		names = []string{name}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("redlocktest: no C compiler on the PATH, which masters with clocks or disks of their own need: " +
		"install one (apt-get install gcc libc6-dev)")
}

// libraries are what is preloaded into servers; "" is what they do without.
type libraries struct{ clock, disk string }

func compileLibraries(dir string, o options) (l libraries, err error) {
	if o.clocks {
		l.clock, err = compile(dir, "clock")
	}
	if err == nil && o.disks {
		l.disk, err = compile(dir, "disk")
	}
	return l, err
}

// compile makes the library with this name, in dir.
func compile(dir, name string) (library string, err error) {
	cc, err := compiler()
	if err != nil {
		return "", err
	}
	for _, file := range []string{name + ".c", "shared.h"} {
		source, err := preloadSources.ReadFile("preload/" + file)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(dir, file), source, 0o600); err != nil {
			return "", err
		}
	}
	source, library := filepath.Join(dir, name+".c"), filepath.Join(dir, name+".so")
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O2", "-o", library, source).CombinedOutput(); err != nil {
		return "", fmt.Errorf("redlocktest: cannot compile the %s of masters: %w\n%s", name, err, out)
	}
	return library, nil
}

// loadedAt is where the preloaded library writes that it is there. See preload/shared.h.
const loadedAt = 0

// A preload is a library that is preloaded into one server.
type preload struct {
	name    string
	library string
	path    string // of the file that both map or write
}

// newPreload makes the file, of size zero bytes, in dir.
func newPreload(name, library, dir string, size int) (preload, error) {
	p := preload{name, library, filepath.Join(dir, name)}
	return p, os.WriteFile(p.path, make([]byte, size), 0o600)
}

// preloadEnv is what makes a server load them.
func preloadEnv(preloads []preload) (env []string) {
	if len(preloads) == 0 {
		return nil
	}
	var paths []string
	for _, p := range preloads {
		paths = append(paths, p.library)
		env = append(env, "REDLOCKTEST_"+strings.ToUpper(p.name)+"="+p.path)
	}
	return append(env, "LD_PRELOAD="+strings.Join(paths, ":"))
}

// used is nil if a server has loaded the library.
func (p preload) used() error {
	b, err := os.ReadFile(p.path)
	if err == nil && binary.NativeEndian.Uint64(b[loadedAt:]) == 0 {
		err = fmt.Errorf("it does not load the library for a %s of its own: is it linked statically?", p.name)
	}
	return err
}

// A write is some numbers, and where they belong.
type write struct {
	at      int64
	numbers []int64
}

// tell writes to the file, in this order.
func (p preload) tell(writes ...write) error {
	file, err := os.OpenFile(p.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	for _, w := range writes {
		var b []byte
		for _, n := range w.numbers {
			b = binary.NativeEndian.AppendUint64(b, uint64(n))
		}
		if _, err := file.WriteAt(b, w.at); err != nil {
			return err
		}
	}
	return nil
}
