/* SPDX-License-Identifier: MIT */
#include "daemon/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/memfd.h"
#include "base/util.h"

#define LEASE_BITS 33 /* generation and whether it is held */
#define LEASE_WORD (((uint64_t)1 << LEASE_BITS) - 1)

uint64_t journal_books_bytes(uint32_t entries)
{
	return sizeof(struct journal_page) + entries * sizeof(struct journal_slot);
}

static uint64_t journal_bytes(uint32_t entries)
{
	return ALIGN_UP(journal_books_bytes(entries) + JOURNAL_LEASES_MAX * sizeof(uint64_t), (uint64_t)MOE_RING_PAGE);
}

/* The table's words are changed by these two only. */
static void hold(struct journal *j, uint64_t place, uint64_t lease)
{
	struct journal_held *h = j->held;
	const uint64_t word = place / 64, bit = (uint64_t)1 << place % 64;

	j->leases[place] = lease | 1;
	h->n += !(h->places[word] & bit);
	h->places[word] |= bit;
	if (h->places[word] == UINT64_MAX)
		h->full[word / 64] |= (uint64_t)1 << word % 64;
}

static void let_go(struct journal *j, uint64_t place, uint64_t lease)
{
	struct journal_held *h = j->held;
	const uint64_t word = place / 64, bit = (uint64_t)1 << place % 64;

	j->leases[place] = lease & ~(uint64_t)1;
	h->n -= (h->places[word] & bit) != 0;
	h->places[word] &= ~bit;
	h->full[word / 64] &= ~((uint64_t)1 << word % 64);
}

/* JOURNAL_LEASES_MAX: none. */
static uint64_t lowest_free(const struct journal_held *h)
{
	uint64_t i = 0, word;

	while (i < ARRAY_LEN(h->full) && h->full[i] == UINT64_MAX)
		i++;
	if (i == ARRAY_LEN(h->full))
		return JOURNAL_LEASES_MAX;
	word = i * 64 + (uint64_t)__builtin_ctzll(~h->full[i]);
	return word * 64 + (uint64_t)__builtin_ctzll(~h->places[word]);
}

static int journal_map(struct journal *j, uint32_t entries, struct moe_error *err)
{
	void *map;
	int r = memfd_map(&map, j->fd, j->bytes, PROT_READ | PROT_WRITE, "journal", err);

	if (r < 0)
		return r;
	memfd_want_page(map);
	j->page = map;
	j->leases = (uint64_t *)&j->page->slots[entries];
	return 0;
}

int journal_new(struct journal *ret, uint32_t entries, struct moe_error *err)
{
	struct journal j = {.bytes = journal_bytes(entries)};
	int r;

	j.fd = memfd_new_sparse("moe-journal", j.bytes, journal_books_bytes(entries), err);
	if (j.fd < 0)
		return j.fd;
	r = journal_map(&j, entries, err);
	if (r < 0) {
		journal_free(&j);
		return r;
	}
	j.page->magic = JOURNAL_MAGIC;
	j.page->version = JOURNAL_VERSION;
	j.page->entries = entries;
	*ret = j;
	return 0;
}

static bool entries_good(uint32_t n)
{
	return n >= MOE_RING_ENTRIES_MIN && n <= MOE_RING_ENTRIES_MAX && !(n & (n - 1));
}

static int need_held(struct journal *j)
{
	if (!j->held)
		j->held = calloc(1, sizeof *j->held);
	return j->held ? 0 : -ENOMEM;
}

/* Of so many slots from `first` on: whether their words are in their ranges, where the last one is that is not idle,
 * and whether one of them has an effect, which may be still to be done. */
static bool slots_good(struct journal *j, const struct journal_slot *slots, uint32_t first, uint32_t n, bool *effects)
{
	bool good = true;

	for (uint32_t i = 0; i < n; i++) {
		good &= slots[i].inflight <= JOURNAL_BY_MODULE && slots[i].effect <= JOURNAL_RELEASE;
		*effects |= slots[i].effect != JOURNAL_NONE;
		if (slots[i].inflight != JOURNAL_IDLE)
			j->reach = first + i + 1;
	}
	return good;
}

/* All slots are looked at, of which most have nothing to tell: in a copy, since each page that is touched where it is
 * mapped is a fault, and a daemon that takes over many sessions would wait for those more than for anything else. */
static int journal_check(struct journal *j, const struct journal_page *head, struct moe_error *err)
{
	const uint32_t n = head->entries;
	bool good = head->last <= n && head->n_leases <= JOURNAL_LEASES_MAX && head->phase <= MOE_PHASE_DECODE;
	bool effects = false;
	struct journal_slot block[64];

	for (uint32_t i = 0; good && i < n; i += ARRAY_LEN(block)) {
		const uint32_t some = MIN(n - i, (uint32_t)ARRAY_LEN(block));
		const size_t bytes = some * sizeof *block;

		good = pread(j->fd, block, bytes, (off_t)journal_books_bytes(i)) == (ssize_t)bytes &&
		       slots_good(j, block, i, some, &effects);
	}
	if (!good)
		return moe_error_set(err, -EBADMSG, "journal of session %llu: a word out of its range",
				     (unsigned long long)head->session);
	if ((effects || head->n_leases > 0) && need_held(j) < 0)
		return moe_error_set(err, -ENOMEM, "journal: no memory for the books of its leases");
	return 0;
}

int journal_open(struct journal *ret, int fd, struct moe_error *err)
{
	struct journal j = {.fd = fd};
	struct journal_page head;
	int r;

	if (pread(fd, &head, sizeof head, 0) != sizeof head || head.magic != JOURNAL_MAGIC)
		r = moe_error_set(err, -EBADMSG, "journal: not one of moe-expertd's");
	else if (head.version < JOURNAL_VERSION_MIN || head.version > JOURNAL_VERSION || !entries_good(head.entries))
		r = moe_error_set(err, -EPROTO, "journal: version %u with %u entries found, versions %d to %d expected",
				  head.version, head.entries, JOURNAL_VERSION_MIN, JOURNAL_VERSION);
	else
		r = memfd_verify(fd, journal_bytes(head.entries), F_SEAL_SHRINK | F_SEAL_GROW, &j.bytes, "journal",
				 err);
	if (r == 0)
		r = journal_map(&j, head.entries, err);
	if (r == 0)
		r = journal_check(&j, &head, err);
	if (r == 0 && j.page->n_leases > 0) {
		r = journal_make_leases(&j, 0, j.page->n_leases);
		r = r < 0 ? moe_error_sys(err, r, "journal: memory for its leases") : 0;
	}
	if (r < 0) {
		journal_free(&j);
		return r;
	}
	for (uint32_t i = 0; i < j.page->n_leases; i++)
		if (j.leases[i] & 1)
			hold(&j, i, j.leases[i]);
	*ret = j;
	return 0;
}

void journal_free(struct journal *j)
{
	if (j->page)
		munmap(j->page, j->bytes);
	free(j->held);
	close_fd(j->fd);
	*j = (struct journal){.fd = -1};
}

int journal_make_leases(struct journal *j, uint64_t from, uint64_t to)
{
	const uint64_t table = journal_books_bytes(j->page->entries);

	if (need_held(j) < 0)
		return -ENOMEM;
	return memfd_make_pages(j->fd, table + from * sizeof *j->leases, (to - from) * sizeof *j->leases);
}

void journal_set_effect(struct journal *j, uint32_t slot, enum journal_effect effect, uint64_t lease)
{
	j->page->slots[slot].lease = lease;
	j->page->slots[slot].effect = effect;
}

/* The upper bits of a lease's place. */
static uint64_t record_of(const struct moe_sqe *sqe)
{
	return ((uint64_t)sqe->layer * JOURNAL_EXPERTS_MAX + sqe->fill.expert % JOURNAL_EXPERTS_MAX) << LEASE_BITS;
}

/* Done twice it is done once: a lease's generation makes it the only one of its kind. */
static void do_effect(struct journal *j, const struct journal_slot *s)
{
	const uint64_t i = (s->lease & UINT32_MAX) - 1, generation = s->lease >> 32;

	if (s->effect == JOURNAL_NONE || i >= JOURNAL_LEASES_MAX)
		return;
	j->page->n_leases = MAX(j->page->n_leases, (uint32_t)i + 1);
	if (s->effect == JOURNAL_LEND)
		hold(j, i, record_of(&s->sqe) | generation << 1);
	else
		let_go(j, i, (j->leases[i] & ~LEASE_WORD) | generation << 1);
}

static void close_slot(struct journal *j, uint32_t slot, uint32_t cq_tail)
{
	do_effect(j, &j->page->slots[slot]);
	crash_at(CRASH_EFFECT);
	journal_put(&j->page->slots[slot].inflight, 0);
	crash_at(CRASH_CLEARED);
	journal_put(&j->page->used, cq_tail);
}

void journal_end(struct journal *j, uint32_t slot, uint32_t cq_tail)
{
	close_slot(j, slot, cq_tail);
}

void journal_note(struct journal *j, uint32_t slot, const struct moe_sqe *sqe, uint64_t seq)
{
	struct journal_slot *s = &j->page->slots[slot];

	s->counter = seq;
	s->sqe = *sqe;
	s->effect = JOURNAL_NONE;
}

void journal_commits(struct journal *j, uint32_t slot)
{
	if (j->page->slots[slot].effect == JOURNAL_NONE)
		return;
	journal_put(&j->page->slots[slot].inflight, JOURNAL_BY_MODULE);
	crash_at(CRASH_INFLIGHT);
}

void journal_committed(struct journal *j, uint32_t slot)
{
	do_effect(j, &j->page->slots[slot]);
	crash_at(CRASH_EFFECT);
	journal_put(&j->page->slots[slot].inflight, JOURNAL_IDLE);
	crash_at(CRASH_CLEARED);
}

void journal_settle(struct journal *j, bool (*again)(void *userdata, uint64_t seq), void *userdata)
{
	for (uint32_t i = 0; i < j->reach; i++) {
		const struct journal_slot *s = &j->page->slots[i];

		if (s->inflight != JOURNAL_BY_MODULE)
			continue;
		if (again(userdata, s->counter))
			journal_drop(j, i);
		else
			journal_committed(j, i);
	}
}

void journal_drop(struct journal *j, uint32_t slot)
{
	journal_put(&j->page->slots[slot].inflight, 0);
}

static const struct journal_page *sorted; /* recovery is the reactor's, before it turns */

static int by_counter(const void *a, const void *b)
{
	const uint64_t x = sorted->slots[*(const uint32_t *)a].counter, y = sorted->slots[*(const uint32_t *)b].counter;

	return x < y ? -1 : x > y;
}

/* The client may have seen it: it is given out. */
static void recover_tail(const struct journal_page *p, struct moe_daemon_page *page, struct moe_cqe *cqes)
{
	struct moe_cqe *cqe = &cqes[page->cq_tail & (p->entries - 1)];
	const uint32_t seq = page->cq_tail + 1;

	if (page->alone_able && page->alone.seq == seq && cqe->seq != seq)
		journal_give_out(cqe, &page->alone, seq);
	if (cqe->seq == seq)
		journal_put(&page->cq_tail, seq);
}

int journal_recover(struct journal *j, struct moe_daemon_page *page, struct moe_cqe *cqes, uint32_t *slots)
{
	struct journal_page *p = j->page;
	int n = 0;

	recover_tail(p, page, cqes);
	if (page->cq_tail - p->used > 1 || (page->cq_tail != p->used && !p->last))
		return -EBADMSG;
	if (p->used != page->cq_tail)
		close_slot(j, p->last - 1, page->cq_tail);
	for (uint32_t i = 0; i < j->reach; i++)
		if (p->slots[i].inflight == JOURNAL_BY_RING) {
			p->next = MAX(p->next, p->slots[i].counter + 1);
			slots[n++] = i;
		}
	__atomic_store_n(&page->sq_head, (uint32_t)p->next, __ATOMIC_RELEASE);
	sorted = p;
	qsort(slots, (size_t)n, sizeof *slots, by_counter);
	return n;
}

uint64_t journal_free_lease(const struct journal *j)
{
	const uint64_t i = j->held ? lowest_free(j->held) : 0;
	const uint64_t generation = i < j->page->n_leases ? (j->leases[i] & LEASE_WORD) >> 1 : 0;

	return i < JOURNAL_LEASES_MAX ? (generation + 1) << 32 | (i + 1) : 0;
}

bool journal_holds(const struct journal *j, uint64_t lease)
{
	const uint64_t i = (lease & UINT32_MAX) - 1;

	return i < j->page->n_leases && (j->leases[i] & LEASE_WORD) == (lease >> 32 << 1 | 1);
}

uint32_t journal_leases(const struct journal *j)
{
	return j->held ? j->held->n : 0;
}

uint32_t journal_lease_key(const struct journal *j, uint64_t lease)
{
	const uint64_t i = (lease & UINT32_MAX) - 1;

	return i < j->page->n_leases ? (uint32_t)(j->leases[i] >> LEASE_BITS) : UINT32_MAX;
}

bool journal_next_lease(const struct journal *j, uint32_t *cursor, uint32_t *ret_key)
{
	while (*cursor < j->page->n_leases) {
		const uint64_t lease = j->leases[(*cursor)++];

		*ret_key = (uint32_t)(lease >> LEASE_BITS);
		if (lease & 1)
			return true;
	}
	return false;
}

void journal_forget_lease(struct journal *j, uint32_t place)
{
	let_go(j, place, j->leases[place]);
}

void journal_release_all(struct journal *j)
{
	for (uint32_t i = 0; i < j->page->n_leases; i++)
		if (j->leases[i] & 1)
			let_go(j, i, j->leases[i]);
}
