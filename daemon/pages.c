/* SPDX-License-Identifier: MIT */
#include "daemon/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memfd.h"
#include "base/util.h"
#include "daemon/prefault.h"
#include "daemon/room.h"
#include "model/pool-size.h"

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_SHIFT 26
#define MFD_HUGE_2MB (21u << MFD_HUGE_SHIFT)
#define MFD_HUGE_1GB (30u << MFD_HUGE_SHIFT)
#endif

#define NODE_IDS 1024
#define THP_SHMEM "/sys/kernel/mm/transparent_hugepage/shmem_enabled"

static const struct {
	const char *name;
	uint64_t bytes;
	unsigned memfd_flags;
} rungs[PAGES_RUNGS] = {
	[PAGES_1G] = {"1g", HOST_HUGE_1G, MFD_HUGETLB | MFD_HUGE_1GB},
	[PAGES_2M] = {"2m", HOST_HUGE_2M, MFD_HUGETLB | MFD_HUGE_2MB},
	[PAGES_THP] = {"thp", HOST_HUGE_2M, 0},
	[PAGES_4K] = {"4k", 4096, 0},
};

#define UNMAP_PIECE ((uint64_t)2 << 20)

/* What stays the same while rungs are tried. */
struct request {
	const char *name;
	uint64_t bytes;
	const struct host_node *node;
};

const char *pages_rung_name(enum pages_rung rung)
{
	return rungs[rung].name;
}

uint64_t pages_rung_bytes(enum pages_rung rung)
{
	return rungs[rung].bytes;
}

int pages_rung_from_name(const char *name, int *ret_want)
{
	if (strcmp(name, "auto") == 0) {
		*ret_want = PAGES_AUTO;
		return 0;
	}
	for (int rung = 0; rung < PAGES_RUNGS; rung++) {
		if (strcmp(name, rungs[rung].name) == 0) {
			*ret_want = rung;
			return 0;
		}
	}
	return -EINVAL;
}

/* In pieces: the lock on the address space is let go of between two, and others' page faults go on. */
void pages_free(struct pages *pages)
{
	/* What a daemon before has left may name no rung; then nothing is mapped. */
	const uint64_t piece = pages->map ? MAX(rungs[pages->rung].bytes, UNMAP_PIECE) : 0;

	for (uint64_t done = 0; pages->map && done < pages->bytes; done += piece)
		munmap((uint8_t *)pages->map + done, MIN(pages->bytes - done, piece));
	close_fd(pages->fd);
	*pages = PAGES_NONE;
}

/* -- one rung ----------------------------------------------------------------------------------------------------- */

/* Maps the file at an address that is a multiple of the rung's page size: the kernel gives a transparent huge page one
 * entry in the page table only when file offset and address agree. */
static int map_aligned(struct pages *pages, int prot, struct moe_error *err)
{
	const uint64_t align = rungs[pages->rung].bytes, with_align = pages->bytes + align;
	uint8_t *room, *at;

	room = mmap(NULL, with_align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (room == MAP_FAILED)
		return moe_error_sys(err, -errno, "no address space for %" PRIu64 " bytes", pages->bytes);
	at = (uint8_t *)ALIGN_UP((uintptr_t)room, align);
	if (mmap(at, pages->bytes, prot, MAP_SHARED | MAP_FIXED, pages->fd, 0) == MAP_FAILED) {
		const int r = -errno;

		munmap(room, with_align);
		return moe_error_sys(err, r, "cannot map %" PRIu64 " bytes of %s pages", pages->bytes,
				     rungs[pages->rung].name);
	}
	if (at > room)
		munmap(room, (size_t)(at - room));
	if (room + align > at)
		munmap(at + pages->bytes, (size_t)(room + align - at));
	pages->map = at;
	return 0;
}

/* Before the first touch: pages come from this node or not at all. Without NUMA there is one node and nothing to bind;
 * where mbind is forbidden (container runtimes do that) first touch by the node's own threads has to do. */
static int bind_node(const struct pages *pages, struct moe_error *err)
{
	unsigned long mask[NODE_IDS / (8 * sizeof(unsigned long))] = {0};
	const unsigned id = (unsigned)pages->node, bits = 8 * sizeof(unsigned long);
	int r;

	if (id >= NODE_IDS)
		return moe_error_set(err, -EINVAL, "NUMA node %d found, 0 to %d expected", pages->node, NODE_IDS - 1);
	mask[id / bits] |= 1ul << (id % bits);
	r = syscall(SYS_mbind, pages->map, pages->bytes, MPOL_BIND | MPOL_F_STATIC_NODES, mask, NODE_IDS + 1, 0) < 0
		    ? -errno
		    : 0;
	if (r == -ENOSYS && pages->node == 0)
		return 0;
	if (r == -EPERM) {
		log_notice("memory cannot be bound to NUMA node %d (mbind is forbidden here; CAP_SYS_NICE allows it in "
			   "most containers): first touch decides",
			   pages->node);
		return 0;
	}
	return r < 0 ? moe_error_sys(err, r, "cannot bind memory to NUMA node %d", pages->node) : 0;
}

static int start(struct prefault_run **ret, const struct pages *pages, enum prefault_mode mode,
		 const struct host_node *node, struct moe_error *err)
{
	return prefault_start(ret,
			      &(struct prefault){.map = pages->map,
						 .bytes = pages->bytes,
						 .page_bytes = rungs[pages->rung].bytes,
						 .mode = mode,
						 .node = node,
						 .count_huge = node && pages->rung >= PAGES_THP},
			      err);
}

/* The beginning tells whether the machine gives pages of this kind at all. */
static int try_beginning(const struct pages *pages, struct prefault_run *rest, struct moe_error *err)
{
	const int r = prefault_need(rest, 0, 1);
	uint64_t done, small;

	if (r < 0)
		return moe_error_sys(err, r, "cannot populate %" PRIu64 " MiB", pages->bytes >> 20);
	prefault_counts(rest, &done, &small);
	if (small > done / 10)
		return moe_error_set(err, -EOPNOTSUPP,
				     "the kernel could not make huge pages of %" PRIu64 " of the first %" PRIu64 " MiB",
				     small >> 20, done >> 20);
	return 0;
}

/* The file, mapped and bound, and threads that fill it. */
static int begin_rung(struct pages *ret, struct prefault_run **ret_rest, enum pages_rung rung,
		      const struct request *request, struct moe_error *err)
{
	_cleanup_(pages_free) struct pages pages = {.fd = -1, .rung = rung, .node = request->node->id};
	struct prefault_run *rest;
	int r;

	pages.bytes = ALIGN_UP(request->bytes, rungs[rung].bytes);
	pages.fd = memfd_open(request->name, rungs[rung].memfd_flags);
	if (pages.fd == -ENODEV)
		return moe_error_set(err, -ENODEV,
				     "the kernel has no %s pages: /sys/kernel/mm/hugepages/hugepages-%" PRIu64
				     "kB is missing%s",
				     rungs[rung].name, rungs[rung].bytes >> 10,
				     rung == PAGES_1G ? ", as where the CPU lacks pdpe1gb; try --pages 2m" : "");
	if (pages.fd < 0)
		return moe_error_sys(err, pages.fd, "no memory file on %s pages", rungs[rung].name);
	if (ftruncate(pages.fd, (off_t)pages.bytes) < 0)
		return moe_error_sys(err, -errno, "cannot make the memory file %" PRIu64 " bytes", pages.bytes);
	r = map_aligned(&pages, PROT_READ | PROT_WRITE, err);
	if (r < 0)
		return r;
	r = bind_node(&pages, err);
	if (r < 0)
		return r;
	/* With shmem_enabled at "advise" page faults already bring huge pages; collapsing does the rest. */
	if (rung == PAGES_THP)
		madvise(pages.map, pages.bytes, MADV_HUGEPAGE);
	r = start(&rest, &pages, rung == PAGES_THP ? PREFAULT_COLLAPSE : PREFAULT_WRITE, request->node, err);
	if (r < 0)
		return r;
	r = try_beginning(&pages, rest, err);
	if (r < 0) {
		prefault_end(rest);
		return r;
	}
	*ret_rest = rest;
	*ret = pages;
	pages = PAGES_NONE;
	return 0;
}

/* How much of the file lies on huge pages; too little makes transparent ones ordinary ones. */
static int count_huge(struct pages *pages, const struct prefault_run *rest, int want, struct moe_error *err)
{
	uint64_t done, small;
	int64_t counted;

	if (pages->rung == PAGES_1G || pages->rung == PAGES_2M) {
		pages->huge_bytes = pages->bytes;
		return 0;
	}
	/* Where /proc is not mounted what was collapsed stands. With shmem_enabled at "always" even 4 KiB pages are
	 * huge ones. */
	prefault_counts(rest, &done, &small);
	counted = prefault_huge_bytes(rest);
	pages->huge_bytes = counted >= 0 ? (uint64_t)counted : pages->rung == PAGES_THP ? pages->bytes - small : 0;
	if (pages->rung == PAGES_4K || pages->huge_bytes >= pages->bytes / 10 * 9)
		return 0;
	if (want == PAGES_THP)
		return moe_error_set(err, -ENOMEM, "%" PRIu64 " of %" PRIu64 " MiB are on huge pages",
				     pages->huge_bytes >> 20, pages->bytes >> 20);
	pages->rung = PAGES_4K;
	return 0;
}

int pages_end(struct pages *pages, struct prefault_run *rest, int want,
	      int (*progress)(uint64_t done, uint64_t total, void *userdata), void *userdata, struct moe_error *err)
{
	int r = prefault_watch(rest, progress, userdata, err);

	if (r == 0)
		r = count_huge(pages, rest, want, err);
	if (r == 0)
		r = prefault_check_node(pages->map, pages->bytes, pages->node, err);
	prefault_end(rest);
	return r == 0 || r == -ECANCELED ? r : -ENOMEM;
}

/* -- the ladder --------------------------------------------------------------------------------------------------- */

static void write_better(struct pages *pages, const struct request *request)
{
	const enum pages_rung better = pages->rung == PAGES_2M ? PAGES_1G : PAGES_2M;
	char word[16];

	pages->better[0] = '\0';
	if (pages->rung == PAGES_1G || (better == PAGES_1G && request->bytes < POOL_1G_MIN))
		return;
	host_read_thp_shmem(word, sizeof word);
	if (pages->rung == PAGES_4K && strcmp(word, "deny") == 0)
		snprintf(pages->better, sizeof pages->better, "echo advise > " THP_SHMEM);
	else if (room_check(better, request->bytes, request->node, NULL) < 0) /* else: a lower rung was asked for */
		room_command(pages->better, sizeof pages->better, better, request->bytes, request->node);
}

/* The command that may help when the room was there and the kernel still refused. */
static void write_way_out(char *ret, uint32_t size, enum pages_rung rung, const struct request *request)
{
	ret[0] = '\0';
	if (rung == PAGES_THP)
		snprintf(ret, size, "echo advise > " THP_SHMEM "; echo 1 > /proc/sys/vm/compact_memory");
	else if (rung != PAGES_4K)
		room_command(ret, size, rung, request->bytes, request->node);
}

/* From `first` to `last`, the first that begins well. A rung that was required and is not there is a shortage of that
 * kind of memory, whatever the kernel called it. */
static int climb(struct pages *ret, struct prefault_run **ret_rest, const struct request *request, int first, int last,
		 struct moe_error *err)
{
	struct moe_error why = {0};
	char way_out[192] = "";
	int r = -ENOMEM;

	for (int rung = first; rung <= last; rung++) {
		way_out[0] = '\0';
		r = room_check((enum pages_rung)rung, request->bytes, request->node, &why);
		if (r == 0) {
			r = begin_rung(ret, ret_rest, (enum pages_rung)rung, request, &why);
			if (r == 0)
				return 0;
			write_way_out(way_out, sizeof way_out, (enum pages_rung)rung, request);
		}
		log_debug("%s: not on %s pages: %s", request->name, rungs[rung].name, why.text);
	}
	if (first < last)
		return moe_error_set(err, r, "%s: %s", request->name, why.text);
	return moe_error_set(err, -ENOMEM, "%s, %s pages: %s%s%s", request->name, rungs[first].name, why.text,
			     way_out[0] ? ": " : "", way_out);
}

int pages_begin(struct pages *ret, struct prefault_run **ret_rest, const char *name, uint64_t bytes, int want,
		enum pages_rung from, const struct host_node *node, struct moe_error *err)
{
	const struct request request = {.name = name, .bytes = bytes, .node = node};
	struct pages pages;
	int r;

	if (bytes == 0 || bytes > INT64_MAX - HOST_HUGE_1G)
		return moe_error_set(err, -EINVAL, "%s: a file of %" PRIu64 " bytes cannot be", name, bytes);
	if (from == PAGES_1G && bytes < POOL_1G_MIN)
		from = PAGES_2M;
	r = want == PAGES_AUTO ? climb(&pages, ret_rest, &request, (int)from, PAGES_4K, err)
			       : climb(&pages, ret_rest, &request, want, want, err);
	if (r < 0)
		return r;
	write_better(&pages, &request);
	*ret = pages;
	return 0;
}

int pages_new_watched(struct pages *ret, const char *name, uint64_t bytes, int want, const struct host_node *node,
		      int (*progress)(uint64_t done, uint64_t total, void *userdata), void *userdata,
		      struct moe_error *err)
{
	enum pages_rung from = PAGES_1G;
	struct moe_error why = {0};
	struct prefault_run *rest;
	struct pages pages;
	int r;

	for (;;) {
		r = pages_begin(&pages, &rest, name, bytes, want, from, node, err);
		if (r < 0)
			return r;
		r = pages_end(&pages, rest, want, progress, userdata, &why);
		if (r == 0)
			break;
		from = pages.rung + 1;
		pages_free(&pages);
		if (r == -ECANCELED || want != PAGES_AUTO || from == PAGES_RUNGS)
			return moe_error_set(err, r, "%s, %s pages: %s", name, rungs[from - 1].name, why.text);
		log_debug("%s: not on %s pages: %s", name, rungs[from - 1].name, why.text);
	}
	*ret = pages;
	return 0;
}

int pages_new(struct pages *ret, const char *name, uint64_t bytes, int want, const struct host_node *node,
	      struct moe_error *err)
{
	return pages_new_watched(ret, name, bytes, want, node, NULL, NULL, err);
}

/* -- publishing --------------------------------------------------------------------------------------------------- */

/* The pages are there: into the page tables with them. */
static int map_all(const struct pages *pages, struct moe_error *err)
{
	struct prefault_run *run;
	int r = start(&run, pages, PREFAULT_READ, NULL, err);

	if (r < 0)
		return r;
	r = prefault_watch(run, NULL, NULL, err);
	prefault_end(run);
	return r;
}

int pages_publish(struct pages *pages, bool writable_clients, struct moe_error *err)
{
	const bool sealed = !writable_clients && !pages->writable;
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | (sealed ? F_SEAL_WRITE : 0);
	int r;

	if (pages->writable)
		return fcntl(pages->fd, F_ADD_SEALS, seals) < 0
			       ? moe_error_sys(err, -errno, "cannot seal the pool file of NUMA node %d", pages->node)
			       : 0;
	/* F_SEAL_WRITE is EBUSY while a mapping exists that is writable or could become so. */
	munmap(pages->map, pages->bytes);
	pages->map = NULL;
	if (fcntl(pages->fd, F_ADD_SEALS, seals) < 0)
		return moe_error_sys(err, -errno, "cannot seal the pool file of NUMA node %d", pages->node);
	r = map_aligned(pages, PROT_READ, err);
	if (r < 0)
		return r;
	if (pages->rung == PAGES_THP)
		madvise(pages->map, pages->bytes, MADV_HUGEPAGE);
	r = map_all(pages, err);
	if (r < 0) {
		munmap(pages->map, pages->bytes);
		pages->map = NULL;
	}
	return r;
}

int pages_adopt(struct pages *pages, uint64_t min_bytes, struct moe_error *err)
{
	uint64_t bytes;
	int r = memfd_verify(pages->fd, min_bytes, F_SEAL_SHRINK | F_SEAL_GROW, &bytes, "pool file", err);

	if (r < 0)
		return r;
	if (bytes != pages->bytes || (unsigned)pages->rung >= PAGES_RUNGS)
		return moe_error_set(err, -EBADMSG, "pool file: %" PRIu64 " bytes found, %" PRIu64 " expected", bytes,
				     pages->bytes);
	r = map_aligned(pages, pages->writable ? PROT_READ | PROT_WRITE : PROT_READ, err);
	if (r == 0 && pages->rung == PAGES_THP)
		madvise(pages->map, pages->bytes, MADV_HUGEPAGE);
	return r;
}
