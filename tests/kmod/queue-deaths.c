/* SPDX-License-Identifier: MIT */
/* Deaths around a queue: of a client and the daemon at each state of a request, of both, and what is issued again. */
#include <sys/epoll.h>

#include "tests/kmod/queues.h"

#define ASKED 20

static struct said {
	uint32_t queue;
	struct moe_kmod_fetched f;
	uint64_t answered; /* of a client that goes on until it is told */
	uint64_t wrong;
	bool done;
	pid_t grandchild;
} * said;

static void a_daemon(void *arg)
{
	int dev = device_open();

	said->queue = queue_new(dev, 4, 0);
	child_ready();
	fetch(dev, said->queue, 0, &said->f);
	child_ready();
}

static void a_client(void *arg)
{
	int dev = device_open();

	submit(dev, said->queue, 1);
	child_ready();
}

static void a_parent(void *arg)
{
	int dev = device_open();
	pid_t pid;

	submit(dev, said->queue, 1);
	pid = fork();
	while (pid == 0)
		pause();
	said->grandchild = pid;
	child_ready();
}

static void test_client_dies(int dev)
{
	struct moe_kmod_fetched f;
	struct moe_kmod_event e;
	struct child c;

	c = child_start(a_client, NULL);
	child_wait_ready(&c);
	child_end(&c, SIGKILL);
	ok(counter("requests") == 0 && fetch(dev, said->queue, 0, &f) < 0 && errno == EAGAIN,
	   "a client is killed while its request waits: it is dropped");
	c = child_start(a_client, NULL);
	child_wait_ready(&c);
	fetch(dev, said->queue, 2, &f);
	child_end(&c, SIGKILL);
	ok(counter("requests") == 1 && f.pid == (uint32_t)c.pid, "and while the daemon has it: the tag keeps it");
	ok(read(dev, &e, sizeof e) == sizeof e && e.type == MOE_KMOD_EVENT_ORPHAN && e.lease == f.seq && e.state == 2 &&
		   e.pool == said->queue && e.epoch == f.client && e.pid == (uint32_t)c.pid,
	   "the daemon reads of it");
	ok(commit(dev, said->queue, 2, f.seq, 0) == 0 && counter("requests") == 0, "it is answered into nothing");
	c = child_start(a_client, NULL);
	child_wait_ready(&c);
	serve_all(dev, said->queue);
	child_end(&c, SIGKILL);
	ok(counter("requests") == 0, "and while it has not reaped its answer");
	c = child_start(a_parent, NULL);
	child_wait_ready(&c);
	child_end(&c, SIGKILL);
	ok(counter("requests") == 0, "and while its child has the device open");
	kill(said->grandchild, SIGKILL);
}

/* The daemon is killed while it has one of two requests; its successor gets both, each once. */
static void test_daemon_dies(void)
{
	struct child daemon = child_start(a_daemon, NULL);
	int client = device_open(), dev = device_open();
	struct epoll_event pri = {.events = EPOLLPRI}, heard;
	const int hears = epoll_create1(EPOLL_CLOEXEC);
	struct moe_kmod_fetched f;
	struct moe_kmod_reap r;
	uint32_t again = 9;
	int seen[2] = {0};

	child_wait_ready(&daemon);
	submit(client, said->queue, 0);
	submit(client, said->queue, 1);
	child_go(&daemon);
	child_wait_ready(&daemon);
	child_end(&daemon, SIGKILL);
	ok(queue_state(dev, said->queue).served == 0 && queue_state(dev, said->queue).waiting == 2,
	   "a daemon is killed: the queue is parked, with what it had");
	fails(fetch(dev, said->queue, 0, &f), EPERM, "nobody fetches until it is recovered");
	fails(reap(client, &r), EAGAIN, "its client waits on");
	ok(submit(client, said->queue, 2) == 0, "and may submit");
	require(hears >= 0 && epoll_ctl(hears, EPOLL_CTL_ADD, dev, &pri) == 0 && epoll_wait(hears, &heard, 1, 0) == 0,
		"a successor waits for requests before it recovers the queue");
	ok(queue_recover(dev, said->queue, &again) == 0 && again == 1, "a successor recovers it");
	ok(epoll_wait(hears, &heard, 1, 0) == 1 && heard.events == EPOLLPRI, "and hears of what waits there");
	close(hears);
	ok(fetch(dev, said->queue, 3, &f) == 0 && f.flags == MOE_KMOD_FETCHED_REISSUED && f.seq == said->f.seq &&
		   f.client == said->f.client && memcmp(f.sqe, said->f.sqe, sizeof f.sqe) == 0,
	   "it gets first what the other had, as it was");
	commit(dev, said->queue, 3, f.seq, 0);
	ok(fetch(dev, said->queue, 3, &f) == 0 && f.flags == 0 && f.sqe[0] == 1, "then the others");
	commit(dev, said->queue, 3, f.seq, 0);
	while (reap(client, &r) == 0)
		seen[r.user_data]++;
	ok(seen[0] == 1 && seen[1] == 1, "each is answered once");
	close(dev);
	ok(queue_state(client, said->queue).served == 0, "it closes the device: parked again");
	dev = device_open();
	queue_recover(dev, said->queue, &again);
	close(client);
	ok(counter("requests") == 0 && queue_end(dev, said->queue) == 0, "what is left goes with the client");
	close(dev);
}

static void test_both_die(void)
{
	struct child daemon = child_start(a_daemon, NULL), client;
	int dev = device_open();

	child_wait_ready(&daemon);
	client = child_start(a_client, NULL);
	child_wait_ready(&client);
	child_go(&daemon);
	child_wait_ready(&daemon);
	kill(client.pid, SIGKILL);
	child_end(&daemon, SIGKILL);
	child_end(&client, SIGKILL);
	ok(counter("requests") == 0 && queue_state(dev, said->queue).fetched == 0, "both are killed at once");
	ok(queue_end(dev, said->queue) == 0, "the queue is left, and ended");
	close(dev);
}

static void test_deadline(void)
{
	int daemon = device_open(), client = device_open();
	uint32_t q = queue_new(daemon, 2, 100), n;
	struct moe_kmod_fetched f;
	struct moe_kmod_reap r;
	int seen = 0;

	submit(client, q, 1);
	submit(client, q, 2);
	fetch(daemon, q, 0, &f);
	close(daemon);
	ok(counter_becomes("queues", 0), "a queue that nobody recovers ends");
	while (reap(client, &r) == 0)
		seen += r.answer.status == -EHOSTDOWN;
	ok(seen == 2, "its requests get EHOSTDOWN");
	fails(queue_recover(client, q, &n), ESTALE, "nobody recovers it then");
	close(client);
}

/* Asks all the time; each question must get one answer, in whatever order, however often its daemon dies. */
static void an_asker(void *arg)
{
	int dev = device_open();
	uint8_t open[ASKED] = {0};
	struct moe_kmod_reap r;
	int left = 0;

	child_ready();
	while (!said->done || left) {
		for (int i = 0; i < ASKED && !said->done; i++)
			if (!open[i] && submit(dev, said->queue, (uint64_t)i) == 0) {
				open[i] = 1;
				left++;
			}
		while (reap(dev, &r) == 0) {
			if (r.user_data >= ASKED || !open[r.user_data] || r.answer.status != 0) {
				said->wrong++;
				continue;
			}
			open[r.user_data] = 0;
			left--;
			said->answered++;
		}
	}
}

/* Recovers, and serves several at a time, until it is killed. */
static void a_server(void *arg)
{
	int dev = device_open();
	struct moe_kmod_fetched f[4];
	bool has[4] = {false};
	uint32_t again;

	queue_recover(dev, said->queue, &again);
	child_ready();
	for (uint32_t i = 0;; i = (i + 1) % 4) {
		if (has[i])
			commit(dev, said->queue, i, f[i].seq, 0);
		has[i] = fetch(dev, said->queue, i, &f[i]) == 0;
	}
}

static void test_many(void)
{
	enum { ROUNDS = 40 };
	int dev = device_open();
	struct child asker, server;
	const int64_t before = counter("reissued");
	uint32_t again;

	said->queue = queue_new(dev, 4, 0);
	said->done = false;
	said->answered = said->wrong = 0;
	close(dev);
	asker = child_start(an_asker, NULL);
	child_wait_ready(&asker);
	child_go(&asker);
	for (int i = 0; i < ROUNDS; i++) {
		server = child_start(a_server, NULL);
		child_wait_ready(&server);
		child_go(&server);
		usleep(1000 * (unsigned)(i % 20));
		child_end(&server, SIGKILL);
	}
	said->done = true;
	dev = device_open();
	ok(queue_recover(dev, said->queue, &again) == 0, "a daemon is killed %d times at any moment", ROUNDS);
	while (waitpid(asker.pid, NULL, WNOHANG) == 0)
		serve_all(dev, said->queue);
	ok(said->answered > 0 && said->wrong == 0 && counter("requests") == 0,
	   "%llu requests, each answered once (%lld were issued again)", (unsigned long long)said->answered,
	   (long long)(counter("reissued") - before));
	close(asker.ready);
	close(asker.go);
	queue_end(dev, said->queue);
	close(dev);
}

void test_queue_deaths(void)
{
	int dev = device_open_flags(O_RDWR | O_NONBLOCK);

	said = mmap(NULL, sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	said->queue = queue_new(dev, 4, 0);
	ioctl(dev, MOE_KMOD_WATCH, &(struct moe_kmod_watch){0});
	test_client_dies(dev);
	queue_end(dev, said->queue);
	close(dev);
	test_daemon_dies();
	test_both_die();
	test_deadline();
	test_many();
	munmap(said, sizeof *said);
}
