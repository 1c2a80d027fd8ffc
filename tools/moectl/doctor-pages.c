/* SPDX-License-Identifier: MIT */
/*
 * doctor-pages - the huge pages that the configured models want on each NUMA node, and the files that reserve them.
 *
 * By the daemon's own rules (model/pool-size.h): each model has a file of equal size on each node, on pages of 1 GiB
 * from 512 MiB on where the machine has such, else of 2 MiB. What a daemon would not load is a problem.
 * tests/e2e/doctor.t compares both with what a daemon does.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/small.h"
#include "base/util.h"
#include "doctor.h"
#include "model/model.h"
#include "model/pool-size.h"
#include "moectl.h"

#define HUGE_FILE "/etc/moe-expertd/hugepages-node%d.conf"
#define NODE_SHARE 0.95 /* of a node's memory: more can hardly be reserved */

struct want {
	uint64_t large, small; /* pages of 1 GiB, 2 MiB */
};

/* The words of Pages=. */
enum { RUNG_AUTO, RUNG_1G, RUNG_2M };

static void add_bytes(struct want *w, const struct host_node *node, uint64_t bytes, uint64_t rung)
{
	const bool large = rung == RUNG_1G || (rung == RUNG_AUTO && bytes >= POOL_1G_MIN && node->huge_1g_total >= 0);

	if (large)
		w->large += DIV_UP(bytes, HOST_HUGE_1G);
	else if (rung <= RUNG_2M)
		w->small += DIV_UP(bytes, HOST_HUGE_2M);
}

/* -- would a daemon load them? ------------------------------------------------------------------------------------ */

/* What is there for the models, less those that were looked at. */
struct left {
	bool limited; /* by MemoryMax= ... */
	uint64_t limit;
	int64_t machine, group, nodes[HOST_NODES_MAX];        /* ordinary memory, -1 unknown */
	int64_t large[HOST_NODES_MAX], small[HOST_NODES_MAX]; /* reserved pages */
};

/* A daemon that runs has its models in memory already: then it is what there is in all that counts. */
static struct left left_on(const struct host *host, const struct settings *s, bool served)
{
	const uint64_t limit = s->values[SETTING_MEMORY_MAX].number;
	struct left left = {.limited = limit > 0,
			    .limit = limit,
			    .machine = served ? 0 : host->mem_available,
			    .group = served ? host->mem_limit : host->mem_limit_left};

	for (uint32_t i = 0; i < host->n_nodes; i++) {
		const struct host_node *n = &host->nodes[i];

		left.nodes[i] = served ? n->mem_total : n->mem_available;
		left.large[i] = served || n->huge_1g_free < 0 ? n->huge_1g_total : n->huge_1g_free;
		left.small[i] = served || n->huge_2m_free < 0 ? n->huge_2m_total : n->huge_2m_free;
		if (served)
			left.machine = left.machine < 0 || n->mem_total < 0 ? -1 : left.machine + n->mem_total;
	}
	return left;
}

/* How large each file is then: without all records, where that is allowed. False, and why: it may not be there at all.
 */
static bool fits_limits(const struct pool_size *size, const struct model *model, const struct settings *s,
			const struct left *left, uint64_t *ret_file, struct moe_error *err)
{
	const struct pool_limits limits = {.memory_max = left->limit, .pool_max = s->values[SETTING_POOL_MAX].number};
	uint64_t frames;

	if (left->limited && left->limit == 0) {
		moe_error_set(err, -ENOMEM, "the models before it take all of MemoryMax=");
		return false;
	}
	if (pool_frames(size, model->config.n_experts, model->config.topk, &limits, &frames, err) < 0)
		return false;
	*ret_file = frames ? frames * size->record : size->file;
	return true;
}

static void take(int64_t *left, uint64_t bytes)
{
	if (*left >= 0)
		*left -= (int64_t)bytes;
}

static bool take_pages(int64_t *left, uint64_t pages)
{
	if (*left < (int64_t)pages)
		return false;
	*left -= (int64_t)pages;
	return true;
}

static bool take_reserved(struct left *left, uint32_t node, uint64_t file)
{
	return (file >= POOL_1G_MIN && take_pages(&left->large[node], DIV_UP(file, HOST_HUGE_1G))) ||
	       take_pages(&left->small[node], DIV_UP(file, HOST_HUGE_2M));
}

/* What is on no huge pages that are reserved; those of Pages=1g and 2m are looked at with what all models want. */
static bool fits_memory(struct left *left, uint64_t file, uint32_t pools, const struct host *host, uint64_t rung,
			struct moe_error *err)
{
	uint64_t ordinary = 0;

	for (uint32_t i = 0; i < pools && rung != RUNG_1G && rung != RUNG_2M; i++) {
		if (rung == RUNG_AUTO && take_reserved(left, i, file))
			continue;
		ordinary += file;
		if (pool_lacks(left->nodes[i], file) || pool_lacks(left->machine, ordinary) ||
		    pool_lacks(left->group, ordinary)) {
			moe_error_set(
				err, -ENOMEM,
				"%llu bytes needed on node %d, %llu up to there, which has %lld of ordinary memory "
				"for them, the machine %lld, and the cgroup %lld (-1: no limit is known)",
				(unsigned long long)file, host->nodes[i].id, (unsigned long long)ordinary,
				(long long)left->nodes[i], (long long)left->machine, (long long)left->group);
			return false;
		}
		take(&left->nodes[i], file);
	}
	take(&left->machine, ordinary);
	take(&left->group, ordinary);
	return true;
}

#define FIX_LIMITS "raise it; or let what does not fit stay on disk (PoolMax= in expertd.conf(5)); or a smaller model"
#define FIX_POOL "raise PoolMax=, and MemoryMax= if it is lower (expertd.conf(5)); or a smaller model"
#define FIX_MEMORY                                                                                                     \
	"free memory; or let what does not fit stay on disk (PoolMax= in expertd.conf(5)); or a smaller model"

static void add_model(struct report *r, const char *what, const struct settings_model *m, const struct model *model,
		      const struct host *host, const struct settings *s, struct left *left, struct want *wants)
{
	const uint64_t rung = s->values[SETTING_PAGES].number;
	struct pool_size size;
	struct moe_error why = {0};
	char text[SHOW_TEXT];
	uint64_t file;

	if (!pool_size(&size, model, host->n_nodes)) {
		check(r, PROBLEM, what, "a smaller model", "%s: more than 2^63 bytes", m->path);
		return;
	}
	if (!fits_limits(&size, model, s, left, &file, &why)) {
		check(r, PROBLEM, what, s->values[SETTING_POOL_MAX].number ? FIX_POOL : FIX_LIMITS, "%s: %s", m->path,
		      why.text);
		return;
	}
	if (!fits_memory(left, file, size.pools, host, rung, &why)) {
		check(r, PROBLEM, what, FIX_MEMORY, "%s: %s", m->path, why.text);
		return;
	}
	left->limit -= MIN(left->limit, file * size.pools);
	check(r, FINE, what, NULL, "%s: %s (%llu bytes) on each of %u nodes", m->path, show_bytes(text, (double)file),
	      (unsigned long long)file, size.pools);
	for (uint32_t node = 0; node < size.pools; node++)
		add_bytes(&wants[node], &host->nodes[node], file, rung);
}

static void add_models(struct report *report, const struct host *host, const struct settings *s, bool served,
		       struct want *wants)
{
	struct left left = left_on(host, s, served);

	for (uint32_t i = 0; i < s->n_models; i++) {
		const struct settings_model *m = &s->models[i];
		struct moe_error err = {0};
		struct model *model = NULL;
		char path[PATH_MAX], what[128];
		int r;

		snprintf(path, sizeof path, "%s%s", report->root, m->path);
		snprintf(what, sizeof what, "configured model %u", i + 1);
		r = settings_check_model(s, i, report->root, &err);
		if (r < 0) {
			check(report, PROBLEM, what, "give another name: Model=NAME:PATH", "%s", err.text);
			continue;
		}
		if (r > 0) {
			check(report, FINE, what, NULL, "%s: the same once more, which is loaded once", m->path);
			continue;
		}
		if (model_open(&model, path, &err) < 0) {
			check(report, PROBLEM, what, "mend Model= where moectl config says it stands, or the folder",
			      "%s", err.text);
			continue;
		}
		if (!service_may_read(report, m))
			check(report, PROBLEM, what,
			      "namei -l shows which folder forbids it: chmod o+rx; or move the model",
			      "%s: the service's user, moe-expertd, may not read it", m->path);
		else
			add_model(report, what, m, model, host, s, &left, wants);
		model_free(model);
	}
}

/* -- of the command line ------------------------------------------------------------------------------------------ */

static int refuse_words(struct moe_error *err)
{
	return moe_error_set(err, -EINVAL, "a size of each node, 27G, or of one, 0:27G, with commas between");
}

/* One word of --huge-pages, "27G" or "1:27G". */
static int add_word(char *word, const struct host *host, uint64_t rung, struct want *wants, struct moe_error *err)
{
	const struct settings_from from = {.kind = SETTINGS_FROM_OPTION};
	char *colon = strchr(word, ':'), *end = NULL;
	const long only = colon ? strtol(word, &end, 10) : -1;
	bool there = false;
	struct settings s;
	int r;

	if (colon && (end != colon || end == word || *word == '-'))
		return refuse_words(err);
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
	if (r < 0)
		return refuse_words(err);
	return there ? 0
		     : moe_error_set(err, -EINVAL, "this machine has no node %ld; its last one is node %d", only,
				     host->nodes[host->n_nodes - 1].id);
}

/* Words between commas; a later one goes before an earlier one. */
static int read_words(const char *words, const struct host *host, uint64_t rung, struct want *wants,
		      struct moe_error *err)
{
	_cleanup_free_ char *copy = strdup(words);
	char *rest = copy, *word;
	int r = copy && *words ? 0 : refuse_words(err);

	while (r == 0 && (word = strsep(&rest, ",")))
		r = add_word(word, host, rung, wants, err);
	return r;
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

/* Pages=1g and 2m: on nothing else, and none can be made when they are asked for. */
static bool must_be_reserved(uint64_t rung, const struct host *host)
{
	if (rung == RUNG_1G)
		return host_read_number("/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_overcommit_hugepages") <= 0;
	return rung == RUNG_2M && host->overcommit_2m <= 0;
}

/* `told`: by the command line; then it is to be there after the next boot as well. `lacking`: what it is when there is
 * less. */
static void check_want(struct report *r, const struct host_node *node, const struct want *w, bool told,
		       enum verdict lacking)
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
		check(r, lacking, what, "PoolMax= in expertd.conf(5) leaves the rest on disk; or serve a smaller model",
		      "%s are %s, and the node has %s", pages, show_bytes(size, (double)bytes),
		      show_bytes(total, (double)node->mem_total));
	} else if (w->large && node->huge_1g_total < 0) {
		/* No file could reserve them. */
		check(r, lacking, what, "Pages=2m or auto in expertd.conf(5)", "%s: there are no pages of 1 GiB here%s",
		      pages, lacks_1g(r->root) ? ": the CPU has none, or hides them" : "");
	} else if (large >= w->large && small >= w->small && (is_said || !told)) {
		check(r, FINE, what, NULL, "%s, which are reserved", pages);
	} else if (is_said) {
		check(r, lacking, what, fix, "%s: the file for it is there, but not the pages", pages);
	} else {
		check(r, lacking, what, "moectl doctor --fix", "%s; %llu of 1 GiB and %llu of 2 MiB are reserved",
		      pages, (unsigned long long)large, (unsigned long long)small);
		add_remedy(r, what, node, w);
	}
}

int check_wanted(struct report *r, const struct host *host, const struct settings *s, const char *words, bool served,
		 struct moe_error *err)
{
	struct want wants[HOST_NODES_MAX] = {0};
	const uint64_t rung = s->values[SETTING_PAGES].number;
	const enum verdict lacking = !words && must_be_reserved(rung, host) ? PROBLEM : NOTE;

	add_models(r, host, s, served, wants);
	if (words && read_words(words, host, MIN(rung, RUNG_2M), wants, err) < 0)
		return err->code;
	for (uint32_t i = 0; i < host->n_nodes; i++)
		check_want(r, &host->nodes[i], &wants[i], words != NULL, lacking);
	return 0;
}
