/* SPDX-License-Identifier: MIT */
/*
 * restart-client - a client that works on while its daemon goes and comes: it speaks the protocol itself, keeps many
 * requests in flight, and knows of each what it must bring. It takes completions by their seq and by cq_tail, by turns.
 * With MOE_TRANSPORT=kmod it asks through the kernel module.
 */
#ifndef TESTS_RESTART_CLIENT_H
#define TESTS_RESTART_CLIENT_H

#include <poll.h>
#include <sys/stat.h>
#include <time.h>

#include "queue-module.h"
#include "tests/raw-client.h"
#include "uapi/moe_manifest.h"

#define ENTRIES 32
#define TOKENS 2
#define PATIENCE_S TAP_PATIENCE_S

enum kind { NOP, FILL, COMPUTE, LEND, GIVE_BACK, RANGE, CANCEL, KINDS };

struct flight {
	bool out, unwanted; /* the latter: a CANCEL for it was posted */
	enum kind kind;
	uint64_t number, lease, from, bytes, target;
	uint32_t row, expert;
};

struct lent {
	uint64_t lease, offset;
	uint32_t row, expert;
};

static struct ring ring;
static struct queue_module module = {.fd = -1};
static const struct moe_manifest *manifest;
static const uint8_t *pool;
static uint8_t *slots;
static struct flight flights[ENTRIES];
static uint64_t posted, ended, lost, doubled, wrong, refused, cancelled;
static uint64_t ahead;  /* completions that were taken by their seq before cq_tail said so */
static bool lone;       /* one request at a time, beside the tail */
static uint64_t beside; /* completions that were taken beside the queue */
static struct lent leases[2 * ENTRIES];
static uint32_t n_leases, out;
static uint8_t *content;  /* of all records, in their order: bytes of a FILL */
static uint8_t *expected; /* y of the one COMPUTE that is asked for again and again */
static uint64_t x_at, ids_at, weights_at, y_bytes;
static char plan_path[128];
static uint64_t random_state = 88172645463325252ull;

static uint32_t pick(uint32_t n)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (uint32_t)(random_state >> 32) % n;
}

static const struct moe_record *record_of(uint32_t row, uint32_t expert)
{
	return (const struct moe_record *)((const char *)manifest + manifest->records_offset) +
	       (uint64_t)row * manifest->n_experts + expert;
}

static uint64_t slot_bytes(void)
{
	return manifest->record_bytes;
}

static const uint8_t *content_of(uint32_t row, uint32_t expert)
{
	return content + ((uint64_t)row * manifest->n_experts + expert) * slot_bytes();
}

/* Where a record of a tiered model lies only its lease says. */
static bool lies_at(uint32_t row, uint32_t expert, uint64_t offset)
{
	if (manifest->flags & MOE_MANIFEST_TIERED)
		return offset <= manifest->pools[0].bytes - slot_bytes() &&
		       memcmp(pool + offset, content_of(row, expert), slot_bytes()) == 0;
	return offset == record_of(row, expert)->offset;
}

static uint16_t layer_of(uint32_t row)
{
	const int32_t *index = (const int32_t *)(manifest + 1);
	uint16_t layer = 0;

	while (index[layer] != (int32_t)row)
		layer++;
	return layer;
}

static uint64_t y_at(uint32_t i)
{
	return weights_at + 4096 + i * ((y_bytes + 4095) & ~4095ull);
}

/* Of a client that is to die: where, and after how many times. */
static uint32_t death = MOE_REQUEST_STATES, lives;

static void die_at(uint32_t state)
{
	if (state == death && lives-- == 0)
		kill(getpid(), SIGKILL);
}

/* -- posting ------------------------------------------------------------------------------------------------------ */

static struct moe_sqe entry_of(uint32_t i)
{
	struct flight *f = &flights[i];
	struct moe_sqe e = {.user_data = f->number};

	switch (f->kind) {
	case FILL:
		e.op = MOE_OP_FILL;
		e.layer = layer_of(f->row);
		e.fill.expert = f->expert;
		e.fill.dst = i * slot_bytes();
		memset(slots + e.fill.dst, 0xa5, slot_bytes());
		break;
	case RANGE:
		e.op = MOE_OP_FILL;
		e.flags = f->number >> 8 & 1 ? MOE_SQE_PREFETCH : 0;
		e.layer = layer_of(f->row);
		e.fill.expert = f->expert;
		e.fill.dst = i * slot_bytes();
		e.fill.from = f->from;
		e.fill.bytes = f->bytes;
		memset(slots + e.fill.dst, 0xa5, slot_bytes());
		break;
	case CANCEL:
		e.op = MOE_OP_CANCEL;
		e.cancel.user_data = f->target;
		break;
	case COMPUTE:
		e.op = MOE_OP_COMPUTE;
		e.layer = layer_of(0);
		e.count = TOKENS;
		e.compute.topk = 2;
		e.compute.x = x_at;
		e.compute.ids = ids_at;
		e.compute.weights = weights_at;
		e.compute.y = y_at(i);
		memset(ring.data + e.compute.y, 0xa5, y_bytes);
		break;
	case LEND:
		e.op = MOE_OP_FILL;
		e.flags = MOE_SQE_LEASE;
		e.layer = layer_of(f->row);
		e.fill.expert = f->expert;
		break;
	case GIVE_BACK:
		e.op = MOE_OP_RELEASE;
		e.release.lease = f->lease;
		break;
	default:
		e.op = MOE_OP_NOP;
	}
	return e;
}

/* It is still there, whatever happened since it was lent. */
static void give_back(struct flight *f, const struct lent *lent)
{
	f->lease = lent->lease;
	wrong += !lies_at(lent->row, lent->expert, lent->offset);
}

/* Of a request that may wait and is not unwanted yet; 0: there is none. */
static uint64_t pick_target(void)
{
	for (uint32_t k = 0, i = pick(ENTRIES); k < ENTRIES; k++, i = (i + 1) % ENTRIES) {
		struct flight *f = &flights[i];

		if (f->out && !f->unwanted && (f->kind == FILL || f->kind == RANGE || f->kind == COMPUTE)) {
			f->unwanted = true;
			return f->number;
		}
	}
	return 0;
}

static void post_by_ring(uint32_t i)
{
	struct moe_sqe *sqes = (struct moe_sqe *)((uint8_t *)ring.client + ring.daemon->sqe_offset);
	const struct moe_sqe e = entry_of(i);

	if (lone) {
		memcpy(ring.client->alone, &e, sizeof ring.client->alone);
		__atomic_store_n(&ring.client->sq_alone, ring.tail + 1, __ATOMIC_RELEASE);
	} else {
		sqes[ring.tail & (ring.daemon->sq_entries - 1)] = e;
	}
	die_at(MOE_REQUEST_POSTED);
	__atomic_store_n(&ring.client->sq_tail, ++ring.tail, __ATOMIC_RELEASE);
	die_at(MOE_REQUEST_PUBLISHED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (__atomic_load_n(&ring.daemon->sq_wait, __ATOMIC_RELAXED))
		ring_bell(&ring);
}

static void post_by_module(uint32_t i)
{
	const struct moe_sqe sqe = entry_of(i);

	die_at(MOE_REQUEST_POSTED);
	if (queue_module_post(&module, &sqe) < 0)
		require(false, "the module takes a request");
	die_at(MOE_REQUEST_PUBLISHED);
}

static void post_one(enum kind kind, uint32_t row, uint32_t expert)
{
	uint64_t target = 0;
	uint32_t i = 0;

	while (flights[i].out)
		i++;
	if (kind == CANCEL)
		target = pick_target();
	flights[i] = (struct flight){
		.out = true, .kind = kind, .number = (posted << 8) | i, .row = row, .expert = expert};
	if (kind == GIVE_BACK)
		give_back(&flights[i], &leases[--n_leases]);
	flights[i].from = pick((uint32_t)slot_bytes());
	flights[i].bytes = 1 + pick((uint32_t)(slot_bytes() - flights[i].from));
	if (kind == CANCEL)
		flights[i].target = target;
	posted++;
	out++;
	if (module.fd >= 0)
		post_by_module(i);
	else
		post_by_ring(i);
}

static void post(enum kind kind)
{
	const uint32_t row = pick(manifest->n_moe_layers);

	if (kind == GIVE_BACK && !n_leases)
		kind = LEND;
	if (kind == LEND && n_leases >= ENTRIES)
		kind = GIVE_BACK;
	post_one(kind, row, pick(manifest->n_experts));
}

/* -- completions -------------------------------------------------------------------------------------------------- */

/* The range and no other byte. */
static bool brought_range(const struct flight *f, uint32_t i, const struct moe_cqe *cqe)
{
	const uint8_t *slot = slots + i * slot_bytes();
	bool good = cqe->bytes == f->bytes &&
		    memcmp(slot + f->from, content_of(f->row, f->expert) + f->from, f->bytes) == 0;

	for (uint64_t at = 0; at < slot_bytes(); at++)
		good &= slot[at] == 0xa5 || (at >= f->from && at < f->from + f->bytes);
	return good;
}

static bool brought(const struct flight *f, uint32_t i, const struct moe_cqe *cqe)
{
	switch (f->kind) {
	case FILL:
		return cqe->bytes &&
		       (!content || memcmp(slots + i * slot_bytes(), content_of(f->row, f->expert), cqe->bytes) == 0);
	case RANGE:
		return brought_range(f, i, cqe);
	case COMPUTE:
		return cqe->pairs == 2 * TOKENS && memcmp(ring.data + y_at(i), expected, y_bytes) == 0;
	case LEND:
		return cqe->lease && lies_at(f->row, f->expert, cqe->offset);
	default:
		return true;
	}
}

static void take(const struct moe_cqe *cqe)
{
	const uint32_t i = cqe->user_data & 0xff;
	struct flight *f = &flights[i];

	if (i >= ENTRIES || !f->out || f->number != cqe->user_data) {
		doubled++;
		return;
	}
	if (f->kind == CANCEL) /* it came too late, or ran a second time */
		refused += cqe->status != 0 && cqe->status != -ENOENT && cqe->status != -EALREADY;
	else if (f->unwanted && cqe->status == -ECANCELED)
		cancelled++;
	else
		refused += cqe->status != 0;
	wrong += cqe->status == 0 && !brought(f, i, cqe);
	if (f->kind == LEND && cqe->status == 0) {
		for (uint32_t k = 0; k < n_leases; k++)
			doubled += leases[k].lease == cqe->lease;
		leases[n_leases++] = (struct lent){cqe->lease, cqe->offset, f->row, f->expert};
	}
	f->out = false;
	out--;
	ended++;
}

static bool drain_module(void)
{
	struct moe_cqe cqe;
	bool any = false, over;

	while (queue_module_next(&module, &cqe, &over) > 0) {
		take(&cqe);
		any = true;
	}
	return any;
}

/* Whether there is an answer to be drained. */
__attribute__((unused)) static bool answered(void)
{
	if (module.fd >= 0)
		return queue_module_news(&module);
	return ring_answered(&ring);
}

static bool drain(void)
{
	const struct moe_cqe *cqes = (const struct moe_cqe *)((const uint8_t *)ring.daemon + ring.daemon->cqe_offset);
	bool any = false;

	if (module.fd >= 0)
		return drain_module();
	for (;;) {
		/* By turns; after a daemon's end it may be in its place only. */
		const bool there = lone && __atomic_load_n(&ring.daemon->alone.seq, __ATOMIC_ACQUIRE) == ring.head + 1;
		struct moe_cqe cqe;

		if (!there && !ring_answered(&ring))
			break;
		cqe = there ? ring.daemon->alone : cqes[ring.head & (ring.daemon->cq_entries - 1)];
		beside += there;

		ahead += __atomic_load_n(&ring.daemon->cq_tail, __ATOMIC_RELAXED) == ring.head;
		__atomic_store_n(&ring.client->cq_head, ++ring.head, __ATOMIC_RELEASE);
		take(&cqe);
		any = true;
	}
	return any;
}

static bool wait_until(uint32_t most)
{
	const time_t end = time(NULL) + PATIENCE_S;

	while (out > most && time(NULL) < end)
		if (!drain())
			usleep(50);
	return out <= most;
}

static off_t plan_left(void)
{
	struct stat st;

	return stat(plan_path, &st) < 0 ? 0 : st.st_size;
}

static uint32_t daemon_pid(void)
{
	int sock = connect_raw();
	const uint32_t pid = hello(sock) == (MOE_MSG_HELLO | MOE_MSG_REPLY)
				     ? ((const struct moe_msg_hello *)answer)->pid
				     : 0;

	close(sock);
	return pid;
}

static void kill_daemon(void)
{
	const uint32_t pid = daemon_pid();

	if (pid)
		kill((pid_t)pid, SIGKILL);
}

/* Works until the plan is used up, and some more. A daemon that does not come to its point (recovery with nothing to
 * recover) is killed from outside. */
static bool work(uint32_t more)
{
	off_t left = plan_left();
	uint32_t since = 0;

	while (since < more) {
		const uint32_t burst = lone ? 1 : 1 + pick(ENTRIES);

		for (uint32_t i = 0; i < burst && out < ENTRIES; i++)
			post((enum kind)pick(KINDS));
		if (!wait_until(lone ? 0 : pick(ENTRIES)))
			break;
		since = plan_left() == left ? since + burst : 0;
		left = plan_left();
		if (left && since >= more) {
			kill_daemon();
			since = 0;
		}
	}
	lost += wait_until(0) ? 0 : out;
	return lost == 0;
}

/* -- the machine -------------------------------------------------------------------------------------------------- */

static bool by_module(void)
{
	const char *word = getenv("MOE_TRANSPORT");

	return word && strncmp(word, "kmod", 4) == 0;
}

/* The number of this process's open device. */
static uint64_t open_module(void)
{
	struct moe_error err;

	if (queue_module_open(&module, strcmp(getenv("MOE_TRANSPORT"), "kmod-ioctl") == 0, &err) < 0)
		require(false, "%s", err.text);
	return module.client;
}

static void open_ring(void)
{
	const struct moe_msg_attached *a = (const struct moe_msg_attached *)answer;
	struct moe_msg_attach m = good_attach();
	const uint64_t data_bytes = 1 << 20;
	int data, slot_fd;
	void *p;

	m.entries = ENTRIES;
	m.client = by_module() ? open_module() : 0;
	ring.sock = connect_raw();
	hello(ring.sock);
	require(attach(ring.sock, &m) == (MOE_MSG_ATTACH | MOE_MSG_REPLY), "attached");
	module.queue = (uint32_t)a->queue;
	ring.doorbell = dup(answer_fds[3]);
	require(memfd_map(&p, answer_fds[0], a->manifest_bytes, PROT_READ, "manifest", NULL) == 0, "manifest");
	manifest = p;
	require(memfd_map(&p, answer_fds[1], a->client_bytes, PROT_READ | PROT_WRITE, "client", NULL) == 0, "client");
	ring.client = p;
	require(memfd_map(&p, answer_fds[2], a->daemon_bytes, PROT_READ, "daemon", NULL) == 0, "daemon region");
	ring.daemon = p;
	require(memfd_map(&p, answer_fds[4], manifest->pools[0].bytes, PROT_READ, "pool", NULL) == 0, "pool");
	pool = p;
	y_bytes = TOKENS * manifest->hidden * sizeof(float);
	data = memfd_new("data", data_bytes, NULL);
	slot_fd = memfd_new("slots", (ENTRIES * slot_bytes() + 4095) & ~4095ull, NULL);
	require(memfd_map(&p, data, data_bytes, PROT_READ | PROT_WRITE, "data", NULL) == 0, "data arena");
	ring.data = p;
	require(memfd_map(&p, slot_fd, ENTRIES * slot_bytes(), PROT_READ | PROT_WRITE, "slots", NULL) == 0, "slots");
	slots = p;
	require(arena(ring.sock, data, data_bytes, MOE_ARENA_DATA) == (MOE_MSG_ARENA | MOE_MSG_REPLY), "data");
	require(arena(ring.sock, slot_fd, (ENTRIES * slot_bytes() + 4095) & ~4095ull, MOE_ARENA_SLOTS) ==
			(MOE_MSG_ARENA | MOE_MSG_REPLY),
		"slots");
}

static void fill_inputs(void)
{
	float *x;
	int32_t *ids;
	float *weights;

	x_at = 0;
	ids_at = (y_bytes + 63) & ~63ull;
	weights_at = ids_at + 64;
	require(y_at(ENTRIES) < 1 << 20, "inputs and outputs fit");
	x = (float *)(ring.data + x_at);
	ids = (int32_t *)(ring.data + ids_at);
	weights = (float *)(ring.data + weights_at);
	for (uint32_t i = 0; i < TOKENS * manifest->hidden; i++)
		x[i] = (float)((int)pick(2001) - 1000) / 1000.0f;
	for (int i = 0; i < 2 * TOKENS; i++) {
		ids[i] = (int32_t)pick(manifest->n_experts);
		weights[i] = 0.5f;
	}
}

/* The records as FILL brings them, and, of a model that is all there, as they lie in the pool. */
static void learn_records(void)
{
	uint8_t *all = calloc((size_t)manifest->n_moe_layers * manifest->n_experts, slot_bytes());
	uint64_t differ = 0;

	require(all != NULL, "room for the records");
	for (uint32_t row = 0; row < manifest->n_moe_layers; row++) {
		for (uint32_t expert = 0; expert < manifest->n_experts; expert++) {
			uint8_t *to = all + ((uint64_t)row * manifest->n_experts + expert) * slot_bytes();

			post_one(FILL, row, expert);
			if (!wait_until(0) || refused)
				require(false, "record %u of row %u", expert, row);
			memcpy(to, slots, slot_bytes());
			differ += !(manifest->flags & MOE_MANIFEST_TIERED) &&
				  memcmp(to, pool + record_of(row, expert)->offset, slot_bytes()) != 0;
		}
	}
	content = all;
	ok(differ == 0, "all records as they lie in the pool");
}

/* What COMPUTE brings where nothing goes wrong. */
static void learn(void)
{
	expected = calloc(1, y_bytes);
	post(COMPUTE);
	while (out)
		drain();
	memcpy(expected, ring.data + y_at(0), y_bytes);
	wrong = 0;
	ok(expected[0] != 0xa5, "a first result");
}

/* What was taken by its seq the tail says a moment later, of a daemon that has died since only its successor's. */
static bool ends_agree(void)
{
	uint64_t end = 0;

	while (__atomic_load_n(&ring.daemon->cq_tail, __ATOMIC_ACQUIRE) != ring.head && tap_wait(&end))
		;
	return ring.tail == ring.daemon->sq_head && ring.head == ring.daemon->cq_tail && posted == ended;
}

static void check_books(const char *what)
{
	ok(lost == 0 && doubled == 0 && wrong == 0 && refused == 0,
	   "%s: of %llu requests %llu lost, %llu doubled, %llu wrong, %llu refused", what, (unsigned long long)posted,
	   (unsigned long long)lost, (unsigned long long)doubled, (unsigned long long)wrong,
	   (unsigned long long)refused);
	ok(ends_agree(), "%s: both ends count the same", what);
	lost = doubled = wrong = refused = 0;
}

#endif
