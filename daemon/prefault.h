/* SPDX-License-Identifier: MIT */
/*
 * prefault - bring every page of a shared mapping into being, and say what came.
 *
 * Threads pinned to the node take stripes of the mapping and ask the kernel to populate them, so that a shortage is
 * an error code where a store would be SIGBUS. Collapsing makes huge pages of shmem even where shmem_enabled is
 * "never": one page of each 2 MiB is touched, the kernel is asked to collapse it (Linux 6.1), then the rest is
 * populated; it gives up as soon as more than a tenth could not be made huge.
 */
#ifndef DAEMON_PREFAULT_H
#define DAEMON_PREFAULT_H

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
	/* As of pages_new_watched. */
	int (*progress)(uint64_t done, uint64_t total, void *userdata);
	void *userdata;
};

/* 0, -ECANCELED, or the kernel's -errno; -EOPNOTSUPP when too little could be collapsed. */
int prefault_run(const struct prefault *prefault, struct moe_error *err);

/* Bytes of the mapping that lie on huge pages: as /proc/self/smaps counts them, -1 when that cannot be read. The
 * mapping is not a hugetlb one. */
int64_t prefault_huge_bytes(const void *map);

/* Whether a sample of the mapping's pages lies on the node: 0 or -EXDEV with the page and the node found. A kernel that
 * does not say (no NUMA, or move_pages forbidden) passes. */
int prefault_check_node(const void *map, uint64_t bytes, int node, struct moe_error *err);

#endif
