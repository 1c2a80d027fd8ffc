/* SPDX-License-Identifier: MIT */
/* metrics - documents made up here become Prometheus text: what is escaped, what has no sample, what any number is. */
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "metrics/families.h"
#include "metrics/metrics.h"
#include "tests/tap.h"

static char *text_of(const char *status, const char *stats, const char *models)
{
	json_t *documents[3] = {status ? json_loads(status, 0, NULL) : NULL, stats ? json_loads(stats, 0, NULL) : NULL,
				models ? json_loads(models, 0, NULL) : NULL};
	struct moe_error err = {0};
	char *text = NULL;
	const int r = metrics_write(&text, &(struct metrics_documents){{documents[0], documents[1], documents[2]}},
				    &err);

	require(r == 0 && text, "text is made");
	for (int i = 0; i < 3; i++)
		json_decref(documents[i]);
	return text;
}

/* Whether a line is in it, whole. */
static bool has_line(const char *text, const char *line)
{
	const size_t length = strlen(line);

	for (const char *at = text; (at = strstr(at, line)); at++)
		if ((at == text || at[-1] == '\n') && at[length] == '\n')
			return true;
	return false;
}

static void test_values(void)
{
	char *text = text_of("{\"state\": \"loading\", \"uptime_ns\": 1500000001, \"restarts\": -1, \"kept\": true, "
			     "\"sessions\": -3, \"bytes\": 9007199254740993, \"cpu\": {\"busy_ns\": -1}}",
			     NULL, NULL);

	ok(has_line(text, "moe_expertd_ready 0"), "loading is not ready");
	ok(has_line(text, "moe_expertd_uptime_seconds 1.500000001"), "nanoseconds are seconds, exactly");
	ok(has_line(text, "moe_expertd_restarts_total 18446744073709551615"), "a counter has no sign");
	ok(has_line(text, "moe_expertd_pool_busy_seconds_total 18446744073.709551615"), "nor has one of seconds");
	ok(has_line(text, "moe_expertd_sessions -3"), "a gauge has one");
	ok(has_line(text, "moe_expertd_kept 1"), "true is 1");
	ok(has_line(text, "moe_expertd_weights_bytes 9007199254740993"), "no digit of an integer is lost");
	ok(has_line(text, "# TYPE moe_expertd_ready gauge") &&
		   has_line(text, "# TYPE moe_expertd_restarts_total counter"),
	   "types are said");
	ok(!strstr(text, "moe_expertd_connections") && !strstr(text, "moe_expertd_loading"),
	   "what is not there has neither sample nor help");
	free(text);
}

static void test_labels(void)
{
	const char *help;
	char *text = text_of(
		"{\"state\": \"ready\", \"version\": \"1\"}",
		"{\"models\": [{\"name\": \"a\\\"b\\\\c\\nd\", \"layers\": [{\"layer\": 3, \"steps\": 4, "
		"\"active_mean\": 0.5, \"hit_rate\": null, \"pairs\": {\"hit\": 5, \"cpu\": 6}, \"served\": "
		"{\"computes\": 7}}]}], \"sessions\": [{\"id\": 8, \"model\": \"m\", \"pid\": 9, \"modes\": "
		"{\"decode\": {\"steps\": 10}}}]}",
		"{\"models\": [{\"name\": \"m\", \"tier\": null, \"pools\": [{\"node\": 0, \"bytes\": 1}, "
		"{\"node\": 1, \"bytes\": 2}]}, {\"name\": \"t\", \"tier\": {\"hits\": 11}}]}");

	ok(has_line(text, "moe_expertd_ready 1"), "ready");
	ok(has_line(text, "moe_expertd_layer_steps_total{model=\"a\\\"b\\\\c\\nd\",layer=\"3\"} 4"), "escaped");
	ok(has_line(text, "moe_expertd_layer_pairs_total{model=\"a\\\"b\\\\c\\nd\",layer=\"3\",path=\"cpu\"} 6"),
	   "a path is a label");
	ok(has_line(text, "moe_expertd_layer_active_experts_mean{model=\"a\\\"b\\\\c\\nd\",layer=\"3\"} 0.5"),
	   "a fraction stays one");
	ok(has_line(text, "moe_expertd_served_computes_total{model=\"a\\\"b\\\\c\\nd\",layer=\"3\"} 7"),
	   "what the daemon counted");
	ok(has_line(text, "moe_expertd_mode_steps_total{session=\"8\",model=\"m\",mode=\"decode\"} 10"),
	   "a mode is a label");
	ok(has_line(text, "moe_expertd_session_info{session=\"8\",model=\"m\",pid=\"9\"} 1"),
	   "who a session is; what its document lacks is left out");
	ok(has_line(text, "moe_expertd_model_memory_bytes{model=\"m\",node=\"1\"} 2"), "a node is a label");
	ok(has_line(text, "moe_expertd_tier_hits_total{model=\"t\"} 11") &&
		   !strstr(text, "tier_hits_total{model=\"m\""),
	   "a model that is all there has no tier");
	help = strstr(text, "# HELP moe_expertd_model_memory_bytes ");
	ok(help && !strstr(help + 1, "# HELP moe_expertd_model_memory_bytes "), "help is said once");
	free(text);
}

/* What is asked of a document that is none of the daemon's. */
static void test_strange(void)
{
	char *text = text_of("{\"cpu\": 1, \"accounts\": {\"users\": {\"a\": {\"bytes\": 1}}}, \"uptime_ns\": \"x\"}",
			     "{\"models\": [1, {\"name\": 2, \"layers\": [{\"steps\": 1}]}], \"sessions\": 3}", "[]");

	ok(!strstr(text, "uptime") && !strstr(text, "pool_busy"), "values of another type have no sample");
	ok(has_line(text, "moe_expertd_layer_steps_total{model=\"2\"} 1"), "a label that is missing is left out");
	free(text);
	text = text_of(NULL, NULL, NULL);
	ok(!*text, "without documents there is nothing");
	free(text);
}

/* Bounded: with ten times the experts there is not one series more. */
static size_t series_of(int experts)
{
	json_t *stats = json_pack("{s:[{s:s, s:i, s:[{s:i, s:i}]}]}", "models", "name", "m", "experts", experts,
				  "layers", "layer", 0, "steps", 1);
	char *json = json_dumps(stats, 0), *text = text_of(NULL, json, NULL);
	size_t lines = 0;

	for (const char *at = text; (at = strchr(at, '\n')); at++)
		lines++;
	free(text);
	free(json);
	json_decref(stats);
	return lines;
}

static void test_table(void)
{
	bool once = true, told = true;

	for (size_t i = 0; i < metrics_n_families; i++) {
		for (size_t j = 0; j < i; j++)
			once &= strcmp(metrics_families[i].name, metrics_families[j].name) != 0;
		told &= *metrics_families[i].help && metrics_families[i].scope < METRICS_SCOPES;
	}
	ok(once && metrics_n_families > 80, "%zu metrics, no name twice", metrics_n_families);
	ok(told, "each is described");
	ok(series_of(8) == 3 && series_of(8) == series_of(800), "the number of experts adds no series");
}

int main(void)
{
	test_values();
	test_labels();
	test_strange();
	test_table();
	return tap_done();
}
