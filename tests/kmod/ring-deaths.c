/* SPDX-License-Identifier: MIT */
/*
 * Deaths of rings: the daemon, a client, and both at once are killed with what their rings have posted in each state.
 *
 * Law of each scene: this process is a second client, and after every death a third process recovers the queue and
 * serves it by a ring of its own. Every request of who lives is answered once, every request of who died is gone, no
 * seq is committed twice, and the module counts nothing at the end.
 *
 * Who dies follows a script of one letter a step, up to a '.', where it waits to be told to go on or to be killed:
 *   daemon: n makes the queue, r recovers it, f posts FETCH of the next tag, w waits for one completion,
 *           c posts COMMIT_AND_FETCH for each tag that has a request, v serves until it is told that all is done
 *   client: s SUBMITs by its ring, S by ioctl, p posts a poll for what is to be reaped, A waits for all answers
 */
#include "tests/kmod/rings.h"

#include <poll.h>

#define TAGS 2u
#define MOST 256u   /* requests of a scene */
#define POLLED 999u /* user_data of the poll */

static struct said {
	uint32_t queue, reissued;
	uint64_t committed[MOST];
	_Atomic uint32_t n_committed;
	uint32_t asked, answered; /* of the client that may die */
	uint32_t wrong;
	_Atomic bool done;
} * said;

struct side {
	int dev;
	struct io_uring ring;
	uint32_t fetches; /* tags that were posted once */
	bool posted[TAGS], has[TAGS];
	struct moe_kmod_fetched f[TAGS];
	struct moe_kmod_answer answer;
	uint32_t by_ring, by_ioctl;
};

static void post_fetch(struct side *d, uint32_t tag)
{
	ring_fetch(&d->ring, d->dev, said->queue, tag, &d->f[tag]);
	d->posted[tag] = true;
}

static void commit_all(struct side *d)
{
	for (uint32_t tag = 0; tag < TAGS; tag++) {
		if (!d->has[tag])
			continue;
		if (said->n_committed < MOST)
			said->committed[said->n_committed++] = d->f[tag].seq;
		ring_commit_and_fetch(&d->ring, d->dev, said->queue, &d->f[tag], &d->f[tag]);
		d->has[tag] = false;
		d->posted[tag] = true;
	}
}

static void completed(struct side *d, uint64_t tag, int32_t res)
{
	if (res != 0 || tag >= TAGS || !d->posted[tag]) {
		said->wrong++;
		return;
	}
	d->posted[tag] = false;
	d->has[tag] = true;
}

static void serve(struct side *d)
{
	struct io_uring_cqe *cqe;

	for (uint32_t tag = 0; tag < TAGS; tag++)
		if (!d->posted[tag] && !d->has[tag])
			post_fetch(d, tag);
	while (!said->done) {
		commit_all(d);
		if (io_uring_peek_cqe(&d->ring, &cqe) < 0) {
			usleep(200);
			continue;
		}
		completed(d, cqe->user_data, cqe->res);
		io_uring_cqe_seen(&d->ring, cqe);
	}
}

static void daemon_step(struct side *d, char step)
{
	uint64_t tag = TAGS;
	int32_t res;

	switch (step) {
	case 'n':
		said->queue = queue_new(d->dev, TAGS, 0);
		break;
	case 'r':
		said->wrong += queue_recover(d->dev, said->queue, &said->reissued) < 0;
		break;
	case 'f':
		post_fetch(d, d->fetches++);
		break;
	case 'w':
		res = ring_next(&d->ring, &tag, NULL);
		completed(d, tag, res);
		break;
	case 'c':
		commit_all(d);
		break;
	default:
		serve(d);
	}
}

static void await_answers(struct side *c)
{
	struct moe_kmod_reap r;
	uint64_t end = 0, data;
	int32_t res;

	while (c->by_ring && (res = ring_next(&c->ring, &data, NULL)) != INT32_MIN) {
		if (data == POLLED)
			continue;
		c->by_ring--;
		said->answered += res == 0;
		said->wrong += res != 0;
	}
	while (c->by_ioctl && (reap(c->dev, &r) == 0 || tap_wait(&end)))
		if (r.user_data) {
			c->by_ioctl--;
			said->answered++;
		}
	said->wrong += reap(c->dev, &r) == 0;
}

static void client_step(struct side *c, char step)
{
	struct io_uring_sqe *sqe;

	switch (step) {
	case 's':
		ring_submit(&c->ring, c->dev, said->queue, ++said->asked, &c->answer);
		c->by_ring++;
		break;
	case 'S':
		said->wrong += submit(c->dev, said->queue, ++said->asked) < 0;
		c->by_ioctl++;
		break;
	case 'p':
		sqe = ring_entry(&c->ring);
		io_uring_prep_poll_add(sqe, c->dev, POLLPRI);
		sqe->user_data = POLLED;
		io_uring_submit(&c->ring);
		break;
	default:
		await_answers(c);
	}
}

static void follow(const char *script, void (*step)(struct side *side, char step))
{
	static struct side side;

	side.dev = device_open();
	if (side.dev < 0 || !ring_new(&side.ring, 0))
		_exit(97);
	for (; *script; script++)
		if (*script == '.')
			child_ready();
		else
			step(&side, *script);
}

static void a_daemon(void *script)
{
	follow(script, daemon_step);
}

static void a_client(void *script)
{
	follow(script, client_step);
}

/* -- scenes ----------------------------------------------------------------------------------------------------- */

enum { DAEMON = 1, CLIENT = 2, BOTH = 3 };

static const struct scene {
	const char *name;
	const char *daemon; /* begins the scene; behind its first '.' what it does when all have submitted */
	const char *client; /* after this process has submitted */
	uint32_t mine;      /* requests of this process */
	uint32_t committed; /* when they die */
	uint32_t mine_taken, its_taken;
	bool stops; /* the daemon is stopped from its first '.': what it is told is on its way when it dies */
} scenes[] = {
	{"FETCH posted, and a REAP waits", "nff..v.", "p.A.", 0, 0, 0, 0, false},
	{"SUBMIT waits", "n..v.", "ss.A.", 1, 0, 0, 0, false},
	{"requests taken", "nff.ww.v.", "s.A.", 1, 0, 1, 1, false},
	{"COMMIT_AND_FETCH waits", "nff.wwc.v.", "s.A.", 1, 2, 0, 0, false},
	{"COMMIT_AND_FETCH has taken the next", "nf.wcw.v.", "ss.A.", 1, 1, 0, 1, false},
	{"a REAP waits for what was taken", "nff.ww.v.", "Sp.A.", 1, 0, 1, 1, false},
	{"an answer waits for its REAP", "nff.wwc.v.", "Sp.A.", 1, 2, 0, 0, false},
	{"a request is on its way to a stopped daemon", "nff..v.", "s.A.", 1, 0, 0, 0, true},
};

/* Answers of this process, by its own ring, each of 1 to `mine` once. */
static uint32_t answers_of_mine(struct io_uring *ring, uint32_t mine)
{
	uint32_t once = 0;
	uint64_t data = 0, seen = 0;

	for (uint32_t i = 0; i < mine && ring_next(ring, &data, NULL) == 0; i++) {
		once += data < 64 && !(seen >> data & 1);
		seen |= 1ull << (data & 63);
	}
	return ring_is_quiet(ring) ? once : 0;
}

static bool none_committed_twice(void)
{
	for (uint32_t i = 0; i < said->n_committed; i++)
		for (uint32_t k = 0; k < i; k++)
			if (said->committed[i] == said->committed[k])
				return false;
	return true;
}

static void stop_there(const struct child *c)
{
	kill(c->pid, SIGSTOP);
	waitpid(c->pid, NULL, WUNTRACED);
}

/* The daemon is at its second '.', the client at its first. */
static void set_up(const struct scene *s, struct io_uring *mine, int dev, struct child *daemon, struct child *client)
{
	memset(said, 0, sizeof *said);
	*daemon = child_start(a_daemon, (void *)(uintptr_t)s->daemon);
	child_wait_ready(daemon);
	if (s->stops)
		stop_there(daemon);
	for (uint32_t i = 1; i <= s->mine; i++)
		ring_submit(mine, dev, said->queue, i, NULL);
	*client = child_start(a_client, (void *)(uintptr_t)s->client);
	child_wait_ready(client);
	child_go(daemon);
	if (!s->stops)
		child_wait_ready(daemon);
}

static void die(int who, struct child *daemon, struct child *client)
{
	if (who & DAEMON)
		kill(daemon->pid, SIGKILL);
	if (who & CLIENT)
		kill(client->pid, SIGKILL);
	if (who & DAEMON)
		child_end(daemon, SIGKILL);
	if (who & CLIENT)
		child_end(client, SIGKILL);
}

static void test_scene(const struct scene *s, int who, struct io_uring *mine, int dev)
{
	static const char *const names[] = {"", "the daemon", "a client", "both"};
	struct child daemon, client, successor = {.pid = 0};
	const uint32_t left = s->mine_taken + (who == DAEMON ? s->its_taken : 0);
	uint32_t its;

	set_up(s, mine, dev, &daemon, &client);
	ok(said->n_committed == s->committed && said->wrong == 0, "%s: so it is", s->name);
	die(who, &daemon, &client);
	if (who & DAEMON) {
		ok(queue_state(dev, said->queue).served == 0 && queue_state(dev, said->queue).fetched == 0,
		   "%s: %s killed: the queue is parked", s->name, who == BOTH ? "both are" : "the daemon is");
		successor = child_start(a_daemon, (void *)(uintptr_t) "r.v.");
		child_wait_ready(&successor);
		ok(s->stops || said->reissued == left, "%s: %u are issued again, %u expected", s->name, said->reissued,
		   left);
	}
	child_go(who & DAEMON ? &successor : &daemon);
	if (s->stops && !(who & DAEMON)) {
		kill(daemon.pid, SIGCONT);
		child_wait_ready(&daemon);
		child_go(&daemon);
	}
	ok(answers_of_mine(mine, s->mine) == s->mine, "%s: %s killed: each request of another is answered once",
	   s->name, names[who]);
	its = said->asked;
	if (!(who & CLIENT)) {
		child_go(&client);
		child_wait_ready(&client);
		ok(said->answered == its, "%s: its client has each of %u answers once", s->name, its);
		child_end(&client, SIGKILL);
	}
	ok(counter_becomes("requests", 0), "%s: %s killed: no request is left", s->name, names[who]);
	said->done = true;
	child_wait_ready(who & DAEMON ? &successor : &daemon);
	ok(none_committed_twice() && said->wrong == 0, "%s: %s killed: none is committed twice, nothing fails (%u)",
	   s->name, names[who], said->wrong);
	child_end(who & DAEMON ? &successor : &daemon, SIGKILL);
	ok(queue_end(dev, said->queue) == 0 && counter_becomes("queues", 0), "%s: the queue is ended", s->name);
}

/* -- at any moment ---------------------------------------------------------------------------------------------- */

enum { ROUNDS = 30, OPEN = 12 };

static struct tally {
	bool open[OPEN];
	uint32_t left;
	uint64_t answered, wrong;
} tally;

static void ask(struct io_uring *mine, int dev)
{
	for (uint32_t i = 0; i < OPEN; i++)
		if (!tally.open[i]) {
			tally.open[i] = true;
			tally.left++;
			ring_submit(mine, dev, said->queue, i, NULL);
		}
}

/* What has completed within a millisecond, if anything. */
static void look(struct io_uring *mine)
{
	struct __kernel_timespec limit = {.tv_nsec = 1000000};
	struct io_uring_cqe *cqe;

	while (io_uring_wait_cqe_timeout(mine, &cqe, &limit) == 0) {
		const uint64_t i = cqe->user_data;

		if (i >= OPEN || !tally.open[i] || cqe->res != 0) {
			tally.wrong++;
		} else {
			tally.open[i] = false;
			tally.left--;
			tally.answered++;
		}
		io_uring_cqe_seen(mine, cqe);
		if (tally.answered % OPEN == 0)
			return;
	}
}

static void test_any_moment(struct io_uring *mine, int dev)
{
	struct child daemon, client;
	uint64_t end = 0;

	memset(said, 0, sizeof *said);
	tally = (struct tally){.left = 0};
	daemon = child_start(a_daemon, (void *)(uintptr_t) "n.");
	child_wait_ready(&daemon);
	child_end(&daemon, SIGKILL);
	for (unsigned i = 0; i < ROUNDS; i++) {
		daemon = child_start(a_daemon, (void *)(uintptr_t) "r.v.");
		client = child_start(a_client, (void *)(uintptr_t) "ssSp.A.");
		child_wait_ready(&daemon);
		child_wait_ready(&client);
		child_go(&daemon);
		child_go(&client);
		for (unsigned k = 0; k < 1 + i % 9; k++) {
			ask(mine, dev);
			look(mine);
		}
		die(i % 3 == 0 ? DAEMON : BOTH, &daemon, &client);
		if (i % 3 == 0)
			child_end(&client, SIGKILL);
	}
	daemon = child_start(a_daemon, (void *)(uintptr_t) "r.v.");
	child_wait_ready(&daemon);
	child_go(&daemon);
	while (tally.left && tap_wait(&end))
		look(mine);
	ok(tally.answered > ROUNDS && tally.left == 0 && tally.wrong == 0 && ring_is_quiet(mine),
	   "killed %d times at any moment: %llu requests by a ring, each answered once", ROUNDS,
	   (unsigned long long)tally.answered);
	ok(counter_becomes("requests", 0), "and none is left");
	said->done = true;
	child_wait_ready(&daemon);
	child_end(&daemon, SIGKILL);
	ok(queue_end(dev, said->queue) == 0 && counter_becomes("queues", 0), "and the queue is ended");
}

/* -- a ring whose task is stopped ------------------------------------------------------------------------------- */

static pid_t *keeps; /* the process that has the ring's last descriptor */

/* Its FETCHes wait in a ring that another process keeps: this one has neither its descriptor nor its memory. */
static void a_daemon_apart(void *arg)
{
	static struct side side;
	pid_t pid;

	side.dev = device_open();
	said->queue = queue_new(side.dev, TAGS, 0);
	if (!said->queue || !ring_new(&side.ring, 0))
		_exit(97);
	for (uint32_t tag = 0; tag < TAGS; tag++)
		post_fetch(&side, tag);
	pid = fork();
	while (pid == 0)
		pause();
	*keeps = pid;
	io_uring_queue_exit(&side.ring);
	child_ready();
	child_ready();
}

/* Hundredths of seconds that all processors were in the kernel for processes. */
static unsigned long long ticks_in_kernel(void)
{
	unsigned long long user, nice, kernel = 0;
	FILE *file = fopen("/proc/stat", "re");

	if (!file || fscanf(file, "cpu %llu %llu %llu", &user, &nice, &kernel) != 3)
		diag("/proc/stat");
	if (file)
		fclose(file);
	return kernel;
}

/* What it is told of is on its way to a task that is stopped, and cannot be cancelled, when the ring ends. */
static void test_stopped_task(int dev)
{
	const int client = device_open();
	unsigned long long ticks;
	struct child daemon;

	memset(said, 0, sizeof *said);
	keeps = mmap(NULL, sizeof *keeps, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	daemon = child_start(a_daemon_apart, NULL);
	child_wait_ready(&daemon);
	stop_there(&daemon);
	for (uint64_t i = 1; i <= TAGS; i++)
		submit(client, said->queue, i);
	kill(*keeps, SIGKILL);
	sleep(1); /* it has ended, and the kernel's worker has begun */
	ticks = ticks_in_kernel();
	sleep(2);
	ticks = ticks_in_kernel() - ticks;
	ok(ticks < 100, "a ring ends whose task is stopped: the kernel waits for it, and works little (%llu%%)",
	   ticks / 2);
	ok(queue_state(dev, said->queue).fetched == TAGS, "what the task is to be told stays its own");
	kill(daemon.pid, SIGCONT);
	child_go(&daemon);
	child_wait_ready(&daemon);
	child_end(&daemon, SIGKILL);
	ok(queue_state(dev, said->queue).waiting == TAGS, "it goes on and dies: its requests wait for the next one");
	close(client);
	ok(counter_becomes("requests", 0) && queue_end(dev, said->queue) == 0, "and go with their client");
	munmap(keeps, sizeof *keeps);
}

void test_ring_deaths(void)
{
	struct io_uring mine;
	int dev = device_open();

	if (!rings_there(dev)) {
		tap_skip("rings and deaths: io_uring is spoken since Linux 6.7");
		close(dev);
		return;
	}
	said = mmap(NULL, sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	require(said != MAP_FAILED && ring_new(&mine, 0), "memory, and a ring");
	for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
		for (int who = DAEMON; who <= BOTH; who++)
			test_scene(&scenes[i], who, &mine, dev);
	test_any_moment(&mine, dev);
	test_stopped_task(dev);
	io_uring_queue_exit(&mine);
	munmap(said, sizeof *said);
	close(dev);
}
