/* SPDX-License-Identifier: MIT */
#include "daemon/estate.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memfd.h"
#include "base/util.h"
#include "daemon/crash.h"
#include "daemon/events.h"

/* With its version: what is dropped while a takeover may still fail keeps its name until then. */
#define TALLY_NAME "m%" PRIu64 ".tally%d"
#define MODEL_FILES 3 /* beside its pools */

static const char *const arena_names[] = {[MOE_ARENA_DATA] = "data", [MOE_ARENA_SLOTS] = "slots"};

/* Another daemon, or this one later, may have it: no reason to give anything up. */
bool estate_lacks_means(int r)
{
	return r == -ENOMEM || r == -EMFILE || r == -ENFILE || r == -EAGAIN || r == -EBUSY || r == -ENOSPC;
}

/* -- the service -------------------------------------------------------------------------------------------------- */

static bool page_good(const struct estate_page *page)
{
	return page->magic == ESTATE_MAGIC && page->version == ESTATE_VERSION;
}

/* Above all numbers that are kept under such names, whole or not. A daemon that ended in order has left its models, but
 * not the page that says which numbers it gave away. */
static uint64_t number_above(struct handover *h, const char *prefix)
{
	uint64_t next = 1, number;
	uint32_t cursor = 0;
	const char *name;

	while ((name = handover_next(h, prefix, &cursor)))
		if (sscanf(name + strlen(prefix), "%" SCNu64 ".", &number) == 1 && number < UINT64_MAX)
			next = MAX(next, number + 1);
	return next;
}

struct estate_page *estate_open(struct handover *h, struct moe_error *err)
{
	int fd = handover_take(h, "service"), r = 0;
	const bool new = fd < 0;
	struct estate_page *page = NULL;
	void *map;

	if (new)
		fd = memfd_new("moe-service", MOE_RING_PAGE, err);
	else
		r = memfd_verify(fd, MOE_RING_PAGE, F_SEAL_SHRINK | F_SEAL_GROW, NULL, "service", err);
	if (fd >= 0 && r == 0 && memfd_map(&map, fd, MOE_RING_PAGE, PROT_READ | PROT_WRITE, "service", err) == 0)
		page = map;
	if (page && (new || !page_good(page)))
		*page = (struct estate_page){
			.magic = ESTATE_MAGIC, .version = ESTATE_VERSION, .next_session = 1, .next_epoch = 1};
	else if (page)
		page->restarts++;
	if (page) {
		page->next_session = MAX(page->next_session, number_above(h, "s"));
		page->next_epoch = MAX(page->next_epoch, number_above(h, "m"));
	}
	if (page && new)
		handover_put(h, fd, "service");
	close_fd(fd);
	return page;
}

int estate_registrar(struct handover *h, struct moe_error *err)
{
	static const char words[] = "who registers memory with a GPU's driver holds a write lock on this file\n";
	int fd = handover_take(h, "registrar");

	if (fd >= 0 && memfd_verify(fd, 0, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE, NULL, "registrar", NULL) == 0)
		return fd;
	if (fd >= 0)
		handover_drop(h, "registrar");
	close_fd(fd);
	fd = memfd_new_sealed("moe-registrar", words, sizeof words - 1, err);
	if (fd >= 0)
		handover_put(h, fd, "registrar");
	return fd;
}

/* -- models ------------------------------------------------------------------------------------------------------- */

static void drop_model(struct handover *h, uint64_t epoch)
{
	handover_drop(h, "m%" PRIu64 ".manifest", epoch); /* first: the others alone are nothing */
	for (uint32_t i = 0; i < MOE_POOLS_MAX; i++)
		handover_drop(h, "m%" PRIu64 ".pool%u", epoch, i);
	handover_drop(h, "m%" PRIu64 ".books", epoch);
	handover_drop(h, TALLY_NAME, epoch, TALLY_VERSION);
}

void estate_drop_model(struct handover *h, const struct entry *entry)
{
	drop_model(h, entry->model->manifest->epoch);
}

int estate_keep_model(struct handover *h, struct entry *entry)
{
	const struct resident *model = entry->model;
	const uint64_t epoch = model->manifest->epoch;
	int r = handover_put(h, entry->books_fd, "m%" PRIu64 ".books", epoch);

	for (uint32_t i = 0; i < model->n_pools && r == 0; i++)
		r = handover_put(h, model->pools[i].fd, "m%" PRIu64 ".pool%u", epoch, i);
	if (r == 0) /* a model goes on without it */
		handover_put(h, entry->tally_fd, TALLY_NAME, epoch, TALLY_VERSION);
	if (r == 0)
		r = handover_put(h, model->manifest_fd, "m%" PRIu64 ".manifest", epoch);
	if (r < 0)
		estate_drop_model(h, entry);
	entry->kept = r == 0;
	return r;
}

void estate_keep_late(struct handover *h, struct registry *registry)
{
	for (struct entry *e = registry->head; e && handover_keeps(h); e = e->next)
		if (!e->kept && handover_room(h) >= e->model->n_pools + MODEL_FILES && estate_keep_model(h, e) == 0)
			log_info("model %s outlives this daemon now: the keeper has room for it",
				 e->model->manifest->name);
}

void estate_keep_measured(struct handover *h, const struct entry *entry)
{
	const uint64_t epoch = entry->model->manifest->epoch;

	handover_put(h, entry->tally_fd, TALLY_NAME, epoch, TALLY_VERSION);
	heats_keep(h, entry->lasting);
}

int estate_adopt_model(struct registry *registry, struct store_left *left, int books, uint64_t epoch, struct loop *loop,
		       const struct host *host, struct moe_error *err)
{
	_cleanup_close_ int books_fd = books;
	struct resident *model;
	int r = registry_open_books(&left->books, books_fd, err);

	if (r < 0) {
		store_left_close(left);
		return r;
	}
	r = store_adopt(&model, left, host, err);
	munmap(left->books, left->books->bytes);
	if (r == 0 && model->manifest->epoch != epoch) {
		const uint64_t found = model->manifest->epoch;

		resident_free(model);
		r = moe_error_set(err, -EBADMSG, "manifest: of epoch %" PRIu64 ", under the name of %" PRIu64, found,
				  epoch);
	}
	if (r < 0)
		return r;
	r = registry_adopt(registry, model, steal_fd(&books_fd), err);
	if (r < 0) {
		resident_free(model);
		return r;
	}
	r = registry_start_tier(registry_by_epoch(registry, epoch), loop, err);
	if (r < 0)
		registry_remove(registry, model->manifest->name, NULL);
	return r;
}

/* Of a daemon that knew of none there is none: the new one is kept. */
static int take_tally(struct handover *h, struct entry *entry, struct moe_error *err)
{
	const struct moe_manifest *m = entry->model->manifest;
	const uint64_t epoch = m->epoch;
	const int fd = handover_take(h, TALLY_NAME, epoch, TALLY_VERSION);
	int r;

	if (fd < 0) {
		handover_put(h, entry->tally_fd, TALLY_NAME, epoch, TALLY_VERSION);
		return 0;
	}
	r = registry_adopt_tally(entry, fd, err);
	if (r == 0 || estate_lacks_means(r))
		return r;
	log_warning("model %s: its histograms and ghosts begin anew: %s", m->name, err->text);
	handover_drop(h, TALLY_NAME, epoch, TALLY_VERSION);
	return 0;
}

static int take_model(struct handover *h, struct registry *registry, uint64_t epoch, struct loop *loop,
		      const struct host *host, struct moe_error *err)
{
	struct store_left left = {.manifest_fd = handover_take(h, "m%" PRIu64 ".manifest", epoch)};
	const int books_fd = handover_take(h, "m%" PRIu64 ".books", epoch);

	while (left.n_pools < MOE_POOLS_MAX &&
	       (left.pools[left.n_pools] = handover_take(h, "m%" PRIu64 ".pool%u", epoch, left.n_pools)) >= 0)
		left.n_pools++;
	int r = estate_adopt_model(registry, &left, books_fd, epoch, loop, host, err);

	struct entry *entry = r < 0 ? NULL : registry_by_epoch(registry, epoch);

	if (!entry)
		return r;
	entry->kept = true;
	return take_tally(h, entry, err);
}

int estate_take_models(struct handover *h, struct registry *registry, struct loop *loop, const struct host *host,
		       struct moe_error *err)
{
	const char *name;
	uint32_t cursor = 0;

	while ((name = handover_next(h, "m", &cursor))) {
		char what[32] = "";
		uint64_t epoch;
		int r;

		if (sscanf(name, "m%" SCNu64 ".%31s", &epoch, what) != 2 || strcmp(what, "manifest") != 0)
			continue;
		r = take_model(h, registry, epoch, loop, host, err);
		if (estate_lacks_means(r))
			return r;
		if (r < 0) {
			event_log(EVENT_MODEL_LOST, FACTS(.reason = err->text),
				  "a model of the daemon before cannot be taken over and must be loaded again: %s",
				  err->text);
			drop_model(h, epoch); /* its memory is the machine's largest */
		}
	}
	return 0;
}

/* -- sessions ----------------------------------------------------------------------------------------------------- */

static void drop_session(struct handover *h, uint64_t id)
{
	handover_drop(h, "s%" PRIu64 ".sock", id);
	handover_drop(h, "s%" PRIu64 ".client", id);
	handover_drop(h, "s%" PRIu64 ".daemon", id);
	handover_drop(h, "s%" PRIu64 ".bell", id);
	handover_drop(h, "s%" PRIu64 ".journal", id);
	for (uint32_t kind = MOE_ARENA_DATA; kind <= MOE_ARENA_SLOTS; kind++)
		handover_drop(h, "s%" PRIu64 ".%s", id, arena_names[kind]);
}

void estate_drop_session(struct handover *h, const struct session *s)
{
	drop_session(h, s->id);
}

int estate_keep_session(struct handover *h, const struct session *s, int sock)
{
	int r = handover_put(h, s->client_fd, "s%" PRIu64 ".client", s->id);

	if (r == 0)
		r = handover_put(h, s->daemon_fd, "s%" PRIu64 ".daemon", s->id);
	if (r == 0)
		r = handover_put(h, s->doorbell.fd, "s%" PRIu64 ".bell", s->id);
	crash_at(CRASH_ATTACH);
	if (r == 0)
		r = handover_put(h, s->journal.fd, "s%" PRIu64 ".journal", s->id);
	if (r == 0)
		r = handover_put(h, sock, "s%" PRIu64 ".sock", s->id);
	if (r < 0)
		estate_drop_session(h, s);
	return r;
}

/* Keepers hold an open file under one name only, and a client may register one memory file twice: it is opened anew.
 * Without waiting: a client may hold a lease on its file, and then an open waits until that is broken
 * (/proc/sys/fs/lease-break-time, 45 s). */
int estate_keep_arena(struct handover *h, const struct session *s, uint32_t kind, int fd)
{
	_cleanup_close_ int own = -1;
	char path[64];

	if (!handover_keeps(h))
		return 0;
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	own = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	return handover_put(h, own < 0 ? fd : own, "s%" PRIu64 ".%s", s->id, arena_names[kind]);
}

static int take_session(struct handover *h, struct registry *registry, struct accounts *accounts, struct loop *loop,
			uint64_t id, int sock, struct session **ret, struct moe_error *err)
{
	struct session_fds fds = {
		.client = handover_take(h, "s%" PRIu64 ".client", id),
		.daemon = handover_take(h, "s%" PRIu64 ".daemon", id),
		.doorbell = handover_take(h, "s%" PRIu64 ".bell", id),
		.journal = handover_take(h, "s%" PRIu64 ".journal", id),
		.arenas = {-1, handover_take(h, "s%" PRIu64 ".data", id), handover_take(h, "s%" PRIu64 ".slots", id)},
	};

	struct ucred cred = {.uid = (uid_t)-1};
	socklen_t size = sizeof cred;

	getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &size); /* if it is no socket, peer.c says so */
	return session_revive(ret, registry, &fds, accounts, cred.uid, loop, err);
}

int estate_take_session(struct handover *h, struct registry *registry, struct accounts *accounts, struct loop *loop,
			struct session **ret, int *ret_sock, struct moe_error *err)
{
	const char *name;
	uint32_t cursor = 0;

	while ((name = handover_next(h, "s", &cursor))) {
		char what[32] = "";
		uint64_t id;
		int sock, r;

		if (sscanf(name, "s%" SCNu64 ".%31s", &id, what) != 2 || strcmp(what, "sock") != 0)
			continue;
		sock = handover_take(h, "s%" PRIu64 ".sock", id);
		r = take_session(h, registry, accounts, loop, id, sock, ret, err);
		if (r == 0) {
			*ret_sock = sock;
			return 1;
		}
		close_fd(sock);
		if (estate_lacks_means(r))
			return r;
		event_log(EVENT_SESSION_LOST, FACTS(.session = id, .reason = err->text),
			  "session %" PRIu64 " of the daemon before cannot go on, its client is told so: %s", id,
			  err->text);
		drop_session(h, id);
	}
	return 0;
}
