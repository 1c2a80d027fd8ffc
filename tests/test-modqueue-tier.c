/* SPDX-License-Identifier: MIT */
/*
 * modqueue-tier - a lease on a record of a tiered model that is asked for through the kernel module: its frame stays
 * pinned when the module takes the answer, until the lease is given back, and not when it refuses it, as when somebody
 * has ended the queue. The module and the rest of the daemon are this test's.
 */
#include <errno.h>
#include <stdlib.h>

#include "daemon/agreement.h"
#include "daemon/frames.h"
#include "daemon/model-ghosts.h"
#include "daemon/modqueue.h"
#include "daemon/mover.h"
#include "daemon/registry.h"
#include "daemon/ringsrv-internal.h"
#include "daemon/tier.h"
#include "tests/tap.h"

#define ENTRIES 8u
#define EXPERTS 4u
#define FRAMES (EXPERTS + 2)
#define LEASES 64u

/* -- a module ----------------------------------------------------------------------------------------------------- */

static int refuses; /* COMMIT, with this errno */
static uint64_t lent;

static int fake_command(int fd, unsigned long command, void *arg)
{
	const struct moe_kmod_tag *tag = arg;

	errno = command == MOE_KMOD_COMMIT ? refuses : 0;
	lent = tag->answer.lease;
	return errno ? -1 : 0;
}

static const struct modpools_ops ops = {.command = fake_command};
static struct modqueue_tag tags[ENTRIES];
static struct modqueue queue = {.ops = &ops, .tags = tags, .depth = ENTRIES};

/* -- the rest of the daemon --------------------------------------------------------------------------------------- */

static struct frames *frames;
static uint32_t table[FRAMES], read_into = FRAMES_NONE;
static struct frames_counters counters;

static void on_read(void *userdata, const struct frames_read *read)
{
	read_into = read->frame;
}

struct frames *tier_frames(struct tier *tier)
{
	return frames;
}

int ringsrv_claim(struct session *s, struct sched *sched, struct request *q, bool *ret_wait)
{
	const uint64_t lease = q->sqe.release.lease;

	if (q->sqe.op == MOE_OP_RELEASE)
		journal_set_effect(&s->journal, slot_of(q), JOURNAL_RELEASE, lease);
	return 0;
}

int ringsrv_lend(struct session *s, struct request *q, int row)
{
	q->cqe.lease = journal_free_lease(&s->journal);
	journal_set_effect(&s->journal, slot_of(q), JOURNAL_LEND, q->cqe.lease);
	return 0;
}

const uint64_t *ringsrv_hinted(const struct session *s, uint32_t layer)
{
	return NULL;
}

void ringsrv_drop_routing(struct session *s, struct request *q)
{
}

uint64_t ringsrv_read_bytes(const struct session *s, const struct moe_sqe *e)
{
	return 0;
}

uint64_t ringsrv_routing_bytes(const struct moe_sqe *e)
{
	return 0;
}

void routing_drop(struct routing *routing)
{
}

bool ringsrv_read_ahead(struct session *s, const struct moe_sqe *e, uint64_t *read)
{
	return true;
}

/* What only other requests and other sessions reach. */
static void unreachable(const char *what)
{
	require(false, "%s is not called", what);
}

void agreement_wait(struct session *session, struct request *request)
{
	unreachable("agreement_wait");
}

void sched_queue(struct sched *sched, struct sched_client *client, struct request *request)
{
	unreachable("sched_queue");
}

void mover_saw(struct mover *mover, uint64_t pairs, const struct heat_cell *heat)
{
	unreachable("mover_saw");
}

void model_ghosts_add(struct model_ghosts *to, const struct moe_ghost_stats *from)
{
	unreachable("model_ghosts_add");
}

void loop_look(struct loop *loop)
{
	unreachable("loop_look");
}

int loop_add(struct loop *loop, struct source *source, struct moe_error *err)
{
	return 0;
}

int loop_again(struct loop *loop, struct source *source)
{
	return 0;
}

void loop_remove(struct loop *loop, struct source *source)
{
}

/* -- a session ---------------------------------------------------------------------------------------------------- */

static struct moe_manifest manifest = {.n_layers = 1, .n_moe_layers = 1, .n_experts = EXPERTS};
static int32_t rows[1];
static struct resident model = {.manifest = &manifest, .layer_index = rows};
static struct entry entry = {.model = &model, .tier = (struct tier *)&entry};
static struct request requests[ENTRIES];
static struct moe_error err;
static struct session session = {
	.entry = &entry, .entries = ENTRIES, .requests = requests, .modqueue = &queue, .dummy = true};

static void begin(void)
{
	const struct frames_params params = {.rows = 1,
					     .experts = EXPERTS,
					     .frames = FRAMES,
					     .policy = policy_find("lru"),
					     .table = table,
					     .counters = &counters,
					     .read = on_read};

	require(frames_new(&frames, &params) == 0, "frames");
	session.tier_user = frames_join(frames, 1000);
	require(session.tier_user != NULL, "a user of them");
	require(journal_new(&session.journal, ENTRIES, &err) == 0, "a journal: %s", err.text);
	require(journal_make_leases(&session.journal, 0, LEASES) == 0, "with leases");
}

static void ask(struct moe_sqe sqe)
{
	static uint64_t seq;
	uint64_t read = 0;

	if (!ringsrv_enter(&session, NULL, &sqe, 0, ++seq, &read))
		require(false, "request %llu is entered", (unsigned long long)seq);
	if (read_into != FRAMES_NONE)
		frames_read_done(frames, read_into, 0, 4096);
	read_into = FRAMES_NONE;
}

static uint32_t leased(void)
{
	struct frames_level level;

	frames_level(frames, &level);
	return level.leased;
}

static void lease(uint32_t expert, int refused)
{
	refuses = refused;
	ask((struct moe_sqe){.op = MOE_OP_FILL, .flags = MOE_SQE_LEASE, .fill.expert = expert});
}

static void release(uint64_t number, int refused)
{
	refuses = refused;
	ask((struct moe_sqe){.op = MOE_OP_RELEASE, .release.lease = number});
}

int main(void)
{
	uint64_t first;

	begin();
	lease(1, 0);
	first = lent;
	ok(first && leased() == 1 && session.leases_held == 1 && model.leases == 1, "a lease holds its frame");
	lease(2, ESTALE);
	ok(leased() == 1 && session.leases_held == 1 && model.leases == 1,
	   "one whose answer the module refuses holds none: of frames %u, of leases %u", leased(), session.leases_held);
	for (uint32_t i = 0; i < 3 * FRAMES; i++)
		lease(i % EXPERTS, EPERM);
	ok(leased() == 1 && session.in_flight == 0, "however often");
	lease(1, ESTALE);
	ok(leased() == 1, "nor takes it from another lease of the same record");
	release(first, ESTALE);
	ok(leased() == 1 && session.leases_held == 1, "a RELEASE whose answer is refused has given nothing back");
	release(first, 0);
	ok(leased() == 0 && session.leases_held == 0 && model.leases == 0, "one that is answered has");
	frames_leave(frames, session.tier_user);
	frames_free(frames);
	journal_free(&session.journal);
	return tap_done();
}
