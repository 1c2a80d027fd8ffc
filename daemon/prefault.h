/* SPDX-License-Identifier: MIT */
/*
 * prefault - bring every page of a shared mapping into being, and say what came.
 *
 * Threads pinned to the node take stripes of the mapping and ask the kernel to populate them, so that a shortage is
 * an error code where a store would be SIGBUS. Who needs some bytes meanwhile takes the stripe that no thread has begun
 * and waits for the one that has: a load reads into memory that is still being made. Collapsing makes huge pages of
 * shmem even where shmem_enabled is "never": one page of each 2 MiB is touched, the kernel is asked to collapse it
 * (Linux 6.1), then the rest is populated; what could not be made huge is counted, and is there all the same.
 */
#ifndef DAEMON_PREFAULT_H
#define DAEMON_PREFAULT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/host.h"
#include "moe-error.h"

enum prefault_mode { PREFAULT_WRITE, PREFAULT_COLLAPSE, PREFAULT_READ };

struct prefault {
	void *map;
	uint64_t bytes;
	uint64_t page_bytes; /* stripes are whole pages of this size */
	enum prefault_mode mode;
	const struct host_node *node; /* NULL: a few threads anywhere, for a mapping whose pages are there already */
	bool count_huge;              /* when all is there; not of a hugetlb mapping */
};

/* Threads at work. */
struct prefault_run;

int prefault_start(struct prefault_run **ret, const struct prefault *prefault, struct moe_error *err);

/* These bytes of the mapping (one at least) are there: 0, or the kernel's -errno for all that come. Thread-safe. */
int prefault_need(struct prefault_run *run, uint64_t offset, uint64_t bytes);

/* Bytes that are there by now; of them, with PREFAULT_COLLAPSE, those that are not on huge pages. */
void prefault_counts(const struct prefault_run *run, uint64_t *ret_done, uint64_t *ret_small);

/* Waits for all stripes; `progress` (may be NULL) is called from this thread at least once and a few times a second. A
 * non-zero return ends it: -ECANCELED. */
int prefault_watch(struct prefault_run *run, int (*progress)(uint64_t done, uint64_t total, void *userdata),
		   void *userdata, struct moe_error *err);

/* Stops the threads, finished or not, and frees the run. Takes NULL, returns NULL. */
struct prefault_run *prefault_end(struct prefault_run *run);

/* Bytes of the mapping that lay on huge pages when all were there, as /proc/self/smaps counts them; -1 when that cannot
 * be read or was not asked for. After prefault_watch(). */
int64_t prefault_huge_bytes(const struct prefault_run *run);

/* Whether a sample of the mapping's pages lies on the node: 0 or -EXDEV with the page and the node found. A kernel that
 * does not say (no NUMA, or move_pages forbidden) passes. */
int prefault_check_node(const void *map, uint64_t bytes, int node, struct moe_error *err);

#endif
