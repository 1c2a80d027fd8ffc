/* SPDX-License-Identifier: MIT */
/* tier - what a careless or hostile client may ask of a tiered model: leases without end, its memory for writing,
 * leases that are given back before they are there, and leaving in the middle. The daemon serves others meanwhile. */
#include <sys/stat.h>
#include <time.h>

#include "tests/raw-client.h"
#include "uapi/moe_manifest.h"

#define FRAMES 36u /* the fewest: a layer's 32 experts, and a token's 4 */

static const struct moe_manifest *manifest;
static int pool_fd = -1;

static void open_tiered(struct ring *r)
{
	struct moe_msg_attach m = good_attach();
	const struct moe_msg_attached *a = (const struct moe_msg_attached *)answer;
	void *p;
	int sock;

	ring_open(r); /* ends with the arenas' answers: the manifest and the pool come from another connection */
	if (manifest)
		return;
	sock = connect_raw();
	hello(sock);
	require(attach(sock, &m) == (MOE_MSG_ATTACH | MOE_MSG_REPLY), "attached");
	require(memfd_map(&p, answer_fds[0], a->manifest_bytes, PROT_READ, "manifest", NULL) == 0, "manifest");
	manifest = p;
	pool_fd = dup(answer_fds[4]);
	close(sock);
}

static struct moe_sqe lease_of(uint16_t layer, uint32_t expert)
{
	return (struct moe_sqe){.op = MOE_OP_FILL, .flags = MOE_SQE_LEASE, .layer = layer, .fill.expert = expert};
}

static struct moe_sqe release_of(uint64_t lease)
{
	return (struct moe_sqe){.op = MOE_OP_RELEASE, .release.lease = lease};
}

/* All experts of a layer. */
static int compute_all(struct ring *r, uint16_t layer)
{
	const struct moe_sqe e = {.op = MOE_OP_COMPUTE,
				  .layer = layer,
				  .count = 1,
				  .compute = {.topk = 32, .ids = 4096, .weights = 8192, .y = 16384}};
	int32_t *ids = (int32_t *)(r->data + 4096);
	struct moe_cqe cqe;

	for (int32_t i = 0; i < 32; i++)
		ids[i] = i;
	return ring_call(r, &e, &cqe) ?: cqe.pairs == 32 ? 0 : -EBADMSG;
}

static bool becomes(const char *name, long value)
{
	uint64_t end = 0;

	while (asked("models", name) != value && tap_wait(&end))
		;
	return asked("models", name) == value;
}

static void test_memory(void)
{
	struct stat st;
	void *p;
	char byte = 1;

	ok(manifest->flags == MOE_MANIFEST_TIERED && manifest->pools[0].bytes >= FRAMES * manifest->record_bytes,
	   "the manifest says that the model is tiered");
	ok(memfd_map(&p, pool_fd, 4096, PROT_READ | PROT_WRITE, "pool", NULL) < 0,
	   "its pool file cannot be mapped to write");
	ok(pwrite(pool_fd, &byte, 1, 0) < 0, "nor written to");
	require(fstat(pool_fd, &st) == 0, "a look at it");
	ok((st.st_mode & 077) == 0, "nor opened anew by another user (mode %o)", st.st_mode & 07777);
}

static void test_leases(struct ring *r)
{
	struct moe_cqe cqe[FRAMES];
	struct moe_sqe e;
	uint32_t n = 0;
	int status;

	do {
		e = lease_of(1, n);
		status = ring_call(r, &e, &cqe[n]);
	} while (status == 0 && ++n < FRAMES);
	ok(status == -ENOSPC && n == 4, "four leases, then ENOSPC (%u, %d)", n, status);
	for (uint16_t layer = 0; layer < 6; layer++)
		ok(compute_all(r, layer) == 0, "all of layer %u is computed beside them", layer);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; k < i; k++)
			if (cqe[i].offset == cqe[k].offset || cqe[i].lease == cqe[k].lease)
				ok(false, "leases %u and %u are one", i, k);
	ok(asked("models", "leased") == 4 && asked("models", "leases") == 4, "four frames are leased");
	e = release_of(cqe[0].lease);
	ok(ring_call(r, &e, NULL) == 0 && ring_call(r, &e, NULL) == -ENOENT, "a lease is given back once");
	e = release_of(cqe[1].lease + ((uint64_t)1 << 32));
	ok(ring_call(r, &e, NULL) == -ENOENT, "a lease that was never lent cannot be given back");
	e = lease_of(2, 7);
	ok(ring_call(r, &e, &cqe[0]) == 0, "there is room for another");
	e = lease_of(2, 7);
	e.fill.dst = 64;
	ok(ring_call(r, &e, NULL) == -EINVAL, "a lease with a destination is refused");
	e = lease_of(2, 32);
	ok(ring_call(r, &e, NULL) == -ENOENT, "so is one of an expert that is not there");
}

/* Gone with leases, and with requests that wait. */
static void test_leaving(struct ring *r)
{
	struct moe_sqe *sqes = (struct moe_sqe *)((uint8_t *)r->client + r->daemon->sqe_offset);
	struct ring other;

	open_tiered(&other);
	for (int i = 0; i < 12; i++)
		sqes[r->tail++ & (r->daemon->sq_entries - 1)] = (struct moe_sqe){
			.op = MOE_OP_COMPUTE,
			.layer = (uint16_t)(i % 6),
			.count = 1,
			.compute = {.topk = 32, .ids = 4096, .weights = 8192, .y = 16384}};
	__atomic_store_n(&r->client->sq_tail, r->tail, __ATOMIC_RELEASE);
	ring_bell(r);
	ring_close(r);
	ok(becomes("leased", 0) && becomes("leases", 0), "a session that has left holds no lease");
	ok(compute_all(&other, 3) == 0, "others are served");
	ok(becomes("pinned", 0) && becomes("waiting", 0) && becomes("reading", 0), "nothing is held for it");
	ring_close(&other);
}

static unsigned int set_policy(int sock, struct moe_msg_policy *m)
{
	begin(m, sizeof *m, MOE_MSG_POLICY, 0);
	return exchange(sock, m, sizeof *m, NULL, 0);
}

/* What a message may say; what a policy does is test-frames'. */
static void test_policy(void)
{
	const struct moe_msg_error *e = (const struct moe_msg_error *)answer;
	struct moe_msg_policy m = {.policy = "ema"};
	const int sock = connect_raw();

	hello(sock);
	ok(set_policy(sock, &m) == (MOE_MSG_POLICY | MOE_MSG_REPLY), "the only model gets another policy");
	memset(m.policy, 'a', sizeof m.policy);
	ok(set_policy(sock, &m) == MOE_MSG_ERROR && e->msg.status == -EINVAL, "one that does not end: %s", e->text);
	m = (struct moe_msg_policy){.policy = "lru"};
	memset(m.name, 'a', sizeof m.name);
	ok(set_policy(sock, &m) == MOE_MSG_ERROR && e->msg.status == -EINVAL, "a name that does not end: %s", e->text);
	m = (struct moe_msg_policy){0};
	ok(set_policy(sock, &m) == MOE_MSG_ERROR && strstr(e->text, "lru"), "an empty policy: %s", e->text);
	close(sock);
}

int main(void)
{
	struct ring ring;

	fixture_start(&fixture, fixture_sample(), (const char *const[]){"--pool-max", "3538944", NULL});
	open_tiered(&ring);
	test_memory();
	test_leases(&ring);
	test_leaving(&ring);
	test_policy();
	ok(asked("models", "failures") == 0, "no read has failed");
	ok(alive(), "the daemon is alive");
	ok(fixture_stop(&fixture) == 0, "and ends with 0");
	return tap_done();
}
