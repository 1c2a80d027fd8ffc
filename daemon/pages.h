/* SPDX-License-Identifier: MIT */
/*
 * pages - memory for one pool file: the best page size that this machine gives, on the NUMA node that was asked for.
 *
 * The ladder, best first: 1 GiB hugetlb, 2 MiB hugetlb, transparent huge pages on shmem, 4 KiB. A rung holds only
 * when every page is really there: the file is made, mapped writable, bound (MPOL_BIND) before the first touch,
 * prefaulted by threads pinned to the node (MADV_POPULATE_WRITE, so that a shortage is an error and not SIGBUS), and
 * a sample of pages is verified to lie on the node. When a rung fails everything of it is given back before the next
 * one is tried. Prefaulting takes its time: a file may be used from pages_begin on, where prefault_need says so.
 */
#ifndef DAEMON_PAGES_H
#define DAEMON_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/host.h"
#include "moe-error.h"

enum pages_rung { PAGES_1G, PAGES_2M, PAGES_THP, PAGES_4K, PAGES_RUNGS };
enum pages_want { PAGES_AUTO = -1 }; /* else an enum pages_rung: that rung or an error */

struct pages {
	int fd;
	void *map;      /* writable until pages_publish, then read-only; NULL after a pages_publish that failed */
	uint64_t bytes; /* of the file: what was asked for, rounded up to whole pages */
	enum pages_rung rung;
	int node;
	uint64_t huge_bytes; /* of `bytes`, on huge pages (THP: counted in smaps after prefaulting, may be less) */
	bool writable;       /* set before publishing or adopting: the daemon's mapping stays so (daemon/frames.h) */
	char better[256];    /* what to type for a better rung; "" when there is none */
};

#define PAGES_NONE ((struct pages){.fd = -1})

struct prefault_run;

/* `want`: PAGES_AUTO takes the best rung that has room; a fixed rung fails with -ENOMEM and the command to type. Too
 * little memory for any rung is -ENOMEM, found before memory is touched. The file is zero-filled. */
int pages_new(struct pages *ret, const char *name, uint64_t bytes, int want, const struct host_node *node,
	      struct moe_error *err);

/* As pages_new; `progress` is called from this thread a few times a second with the bytes prefaulted on the rung
 * that is being tried. A non-zero return ends it (-ECANCELED). */
int pages_new_watched(struct pages *ret, const char *name, uint64_t bytes, int want, const struct host_node *node,
		      int (*progress)(uint64_t done, uint64_t total, void *userdata), void *userdata,
		      struct moe_error *err);

/* As pages_new, but only the file's beginning is there; threads make the rest meanwhile (*ret_rest, prefault.h).
 * PAGES_AUTO begins at the rung `from`. */
int pages_begin(struct pages *ret, struct prefault_run **ret_rest, const char *name, uint64_t bytes, int want,
		enum pages_rung from, const struct host_node *node, struct moe_error *err);

/* Waits for the rest, looks at what came, and frees `rest`. -ENOMEM: the rung of pages->rung does not hold; the next
 * one may be tried. The pages stay the caller's, also on failure. */
int pages_end(struct pages *pages, struct prefault_run *rest, int want,
	      int (*progress)(uint64_t done, uint64_t total, void *userdata), void *userdata, struct moe_error *err);

/* Drops the writable mapping, seals the file against every write for ever (F_SEAL_WRITE, SHRINK, GROW, SEAL), maps
 * it read-only at a new address. `writable_clients` leaves F_SEAL_WRITE out: for GPUs that register only writable
 * mappings. Pages that stay writable get the size's seals only, and clients read-only descriptors. */
int pages_publish(struct pages *pages, bool writable_clients, struct moe_error *err);

/* Maps, read-only, a published file of a daemon that is no more: fd, bytes and rung are set. At least `min_bytes` must
 * be there. Its pages are not touched. */
int pages_adopt(struct pages *pages, uint64_t min_bytes, struct moe_error *err);

/* Gives everything back and leaves PAGES_NONE, which it also takes. */
void pages_free(struct pages *pages);

const char *pages_rung_name(enum pages_rung rung);         /* "1g", "2m", "thp", "4k" */
int pages_rung_from_name(const char *name, int *ret_want); /* also "auto"; -EINVAL */
uint64_t pages_rung_bytes(enum pages_rung rung);

#endif
