/* SPDX-License-Identifier: MIT */
/*
 * doctor-pages - the huge pages that the configured models want on each NUMA node, and the files that reserve them.
 *
 * As the daemon lays models out (daemon/manifest.c, tiered.c, pages.c): each model has a file of equal size on each
 * node, on pages of 1 GiB from 512 MiB on where the machine has such, else of 2 MiB. tests/e2e/doctor.t compares the
 * sizes with those of a daemon.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/small.h"
#include "base/util.h"
#include "doctor.h"
#include "model/expert.h"
#include "moectl.h"

#define LARGE_FROM (512ull << 20)
#define HUGE_FILE "/etc/moe-expertd/hugepages-node%d.conf"
#define NODE_SHARE 0.95 /* of a node's memory: more can hardly be reserved */

struct want {
	uint64_t large, small; /* pages of 1 GiB, 2 MiB */
};

/* The words of Pages=. */
enum { RUNG_AUTO, RUNG_1G, RUNG_2M };

static void add_bytes(struct want *w, const struct host_node *node, uint64_t bytes, uint64_t rung)
{
	const bool large = rung == RUNG_1G || (rung == RUNG_AUTO && bytes >= LARGE_FROM && node->huge_1g_total >= 0);

	if (large)
		w->large += (bytes + HOST_HUGE_1G - 1) / HOST_HUGE_1G;
	else if (rung <= RUNG_2M)
		w->small += (bytes + HOST_HUGE_2M - 1) / HOST_HUGE_2M;
}

/* -- of models ---------------------------------------------------------------------------------------------------- */

/* In how many files its records are cut. */
static uint32_t count_pools(const struct model *model, uint32_t nodes)
{
	uint32_t pools = nodes;

	for (uint32_t layer = 0; layer < model->config.n_layers; layer++) {
		struct moe_layout layout = {0};

		if (!model->config.is_moe[layer])
			continue;
		expert_layout(model, layer, &layout);
		pools = MIN(pools, layout_shares_max(&layout));
	}
	return pools;
}

/* Of each of these files. */
static uint64_t pool_bytes(const struct model *model, uint32_t pools, const struct settings *s)
{
	const uint64_t limit = s->values[SETTING_MEMORY_MAX].number, tier = s->values[SETTING_POOL_MAX].number;
	const uint64_t max = limit ? MIN(limit, tier) : tier;
	uint64_t bytes = 0, largest = 0, records = (uint64_t)model->config.n_moe_layers * model->config.n_experts;

	for (uint32_t layer = 0; layer < model->config.n_layers; layer++) {
		struct moe_layout layout = {0};

		if (!model->config.is_moe[layer])
			continue;
		expert_layout(model, layer, &layout);
		layout_spread(&layout, &layout, pools);
		bytes += layout.record_bytes * model->config.n_experts;
		largest = MAX(largest, layout.record_bytes);
	}
	if (tier == 0 || largest == 0 || bytes * pools <= max)
		return bytes;
	return MIN(max / (largest * pools), records) * largest;
}

static void add_models(struct report *r, const struct host *host, const struct settings *s, struct want *wants)
{
	for (uint32_t i = 0; i < s->n_models; i++) {
		const struct settings_model *m = &s->models[i];
		struct moe_error err = {0};
		struct model *model = NULL;
		char path[PATH_MAX], what[128], size[SHOW_TEXT];
		uint32_t pools;
		uint64_t bytes;

		snprintf(path, sizeof path, "%s%s", r->root, m->path);
		snprintf(what, sizeof what, "configured model %u", i + 1);
		if (model_open(&model, path, &err) < 0) {
			check(r, PROBLEM, what, "mend Model= where moectl config says it stands, or the folder", "%s",
			      err.text);
			continue;
		}
		pools = count_pools(model, host->n_nodes);
		bytes = pool_bytes(model, pools, s);
		check(r, FINE, what, NULL, "%s: %s (%llu bytes) on each of %u nodes", m->path,
		      show_bytes(size, (double)bytes), (unsigned long long)bytes, pools);
		for (uint32_t node = 0; node < pools; node++)
			add_bytes(&wants[node], &host->nodes[node], bytes, s->values[SETTING_PAGES].number);
		model_free(model);
	}
}

/* -- of the command line ------------------------------------------------------------------------------------------ */

/* One word of --huge-pages, "27G" or "1:27G". */
static bool add_word(char *word, const struct host *host, uint64_t rung, struct want *wants)
{
	const struct settings_from from = {.kind = SETTINGS_FROM_OPTION};
	char *colon = strchr(word, ':'), *end = NULL;
	const long only = colon ? strtol(word, &end, 10) : -1;
	bool there = false;
	struct settings s;
	int r;

	if (colon && (end != colon || end == word || *word == '-'))
		return false;
	settings_init(&s);
	r = settings_set(&s, SETTING_POOL_MAX, colon ? colon + 1 : word, &from, NULL);
	for (uint32_t i = 0; r == 0 && i < host->n_nodes; i++) {
		if (only >= 0 && only != host->nodes[i].id)
			continue;
		there = true;
		wants[i] = (struct want){0};
		add_bytes(&wants[i], &host->nodes[i], s.values[SETTING_POOL_MAX].number, rung);
	}
	settings_free(&s);
	return there;
}

/* Words between commas; a later one goes before an earlier one. */
static int read_words(const char *words, const struct host *host, uint64_t rung, struct want *wants)
{
	char *copy = strdup(words), *rest = copy, *word;
	bool good = copy && *words;

	while (good && (word = strsep(&rest, ",")))
		good = add_word(word, host, rung, wants);
	free(copy);
	return good ? 0 : -EINVAL;
}

/* -- what is there ------------------------------------------------------------------------------------------------ */

static void show_want(char *to, size_t size, const struct want *w)
{
	if (w->large && w->small)
		snprintf(to, size, "%llu of 1 GiB and %llu of 2 MiB", (unsigned long long)w->large,
			 (unsigned long long)w->small);
	else
		snprintf(to, size, "%llu of %s", (unsigned long long)(w->large ? w->large : w->small),
			 w->large ? "1 GiB" : "2 MiB");
}

/* The number behind `key` in the text of such a file; 0: it does not say. */
static uint64_t said(const char *text, const char *key)
{
	for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n')
		if (strncmp(line, key, strlen(key)) == 0)
			return strtoull(line + strlen(key), NULL, 10);
	return 0;
}

/* What the node's file reserves already. */
static struct want in_file(const struct report *r, const struct host_node *node)
{
	char path[PATH_MAX], text[4096];

	snprintf(path, sizeof path, "%s" HUGE_FILE, r->root, node->id);
	if (!small_read(path, text, sizeof text))
		return (struct want){0};
	return (struct want){.large = said(text, "PAGES_1G="), .small = said(text, "PAGES_2M=")};
}

/* The file of moe-expertd-hugepages@N.service. A number that stands there may be somebody else's: none gets less. */
static void add_remedy(struct report *r, const char *what, const struct host_node *node, const struct want *w)
{
	struct remedy *remedy = remedies_add(&r->remedies, what, r->root, HUGE_FILE, node->id);
	const struct want has = in_file(r, node);

	if (!remedy)
		return;
	snprintf(remedy->text, sizeof remedy->text,
		 "# By moectl doctor --fix, for moe-expertd-hugepages@%d.service.\nPAGES_1G=%llu\nPAGES_2M=%llu\n",
		 node->id, (unsigned long long)MAX(w->large, has.large), (unsigned long long)MAX(w->small, has.small));
	snprintf(remedy->next, sizeof remedy->next,
		 "systemctl enable moe-expertd-hugepages@%d.service && systemctl restart "
		 "moe-expertd-hugepages@%d.service",
		 node->id, node->id);
}

/* `told`: by the command line; then it is to be there after the next boot as well. */
static void check_want(struct report *r, const struct host_node *node, const struct want *w, bool told)
{
	const uint64_t bytes = w->large * HOST_HUGE_1G + w->small * HOST_HUGE_2M;
	const uint64_t large = (uint64_t)MAX(node->huge_1g_total, 0), small = (uint64_t)MAX(node->huge_2m_total, 0);
	const struct want has = in_file(r, node);
	const bool is_said = has.large >= w->large && has.small >= w->small;
	char what[64], fix[128], pages[96], size[SHOW_TEXT], total[SHOW_TEXT];

	if (bytes == 0)
		return;
	snprintf(what, sizeof what, "huge pages wanted, node %d", node->id);
	snprintf(fix, sizeof fix, "systemctl restart moe-expertd-hugepages@%d.service; or reboot", node->id);
	show_want(pages, sizeof pages, w);
	if (node->mem_total >= 0 && (double)bytes > NODE_SHARE * (double)node->mem_total) {
		check(r, NOTE, what, "PoolMax= in expertd.conf(5) leaves the rest on disk; or serve a smaller model",
		      "%s are %s, and the node has %s", pages, show_bytes(size, (double)bytes),
		      show_bytes(total, (double)node->mem_total));
	} else if (large >= w->large && small >= w->small && (is_said || !told)) {
		check(r, FINE, what, NULL, "%s, which are reserved", pages);
	} else if (is_said) {
		check(r, NOTE, what, fix, "%s: the file for it is there, but not the pages", pages);
	} else {
		check(r, NOTE, what, "moectl doctor --fix", "%s; %llu of 1 GiB and %llu of 2 MiB are reserved", pages,
		      (unsigned long long)large, (unsigned long long)small);
		add_remedy(r, what, node, w);
	}
}

int check_wanted(struct report *r, const struct host *host, const struct settings *s, const char *words)
{
	struct want wants[HOST_NODES_MAX] = {0};
	const uint64_t rung = s->values[SETTING_PAGES].number;

	add_models(r, host, s, wants);
	if (words && read_words(words, host, MIN(rung, RUNG_2M), wants) < 0)
		return -EINVAL;
	for (uint32_t i = 0; i < host->n_nodes; i++)
		check_want(r, &host->nodes[i], &wants[i], words != NULL);
	return 0;
}
