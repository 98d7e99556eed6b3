// What a library that is preloaded into a redis-server shares with the test that started it: a file,
// which both map or write. The environment variable with this name says which. It begins with a number
// that is 1 when the library is there. See preload.go.
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

// share maps the file, so that a change counts at once. It returns NULL if there is none.
static void *share(const char *variable, size_t size) {
	const char *path = getenv(variable);
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
	if (fd < 0)
		return NULL;
	void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (map == MAP_FAILED)
		return NULL;
	__atomic_store_n((int64_t *)map, 1, __ATOMIC_RELEASE);
	return map;
}
