/* SPDX-License-Identifier: MIT */
/*
 * load - time to load a model folder, in turns with O_DIRECT reads of the same files and with making as much memory,
 * and the memory that it takes besides.
 *
 * A disk and a hypervisor that others use as well are fast in one second and slow in the next: one load beside one read
 * says little. So there are several rounds, and the median of the loads is compared with the median of the reads.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/path.h"
#include "base/util.h"
#include "bench.h"
#include "daemon/store.h"
#include "tools/patient.h"

#define NAME "moe-bench-load"
#define SAMPLE_US 1000
#define SETTLE_NS 10000000000u /* no daemon takes longer to give a model's memory back */

/* -- the daemon's own memory -------------------------------------------------------------------------------------- */

struct watch {
	int pid;
	_Atomic bool stop;
	uint64_t peak; /* bytes; 0: never seen */
	pthread_t thread;
};

/* Status has counters, while smaps_rollup would walk the page tables of the pool that is being filled. */
static uint64_t anonymous_bytes(int pid)
{
	unsigned long long kib = 0;
	char path[64], line[256];
	FILE *status;

	snprintf(path, sizeof path, "/proc/%d/status", pid);
	status = fopen(path, "re");
	while (status && fgets(line, sizeof line, status))
		if (sscanf(line, "RssAnon: %llu kB", &kib) == 1)
			break;
	if (status)
		fclose(status);
	return kib * 1024;
}

static void *watch_main(void *arg)
{
	struct watch *w = arg;

	while (!atomic_load(&w->stop)) {
		w->peak = MAX(w->peak, anonymous_bytes(w->pid));
		usleep(SAMPLE_US);
	}
	return NULL;
}

/* -- one load ----------------------------------------------------------------------------------------------------- */

/* What the daemon has read for the model. */
static uint64_t read_bytes(struct moe_client *client)
{
	json_t *models = bench_document(client, MOE_DOCUMENT_MODELS), *model;
	uint64_t bytes = 0;
	size_t i;

	json_array_foreach (json_is_array(models) ? models : json_object_get(models, "models"), i, model) {
		const char *name = json_string_value(json_object_get(model, "name"));

		if (name && strcmp(name, NAME) == 0)
			bytes = (uint64_t)json_integer_value(json_object_get(model, "read_bytes"));
	}
	json_decref(models);
	return bytes;
}

/* Bytes that are free, pages that are reserved among them. */
static uint64_t free_bytes(struct host *host)
{
	uint64_t bytes = 0;

	host_read_again(host);
	for (uint32_t i = 0; i < host->n_nodes; i++) {
		const struct host_node *node = &host->nodes[i];

		bytes += (uint64_t)MAX(node->mem_free, 0) + (uint64_t)MAX(node->huge_2m_free, 0) * HOST_HUGE_2M +
			 (uint64_t)MAX(node->huge_1g_free, 0) * HOST_HUGE_1G;
	}
	return bytes;
}

/* A daemon gives a model's memory back behind its answer: who takes as much meanwhile finds no reserved pages. */
static void settle(struct host *host, uint64_t wanted)
{
	const uint64_t begin = now_ns();

	while (free_bytes(host) < wanted && now_ns() - begin < SETTLE_NS)
		usleep(SAMPLE_US);
}

/* Bytes per nanosecond. */
static int load_once(struct moe_client *client, const char *path, double *ret_rate, uint64_t *ret_bytes,
		     struct moe_error *err)
{
	const uint64_t begin = now_ns();
	int r = moe_load(client, path, NAME, NULL, NULL, err);
	const uint64_t ns = now_ns() - begin;

	if (r < 0)
		return r;
	*ret_bytes = read_bytes(client);
	*ret_rate = (double)*ret_bytes / (double)ns;
	return moe_unload(client, NAME, err);
}

struct loads {
	double *rates, *raws, *memories, *shares; /* of each round */
	uint64_t bytes, files;                    /* that a load reads, and that the files hold */
};

/* Bytes per nanosecond of making as much memory as the model takes, as the daemon makes it, and giving it back: where a
 * hypervisor takes free memory away this costs more than any read. It is no part of what a load does, and what the bare
 * reads go into was made before their clock: so this comes right before each load, which finds what was used just now.
 * -errno below 0. */
static double memory_rate(const struct host *host, uint64_t bytes, struct moe_error *err)
{
	const uint64_t begin = now_ns();
	struct pages pages = PAGES_NONE;
	const int r = pages_new(&pages, NAME, bytes, PAGES_AUTO, &host->nodes[0], err);
	const uint64_t ns = now_ns() - begin;

	pages_free(&pages);
	return r < 0 ? r : (double)bytes / (double)ns;
}

/* Bytes per nanosecond, of all that the folder's files hold. */
static int read_once(const char *path, double *ret_rate, uint64_t *ret_bytes, struct moe_error *err)
{
	*ret_rate = limit_disk(path, ret_bytes);
	return *ret_rate < 0 ? moe_error_sys(err, (int)*ret_rate, "%s: O_DIRECT reads", path) : 0;
}

static int load_into_used(struct loads *l, uint32_t i, const char *path, struct host *host, struct moe_client *client,
			  struct moe_error *err)
{
	uint64_t before;
	int r;

	l->memories[i] = memory_rate(host, l->files, err);
	if (l->memories[i] < 0)
		return (int)l->memories[i];
	before = free_bytes(host);
	r = load_once(client, path, &l->rates[i], &l->bytes, err);
	if (r == 0)
		settle(host, before - MIN(before, l->bytes / 16));
	return r;
}

/* A load and a bare read in one order and the other by turns: what comes second finds a disk that has been busy. */
static int measure_round(struct loads *l, uint32_t i, const char *path, struct host *host, struct moe_client *client,
			 struct moe_error *err)
{
	int r = 0;

	if (i % 2 == 0)
		r = read_once(path, &l->raws[i], &l->files, err);
	if (r == 0)
		r = load_into_used(l, i, path, host, client, err);
	if (r == 0 && i % 2)
		r = read_once(path, &l->raws[i], &l->files, err);
	l->shares[i] = r == 0 ? l->rates[i] / l->raws[i] : 0;
	return r;
}

static int measure(struct loads *l, const char *path, struct moe_client *client, uint32_t n, struct moe_error *err)
{
	struct host *host = malloc(sizeof *host);
	int r = host ? 0 : moe_error_sys(err, -ENOMEM, "load");

	if (host)
		host_read(host, false);
	for (uint32_t i = 0; i < n && r == 0; i++)
		r = measure_round(l, i, path, host, client, err);
	free(host);
	return r;
}

static int watched(struct loads *l, struct watch *w, const char *path, struct moe_client *client, uint32_t n,
		   struct moe_error *err)
{
	int r;

	w->pid = bench_daemon_pid(client);
	r = -pthread_create(&w->thread, NULL, watch_main, w);
	if (r < 0)
		return moe_error_sys(err, r, "load: no thread to watch memory");
	r = measure(l, path, client, n, err);
	atomic_store(&w->stop, true);
	pthread_join(w->thread, NULL);
	return r;
}

static void print_result(const struct options *o, const struct loads *l, const struct watch *w)
{
	const struct summary rate = summarise(l->rates, o->samples), raw = summarise(l->raws, o->samples);
	const struct summary shares = summarise(l->shares, o->samples);
	const double share = rate.p50 / raw.p50, memory = summarise(l->memories, o->samples).p50;
	char extra[32] = "null";

	if (w->peak)
		snprintf(extra, sizeof extra, "%llu", (unsigned long long)w->peak);
	if (o->json)
		printf("{\"gbs\": %.6g, \"raw_gbs\": %.6g, \"share\": %.6g, \"share_min\": %.6g, \"share_max\": %.6g, "
		       "\"rounds\": %u, \"memory_gbs\": %.6g, \"extra_bytes_peak\": %s, \"bytes\": %llu}\n",
		       rate.p50, raw.p50, share, shares.best, shares.worst, o->samples, memory, extra,
		       (unsigned long long)l->bytes);
	else
		printf("ready at %.2f GB/s (%.2f to %.2f in %u rounds, %llu bytes)\n"
		       "bare O_DIRECT reads %.2f GB/s (%.2f to %.2f)\n"
		       "share %.2f of the medians (%.2f to %.2f in a round)\n"
		       "memory alone is made at %.2f GB/s, before each load; the daemon's own memory at most %.1f "
		       "MiB\n",
		       rate.p50, rate.best, rate.worst, o->samples, (unsigned long long)l->bytes, raw.p50, raw.best,
		       raw.worst, share, shares.best, shares.worst, memory, (double)w->peak / (1 << 20));
}

int bench_load(const struct options *o)
{
	_cleanup_free_ char *path = path_real(o->path);
	_cleanup_free_ double *samples = calloc(4 * (size_t)o->samples, sizeof *samples);
	struct loads loads = {.rates = samples,
			      .raws = samples + o->samples,
			      .shares = samples + 2 * o->samples,
			      .memories = samples + 3 * o->samples};
	struct moe_client *client = NULL;
	struct moe_error err = {0};
	struct watch w = {0};
	int r;

	if (!path) {
		moe_error_sys(&err, -errno, "load: %s: a model's folder or file expected", o->path);
		return bench_fail(&err);
	}
	r = samples ? open_patiently(&client, o->socket, &err) : -ENOMEM;
	if (r == 0)
		r = watched(&loads, &w, path, client, o->samples, &err);
	moe_close(client);
	if (r < 0)
		return bench_fail(&err);
	print_result(o, &loads, &w);
	return 0;
}
