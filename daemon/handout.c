/* SPDX-License-Identifier: MIT */
#include "daemon/handout.h"

#include <stdlib.h>

#include "base/cleanup.h"
#include "base/memfd.h"
#include "base/util.h"
#include "daemon/holes.h"

struct handout *handout_new(void)
{
	struct handout *h = calloc(1, sizeof *h);

	if (h)
		*h = (struct handout){.fd = -1, .readonly = -1, .holders = 1};
	return h;
}

int handout_open(struct handout *h)
{
	h->fd = memfd_open("moe-document", 0);
	return h->fd;
}

int handout_append(struct handout *h, const void *text, size_t bytes)
{
	h->bytes += bytes;
	return memfd_append(h->fd, text, bytes);
}

int handout_publish(struct handout *h)
{
	h->readonly = memfd_reopen_readonly(h->fd);
	if (h->readonly >= 0)
		return memfd_seal_size(h->fd);
	h->readonly = h->fd;
	return memfd_seal(h->fd);
}

static void close_readonly(struct handout *h)
{
	if (h->readonly >= 0 && h->readonly != h->fd)
		close_fd(h->readonly);
	h->readonly = -1;
}

int handout_fail(struct handout *h, int r)
{
	close_readonly(h);
	if (h->fd >= 0)
		close_fd(h->fd);
	h->fd = r;
	return r;
}

/* What is sealed has no hole made in it. */
static void give_back(struct handout *h, struct holes *holes, struct charge *charge)
{
	const struct hole hole = {h->fd, 0, ALIGN_UP(h->bytes, (uint64_t)4096)};

	if (h->readonly == h->fd)
		holes = NULL;
	close_readonly(h);
	if (h->fd >= 0)
		holes_make(holes, &hole, 1, charge, h->shared);
	else
		charge_close(charge);
	free(h);
}

void handout_take(struct handout *h, const struct account *account)
{
	h->shared |= h->last && h->last != account;
	h->last = account;
	h->holders++;
}

struct handout *handout_drop(struct handout *h, struct holes *holes, struct charge *charge)
{
	struct charge its = {0};

	if (charge)
		charge_move(charge, &its, ACCOUNT_FDS, HANDOUT_FDS);
	if (--h->holders == 0)
		give_back(h, holes, &its);
	else
		charge_close(&its);
	return NULL;
}
