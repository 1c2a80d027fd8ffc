/* SPDX-License-Identifier: MIT */
#include "tools/worker/experts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"
#include "tools/patient.h"
#include "tools/worker/proof.h"
#include "uapi/moe_ring.h"

#define LANES 2u /* of one micro-batch: for layers in turn */

struct experts_daemon {
	struct experts base;
	struct moe_client *client;
	struct moe_session *session;
	struct moe_session_info info;
	struct moe_step *step;  /* begun and not ended */
	struct moe_step *carry; /* what the last MoE layer has deferred, or NULL; moe_detach ends it too */
	const char *socket;
	uint32_t topk;
	enum moe_mode mode;
	bool tells_pages; /* what became of --pages-fill */
};

/* A call's failure in the words of whoever watches the worker: a closed connection is a daemon that has ended. */
static int explain(const struct experts_daemon *d, int r, struct moe_error *err)
{
	return r == -EPIPE ? moe_error_set(err, r, "the daemon at %s has gone away", d->socket) : r;
}

static int daemon_phase(struct experts *base, enum moe_step_phase phase, uint64_t number, struct moe_error *err)
{
	struct experts_daemon *d = (struct experts_daemon *)base;

	return explain(d, moe_phase(d->session, phase, number, false, err), err);
}

static void count(struct experts_daemon *d, const struct moe_plan *plan)
{
	struct experts_stats *stats = &d->base.stats;
	struct moe_plan_view view;

	moe_plan_view(plan, &view);
	stats->hit += view.pairs_hit;
	stats->miss_buffer += view.pairs_miss_buffer;
	stats->pool += view.pairs_pool;
	stats->cpu += view.pairs_cpu;
	stats->deferred += view.pairs_deferred;
	stats->resident += view.pairs_resident;
	stats->fills += view.n_copies;
	stats->fill_bytes += view.n_copies * d->info.slot_bytes;
	stats->reads += view.n_reads;
	stats->read_bytes += view.n_reads * d->info.slot_bytes;
}

static int daemon_begin(struct experts *base, const struct experts_step *s, struct moe_error *err)
{
	struct experts_daemon *d = (struct experts_daemon *)base;
	struct moe_plan *plan = NULL;
	int r;

	r = moe_plan(d->session, s->layer, d->mode, s->tokens, d->topk, s->ids, s->weights, &plan, err);
	if (r < 0)
		return r;
	count(d, plan);
	if (s->stream)
		return explain(d, moe_submit_on(d->session, plan, s->stream, s->on_x, s->on_y, &d->step, err), err);
	return explain(d, moe_submit_carry(d->session, plan, s->x, &d->carry, &d->step, err), err);
}

static int daemon_end(struct experts *base, float *y, struct moe_error *err)
{
	struct experts_daemon *d = (struct experts_daemon *)base;

	return explain(d, moe_wait(steal_ptr(d->step), y, 0, err), err);
}

/* -- captured steps ----------------------------------------------------------------------------------------------- */

static int daemon_fix(struct experts *base, struct moe_error *err)
{
	struct experts_daemon *d = (struct experts_daemon *)base;

	return explain(d, moe_lanes_fix(d->session, err), err);
}

static void daemon_release(struct experts *base)
{
	moe_lanes_release(((struct experts_daemon *)base)->session);
}

static int daemon_lane(struct experts *base, const struct experts_lane *s, struct moe_error *err)
{
	struct experts_daemon *d = (struct experts_daemon *)base;
	const struct moe_lane_step step = {
		.size = sizeof(step),
		.lane = s->lane,
		.layer = s->layer,
		.tokens = 1,
		.topk = d->topk,
		.stream = s->stream,
		.x = s->x,
		.ids = s->ids,
		.weights = s->weights,
		.y = s->y,
	};

	return explain(d, moe_lane_submit(d->session, &step, err), err);
}

/* Which pairs were whose: a plan of the same ids, while nobody leaves a slot, copies nothing and says so. */
static int count_replayed(struct experts_daemon *d, const int32_t *ids, uint32_t pitch, struct moe_error *err)
{
	float weights[MOE_TOPK_MAX] = {0};

	for (uint32_t layer = 0; layer < d->info.n_layers; layer++) {
		const int32_t row = d->info.layer_index[layer];
		struct moe_plan *plan;
		int r;

		if (row < 0)
			continue;
		r = moe_plan(d->session, layer, MOE_MODE_DECODE, 1, d->topk, ids + (size_t)row * pitch, weights, &plan,
			     err);
		if (r < 0)
			return r;
		count(d, plan);
		moe_plan_free(plan);
	}
	return 0;
}

static int daemon_replayed(struct experts *base, const int32_t *ids, uint32_t pitch, struct moe_error *err)
{
	struct experts_daemon *d = (struct experts_daemon *)base;

	for (uint32_t i = 0; i < LANES; i++) {
		const int r = moe_lane_error(d->session, i, err);

		if (r < 0)
			return explain(d, r, err);
	}
	return count_replayed(d, ids, pitch, err);
}

/* -- life --------------------------------------------------------------------------------------------------------- */

/* The driver may have refused what it took when attaching. */
static void tell_pages(const struct experts_daemon *d)
{
	struct moe_session_info now;

	moe_session_info(d->session, &now);
	if (strcmp(now.device, d->info.device) != 0)
		fprintf(stderr, "moe-worker: slots on %s\n", now.device);
}

static struct experts *daemon_free(struct experts *base)
{
	struct experts_daemon *d = (struct experts_daemon *)base;

	if (d->session && d->tells_pages)
		tell_pages(d);
	moe_detach(d->session);
	moe_close(d->client);
	free(d);
	return NULL;
}

static void cleanup_experts(struct experts **experts)
{
	experts_free(*experts);
}

static int check_model(const struct experts_daemon *d, const struct arch *arch, const char *socket,
		       struct moe_error *err)
{
	const struct moe_session_info *i = &d->info;

	if (i->n_layers == arch->n_layers && i->n_moe_layers == arch->n_moe_layers &&
	    i->n_experts == arch->router.n_experts && i->hidden == arch->hidden && i->inter == arch->expert_inter)
		return 0;
	return moe_error_set(
		err, -EINVAL,
		"model '%s' at %s: found %u layers, %u of them MoE, %u experts of %u x %u; expected %u, %u, "
		"%u of %u x %u: it was loaded from another folder",
		i->model, socket, i->n_layers, i->n_moe_layers, i->n_experts, i->hidden, i->inter, arch->n_layers,
		arch->n_moe_layers, arch->router.n_experts, arch->hidden, arch->expert_inter);
}

struct registering_shown {
	int64_t holder;
	uint64_t elapsed_ns;
};

/* A line when it has to wait for somebody, and about each second of registering: most models take less. */
static void show_registering(const struct moe_registering *r, void *userdata)
{
	struct registering_shown *shown = userdata;
	const bool waits = r->holder != getpid();

	if (r->holder == shown->holder && r->elapsed_ns - shown->elapsed_ns < 1000000000u)
		return;
	if (waits)
		fprintf(stderr, "moe-worker: waits for pid %lld, which registers memory with a GPU's driver\n",
			(long long)r->holder);
	else if (r->elapsed_ns >= 1000000000u)
		fprintf(stderr, "moe-worker: %.2f of %.2f GB registered with the GPU's driver in %.0f s\n",
			(double)r->done_bytes / 1e9, (double)r->total_bytes / 1e9, (double)r->elapsed_ns / 1e9);
	*shown = (struct registering_shown){r->holder, r->elapsed_ns};
}

int experts_daemon_new(struct experts **ret, const struct options *o, const char *socket, const char *model_name,
		       const struct model *model, const struct arch *arch, const struct group *group,
		       uint32_t tokens_max, struct moe_error *err)
{
	_cleanup_(cleanup_experts) struct experts *base = NULL;
	struct experts_daemon *d = calloc(1, sizeof(*d));
	const bool cached = o->experts == EXPERTS_CACHE;
	struct registering_shown shown = {0};
	const struct moe_attach_params params = {
		.size = sizeof(params),
		.model = model_name,
		.tp_rank = group->rank,
		.tp_size = group->size,
		.group = group->id,
		.max_tokens = tokens_max,
		.cache_expert_num = cached ? MIN(o->slots, arch->router.n_experts) : 0,
		.cache_topk = o->cache_topk,
		.update_expert_num = o->update,
		.policy = o->policy,
		.device = o->device,
		.fill = o->fill,
		.zero_copy = cached ? o->zero_copy : MOE_ZERO_COPY_OFF,
		.predict = o->predict,
		.ghost_layers = o->ghosts,
		.warm = o->warm,
		.pages = o->pages_fill,
		.answers = o->answers,
		.share = o->share,
		.n_copy = o->n_copy_rule == N_COPY_COST ? MOE_N_COPY_COST : MOE_N_COPY_STAIRS,
		.approximate_defer = o->defer,
		.lanes = o->graph ? LANES : 0,
		.lane_tokens = o->graph ? 1 : 0,
		.register_progress = show_registering,
		.register_userdata = &shown,
	};
	int r;

	if (!d)
		return moe_error_set(err, -ENOMEM, "no memory for a session");
	base = &d->base;
	*base = (struct experts){.phase = daemon_phase,
				 .begin = daemon_begin,
				 .end = daemon_end,
				 .lanes_fix = daemon_fix,
				 .lanes_release = daemon_release,
				 .lane = daemon_lane,
				 .replayed = daemon_replayed,
				 .free = daemon_free};
	d->socket = socket;
	d->topk = arch->router.topk;
	d->mode = cached ? o->mode : MOE_MODE_DECODE; /* without slots there is nothing to prefetch into */
	if ((r = open_patiently(&d->client, socket, err)) < 0 ||
	    (r = moe_attach(d->client, &d->session, &params, err)) < 0)
		return r;
	moe_session_info(d->session, &d->info);
	d->tells_pages = o->pages_fill != MOE_PAGES_PLAIN && group->rank == 0;
	if ((o->verbose || d->tells_pages) && group->rank == 0 && d->info.device[0])
		fprintf(stderr, "moe-worker: slots on %s\n", d->info.device);
	r = check_model(d, arch, socket, err);
	if (r == 0 && group->rank == 0)
		r = proof_check(d->session, model, socket, err);
	if (r < 0)
		return r;
	if (o->n_copy_rule == N_COPY_NUMBER)
		moe_set_n_copy(d->session, o->n_copy);
	*ret = steal_ptr(base);
	return 0;
}
