/* SPDX-License-Identifier: MIT */
#include "daemon/guard.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/memfd.h"
#include "base/util.h"

/* Replaced at once: what a thread touches next is next to what it touched, and mappings are few (max_map_count). */
#define SPARE_BYTES (2u << 20)
#define GUARDS_OF_PAGE 64

struct guard {
	_Atomic uintptr_t base, end; /* base 0: not in use */
	_Atomic uint64_t uses;       /* before the other two change */
	_Atomic bool hit;
	struct guard *next, *next_free;
};

/* Guards stay, so they lie together: one in each page of the heap would keep what sessions took there. */
struct guard_page {
	struct guard_page *next;
	struct guard guards[GUARDS_OF_PAGE];
};

static struct {
	struct guard_page *pages;
	_Atomic(struct guard *) head;
	struct guard *unused;
	_Atomic uint64_t hits;
	int spare; /* a memfd with pages: mapping it commits nothing */
} guards = {.spare = -1};

/* Both of one use: the reactor may end it and begin another between two loads. False: it is not in use. */
static bool range_of(const struct guard *g, uintptr_t *ret_base, uintptr_t *ret_end)
{
	uint64_t uses;

	/* Partners: the stores of guard_new. All are of one order, where its number is in front of its range. */
	do {
		uses = atomic_load(&g->uses);
		*ret_base = atomic_load(&g->base);
		*ret_end = atomic_load(&g->end);
	} while (atomic_load(&g->uses) != uses);
	return *ret_base != 0;
}

static bool replace(struct guard *g, uintptr_t at)
{
	uintptr_t base, end;
	const bool used = range_of(g, &base, &end);
	const uintptr_t from = at & ~(uintptr_t)(SPARE_BYTES - 1), to = MIN(from + SPARE_BYTES, end);
	const uintptr_t begin = MAX(from, base);

	if (!used || at < base || at >= end)
		return false;
	if (mmap((void *)begin, to - begin, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, guards.spare, 0) ==
	    MAP_FAILED)
		return false;
	atomic_store(&g->hit, true);
	atomic_fetch_add(&guards.hits, 1);
	return true;
}

static void on_bus(int number, siginfo_t *info, void *context)
{
	const int saved = errno;

	for (struct guard *g = atomic_load_explicit(&guards.head, memory_order_acquire); g; g = g->next)
		if (replace(g, (uintptr_t)info->si_addr)) {
			errno = saved;
			return;
		}
	signal(SIGBUS, SIG_DFL); /* it happens again, and ends the daemon */
}

int guard_start(struct moe_error *err)
{
	struct sigaction action = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};

	if (guards.spare >= 0)
		return 0;
	guards.spare = memfd_new("moe-spare", SPARE_BYTES, err);
	if (guards.spare < 0)
		return guards.spare;
	if (sigaction(SIGBUS, &action, NULL) < 0)
		return moe_error_sys(err, -errno, "sigaction(SIGBUS)");
	return 0;
}

void guard_stop(void)
{
	struct guard_page *next;

	if (guards.spare < 0)
		return;
	signal(SIGBUS, SIG_DFL);
	atomic_store(&guards.head, NULL);
	for (struct guard_page *page = guards.pages; page; page = next) {
		next = page->next;
		munmap(page, sizeof *page);
	}
	guards.pages = NULL;
	guards.unused = NULL;
	guards.spare = close_fd(guards.spare);
}

static int add_page(struct moe_error *err)
{
	struct guard_page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct guard *head = atomic_load_explicit(&guards.head, memory_order_relaxed);

	if (page == MAP_FAILED)
		return moe_error_sys(err, -ENOMEM, "guard of client memory");
	page->next = guards.pages;
	guards.pages = page;
	for (int i = 0; i < GUARDS_OF_PAGE; i++) {
		struct guard *g = &page->guards[i];

		g->next = head;
		head = g;
		g->next_free = guards.unused;
		guards.unused = g;
	}
	/* Partner: the handler's load of the head. */
	atomic_store_explicit(&guards.head, head, memory_order_release);
	return 0;
}

int guard_new(struct guard **ret, const volatile void *base, uint64_t bytes, struct moe_error *err)
{
	struct guard *g;
	int r = guards.unused ? 0 : add_page(err);

	if (r < 0)
		return r;
	g = guards.unused;
	guards.unused = g->next_free;
	atomic_store(&g->hit, false);
	/* Partner: `range_of`. */
	atomic_fetch_add(&g->uses, 1);
	atomic_store(&g->end, (uintptr_t)base + bytes);
	atomic_store(&g->base, (uintptr_t)base);
	*ret = g;
	return 0;
}

struct guard *guard_free(struct guard *g)
{
	if (g) {
		atomic_store(&g->base, 0);
		g->next_free = guards.unused;
		guards.unused = g;
	}
	return NULL;
}

bool guard_hit(const struct guard *g)
{
	return g && atomic_load(&g->hit);
}

uint64_t guard_hits(void)
{
	return atomic_load(&guards.hits);
}
