/* SPDX-License-Identifier: MIT */
#include "daemon/tally.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/memfd.h"
#include "base/util.h"

/* What a daemon before has written is taken as it lies there. */
_Static_assert(TALLY_VERSION == 2 && offsetof(struct tally, ghosts) == 24 && offsetof(struct tally, layers) == 1904 &&
		       sizeof(struct model_ghost) == 56 && sizeof(struct model_bound) == 32 &&
		       offsetof(struct model_ghosts, n_caches) == 48 && offsetof(struct model_ghosts, caches) == 56 &&
		       offsetof(struct model_ghosts, bounds) == 1624 && sizeof(struct histogram) == 2432 &&
		       sizeof(struct times) == 4 * sizeof(struct histogram),
	       "another layout is another TALLY_VERSION: change both");

static uint64_t bytes_of(uint32_t n_layers)
{
	return ALIGN_UP(sizeof(struct tally) + n_layers * sizeof(struct times), (uint64_t)MOE_RING_PAGE);
}

static int map(struct tally **ret, int fd, uint64_t bytes, struct moe_error *err)
{
	void *at;
	int r = memfd_map(&at, fd, bytes, PROT_READ | PROT_WRITE, "tally", err);

	if (r == 0)
		*ret = at;
	return r;
}

int tally_new(struct tally **ret, int *ret_fd, uint32_t n_layers, struct moe_error *err)
{
	const uint64_t bytes = bytes_of(n_layers);
	_cleanup_close_ int fd = memfd_new("moe-tally", bytes, err);
	struct tally *t = NULL;
	int r;

	if (fd < 0)
		return fd;
	r = map(&t, fd, bytes, err);
	if (r < 0)
		return r;
	t->magic = TALLY_MAGIC;
	t->version = TALLY_VERSION;
	t->n_layers = n_layers;
	t->bytes = bytes;
	*ret = t;
	*ret_fd = steal_fd(&fd);
	return 0;
}

static int check_head(const struct tally *head, uint32_t n_layers, struct moe_error *err)
{
	if (head->magic != TALLY_MAGIC)
		return moe_error_set(err, -EBADMSG, "tally: not moe-expertd's");
	if (head->version != TALLY_VERSION)
		return moe_error_set(err, -EPROTO, "tally: version %u found, %d expected", head->version,
				     TALLY_VERSION);
	if (head->n_layers != n_layers || head->bytes != bytes_of(n_layers))
		return moe_error_set(err, -EBADMSG, "tally: %u layers in %llu bytes found, %u in %llu expected",
				     head->n_layers, (unsigned long long)head->bytes, n_layers,
				     (unsigned long long)bytes_of(n_layers));
	return 0;
}

int tally_open(struct tally **ret, int fd, uint32_t n_layers, struct moe_error *err)
{
	struct tally head, *t = NULL;
	int r;

	if (pread(fd, &head, sizeof head, 0) != sizeof head)
		return moe_error_set(err, -EBADMSG, "tally: not moe-expertd's");
	r = check_head(&head, n_layers, err);
	if (r == 0)
		r = memfd_verify(fd, head.bytes, F_SEAL_SHRINK | F_SEAL_GROW, NULL, "tally", err);
	if (r == 0)
		r = map(&t, fd, head.bytes, err);
	if (r < 0)
		return r;
	if (!model_ghosts_good(&t->ghosts)) {
		tally_close(t);
		return moe_error_set(err, -EBADMSG, "tally: ghosts that no daemon has written");
	}
	*ret = t;
	return 0;
}

struct tally *tally_close(struct tally *t)
{
	if (t)
		munmap(t, t->bytes);
	return NULL;
}
