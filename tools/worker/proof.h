/* SPDX-License-Identifier: MIT */
/*
 * proof - are the experts that the daemon serves those of this worker's own files?
 *
 * A name or a path proves nothing: files are replaced, and two folders can have one name. So records are hashed here as
 * the daemon hashed them (moe_manifest.h) and compared: all of a small model, of a large one as many as make 64 MiB,
 * but at least eight, spread evenly over layers and experts.
 */
#ifndef WORKER_PROOF_H
#define WORKER_PROOF_H

#include "moe-expert.h"
#include "model/model.h"

/* -ESTALE and what to type when they are not; `socket` is for the message. */
int proof_check(const struct moe_session *session, const struct model *model, const char *socket,
		struct moe_error *err);

#endif
