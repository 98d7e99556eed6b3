// Preloaded into a redis-server, this lets its disk fail: what it has written may never reach the disk,
// and fsync and fdatasync say so. Redis calls them to persist its append-only file.
//
// The file that REDLOCKTEST_DISK names says when. See disks.go, which writes it.
#define _GNU_SOURCE
#include "shared.h"
#include <errno.h>
#include <sys/syscall.h>

static struct disk {
	int64_t loaded;
	int64_t failing; // 1 while nothing reaches the disk
} *shared;

__attribute__((constructor)) static void load(void) { shared = share("REDLOCKTEST_DISK", sizeof *shared); }

static int sync_by(long call, int fd) {
	if (shared && __atomic_load_n(&shared->failing, __ATOMIC_ACQUIRE)) {
		errno = EIO;
		return -1;
	}
	return syscall(call, fd);
}

int fsync(int fd) { return sync_by(SYS_fsync, fd); }

int fdatasync(int fd) { return sync_by(SYS_fdatasync, fd); }
