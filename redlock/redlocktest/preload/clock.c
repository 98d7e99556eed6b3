// Preloaded into a redis-server, this shifts its wall clock: what gettimeofday, time and
// clock_gettime(CLOCK_REALTIME) say. By it Redis expires keys, and answers TIME. The other clocks
// are as they were: Redis measures by the monotonic one how long its own work takes. So are sleeps
// and timers.
//
// The file that REDLOCKTEST_CLOCK names says how. See clocks.go, which writes it.
#define _GNU_SOURCE
#include "shared.h"
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

#define SETTINGS 64

struct setting {
	int64_t since;  // nanoseconds since 1970, by the real clock
	int64_t offset; // nanoseconds, at that moment
	int64_t ppm;    // what it gains from then on, in millionths
};

static struct clock {
	int64_t loaded;
	int64_t current; // the setting that counts; it is complete before it is named here
	struct setting settings[SETTINGS];
} *shared;

__attribute__((constructor)) static void load(void) { shared = share("REDLOCKTEST_CLOCK", sizeof *shared); }

// A system call, and not the libc's function: to look that up could allocate, and an allocator that
// is not set up yet asks for the time.
static int64_t wall(clockid_t id) {
	struct timespec t;
	syscall(SYS_clock_gettime, id, &t);
	int64_t now = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
	if (!shared)
		return now;
	const struct setting *s = &shared->settings[__atomic_load_n(&shared->current, __ATOMIC_ACQUIRE) % SETTINGS];
	return now + s->offset + (now - s->since) / 1000 * s->ppm / 1000;
}

int clock_gettime(clockid_t id, struct timespec *t) {
	if (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)
		return syscall(SYS_clock_gettime, id, t);
	int64_t now = wall(id);
	t->tv_sec = now / 1000000000;
	t->tv_nsec = now % 1000000000;
	return 0;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
	(void)zone;
	int64_t now = wall(CLOCK_REALTIME);
	t->tv_sec = now / 1000000000;
	t->tv_usec = now % 1000000000 / 1000;
	return 0;
}

time_t time(time_t *t) {
	time_t now = wall(CLOCK_REALTIME) / 1000000000;
	if (t)
		*t = now;
	return now;
}
