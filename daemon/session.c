/* SPDX-License-Identifier: MIT */
#include "daemon/session.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/memfd.h"
#include "base/util.h"
#include "daemon/agreement.h"
#include "daemon/closer.h"
#include "daemon/holes.h"
#include "daemon/modqueue.h"
#include "daemon/ringsrv.h"

/* Client region, daemon region, doorbell, journal. Of arenas see session-arenas.c. One more for each further pool: with
 * those of its connection they cover what may be in flight to a client that reads no answer. */
#define SESSION_FDS 4
/* Places for leases are made, and charged, so many at a time. */
#define LEASES_BLOCK 64

static void doorbell_ready(struct source *source, uint32_t events)
{
	pollset_wake(container_of(source, struct session, doorbell));
}

bool session_listen(struct session *s)
{
	uint64_t count;
	const struct iovec iov = {&count, sizeof count};

	if (s->doorbell.armed)
		return true;
	/* The client shares the file's flags: never rely on O_NONBLOCK. What cannot be read rings once more. */
	if (preadv2(s->doorbell.fd, &iov, 1, -1, RWF_NOWAIT) < 0)
		count = 0;
	return loop_again(s->loop, &s->doorbell) == 0;
}

/* Of its requests, its completion queue's and its times. */
static size_t used_bytes(const struct session *s)
{
	return s->entries * (sizeof *s->requests + sizeof *s->completed) + sizeof *s->times;
}

/* Of the client region, what has pages: all but the tap. */
static uint64_t region_bytes(const struct session *s)
{
	return s->client.bytes - (s->tap_offset ? SESSION_TAP_BYTES : 0);
}

/* What the client's last look at the queue needs stays: the page with the queue's sizes and ends. All but the
 * regions is off the account at once. */
static void give_regions_back(struct session *s)
{
	const struct hole list[] = {{s->client_fd, 0, s->client.bytes},
				    {s->daemon_fd, MOE_RING_PAGE, s->daemon_bytes - MOE_RING_PAGE}};
	struct charge regions = {0};

	if (s->holes) {
		charge_move(&s->charge, &regions, ACCOUNT_FDS, ARRAY_LEN(list));
		charge_move(&s->charge, &regions, ACCOUNT_BYTES,
			    region_bytes(s) + s->daemon_bytes + (s->tap_made ? SESSION_TAP_BYTES : 0));
	}
	charge_close(&s->charge);
	holes_make(s->holes, list, ARRAY_LEN(list), &regions, false);
}

static void session_destroy(struct session *s)
{
	ringsrv_tier_leave(s);
	close_fd(s->data_fd); /* before the mapping: who is the last gives gibibytes back */
	for (size_t i = 0; i < ARRAY_LEN(s->guards); i++)
		guard_free(s->guards[i]);
	for (size_t i = 0; i < ARRAY_LEN(s->arenas); i++)
		if (s->arenas[i].base)
			closer_unmap((void *)(uintptr_t)s->arenas[i].base, s->arenas[i].bytes);
	if (s->client.base)
		munmap((void *)(uintptr_t)s->client.base, s->client.bytes);
	if (s->page)
		munmap(s->page, s->daemon_bytes);
	close_fd(s->doorbell.fd);
	if (s->requests)
		munmap(s->requests, used_bytes(s));
	journal_free(&s->journal);
	routing_drop(&s->routing);
	free(s->hinted);
	free(s->slices);
	give_regions_back(s);
	free(s);
}

static void doorbell_gone(struct source *source)
{
	session_destroy(container_of(source, struct session, doorbell));
}

static uint64_t waits_bytes(const struct session *s)
{
	return ALIGN_UP(s->entry->model->manifest->n_layers * sizeof(struct moe_histogram), (uint64_t)MOE_RING_PAGE);
}

/* Cells of the model's heat, in whole pages. */
static uint64_t heat_room(const struct moe_manifest *m)
{
	return ALIGN_UP((uint64_t)m->n_moe_layers * m->n_experts * sizeof(uint32_t), (uint64_t)MOE_RING_PAGE);
}

static uint64_t hottest_offset(uint32_t entries)
{
	return ALIGN_UP(MOE_RING_PAGE + (uint64_t)entries * sizeof(struct moe_cqe), (uint64_t)MOE_RING_PAGE);
}

/* The tap stands where it stood before there were histograms: what a daemon of another version makes is taken over. */
static void size_regions(struct session *s)
{
	const struct moe_manifest *m = s->entry->model->manifest;
	const uint64_t sqes = (uint64_t)s->entries * sizeof(struct moe_sqe);

	s->stats_offset = MOE_RING_PAGE + sqes;
	s->tap_offset = ALIGN_UP(s->stats_offset + m->n_layers * sizeof(struct moe_layer_stats),
				 (uint64_t)MOE_RING_PAGE);
	s->waits_offset = s->tap_offset + SESSION_TAP_BYTES;
	s->heat_offset = s->waits_offset + waits_bytes(s);
	s->client.bytes = s->heat_offset + heat_room(m);
	s->daemon_bytes = hottest_offset(s->entries) + 2 * heat_room(m);
}

/* Of a daemon that knew of no heat. */
static void size_without_heat(struct session *s)
{
	s->client.bytes = s->heat_offset;
	s->daemon_bytes = hottest_offset(s->entries);
	s->heat_offset = 0;
}

/* Of a daemon that knew of no histograms, or not even of taps. */
static void size_as_before(struct session *s, uint64_t bytes)
{
	if (bytes >= s->client.bytes)
		return;
	s->client.bytes = s->waits_offset;
	s->waits_offset = 0;
	if (bytes >= s->client.bytes)
		return;
	s->client.bytes = s->tap_offset;
	s->tap_offset = 0;
}

static int make_client_region(struct session *s, struct moe_error *err)
{
	const uint64_t bytes = s->client.bytes - s->waits_offset;
	int r;

	s->client_fd = memfd_new_sparse("moe-client-region", s->client.bytes, s->tap_offset, err);
	if (s->client_fd < 0)
		return s->client_fd;
	r = memfd_make_pages(s->client_fd, s->waits_offset, bytes);
	return r < 0 ? moe_error_sys(err, r, "client region: %llu bytes for histograms and heat",
				     (unsigned long long)bytes)
		     : 0;
}

static size_t hint_words(const struct moe_manifest *m)
{
	return (size_t)m->n_layers * DIV_UP(m->n_experts, 64);
}

static size_t ahead_words(const struct moe_manifest *m)
{
	return m->flags & MOE_MANIFEST_TIERED ? (size_t)m->n_moe_layers * frames_hint_words(m->n_experts) : 0;
}

static size_t chance_words(const struct moe_manifest *m)
{
	return m->flags & MOE_MANIFEST_TIERED ? DIV_UP(m->n_experts * sizeof(uint16_t), sizeof(uint64_t)) : 0;
}

/* On the account what the session takes from its beginning to its end. */
static int charge_session(struct session *s, struct moe_error *err)
{
	const struct moe_manifest *m = s->entry->model->manifest;
	const uint64_t books = sizeof *s + used_bytes(s) +
			       (hint_words(m) + ahead_words(m) + chance_words(m)) * sizeof *s->hinted +
			       2 * (uint64_t)m->n_layouts * sizeof *s->slices + journal_books_bytes(s->entries) +
			       s->entries * ringsrv_tier_bytes(s);
	int r = charge_take(&s->charge, ACCOUNT_SESSIONS, 1, "attach", err);

	if (r == 0)
		r = charge_take(&s->charge, ACCOUNT_FDS, SESSION_FDS + s->entry->model->n_pools - 1, "attach", err);
	if (r == 0)
		r = charge_take(&s->charge, ACCOUNT_REQUESTS, s->entries, "attach", err);
	if (r == 0)
		r = charge_take(&s->charge, ACCOUNT_BYTES, books + region_bytes(s) + s->daemon_bytes, "attach", err);
	return r;
}

static int open_charge(struct session *s, struct accounts *accounts, uid_t uid, bool granted, struct moe_error *err)
{
	int r = charge_open(&s->charge, accounts, uid, err);

	if (r < 0)
		return r;
	s->uid = uid;
	s->charge.granted = granted;
	s->sched.user = &s->charge.account->sched;
	return charge_session(s, err);
}

static int make_regions(struct session *s, struct moe_error *err)
{
	int r = make_client_region(s, err);

	if (r < 0)
		return r;
	s->daemon_fd = memfd_new("moe-daemon-region", s->daemon_bytes, err);
	if (s->daemon_fd < 0)
		return s->daemon_fd;
	s->doorbell.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (s->doorbell.fd < 0)
		return moe_error_sys(err, -errno, "eventfd");
	return journal_new(&s->journal, s->entries, err);
}

static int map_regions(struct session *s, struct moe_error *err)
{
	void *client, *daemon;
	int r = memfd_map(&client, s->client_fd, s->client.bytes, PROT_READ | PROT_WRITE, "client region", err);

	if (r < 0)
		return r;
	memfd_want_page(client);
	s->client.base = client;
	r = guard_new(&s->guards[0], client, s->client.bytes, err);
	if (r < 0)
		return r;
	r = memfd_map(&daemon, s->daemon_fd, s->daemon_bytes, PROT_READ | PROT_WRITE, "daemon region", err);
	if (r < 0)
		return r;
	memfd_want_page(daemon);
	s->page = daemon;
	if (s->heat_offset)
		s->taken = (uint32_t *)((uint8_t *)daemon + hottest_offset(s->entries) +
					heat_room(s->entry->model->manifest));
	return 0;
}

static void begin_books(struct session *s)
{
	struct journal_page *p = s->journal.page;

	*s->page = (struct moe_daemon_page){
		.magic = MOE_RING_MAGIC,
		.epoch = s->entry->model->manifest->epoch,
		.sq_entries = s->entries,
		.cq_entries = s->entries,
		.sqe_offset = MOE_RING_PAGE,
		.stats_offset = s->stats_offset,
		.cqe_offset = MOE_RING_PAGE,
		.tap_offset = s->tap_offset,
		.tap_bytes = SESSION_TAP_BYTES,
		.waits_offset = s->waits_offset,
		.heat_offset = s->heat_offset,
		.hottest_offset = hottest_offset(s->entries),
		.alone_able = 1,
	};
	p->model = s->entry->model->manifest->epoch;
	p->attach = s->attach;
	p->asked = 1; /* ATTACH, which is answered when the keeper has the session */
}

/* The caller has checked tp_rank and tp_size against every layout. */
static void cut_slices(struct session *s)
{
	const struct resident *model = s->entry->model;
	const uint32_t n = model->manifest->n_layouts;

	for (uint32_t i = 0; i < n; i++) {
		moe_slice_of(&s->slices[i], &model->layouts[i], s->attach.tp_rank, s->attach.tp_size);
		moe_slice_of(&s->slices[n + i], &model->layouts[i], 0, 1);
	}
}

/* It goes back to the system with the session, whatever the heap keeps, and pages that are not used are never made: a
 * daemon that takes over a thousand sessions would make them all before it answers one. */
static bool map_used(struct session *s)
{
	void *map = mmap(NULL, used_bytes(s), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (map == MAP_FAILED)
		return false;
	s->requests = map;
	s->completed = (struct request **)(s->requests + s->entries);
	s->times = (struct times *)(s->completed + s->entries);
	return true;
}

/* Books in ordinary memory, which a successor makes anew. */
static int make_books(struct session *s, struct moe_error *err)
{
	const struct moe_manifest *m = s->entry->model->manifest;

	s->hinted = calloc(hint_words(m) + ahead_words(m) + chance_words(m), sizeof *s->hinted);
	s->slices = calloc((size_t)2 * m->n_layouts, sizeof *s->slices);
	if (!map_used(s) || !s->hinted || !s->slices || ringsrv_tier_join(s) < 0)
		return moe_error_sys(err, -ENOMEM, "session with %u entries", s->entries);
	s->ahead = s->hinted + hint_words(m);
	s->chances = chance_words(m) ? (uint16_t *)(s->ahead + ahead_words(m)) : NULL;
	cut_slices(s);
	return 0;
}

static struct session *session_alloc(struct loop *loop)
{
	struct session *s = calloc(1, sizeof *s);

	if (!s)
		return NULL;
	s->loop = loop;
	s->client_fd = s->daemon_fd = s->data_fd = s->journal.fd = -1;
	s->doorbell = (struct source){.fd = -1, .ready = doorbell_ready, .gone = doorbell_gone, .once = true};
	s->attached_ns = now_ns();
	sched_client_init(&s->sched);
	return s;
}

int session_new(struct session **ret, struct entry *entry, const struct moe_msg_attach *attach,
		struct accounts *accounts, uid_t uid, struct loop *loop, struct moe_error *err)
{
	struct session *s = session_alloc(loop);
	int r;

	if (!s)
		return moe_error_sys(err, -ENOMEM, "session");
	s->entry = entry;
	s->attach = *attach;
	s->entries = attach->entries;
	size_regions(s);
	r = open_charge(s, accounts, uid, false, err);
	if (r == 0)
		r = make_regions(s, err);
	if (r == 0)
		r = map_regions(s, err);
	if (r == 0)
		r = make_books(s, err);
	if (r == 0)
		r = loop_add(loop, &s->doorbell, err);
	if (r < 0) {
		session_destroy(s);
		return r;
	}
	begin_books(s);
	entry->model->sessions++;
	*ret = s;
	return 0;
}

/* -- the tap ------------------------------------------------------------------------------------------------------ */

int session_make_tap(struct session *s)
{
	int r = charge_take(&s->charge, ACCOUNT_BYTES, SESSION_TAP_BYTES, "tap", NULL);

	if (r < 0)
		return r;
	r = memfd_make_pages(s->client_fd, s->tap_offset, SESSION_TAP_BYTES);
	if (r < 0)
		charge_give(&s->charge, ACCOUNT_BYTES, SESSION_TAP_BYTES);
	else
		s->tap_made = true;
	s->page->tap_made = s->tap_made;
	return r;
}

/* Nobody wants it of this daemon yet. The daemon before may have been killed with it open. */
static int revive_tap(struct session *s, struct moe_error *err)
{
	if (!s->tap_offset)
		s->page->tap_bytes = 0;
	__atomic_store_n(&s->page->tap_on, 0, __ATOMIC_RELEASE);
	s->tap_made = s->tap_offset && s->page->tap_made;
	return s->tap_made ? charge_take(&s->charge, ACCOUNT_BYTES, SESSION_TAP_BYTES, "tap", err) : 0;
}

/* -- heat --------------------------------------------------------------------------------------------------------- */

void session_tell_hottest(struct session *s, const struct session *alike)
{
	const struct moe_manifest *m = s->entry->model->manifest;
	const uint64_t bytes = (uint64_t)m->n_moe_layers * m->n_experts * sizeof(uint32_t);
	uint8_t *to = (uint8_t *)s->page + hottest_offset(s->entries);

	if (alike && alike->heat_offset)
		memcpy(to, (const uint8_t *)alike->page + hottest_offset(alike->entries), bytes);
	else if (s->entry->lasting)
		memcpy(to, s->entry->lasting->page->cells, bytes);
}

/* -- leases ------------------------------------------------------------------------------------------------------- */

int session_room_for_lease(struct session *s, uint64_t lease)
{
	const uint64_t have = s->charge.held[ACCOUNT_LEASES], place = lease & UINT32_MAX;
	const uint64_t more = place > have ? ALIGN_UP(place, (uint64_t)LEASES_BLOCK) - have : 0;
	int r = charge_take(&s->charge, ACCOUNT_LEASES, more, "lease", NULL);

	if (r == 0 && more > 0) {
		r = journal_make_leases(&s->journal, have, have + more);
		if (r < 0)
			charge_give(&s->charge, ACCOUNT_LEASES, more);
	}
	return r;
}

/* -- after the daemon's end --------------------------------------------------------------------------------------- */

/* Of every layout: what on_attach has found of it in the daemon before. */
static bool slice_is_there(const struct resident *model, const struct moe_msg_attach *attach)
{
	bool good = attach->tp_rank < attach->tp_size;

	for (uint32_t i = 0; i < model->manifest->n_layouts; i++)
		good &= attach->tp_size <= moe_slice_units(&model->layouts[i]);
	return good;
}

static bool had_heat(const struct session *s)
{
	uint64_t offset;

	return pread(s->daemon_fd, &offset, sizeof offset, offsetof(struct moe_daemon_page, heat_offset)) ==
		       sizeof offset &&
	       offset == s->heat_offset;
}

/* The journal is the daemon's own; the rest is checked against it all the same, because a bad map ends the daemon. */
static int check_revived(struct session *s, struct registry *registry, struct moe_error *err)
{
	const struct journal_page *p = s->journal.page;
	struct stat st;
	int r;

	s->entry = registry_by_epoch(registry, p->model);
	if (p->asked != p->answered)
		return moe_error_set(err, -EINTR,
				     "session %llu: its daemon died before it answered a message, or could not "
				     "let it be kept",
				     (unsigned long long)p->session);
	if (!s->entry)
		return moe_error_set(err, -ENOENT, "session %llu: its model is not there any more",
				     (unsigned long long)p->session);
	if (s->doorbell.fd < 0) /* what cannot be watched ends the reactor */
		return moe_error_set(err, -ENOENT, "session %llu: its doorbell is not there",
				     (unsigned long long)p->session);
	s->attach = p->attach;
	s->entries = p->entries;
	size_regions(s);
	if (!had_heat(s))
		size_without_heat(s);
	if (fstat(s->client_fd, &st) == 0)
		size_as_before(s, (uint64_t)st.st_size);
	if (!slice_is_there(s->entry->model, &s->attach))
		return moe_error_set(err, -EBADMSG, "session %llu: no such slice", (unsigned long long)p->session);
	r = memfd_verify(s->client_fd, s->client.bytes, F_SEAL_SHRINK | F_SEAL_GROW, NULL, "client region", err);
	if (r == 0)
		r = memfd_verify(s->daemon_fd, s->daemon_bytes, F_SEAL_SHRINK | F_SEAL_GROW, NULL, "daemon region",
				 err);
	return r;
}

static int revive_arenas(struct session *s, const int *fds, struct moe_error *err)
{
	int r = 0;

	for (uint32_t kind = MOE_ARENA_DATA; kind <= MOE_ARENA_SLOTS && r == 0; kind++)
		if (s->journal.page->arenas[kind])
			r = session_add_arena(s, kind, fds[kind], s->journal.page->arenas[kind], err);
	return r;
}

static void revive_books(struct session *s)
{
	const struct journal_page *p = s->journal.page;

	s->id = p->session;
	s->phase = (enum moe_phase)p->phase;
	s->dummy = p->dummy;
	s->step = p->step;
	s->failed = p->failed;
	s->cancelled = p->cancelled;
	memcpy(s->ops, p->ops, sizeof s->ops);
	s->leases_held = journal_leases(&s->journal);
	s->entry->model->leases += s->leases_held;
	s->entry->model->sessions++;
}

int session_revive(struct session **ret, struct registry *registry, struct session_fds *fds, struct accounts *accounts,
		   uid_t uid, struct loop *loop, struct moe_error *err)
{
	struct session *s = session_alloc(loop);
	int r = s ? 0 : moe_error_sys(err, -ENOMEM, "session");

	if (s) {
		s->client_fd = steal_fd(&fds->client);
		s->daemon_fd = steal_fd(&fds->daemon);
		s->doorbell.fd = steal_fd(&fds->doorbell);
		r = journal_open(&s->journal, steal_fd(&fds->journal), err);
	}
	if (r == 0)
		r = check_revived(s, registry, err);
	if (r == 0)
		r = open_charge(s, accounts, uid, true, err);
	if (r == 0)
		r = session_room_for_lease(s, s->journal.page->n_leases);
	if (r == 0)
		r = map_regions(s, err);
	if (r == 0)
		r = revive_tap(s, err);
	if (r == 0)
		r = make_books(s, err);
	if (r == 0)
		r = revive_arenas(s, fds->arenas, err);
	if (r == 0)
		r = loop_add(loop, &s->doorbell, err);
	for (size_t i = 0; i < ARRAY_LEN(fds->arenas); i++)
		close_fd(steal_fd(&fds->arenas[i]));
	if (!s) {
		close_fd(steal_fd(&fds->client));
		close_fd(steal_fd(&fds->daemon));
		close_fd(steal_fd(&fds->doorbell));
		close_fd(steal_fd(&fds->journal));
	}
	if (r < 0) {
		if (s)
			session_destroy(s);
		return r;
	}
	revive_books(s);
	s->unrevived = true;
	*ret = s;
	return 0;
}

bool session_lost_page(const struct session *s)
{
	bool lost = false;

	for (size_t i = 0; i < ARRAY_LEN(s->guards); i++)
		lost |= guard_hit(s->guards[i]);
	return lost;
}

/* All but what the successor looks at. */
static void let_go(struct session *s, struct sched *sched)
{
	s->dead = true;
	pollset_remove(s);
	agreement_part(s);
	modqueue_part(s);
	if (s->entry->tier)
		ringsrv_tier_kill(s);
	sched_cancel_all(sched, &s->sched, ringsrv_drop);
	ringsrv_drop_completed(s);
	s->entry->model->leases -= s->leases_held;
	s->leases_held = 0;
}

void session_kill(struct session *s, struct sched *sched)
{
	if (s->dead)
		return;
	ringsrv_retire_stats(s);
	ringsrv_take_heat(s);
	let_go(s, sched);
	journal_release_all(&s->journal);
}

void session_leave(struct session *s, struct sched *sched)
{
	if (s->dead)
		return;
	s->left = true;
	let_go(s, sched);
}

void session_free(struct session *s, struct holes *holes)
{
	assert(s->dead && s->in_flight == 0 && s->leases_held == 0);
	push_close(s->device);
	s->device = NULL;
	ringsrv_tier_leave(s);
	s->entry->model->sessions--;
	s->entry = NULL;
	s->holes = s->left ? NULL : holes;
	loop_remove(s->loop, &s->doorbell);
}
