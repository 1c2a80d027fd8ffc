/* SPDX-License-Identifier: MIT */
/*
 * While there is no daemon a client leaves in its connection what waits when it is closed for the last time: the keeper
 * is the last holder, and starts the next daemon all the same.
 */
#include <signal.h>

#include "base/util.h"
#include "tests/lingering.h"
#include "tests/raw-client.h"

#define DEAD_US 300000 /* what an io_uring has in use is closed a while after its process */

static struct ring rings[2];

/* A message of no kind, with all that its sender has of the connection. */
static void leave(struct ring *r, int tcp)
{
	require(fdmsg_send(r->sock, "xxxxxxxx", 8, &tcp, 1, 0) >= 0, "sent");
	close(tcp);
	close(r->sock);
}

/* Of the keeper, zombies counted: another one than `before`. */
static bool is_only_child(pid_t before)
{
	char command[64], text[64];
	uint64_t end = 0;
	uint32_t n;
	pid_t child = 0;

	snprintf(command, sizeof command, "ps -o pid= --ppid %d", fixture.pid);
	do {
		FILE *f = popen(command, "r");

		for (n = 0; f && fgets(text, sizeof text, f); n++)
			child = (pid_t)atoi(text);
		if (f)
			pclose(f);
	} while (n != 1 && tap_wait(&end));
	return n == 1 && child != before;
}

int main(void)
{
	const int listening = listen_tcp();
	const struct moe_sqe nop = {.op = MOE_OP_NOP};
	pid_t daemon;
	int tcp;

	if (listening < 0) {
		tap_skip("no TCP here");
		return tap_done();
	}
	fixture_start(&fixture, fixture_sample(), (const char *const[]){"--keep", NULL});
	for (int i = 0; i < 2; i++)
		ring_open(&rings[i]);
	daemon = (pid_t)asked("status", "pid");
	tcp = lingering(listening);
	require(daemon > 0 && tcp >= 0, "a connection that lingers");
	kill(fixture.pid, SIGSTOP);
	kill(daemon, SIGKILL);
	usleep(DEAD_US);
	leave(&rings[0], tcp);
	kill(fixture.pid, SIGCONT);
	ok(ring_call(&rings[1], &nop, NULL) == 0 && asked("status", "restarts") == 1,
	   "the other session goes on with the next daemon");
	ok(asked("status", "sessions") == 1, "and the one that left is gone");
	ok(is_only_child(daemon), "no child is left but the next daemon");
	ring_close(&rings[1]);
	close(listening);
	ok(fixture_stop(&fixture) == 0, "SIGTERM ends keeper and daemon");
	return tap_done();
}
