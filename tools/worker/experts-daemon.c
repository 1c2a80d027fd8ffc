/* SPDX-License-Identifier: MIT */
#include "tools/worker/experts.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"

struct experts_daemon {
	struct experts base;
	struct moe_client *client;
	struct moe_session *session;
	struct moe_session_info info;
	struct moe_step *step; /* begun and not ended */
	struct group *group;
	uint32_t topk;
	enum moe_mode mode;
	bool agree; /* the ranks follow rank 0's n_copy */
};

static int daemon_phase(struct experts *base, enum moe_step_phase phase, uint64_t number, struct moe_error *err)
{
	return moe_phase(((struct experts_daemon *)base)->session, phase, number, false, err);
}

static int make_plan(struct experts_daemon *d, const struct experts_step *s, struct moe_plan **ret,
		     struct moe_error *err)
{
	return moe_plan(d->session, s->layer, d->mode, s->tokens, d->topk, s->ids, s->weights, ret, err);
}

/* Rank 0 plans by its cost model; the others repeat its n_copy, so that all plans are alike. */
static int make_agreed_plan(struct experts_daemon *d, const struct experts_step *s, struct moe_plan **ret,
			    struct moe_error *err)
{
	struct moe_plan_view view;
	struct moe_plan *plan = NULL;
	uint32_t n_copy = 0;
	int r;

	if (d->group->rank == 0) {
		r = make_plan(d, s, &plan, err);
		if (r < 0)
			return r;
		moe_plan_view(plan, &view);
		n_copy = view.n_copy;
	}
	r = group_agree(d->group, &n_copy, err);
	if (r < 0) {
		moe_plan_free(plan);
		return r;
	}
	if (d->group->rank > 0) {
		moe_set_n_copy(d->session, n_copy);
		r = make_plan(d, s, &plan, err);
		if (r < 0)
			return r;
	}
	*ret = plan;
	return 0;
}

static int daemon_begin(struct experts *base, const struct experts_step *s, struct moe_error *err)
{
	struct experts_daemon *d = (struct experts_daemon *)base;
	struct experts_stats *stats = &base->stats;
	const bool prefetch = d->mode == MOE_MODE_PREFETCH || (d->mode == MOE_MODE_AUTO && s->tokens > 1);
	struct moe_plan_view view;
	struct moe_plan *plan = NULL;
	int r;

	r = d->agree && prefetch ? make_agreed_plan(d, s, &plan, err) : make_plan(d, s, &plan, err);
	if (r < 0)
		return r;
	moe_plan_view(plan, &view);
	stats->hit += view.pairs_hit;
	stats->miss_buffer += view.pairs_miss_buffer;
	stats->cpu += view.pairs_cpu;
	stats->resident += view.pairs_resident;
	stats->fills += view.n_copies;
	stats->fill_bytes += view.n_copies * d->info.slot_bytes;
	return moe_submit(d->session, plan, s->x, &d->step, err);
}

static int daemon_end(struct experts *base, float *y, struct moe_error *err)
{
	return moe_wait(steal_ptr(((struct experts_daemon *)base)->step), y, 0, err);
}

static struct experts *daemon_free(struct experts *base)
{
	struct experts_daemon *d = (struct experts_daemon *)base;

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

int experts_daemon_new(struct experts **ret, const struct options *o, const char *socket, const char *model_name,
		       const struct arch *arch, struct group *group, uint32_t tokens_max, struct moe_error *err)
{
	_cleanup_(cleanup_experts) struct experts *base = NULL;
	struct experts_daemon *d = calloc(1, sizeof(*d));
	const bool cached = o->experts == EXPERTS_CACHE;
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
		.fill = o->fill,
		.share = o->share,
		.n_copy = o->n_copy_rule == N_COPY_STAIRS ? MOE_N_COPY_STAIRS : MOE_N_COPY_COST,
	};
	int r;

	if (!d)
		return moe_error_set(err, -ENOMEM, "no memory for a session");
	base = &d->base;
	*base = (struct experts){.phase = daemon_phase, .begin = daemon_begin, .end = daemon_end, .free = daemon_free};
	d->group = group;
	d->topk = arch->router.topk;
	d->mode = cached ? o->mode : MOE_MODE_DECODE; /* without slots there is nothing to prefetch into */
	d->agree = cached && group->size > 1 && o->share == MOE_SHARE_GROUP && o->n_copy_rule == N_COPY_COST;
	if ((r = moe_open(&d->client, socket, err)) < 0 || (r = moe_attach(d->client, &d->session, &params, err)) < 0)
		return r;
	moe_session_info(d->session, &d->info);
	r = check_model(d, arch, socket, err);
	if (r < 0)
		return r;
	if (o->n_copy_rule == N_COPY_NUMBER)
		moe_set_n_copy(d->session, o->n_copy);
	*ret = steal_ptr(base);
	return 0;
}
