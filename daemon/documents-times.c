/* SPDX-License-Identifier: MIT */
#include "daemon/documents-times.h"

#include <stdlib.h>

#include "base/util.h"

static const char *const names[SESSION_TIMES] = {
	[SESSION_QUEUE] = "queue", [SESSION_COMPUTE] = "compute", [SESSION_COPY] = "copy"};
static const char *const shares[] = {"0.5", "0.9", "0.99", "0.999", "1"};

static json_t *time_json(const struct histogram *h)
{
	const uint64_t n = histogram_count(h);
	json_t *quantiles = json_object();

	for (size_t i = 0; i < ARRAY_LEN(shares); i++)
		json_object_set_new(quantiles, shares[i],
				    n ? json_integer((json_int_t)histogram_quantile(h, strtod(shares[i], NULL)))
				      : json_null());
	return json_pack("{s:I, s:o}", "count", (json_int_t)n, "quantiles_ns", quantiles);
}

json_t *documents_times(const struct session *s)
{
	json_t *times = json_object();

	for (int i = 0; i < SESSION_TIMES; i++)
		json_object_set_new(times, names[i], time_json(&s->times[i]));
	return times;
}
