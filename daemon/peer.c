/* SPDX-License-Identifier: MIT */
#include "daemon/peer.h"

#include <errno.h>
#include <poll.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fdmsg.h"
#include "base/util.h"
#include "daemon/closer.h"
#include "daemon/estate.h"
#include "daemon/events.h"
#include "daemon/peer-messages.h"
#include "daemon/ringsrv.h"
#include "daemon/service.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

/* Messages taken from one peer before the others have their turn. */
#define MESSAGES_MAX 16
#define MESSAGES_NS 100000u /* for so long another one is begun: an attach takes some hundreds of microseconds */
/* Room for some twenty replies: a peer that does not read them holds few of our descriptors in flight. */
#define SEND_BUFFER 16384
/* The socket and the pidfd. */
#define PEER_FDS 2
/* In the answer to ATTACH, beside those of the pools, and in one other. */
#define ATTACHED_FDS 5
#define CLOSER_FULL "too many file descriptors that this user has sent wait to be closed"

/* -- the socket --------------------------------------------------------------------------------------------------- */

static bool waits_for_answer(const struct peer *peer)
{
	return peer->asks || peer->kept_ns || peer->service->load_peer == peer || peer->service->trace_peer == peer;
}

void peer_asking(struct peer *peer, bool takes)
{
	struct session *s = peer->session;

	if (s)
		s->journal.page->asked = s->journal.page->answered + (takes || waits_for_answer(peer) || s->unkept);
}

/* Before its descriptors are taken, so that those of a broken message never are: NULL, or what is wrong with it. */
static const char *check_first(const struct peer *peer, const struct moe_msg *msg, size_t bytes)
{
	const char *wrong = peer_check(peer, msg, bytes, bytes < sizeof *msg ? 0 : msg->fds);

	if (!wrong && msg->fds == 0)
		wrong = "a message with a wrong number of file descriptors";
	if (!wrong && !closer_has_room(peer->uid))
		wrong = CLOSER_FULL;
	return wrong;
}

static void take_message(struct peer *peer)
{
	alignas(8) char buffer[MOE_PROTO_MAX];
	struct moe_error err = {0};
	int fds[FDMSG_FDS_ANY], r = -EPROTO;
	const char *wrong = "a broken message";
	size_t n_fds;
	const long n = fdmsg_take(peer->source.fd, buffer, sizeof buffer, fds, &n_fds);

	if (n > 0)
		wrong = peer_check(peer, (const struct moe_msg *)buffer, (size_t)n, n_fds);
	if (!wrong) {
		r = peer_answer(peer, buffer, fds, &err);
		if (r < 0)
			peer_send_error(peer, r, err.text);
	}
	closer_take(fds, n_fds, peer->uid, r == 0); /* what was accepted is mapped, or duplicated */
	if (wrong)
		peer_close(peer, wrong);
}

static bool receive_one(struct peer *peer)
{
	alignas(8) char buffer[MOE_PROTO_MAX];
	const char *wrong = NULL;
	bool has_fds = false;
	long n;

	peer_asking(peer, true);
	n = fdmsg_peek(peer->source.fd, buffer, sizeof buffer, &has_fds);
	if (n == -EAGAIN) {
		peer_asking(peer, false);
		return false;
	}
	if (n <= 0) {
		peer_close(peer, n == 0 || n == -ECONNRESET ? NULL : "a broken message");
		return false;
	}
	if (has_fds)
		wrong = check_first(peer, (const struct moe_msg *)buffer, (size_t)n);
	if (wrong)
		peer_close(peer, wrong);
	else
		take_message(peer);
	peer_asking(peer, false);
	return !peer->closed;
}

static void socket_ready(struct source *source, uint32_t events)
{
	struct peer *peer = container_of(source, struct peer, source);
	const bool left = events & (POLLHUP | POLLERR | POLLRDHUP);
	const uint64_t begin = now_ns();

	/* What is left makes it ready again, also where the peer has left. */
	for (int i = 0; i < MESSAGES_MAX && !peer->closed && now_ns() - begin < MESSAGES_NS; i++)
		if (!receive_one(peer)) {
			if (left)
				peer_close(peer, NULL); /* or is closed */
			break;
		}
}

static void pidfd_ready(struct source *source, uint32_t events)
{
	peer_close(container_of(source, struct peer, pidfd), NULL);
}

static void free_peer(struct peer *peer)
{
	if (peer->unread)
		closer_take_socket(peer->source.fd, peer->uid);
	else
		close_fd(peer->source.fd);
	peer_forget_document(peer);
	charge_close(&peer->charge);
	peer->service->trim |= peer->hello && !peer->service->sessions; /* sessions go first, at times */
	free(peer);
}

/* What its session had on the account for them is given back with the session. */
static void charge_in_flight(struct peer *peer)
{
	const uint64_t held = peer->charge.held[ACCOUNT_FDS];

	peer->charge.granted = true;
	if (peer->in_flight > held)
		charge_take(&peer->charge, ACCOUNT_FDS, peer->in_flight - held, "connect", NULL);
}

static void source_gone(struct peer *peer)
{
	if (--peer->sources > 0)
		return;
	close_fd(peer->pidfd.fd);
	close_fd(peer->region);
	if (peer->in_flight == 0 || !peer_has_unread(peer)) {
		free_peer(peer);
		return;
	}
	charge_in_flight(peer);
	peer->next = peer->service->unheard;
	peer->service->unheard = peer;
}

void peers_look(struct service *service, bool all)
{
	struct peer **at = &service->unheard;

	while (*at) {
		struct peer *peer = *at;

		if (all || !peer_has_unread(peer)) {
			*at = peer->next;
			free_peer(peer);
		} else {
			at = &peer->next;
		}
	}
}

static void socket_gone(struct source *source)
{
	source_gone(container_of(source, struct peer, source));
}

static void pidfd_gone(struct source *source)
{
	source_gone(container_of(source, struct peer, pidfd));
}

/* The process at the other end, held by a pidfd so that its number cannot be reused behind our back. */
static int peer_pidfd(int sock, pid_t pid)
{
	int fd;
	socklen_t size = sizeof fd;

	if (getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0)
		return fd;
	return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

/* A connection that is refused has no peer: it gets the reason and is closed. */
static void turn_away(int sock, int code, const char *text)
{
	struct moe_msg_error e = {
		.msg = {.magic = MOE_PROTO_MAGIC, .type = MOE_MSG_ERROR, .bytes = sizeof e, .status = code}};

	snprintf(e.text, sizeof e.text, "%s", text);
	fdmsg_send(sock, &e, sizeof e, NULL, 0, 1);
}

/* Before Linux 6.16 it may have sent descriptors already, whose last close waits. */
static void close_stranger(int sock, uid_t uid)
{
	shutdown(sock, SHUT_RDWR);
	if (closer_has_room(uid) && fdmsg_unread(sock))
		closer_take_socket(sock, uid);
	else
		close_fd(sock);
}

static int charge_peer(struct peer *peer, bool granted, struct moe_error *err)
{
	int r = charge_open(&peer->charge, peer->service->accounts, peer->uid, err);

	if (r < 0)
		return r;
	peer->charge.granted = granted;
	r = charge_take(&peer->charge, ACCOUNT_CONNECTIONS, 1, "connect", err);
	if (r == 0)
		r = charge_take(&peer->charge, ACCOUNT_FDS, PEER_FDS, "connect", err);
	return r;
}

static int watch_peer(struct peer *peer, struct moe_error *err)
{
	struct loop *loop = peer->service->loop;
	int r = loop_add(loop, &peer->source, err);

	if (r < 0)
		return r;
	peer->sources = 1;
	peer->pidfd.fd = peer_pidfd(peer->source.fd, peer->pid);
	if (peer->pidfd.fd >= 0 && loop_add(loop, &peer->pidfd, NULL) == 0)
		peer->sources++;
	return 0;
}

static int peer_make(struct service *service, int sock, bool granted, struct moe_error *ret_err)
{
	struct ucred cred;
	socklen_t size = sizeof cred;
	struct peer *peer = calloc(1, sizeof *peer);
	struct moe_error err = {0};
	int r;

	if (!peer || getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &size) < 0) {
		free(peer);
		close_fd(sock);
		return moe_error_sys(ret_err, -ENOMEM, "connection");
	}
	setsockopt(sock, SOL_SOCKET, SO_SNDBUF, &(int){SEND_BUFFER}, sizeof(int));
	*peer = (struct peer){
		.source = {.fd = sock, .ready = socket_ready, .gone = socket_gone},
		.pidfd = {.fd = -1, .ready = pidfd_ready, .gone = pidfd_gone},
		.service = service,
		.pid = cred.pid,
		.uid = cred.uid,
		.region = -1,
	};
	r = granted || closer_has_room(cred.uid) ? charge_peer(peer, granted, &err)
						 : moe_error_set(&err, -EDQUOT, CLOSER_FULL);
	if (r == 0)
		r = watch_peer(peer, &err);
	if (r < 0) {
		if (!granted)
			turn_away(sock, r, err.text);
		else
			*ret_err = err;
		charge_close(&peer->charge);
		close_stranger(sock, cred.uid);
		free(peer);
		return r;
	}
	fdmsg_pass_fds(sock, true);
	peer->next = service->peers;
	service->peers = peer;
	service->n_peers++;
	service->door.strangers++;
	return 0;
}

int peer_new(struct service *service, int sock)
{
	return peer_make(service, sock, false, NULL);
}

int peer_revive(struct service *service, int sock, struct session *session, struct moe_error *err)
{
	int r = peer_make(service, sock, true, err);

	service_add_session(service, session);
	if (r < 0)
		return r;
	service->peers->hello = true;
	service->door.strangers--;
	service->peers->session = session;
	service->peers->in_flight = ATTACHED_FDS + session->entry->model->n_pools; /* they may be unread still */
	session->pid = service->peers->pid;
	if (session->attach.dp_size)
		r = agreement_join(&service->agreements, session, err);
	if (r < 0)
		return r;
	ringsrv_revive(session, service->sched);
	session->charge.granted = service->peers->charge.granted = false;
	return 0;
}

/* The number is kept until the kernel has let go of the poll. */
static void unlink_peer(struct peer *peer)
{
	struct service *service = peer->service;
	struct peer **at = &service->peers;
	const bool watches_pid = peer->sources > 1;

	peer->closed = true;
	if (service->load_peer == peer)
		service->load_peer = NULL;
	service_trace_left(service, peer);
	service_forget_waiting(service, peer);
	while (*at != peer)
		at = &(*at)->next;
	*at = peer->next;
	service->n_peers--;
	service->door.strangers -= !peer->hello;
	loop_remove(service->loop, &peer->source);
	if (watches_pid)
		loop_remove(service->loop, &peer->pidfd);
}

void peer_close(struct peer *peer, const char *why)
{
	struct service *service = peer->service;

	if (peer->closed)
		return;
	peer->closed = true;
	if (why)
		event_log(EVENT_DROPPED,
			  FACTS(.session = peer->session ? peer->session->id : 0, .pid = peer->pid, .uid = peer->uid,
				.reason = why),
			  "pid %d (uid %u): connection closed: %s", peer->pid, peer->uid, why);
	if (peer->session) {
		event_log(EVENT_LEFT,
			  FACTS(.session = peer->session->id, .pid = peer->pid, .uid = peer->uid,
				.model = peer->session->entry->model->manifest->name),
			  "session %llu: pid %d has left", (unsigned long long)peer->session->id, peer->pid);
		estate_drop_session(service->handover, peer->session);
		service_kill_session(service, peer->session);
		peer->session = NULL;
	}
	shutdown(peer->source.fd, SHUT_RDWR); /* the peer sees the end now */
	peer->unread = fdmsg_unread(peer->source.fd);
	unlink_peer(peer);
}

void peer_leave(struct peer *peer)
{
	if (!peer->session) {
		peer_close(peer, NULL);
		return;
	}
	if (peer->kept_ns) {
		service_forget_waiting(peer->service, peer);
		peer_kept(peer);
	}
	if (peer->closed)
		return;
	if (peer->asks)
		peer_send_goodbye(peer, -ECANCELED, "query: the daemon ends");
	service_leave_session(peer->service, peer->session);
	peer->session = NULL;
	unlink_peer(peer);
}
