/* SPDX-License-Identifier: MIT */
/*
 * session-memory - what a session and the daemon share beyond its regions: pool files, the arenas of data and slots, a
 * GPU's memory.
 *
 * Law: the daemon has whatever is sent here before the call returns, and the session uses nothing of it before.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/memfd.h"
#include "base/util.h"
#include "session.h"
#include "wire.h"

int session_map_pools(struct moe_session *session, bool writable, struct moe_error *err)
{
	for (uint32_t i = 0; i < session->n_pools; i++) {
		struct session_pool *pool = &session->pools[i];
		void *map;
		int r;

		r = memfd_map(&map, pool->fd, pool->bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, "pool file",
			      err);
		if ((r == -EPERM || r == -EACCES) && writable)
			return moe_error_set(err, -EPERM,
					     "moe_attach to '%s': device '%s' registers only memory that is mapped "
					     "writable, and the "
					     "weights are sealed: start moe-expertd with --writable-weights",
					     session->info.model, session->device);
		if (r < 0)
			return r;
		pool->map = map;
	}
	return 0;
}

int session_protect_pools(struct moe_session *session, struct moe_error *err)
{
	for (uint32_t i = 0; i < session->n_pools; i++)
		if (mprotect((void *)session->pools[i].map, session->pools[i].bytes, PROT_READ) < 0)
			return moe_error_sys(err, -errno, "pool file: cannot be made read-only again");
	return 0;
}

static int register_arena(struct moe_session *session, enum moe_arena kind, int fd, uint64_t bytes,
			  struct moe_error *err)
{
	struct moe_msg_arena arena = {.bytes = bytes, .kind = kind};
	struct moe_msg reply;
	int r;

	wire_begin(&arena, sizeof arena, MOE_MSG_ARENA, 1);
	r = wire_send(session->socket, &arena, &fd, err);
	if (r < 0)
		return r;
	return session_answer(session, MOE_MSG_ARENA, &reply, sizeof reply, NULL, 0, NULL, err);
}

int session_new_data(struct moe_session *session, uint64_t bytes, struct moe_error *err)
{
	const uint64_t size = ALIGN_UP(bytes, (uint64_t)MOE_RING_PAGE);
	_cleanup_close_ int fd = memfd_new("moe-data", size, err);
	void *map;
	int r;

	if (fd < 0)
		return fd;
	r = memfd_map(&map, fd, size, PROT_READ | PROT_WRITE, "data arena", err);
	if (r < 0)
		return r;
	r = register_arena(session, MOE_ARENA_DATA, fd, size, err);
	if (r < 0) {
		munmap(map, size);
		return r;
	}
	session->data = map;
	session->data_bytes = size;
	return 0;
}

int session_send_slots(struct moe_session *session, int fd, uint64_t bytes, struct moe_error *err)
{
	return register_arena(session, MOE_ARENA_SLOTS, fd, bytes, err);
}

int session_registrar(struct moe_session *session, struct moe_error *err)
{
	struct moe_msg request, reply;
	int fd, r;

	if (!(session->features & MOE_FEATURE_REGISTRAR))
		return moe_error_set(err, -EPROTO,
				     "moe_attach to '%s': moe-expertd does not know who registers memory with GPU "
				     "drivers: it is older than the library, update it",
				     session->info.model);
	wire_begin(&request, sizeof request, MOE_MSG_REGISTRAR, 0);
	r = wire_send(session->socket, &request, NULL, err);
	if (r == 0)
		r = session_answer(session, MOE_MSG_REGISTRAR, &reply, sizeof reply, &fd, 1, NULL, err);
	if (r < 0)
		return r;
	r = memfd_verify(fd, 0, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE, NULL, "registrar's file", err);
	if (r < 0)
		close_fd(fd);
	return r < 0 ? r : fd;
}

int session_send_device(struct moe_session *session, int fd, uint64_t bytes, uint64_t timeline,
			const uint8_t uuid[MOE_DEVICE_UUID_BYTES], struct moe_error *err)
{
	struct moe_msg_device device = {.bytes = bytes, .timeline = timeline};
	struct moe_msg reply;
	int r;

	memcpy(device.uuid, uuid, sizeof device.uuid);
	wire_begin(&device, sizeof device, MOE_MSG_DEVICE, 1);
	r = wire_send(session->socket, &device, &fd, err);
	if (r < 0)
		return r;
	return session_answer(session, MOE_MSG_DEVICE, &reply, sizeof reply, NULL, 0, NULL, err);
}
