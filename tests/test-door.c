/* SPDX-License-Identifier: MIT */
/* Who comes in: the kernel takes connections in by itself while few (DOOR_STRANGERS_MAX) have not said who they are,
 * one comes in a turn while there are as many, and several again when some have left. Who comes to a socket that a
 * killed daemon still listens on comes in, too. */
#include <errno.h>
#include <liburing.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/util.h"
#include "daemon/door.h"
#include "tests/tap.h"

#define CLIENTS (2 * DOOR_STRANGERS_MAX)
#define TURNS_MAX 10000

struct house {
	struct door door;
	struct loop *loop;
	struct sockaddr_un address;
	socklen_t address_bytes;
	int clients[CLIENTS], guests[CLIENTS];
	uint32_t n_clients, n_guests;
};

static bool nothing(void *userdata)
{
	return false;
}

static void no_more(void *userdata)
{
}

/* As the daemon's: who comes is a stranger. */
static void enters(struct door *door, int sock)
{
	struct house *h = container_of(door, struct house, door);

	h->guests[h->n_guests++] = sock;
	door->strangers++;
}

/* An abstract name that the kernel chooses: no file is left. */
static int listen_somewhere(struct house *h)
{
	const int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	h->address.sun_family = AF_UNIX;
	h->address_bytes = sizeof h->address;
	require(sock >= 0 && bind(sock, (struct sockaddr *)&h->address, sizeof h->address.sun_family) == 0 &&
			listen(sock, CLIENTS) == 0 &&
			getsockname(sock, (struct sockaddr *)&h->address, &h->address_bytes) == 0,
		"a socket listens");
	return sock;
}

static void come(struct house *h, uint32_t n)
{
	for (; n > 0; n--) {
		const int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

		if (connect(sock, (struct sockaddr *)&h->address, h->address_bytes) < 0)
			require(false, "a client can connect: error %d", errno);
		h->clients[h->n_clients++] = sock;
	}
}

/* The most that came in within one turn, until all who came are in. */
static uint32_t most_in_a_turn(struct house *h)
{
	uint32_t most = 0;

	for (int i = 0; i < TURNS_MAX && h->n_guests < h->n_clients; i++) {
		const uint32_t before = h->n_guests;

		loop_turn(h->loop);
		most = MAX(most, h->n_guests - before);
	}
	return most;
}

static void test_bound(struct house *h)
{
	uint32_t most;

	come(h, DOOR_STRANGERS_MAX - 1);
	most = most_in_a_turn(h);
	ok(h->n_guests == DOOR_STRANGERS_MAX - 1 && most > 1, "%u strangers are taken in, up to %u in a turn",
	   h->n_guests, most);
	ok(h->door.source.takes, "the kernel takes in who comes next");
	come(h, 1);
	most_in_a_turn(h);
	for (int i = 0; i < 4; i++) /* until the kernel has heard that it is to end */
		loop_turn(h->loop);
	ok(h->n_guests == DOOR_STRANGERS_MAX && !h->door.source.takes, "it does so no more with %d strangers",
	   DOOR_STRANGERS_MAX);
	come(h, 16);
	most = most_in_a_turn(h);
	ok(h->n_guests == h->n_clients && most == 1, "who comes then comes in one a turn (%u)", most);
	h->door.strangers = 0;
	come(h, 1); /* who finds that there is room again */
	most_in_a_turn(h);
	come(h, 16);
	most = most_in_a_turn(h);
	ok(h->n_guests == h->n_clients && most > 1, "when all have said who they are, several come in a turn (%u)",
	   most);
}

/* A ring that takes connections in and never looks at what it has been told: a killed daemon's, before the kernel has
 * come to its end. False: this kernel has no such thing. */
static bool listen_and_die(struct io_uring *ring, int sock)
{
	if (io_uring_queue_init(4, ring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN) < 0)
		return false;
	io_uring_prep_multishot_accept(io_uring_get_sqe(ring), sock, NULL, NULL, SOCK_CLOEXEC);
	return io_uring_submit(ring) == 1;
}

static void test_inherited(struct house *h)
{
	struct moe_error error = {0};
	struct io_uring dead;
	int sock;

	h->n_clients = h->n_guests = 0;
	sock = listen_somewhere(h);
	if (!listen_and_die(&dead, sock)) {
		tap_skip("no kernel that lets a ring be deaf");
		close(sock);
		return;
	}
	door_init(&h->door, enters);
	require(door_open(&h->door, sock, true, h->loop, &error) == 0, "an inherited door is open: %s", error.text);
	loop_turn(h->loop);
	come(h, 3);
	most_in_a_turn(h);
	ok(h->n_guests == 3, "%u of 3 come in where a dead daemon listens as well", h->n_guests);
	door_close(&h->door);
	loop_drain(h->loop);
	door_free(&h->door);
	io_uring_queue_exit(&dead);
	close(sock);
}

int main(void)
{
	static struct house h;
	const struct loop_hooks hooks = {.poll = nothing, .park = nothing, .unpark = no_more};
	struct moe_error error = {0};
	int r, sock;

	unsetenv("MOE_ACCEPT");
	r = loop_new(&h.loop, &hooks, &error);
	if (r < 0) {
		tap_skip("no io_uring: %s", error.text);
		return tap_done();
	}
	sock = listen_somewhere(&h);
	door_init(&h.door, enters);
	require(door_open(&h.door, sock, false, h.loop, &error) == 0, "the door is open: %s", error.text);
	come(&h, 1);
	most_in_a_turn(&h);
	require(h.n_guests == 1, "the first one is in");
	h.door.strangers = 0;
	h.n_clients = h.n_guests = 0;
	if (h.door.many)
		test_bound(&h);
	else
		tap_skip("this kernel has no multishot accept");
	door_close(&h.door);
	loop_drain(h.loop);
	door_free(&h.door);
	close(sock);
	test_inherited(&h);
	loop_free(h.loop);
	return tap_done();
}
