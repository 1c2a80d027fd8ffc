/* SPDX-License-Identifier: MIT */
#include "daemon/documents-times.h"

#include "base/util.h"
#include "daemon/ringsrv.h"

static const char *const names[TIMES_PARTS] = {
	[TIMES_WAIT] = "wait", [TIMES_QUEUE] = "queue", [TIMES_COMPUTE] = "compute", [TIMES_COPY] = "copy"};
static const double shares[] = {.5, .9, .99, .999, 1};
static const char *const share_names[] = {"0.5", "0.9", "0.99", "0.999", "1"};

static json_t *time_json(const struct histogram *h)
{
	uint64_t values[ARRAY_LEN(shares)];
	const uint64_t n = histogram_quantiles(h, shares, ARRAY_LEN(shares), values);
	json_t *quantiles = json_object(), *time = json_object();

	for (size_t i = 0; i < ARRAY_LEN(shares); i++)
		json_object_set_new_nocheck(quantiles, share_names[i],
					    n ? json_integer((json_int_t)values[i]) : json_null());
	json_object_set_new_nocheck(time, "count", json_integer((json_int_t)n));
	json_object_set_new_nocheck(time, "quantiles_ns", quantiles);
	return time;
}

json_t *documents_times(const struct times *t)
{
	json_t *times = json_object();

	for (int i = 0; i < TIMES_PARTS; i++)
		json_object_set_new(times, names[i], time_json(&t->part[i]));
	return times;
}

/* What its steps waited stands in its region, by layer. */
json_t *documents_session_times(const struct session *s)
{
	struct times all = *s->times;

	for (uint32_t l = 0; l < s->entry->model->manifest->n_layers; l++)
		ringsrv_add_waits(s, l, &all.part[TIMES_WAIT]);
	return documents_times(&all);
}

/* Both are this thread's own: nothing of it has to be atomic, and all of it is added at once. */
void times_add(struct times *to, const struct times *from)
{
	for (int i = 0; i < TIMES_PARTS; i++)
		for (int k = 0; k < HISTOGRAM_BUCKETS; k++)
			to->part[i].buckets[k] += from->part[i].buckets[k];
}
