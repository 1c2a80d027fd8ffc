/* SPDX-License-Identifier: MIT */
/*
 * modqueue - the daemon as a server of its queue in the kernel module, with a module and sessions that this test plays:
 * a request goes to whom the kernel names and to nobody else, those of a session in their order, each is answered once,
 * and what the daemon before had fetched comes again; by ioctl and by io_uring. The real module is in
 * tests/kmod/clients-6.12.t, and by ioctl in clients-6.1.t.
 */
#include "daemon/modqueue.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "daemon/ringsrv.h"
#include "tests/tap.h"

#define REQUESTS 600
#define DEVICE 7 /* of the client */

/* -- a module ----------------------------------------------------------------------------------------------------- */

static struct {
	uint32_t queue, recovered; /* which there is; requests in it that were fetched before */
	uint32_t n, fetched;       /* requests, and how many of them were told */
	struct moe_kmod_fetched requests[REQUESTS];
	uint64_t at[MODQUEUE_DEPTH]; /* seq of what has a tag */
	uint32_t committed[REQUESTS + 1];
	int status[REQUESTS + 1];
	bool ended;
	int broken; /* what FETCH says */
} fake;

static void ask(uint64_t client, uint32_t pid, uint32_t uid)
{
	fake.requests[fake.n] = (struct moe_kmod_fetched){.seq = fake.n + 1, .client = client, .pid = pid, .uid = uid};
	fake.requests[fake.n].sqe[0] = fake.n + 1;
	fake.n++;
}

static int fetch(const struct moe_kmod_tag *tag)
{
	struct moe_kmod_fetched *next = &fake.requests[fake.fetched];

	if (fake.broken)
		return fake.broken;
	if (fake.fetched == fake.n)
		return EAGAIN;
	if (tag->tag >= MODQUEUE_DEPTH || fake.at[tag->tag])
		return EBUSY;
	next->tag = tag->tag;
	next->flags = fake.fetched < fake.recovered ? MOE_KMOD_FETCHED_REISSUED : 0;
	fake.at[tag->tag] = next->seq;
	memcpy((void *)(uintptr_t)tag->to, next, sizeof *next);
	fake.fetched++;
	return 0;
}

static int commit(const struct moe_kmod_tag *tag)
{
	if (!tag->seq || fake.at[tag->tag] != tag->seq)
		return ESTALE;
	fake.at[tag->tag] = 0;
	fake.committed[tag->seq]++;
	fake.status[tag->seq] = tag->answer.status;
	return 0;
}

static int next_queue(struct moe_kmod_queue *queue)
{
	if (!fake.queue || queue->id >= fake.queue)
		return ENOENT;
	*queue = (struct moe_kmod_queue){.id = fake.queue, .owner = geteuid(), .depth = MODQUEUE_DEPTH};
	return 0;
}

static int fake_command(int fd, unsigned long command, void *arg)
{
	switch (command) {
	case MOE_KMOD_QUEUE:
		errno = next_queue(arg);
		break;
	case MOE_KMOD_QUEUE_NEW:
		errno = fake.queue ? EEXIST : 0;
		((struct moe_kmod_queue_new *)arg)->id = fake.queue = 1;
		break;
	case MOE_KMOD_RECOVER:
		((struct moe_kmod_recover *)arg)->depth = MODQUEUE_DEPTH;
		((struct moe_kmod_recover *)arg)->reissued = fake.recovered;
		errno = 0;
		break;
	case MOE_KMOD_FETCH:
		errno = fetch(arg);
		break;
	case MOE_KMOD_COMMIT:
		errno = commit(arg);
		break;
	default:
		fake.ended = command == MOE_KMOD_QUEUE_END;
		errno = 0;
	}
	return errno ? -1 : 0;
}

static int fake_open(const char *path, int flags)
{
	return open("/dev/null", flags);
}

static const struct modpools_ops ops = {fake_open, fake_command};
static struct modpools used = {
	.ops = &ops, .state = MODPOOLS_USED, .features = MOE_KMOD_HAS_POOLS | MOE_KMOD_HAS_QUEUE};

/* Its ring: of FETCHes those that wait, and completions. */
static struct {
	struct moe_kmod_tag waits[MODQUEUE_DEPTH];
	struct {
		uint64_t tag;
		int result;
	} done[2 * MODQUEUE_DEPTH];
	uint32_t n_waits, n_done, taken;
	uint32_t commands[2]; /* COMMIT_AND_FETCH, FETCH */
	int refuses;          /* what the kernel says of a command */
	uint32_t times;       /* so often */
	uint32_t wants; /* memory, so often: it says so by a completion, and the module has not seen the command */
	bool forbidden;
} ring;

static void complete(uint64_t tag, int result)
{
	ring.done[ring.n_done].tag = tag;
	ring.done[ring.n_done++].result = result;
	if (ring.n_done == ARRAY_LEN(ring.done))
		require(false, "completions have room");
}

/* What can be told is told. */
static void tell(void)
{
	while (ring.n_waits > 0) {
		const int r = fetch(&ring.waits[0]);

		if (r == EAGAIN)
			return;
		complete(ring.waits[0].tag, -r);
		memmove(&ring.waits[0], &ring.waits[1], --ring.n_waits * sizeof ring.waits[0]);
	}
}

int cmdring_open(struct cmdring *ret, int device, uint32_t commands, bool calm)
{
	ring.commands[0] = ring.commands[1] = 0;
	ring.n_waits = ring.n_done = ring.taken = 0;
	ret->fd = ring.forbidden ? -1 : open("/dev/null", O_RDONLY);
	return ring.forbidden ? -EPERM : 0;
}

void cmdring_close(struct cmdring *r)
{
	if (r->fd >= 0)
		close(r->fd);
	r->fd = -1;
}

int cmdring_issue(struct cmdring *r, int device, uint32_t command, const void *bytes, void *to, uint64_t user_data)
{
	struct moe_kmod_tag tag;
	int refused = 0;

	memcpy(&tag, bytes, sizeof tag);
	if (ring.times > 0) {
		ring.times--;
		return ring.refuses;
	}
	if (ring.wants > 0) {
		ring.wants--;
		complete(user_data, -ENOMEM);
		return 0;
	}
	ring.commands[command == MOE_KMOD_FETCH]++;
	if (command == MOE_KMOD_COMMIT_AND_FETCH)
		refused = commit(&tag);
	if (refused) {
		complete(user_data, -refused);
		return 0;
	}
	if (ring.n_waits == MODQUEUE_DEPTH || user_data != tag.tag)
		require(false, "a tag waits once");
	tag.seq = 0;
	ring.waits[ring.n_waits++] = tag;
	tell();
	return 0;
}

bool cmdring_next(struct cmdring *r, uint64_t *ret_user_data, int *ret_result)
{
	tell();
	if (ring.taken == ring.n_done) {
		ring.taken = ring.n_done = 0;
		return false;
	}
	*ret_user_data = ring.done[ring.taken].tag;
	*ret_result = ring.done[ring.taken++].result;
	return true;
}

/* -- sessions and a reactor --------------------------------------------------------------------------------------- */

static struct modqueue queue;
static uint32_t room = UINT32_MAX;                                /* of each session, in all */
static uint64_t order[REQUESTS], entered, tags_entered[REQUESTS]; /* what sessions got, by user_data */
static uint32_t listens;
static uint64_t reads; /* 0, or as much as a turn may read */

bool ringsrv_enter(struct session *s, struct sched *sched, const struct moe_sqe *sqe, uint32_t tag, uint64_t seq,
		   uint64_t *read)
{
	if (!room || *read > 0)
		return false;
	room--;
	*read = reads;
	tags_entered[entered] = tag;
	order[entered++] = sqe->user_data;
	return sqe->user_data == seq;
}

int loop_add(struct loop *loop, struct source *source, struct moe_error *err)
{
	return 0;
}

int loop_again(struct loop *loop, struct source *source)
{
	listens++;
	return 0;
}

void loop_remove(struct loop *loop, struct source *source)
{
}

static struct session *a_session(pid_t pid, uid_t uid)
{
	struct session *s = calloc(1, sizeof *s);

	require(s != NULL, "room for a session");
	s->attach.client = DEVICE;
	s->pid = pid;
	s->uid = uid;
	modqueue_join(&queue, s);
	return s;
}

static void begin(void)
{
	memset(&queue, 0, sizeof queue);
	entered = listens = 0;
	room = UINT32_MAX;
	modqueue_open(&queue, &used);
	modqueue_watch(&queue, (struct loop *)&queue, NULL);
}

static void turns(void)
{
	queue.source.ready(&queue.source, 0);
	while (modqueue_turn(&queue, NULL))
		;
	modqueue_park(&queue);
}

static bool by_ring(void)
{
	return used.features & MOE_KMOD_HAS_URING;
}

static void answer_all(void)
{
	for (uint64_t i = 0; i < entered; i++)
		modqueue_commit(&queue, (uint32_t)tags_entered[i], &(struct moe_cqe){.status = 0});
}

static bool in_order(uint64_t from, uint64_t n)
{
	bool good = entered == n;

	for (uint64_t i = 0; i < n; i++)
		good &= order[i] == from + i;
	return good;
}

/* -- tests -------------------------------------------------------------------------------------------------------- */

static void test_identity(void)
{
	struct session *s;

	begin();
	ok(queue.id == 1, "a queue is made");
	s = a_session(100, 1000);
	ok(modqueue_has(&queue, DEVICE, 100, 1000) && !modqueue_has(&queue, DEVICE, 101, 1000), "it is known");
	ask(DEVICE, 100, 1000);
	ask(DEVICE, 101, 1000);
	ask(DEVICE, 100, 1001);
	ask(DEVICE + MODQUEUE_BUCKETS, 100, 1000);
	turns();
	ok(in_order(1, 1), "its own request, and none of another process, user or open device");
	ok(fake.status[2] == -ENOTCONN && fake.status[3] == -ENOTCONN && fake.status[4] == -ENOTCONN &&
		   queue.refused == 3,
	   "those are told that they have no session");
	ok(listens == 1, "it listens again");
	answer_all();
	modqueue_part(s);
	ask(DEVICE, 100, 1000);
	turns();
	ok(fake.status[5] == -ENOTCONN, "nor has it one when it has left");
	free(s);
	modqueue_close(&queue, true);
	ok(fake.ended, "an end in order ends the queue");
}

static void test_room(void)
{
	struct session *s;
	const uint32_t first = fake.n + 1;
	bool once = true;

	fake.queue = 0;
	begin();
	s = a_session(100, 1000);
	while (fake.n < REQUESTS)
		ask(DEVICE, 100, 1000);
	room = 3;
	turns();
	ok(in_order(first, 3) && fake.fetched == first - 1 + MODQUEUE_DEPTH, "without room requests keep their tags");
	ok(by_ring() || listens == 0, "and with all tags taken nobody listens");
	room = UINT32_MAX;
	while (fake.fetched < fake.n || queue.first || queue.come) {
		const uint64_t before = entered;

		for (; modqueue_turn(&queue, NULL);)
			;
		if (entered == before)
			break;
		for (uint64_t i = before == 3 ? 0 : before; i < entered; i++)
			modqueue_commit(&queue, (uint32_t)tags_entered[i], &(struct moe_cqe){.status = 0});
	}
	for (uint32_t i = first; i <= fake.n; i++)
		once &= fake.committed[i] == 1;
	ok(in_order(first, fake.n - first + 1) && once, "with room all come, in their order, and are answered once");
	modqueue_part(s);
	free(s);
	fake.ended = false;
	modqueue_close(&queue, false);
	ok(!fake.ended, "what is left to a successor is not ended");
}

static void test_again(void)
{
	struct session *s;

	memset(&fake, 0, sizeof fake);
	fake.queue = 9;
	fake.recovered = 2;
	ask(DEVICE, 100, 1000);
	ask(DEVICE, 100, 1000);
	ask(DEVICE, 100, 1000);
	begin();
	ok(queue.id == 9 && queue.reissued == 2, "a successor goes on with the queue, and has what was in work");
	ok(modqueue_issues(&queue, 1) && modqueue_issues(&queue, 2) && !modqueue_issues(&queue, 3) &&
		   !modqueue_issues(NULL, 1),
	   "it knows what was issued again, before any session is there");
	s = a_session(100, 1000);
	turns();
	ok(in_order(1, 3), "and gives it to its session, before what is new");
	answer_all();
	modqueue_part(s);
	free(s);
	modqueue_close(&queue, true);
}

/* Of two sessions with much to read each turn takes one request; and where sessions leave nothing is told. */
static void test_turns(void)
{
	struct session *s, *other;

	memset(&fake, 0, sizeof fake);
	begin();
	s = a_session(100, 1000);
	other = a_session(101, 1000);
	for (uint32_t i = 0; i < 4; i++)
		ask(DEVICE, 100 + i % 2, 1000);
	reads = 1;
	queue.source.ready(&queue.source, 0);
	ok(modqueue_turn(&queue, NULL) && entered == 1, "who reads as much as a turn may is alone in it");
	ok(modqueue_turn(&queue, NULL) && entered == 2, "the next one has the next turn");
	modqueue_leave(&queue);
	modqueue_part(s);
	modqueue_part(other);
	ask(DEVICE, 100, 1000);
	ok(!modqueue_turn(&queue, NULL) && queue.refused == 0 && !fake.committed[3] && !fake.committed[5],
	   "what waits when sessions are left to a successor is not answered here");
	reads = 0;
	free(s);
	free(other);
	modqueue_close(&queue, false);
}

static void test_broken(void)
{
	memset(&fake, 0, sizeof fake);
	begin();
	fake.broken = EPERM;
	turns();
	ok(queue.id == 0 && queue.fd < 0 && listens == 0, "a queue that cannot be fetched from is offered no more");
	turns();
	ok(!queue.asked && strcmp(modqueue_way(&queue), "none") == 0, "nor asked");
	modqueue_close(&queue, true);
	ok(!queue.tags, "and goes in order");
}

static void test_absent(void)
{
	struct modpools modpools = used;

	modpools.features = MOE_KMOD_HAS_POOLS;
	modqueue_open(&queue, &modpools);
	ok(queue.id == 0 && !modqueue_turn(&queue, NULL), "a module without queues: none is served");
	modqueue_close(&queue, true);
}

/* Requests that are asked for one after another, each answered before the next: by one command each. */
static void test_commands(void)
{
	struct session *s;

	memset(&fake, 0, sizeof fake);
	begin();
	ok(strcmp(modqueue_way(&queue), "io_uring") == 0 && ring.commands[1] == MODQUEUE_DEPTH,
	   "a FETCH waits for each tag");
	s = a_session(100, 1000);
	for (uint32_t i = 0; i < 10; i++) {
		ask(DEVICE, 100, 1000);
		turns();
		modqueue_commit(&queue, (uint32_t)tags_entered[i], &(struct moe_cqe){.status = 0});
	}
	ok(in_order(1, 10) && ring.commands[0] == 10 && ring.commands[1] == MODQUEUE_DEPTH,
	   "then one command for each request");
	ask(DEVICE, 100, 1000);
	turns();
	fake.at[tags_entered[10]] = 99;
	ok(modqueue_commit(&queue, (uint32_t)tags_entered[10], &(struct moe_cqe){.status = 0}) == -ESTALE,
	   "an answer that is not taken: who gives it knows");
	ok(queue.id && ring.commands[1] == MODQUEUE_DEPTH + 1, "and its tag fetches again");
	fake.at[tags_entered[10]] = 0;
	ask(DEVICE, 100, 1000);
	turns();
	ring.refuses = -ENOMEM;
	ring.times = 3;
	ok(modqueue_commit(&queue, (uint32_t)tags_entered[11], &(struct moe_cqe){.status = 0}) == 0 &&
		   fake.committed[12] == 1,
	   "a kernel without memory is asked again");
	ask(DEVICE, 100, 1000);
	turns();
	modqueue_leave(&queue);
	ring.commands[0] = 0;
	ok(modqueue_commit(&queue, (uint32_t)tags_entered[12], &(struct moe_cqe){.status = 0}) == 0 &&
		   fake.committed[13] == 1 && ring.commands[0] == 0,
	   "who leaves answers, and fetches no more");
	modqueue_part(s);
	free(s);
	modqueue_close(&queue, false);
}

/* The kernel says by completions that it wants memory. */
static void test_wants(void)
{
	struct session *s;

	memset(&fake, 0, sizeof fake);
	ring.wants = 3;
	begin();
	ok(ring.n_waits == MODQUEUE_DEPTH - 3, "a kernel that wants memory does not take some FETCHes");
	s = a_session(100, 1000);
	turns();
	ok(queue.id && ring.n_waits == MODQUEUE_DEPTH, "they are issued again");
	ask(DEVICE, 100, 1000);
	turns();
	ring.wants = 3;
	ring.commands[0] = 0;
	ok(modqueue_commit(&queue, (uint32_t)tags_entered[0], &(struct moe_cqe){.status = 0}) == 0 &&
		   fake.committed[1] == 1 && ring.commands[0] == 1,
	   "and so is an answer, which is given once");
	ok(ring.n_waits == MODQUEUE_DEPTH, "all tags fetch");
	modqueue_part(s);
	free(s);
	modqueue_close(&queue, false);
}

/* What ends the queue stands before what has become of an answer. */
static void test_order_of_ends(void)
{
	struct session *s;

	memset(&fake, 0, sizeof fake);
	begin();
	s = a_session(100, 1000);
	ask(DEVICE, 100, 1000);
	turns();
	fake.at[tags_entered[0]] = 99;
	complete((tags_entered[0] + 1) % MODQUEUE_DEPTH, -ESHUTDOWN);
	ok(modqueue_commit(&queue, (uint32_t)tags_entered[0], &(struct moe_cqe){.status = 0}) == -ESTALE && !queue.id,
	   "an answer that is not taken, as the queue ends: who gives it knows");
	modqueue_part(s);
	free(s);
	modqueue_close(&queue, false);
}

/* The kernel takes nothing any more. */
static void test_refused(void)
{
	struct session *s;

	memset(&fake, 0, sizeof fake);
	begin();
	s = a_session(100, 1000);
	ask(DEVICE, 100, 1000);
	turns();
	ring.refuses = -EPERM;
	ring.times = 1;
	ok(modqueue_commit(&queue, (uint32_t)tags_entered[0], &(struct moe_cqe){.status = 0}) == -EPERM &&
		   queue.id == 0 && !fake.committed[1],
	   "an answer that cannot be given: the queue is parked for who can");
	modqueue_part(s);
	free(s);
	modqueue_close(&queue, false);
	ring.forbidden = true;
	fake.queue = 0;
	begin();
	ok(queue.id == 1 && strcmp(modqueue_way(&queue), "ioctl") == 0, "without a ring: by ioctl");
	modqueue_close(&queue, true);
	ring.forbidden = false;
}

int main(void)
{
	for (int way = 0; way < 2; way++) {
		memset(&fake, 0, sizeof fake);
		used.features = MOE_KMOD_HAS_POOLS | MOE_KMOD_HAS_QUEUE | (way ? MOE_KMOD_HAS_URING : 0);
		printf("# %s\n", way ? "by io_uring" : "by ioctl");
		test_identity();
		test_room();
		test_again();
		test_turns();
		test_broken();
	}
	test_commands();
	test_wants();
	test_order_of_ends();
	test_refused();
	test_absent();
	return tap_done();
}
