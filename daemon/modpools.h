/* SPDX-License-Identifier: MIT */
/*
 * modpools - the pools of loaded models, as they lie with the kernel module (docs/KERNEL-MODULE.md).
 *
 * Law: the module is one more place where memory outlives the daemon, never the only way to run. Sessions and journals
 * are not memory of huge pages: they outlive it with a keeper only (handover.h), which comes first; the module is asked
 * for the models that no keeper brought. A model is kept whole or not at all: each of its pool files is adopted with
 * its epoch, and its manifest and books lie with the first. What is found and cannot be used is released, with a word
 * why, once it is known that this daemon starts. One daemon at a time: who watches the device (WATCH) is the one.
 *
 * The reactor's alone, but for modpools_give(): the module pins each page while ADOPT is called, which takes as long as
 * a large model has pages, so the load's thread calls it.
 */
#ifndef DAEMON_MODPOOLS_H
#define DAEMON_MODPOOLS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/host.h"
#include "daemon/loop.h"
#include "daemon/registry.h"

enum modpools_want { MODPOOLS_AUTO, MODPOOLS_YES, MODPOOLS_NO }; /* in the order of the setting's words */

enum modpools_state {
	MODPOOLS_OFF,        /* Module=no */
	MODPOOLS_ABSENT,     /* there is no device */
	MODPOOLS_REFUSED,    /* it is there, and this user may not */
	MODPOOLS_UNSUITABLE, /* another ABI, or it cannot do what is needed */
	MODPOOLS_BUSY,       /* another daemon uses it */
	MODPOOLS_USED
};

/* The system's, or a test's. Both return -1 and set errno as open(2) and ioctl(2). */
struct modpools_ops {
	int (*open)(const char *path, int flags);
	int (*command)(int fd, unsigned long command, void *arg);
};

/* What lies with each pool; behind that of pool 0 the manifest and the books. */
struct modpools_blob {
	uint64_t magic;
	uint32_t version, index, n_pools, reserved;
	uint64_t manifest_bytes, books_bytes;
	uint8_t digest[MOE_DIGEST_BYTES];
};
#define MODPOOLS_MAGIC 0x3170646f6d656f6dull /* "moemodp1" */
#define MODPOOLS_VERSION 1

struct modpools_held {
	uint64_t id, epoch;
	bool unwanted; /* to be released as soon as this daemon is known to start */
};

struct modpools {
	const struct modpools_ops *ops;
	struct source source; /* the device; fd -1: not in use */
	struct loop *loop;    /* that watches it, or NULL */
	enum modpools_state state;
	char why[256]; /* of every state but USED, with the way out */
	uint64_t features;
	uint32_t abi;
	struct modpools_held *held;
	uint32_t n_held, room;
	uint32_t taken;         /* models that were got back from it */
	uint64_t dropped, lost; /* leases that ended with their holder; events that nobody could be told */
};

/* NULL ops: the system's. 0; with MODPOOLS_YES -errno when it cannot be used. Only an error leaves nothing to close. */
int modpools_open(struct modpools *ret, enum modpools_want want, const struct modpools_ops *ops, struct moe_error *err);

/* Reads its events from now on. */
int modpools_watch(struct modpools *modpools, struct loop *loop, struct moe_error *err);

/* Takes the models that are whole and that the registry does not have. *next_epoch becomes greater than all epochs that
 * are found. 0, or -errno for want of means. */
int modpools_take(struct modpools *modpools, struct registry *registry, struct loop *loop, const struct host *host,
		  uint64_t *next_epoch, struct moe_error *err);

/* Releases what could not be used. */
void modpools_settle(struct modpools *modpools);

/* A model on its way to the module. */
struct modpools_gift {
	struct modpools_held pools[MOE_POOLS_MAX];
	uint32_t n;
	int code;        /* 0, or -errno: the module has nothing of it */
	const char *why; /* it is not for the module, or NULL */
};

/* Of any thread, from modpools_open() to modpools_close(): has the module adopt a model that was loaded, whole or not
 * at all. Nothing is given when the module is not in use. */
void modpools_give(const struct modpools *modpools, const struct resident *model, struct modpools_gift *ret);

/* The other half: what was given is kept, or, not `wanted`, released; the log says what was not taken and why. Empties
 * the gift. 0 also when the module is not in use, or -errno: nothing is kept. */
int modpools_accept(struct modpools *modpools, struct modpools_gift *gift, const char *name, bool wanted);
void modpools_release(struct modpools *modpools, uint64_t epoch);

bool modpools_has(const struct modpools *modpools, uint64_t epoch);
uint32_t modpools_kept(const struct modpools *modpools);   /* pools that lie there */
uint32_t modpools_leases(const struct modpools *modpools); /* on them, now */
const char *modpools_state_name(enum modpools_state state);

/* `releases`: the daemon ends in order and leaves nothing. */
void modpools_close(struct modpools *modpools, bool releases);

#endif
