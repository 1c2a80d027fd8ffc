/* SPDX-License-Identifier: MIT */
/*
 * session - an attached model: the daemon's regions mapped and verified, and the engine that works with them.
 *
 * One session is one connection of its own; closing its socket ends it on the daemon's side, whatever else happens. All
 * that came from the daemon is checked once, here (exact fd count, seals, sizes, magic, offsets), and trusted
 * afterwards.
 */
#ifndef LIB_SESSION_H
#define LIB_SESSION_H

#include "base/histogram.h"
#include "moe-expert.h"
#include "queue.h"
#include "queue-module.h"
#include "tap.h"
#include "uapi/moe_manifest.h"
#include "uapi/moe_proto.h"

struct engine;

struct session_pool {
	int fd;
	uint64_t bytes;
	const uint8_t *map; /* NULL until session_map_pools */
};

struct moe_session {
	int socket;
	pid_t pid;                       /* that attached */
	struct moe_attach_params params; /* defaults filled in; its pointers point to `policy`, `device` below */
	char policy[32], device[32];
	struct moe_session_info info;
	const struct moe_manifest *manifest;
	uint64_t manifest_bytes;
	const struct moe_layout *layouts; /* [n_layouts], in the manifest */
	const struct moe_record *records; /* [n_moe_layers][n_experts], the same */
	struct moe_slice *slices;         /* [n_layouts]: this session's */
	uint32_t n_pools;
	struct session_pool pools[MOE_POOLS_MAX];
	uint64_t features; /* MOE_FEATURE_* that the daemon has as well */
	int client_fd, daemon_fd, doorbell;
	void *client_region;
	const void *daemon_region;
	uint64_t client_bytes, daemon_bytes;
	struct queue queue;
	struct queue_module module; /* in use, or its fd is -1 */
	struct tap tap;
	uint32_t *heat;          /* in the client region: [n_moe_layers][n_experts]; NULL: the daemon knows of none */
	const uint32_t *hottest; /* in the daemon region, the same shape; with it */
	uint8_t *data;           /* the data arena: offsets in entries count from here */
	uint64_t data_bytes;
	struct moe_layer_stats *stats; /* [n_layers], written with relaxed atomics by this process only */
	struct histogram *waits;       /* the same; NULL: the daemon knows of none */
	struct engine *engine;
	uint64_t round; /* of moe_agree, the next; 0: the one that the others are at */
};

static inline uint32_t session_row_layout(const struct moe_session *session, uint32_t row)
{
	return session->records[(uint64_t)row * session->info.n_experts].layout;
}

static inline const struct moe_layout *session_layout(const struct moe_session *session, uint32_t row)
{
	return &session->layouts[session_row_layout(session, row)];
}

static inline const struct moe_slice *session_slice(const struct moe_session *session, uint32_t row)
{
	return &session->slices[session_row_layout(session, row)];
}

/* Row of the layer's records, or -EINVAL when the layer does not exist or is dense. */
int session_row(const struct moe_session *session, uint32_t layer, struct moe_error *err);

/* As wire_recv, with this session's patience: -ETIME and a text where the daemon is silent for longer. */
int session_answer(struct moe_session *session, enum moe_msg_type type, void *reply, size_t bytes, int *fds, int n_fds,
		   size_t *ret_n_fds, struct moe_error *err);

/* Maps the pool files (for MOE_FILL_PULL), writable only where a device must register them so: -EPERM when they are
 * sealed. session_protect_pools makes such maps read-only again, for this process and its mistakes. */
int session_map_pools(struct moe_session *session, bool writable, struct moe_error *err);
int session_protect_pools(struct moe_session *session, struct moe_error *err);

/* Makes, registers and maps the data arena: session->data. Once. */
int session_new_data(struct moe_session *session, uint64_t bytes, struct moe_error *err);

/* Registers the slot arena with the daemon; the fd stays the caller's. Once. */
int session_send_slots(struct moe_session *session, int fd, uint64_t bytes, struct moe_error *err);

/* The same for slots in a GPU's memory, by what its driver exports; waits until the daemon has imported them. The
 * timeline is at `timeline` in it, or 0. */
int session_send_device(struct moe_session *session, int fd, uint64_t bytes, uint64_t timeline,
			const uint8_t uuid[MOE_DEVICE_UUID_BYTES], struct moe_error *err);

/* The file whose lock is the right to register (registrar.h): an fd, which is the caller's, or -errno. */
int session_registrar(struct moe_session *session, struct moe_error *err);

/* engine.c: caches, plans, steps. Makes the arenas that it needs. */
int engine_new(struct engine **ret, struct moe_session *session, struct moe_error *err);
/* One line on its device, "" if it has none; lives as long as it. */
const char *engine_describe(const struct engine *engine);
struct engine *engine_free(struct engine *engine); /* waits for steps in flight; takes NULL, returns NULL */

#endif
