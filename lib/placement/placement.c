/* SPDX-License-Identifier: MIT */
#include "placement/placement.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"

int placement_new(struct placement *ret, uint32_t layers, uint32_t ranks, uint32_t slots, uint32_t experts,
		  struct moe_error *err)
{
	if (layers < 1 || layers > PLACEMENT_LAYERS_MAX)
		return moe_error_set(err, -EINVAL, "%u layers found, 1 to %u expected", layers, PLACEMENT_LAYERS_MAX);
	if (experts < 1 || experts > PLACEMENT_EXPERTS_MAX)
		return moe_error_set(err, -EINVAL, "%u experts found, 1 to %u expected", experts,
				     PLACEMENT_EXPERTS_MAX);
	if (ranks < 1 || slots < 1 || (uint64_t)ranks * slots > PLACEMENT_SLOTS_MAX)
		return moe_error_set(err, -EINVAL, "%u ranks of %u slots found, 1 to %u slots in all expected", ranks,
				     slots, PLACEMENT_SLOTS_MAX);
	*ret = (struct placement){.layers = layers, .ranks = ranks, .slots = slots, .experts = experts};
	ret->at = calloc((size_t)layers * ranks * slots, sizeof *ret->at);
	return ret->at ? 0 : moe_error_set(err, -ENOMEM, "no memory for %u layers of %u slots", layers, ranks * slots);
}

int placement_copy(struct placement *ret, const struct placement *from, struct moe_error *err)
{
	const int r = placement_new(ret, from->layers, from->ranks, from->slots, from->experts, err);

	if (r == 0)
		memcpy(ret->at, from->at, (size_t)from->layers * from->ranks * from->slots * sizeof *ret->at);
	return r;
}

void placement_fini(struct placement *p)
{
	free(p->at);
	*p = (struct placement){0};
}

int placement_initial(struct placement *ret, uint32_t layers, uint32_t ranks, uint32_t slots, uint32_t experts,
		      struct moe_error *err)
{
	const uint64_t all = (uint64_t)ranks * slots;
	int r;

	if (all < experts)
		return moe_error_set(err, -EINVAL, "%llu slots found, at least one for each of %u experts expected",
				     (unsigned long long)all, experts);
	r = placement_new(ret, layers, ranks, slots, experts, err);
	for (uint32_t l = 0; r == 0 && l < layers; l++)
		for (uint32_t i = 0; i < all; i++)
			ret->at[(size_t)l * all + i] = (int32_t)(i < experts ? i : (i - experts) % experts);
	return r;
}

static int check_layer(const struct placement *p, uint32_t layer, bool once, const char *what, struct moe_error *err)
{
	_cleanup_free_ uint32_t *last = calloc(p->experts, sizeof *last); /* rank + 1 that held it */

	if (!last)
		return moe_error_set(err, -ENOMEM, "%s: no memory for %u experts", what, p->experts);
	for (uint32_t r = 0; r < p->ranks; r++)
		for (uint32_t s = 0; s < p->slots; s++) {
			const int32_t e = p->at[placement_row(p, layer, r) + s];

			if (e < 0 || (uint32_t)e >= p->experts)
				return moe_error_set(
					err, -EINVAL,
					"%s: layer %u, rank %u, slot %u: expert %d found, 0 to %u expected", what,
					layer, r, s, e, p->experts - 1);
			if (once && last[e] == r + 1)
				return moe_error_set(err, -EINVAL,
						     "%s: layer %u: expert %d is on rank %u twice, once expected", what,
						     layer, e, r);
			last[e] = r + 1;
		}
	for (uint32_t e = 0; e < p->experts; e++)
		if (!last[e])
			return moe_error_set(
				err, -EINVAL,
				"%s: layer %u: expert %u is on no rank, each of %u experts on one at least expected",
				what, layer, e, p->experts);
	return 0;
}

int placement_check_layer(const struct placement *p, uint32_t layer, const char *what, struct moe_error *err)
{
	return check_layer(p, layer, true, what, err);
}

int placement_check_start(const struct placement *p, const char *what, struct moe_error *err)
{
	int r = 0;

	for (uint32_t l = 0; l < p->layers && r == 0; l++)
		r = check_layer(p, l, false, what, err);
	return r;
}

int placement_check(const struct placement *p, const char *what, struct moe_error *err)
{
	int r = 0;

	for (uint32_t l = 0; l < p->layers && r == 0; l++)
		r = placement_check_layer(p, l, what, err);
	return r;
}

int placement_check_step(const struct placement *from, const struct placement *to, uint32_t layer,
			 struct moe_error *err)
{
	int r = placement_check_layer(to, layer, "the new placement", err);

	for (uint32_t i = 0; r == 0 && i < from->ranks; i++) {
		const int32_t *old = from->at + placement_row(from, layer, i);
		const int32_t *new = to->at + placement_row(to, layer, i);

		for (uint32_t s = 0; r == 0 && s < to->slots; s++)
			if (new[s] != old[s] && placement_holds(old, from->slots, new[s]))
				r = moe_error_set(
					err, -EINVAL,
					"the new placement: layer %u, rank %u: expert %d stays, but not in its slot",
					layer, i, new[s]);
	}
	return r;
}

void placement_align(const int32_t *old, int32_t *list, uint32_t slots, int32_t *scratch)
{
	uint32_t next = 0;

	memcpy(scratch, list, slots * sizeof *list);
	for (uint32_t s = 0; s < slots; s++) {
		uint32_t i = 0;

		while (i < slots && scratch[i] != old[s])
			i++;
		list[s] = i < slots ? old[s] : -1;
		if (i < slots)
			scratch[i] = -1;
	}
	for (uint32_t s = 0; s < slots; s++) {
		if (list[s] >= 0)
			continue;
		while (scratch[next] < 0)
			next++;
		list[s] = scratch[next++];
	}
}

void placement_copies(const struct placement *p, uint32_t layer, uint32_t *ret)
{
	const int32_t *at = p->at + placement_row(p, layer, 0);

	memset(ret, 0, p->experts * sizeof *ret);
	for (size_t i = 0; i < (size_t)p->ranks * p->slots; i++)
		ret[at[i]]++;
}

double placement_imbalance(const struct placement *p, uint32_t layer, const double *load, double *ret_max)
{
	_cleanup_free_ uint32_t *copies = calloc(p->experts, sizeof *copies);
	double most = 0, sum = 0;

	if (!copies)
		return -1;
	placement_copies(p, layer, copies);
	for (uint32_t r = 0; r < p->ranks; r++) {
		const int32_t *at = p->at + placement_row(p, layer, r);
		double of_rank = 0;

		for (uint32_t s = 0; s < p->slots; s++)
			of_rank += load[at[s]] / copies[at[s]];
		most = of_rank > most ? of_rank : most;
		sum += of_rank;
	}
	if (ret_max)
		*ret_max = most;
	return sum / p->ranks < 1e-9 ? 1 : most / (sum / p->ranks);
}

uint64_t placement_moved_in(const struct placement *from, const struct placement *to)
{
	uint64_t n = 0;

	for (uint32_t l = 0; l < to->layers; l++)
		for (uint32_t r = 0; r < to->ranks; r++)
			for (uint32_t s = 0; s < to->slots; s++)
				n += !placement_holds(from->at + placement_row(from, l, r), from->slots,
						      to->at[placement_row(to, l, r) + s]);
	return n;
}
