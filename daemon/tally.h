/* SPDX-License-Identifier: MIT */
/*
 * tally - what was measured of a model, in a memory file that a successor takes over: histograms of its layers, and
 * what the ghosts of sessions that have ended found.
 *
 * Law: it is a file of its own beside the model's books, which keep their version: daemons of before and after this
 * one take the model and let the tally go. It is taken whole or not at all; whether it can be, its head says (version
 * and size), and every policy and count in it. The daemon that wrote it may have been killed between any two stores:
 * a value is then counted in one histogram and not in the other, or a session's in some layers only; nothing else. It
 * is of a fixed size, and the reactor is its only writer.
 */
#ifndef DAEMON_TALLY_H
#define DAEMON_TALLY_H

#include <stdint.h>

#include "daemon/model-ghosts.h"
#include "daemon/times.h"
#include "moe-error.h"

#define TALLY_MAGIC 0x31796c6174656f6dull /* "moetaly1" */
#define TALLY_VERSION 2

struct tally {
	uint64_t magic;
	uint32_t version, n_layers;
	uint64_t bytes;             /* of the file */
	struct model_ghosts ghosts; /* of sessions that have ended */
	struct times layers[];      /* [n_layers] */
};

/* One with nothing in it: its file and a mapping of it. 0, -ENOMEM or -EMFILE. */
int tally_new(struct tally **ret, int *ret_fd, uint32_t n_layers, struct moe_error *err);

/* That of a daemon before; the fd stays the caller's. -EPROTO: of another version, -EBADMSG: damaged, or of another
 * model; or for want of means. */
int tally_open(struct tally **ret, int fd, uint32_t n_layers, struct moe_error *err);

struct tally *tally_close(struct tally *tally); /* takes NULL, returns NULL */

#endif
