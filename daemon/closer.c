/* SPDX-License-Identifier: MIT */
#include "daemon/closer.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fdmsg.h"
#include "base/log.h"
#include "base/memfd.h"
#include "base/util.h"

/* Of each, FDMSG_FDS_ANY descriptors at most. */
#define WAITING_MAX 16
#define SOCKETS_MAX 64
#define STACK_BYTES (64u << 10)

struct batch {
	_Atomic uint32_t *count;
	size_t n;
	int fds[];
};

static _Atomic uint32_t waiting, sockets;

static void *run(void *arg)
{
	struct batch *batch = arg;
	_Atomic uint32_t *count = batch->count;

	fdmsg_close_fds(batch->fds, batch->n);
	free(batch);
	atomic_fetch_sub(count, 1);
	return NULL;
}

static int start(struct batch *batch)
{
	pthread_attr_t attr;
	pthread_t thread;
	sigset_t all;
	int r;

	sigfillset(&all);
	pthread_attr_init(&attr);
	pthread_attr_setsigmask_np(&attr, &all);
	pthread_attr_setstacksize(&attr, MAX((size_t)PTHREAD_STACK_MIN, (size_t)STACK_BYTES));
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	r = -pthread_create(&thread, &attr, run, batch);
	pthread_attr_destroy(&attr);
	return r;
}

/* Where there is no thread for them they stay open: that is less than a reactor that stands still. */
static void hand_over(const int *fds, size_t n, _Atomic uint32_t *count)
{
	struct batch *batch = malloc(sizeof *batch + n * sizeof *fds);
	int r = batch ? 0 : -ENOMEM;

	atomic_fetch_add(count, 1);
	if (batch) {
		batch->count = count;
		batch->n = n;
		memcpy(batch->fds, fds, n * sizeof *fds);
		r = start(batch);
	}
	if (r < 0) {
		log_warning("%zu descriptors of a client stay open: no thread to close them: %s", n, strerror(-r));
		atomic_fetch_sub(count, 1);
		free(batch);
	}
}

bool closer_has_room(void)
{
	return atomic_load(&waiting) < WAITING_MAX;
}

void closer_take(const int *fds, size_t n)
{
	int slow[FDMSG_FDS_ANY];
	size_t n_slow = 0;

	for (size_t i = 0; i < n; i++)
		if (fds[i] >= 0 && memfd_has_seals(fds[i]))
			close_fd(fds[i]);
		else if (fds[i] >= 0)
			slow[n_slow++] = fds[i];
	if (n_slow > 0)
		hand_over(slow, n_slow, &waiting);
}

void closer_take_socket(int sock)
{
	if (atomic_load(&sockets) < SOCKETS_MAX)
		hand_over(&sock, 1, &sockets);
	else
		close_fd(sock);
}
