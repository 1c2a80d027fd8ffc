/* SPDX-License-Identifier: MIT */
/*
 * load - one model on its way from disk to memory, on a thread of its own.
 *
 * Law: one load at a time. The thread writes only the progress words and, at its end, the result; the reactor reads the
 * result after `finished` is seen. Cancelling is asked for, never forced: the thread ends at its next look.
 */
#ifndef DAEMON_LOAD_H
#define DAEMON_LOAD_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/loop.h"
#include "daemon/store.h"

/* What the thread does with a model that it has read, before the load is finished. */
struct load_after {
	void (*run)(const struct resident *model, void *userdata);
	void *userdata;
};

struct load {
	pthread_t thread;
	char *path, *name;
	struct store_params params;
	struct load_after after;
	struct loop *loop;
	_Atomic uint64_t done_bytes, total_bytes, elapsed_ns; /* elapsed: since the reading began */
	_Atomic uint64_t moved;                               /* as of struct store_params */
	uint64_t prepared_ns;                                 /* the thread's: until then memory was prefaulted */
	_Atomic bool cancelled, finished;
	struct resident *result; /* valid once finished with code 0 */
	int code;
	struct moe_error error;
};

/* `params`' pointers but path and name must outlive the load. NULL `after`: nothing. */
int load_start(struct load **ret, const struct store_params *params, const struct load_after *after, struct loop *loop,
	       struct moe_error *err);

/* Of a load that has finished: 0, or the error and its text. One that was cancelled after its last look, too. */
int load_code(const struct load *load, struct moe_error *err);

/* Of what may not be read: adds to *err whose rights were asked for, which are not those of whoever typed it. */
void load_say_who(int code, struct moe_error *err);

/* Waits for the thread; frees the result if nobody took it. Takes NULL, returns NULL. */
struct load *load_free(struct load *load);

/* Estimated nanoseconds to go, from the mean rate so far; 0 while unknown. */
uint64_t load_eta_ns(const struct load *load);

#endif
