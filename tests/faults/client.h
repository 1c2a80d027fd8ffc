/* SPDX-License-Identifier: MIT */
/*
 * faults/client - a client that expects right results, or errors with words, or the end of its connection.
 */
#ifndef TESTS_FAULTS_CLIENT_H
#define TESTS_FAULTS_CLIENT_H

#include "tests/faults/run.h"
#include "uapi/moe_manifest.h"

#define TOKENS 2
#define TOPK 2
#define ARENA_BYTES (1u << 20)
#define AGAIN_MS 1000
#define GRANULE (2u << 20)
#define TIMELINE (GRANULE - 4096)

struct client {
	int sock;
	struct ring ring;
	const struct moe_manifest *manifest;
	const uint8_t *pool;
	uint8_t *slots;
	uint64_t manifest_bytes, pool_bytes;
};

#define COMPUTES 4
#define HEAT_COMPUTES 40 /* of 4 pairs: more than MOVER_LOOK for each of 8 records */
#define MOVING_MS 500
#define DOCUMENT_MAX 65536
#define LOOKS "\"looks\":"
#define COPIES "\"copies_made\":"
#define PUSHES 4
#define EXPECTED_MAX (1u << 16)

/* y of each COMPUTE, and what FILL brings, of a run without faults. */
static uint8_t expected[COMPUTES + 1][EXPECTED_MAX];

/* A connection that is closed is an answer as well: what it had is gone. */
static bool lost(struct run *run)
{
	run->closed = true;
	return false;
}

static int connect_to(struct run *run)
{
	const struct timeval wait = {.tv_sec = PATIENCE_MS / 1000};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof address.sun_path, "%s", run->f.socket);
	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
	if (connect(sock, (struct sockaddr *)&address, sizeof address) < 0) {
		lost(run);
		return close_fd(sock);
	}
	return sock;
}

/* What was asked for has come; an error must have words. */
static bool answered(struct run *run, const char *what, unsigned int type, unsigned int asked)
{
	const struct moe_msg_error *e = (const struct moe_msg_error *)answer;

	if (type == (asked | MOE_MSG_REPLY)) {
		run->fine++;
		return true;
	}
	if (type == 0)
		return lost(run);
	run->refused++;
	if (type != MOE_MSG_ERROR || e->msg.status >= 0 || !e->text[0])
		wrong(run, "%s: answer %u, status %d, '%.80s'", what, type, e->msg.status, e->text);
	return false;
}

static bool say_hello(struct run *run, int sock)
{
	return sock >= 0 && answered(run, "hello", hello(sock), MOE_MSG_HELLO);
}

static bool ask_documents(struct run *run, int sock)
{
	for (__u32 what = MOE_QUERY_STATUS; what <= MOE_QUERY_SESSIONS; what++) {
		struct moe_msg_query m = {.what = what};
		char begin_text[2] = "", end_text[2] = "";
		uint64_t bytes;

		begin(&m, sizeof m, MOE_MSG_QUERY, 0);
		if (!answered(run, "query", exchange(sock, &m, sizeof m, NULL, 0), MOE_MSG_QUERY)) {
			if (run->closed)
				return false;
			continue;
		}
		bytes = ((const struct moe_msg_document *)answer)->bytes;
		if (n_answer_fds != 1 || bytes < 2 || pread(answer_fds[0], begin_text, 1, 0) != 1 ||
		    pread(answer_fds[0], end_text, 1, (off_t)bytes - 1) != 1 || *begin_text != '{' || *end_text != '}')
			wrong(run, "document %u is no JSON object", what);
	}
	return true;
}

static bool map_one(struct run *run, void *ret, int fd, uint64_t bytes, int prot)
{
	struct moe_error err = {0};

	if (memfd_map(ret, fd, bytes, prot, "region", &err) < 0)
		return wrong(run, "client: %s", err.text);
	return true;
}

static bool attach_to(struct run *run, struct client *c)
{
	const struct moe_msg_attached *a = (const struct moe_msg_attached *)answer;
	struct moe_msg_attach m = good_attach();

	m.group = (uint64_t)getpid();
	m.dp_size = 1;
	m.agree_ms = 1000;
	snprintf(m.name, sizeof m.name, "small");
	if (!answered(run, "attach", attach(c->sock, &m), MOE_MSG_ATTACH))
		return false;
	if (n_answer_fds != 4 + a->n_pools || a->n_pools < 1)
		return wrong(run, "attach: %zu descriptors for %u pools", n_answer_fds, a->n_pools);
	c->ring.sock = c->sock;
	c->ring.doorbell = dup(answer_fds[3]);
	c->ring.client_bytes = a->client_bytes;
	c->ring.daemon_bytes = a->daemon_bytes;
	c->manifest_bytes = a->manifest_bytes;
	if (!map_one(run, &c->manifest, answer_fds[0], a->manifest_bytes, PROT_READ) ||
	    !map_one(run, &c->ring.client, answer_fds[1], a->client_bytes, PROT_READ | PROT_WRITE) ||
	    !map_one(run, &c->ring.daemon, answer_fds[2], a->daemon_bytes, PROT_READ))
		return false;
	c->pool_bytes = c->manifest->pools[0].bytes;
	return map_one(run, &c->pool, answer_fds[4], c->pool_bytes, PROT_READ);
}

static bool add_arena(struct run *run, struct client *c, enum moe_arena kind, uint8_t **ret)
{
	_cleanup_close_ int fd = memfd_new("arena", ARENA_BYTES, NULL);

	return map_one(run, ret, fd, ARENA_BYTES, PROT_READ | PROT_WRITE) &&
	       answered(run, "arena", arena(c->sock, fd, ARENA_BYTES, kind), MOE_MSG_ARENA);
}

/* For the simulated driver a memory file is memory of a GPU. */
static bool add_gpu_slots(struct run *run, struct client *c)
{
	_cleanup_close_ int fd = memfd_new("gpu", GRANULE, NULL);
	struct moe_msg_device m = {.bytes = GRANULE, .timeline = TIMELINE, .uuid = {'s', 'i', 'm'}};

	if (!map_one(run, &c->slots, fd, GRANULE, PROT_READ | PROT_WRITE))
		return false;
	begin(&m, sizeof m, MOE_MSG_DEVICE, 1);
	return answered(run, "device", exchange(c->sock, &m, sizeof m, &fd, 1), MOE_MSG_DEVICE);
}

/* False: no completion came, because the connection is closed; or it must have come. */
static bool await(struct run *run, struct ring *r)
{
	const uint64_t end = now_ms() + PATIENCE_MS;
	struct pollfd p = {.fd = r->sock, .events = POLLRDHUP};

	for (uint32_t i = 0; __atomic_load_n(&r->daemon->cq_tail, __ATOMIC_ACQUIRE) == r->head; i++) {
		if (i < 100) {
			sched_yield();
			continue;
		}
		if (poll(&p, 1, 1) > 0)
			return lost(run);
		if (now_ms() > end)
			return wrong(run, "no completion after %d s", PATIENCE_MS / 1000);
	}
	return true;
}

/* True: done with success; else it was refused, or the connection is lost. */
static bool call(struct run *run, struct client *c, struct moe_sqe e, struct moe_cqe *ret)
{
	struct ring *r = &c->ring;
	struct moe_sqe *sqes = (struct moe_sqe *)((uint8_t *)r->client + r->daemon->sqe_offset);
	const struct moe_cqe *cqes = (const struct moe_cqe *)((const uint8_t *)r->daemon + r->daemon->cqe_offset);

	if (run->closed)
		return false;
	e.user_data = r->tail + 1000;
	sqes[r->tail & (r->daemon->sq_entries - 1)] = e;
	__atomic_store_n(&r->client->sq_tail, ++r->tail, __ATOMIC_RELEASE);
	ring_bell(r);
	if (!await(run, r))
		return false;
	*ret = cqes[r->head & (r->daemon->cq_entries - 1)];
	__atomic_store_n(&r->client->cq_head, ++r->head, __ATOMIC_RELEASE);
	if (ret->user_data != e.user_data || ret->status > 0)
		return wrong(run, "operation %u: completion of another, or status %d", e.op, ret->status);
	run->refused += ret->status < 0;
	run->fine += ret->status == 0;
	return ret->status == 0;
}

/* -- the story ---------------------------------------------------------------------------------------------------- */

static uint16_t first_layer(const struct moe_manifest *m)
{
	const int32_t *index = (const int32_t *)(m + 1);
	uint16_t layer = 0;

	while (index[layer] != 0)
		layer++;
	return layer;
}

/* The same as without a fault. */
static void compare(struct run *run, const char *what, uint32_t number, const uint8_t *found, uint64_t bytes)
{
	if (bytes == 0 || bytes > EXPECTED_MAX)
		wrong(run, "%s: %llu bytes", what, (unsigned long long)bytes);
	else if (!run->fault)
		memcpy(expected[number], found, bytes);
	else if (memcmp(found, expected[number], bytes) != 0)
		wrong(run, "%s brought other bytes than without a fault", what);
}

static void fill(struct run *run, struct client *c)
{
	const struct moe_record *record =
		(const struct moe_record *)((const char *)c->manifest + c->manifest->records_offset) + 1;
	struct moe_cqe cqe;

	memset(c->slots, 0xa5, c->manifest->record_bytes);
	if (!call(run, c, (struct moe_sqe){.op = MOE_OP_FILL, .layer = first_layer(c->manifest), .fill.expert = 1},
		  &cqe))
		return;
	compare(run, "FILL", COMPUTES, c->slots, cqe.bytes);
	if (!tiered && !moves && memcmp(c->slots, c->pool + record->offset, cqe.bytes) != 0)
		wrong(run, "FILL brought wrong bytes");
}

/* Of a GPU: each is right or an error, and the timeline stands where the last one that came is. */
static void push(struct run *run, struct client *c)
{
	const uint16_t layer = first_layer(c->manifest);
	const uint32_t *word = (const uint32_t *)(c->slots + TIMELINE);
	struct moe_cqe cqe;
	uint32_t came = 0;
	bool all = true;

	fill(run, c);
	for (uint32_t i = 1; i <= PUSHES; i++) {
		struct moe_sqe e = {.op = MOE_OP_FILL, .flags = MOE_SQE_SIGNAL, .layer = layer};

		e.fill.expert = 1;
		e.fill.dst = i * (TIMELINE / (PUSHES + 1)) / 64 * 64;
		e.fill.signal = i;
		if (call(run, c, e, &cqe))
			compare(run, "FILL with a number", COMPUTES, c->slots + e.fill.dst, cqe.bytes);
		else
			all = false;
		came += all;
	}
	if (!run->closed && __atomic_load_n(word, __ATOMIC_ACQUIRE) != came)
		wrong(run, "the timeline is at %u after %u FILLs", *word, came);
}

/* Number `number`: each with all experts of one of two layers; or with the hot ones alone, where copies are made. */
static void compute(struct run *run, struct client *c, uint32_t number)
{
	const uint64_t values = (uint64_t)TOKENS * c->manifest->hidden, bytes = values * sizeof(float);
	const uint16_t layer = (uint16_t)(first_layer(c->manifest) + (tiered ? number % 2 : 0));
	const uint32_t hot = moves ? TOPK : c->manifest->n_experts; /* that are asked for */
	struct moe_sqe e = {.op = MOE_OP_COMPUTE, .layer = layer, .count = TOKENS};
	float *x = (float *)c->ring.data;
	struct moe_cqe cqe;

	e.compute.topk = TOPK;
	e.compute.ids = ALIGN_UP(bytes, 4096);
	e.compute.weights = e.compute.ids + 4096;
	e.compute.y = e.compute.ids + 8192;
	for (uint64_t i = 0; i < values; i++)
		x[i] = (float)(int)(i * 37 % 201 - 100) / 100.0f;
	for (uint32_t i = 0; i < TOKENS * TOPK; i++) {
		((int32_t *)(c->ring.data + e.compute.ids))[i] = (int32_t)(i % hot);
		((float *)(c->ring.data + e.compute.weights))[i] = 0.5f;
	}
	memset(c->ring.data + e.compute.y, 0xa5, bytes);
	if (call(run, c, e, &cqe))
		compare(run, "COMPUTE", number, c->ring.data + e.compute.y, bytes);
}

/* What the document of the models says of the copies that were made, and whether the mover rests; false: nothing. */
static bool ask_mover(struct run *run, struct client *c, uint64_t *ret_looks, uint64_t *ret_copies, bool *ret_rests)
{
	struct moe_msg_query m = {.what = MOE_QUERY_MODELS};
	static char text[DOCUMENT_MAX + 1];
	const char *looks, *copies;
	ssize_t n;

	begin(&m, sizeof m, MOE_MSG_QUERY, 0);
	if (!answered(run, "query", exchange(c->sock, &m, sizeof m, NULL, 0), MOE_MSG_QUERY))
		return false;
	n = pread(answer_fds[0], text, DOCUMENT_MAX, 0);
	text[n < 0 ? 0 : n] = '\0';
	looks = strstr(text, LOOKS);
	copies = strstr(text, COPIES);
	if (!looks || !copies)
		return false; /* it could not be made: the daemon has said so, and serves without */
	*ret_looks = strtoull(looks + strlen(LOOKS), NULL, 10);
	*ret_copies = strtoull(copies + strlen(COPIES), NULL, 10);
	*ret_rests = !strstr(text, "\"opens\"") && !strstr(text, "\"moves\"");
	return true;
}

/* Requests until the mover has had heat to look at, and then until it rests: it works beside them. */
static void move(struct run *run, struct client *c)
{
	const uint64_t end = now_ms() + (run->fault ? MOVING_MS : PATIENCE_MS);
	uint64_t looks = 0, copies = 0;
	bool rests = false;

	do {
		for (uint32_t i = 0; i < HEAT_COMPUTES && !run->closed; i++)
			compute(run, c, 0);
	} while (!run->closed && ask_mover(run, c, &looks, &copies, &rests) && (looks == 0 || !rests) &&
		 now_ms() < end);
	if (!run->fault && (copies == 0 || !rests))
		wrong(run, "%llu copies of hot experts were made in %llu looks", (unsigned long long)copies,
		      (unsigned long long)looks);
	for (uint32_t i = 0; i < 2 && !run->closed; i++)
		compute(run, c, 0);
}

static void operate(struct run *run, struct client *c)
{
	const uint16_t layer = first_layer(c->manifest);
	struct moe_sqe e = {.op = MOE_OP_PHASE};
	struct moe_cqe cqe = {0};

	/* Given back by leaving. */
	call(run, c, (struct moe_sqe){.op = MOE_OP_FILL, .flags = MOE_SQE_LEASE, .layer = layer}, &cqe);
	call(run, c, (struct moe_sqe){.op = MOE_OP_NOP}, &cqe);
	e.phase.phase = MOE_PHASE_DECODE;
	call(run, c, e, &cqe);
	call(run, c, (struct moe_sqe){.op = MOE_OP_AGREE, .agree.phase = MOE_PHASE_DECODE}, &cqe);
	if (c->slots)
		(pushes ? push : fill)(run, c);
	for (uint32_t i = 0; c->ring.data && i < (tiered ? COMPUTES : 2); i++)
		compute(run, c, i);
	if (moves && c->ring.data)
		move(run, c);
	if (call(run, c, (struct moe_sqe){.op = MOE_OP_FILL, .flags = MOE_SQE_LEASE, .layer = layer}, &cqe))
		call(run, c, (struct moe_sqe){.op = MOE_OP_RELEASE, .release.lease = cqe.lease}, &cqe);
	/* Given back by leaving. */
	call(run, c, (struct moe_sqe){.op = MOE_OP_FILL, .flags = MOE_SQE_LEASE, .layer = layer}, &cqe);
}

static unsigned int unload(int sock)
{
	struct moe_msg_unload m = {.name = "another"};

	begin(&m, sizeof m, MOE_MSG_UNLOAD, 0);
	return exchange(sock, &m, sizeof m, NULL, 0);
}

static void change_policy(struct run *run, struct client *c)
{
	struct moe_msg_policy m = {.name = "small", .policy = "arc"};

	begin(&m, sizeof m, MOE_MSG_POLICY, 0);
	answered(run, "set-policy", exchange(c->sock, &m, sizeof m, NULL, 0), MOE_MSG_POLICY);
	for (uint32_t i = 0; c->ring.data && !run->closed && i < 2; i++)
		compute(run, c, i);
}

static void load_another(struct run *run, int sock)
{
	struct moe_msg_load load = {.name = "another"};
	unsigned int type;

	snprintf(load.path, sizeof load.path, "%s", model_path);
	begin(&load, sizeof load, MOE_MSG_LOAD, 0);
	type = exchange(sock, &load, sizeof load, NULL, 0);
	while (type == MOE_MSG_PROGRESS)
		type = fdmsg_recv(sock, answer, sizeof answer, answer_fds, &n_answer_fds, 0) > 0
			       ? ((struct moe_msg *)answer)->type
			       : 0;
	if (answered(run, "load", type, MOE_MSG_LOAD))
		answered(run, "unload", unload(sock), MOE_MSG_UNLOAD);
}

static void let_go(struct client *c)
{
	fdmsg_close_fds(answer_fds, n_answer_fds);
	n_answer_fds = 0;
	if (c->manifest)
		munmap((void *)c->manifest, c->manifest_bytes);
	if (c->pool)
		munmap((void *)c->pool, c->pool_bytes);
	if (c->ring.client)
		munmap(c->ring.client, c->ring.client_bytes);
	if (c->ring.daemon)
		munmap((void *)c->ring.daemon, c->ring.daemon_bytes);
	if (c->ring.data)
		munmap(c->ring.data, ARENA_BYTES);
	if (c->slots)
		munmap(c->slots, pushes ? GRANULE : ARENA_BYTES);
	close_fd(c->ring.doorbell);
	close_fd(c->sock);
}

static void watch(struct run *run, struct client *c); /* faults/watch.h */

/* Of a daemon on a bus, else NULL. A bus is its process's own. */
static struct {
	const char *(*begin)(void); /* returns its address */
	void (*end)(void);
	void (*talk)(struct run *run);
} bus;

static void use(struct run *run)
{
	const bool plain = !restarts && !tiered && !watched && !pushes && !moves && !bus.talk;
	struct client c = {.sock = connect_to(run), .ring.doorbell = -1};

	if (say_hello(run, c.sock) && attach_to(run, &c)) {
		add_arena(run, &c, MOE_ARENA_DATA, &c.ring.data);
		if (!run->closed && pushes)
			add_gpu_slots(run, &c);
		else if (!run->closed)
			add_arena(run, &c, MOE_ARENA_SLOTS, &c.slots);
		operate(run, &c);
		if (!run->closed && tiered)
			change_policy(run, &c);
		if (!run->closed && watched)
			watch(run, &c);
		if (!run->closed && bus.talk)
			bus.talk(run);
		if (!run->closed && plain) /* as in any other life */
			ask_documents(run, c.sock);
		if (!run->closed && plain)
			load_another(run, c.sock);
	}
	let_go(&c);
}

/* With the session gone, and what its client could no more unload, as few descriptors are open as before it came. */
static void check_descriptors(struct run *run, int probe, int before)
{
	/* A file of a trace, and a GPU's memory, wait for a thread that closes them: the message's descriptor, and the
	 * recording's or the push's; a bus closes its messages' itself. It may be back; the copies of two nodes stay.
	 */
	const int waits = pushes || watched ? 2 : bus.talk != NULL;
	const int most = before + (run->fault && run->fault->ever ? waits : 0) + (bus.talk && run->fault) + 2 * moves;
	const uint64_t end = now_ms() + PATIENCE_MS;
	int now = most;

	while (!has_ended(run, 0) && (now = leaks_fds(run->f.pid)) > most && now_ms() < end) {
		if (unload(probe) == 0)
			return; /* closed as well: the model stays */
		usleep(1000);
	}
	if (!run->ended && now > most)
		wrong(run, "%d descriptors are open, %d before the session", now, before);
}

/* As a client does whose daemon may just be ending. */
static int connect_again(struct run *run)
{
	const uint64_t end = now_ms() + AGAIN_MS;
	int probe;

	do {
		run->closed = false;
		probe = connect_to(run);
		if (say_hello(run, probe))
			return probe;
		close_fd(probe);
		usleep(2000);
	} while (!has_ended(run, 0) && now_ms() < end);
	return -1;
}

/* What a session of the daemon before leaves open is seen at the end. */
static void tell_restart(struct run *run)
{
	bool lost_once;
	int probe;

	use(run);
	lost_once = run->lost = run->closed;
	run->refused += lost_once;
	probe = connect_again(run);
	if (probe >= 0 && lost_once)
		use(run); /* of this daemon, or of the one after it */
	close_fd(probe);
}

static void tell_story(struct run *run)
{
	int probe = connect_to(run);
	const bool probes = say_hello(run, probe);
	const int more = watched || bus.talk; /* the taps' timer stays */
	const int before = leaks_fds(run->f.pid) + more;

	run->closed = false;
	use(run);
	if (probes && before > more)
		check_descriptors(run, probe, before);
	fdmsg_close_fds(answer_fds, n_answer_fds);
	n_answer_fds = 0;
	close_fd(probe);
}

static enum outcome tell(struct run *run)
{
	bool ready = false;

	if (start(run)) {
		ready = get_ready(run);
		if (ready)
			(restarts ? tell_restart : tell_story)(run);
		check_end(run, ready);
		add_callers(run);
		if (!run->fault)
			return run->why[0] || run->refused || run->closed ? BAD : NO_CHANGE;
		clean_up(run);
	}
	if (run->why[0])
		return BAD;
	if (!ready || run->refused_start)
		return REFUSED_START;
	return WEXITSTATUS(run->status) || run->successor_ended ? ENDED
	       : run->refused || run->closed                    ? REFUSED_SOME
								: NO_CHANGE;
}

#endif
