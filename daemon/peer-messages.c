/* SPDX-License-Identifier: MIT */
#include "daemon/peer-messages.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/fdmsg.h"
#include "base/log.h"
#include "base/memfd.h"
#include "base/util.h"
#include "daemon/attach.h"
#include "daemon/documents.h"
#include "daemon/estate.h"
#include "daemon/events.h"
#include "daemon/group.h"
#include "daemon/handout.h"
#include "daemon/service.h"

/* -- replies ------------------------------------------------------------------------------------------------------ */

bool peer_has_unread(const struct peer *peer)
{
	int bytes;

	return ioctl(peer->source.fd, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

/* Never waits. */
static int send_message(struct peer *peer, void *message, size_t bytes, enum moe_msg_type type, const int *fds,
			size_t n_fds)
{
	struct moe_msg *msg = message;

	if (n_fds > 0 && !peer_has_unread(peer))
		peer->in_flight = 0;
	peer->in_flight += (uint32_t)n_fds;
	*msg = (struct moe_msg){.magic = MOE_PROTO_MAGIC,
				.type = (__u16)type,
				.fds = (__u16)n_fds,
				.bytes = (__u32)bytes,
				.status = msg->status};
	return fdmsg_send(peer->source.fd, message, bytes, fds, n_fds, 1);
}

/* A peer that does not read its replies is closed. */
static int reply(struct peer *peer, void *message, size_t bytes, enum moe_msg_type type, const int *fds, size_t n_fds)
{
	const int r = send_message(peer, message, bytes, type, fds, n_fds);
	char why[96];

	if (r < 0 && type != MOE_MSG_PROGRESS) {
		/* Who gave up the waiting is gone, and broke nothing. */
		const bool gone = r == -EPIPE || r == -ECONNRESET;

		snprintf(why, sizeof why, "cannot send a reply: %s", strerror(-r));
		if (gone)
			log_debug("pid %d: %s: it has left", peer->pid, why);
		peer_close(peer, gone ? NULL : why);
	}
	return r;
}

void peer_send_error(struct peer *peer, int code, const char *text)
{
	struct moe_msg_error e = {.msg.status = code};

	snprintf(e.text, sizeof e.text, "%s", text);
	log_debug("pid %d: refused: %s", peer->pid, text);
	reply(peer, &e, sizeof e, MOE_MSG_ERROR, NULL, 0);
}

void peer_send_goodbye(struct peer *peer, int code, const char *text)
{
	struct moe_msg_error e = {.msg.status = code};

	snprintf(e.text, sizeof e.text, "%s", text);
	send_message(peer, &e, sizeof e, MOE_MSG_ERROR, NULL, 0);
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

void peer_send_traced(struct peer *peer, const struct moe_msg_traced *traced)
{
	struct moe_msg_traced answer = *traced;

	reply(peer, &answer, sizeof answer, MOE_MSG_TRACE | MOE_MSG_REPLY, NULL, 0);
}

/* -- requests: 0 (answered) or -errno with *err (the caller answers) ---------------------------------------------- */

static int on_hello(struct peer *peer, const struct moe_msg_hello *hello, struct moe_error *err)
{
	struct moe_msg_hello answer = {
		.features = hello->features & MOE_FEATURES_ALL &
			    ~(peer->service->push ? 0ull : (__u64)MOE_FEATURE_DEVICE) &
			    ~(peer->service->modqueue.id ? 0ull : (__u64)MOE_FEATURE_MODULE),
		.instance = peer->service->instance,
		.pid = (__u32)getpid(),
	};

	if (hello->reserved)
		return moe_error_set(err, -EINVAL, "hello: reserved field is set");
	peer->service->door.strangers -= !peer->hello;
	peer->hello = true;
	peer->features = hello->features;
	reply(peer, &answer, sizeof answer, MOE_MSG_HELLO | MOE_MSG_REPLY, NULL, 0);
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
		.queue = s->modqueue ? s->modqueue->id : 0,
	};
	int fds[FDMSG_FDS_MAX] = {model->manifest_fd, s->client_fd, region, s->doorbell.fd};
	size_t n = 4;

	for (uint32_t i = 0; i < model->n_pools; i++)
		fds[n++] = attach_pool_fd(s->entry, i);
	reply(peer, &answer, sizeof answer, MOE_MSG_ATTACH | MOE_MSG_REPLY, fds, n);
}

/* An answer says that what it is about outlives this daemon, but where the keeper takes nothing for long. */
static void answer_when_kept(struct peer *peer, int region)
{
	peer->region = region;
	peer->kept_ns = now_ns();
	service_await_keeper(peer->service, peer);
}

void peer_kept(struct peer *peer)
{
	_cleanup_close_ int region = steal_fd(&peer->region);
	struct moe_msg answer = {0};

	peer->kept_ns = 0;
	if (region >= 0)
		send_attached(peer, peer->session, region);
	else
		reply(peer, &answer, sizeof answer, MOE_MSG_ARENA | MOE_MSG_REPLY, NULL, 0);
	peer_asking(peer, false);
}

/* Another rank of its group: of what ranks cache in common all must have been told the same. */
static const struct session *alike_of(const struct peer *peer, const struct session *s)
{
	const struct session *x = s->attach.group ? peer->service->sessions : NULL;

	while (x && (x->dead || x->attach.group != s->attach.group || x->entry != s->entry || x->uid != peer->uid))
		x = x->next;
	return x;
}

/* Of its session nothing is left with the keeper: it ends with this daemon, and says so beforehand. */
static void unkeep(struct peer *peer, const char *why)
{
	peer->session->unkept = true;
	estate_drop_session(peer->service->handover, peer->session);
	log_warning("session %llu will not outlive this daemon: %s", (unsigned long long)peer->session->id, why);
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
	if (peer->service->draining)
		return moe_error_set(
			err, -ESHUTDOWN,
			"attach: the daemon is being drained and takes no session in; Resume on the bus, or "
			"a restart, ends that");
	r = registry_find(&peer->service->registry, a.name, a.digest, &entry, err);
	if (r == -ENOENT)
		service_say_loading(peer->service, a.name, err);
	if (r == 0)
		r = attach_check(peer, &a, entry, err);
	if (r == 0)
		r = session_new(&s, entry, &a, peer->service->accounts, peer->uid, peer->service->loop, err);
	if (r < 0)
		return r;
	s->pid = peer->pid;
	service_begin_heat(peer->service);
	session_tell_hottest(s, alike_of(peer, s));
	service_add_session(peer->service, s);
	r = a.dp_size ? agreement_join(&peer->service->agreements, s, err) : 0;
	if (r == 0)
		r = region = readonly_region(peer->service, s->daemon_fd, err);
	if (r < 0) {
		service_kill_session(peer->service, s);
		return r;
	}
	peer->session = s;
	s->journal.page->session = s->id;
	if (peer->features & MOE_FEATURE_TRACE)
		taps_join(&peer->service->taps, s);
	if (handover_keeps(peer->service->handover) && !service_outlives(peer->service, entry))
		unkeep(peer, "nor will its model");
	else if (handover_keeps(peer->service->handover) &&
		 estate_keep_session(peer->service->handover, s, peer->source.fd) < 0)
		unkeep(peer, "the keeper does not take it");
	event_log(EVENT_ATTACHED,
		  FACTS(.session = s->id, .pid = s->pid, .uid = s->uid, .model = entry->model->manifest->name),
		  "session %llu: pid %d attaches to %s as rank %u of %u", (unsigned long long)s->id, s->pid,
		  entry->model->manifest->name, a.tp_rank, a.tp_size);
	answer_when_kept(peer, steal_fd(&region));
	return 0;
}

/* What is kept of an arena makes sense with its session only: a successor ends one that lacks an arena it had. */
static void keep_arena(struct peer *peer, uint32_t kind, int fd)
{
	if (!peer->session->unkept && estate_keep_arena(peer->service->handover, peer->session, kind, fd) < 0)
		unkeep(peer, "the keeper does not take one of its arenas");
}

static int on_arena(struct peer *peer, const struct moe_msg_arena *arena, int fd, struct moe_error *err)
{
	int r;

	if (!peer->session)
		return moe_error_set(err, -ENOTCONN, "arena: attach first");
	if (arena->reserved)
		return moe_error_set(err, -EINVAL, "arena: reserved field is set");
	r = session_add_arena(peer->session, arena->kind, fd, arena->bytes, err);
	if (r < 0)
		return r;
	keep_arena(peer, arena->kind, fd);
	answer_when_kept(peer, -1);
	return 0;
}

/* Answered by peer_device_opened. A successor would have to import it anew, and the answer could be lost: the session
 * stays with this daemon. */
static int on_device(struct peer *peer, const struct moe_msg_device *device, int fd, struct moe_error *err)
{
	const struct push_memory memory = {
		.fd = fd, .uid = peer->uid, .bytes = device->bytes, .timeline = device->timeline, .uuid = device->uuid};
	struct session *s = peer->session;
	int r;

	if (!s)
		return moe_error_set(err, -ENOTCONN, "device slots: attach first");
	if (!peer->service->push)
		return moe_error_set(err, -EOPNOTSUPP, "device slots: start moe-expertd with --push-cuda");
	if (device->bytes == 0 || device->bytes % MOE_RING_PAGE)
		return moe_error_set(err, -EINVAL, "device slots: %llu bytes: it has to be a multiple of %d",
				     (unsigned long long)device->bytes, MOE_RING_PAGE);
	if (device->timeline % MOE_PART_ALIGN || device->timeline >= device->bytes)
		return moe_error_set(
			err, -EINVAL,
			"device slots: timeline at %llu of %llu bytes: it has to be a multiple of %d in them",
			(unsigned long long)device->timeline, (unsigned long long)device->bytes, MOE_PART_ALIGN);
	if (s->device || s->arenas[MOE_ARENA_SLOTS].base)
		return moe_error_set(err, -EEXIST, "device slots: this session has slots");
	if (s->entry->tier)
		return moe_error_set(err, -EOPNOTSUPP,
				     "device slots: model '%s' is tiered, its records come from disk and go: the CPU "
				     "pushes them, into host memory",
				     s->entry->model->manifest->name);
	r = push_open(peer->service->push, &s->device, s->entry->model, &memory, s, err);
	if (r < 0)
		return r;
	peer->device_bytes = device->bytes;
	s->timeline = device->timeline != 0;
	s->unkept = true;
	estate_drop_session(peer->service->handover, s);
	return 0;
}

void peer_device_opened(struct peer *peer, int r, const struct moe_error *err)
{
	struct moe_msg answer = {0};

	if (r < 0) {
		push_close(steal_ptr(peer->session->device));
		peer->session->timeline = false;
		if (handover_keeps(peer->service->handover))
			unkeep(peer, "it asked for slots in a GPU's memory, and did not get them");
		peer_send_error(peer, r, err->text);
		return;
	}
	peer->session->device_bytes = peer->device_bytes;
	reply(peer, &answer, sizeof answer, MOE_MSG_DEVICE | MOE_MSG_REPLY, NULL, 0);
}

/* Whoever has the lock on it may register; this daemon has nothing to do with it. */
static int on_registrar(struct peer *peer, struct moe_error *err)
{
	struct moe_msg answer = {0};

	if (!peer->session)
		return moe_error_set(err, -ENOTCONN, "registrar: attach first");
	if (peer_has_unread(peer))
		return moe_error_set(err, -EBUSY,
				     "registrar: the last answer has not been read: read it, then ask again");
	reply(peer, &answer, sizeof answer, MOE_MSG_REGISTRAR | MOE_MSG_REPLY, &peer->service->registrar_fd, 1);
	return 0;
}

/* A document that waits to be read is the daemon's memory: one a connection. */
static int on_query(struct peer *peer, const struct moe_msg_query *query, struct moe_error *err)
{
	if (query->what == 0 || query->what >= DOCUMENT_KINDS)
		return moe_error_set(err, -EINVAL, "query: document %u found, 1 to %u expected", query->what,
				     DOCUMENT_KINDS - 1);
	if (peer_has_unread(peer))
		return moe_error_set(err, -EBUSY, "query: the last answer has not been read: read it, then ask again");
	if (peer->asks)
		return moe_error_set(err, -EBUSY, "query: the last one is not answered yet: one at a time");
	peer->asks = query->what;
	drafts_want(&peer->service->drafts, query->what);
	return 0;
}

void peer_forget_document(struct peer *peer)
{
	if (peer->document)
		peer->document = handout_drop(peer->document, peer->service->holes, &peer->charge);
}

static int take_document(struct peer *peer, struct handout *h, struct moe_error *err)
{
	/* Not its bytes: who only looks would count as a user of memory, and lower everybody's share of that. */
	const int r = charge_take(&peer->charge, ACCOUNT_FDS, HANDOUT_FDS, "query", err);

	if (r < 0)
		return r;
	handout_take(h, peer->charge.account);
	peer->document = h;
	return 0;
}

void peer_send_document(struct peer *peer, struct handout *h, const struct moe_error *err)
{
	struct moe_msg_document answer = {.bytes = h->bytes};
	struct moe_error why;

	peer->asks = 0;
	peer->drafted = false;
	peer_forget_document(peer);
	if (h->fd < 0)
		peer_send_error(peer, h->fd, err->text);
	else if (take_document(peer, h, &why) < 0)
		peer_send_error(peer, why.code, why.text);
	else
		reply(peer, &answer, sizeof answer, MOE_MSG_QUERY | MOE_MSG_REPLY, &h->readonly, 1);
	peer_asking(peer, false);
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
	event_log(EVENT_UNLOADED, FACTS(.model = unload->name), "model %s unloaded", unload->name);
	reply(peer, &answer, sizeof answer, MOE_MSG_UNLOAD | MOE_MSG_REPLY, NULL, 0);
	return 0;
}

static int on_policy(struct peer *peer, const struct moe_msg_policy *m, struct moe_error *err)
{
	struct moe_msg answer = {0};
	int r = check_steers(peer, "set-policy", err);

	if (r == 0 && (!memchr(m->name, 0, sizeof m->name) || !memchr(m->policy, 0, sizeof m->policy)))
		r = moe_error_set(err, -EINVAL, "set-policy: name or policy is not terminated");
	if (r == 0)
		r = service_set_policy(peer->service, m->name, m->policy, err);
	if (r == 0)
		reply(peer, &answer, sizeof answer, MOE_MSG_POLICY | MOE_MSG_REPLY, NULL, 0);
	return r;
}

static int on_forget(struct peer *peer, const struct moe_msg_forget *m, struct moe_error *err)
{
	struct moe_msg answer = {0};
	int r = check_steers(peer, "heat --forget", err);

	if (r == 0 && !memchr(m->name, 0, sizeof m->name))
		r = moe_error_set(err, -EINVAL, "heat --forget: name is not terminated");
	if (r == 0)
		r = service_forget_heat(peer->service, m->name, err);
	if (r == 0)
		reply(peer, &answer, sizeof answer, MOE_MSG_FORGET | MOE_MSG_REPLY, NULL, 0);
	return r;
}

/* Answered when it has ended. */
static int on_trace(struct peer *peer, const struct moe_msg_trace *m, int fd, struct moe_error *err)
{
	const struct trace_params params = {.model = m->name,
					    .max_bytes = m->max_bytes,
					    .max_steps = m->max_steps,
					    .max_ms = m->max_ms,
					    .uid = peer->uid};
	int r = check_steers(peer, "trace", err);

	if (r == 0 && !memchr(m->name, 0, sizeof m->name))
		r = moe_error_set(err, -EINVAL, "trace: name is not terminated");
	if (r == 0 && (m->reserved[0] || m->reserved[1]))
		r = moe_error_set(err, -EINVAL, "trace: reserved field is set");
	return r < 0 ? r : service_start_trace(peer->service, peer, fd, &params, err);
}

static int on_trace_stop(struct peer *peer, struct moe_error *err)
{
	struct moe_msg answer = {0};
	int r = check_steers(peer, "trace", err);

	if (r == 0)
		r = service_stop_trace(peer->service, err);
	if (r == 0)
		reply(peer, &answer, sizeof answer, MOE_MSG_TRACE_STOP | MOE_MSG_REPLY, NULL, 0);
	return r;
}

/* -- what comes ---------------------------------------------------------------------------------------------------- */

static const struct {
	size_t bytes;
	size_t fds;
} message_shape[] = {
	[MOE_MSG_HELLO] = {sizeof(struct moe_msg_hello), 0},   [MOE_MSG_ATTACH] = {sizeof(struct moe_msg_attach), 0},
	[MOE_MSG_ARENA] = {sizeof(struct moe_msg_arena), 1},   [MOE_MSG_QUERY] = {sizeof(struct moe_msg_query), 0},
	[MOE_MSG_LOAD] = {sizeof(struct moe_msg_load), 0},     [MOE_MSG_UNLOAD] = {sizeof(struct moe_msg_unload), 0},
	[MOE_MSG_REGISTRAR] = {sizeof(struct moe_msg), 0},     [MOE_MSG_DEVICE] = {sizeof(struct moe_msg_device), 1},
	[MOE_MSG_POLICY] = {sizeof(struct moe_msg_policy), 0}, [MOE_MSG_TRACE] = {sizeof(struct moe_msg_trace), 1},
	[MOE_MSG_TRACE_STOP] = {sizeof(struct moe_msg), 0},    [MOE_MSG_FORGET] = {sizeof(struct moe_msg_forget), 0},
};

int peer_answer(struct peer *peer, const void *message, const int *fds, struct moe_error *err)
{
	const struct moe_msg *msg = message;

	if (peer->kept_ns)
		return moe_error_set(err, -EBUSY, "a message before the answer to attach, or arena");
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
	case MOE_MSG_REGISTRAR:
		return on_registrar(peer, err);
	case MOE_MSG_DEVICE:
		return on_device(peer, message, fds[0], err);
	case MOE_MSG_POLICY:
		return on_policy(peer, message, err);
	case MOE_MSG_TRACE:
		return on_trace(peer, message, fds[0], err);
	case MOE_MSG_TRACE_STOP:
		return on_trace_stop(peer, err);
	case MOE_MSG_FORGET:
		return on_forget(peer, message, err);
	default:
		return on_unload(peer, message, err);
	}
}

const char *peer_check(const struct peer *peer, const struct moe_msg *msg, size_t bytes, size_t n_fds)
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
