/* SPDX-License-Identifier: MIT */
/*
 * How long a client waits for the daemon's word (moe_open_patient): one that is stopped is connected to all the same,
 * and one that is at work says so now and then, which is a word.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "base/fdmsg.h"
#include "base/util.h"
#include "moe-expert.h"
#include "tests/fixture.h"
#include "uapi/moe_proto.h"

#define SILENT_MS 300
#define SILENT_NS (SILENT_MS * 1000000ull)
#define WORDS 12 /* of a load ... */
#define WORD_NS 100000000

static struct fixture fixture;

static bool given_up(int r, uint64_t began)
{
	const uint64_t took = now_ns() - began;

	return r == -ETIMEDOUT && took >= SILENT_NS && took < TAP_SOON_NS;
}

static void test_stopped(const struct moe_patience *patience)
{
	struct moe_client *client, *other;
	struct moe_error err = {0};
	char *text = NULL;
	uint64_t began;
	int r;

	require(moe_open_patient(&client, fixture.socket, patience, &err) == 0, "opened: %s", err.text);
	kill(fixture.pid, SIGSTOP);
	began = now_ns();
	r = moe_query(client, MOE_DOCUMENT_STATUS, &text, &err);
	ok(given_up(r, began) && !text, "a question to a daemon that is stopped is given up: %s", err.text);
	began = now_ns();
	r = moe_unload(client, "none", &err);
	ok(given_up(r, began), "an order is: %s", err.text);
	began = now_ns();
	r = moe_open_patient(&other, fixture.socket, patience, &err);
	ok(given_up(r, began), "and a connection: %s", err.text);
	kill(fixture.pid, SIGCONT);
	r = moe_query(client, MOE_DOCUMENT_SESSIONS, &text, &err);
	ok(r == 0 && strstr(text, "\"sessions\""), "once it goes on, the next question gets its own answer: %s",
	   err.text);
	free(text);
	moe_close(client);
}

static void on_alarm(int number)
{
}

/* Signals wake who waits, and its time goes on. */
static void test_signals(const struct moe_patience *patience)
{
	const struct itimerval often = {{0, 20000}, {0, 20000}}, never = {{0}, {0}};
	const struct sigaction action = {.sa_handler = on_alarm};
	struct moe_client *client;
	uint64_t began;
	char *text;
	int r;

	require(moe_open_patient(&client, fixture.socket, patience, NULL) == 0, "opened");
	kill(fixture.pid, SIGSTOP);
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	began = now_ns();
	r = moe_query(client, MOE_DOCUMENT_STATUS, &text, NULL);
	ok(given_up(r, began), "also by who gets a signal every 20 ms");
	setitimer(ITIMER_REAL, &never, NULL);
	kill(fixture.pid, SIGCONT);
	moe_close(client);
}

/* The third time that it is asked the daemon goes on. */
static bool wait_thrice(void *userdata)
{
	int *asked = userdata;

	if (++*asked == 3)
		kill(fixture.pid, SIGCONT);
	return true;
}

static void test_waiting_on(void)
{
	int asked = 0;
	const struct moe_patience patience = {sizeof patience, SILENT_MS, wait_thrice, &asked};
	struct moe_client *client;
	char *text = NULL;

	kill(fixture.pid, SIGSTOP);
	require(moe_open_patient(&client, fixture.socket, &patience, NULL) == 0, "opened");
	ok(asked == 3, "who waits on is asked each time: %d", asked);
	asked = 0;
	kill(fixture.pid, SIGSTOP);
	ok(moe_query(client, MOE_DOCUMENT_STATUS, &text, NULL) == 0, "and gets the answer");
	ok(asked == 3, "after %d", asked);
	free(text);
	moe_close(client);
}

static void test_refused(void)
{
	const struct moe_patience patience = {.size = sizeof patience - 1, .silent_ms = SILENT_MS},
				  none = {sizeof none};
	struct moe_client *client = NULL;
	char *text = NULL;

	ok(moe_open_patient(&client, fixture.socket, &patience, NULL) == -EINVAL && !client,
	   "a size that is another's");
	ok(moe_open_patient(&client, fixture.socket, &none, NULL) == 0 &&
		   moe_query(client, MOE_DOCUMENT_STATUS, &text, NULL) == 0,
	   "0 ms is as moe_open");
	free(text);
	moe_close(client);
}

/* -- daemons that the test plays ----------------------------------------------------------------------------------- */

static int listen_at(struct sockaddr_un *address, int backlog)
{
	const int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	*address = (struct sockaddr_un){.sun_family = AF_UNIX};
	snprintf(address->sun_path, sizeof address->sun_path, "%s/played", fixture.folder);
	unlink(address->sun_path);
	require(sock >= 0 && bind(sock, (struct sockaddr *)address, sizeof *address) == 0 && listen(sock, backlog) == 0,
		"listens");
	return sock;
}

static void test_full(const struct moe_patience *patience)
{
	struct sockaddr_un address;
	const int sock = listen_at(&address, 0);
	const int first = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct moe_client *client;
	struct moe_error err = {0};
	uint64_t began;
	int r;

	require(connect(first, (struct sockaddr *)&address, sizeof address) == 0, "the backlog is full");
	began = now_ns();
	r = moe_open_patient(&client, address.sun_path, patience, &err);
	ok(given_up(r, began), "where there is no room to connect: %s", err.text);
	close(first);
	close(sock);
}

/* Of the thread: it is the test's main one that counts. */
static void must(bool good, const char *what)
{
	if (good)
		return;
	diag("the daemon that is played: %s", what);
	abort();
}

static void answer(int sock, void *message, size_t bytes, unsigned int type)
{
	*(struct moe_msg *)message = (struct moe_msg){
		.magic = MOE_PROTO_MAGIC, .type = (__u16)type, .bytes = (__u32)bytes, .status = type ? 0 : -EIO};
	must(fdmsg_send(sock, message, bytes, NULL, 0, 0) == 0, "sent");
}

/* A load that takes longer than anybody's patience and says so, and then says nothing. */
static void *play(void *userdata)
{
	const int listener = *(int *)userdata, sock = accept(listener, NULL, NULL);
	struct moe_msg_hello hello = {.features = MOE_FEATURES_ALL};
	struct moe_msg_progress progress = {.total_bytes = WORDS};
	char question[MOE_PROTO_MAX];

	must(sock >= 0 && recv(sock, question, sizeof question, 0) > 0, "HELLO");
	answer(sock, &hello, sizeof hello, MOE_MSG_HELLO | MOE_MSG_REPLY);
	must(recv(sock, question, sizeof question, 0) > 0, "LOAD");
	for (; progress.done_bytes < WORDS; progress.done_bytes++) {
		nanosleep(&(struct timespec){.tv_nsec = WORD_NS}, NULL);
		answer(sock, &progress, sizeof progress, MOE_MSG_PROGRESS);
	}
	while (recv(sock, question, sizeof question, 0) > 0)
		;
	close(sock);
	return NULL;
}

static void count(const struct moe_progress *p, void *userdata)
{
	++*(int *)userdata;
}

static void test_at_work(const struct moe_patience *patience)
{
	struct sockaddr_un address;
	int sock = listen_at(&address, 1), words = 0, r;
	struct moe_client *client;
	struct moe_error err = {0};
	pthread_t thread;

	pthread_create(&thread, NULL, play, &sock);
	require(moe_open_patient(&client, address.sun_path, patience, &err) == 0, "opened: %s", err.text);
	r = moe_load(client, "/none", NULL, count, &words, &err);
	ok(r == -ETIMEDOUT && words == WORDS, "a load is given up when its progress ends, not before: %d words", words);
	moe_close(client);
	pthread_join(thread, NULL);
	close(sock);
}

int main(void)
{
	const struct moe_patience patience = {.size = sizeof patience, .silent_ms = SILENT_MS};

	fixture_start(&fixture, fixture_sample(), NULL);
	test_stopped(&patience);
	test_signals(&patience);
	test_waiting_on();
	test_refused();
	test_full(&patience);
	test_at_work(&patience);
	ok(fixture_stop(&fixture) == 0, "the daemon ends");
	return tap_done();
}
