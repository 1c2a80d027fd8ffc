/* SPDX-License-Identifier: MIT */
#include "daemon/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fdmsg.h"
#include "base/log.h"
#include "base/memfd.h"
#include "base/util.h"
#include "daemon/documents.h"
#include "daemon/estate.h"
#include "daemon/ringsrv.h"
#include "daemon/service.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

/* Messages taken from one peer before the others have their turn. */
#define MESSAGES_MAX 16
/* Room for some twenty replies: a peer that does not read them holds few of our descriptors in flight. */
#define SEND_BUFFER 16384
/* The socket and the pidfd. */
#define PEER_FDS 2

/* -- replies ------------------------------------------------------------------------------------------------------ */

static int reply(struct peer *peer, void *message, size_t bytes, enum moe_msg_type type, const int *fds, size_t n_fds)
{
	struct moe_msg *msg = message;
	int r;

	*msg = (struct moe_msg){.magic = MOE_PROTO_MAGIC,
				.type = (__u16)type,
				.fds = (__u16)n_fds,
				.bytes = (__u32)bytes,
				.status = msg->status};
	/* Never waits: a peer that does not read its replies is closed. */
	r = fdmsg_send(peer->source.fd, message, bytes, fds, n_fds, 1);
	if (r < 0 && type != MOE_MSG_PROGRESS)
		peer_close(peer, "cannot send a reply");
	return r;
}

void peer_send_error(struct peer *peer, int code, const char *text)
{
	struct moe_msg_error e = {.msg.status = code};

	snprintf(e.text, sizeof e.text, "%s", text);
	log_debug("pid %d: refused: %s", peer->pid, text);
	reply(peer, &e, sizeof e, MOE_MSG_ERROR, NULL, 0);
}

void peer_send_progress(struct peer *peer, uint64_t done, uint64_t total, uint64_t elapsed_ns, uint64_t eta_ns)
{
	struct moe_msg_progress p = {
		.done_bytes = done, .total_bytes = total, .elapsed_ns = elapsed_ns, .eta_ns = eta_ns};

	reply(peer, &p, sizeof p, MOE_MSG_PROGRESS, NULL, 0);
}

void peer_send_loaded(struct peer *peer, const struct moe_manifest *manifest, uint64_t bytes, uint64_t elapsed_ns)
{
	struct moe_msg_loaded l = {.bytes = bytes, .elapsed_ns = elapsed_ns};

	memcpy(l.digest, manifest->digest, sizeof l.digest);
	memcpy(l.name, manifest->name, sizeof l.name);
	reply(peer, &l, sizeof l, MOE_MSG_LOAD | MOE_MSG_REPLY, NULL, 0);
}

/* -- requests: 0 (answered) or -errno with *err (the caller answers)
 * ------------------------------------------------ */

static int on_hello(struct peer *peer, const struct moe_msg_hello *hello, struct moe_error *err)
{
	struct moe_msg_hello answer = {
		.features = hello->features & MOE_FEATURES_ALL,
		.instance = peer->service->instance,
		.pid = (__u32)getpid(),
	};

	if (hello->reserved)
		return moe_error_set(err, -EINVAL, "hello: reserved field is set");
	peer->service->door.strangers -= !peer->hello;
	peer->hello = true;
	reply(peer, &answer, sizeof answer, MOE_MSG_HELLO | MOE_MSG_REPLY, NULL, 0);
	return 0;
}

static bool is_power_of_two(uint32_t n)
{
	return n && !(n & (n - 1));
}

/* Each rank gets one unit of every layer's experts at least. */
static int check_slices(const struct resident *model, const struct moe_msg_attach *a, struct moe_error *err)
{
	const struct moe_manifest *m = model->manifest;
	const struct moe_layout *least = model->layouts;

	for (uint32_t i = 1; i < m->n_layouts; i++)
		if (moe_slice_units(&model->layouts[i]) < moe_slice_units(least))
			least = &model->layouts[i];
	if (a->tp_size <= moe_slice_units(least))
		return 0;
	return moe_error_set(err, -EINVAL,
			     "attach to '%s': tp_size %u found, at most %u expected: the experts' intermediate size %u "
			     "in format %s (down: %s) is cut in units of %u",
			     m->name, a->tp_size, moe_slice_units(least), m->inter,
			     moe_formats[least->part[MOE_PART_GATE].format].name,
			     moe_formats[least->part[MOE_PART_DOWN].format].name, moe_slice_unit(least));
}

/* A pool file that the client may hold. */
static int pool_fd(const struct entry *entry, uint32_t pool)
{
	return entry->tier ? tier_client_fd(entry->tier, pool) : entry->model->pools[pool].fd;
}

static int check_attach(const struct peer *peer, const struct moe_msg_attach *a, const struct entry *entry,
			struct moe_error *err)
{
	const struct moe_manifest *m = entry->model->manifest;
	int r;

	if (a->layout != m->layout)
		return moe_error_set(err, -EPROTO,
				     "attach to '%s': record layout %u found, the daemon has %u: library and daemon "
				     "are of different versions",
				     m->name, a->layout, m->layout);
	if (a->tp_size == 0 || a->tp_rank >= a->tp_size)
		return moe_error_set(err, -EINVAL, "attach to '%s': tp_rank %u of tp_size %u: no such slice", m->name,
				     a->tp_rank, a->tp_size);
	r = check_slices(entry->model, a, err);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < m->n_pools; i++)
		if (pool_fd(entry, i) < 0)
			return moe_error_sys(err, pool_fd(entry, i),
					     "attach to '%s': it is tiered, and its pool files cannot be opened "
					     "read-only (is /proc mounted?)",
					     m->name);
	if (!is_power_of_two(a->entries) || a->entries < MOE_RING_ENTRIES_MIN || a->entries > MOE_RING_ENTRIES_MAX)
		return moe_error_set(err, -EINVAL,
				     "attach: %u queue entries found, a power of two from %d to %d expected",
				     a->entries, MOE_RING_ENTRIES_MIN, MOE_RING_ENTRIES_MAX);
	for (const struct session *s = peer->service->sessions; s; s = s->next) {
		if (s->dead || a->group == 0 || s->attach.group != a->group || s->entry != entry || s->uid != peer->uid)
			continue;
		if (s->attach.tp_size != a->tp_size)
			return moe_error_set(err, -EINVAL, "attach to '%s': group %llx has tp_size %u, not %u", m->name,
					     (unsigned long long)a->group, s->attach.tp_size, a->tp_size);
		if (s->attach.tp_rank == a->tp_rank && s->attach.dp_rank == a->dp_rank &&
		    s->attach.ep_rank == a->ep_rank)
			return moe_error_set(err, -EEXIST,
					     "attach to '%s': rank %u of group %llx is attached already (pid %d)",
					     m->name, a->tp_rank, (unsigned long long)a->group, s->pid);
	}
	return 0;
}

/* What the client may hold of its daemon region: a read-only open. Only without /proc, where none can be made, is it a
 * writable one: then a client can spoil its own completions, and `moectl status` says so. */
static int readonly_region(struct service *service, int fd, struct moe_error *err)
{
	int ro = memfd_reopen_readonly(fd);

	if (ro == -ENOENT) {
		if (!service->writable_queues)
			log_warning(
				"/proc is not mounted: clients get writable descriptors of their completion queues");
		service->writable_queues = true;
		ro = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		ro = ro < 0 ? -errno : ro;
	}
	return ro < 0 ? moe_error_sys(err, ro, "attach: cannot open the daemon region read-only") : ro;
}

static void send_attached(struct peer *peer, const struct session *s, int region)
{
	const struct resident *model = s->entry->model;
	struct moe_msg_attached answer = {
		.session = s->id,
		.manifest_bytes = model->manifest->bytes,
		.client_bytes = s->client.bytes,
		.daemon_bytes = s->daemon_bytes,
		.n_pools = model->n_pools,
		.cpu_threads = pool_threads(peer->service->pool),
	};
	int fds[FDMSG_FDS_MAX] = {model->manifest_fd, s->client_fd, region, s->doorbell.fd};
	size_t n = 4;

	for (uint32_t i = 0; i < model->n_pools; i++)
		fds[n++] = pool_fd(s->entry, i);
	reply(peer, &answer, sizeof answer, MOE_MSG_ATTACH | MOE_MSG_REPLY, fds, n);
}

static int on_attach(struct peer *peer, const struct moe_msg_attach *attach, struct moe_error *err)
{
	_cleanup_close_ int region = -1;
	struct moe_msg_attach a = *attach;
	struct entry *entry;
	struct session *s;
	int r;

	a.name[sizeof a.name - 1] = '\0';
	if (peer->session)
		return moe_error_set(err, -EISCONN, "attach: this connection has a session already");
	if (a.reserved[0] || a.reserved[1] || a.reserved[2])
		return moe_error_set(err, -EINVAL, "attach: reserved field is set");
	r = registry_find(&peer->service->registry, a.name, a.digest, &entry, err);
	if (r == 0)
		r = check_attach(peer, &a, entry, err);
	if (r == 0)
		r = session_new(&s, entry, &a, peer->service->accounts, peer->uid, peer->service->loop, err);
	if (r < 0)
		return r;
	s->pid = peer->pid;
	service_add_session(peer->service, s);
	region = readonly_region(peer->service, s->daemon_fd, err);
	if (region < 0) {
		service_kill_session(peer->service, s);
		return region;
	}
	peer->session = s;
	s->journal.page->session = s->id;
	if (handover_keeps(peer->service->handover) &&
	    estate_keep_session(peer->service->handover, s, peer->source.fd) < 0)
		log_warning("session %llu will not outlive this daemon: the keeper does not take it",
			    (unsigned long long)s->id);
	log_debug("session %llu: pid %d attaches to %s as rank %u of %u", (unsigned long long)s->id, s->pid,
		  entry->model->manifest->name, a.tp_rank, a.tp_size);
	send_attached(peer, s, region);
	return 0;
}

static int on_arena(struct peer *peer, const struct moe_msg_arena *arena, int fd, struct moe_error *err)
{
	struct moe_msg answer = {0};
	int r;

	if (!peer->session)
		return moe_error_set(err, -ENOTCONN, "arena: attach first");
	if (arena->reserved)
		return moe_error_set(err, -EINVAL, "arena: reserved field is set");
	r = session_add_arena(peer->session, arena->kind, fd, arena->bytes, err);
	if (r < 0)
		return r;
	estate_keep_arena(peer->service->handover, peer->session, arena->kind, fd);
	reply(peer, &answer, sizeof answer, MOE_MSG_ARENA | MOE_MSG_REPLY, NULL, 0);
	return 0;
}

static int on_query(struct peer *peer, const struct moe_msg_query *query, struct moe_error *err)
{
	struct moe_msg_document answer = {0};
	_cleanup_free_ char *text = NULL;
	_cleanup_close_ int fd = -1;
	int r = document_make(peer->service, query->what, &text, err);

	if (r < 0)
		return r;
	answer.bytes = strlen(text);
	fd = memfd_new_sealed("moe-document", text, answer.bytes, err);
	if (fd < 0)
		return fd;
	reply(peer, &answer, sizeof answer, MOE_MSG_QUERY | MOE_MSG_REPLY, &fd, 1);
	return 0;
}

static int check_steers(const struct peer *peer, const char *what, struct moe_error *err)
{
	if (peer->uid == 0 || peer->uid == geteuid())
		return 0;
	return moe_error_set(err, -EPERM, "%s: for root and the daemon's user (uid %u) only; you are uid %u", what,
			     geteuid(), peer->uid);
}

static int on_load(struct peer *peer, const struct moe_msg_load *load, struct moe_error *err)
{
	int r = check_steers(peer, "load", err);

	if (r < 0)
		return r;
	if (!memchr(load->path, 0, sizeof load->path) || !memchr(load->name, 0, sizeof load->name))
		return moe_error_set(err, -EINVAL, "load: path or name is not terminated");
	if (load->path[0] != '/')
		return moe_error_set(err, -EINVAL, "load: path '%.200s' is not absolute", load->path);
	return service_load(peer->service, peer, load->path, load->name, err);
}

static int on_unload(struct peer *peer, const struct moe_msg_unload *unload, struct moe_error *err)
{
	struct moe_msg answer = {0};
	int r = check_steers(peer, "unload", err);

	if (r == 0 && !memchr(unload->name, 0, sizeof unload->name))
		r = moe_error_set(err, -EINVAL, "unload: name is not terminated");
	if (r == 0)
		r = service_unload(peer->service, unload->name, err);
	if (r < 0)
		return r;
	log_info("model %s unloaded", unload->name);
	reply(peer, &answer, sizeof answer, MOE_MSG_UNLOAD | MOE_MSG_REPLY, NULL, 0);
	return 0;
}

/* -- the socket --------------------------------------------------------------------------------------------------- */

static const struct {
	size_t bytes;
	size_t fds;
} message_shape[] = {
	[MOE_MSG_HELLO] = {sizeof(struct moe_msg_hello), 0}, [MOE_MSG_ATTACH] = {sizeof(struct moe_msg_attach), 0},
	[MOE_MSG_ARENA] = {sizeof(struct moe_msg_arena), 1}, [MOE_MSG_QUERY] = {sizeof(struct moe_msg_query), 0},
	[MOE_MSG_LOAD] = {sizeof(struct moe_msg_load), 0},   [MOE_MSG_UNLOAD] = {sizeof(struct moe_msg_unload), 0},
};

static int dispatch(struct peer *peer, const void *message, const int *fds, struct moe_error *err)
{
	const struct moe_msg *msg = message;

	switch (msg->type) {
	case MOE_MSG_HELLO:
		return on_hello(peer, message, err);
	case MOE_MSG_ATTACH:
		return on_attach(peer, message, err);
	case MOE_MSG_ARENA:
		return on_arena(peer, message, fds[0], err);
	case MOE_MSG_QUERY:
		return on_query(peer, message, err);
	case MOE_MSG_LOAD:
		return on_load(peer, message, err);
	default:
		return on_unload(peer, message, err);
	}
}

static const char *check_message(const struct peer *peer, const struct moe_msg *msg, size_t bytes, size_t n_fds)
{
	if (bytes < sizeof *msg || msg->magic != MOE_PROTO_MAGIC || msg->bytes != bytes)
		return "a message that is not of this protocol";
	if (msg->type >= ARRAY_LEN(message_shape) || message_shape[msg->type].bytes == 0)
		return "a message of unknown type";
	if (bytes != message_shape[msg->type].bytes || msg->status)
		return "a message of wrong size";
	if (n_fds != message_shape[msg->type].fds || msg->fds != n_fds)
		return "a message with a wrong number of file descriptors";
	if (!peer->hello && msg->type != MOE_MSG_HELLO)
		return "a message before HELLO";
	return NULL;
}

/* From before a message is taken until it is answered: a successor could not know whether it was. */
static void asking(struct peer *peer, bool is)
{
	if (peer->session)
		peer->session->journal.page->asked = peer->session->journal.page->answered + is;
}

static bool receive_one(struct peer *peer)
{
	alignas(8) char buffer[MOE_PROTO_MAX];
	struct moe_error err = {0};
	int fds[FDMSG_FDS_MAX], r;
	const char *wrong;
	size_t n_fds = 0;
	long n;

	asking(peer, true);
	n = fdmsg_recv(peer->source.fd, buffer, sizeof buffer, fds, &n_fds, 1);
	if (n == -EAGAIN) {
		asking(peer, false);
		return false;
	}
	if (n <= 0) {
		peer_close(peer, n == 0 || n == -ECONNRESET ? NULL : "a broken message");
		return false;
	}
	wrong = check_message(peer, (const struct moe_msg *)buffer, (size_t)n, n_fds);
	if (!wrong) {
		r = dispatch(peer, buffer, fds, &err);
		if (r < 0)
			peer_send_error(peer, r, err.text);
	}
	fdmsg_close_fds(fds, n_fds);
	if (wrong)
		peer_close(peer, wrong);
	asking(peer, false);
	return !peer->closed;
}

static void socket_ready(struct source *source, uint32_t events)
{
	struct peer *peer = container_of(source, struct peer, source);

	for (int i = 0; i < MESSAGES_MAX && !peer->closed && receive_one(peer); i++)
		;
	if (!peer->closed && events & (POLLHUP | POLLERR | POLLRDHUP))
		peer_close(peer, NULL);
}

static void pidfd_ready(struct source *source, uint32_t events)
{
	peer_close(container_of(source, struct peer, pidfd), NULL);
}

static void source_gone(struct peer *peer)
{
	if (--peer->sources > 0)
		return;
	close_fd(peer->source.fd);
	close_fd(peer->pidfd.fd);
	charge_close(&peer->charge);
	free(peer);
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
	};
	r = charge_peer(peer, granted, &err);
	if (r == 0)
		r = watch_peer(peer, &err);
	if (r < 0) {
		if (!granted)
			turn_away(sock, r, err.text);
		else
			*ret_err = err;
		charge_close(&peer->charge);
		close_fd(sock);
		free(peer);
		return r;
	}
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
	session->pid = service->peers->pid;
	ringsrv_revive(session, service->sched);
	session->charge.granted = false;
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
		log_warning("pid %d (uid %u): connection closed: %s", peer->pid, peer->uid, why);
	if (peer->session) {
		log_debug("session %llu: pid %d has left", (unsigned long long)peer->session->id, peer->pid);
		estate_drop_session(service->handover, peer->session);
		service_kill_session(service, peer->session);
		peer->session = NULL;
	}
	shutdown(peer->source.fd, SHUT_RDWR); /* the peer sees the end now */
	unlink_peer(peer);
}

void peer_leave(struct peer *peer)
{
	if (!peer->session) {
		peer_close(peer, NULL);
		return;
	}
	service_leave_session(peer->service, peer->session);
	peer->session = NULL;
	unlink_peer(peer);
}
