/* SPDX-License-Identifier: MIT */
/*
 * fake-daemon - a thread that serves one session's ring with plain memory and plain arithmetic, so that the engine can
 * be tested without a daemon, and under a daemon that is slow, out of order, wrong, or gone.
 *
 * It claims entries in order and finishes them in any order. A fill first makes the slot unreadable (NaN), pauses, and
 * only then writes the weights: whoever reads a slot too early, or is still reading it, gets a result that is wrong. It
 * holds the client to the ring's rules and counts each breach.
 */
#ifndef TESTS_FAKE_DAEMON_H
#define TESTS_FAKE_DAEMON_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/futex.h"
#include "base/memfd.h"
#include "base/util.h"
#include "session.h"
#include "tests/fake-slots.h"
#include "tests/plain-experts.h"

#define FAKE_PENDING 64
#define FAKE_LEASES 4096
#define FAKE_LAYOUTS 2
#define FAKE_POOLS_MAX 3

struct fake_pending {
	struct moe_sqe sqe;
	uint64_t claimed_ns;
};

struct fake {
	struct moe_session session; /* the client's; made by fake_new */
	struct moe_manifest manifest;
	struct moe_layout whole[FAKE_LAYOUTS], layouts[FAKE_LAYOUTS]; /* rows take turns */
	uint8_t *records;                                             /* [n_moe_layers][n_experts], whole */
	uint64_t whole_bytes;                                         /* of one */
	uint8_t *pools[FAKE_POOLS_MAX];                               /* the same in shares */
	uint64_t pool_bytes;
	struct plain_values *values; /* [n_moe_layers][n_experts]: the same, for computing */
	struct moe_record *table;
	int32_t *layer_index;

	struct moe_client_page *client;
	struct moe_daemon_page *daemon;
	uint32_t sq_head, cq_tail;
	int peer; /* our end of the socket */
	struct fake_slots slots;

	pthread_t thread;
	_Atomic bool stop, stall, hold; /* hold: speculative fills wait */
	_Atomic uint64_t seed;
	_Atomic uint32_t pause_us; /* at random up to this, before and within each request */
	_Atomic uint64_t takes_ns; /* not 0: each FILL and COMPUTE takes as long and says so, side by side */
	bool immutable;            /* records can be read without a lease: who has failed may give it back too early */
	_Atomic int fail_fills, fail_computes; /* so many of the next ones are answered with -EIO */
	_Atomic uint32_t breaches;
	_Atomic uint64_t cpu_pairs; /* computed */
	_Atomic uint32_t nops, fills, speculative, cancels, leases, computes, wholes, releases, hints, phases;
	_Atomic int leases_held;
	bool lease_open[FAKE_LEASES];
	uint32_t lease_of[FAKE_LEASES]; /* the record's number */
	uint32_t *leased;    /* [n_moe_layers][n_experts]: open leases; without one the pools have NaNs there */
	struct moe_sqe hint; /* the last one, once `hints` has counted it */
	struct fake_pending pending[FAKE_PENDING];
	uint32_t n_pending;
};

/* For the session functions below, which have nothing but the session. */
static struct fake *fake_of(const struct moe_session *session)
{
	return container_of(session, struct fake, session);
}

/* Shared, as memory of the daemon is: devices register no other. */
static void *fake_map(uint64_t bytes)
{
	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (map == MAP_FAILED)
		abort();
	return map;
}

/* -- what session.c does with a socket, here with memory ---------------------------------------------------------- */

int session_row(const struct moe_session *session, uint32_t layer, struct moe_error *err)
{
	return layer < session->info.n_layers && session->info.layer_index[layer] >= 0
		       ? session->info.layer_index[layer]
		       : -EINVAL;
}

int session_map_pools(struct moe_session *session, bool writable, struct moe_error *err)
{
	for (uint32_t i = 0; i < session->n_pools; i++)
		session->pools[i].map = fake_of(session)->pools[i];
	return 0;
}

int session_protect_pools(struct moe_session *session, struct moe_error *err)
{
	return 0;
}

int session_new_data(struct moe_session *session, uint64_t bytes, struct moe_error *err)
{
	session->data_bytes = ALIGN_UP(bytes, (uint64_t)4096);
	session->data = fake_map(session->data_bytes);
	return 0;
}

int session_send_slots(struct moe_session *session, int fd, uint64_t bytes, struct moe_error *err)
{
	return fake_slots_map(&fake_of(session)->slots, fd, bytes);
}

int session_send_device(struct moe_session *session, int fd, uint64_t bytes, uint64_t timeline,
			const uint8_t uuid[MOE_DEVICE_UUID_BYTES], struct moe_error *err)
{
	return fake_slots_import(&fake_of(session)->slots, session->params.device, fd, bytes, timeline, err);
}

int session_registrar(struct moe_session *session, struct moe_error *err)
{
	return memfd_new_sealed("registrar", "", 1, err);
}

/* -- the thread --------------------------------------------------------------------------------------------------- */

static uint32_t fake_below(struct fake *f, uint32_t n)
{
	unsigned long long state = atomic_load(&f->seed);
	const uint32_t value = (uint32_t)(tap_random(&state) % n);

	atomic_store(&f->seed, state);
	return value;
}

static void fake_pause(struct fake *f)
{
	const uint32_t us = atomic_load(&f->pause_us);

	if (us && fake_below(f, 2))
		nanosleep(&(struct timespec){.tv_nsec = (long)fake_below(f, us) * 1000}, NULL);
}

static void fake_expect(struct fake *f, bool good, const char *what)
{
	if (!good && atomic_fetch_add(&f->breaches, 1) == 0)
		diag("the client broke a rule: %s", what);
}

static uint32_t fake_number(const struct fake *f, uint32_t layer, uint32_t expert)
{
	return (uint32_t)f->layer_index[layer] * f->manifest.n_experts + expert;
}

static const uint8_t *fake_record(const struct fake *f, uint32_t layer, uint32_t expert)
{
	return f->records + fake_number(f, layer, expert) * f->whole_bytes;
}

static const struct moe_slice *fake_slice(const struct fake *f, uint32_t layer)
{
	return session_slice(&f->session, (uint32_t)f->layer_index[layer]);
}

static bool fake_takes_one(_Atomic int *count)
{
	int seen = atomic_load(count);

	while (seen > 0 && !atomic_compare_exchange_weak(count, &seen, seen - 1))
		;
	return seen > 0;
}

/* The record as it is while it is leased, or as nobody may read it. */
static void fake_show(struct fake *f, uint32_t number, bool leased)
{
	const uint32_t layout = f->table[number].layout;
	uint32_t p;

	for (p = 0; p < f->manifest.n_pools; p++) {
		uint8_t *at = f->pools[p] + f->table[number].offset;

		memset(at, 0xff, f->layouts[layout].record_bytes);
		if (leased)
			plain_move_share(&f->whole[layout], f->records + number * f->whole_bytes, &f->layouts[layout],
					 p, at, false);
	}
}

/* Before the first request. */
__attribute__((unused)) static void fake_make_immutable(struct fake *f)
{
	for (uint32_t i = 0; i < f->manifest.n_moe_layers * f->manifest.n_experts; i++)
		fake_show(f, i, true);
	f->immutable = true;
}

static void fake_lease(struct fake *f, const struct moe_sqe *sqe, struct moe_cqe *cqe)
{
	const uint32_t lease = atomic_fetch_add(&f->leases, 1);
	const uint32_t number = fake_number(f, sqe->layer, sqe->fill.expert);

	fake_expect(f, sqe->fill.dst == 0 && sqe->fill.bytes == 0, "a lease has no dst and no range");
	f->lease_open[lease % FAKE_LEASES] = true;
	f->lease_of[lease % FAKE_LEASES] = number;
	if (f->leased[number]++ == 0 && !f->immutable)
		fake_show(f, number, true);
	atomic_fetch_add(&f->leases_held, 1);
	cqe->lease = lease + 1;
	cqe->offset = f->table[number].offset;
}

static void fake_fill(struct fake *f, const struct moe_sqe *sqe, struct moe_cqe *cqe)
{
	const struct moe_slice *slice = fake_slice(f, sqe->layer);
	const uint64_t from = sqe->fill.from, bytes = sqe->fill.bytes ? sqe->fill.bytes : slice->bytes;
	struct moe_slice whole;
	uint8_t *packed;

	fake_expect(f, from + bytes <= slice->bytes, "FILL's range");
	fake_expect(f, sqe->fill.expert < f->manifest.n_experts && sqe->count == 0 && sqe->fill.reserved0 == 0, "FILL");
	cqe->bytes = sqe->flags & MOE_SQE_LEASE ? slice->bytes : bytes;
	if (fake_takes_one(&f->fail_fills)) {
		cqe->status = -EIO;
		if (!(sqe->flags & MOE_SQE_LEASE))
			fake_slots_spoil(&f->slots, sqe->fill.dst + from, bytes);
		return;
	}
	if (sqe->flags & MOE_SQE_LEASE) {
		fake_lease(f, sqe, cqe);
		return;
	}
	fake_expect(f,
		    sqe->fill.dst % f->session.info.slot_bytes == 0 &&
			    sqe->fill.dst + f->session.info.slot_bytes <= f->slots.bytes,
		    "FILL.dst");
	fake_slots_spoil(&f->slots, sqe->fill.dst + from, bytes);
	fake_pause(f);
	moe_slice_of(&whole, &f->whole[session_row_layout(&f->session, (uint32_t)f->layer_index[sqe->layer])],
		     f->session.params.tp_rank, f->session.params.tp_size);
	packed = calloc(1, slice->bytes);
	if (!packed)
		abort();
	plain_pack(&whole, fake_record(f, sqe->layer, sqe->fill.expert), packed);
	fake_slots_put(&f->slots, sqe->fill.dst + from, packed + from, bytes);
	free(packed);
	if (sqe->flags & MOE_SQE_SIGNAL)
		fake_expect(f, fake_slots_come(&f->slots, sqe->fill.signal), "FILL's number");
	atomic_fetch_add(&f->fills, 1);
	atomic_fetch_add(&f->speculative, (sqe->flags & MOE_SQE_PREFETCH) != 0);
}

static void fake_compute(struct fake *f, const struct moe_sqe *sqe, struct moe_cqe *cqe)
{
	const struct moe_session *s = &f->session;
	const uint32_t hidden = f->manifest.hidden, topk = sqe->compute.topk;
	const bool whole = sqe->flags & MOE_SQE_WHOLE;
	const struct moe_slice *slice = fake_slice(f, sqe->layer);
	const uint32_t first = whole ? 0 : slice->first;
	const float *x = (const float *)(s->data + sqe->compute.x);
	const int32_t *ids = (const int32_t *)(s->data + sqe->compute.ids);
	const float *weights = (const float *)(s->data + sqe->compute.weights);
	float *y = (float *)(s->data + sqe->compute.y);
	double sum[256];
	uint32_t t, k, j;

	atomic_fetch_add(&f->computes, 1);
	atomic_fetch_add(&f->wholes, whole);
	fake_expect(f,
		    (sqe->compute.x | sqe->compute.ids | sqe->compute.weights | sqe->compute.y) % 64 == 0 &&
			    sqe->compute.y + sqe->count * hidden * 4 <= s->data_bytes && topk > 0 &&
			    sqe->compute.x_type == MOE_TYPE_F32 && sqe->compute.y_type == MOE_TYPE_F32,
		    "COMPUTE");
	if (fake_takes_one(&f->fail_computes)) {
		cqe->status = -EIO;
		return;
	}
	for (t = 0; t < sqe->count; t++) {
		memset(sum, 0, sizeof sum);
		for (k = 0; k < topk; k++) {
			const int32_t id = ids[t * topk + k];

			if (id < 0)
				continue;
			cqe->pairs++;
			plain_expert(&f->values[fake_number(f, sqe->layer, (uint32_t)id)], f->manifest.activation, 0,
				     first, whole ? f->manifest.inter : slice->inter, (double)weights[t * topk + k],
				     x + t * hidden, sum, NULL);
		}
		for (j = 0; j < hidden; j++)
			y[t * hidden + j] = (float)sum[j];
	}
	fake_expect(f, cqe->pairs > 0, "COMPUTE without pairs");
	atomic_fetch_add(&f->cpu_pairs, cqe->pairs);
}

static void fake_release(struct fake *f, const struct moe_sqe *sqe)
{
	bool *open = &f->lease_open[(sqe->release.lease - 1) % FAKE_LEASES];
	const uint32_t number = f->lease_of[(sqe->release.lease - 1) % FAKE_LEASES];

	fake_expect(f, sqe->release.lease > 0 && *open, "RELEASE of a lease that is not held");
	if (*open && --f->leased[number] == 0 && !f->immutable)
		fake_show(f, number, false);
	*open = false;
	atomic_fetch_add(&f->releases, 1);
	atomic_fetch_sub(&f->leases_held, 1);
}

static void fake_complete(struct fake *f, const struct moe_cqe *cqe)
{
	struct moe_cqe *cqes = (struct moe_cqe *)((uint8_t *)f->daemon + f->daemon->cqe_offset);

	struct moe_cqe *at = &cqes[f->cq_tail & (f->daemon->cq_entries - 1)];

	memcpy(at, cqe, offsetof(struct moe_cqe, seq));
	memcpy(&at->bytes, &cqe->bytes, sizeof *at - offsetof(struct moe_cqe, bytes));
	__atomic_store_n(&at->seq, f->cq_tail + 1, __ATOMIC_RELEASE);
	__atomic_store_n(&f->daemon->cq_tail, ++f->cq_tail, __ATOMIC_RELEASE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(&f->client->cq_wait, __ATOMIC_RELAXED))
		futex_wake(&f->daemon->cq_tail, FUTEX_ALL);
}

/* What is pending has not begun. */
static int fake_cancel(struct fake *f, const struct moe_sqe *sqe)
{
	atomic_fetch_add(&f->cancels, 1);
	for (uint32_t i = 0; i < f->n_pending; i++) {
		const struct moe_sqe *target = &f->pending[i].sqe;
		struct moe_cqe cqe = {.user_data = target->user_data, .op = target->op, .status = -ECANCELED};

		if (target->user_data != sqe->cancel.user_data)
			continue;
		fake_expect(f, target->op == MOE_OP_FILL && target->flags & MOE_SQE_PREFETCH, "CANCEL of a guess");
		f->pending[i] = f->pending[--f->n_pending];
		fake_complete(f, &cqe);
		return 0;
	}
	return -ENOENT;
}

static uint64_t fake_takes(struct fake *f, const struct moe_sqe *sqe)
{
	return sqe->op == MOE_OP_FILL || sqe->op == MOE_OP_COMPUTE ? atomic_load(&f->takes_ns) : 0;
}

static void fake_finish(struct fake *f, const struct moe_sqe *sqe)
{
	struct moe_cqe cqe = {.user_data = sqe->user_data, .op = sqe->op, .layer = sqe->layer, .wait_ns = 1000};
	const uint64_t began = now_ns();

	fake_pause(f);
	switch (sqe->op) {
	case MOE_OP_NOP:
		atomic_fetch_add(&f->nops, 1);
		break;
	case MOE_OP_FILL:
		fake_fill(f, sqe, &cqe);
		break;
	case MOE_OP_COMPUTE:
		fake_compute(f, sqe, &cqe);
		break;
	case MOE_OP_RELEASE:
		fake_release(f, sqe);
		break;
	case MOE_OP_HINT:
		f->hint = *sqe;
		atomic_fetch_add(&f->hints, 1);
		break;
	case MOE_OP_PHASE:
		atomic_fetch_add(&f->phases, 1);
		break;
	case MOE_OP_CANCEL:
		cqe.status = fake_cancel(f, sqe);
		break;
	default:
		fake_expect(f, false, "no such operation");
	}
	cqe.work_ns = now_ns() - began;
	if (fake_takes(f, sqe)) {
		cqe.wait_ns = 0;
		cqe.work_ns = fake_takes(f, sqe);
	}
	fake_complete(f, &cqe);
}

static void fake_claim(struct fake *f)
{
	const struct moe_sqe *sqes = (const struct moe_sqe *)((const uint8_t *)f->client + f->daemon->sqe_offset);
	const uint32_t tail = __atomic_load_n(&f->client->sq_tail, __ATOMIC_ACQUIRE);

	while (f->sq_head != tail && f->n_pending < FAKE_PENDING) {
		f->pending[f->n_pending++] = (struct fake_pending){
			.sqe = sqes[f->sq_head & (f->daemon->sq_entries - 1)], .claimed_ns = now_ns()};
		__atomic_store_n(&f->daemon->sq_head, ++f->sq_head, __ATOMIC_RELEASE);
	}
}

static void *fake_main(void *arg)
{
	struct fake *f = arg;

	while (!atomic_load(&f->stop)) {
		struct fake_pending next;
		uint32_t pick;

		fake_claim(f);
		if (f->n_pending == 0 || atomic_load(&f->stall)) {
			nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
			continue;
		}
		pick = fake_below(f, f->n_pending);
		next = f->pending[pick];
		if (now_ns() - next.claimed_ns < fake_takes(f, &next.sqe) ||
		    (atomic_load(&f->hold) && next.sqe.flags & MOE_SQE_PREFETCH && next.sqe.op == MOE_OP_FILL)) {
			nanosleep(&(struct timespec){.tv_nsec = 1000}, NULL);
			continue;
		}
		f->pending[pick] = f->pending[--f->n_pending];
		fake_finish(f, &next.sqe);
	}
	return NULL;
}

/* -- life --------------------------------------------------------------------------------------------------------- */

struct fake_shape {
	uint32_t layers, experts, hidden, inter, entries; /* layer 0 is dense */
	uint32_t formats[FAKE_LAYOUTS];
	uint32_t pools; /* 0: one */
};

static void *fake_alloc(uint64_t bytes)
{
	const uint64_t size = ALIGN_UP(MAX(bytes, 1), (uint64_t)4096);
	void *p = aligned_alloc(4096, size);

	if (!p)
		abort();
	return memset(p, 0, size);
}

static void fake_make_model(struct fake *f, const struct fake_shape *shape, unsigned long long *seed)
{
	const uint32_t rows = shape->layers - 1, n = rows * shape->experts;
	uint32_t i, p;

	f->manifest = (struct moe_manifest){
		.n_pools = shape->pools ? shape->pools : 1,
		.n_layers = shape->layers,
		.n_moe_layers = rows,
		.n_experts = shape->experts,
		.hidden = shape->hidden,
		.inter = shape->inter,
		.n_layouts = FAKE_LAYOUTS,
	};
	for (i = 0; i < FAKE_LAYOUTS; i++) {
		plain_layout(&f->whole[i], shape->formats[i], shape->formats[i], shape->hidden, shape->inter, i > 0);
		plain_spread(&f->layouts[i], &f->whole[i], f->manifest.n_pools);
		f->whole_bytes = MAX(f->whole_bytes, f->whole[i].record_bytes);
		f->manifest.record_bytes = MAX(f->manifest.record_bytes, f->layouts[i].record_bytes);
	}
	f->pool_bytes = ALIGN_UP(n * f->manifest.record_bytes, (uint64_t)4096);
	for (p = 0; p < f->manifest.n_pools; p++)
		f->pools[p] = fake_map(f->pool_bytes);
	f->leased = fake_alloc(n * sizeof *f->leased);
	f->records = fake_alloc(n * f->whole_bytes);
	f->values = fake_alloc(n * sizeof *f->values);
	f->table = fake_alloc(n * sizeof *f->table);
	f->layer_index = fake_alloc(shape->layers * sizeof *f->layer_index);
	for (i = 0; i < shape->layers; i++)
		f->layer_index[i] = (int32_t)i - 1;
	for (i = 0; i < n; i++) {
		const struct moe_layout *whole = &f->whole[i / shape->experts % FAKE_LAYOUTS];
		uint8_t *record = f->records + i * f->whole_bytes;

		/* Records lie in another order than their numbers. */
		f->table[i].offset = (n - 1 - i) * f->manifest.record_bytes;
		f->table[i].layout = i / shape->experts % FAKE_LAYOUTS;
		plain_fill_record(whole, record, seed);
		plain_decode(&f->values[i], whole, record);
		fake_show(f, i, false);
	}
}

static void fake_make_ring(struct fake *f, uint32_t entries)
{
	f->client = fake_alloc(4096 + entries * sizeof(struct moe_sqe));
	f->daemon = fake_alloc(4096 + entries * sizeof(struct moe_cqe));
	f->daemon->magic = MOE_RING_MAGIC;
	f->daemon->sq_entries = f->daemon->cq_entries = entries;
	f->daemon->sqe_offset = f->daemon->cqe_offset = 4096;
}

/* The session of `params`, all but its engine. The same *seed gives the same model. */
static struct fake *fake_new(const struct fake_shape *shape, const struct moe_attach_params *params,
			     unsigned long long model_seed)
{
	struct fake *f = calloc(1, sizeof *f);
	struct moe_session *s;
	int sockets[2], i;

	if (!f || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
		abort();
	s = &f->session;
	fake_make_model(f, shape, &model_seed);
	fake_make_ring(f, shape->entries);
	f->peer = sockets[1];
	f->seed = model_seed | 1;
	f->pause_us = 100;
	s->socket = sockets[0];
	s->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	s->params = *params;
	s->manifest = &f->manifest;
	s->layouts = f->layouts;
	s->records = f->table;
	s->n_pools = f->manifest.n_pools;
	for (i = 0; i < (int)s->n_pools; i++)
		s->pools[i] = (struct session_pool){.fd = -1, .bytes = f->pool_bytes};
	s->stats = fake_alloc(shape->layers * sizeof *s->stats);
	s->slices = fake_alloc(FAKE_LAYOUTS * sizeof *s->slices);
	s->info = (struct moe_session_info){
		.n_layers = shape->layers,
		.n_moe_layers = shape->layers - 1,
		.n_experts = shape->experts,
		.topk = shape->experts / 2, /* as its config would say; a step may take another */
		.hidden = shape->hidden,
		.inter = shape->inter,
		.cache_slots = params->cache_expert_num,
		.cpu_threads = 1,
		.record_bytes = f->manifest.record_bytes,
		.layer_index = f->layer_index,
	};
	for (i = 0; i < FAKE_LAYOUTS; i++) {
		moe_slice_of(&s->slices[i], &f->layouts[i], params->tp_rank, params->tp_size);
		s->info.slot_bytes = MAX(s->info.slot_bytes, s->slices[i].bytes);
	}
	if (params->cache_expert_num)
		s->info.miss_slots = params->miss_expert_num ? params->miss_expert_num
							     : shape->experts - params->cache_expert_num;
	if (queue_init(&s->queue, f->client, f->daemon, s->doorbell, s->socket) < 0 ||
	    pthread_create(&f->thread, NULL, fake_main, f) != 0)
		abort();
	return f;
}

/* The daemon dies: nobody answers any more and the socket is closed. */
static void fake_die(struct fake *f)
{
	if (atomic_exchange(&f->stop, true))
		return;
	pthread_join(f->thread, NULL);
	close(f->peer);
}

static void fake_free(struct fake *f)
{
	struct moe_session *s = &f->session;

	s->engine = engine_free(s->engine);
	fake_die(f);
	queue_fini(&s->queue);
	close(s->socket);
	close(s->doorbell);
	fake_slots_free(&f->slots);
	if (s->data)
		munmap(s->data, s->data_bytes);
	free(s->slices);
	free(s->stats);
	free(f->client);
	free(f->daemon);
	for (uint32_t i = 0; i < f->manifest.n_moe_layers * f->manifest.n_experts; i++)
		plain_forget(&f->values[i]);
	free(f->values);
	free(f->records);
	for (uint32_t i = 0; i < f->manifest.n_pools; i++)
		munmap(f->pools[i], f->pool_bytes);
	free(f->leased);
	free(f->table);
	free(f->layer_index);
	free(f);
}

#endif
