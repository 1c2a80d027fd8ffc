/* SPDX-License-Identifier: MIT */
/* closer - what takes long to free is freed by another thread, and whoever wants the memory sees that it still is. */
#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/closer.h"
#include "tests/tap.h"

#define USER 1000
#define SOCKETS 20
#define THREADS_EACH 8 /* of a user */
#define LINGER_S 1

struct slow {
	atomic_bool go, done;
	pthread_t thread;
};

static void free_slowly(void *what)
{
	struct slow *slow = what;

	slow->thread = pthread_self();
	while (!atomic_load(&slow->go))
		usleep(1000);
	atomic_store(&slow->done, true);
}

/* A TCP socket whose last close waits: the other end, which is left open, reads nothing. */
static int lingering(int listener, const struct sockaddr_in *address, int *ret_other)
{
	const struct linger linger = {.l_onoff = 1, .l_linger = LINGER_S};
	const int sock = socket(AF_INET, SOCK_STREAM, 0);
	static char bytes[1 << 16];

	require(sock >= 0 && connect(sock, (const struct sockaddr *)address, sizeof *address) == 0, "connected");
	*ret_other = accept(listener, NULL, NULL);
	require(*ret_other >= 0 && setsockopt(sock, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0, "lingers");
	while (send(sock, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
		;
	return sock;
}

static int threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	int n = -2; /* . and .. */

	require(tasks, "its threads");
	while (readdir(tasks))
		n++;
	closedir(tasks);
	return n;
}

/* More of one user than have a thread at a time, and one of another. */
static void test_threads(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof address;
	const int listener = socket(AF_INET, SOCK_STREAM, 0), before = threads();
	int others[SOCKETS + 1], socks[SOCKETS + 1];
	uint64_t end = 0;

	require(listener >= 0 && bind(listener, (struct sockaddr *)&address, size) == 0 &&
			listen(listener, SOCKETS + 1) == 0 &&
			getsockname(listener, (struct sockaddr *)&address, &size) == 0,
		"a place to connect to");
	for (int i = 0; i <= SOCKETS; i++)
		socks[i] = lingering(listener, &address, &others[i]);
	for (int i = 0; i <= SOCKETS; i++)
		closer_take_socket(socks[i], i < SOCKETS ? USER : USER + 1);
	ok(!closer_has_room(USER) && closer_has_room(USER + 1), "a user of whom many wait is full, another is not");
	ok(threads() <= before + THREADS_EACH + 1, "%d threads for %d sockets", threads() - before, SOCKETS + 1);
	while (!closer_has_room(USER) && tap_wait(&end))
		;
	ok(closer_has_room(USER), "as the others end their wait there is room again");
	closer_settle();
	for (int i = 0; i <= SOCKETS; i++)
		close(others[i]);
	for (end = 0; threads() > before && tap_wait(&end);)
		;
	ok(threads() == before, "all threads have ended");
	close(listener);
}

int main(void)
{
	struct slow first = {0}, second = {0};
	uint64_t end = 0;

	ok(!closer_is_freeing(), "nothing is being freed");
	closer_free(free_slowly, &first);
	closer_free(free_slowly, &second);
	ok(!atomic_load(&first.done) && closer_is_freeing(), "what takes long is left to others");
	atomic_store(&second.go, true);
	while (!atomic_load(&second.done) && tap_wait(&end))
		;
	ok(atomic_load(&second.done) && closer_is_freeing(), "the second does not wait for the first");
	closer_settle();
	ok(!atomic_load(&first.done), "the end waits for a second, not for ever");
	atomic_store(&first.go, true);
	while (closer_is_freeing() && tap_wait(&end))
		;
	ok(!closer_is_freeing() && atomic_load(&first.done), "then all is free");
	ok(!pthread_equal(first.thread, pthread_self()) && !pthread_equal(second.thread, pthread_self()),
	   "by other threads");
	test_threads();
	return tap_done();
}
