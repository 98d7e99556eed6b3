package clock

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"testing"
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
	require.GreaterOrEqual(t, now, before)
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
