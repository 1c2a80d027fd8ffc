/* SPDX-License-Identifier: MIT */
#include "daemon/session.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/memfd.h"
#include "base/util.h"
#include "daemon/ringsrv.h"

static void doorbell_ready(struct source *source, uint32_t events)
{
	uint64_t count;
	const struct iovec iov = {&count, sizeof count};

	/* The client shares the file's flags: never rely on O_NONBLOCK. */
	if (preadv2(source->fd, &iov, 1, -1, RWF_NOWAIT) < 0)
		return;
}

static void session_destroy(struct session *s)
{
	for (size_t i = 0; i < ARRAY_LEN(s->arenas); i++)
		if (s->arenas[i].base)
			munmap((void *)(uintptr_t)s->arenas[i].base, s->arenas[i].bytes);
	if (s->client.base)
		munmap((void *)(uintptr_t)s->client.base, s->client.bytes);
	if (s->page)
		munmap(s->page, s->daemon_bytes);
	close_fd(s->client_fd);
	close_fd(s->daemon_fd);
	close_fd(s->doorbell.fd);
	free(s->requests);
	free(s->completed);
	free(s->leases);
	free(s->hinted);
	free(s->slices);
	free(s);
}

static void doorbell_gone(struct source *source)
{
	session_destroy(container_of(source, struct session, doorbell));
}

static int make_regions(struct session *s, struct moe_error *err)
{
	const struct moe_manifest *m = s->entry->model->manifest;
	const uint64_t sqes = (uint64_t)s->entries * sizeof(struct moe_sqe);
	const uint64_t cqes = (uint64_t)s->entries * sizeof(struct moe_cqe);
	void *client, *daemon;
	int r;

	s->stats_offset = MOE_RING_PAGE + sqes;
	s->client.bytes = ALIGN_UP(s->stats_offset + m->n_layers * sizeof(struct moe_layer_stats),
				   (uint64_t)MOE_RING_PAGE);
	s->daemon_bytes = ALIGN_UP(MOE_RING_PAGE + cqes, (uint64_t)MOE_RING_PAGE);
	s->client_fd = memfd_new("moe-client-region", s->client.bytes, err);
	if (s->client_fd < 0)
		return s->client_fd;
	s->daemon_fd = memfd_new("moe-daemon-region", s->daemon_bytes, err);
	if (s->daemon_fd < 0)
		return s->daemon_fd;
	r = memfd_map(&client, s->client_fd, s->client.bytes, PROT_READ | PROT_WRITE, "client region", err);
	if (r < 0)
		return r;
	s->client.base = client;
	r = memfd_map(&daemon, s->daemon_fd, s->daemon_bytes, PROT_READ | PROT_WRITE, "daemon region", err);
	if (r < 0)
		return r;
	s->page = daemon;
	*s->page = (struct moe_daemon_page){
		.magic = MOE_RING_MAGIC,
		.epoch = m->epoch,
		.sq_entries = s->entries,
		.cq_entries = s->entries,
		.sqe_offset = MOE_RING_PAGE,
		.stats_offset = s->stats_offset,
		.cqe_offset = MOE_RING_PAGE,
	};
	return 0;
}

/* The caller has checked tp_rank and tp_size against every layout. */
static void cut_slices(struct session *s)
{
	const struct resident *model = s->entry->model;
	const uint32_t n = model->manifest->n_layouts;

	for (uint32_t i = 0; i < n; i++) {
		moe_slice_of(&s->slices[i], &model->layouts[i], s->attach.tp_rank, s->attach.tp_size);
		moe_slice_of(&s->slices[n + i], &model->layouts[i], 0, 1);
	}
}

static int make_books(struct session *s, struct moe_error *err)
{
	const struct moe_manifest *m = s->entry->model->manifest;

	s->requests = calloc(s->entries, sizeof *s->requests);
	s->completed = calloc(s->entries, sizeof *s->completed);
	s->hinted = calloc((size_t)m->n_layers * DIV_UP(m->n_experts, 64), sizeof *s->hinted);
	s->slices = calloc((size_t)2 * m->n_layouts, sizeof *s->slices);
	if (!s->requests || !s->completed || !s->hinted || !s->slices)
		return moe_error_sys(err, -ENOMEM, "session with %u entries", s->entries);
	cut_slices(s);
	for (uint32_t i = s->entries; i-- > 0;) {
		s->requests[i].next = s->free_requests;
		s->free_requests = &s->requests[i];
	}
	return 0;
}

int session_new(struct session **ret, struct entry *entry, const struct moe_msg_attach *attach, struct loop *loop,
		struct moe_error *err)
{
	struct session *s = calloc(1, sizeof *s);
	int r;

	if (!s)
		return moe_error_sys(err, -ENOMEM, "session");
	s->entry = entry;
	s->attach = *attach;
	s->entries = attach->entries;
	s->loop = loop;
	s->client_fd = s->daemon_fd = -1;
	s->attached_ns = now_ns();
	sched_client_init(&s->sched);
	s->doorbell = (struct source){
		.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .ready = doorbell_ready, .gone = doorbell_gone};
	r = s->doorbell.fd < 0 ? moe_error_sys(err, -errno, "eventfd") : make_regions(s, err);
	if (r == 0)
		r = make_books(s, err);
	if (r == 0)
		r = loop_add(loop, &s->doorbell, err);
	if (r < 0) {
		session_destroy(s);
		return r;
	}
	entry->model->sessions++;
	*ret = s;
	return 0;
}

int session_add_arena(struct session *s, uint32_t kind, int fd, uint64_t bytes, struct moe_error *err)
{
	const char *what = kind == MOE_ARENA_DATA ? "data arena" : "slot arena";
	uint64_t have;
	void *map;
	int r;

	if (kind != MOE_ARENA_DATA && kind != MOE_ARENA_SLOTS)
		return moe_error_set(err, -EINVAL, "arena: kind %u found, 1 (data) or 2 (slots) expected", kind);
	if (s->arenas[kind].base)
		return moe_error_set(err, -EEXIST, "%s: registered already", what);
	if (bytes == 0 || bytes % MOE_RING_PAGE)
		return moe_error_set(err, -EINVAL, "%s: %llu bytes found, a multiple of %d expected", what,
				     (unsigned long long)bytes, MOE_RING_PAGE);
	/* A hole punched into huge pages gives their reservation back: touching it could be SIGBUS. */
	if (memfd_is_hugetlb(fd))
		return moe_error_set(err, -EINVAL, "%s: a memfd of ordinary pages expected, huge pages found", what);
	r = memfd_verify(fd, bytes, F_SEAL_SHRINK | F_SEAL_GROW, &have, what, err);
	if (r < 0)
		return r;
	if (have != bytes)
		return moe_error_set(err, -EINVAL, "%s: %llu bytes found, %llu announced", what,
				     (unsigned long long)have, (unsigned long long)bytes);
	r = memfd_map(&map, fd, bytes, PROT_READ | PROT_WRITE, what, err);
	if (r < 0)
		return r;
	s->arenas[kind] = (struct clientmem){.base = map, .bytes = bytes};
	return 0;
}

void session_kill(struct session *s, struct sched *sched)
{
	if (s->dead)
		return;
	ringsrv_retire_stats(s);
	s->dead = true;
	sched_cancel(sched, &s->sched, ringsrv_drop);
	ringsrv_drop_completed(s);
	s->entry->model->leases -= s->leases_held;
	s->leases_held = 0;
}

void session_free(struct session *s)
{
	assert(s->dead && s->in_flight == 0 && s->leases_held == 0);
	s->entry->model->sessions--;
	s->entry = NULL;
	loop_remove(s->loop, &s->doorbell);
}

uint64_t session_lease(struct session *s)
{
	uint32_t i;

	for (i = 0; i < s->n_leases; i++)
		if (!(s->leases[i] & 1))
			break;
	if (i == s->n_leases) {
		const uint32_t n = MIN(MAX(2 * s->n_leases, 64u), (uint32_t)SESSION_LEASES_MAX);
		uint64_t *more = n > s->n_leases ? realloc(s->leases, n * sizeof *more) : NULL;

		if (!more)
			return 0;
		memset(more + s->n_leases, 0, (n - s->n_leases) * sizeof *more);
		s->leases = more;
		s->n_leases = n;
	}
	/* The generation makes a lease that was given back unlike its successor in the same place. */
	s->leases[i] = ((s->leases[i] >> 1) + 1) << 1 | 1;
	s->leases_held++;
	s->entry->model->leases++;
	return s->leases[i] >> 1 << 32 | (i + 1);
}

int session_release(struct session *s, uint64_t lease)
{
	const uint64_t i = (lease & UINT32_MAX) - 1;

	if (i >= s->n_leases || !(s->leases[i] & 1) || (uint32_t)(s->leases[i] >> 1) != lease >> 32)
		return -ENOENT;
	s->leases[i] &= ~(uint64_t)1;
	s->leases_held--;
	s->entry->model->leases--;
	return 0;
}
