package clock

import (
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Now goes on while the machine is suspended. A test cannot suspend it; but in a time
// namespace the clock that counts suspended time can be an hour ahead of the one that does
// not, as it is after an hour of suspension. This test runs itself again in one.
func TestNowCountsSuspendedTime(t *testing.T) {
	t.Parallel()
	const suspended, inside = time.Hour, "REDBURST_TEST_IN_A_TIME_NAMESPACE"
	read := func(clock int32) time.Duration {
		var at unix.Timespec
		require.NoError(t, unix.ClockGettime(clock, &at))
		return time.Duration(at.Nano())
	}
	before := read(unix.CLOCK_BOOTTIME)
	now := Now()
	require.GreaterOrEqual(t, now, before-mostTaken)
	require.LessOrEqual(t, now, read(unix.CLOCK_BOOTTIME))
	if os.Getenv(inside) != "" {
		require.Greater(t, before, read(unix.CLOCK_MONOTONIC)+suspended/2, "the clocks must differ in here")
		return
	}

	unshare := func(args ...string) *exec.Cmd {
		return exec.Command("unshare", append([]string{"--time", "--boottime", strconv.Itoa(int(suspended.Seconds())), "--fork"}, args...)...)
	}
	ci, _ := strconv.ParseBool(os.Getenv("CI"))
	switch out, err := unshare("true").CombinedOutput(); {
	case errors.Is(err, exec.ErrNotFound) && ci:
		t.Fatal(err)
	case err != nil: // it takes a recent kernel, and a privilege
		require.EqualValues(t, unix.CLOCK_BOOTTIME, clockID)
		t.Skipf("only the clock's name was checked, as there is no time namespace to be had: %v\n%s", err, out)
	}
	again := unshare(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=1m")
	again.Env = append(os.Environ(), inside+"=yes")
	out, err := again.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// fakeClocks are Go's clocks and the kernel's boot time, of a machine that a test suspends and whose wall clock it sets.
type fakeClocks struct {
	bootClock
	monotonic, suspended, set time.Duration
	calls                     int    // of bootTime
	interrupt                 func() // by another process, once bootTime was read
}

func (f *fakeClocks) read() reading {
	f.monotonic += 50 * time.Nanosecond
	return reading{f.monotonic, f.suspended + f.set}
}

func (f *fakeClocks) bootTime() time.Duration {
	const lead = time.Minute // the process has started by then
	f.calls++
	f.monotonic += 300 * time.Nanosecond
	now := lead + f.monotonic + f.suspended
	if f.interrupt != nil {
		f.interrupt()
	}
	return now
}

func (f *fakeClocks) truth() time.Duration { return time.Minute + f.monotonic + f.suspended }

func (f *fakeClocks) now() time.Duration {
	if r := f.read(); f.knows(r) {
		return f.at(r)
	}
	return f.measure(f.read, f.bootTime)
}

func (f *fakeClocks) requireRight(t *testing.T) {
	t.Helper()
	now := f.now()
	require.LessOrEqual(t, now, f.truth())
	require.GreaterOrEqual(t, now, f.truth()-mostTaken)
}

func TestNowAsksTheKernelNowAndThen(t *testing.T) {
	t.Parallel()
	f := new(fakeClocks)
	for range 1000 {
		f.requireRight(t)
	}
	require.Equal(t, 1, f.calls)
	f.monotonic += measureAfter
	f.requireRight(t)
	require.Equal(t, 2, f.calls)
}

func TestNowSeesASuspensionAtOnce(t *testing.T) {
	t.Parallel()
	f := new(fakeClocks)
	f.requireRight(t)
	for range 3 {
		f.suspended += 2 * time.Millisecond
		f.requireRight(t)
	}
}

func TestNowDoesNotFollowTheWallClock(t *testing.T) {
	t.Parallel()
	f := new(fakeClocks)
	f.requireRight(t)
	for _, by := range []time.Duration{time.Hour, -2 * time.Hour, time.Millisecond} {
		f.set += by
		f.requireRight(t)
	}
}

// The wall clock says nothing of this suspension.
func TestNowSeesASuspensionThatTheWallClockHides(t *testing.T) {
	t.Parallel()
	f := new(fakeClocks)
	f.requireRight(t)
	f.suspended += time.Hour
	f.set -= time.Hour
	f.monotonic += measureAfter
	f.requireRight(t)
}

func TestNowIsRightWhateverComesBetweenItsReadings(t *testing.T) {
	t.Parallel()
	for name, happens := range map[string]func(f *fakeClocks){
		"the machine is suspended":             func(f *fakeClocks) { f.suspended += time.Hour },
		"another process has the processor":    func(f *fakeClocks) { f.monotonic += time.Second },
		"the wall clock is set":                func(f *fakeClocks) { f.set += time.Second },
		"the wall clock hides that it stopped": func(f *fakeClocks) { f.monotonic += time.Second; f.set -= time.Second },
	} {
		t.Run(name, func(t *testing.T) {
			f := new(fakeClocks)
			f.interrupt = func() {
				f.interrupt = nil
				happens(f)
			}
			f.requireRight(t)
			f.requireRight(t)
		})
	}
}

func TestNowNeverGoesBack(t *testing.T) {
	t.Parallel()
	f := new(fakeClocks)
	f.interrupt = func() { // each measurement is wrong, each by another time
		f.monotonic += rand.N(time.Millisecond)
	}
	last := time.Duration(0)
	for i := range 10_000 {
		if i%100 == 0 {
			f.suspended += rand.N(time.Millisecond)
		}
		now := f.now()
		require.Greater(t, now, last)
		require.LessOrEqual(t, now, f.truth())
		last = now
	}
}

func TestNowNeverGoesBackForManyGoroutines(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var last time.Duration
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				mu.Lock()
				before := last
				mu.Unlock()
				now := Now()
				if now < before {
					t.Errorf("%v after %v", now, before)
					return
				}
				mu.Lock()
				last = max(last, now)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// In a bubble Go's clocks stand still, and those on the masters do not.
func TestNowIsRealInABubble(t *testing.T) {
	t.Parallel()
	read := func() time.Duration {
		var at unix.Timespec
		require.NoError(t, unix.ClockGettime(int32(clockID), &at))
		return time.Duration(at.Nano())
	}
	synctest.Test(t, func(*testing.T) {
		for range 3 {
			before := read()
			now := Now()
			require.GreaterOrEqual(t, now, before)
			require.LessOrEqual(t, now, read())
			time.Sleep(time.Hour)
		}
	})
	before := read()
	now := Now()
	require.GreaterOrEqual(t, now, before-mostTaken)
	require.LessOrEqual(t, now, read())
}

// In a bubble Go's clocks can be anywhere, also in our time. What they say there says nothing to anybody else.
func TestNowIsRealInABubbleOfAnyYear(t *testing.T) {
	read := func() time.Duration {
		var at unix.Timespec
		require.NoError(t, unix.ClockGettime(int32(clockID), &at))
		return time.Duration(at.Nano())
	}
	requireReal := func() {
		t.Helper()
		before := read()
		now := Now()
		require.GreaterOrEqual(t, now, before-mostTaken)
		require.LessOrEqual(t, now, read())
	}
	const year = 365 * 24 * time.Hour
	for _, d := range []time.Duration{time.Until(started.Add(time.Second)) + started.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)), 30 * year, 200 * year} {
		synctest.Test(t, func(*testing.T) {
			time.Sleep(d)
			requireReal()
		})
		requireReal()
		require.LessOrEqual(t, boot.until.Load(), int64(time.Since(started)+measureAfter))
	}
}
