/* SPDX-License-Identifier: MIT */
/* Users share a queue: none has more of its tags than are free, so nobody waits for another's; and they take turns. */
#include "tests/kmod/rings.h"

#include <sys/epoll.h>
#include <sys/stat.h>

#define DEPTH 8u
#define MANY 10 /* requests: more than there are tags */

struct user {
	uint32_t queue;
	uid_t uid;
	int devices, requests; /* that it opens; that it asks with each */
};

static void be_user(void *arg)
{
	const struct user *u = arg;

	if (setresgid(u->uid, u->uid, u->uid) < 0 || setresuid(u->uid, u->uid, u->uid) < 0)
		_exit(2);
	for (int d = 0; d < u->devices; d++) {
		const int dev = device_open();

		for (int i = 0; i < u->requests; i++)
			if (submit(dev, u->queue, (uint64_t)(u->uid * 100 + (unsigned)(10 * d + i))) < 0)
				_exit(3);
	}
	child_ready();
}

static struct child user_start(const struct user *u)
{
	struct child c = child_start(be_user, (void *)(uintptr_t)u);

	child_wait_ready(&c);
	return c;
}

/* Into the tags from `from` on, until FETCH says EAGAIN: how many, and whether all of them are this user's. */
static uint32_t fetch_all(int dev, uint32_t queue, uint32_t from, uid_t uid, struct moe_kmod_fetched *to)
{
	uint32_t n = 0;
	bool good = true;

	for (; from + n < DEPTH && fetch(dev, queue, from + n, &to[from + n]) == 0; n++)
		good &= to[from + n].uid == uid;
	return good ? n : UINT32_MAX;
}

static void commit_some(int dev, uint32_t queue, uint32_t from, uint32_t to, const struct moe_kmod_fetched *f)
{
	for (uint32_t i = from; i < to; i++)
		commit(dev, queue, i, f[i].seq, 0);
}

/* One who asks for more than there is, then another, then the owner. */
static void test_tags(int dev, uint32_t q)
{
	const struct user greedy = {q, SOMEBODY, 1, MANY}, late = {q, SOMEBODY_ELSE, 1, MANY}, owner = {q, 0, 1, MANY};
	struct child one = user_start(&greedy), other, own;
	struct epoll_event edge = {.events = EPOLLPRI | EPOLLET};
	struct moe_kmod_fetched f[DEPTH];
	const int hears = epoll_create1(EPOLL_CLOEXEC);

	ok(fetch_all(dev, q, 0, SOMEBODY, f) == 4 && queue_state(dev, q).waiting == MANY - 4,
	   "alone a user has 4 of 8 tags");
	fails(fetch(dev, q, 4, &f[4]), EAGAIN, "and no fifth one");
	ok(!polls_pri(dev), "poll does not tell of what may not be fetched");
	other = user_start(&late);
	ok(polls_pri(dev) && fetch_all(dev, q, 4, SOMEBODY_ELSE, f) == 2, "one who comes later has 2 of the other 4");
	own = user_start(&owner);
	ok(fetch_all(dev, q, 6, 0, f) == 2 && queue_state(dev, q).fetched == DEPTH, "the queue's owner what is left");
	commit_some(dev, q, 6, DEPTH, f);
	ok(fetch_all(dev, q, 6, 0, f) == 2, "and again");
	child_end(&own, SIGKILL);
	commit_some(dev, q, 6, DEPTH, f);
	ok(!polls_pri(dev), "what the others ask waits on");
	require(epoll_ctl(hears, EPOLL_CTL_ADD, dev, &edge) == 0, "epoll");
	ok(epoll_wait(hears, &edge, 1, 0) == 0, "nothing is told of the tags that are free");
	commit_some(dev, q, 5, 6, f);
	ok(epoll_wait(hears, &edge, 1, 0) == 1,
	   "an answer, after which the user has fewer than are free, wakes the daemon");
	close(hears);
	ok(fetch_all(dev, q, 5, SOMEBODY_ELSE, f) == 1, "and one more is fetched");
	child_end(&one, SIGKILL);
	fails(fetch(dev, q, 6, &f[6]), EAGAIN, "what the daemon has of one who was killed counts");
	commit_some(dev, q, 0, 4, f);
	ok(fetch(dev, q, 0, &f[0]) == 0 && f[0].uid == SOMEBODY_ELSE, "until it is answered");
	commit_some(dev, q, 0, 1, f);
	commit_some(dev, q, 4, 6, f);
	child_end(&other, SIGKILL);
	ok(counter("requests") == 0, "then nothing is left");
}

static void test_turns(int dev, uint32_t q)
{
	const struct user crowd = {q, SOMEBODY, 3, 2}, single = {q, SOMEBODY_ELSE, 1, 3};
	struct child many = user_start(&crowd), one = user_start(&single);
	/* Of the first user by device, then by request. */
	static const unsigned order[] = {0, 100, 10, 101, 20, 102, 1, 11, 21};
	struct moe_kmod_fetched f;
	int good = 0;

	for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
		if (fetch(dev, q, 0, &f) < 0)
			break;
		good += f.sqe[0] == SOMEBODY * 100u + order[i];
		commit(dev, q, 0, f.seq, 0);
	}
	ok(good == sizeof order / sizeof *order, "users take turns, however many devices each has (%d)", good);
	child_end(&many, SIGKILL);
	child_end(&one, SIGKILL);
}

/* A successor gets all that was fetched, whatever its users have by then; then the law holds. */
static void test_again(uint32_t q)
{
	const struct user greedy = {q, SOMEBODY, 1, MANY};
	struct moe_kmod_fetched f[DEPTH];
	struct child one;
	uint32_t again;
	int dev = device_open();

	queue_recover(dev, q, &again);
	one = user_start(&greedy);
	fetch_all(dev, q, 0, SOMEBODY, f);
	close(dev);
	dev = device_open();
	ok(queue_recover(dev, q, &again) == 0 && again == 4, "a successor has 4 to fetch again");
	ok(fetch_all(dev, q, 0, SOMEBODY, f) == 4 && f[3].flags & MOE_KMOD_FETCHED_REISSUED, "and no fifth one");
	ok(queue_end(dev, q) == 0, "the queue ends with users in it");
	child_end(&one, SIGKILL);
	close(dev);
}

/* A FETCH of io_uring waits while only who has enough asks, and gets what an answer sets free. */
static void test_ring(void)
{
	const int dev = device_open();
	const uint32_t q = queue_new(dev, DEPTH, 0);
	const struct user greedy = {q, SOMEBODY, 1, MANY};
	struct child one = user_start(&greedy);
	struct moe_kmod_fetched f[DEPTH];
	struct io_uring ring;
	uint64_t tag = 0;

	if (!rings_there(dev) || !ring_new(&ring, 0)) {
		tap_skip("this kernel has no commands of io_uring that can be cancelled");
	} else {
		fetch_all(dev, q, 0, SOMEBODY, f);
		ring_fetch(&ring, dev, q, 7, &f[7]);
		ok(ring_is_quiet(&ring), "by io_uring FETCH waits while only who has enough asks");
		commit_some(dev, q, 0, 1, f);
		ok(ring_next(&ring, &tag, NULL) == 0 && tag == 7 && f[7].uid == SOMEBODY,
		   "and an answer gives it a request");
		io_uring_queue_exit(&ring);
	}
	queue_end(dev, q);
	child_end(&one, SIGKILL);
	close(dev);
}

void test_shares(void)
{
	int dev = device_open();
	const uint32_t q = queue_new(dev, DEPTH, 0);

	chmod(MOE_KMOD_DEVICE, 0666);
	test_tags(dev, q);
	test_turns(dev, q);
	close(dev);
	test_again(q);
	test_ring();
	chmod(MOE_KMOD_DEVICE, 0600);
}
