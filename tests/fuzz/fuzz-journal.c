/* SPDX-License-Identifier: MIT */
/*
 * What a daemon that was killed has left of a session: any words in the journal, and in the pages of the ring. The
 * session is refused in one line, or it goes on: its recovery is the same when it is done twice, what is in flight is
 * completed once, and then it ends with its books balanced.
 *
 * The input: a byte for the queue's length (1) and whether the completion at cq_tail has its seq (2), and has it beside
 * the queue (4), the heads and tails of the ring (sq_tail, cq_head, sq_head, cq_tail, 4 bytes each), then words that
 * differ from a sound journal's: 3 bytes of place, counted in words, and 8 bytes.
 */
#include <errno.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "base/memfd.h"
#include "daemon/journal.h"
#include "daemon/ringsrv.h"
#include "tests/fuzz/fuzz-daemon.h"

#define REGION_BYTES 8192 /* of both: enough for the longest queue here */
#define ARENA_BYTES 65536
#define POLLS 4

static void *map(int fd, uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	fuzz_check(p != MAP_FAILED);
	return p;
}

/* A sound journal with nothing in flight, and then the input's words. */
static int make_journal(struct fuzz_bytes *from, uint32_t entries, uint32_t cq_tail)
{
	struct moe_error err = {0};
	struct journal j;
	int fd;

	fuzz_check(journal_new(&j, entries, &err) == 0);
	j.page->session = 1;
	j.page->model = fuzz_daemon.service->registry.head->model->manifest->epoch;
	j.page->attach = (struct moe_msg_attach){.layout = MOE_LAYOUT_VERSION, .tp_size = 1, .entries = entries};
	j.page->arenas[MOE_ARENA_DATA] = j.page->arenas[MOE_ARENA_SLOTS] = ARENA_BYTES;
	j.page->used = cq_tail;
	while (from->left > 0) {
		const uint64_t at = fuzz_number(from, 3) % (j.bytes / 8);

		fuzz_take(from, (uint64_t *)j.page + at, 8);
	}
	fd = dup(j.fd);
	fuzz_check(fd >= 0);
	journal_free(&j);
	return fd;
}

/* Making memory files and taking their pages cost more than the rest of an input: the same ones serve all inputs. What
 * a session leaves in the arenas decides nothing. */
static struct {
	int client, daemon, data, slots;
	void *client_page, *daemon_page;
} files;

static void make_files(void)
{
	files.client = memfd_new("client", REGION_BYTES, NULL);
	files.daemon = memfd_new("daemon", REGION_BYTES, NULL);
	files.data = memfd_new("data", ARENA_BYTES, NULL);
	files.slots = memfd_new("slots", ARENA_BYTES, NULL);
	fuzz_check(files.data >= 0 && files.slots >= 0);
	files.client_page = map(files.client, REGION_BYTES);
	files.daemon_page = map(files.daemon, REGION_BYTES);
}

static int make_client(uint32_t sq_tail, uint32_t cq_head)
{
	struct moe_client_page *page = files.client_page;

	memset(page, 0, REGION_BYTES);
	page->sq_tail = sq_tail;
	page->cq_head = cq_head;
	return dup(files.client);
}

static int make_daemon(uint32_t entries, uint32_t sq_head, uint32_t cq_tail, bool given_out, bool alone)
{
	struct moe_daemon_page *page = files.daemon_page;
	struct moe_cqe *cqes = (struct moe_cqe *)((uint8_t *)page + MOE_RING_PAGE);

	memset(page, 0, REGION_BYTES);
	*page = (struct moe_daemon_page){.magic = MOE_RING_MAGIC, .sq_entries = entries, .cq_entries = entries};
	page->sq_head = sq_head;
	page->cq_tail = cq_tail;
	cqes[cq_tail & (entries - 1)].seq = cq_tail + given_out;
	page->alone_able = 1;
	page->alone.seq = cq_tail + alone;
	return dup(files.daemon);
}

/* Recovery before anything runs: what it says, and that it says so again when the daemon was killed after it. */
static void check_recovery(int fd, uint32_t cq_tail, bool given_out, bool alone)
{
	uint32_t slots[MOE_RING_ENTRIES_MAX], again[MOE_RING_ENTRIES_MAX];
	struct moe_cqe cqes[MOE_RING_ENTRIES_MAX] = {0};
	struct moe_daemon_page page = {
		.cq_tail = cq_tail, .alone_able = 1, .alone = {.user_data = 7, .seq = cq_tail + alone}};
	struct moe_error err = {0};
	struct journal j;
	int n, r = journal_open(&j, dup(fd), &err);

	if (r < 0) {
		fuzz_check_refused(r, &err);
		return;
	}
	cqes[cq_tail & (j.page->entries - 1)].seq = cq_tail + given_out;
	n = journal_recover(&j, &page, cqes, slots);
	fuzz_check(page.cq_tail == cq_tail + (given_out || alone));
	fuzz_check(!alone || given_out || cqes[cq_tail & (j.page->entries - 1)].user_data == 7);
	fuzz_check(n == -EBADMSG || (n >= 0 && (uint32_t)n <= j.page->entries && j.page->used == page.cq_tail));
	for (int i = 0; i < n; i++) {
		const struct journal_slot *slot = &j.page->slots[slots[i]];

		fuzz_check(slots[i] < j.page->entries && slot->inflight == 1);
		fuzz_check(i == 0 || slot->counter >= j.page->slots[slots[i - 1]].counter);
	}
	for (uint32_t i = 0, in_flight = 0; n >= 0 && i < j.page->entries; i++) {
		in_flight += j.page->slots[i].inflight == 1;
		fuzz_check(i + 1 < j.page->entries || in_flight == (uint32_t)n);
	}
	fuzz_check(n < 0 || page.sq_head == (uint32_t)j.page->next);
	fuzz_check(journal_recover(&j, &page, cqes, again) == n && (n <= 0 || !memcmp(slots, again, (size_t)n * 4)));
	fuzz_check(journal_leases(&j) <= JOURNAL_LEASES_MAX);
	journal_free(&j);
}

static void complete_done(void)
{
	struct request *q;

	while ((q = sched_next_done(fuzz_daemon.service->sched)))
		ringsrv_complete(q);
	sched_yield();
}

/* The successor's part of it, up to the client's end. */
static void live_on(struct session *s)
{
	struct entry *entry = s->entry;
	uint64_t copied = 0;

	ringsrv_revive(s, fuzz_daemon.service->sched);
	for (int i = 0; i < POLLS && !s->broken; i++) {
		ringsrv_poll(s, fuzz_daemon.service->sched, 32, &copied);
		complete_done();
		fuzz_check(s->in_flight <= s->entries);
	}
	session_kill(s, fuzz_daemon.service->sched);
	while (session_busy(s))
		complete_done();
	session_free(s, NULL); /* asserts that the books balance */
	loop_drain(fuzz_daemon.service->loop);
	fuzz_check(entry->model->sessions == 0 && entry->model->leases == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_bytes from = {data, size};
	const uint32_t first = (uint32_t)fuzz_number(&from, 1), entries = 8u << (first & 1);
	const bool given_out = first & 2, alone = first & 4;
	const uint32_t sq_tail = (uint32_t)fuzz_number(&from, 4), cq_head = (uint32_t)fuzz_number(&from, 4);
	const uint32_t sq_head = (uint32_t)fuzz_number(&from, 4), cq_tail = (uint32_t)fuzz_number(&from, 4);
	struct moe_error err = {0};
	struct session_fds fds;
	struct session *s;
	int again, r;

	if (!fuzz_daemon.service) {
		fuzz_daemon_start();
		make_files();
	}
	fuzz_daemon_load();
	fds = (struct session_fds){.client = make_client(sq_tail, cq_head),
				   .daemon = make_daemon(entries, sq_head, cq_tail, given_out, alone),
				   .doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
				   .journal = make_journal(&from, entries, cq_tail)};
	fds.arenas[0] = -1;
	fds.arenas[MOE_ARENA_DATA] = dup(files.data);
	fds.arenas[MOE_ARENA_SLOTS] = dup(files.slots);
	again = dup(fds.journal);
	r = session_revive(&s, &fuzz_daemon.service->registry, &fds, fuzz_daemon.service->accounts, getuid(),
			   fuzz_daemon.service->loop, &err);
	if (r < 0)
		fuzz_check_refused(r, &err);
	else
		live_on(s);
	check_recovery(again, cq_tail, given_out, alone);
	close(again);
	return 0;
}
