/* SPDX-License-Identifier: MIT */
/* The model of scripts/breakeven.pl is the library's: for any rates and any experts both choose the same split. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/util.h"
#include "ncopy.h"
#include "policy/heat.h"
#include "tests/tap.h"

#define MISSING_MAX 60
#define POINTS 40
#define RATES 5
#define SLOT_BYTES 1000000u

struct point {
	uint32_t hits, missing, room, pairs;
};

static unsigned long long seed;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

static struct ncopy draw_rates(void)
{
	struct ncopy nc;

	ncopy_init(&nc, SLOT_BYTES, SLOT_BYTES, 1);
	nc.copy_ns_per_byte = (1 + below(1000)) / 1000.0;
	nc.device.per_expert = below(200000);
	nc.device.per_pair = below(2000);
	nc.cpu.per_expert = below(2000000);
	nc.cpu.per_pair = below(200000);
	return nc;
}

static uint32_t library_choice(const struct ncopy *nc, const struct point *p)
{
	uint64_t keys[MISSING_MAX];

	for (uint32_t i = 0; i < p->missing; i++)
		keys[i] = heat_key(p->pairs, (int32_t)i);
	return ncopy_choose(nc, keys, p->missing, p->room, SLOT_BYTES, p->hits, (uint64_t)p->hits * p->pairs);
}

static double ns_of(const struct ncopy *nc, const struct point *p, uint32_t n)
{
	const double on_device = p->hits + n, on_cpu = p->missing - n;

	return MAX(nc->copy_ns_per_byte * SLOT_BYTES * n +
			   on_device * (nc->device.per_expert + nc->device.per_pair * p->pairs),
		   on_cpu * (nc->cpu.per_expert + nc->cpu.per_pair * p->pairs));
}

/* The script's answers, in a file of the test's own. */
static FILE *ask(const struct ncopy *nc, const struct point *points)
{
	static const char root[] = "${MOE_SOURCE:-.}";
	char command[512], file[TAP_TMP];
	const int fd = mkstemp(tap_tmp(file, "test-breakeven.XXXXXX"));
	FILE *script, *answers;

	require(fd >= 0, "a file for the answers");
	snprintf(command, sizeof command, "perl \"%s/scripts/breakeven.pl\" --choose %.17g %.17g %.17g %.17g %.17g >%s",
		 root, nc->copy_ns_per_byte * SLOT_BYTES, nc->device.per_expert, nc->device.per_pair,
		 nc->cpu.per_expert, nc->cpu.per_pair, file);
	script = popen(command, "w");
	require(script != NULL, "the script");
	for (uint32_t i = 0; i < POINTS; i++)
		fprintf(script, "%u %u %u %u\n", points[i].hits, points[i].missing, points[i].room, points[i].pairs);
	require(pclose(script) == 0, "the script ends well");
	answers = fdopen(fd, "r");
	unlink(file);
	return answers;
}

static void test_rates(void)
{
	const struct ncopy nc = draw_rates();
	struct point points[POINTS];
	uint32_t same = 0, split = 0;
	FILE *answers;

	for (uint32_t i = 0; i < POINTS; i++)
		points[i] = (struct point){below(40), below(MISSING_MAX + 1), below(MISSING_MAX + 10), 1 + below(60)};
	answers = ask(&nc, points);
	for (uint32_t i = 0; i < POINTS; i++) {
		const uint32_t expected = library_choice(&nc, &points[i]);
		const double ns = ns_of(&nc, &points[i], expected);
		uint32_t n;
		double found;

		/* Of two splits that last alike within rounding either may be chosen. */
		if (fscanf(answers, "%u %lf", &n, &found) == 2 && fabs(found - ns) <= 1e-6 * ns &&
		    (n == expected || fabs(ns_of(&nc, &points[i], n) - ns) <= 1e-9 * ns))
			same++;
		split += expected > 0 && expected < points[i].missing;
	}
	fclose(answers);
	ok(same == POINTS, "%u of %d choices are the library's", same, POINTS);
	diag("%u of them are neither none nor all", split);
}

int main(void)
{
	seed = tap_seed();
	for (int i = 0; i < RATES; i++)
		test_rates();
	return tap_done();
}
