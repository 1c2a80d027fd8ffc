/* SPDX-License-Identifier: MIT */
/*
 * session-arenas - the memory that a client brings: for activations, and for slots.
 *
 * An arena is checked before it is mapped: its seals, its size, and that all of its pages are there. It is on the
 * user's charge before it is mapped, and what could not be mapped goes off it again.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/error.h"
#include "base/memfd.h"
#include "base/util.h"
#include "daemon/session.h"

/* A file of ordinary pages, all of them there: a page that is made only when the pool touches it would be on the
 * daemon's bill, and where there is none left that is SIGBUS. A hole punched into huge pages gives their reservation
 * back: touching it could be SIGBUS, too. */
static int check_arena(int fd, uint64_t bytes, const char *what, struct moe_error *err)
{
	uint64_t have;
	struct stat st;
	int r;

	if (bytes == 0 || bytes % MOE_RING_PAGE)
		return moe_error_set(err, -EINVAL, "%s: %llu bytes found, a multiple of %d expected", what,
				     (unsigned long long)bytes, MOE_RING_PAGE);
	if (memfd_is_hugetlb(fd))
		return moe_error_set(err, -EINVAL, "%s: a memfd of ordinary pages expected, huge pages found", what);
	r = memfd_verify(fd, bytes, F_SEAL_SHRINK | F_SEAL_GROW, &have, what, err);
	if (r < 0)
		return r;
	if (have != bytes)
		return moe_error_set(err, -EINVAL, "%s: %llu bytes found, %llu announced", what,
				     (unsigned long long)have, (unsigned long long)bytes);
	if (fstat(fd, &st) < 0)
		return moe_error_sys(err, -errno, "%s: cannot examine the file descriptor", what);
	if ((uint64_t)st.st_blocks < bytes / 512)
		return moe_error_set(err, -ENODATA,
				     "%s: %llu of its %llu bytes have pages: fallocate(2) all of it before it is "
				     "registered",
				     what, (unsigned long long)st.st_blocks * 512, (unsigned long long)bytes);
	return 0;
}

/* The arena, and for data as much as may be copied out of it: two halves of each request's routing, each as long as the
 * arena at most. */
static int charge_arena(struct session *s, uint32_t kind, uint64_t bytes, const char *what, struct moe_error *err)
{
	const uint64_t copies = kind == MOE_ARENA_DATA ? MIN(2 * bytes, (uint64_t)SESSION_COPIED_MAX) : 0;
	int r = charge_take(&s->charge, ACCOUNT_BYTES, bytes + copies, what, err);

	if (r == 0 && kind == MOE_ARENA_DATA)
		s->copied_max = copies;
	return r;
}

static int map_arena(struct session *s, uint32_t kind, int fd, uint64_t bytes, const char *what, void **ret,
		     struct moe_error *err)
{
	int r = memfd_map(ret, fd, bytes, PROT_READ | PROT_WRITE, what, err);

	if (r < 0)
		return r;
	r = guard_new(&s->guards[kind], *ret, bytes, err);
	if (r < 0)
		munmap(*ret, bytes);
	return r;
}

/* Of the slots' arena none is kept: it is mapped. */
static int keep_data_fd(struct session *s, int fd, const char *what, struct moe_error *err)
{
	int r = charge_take(&s->charge, ACCOUNT_FDS, 1, what, err);

	if (r < 0)
		return r;
	s->data_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (s->data_fd >= 0)
		return 0;
	r = moe_error_sys(err, -errno, "%s", what);
	charge_give(&s->charge, ACCOUNT_FDS, 1);
	return r;
}

static void unmap_arena(struct session *s, uint32_t kind, void *map, uint64_t bytes)
{
	s->guards[kind] = guard_free(s->guards[kind]);
	munmap(map, bytes);
}

int session_add_arena(struct session *s, uint32_t kind, int fd, uint64_t bytes, struct moe_error *err)
{
	const char *what = kind == MOE_ARENA_DATA ? "data arena" : "slot arena";
	const uint64_t before = s->charge.held[ACCOUNT_BYTES];
	void *map;
	int r;

	if (kind != MOE_ARENA_DATA && kind != MOE_ARENA_SLOTS)
		return moe_error_set(err, -EINVAL, "arena: kind %u found, 1 (data) or 2 (slots) expected", kind);
	if (s->arenas[kind].base || (kind == MOE_ARENA_SLOTS && s->device))
		return moe_error_set(err, -EEXIST, "%s: registered already", what);
	r = check_arena(fd, bytes, what, err);
	if (r == 0)
		r = charge_arena(s, kind, bytes, what, err);
	if (r < 0)
		return r;
	r = map_arena(s, kind, fd, bytes, what, &map, err);
	if (r == 0 && kind == MOE_ARENA_DATA) {
		r = keep_data_fd(s, fd, what, err);
		if (r < 0)
			unmap_arena(s, kind, map, bytes);
	}
	if (r < 0) {
		charge_give(&s->charge, ACCOUNT_BYTES, s->charge.held[ACCOUNT_BYTES] - before);
		return r;
	}
	s->arenas[kind] = (struct clientmem){.base = map, .bytes = bytes};
	s->journal.page->arenas[kind] = bytes;
	return 0;
}
