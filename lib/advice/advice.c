/* SPDX-License-Identifier: MIT */
#include "advice/advice.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/util.h"

#define SLOTS_GAIN .05  /* of the hit rate: less is not worth a device's memory */
#define POLICY_GAIN .01 /* costs nothing */
#define BOUND_NEAR .02
#define TOKENS_FEW 1.05 /* fewer there cannot be */
#define WALL 1.5        /* copies take so many times as long as computation */

__attribute__((format(printf, 2, 3))) static void say(struct advice *a, const char *format, ...)
{
	va_list args;

	if (a->n == ADVICE_LINES)
		return;
	va_start(args, format);
	vsnprintf(a->lines[a->n++], ADVICE_TEXT, format, args);
	va_end(args);
}

/* |U| >= C: whatever is kept, the next step evicts it. */
static bool is_deadlock(const struct advice_facts *f)
{
	return f->slots > 0 && f->slots < f->experts && f->active_mean >= f->slots;
}

static void advise_deadlock(const struct advice_facts *f, struct advice *a)
{
	char fewer[64] = "";

	if (!is_deadlock(f))
		return;
	if (f->tokens_mean >= TOKENS_FEW)
		snprintf(fewer, sizeof fewer, ", or fewer than %.1f tokens a step", f->tokens_mean);
	say(a,
	    "capacity deadlock: a step asks for %.1f experts a layer, the cache has %u slots, so each step evicts what "
	    "the next one needs: %.0f slots or more%s",
	    f->active_mean, f->slots, fmin(floor(f->active_mean) + 1, f->experts), fewer);
}

/* The fewest slots that bring most: of the sizes above ours each must bring SLOTS_GAIN more than the one before. */
static void advise_slots(const struct advice_facts *f, struct advice *a)
{
	const struct advice_cache *own = &f->caches[0], *best = own;

	for (;;) {
		const struct advice_cache *next = NULL;

		for (uint32_t i = 1; i < f->n_caches; i++) {
			const struct advice_cache *c = &f->caches[i];

			if (strcmp(c->policy, own->policy) == 0 && c->slots > best->slots &&
			    c->hit_rate >= best->hit_rate + SLOTS_GAIN && (!next || c->slots < next->slots))
				next = c;
		}
		if (!next)
			break;
		best = next;
	}
	if (best != own)
		say(a,
		    "more slots: %u a layer instead of %u would find %.1f%% of the experts asked for instead of %.1f%%",
		    best->slots, own->slots, 100 * best->hit_rate, 100 * own->hit_rate);
}

static void advise_policy(const struct advice_facts *f, struct advice *a)
{
	const struct advice_cache *own = &f->caches[0], *best = own;

	for (uint32_t i = 1; i < f->n_caches; i++)
		if (f->caches[i].slots == own->slots && f->caches[i].hit_rate > best->hit_rate)
			best = &f->caches[i];
	if (best->hit_rate >= own->hit_rate + POLICY_GAIN)
		say(a, "another policy: %s would find %.1f%% in the same %u slots, %s finds %.1f%%", best->policy,
		    100 * best->hit_rate, own->slots, own->policy, 100 * own->hit_rate);
	else if (f->bound >= 0 && f->bound - f->bound_own < BOUND_NEAR && own->slots < f->experts)
		say(a,
		    "no policy helps: of the steps looked at %s found %.1f%%, and no rule for %u slots could find more "
		    "than %.1f%%",
		    own->policy, 100 * f->bound_own, own->slots, 100 * f->bound);
}

/* Side by side, the shorter of the two is all that can be hidden. */
static void advise_wall(const struct advice_facts *f, struct advice *a)
{
	const double gain = fmin(f->wait_ns, f->compute_ns);

	if (f->compute_ns <= 0 || f->wait_ns < WALL * f->compute_ns)
		return;
	say(a,
	    "I/O wall: copies take %.1f times as long as computation, so overlapping them hides at most %.0f%% of the "
	    "sum "
	    "(min of %.3f s and %.3f s); what helps is to copy less",
	    f->wait_ns / f->compute_ns, 100 * gain / (f->wait_ns + f->compute_ns), f->wait_ns / 1e9,
	    f->compute_ns / 1e9);
	if (!is_deadlock(f)) /* which more tokens would make worse */
		say(a,
		    "larger batch: a step has %.1f tokens now, and more of them would share an expert that is copied",
		    f->tokens_mean);
	say(a, "lower bits: with half the bits a weight the copies would take %.3f s instead of %.3f s",
	    f->wait_ns / 2e9, f->wait_ns / 1e9);
}

void advise(const struct advice_facts *f, struct advice *ret)
{
	ret->n = 0;
	if (f->steps < ADVICE_STEPS_MIN)
		return;
	advise_deadlock(f, ret);
	if (f->n_caches > 0 && f->slots > 0) {
		advise_slots(f, ret);
		advise_policy(f, ret);
	}
	advise_wall(f, ret);
}
