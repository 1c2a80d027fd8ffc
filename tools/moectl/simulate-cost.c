/* SPDX-License-Identifier: MIT */
/* simulate-cost - the rates of --cost, and what they make of each run: a table, or the words of --json. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "moectl.h"
#include "simulate.h"

#define WORD_MAX 64
#define EXAMPLE "expert=13M,link=25,device=2000,cpu=200"

enum {
	RATE_EXPERT,
	RATE_LINK,
	RATE_DEVICE,
	RATE_CPU,
	RATE_NEEDED,
	RATE_LAYER = RATE_NEEDED,
	RATE_DEVICE_PAIR,
	RATE_CPU_PAIR,
	RATES
};

static const char *const names[RATES] = {"expert", "link", "device", "cpu", "layer", "device-pair", "cpu-pair"};

/* A number above 0, of bytes with K, M or G behind it (powers of 1000, as the rates have it). */
static bool parse_rate(const char *text, bool bytes, double *ret)
{
	static const char suffixes[] = "KMG";
	const char *suffix;
	char *end;

	*ret = strtod(text, &end);
	suffix = bytes && *end ? strchr(suffixes, *end) : NULL;
	for (const char *p = suffixes; suffix && p <= suffix; p++)
		*ret *= 1000;
	return end != text && !*(suffix ? end + 1 : end) && *ret > 0 && *ret < 1e15;
}

/* Each rate once: of two of a name nobody can tell which one was meant. */
static int parse_word(double rates[RATES], const char *word, struct moe_error *err)
{
	const char *equals = strchr(word, '=');
	int i = 0;

	while (i < RATES &&
	       (!equals || strncmp(word, names[i], (size_t)(equals - word)) != 0 || names[i][equals - word] != '\0'))
		i++;
	if (i == RATES)
		return moe_error_set(
			err, -EINVAL,
			"--cost: '%s' found, RATE=NUMBER of expert, link, device, cpu, layer, device-pair, "
			"cpu-pair expected",
			word);
	if (rates[i] != 0)
		return moe_error_set(err, -EINVAL, "--cost: '%s' found, and %s before: each rate once expected", word,
				     names[i]);
	if (!parse_rate(equals + 1, i == RATE_EXPERT, &rates[i]))
		return moe_error_set(err, -EINVAL, "--cost: '%s' found, a number above 0 expected", word);
	return 0;
}

int simulate_rates(struct cost_rates *ret, const char *list, struct moe_error *err)
{
	double rates[RATES] = {0}, bytes;
	char word[WORD_MAX];
	int r = 0;

	while (r == 0 && list) {
		const size_t n = strcspn(list, ",");

		snprintf(word, sizeof word, "%.*s", (int)MIN(n, sizeof word - 1), list);
		r = parse_word(rates, word, err);
		list = list[n] ? list + n + 1 : NULL;
	}
	for (int i = 0; r == 0 && i < RATE_NEEDED; i++)
		if (rates[i] == 0)
			r = moe_error_set(err, -EINVAL, "--cost: no %s found, as in --cost %s expected", names[i],
					  EXAMPLE);
	if (r < 0)
		return r;
	/* A GB/s is a byte in a nanosecond. */
	bytes = rates[RATE_EXPERT];
	*ret = (struct cost_rates){
		.bytes = (uint64_t)(bytes < 1 ? 1 : bytes),
		.layer_ns = rates[RATE_LAYER] * 1000,
		.ncopy = {.copy_ns_per_byte = 1 / rates[RATE_LINK],
			  .device = {.per_expert = bytes / rates[RATE_DEVICE],
				     .per_pair = rates[RATE_DEVICE_PAIR] * 1000},
			  .cpu = {.per_expert = bytes / rates[RATE_CPU], .per_pair = rates[RATE_CPU_PAIR] * 1000}}};
	return 0;
}

json_t *simulate_cost_document(const struct cost *cost)
{
	json_t *document = json_pack("{s:f,s:f,s:f}", "wait_ns", cost->wait, "compute_ns", cost->compute, "ideal_ns",
				     cost->ideal),
	       *designs = json_object();

	for (int i = 0; i < COST_DESIGNS; i++)
		json_object_set_new(designs, cost_design_name(i), json_real(cost->design[i]));
	json_object_set_new(document, "designs_ns", designs);
	json_object_set_new(document, "best", json_string(cost_design_name(cost_best(cost))));
	return document;
}

void simulate_cost_table(const struct runs *runs, FILE *to)
{
	char name[RUN_NAME], text[SHOW_TEXT];

	fputs("\nTime of a step by a model of copies and experts at the given rates, not measured:\n", to);
	fprintf(to, "%-16s %5s %10s %10s", "", "slots", "wait", "compute");
	for (int i = 0; i < COST_DESIGNS; i++)
		fprintf(to, " %10s", cost_design_name(i));
	fprintf(to, " %10s  best\n", "ideal");
	for (uint32_t i = 0; i < runs->n; i++) {
		const struct run *run = &runs->runs[i];

		fprintf(to, "%-16s %5u %10s", run_name(run, name), run->capacity, show_time(text, run->cost.wait));
		fprintf(to, " %10s", show_time(text, run->cost.compute));
		for (int j = 0; j < COST_DESIGNS; j++)
			fprintf(to, " %10s", show_time(text, run->cost.design[j]));
		fprintf(to, " %10s", show_time(text, run->cost.ideal));
		fprintf(to, "  %s\n", cost_design_name(cost_best(&run->cost)));
	}
}
