package redlocktest

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

//go:embed preload/clock.c
var clockSource string

// The layout of the file that tells the preloaded library what to say: two numbers, and
// then the settings, of which the first number names one. See preload/clock.c.
const (
	settings     = 64
	settingBytes = 3 * 8
	loadedAt     = 8
	settingsAt   = 16
)

// A clock is a server's wall clock.
type clock struct {
	library string
	path    string // of the file that both map or write

	mu      sync.Mutex
	current int64
	since   int64 // nanoseconds since 1970: when the current setting began
	offset  int64 // ... and by how many nanoseconds it was ahead then
	ppm     int64 // ... and what it gains, in millionths
}

// compiler returns the path of a C compiler.
func compiler() (string, error) {
	names := []string{"cc", "gcc", "clang"}
	if name := os.Getenv("CC"); name != "" {
		names = []string{name}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errors.New("redlocktest: no C compiler on the PATH, which masters with clocks of their own need: " +
		"install one (apt-get install gcc libc6-dev)")
}

// compileClock makes the library that is preloaded, in dir.
func compileClock(dir string) (library string, err error) {
	cc, err := compiler()
	if err != nil {
		return "", err
	}
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, []byte(clockSource), 0o600); err != nil {
		return "", err
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O2", "-o", library, source).CombinedOutput(); err != nil {
		return "", fmt.Errorf("redlocktest: cannot compile the clock of masters: %w\n%s", err, out)
	}
	return library, nil
}

// newClock makes a clock that is right, whose file is in dir.
func newClock(library, dir string) (*clock, error) {
	c := &clock{library: library, path: filepath.Join(dir, "clock")}
	return c, os.WriteFile(c.path, make([]byte, settingsAt+settings*settingBytes), 0o600)
}

// env is what makes a server use the clock.
func (c *clock) env() []string {
	return []string{"LD_PRELOAD=" + c.library, "REDLOCKTEST_CLOCK=" + c.path}
}

// used is nil if a server has loaded the library, or needs none.
func (c *clock) used() error {
	if c == nil {
		return nil
	}
	b, err := os.ReadFile(c.path)
	if err == nil && binary.NativeEndian.Uint64(b[loadedAt:]) == 0 {
		err = errors.New("it does not load the library that shifts its clock: is it linked statically?")
	}
	return err
}

func (c *clock) jump(d time.Duration) error {
	return c.set(func() { c.offset += int64(d) })
}

func (c *clock) drift(share float64) error {
	if !(share > -1 && share <= 1000) {
		return fmt.Errorf("a share of %v: it must be above -1, and 1000 at most", share)
	}
	return c.set(func() { c.ppm = int64(math.Round(share * 1e6)) })
}

// set changes the setting. What the clock has gained until now remains. The new setting is
// written before it is named. So a server that reads the clock meanwhile sees one of both.
func (c *clock) set(change func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	file, err := os.OpenFile(c.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	now := time.Now().UnixNano()
	c.offset += (now - c.since) / 1000 * c.ppm / 1000
	c.since = now
	change()
	c.current++
	var b []byte
	for _, n := range []int64{c.since, c.offset, c.ppm} {
		b = binary.NativeEndian.AppendUint64(b, uint64(n))
	}
	if _, err := file.WriteAt(b, settingsAt+c.current%settings*settingBytes); err != nil {
		return err
	}
	_, err = file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(c.current)), 0)
	return err
}
