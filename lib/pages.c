/* SPDX-License-Identifier: MIT */
#include "pages.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "step.h"

/* Once: later calls are left out. */
static void refuse(struct engine *e, int code)
{
	int none = 0;

	atomic_compare_exchange_strong(&e->pages.refused, &none, code);
}

static bool may_call(const struct engine *e)
{
	return e->session->params.pages != MOE_PAGES_PLAIN && atomic_load(&e->pages.refused) == 0;
}

static void advise_pools(struct engine *e)
{
	const struct moe_session *s = e->session;
	uint32_t i;

	for (i = 0; i < s->n_pools && may_call(e); i++) {
		const int r = e->ops->pages_advise(e->device, s->pools[i].map, s->pools[i].bytes);

		if (r < 0)
			refuse(e, r);
	}
}

/* The rows that the session's slice has of the record in this pool file. */
static void fetch_record(struct engine *e, struct device_stream *stream, uint32_t row, const struct moe_record *record,
			 uint32_t share)
{
	const struct moe_session *s = e->session;
	struct moe_slice slice;
	int i;

	moe_slice_share(&slice, session_slice(s, row), session_layout(s, row), share);
	for (i = 0; i < MOE_PARTS * MOE_PLANES && may_call(e); i++) {
		const struct moe_slice_plane *p = &slice.plane[i / MOE_PLANES][i % MOE_PLANES];
		const uint64_t bytes = p->rows ? (p->rows - 1) * p->pitch + p->width : 0;
		int r = 0;

		if (bytes)
			r = e->ops->pages_fetch(stream, s->pools[share].map + record->offset + p->offset, bytes);
		if (r < 0)
			refuse(e, r);
		else
			atomic_fetch_add(&e->pages.asked_bytes, bytes);
	}
}

static void fetch_expert(struct engine *e, struct device_stream *stream, uint32_t row, uint32_t expert)
{
	const struct moe_record *record = &e->session->records[(uint64_t)row * e->n_experts + expert];
	uint32_t share;

	for (share = 0; share < e->session->n_pools; share++)
		fetch_record(e, stream, row, record, share);
}

void pages_fetch(struct moe_step *step, struct device_stream *stream)
{
	const struct moe_plan *plan = step->plan;
	uint32_t i;

	if (step->engine->session->params.pages != MOE_PAGES_PREFETCH)
		return;
	for (i = 0; i < plan->n_reads && may_call(step->engine); i++)
		fetch_expert(step->engine, stream, step->row, (uint32_t)plan->copies[plan->n_copies + i].expert);
}

static int check(const struct engine *e, struct moe_error *err)
{
	const struct moe_attach_params *p = &e->session->params;

	if (p->zero_copy == MOE_ZERO_COPY_OFF)
		return moe_error_set(err, -EINVAL,
				     "moe_attach: pages are told of what is read in the pool: set zero_copy");
	if (!e->ops->pages_advise || !e->ops->reads_pageable || !e->ops->reads_pageable(e->device))
		return moe_error_set(err, -EOPNOTSUPP,
				     "moe_attach: device '%s' does not read the host's memory by its page tables "
				     "(attributes 88 and 100): set pages to MOE_PAGES_PLAIN",
				     p->device);
	return 0;
}

static void describe(struct engine *e)
{
	const char *device = e->ops->describe ? e->ops->describe(e->device) : e->ops->name;
	struct pages *pages = &e->pages;

	snprintf(pages->described, sizeof pages->described, "%s; of the pages read there the driver is advised%s",
		 device, e->session->params.pages == MOE_PAGES_PREFETCH ? ", and each step's are prefetched" : "");
	snprintf(pages->lost, sizeof pages->lost,
		 "%s; its driver has refused advice on pages or to prefetch them: they are read where they lie",
		 device);
}

/* A prefetch is tried, so that who attaches learns at once where the driver takes none. */
int pages_begin(struct engine *e, struct moe_error *err)
{
	int r;

	if (e->session->params.pages == MOE_PAGES_PLAIN)
		return 0;
	r = check(e, err);
	if (r < 0)
		return r;
	describe(e);
	advise_pools(e);
	if (e->session->params.pages == MOE_PAGES_PREFETCH)
		fetch_expert(e, e->copy, 0, 0);
	atomic_store(&e->pages.asked_bytes, 0);
	return 0;
}
