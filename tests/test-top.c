/* SPDX-License-Identifier: MIT */
/* top - rates from made-up documents, and frames of every size: nothing beyond the terminal, nothing that steers it. */
#include <stdlib.h>
#include <string.h>

#include "tests/tap.h"
#include "tools/moectl/top-frame.h"

static struct frame frame;

static struct top_documents documents(const char *status, const char *stats)
{
	const struct top_documents d = {json_loads(status, 0, NULL), json_loads(stats, 0, NULL)};

	require(d.status && d.stats, "made-up documents are JSON");
	return d;
}

/* A session of so many pairs, and its model. */
static struct top_documents at(int pid, double seconds, int hit, int cpu, int resident, double bytes, double wait_ns)
{
	char status[700], stats[900];

	snprintf(status, sizeof status,
		 "{\"pid\": %d, \"version\": \"1\", \"state\": \"ready\", \"uptime_ns\": %.0f, \"bytes\": 5, \"cpu\": "
		 "{\"threads\": 4, \"busy_ns\": %.0f, \"pairs\": %d, \"by_node\": [{\"node\": 2, \"threads\": 4, "
		 "\"busy_ns\": %.0f, \"read_bytes\": %.0f, \"copy_bytes\": 0}]}, \"loading\": null}",
		 pid, seconds * 1e9, wait_ns, cpu, wait_ns, bytes);
	snprintf(stats, sizeof stats,
		 "{\"uptime_ns\": %.0f, \"models\": [{\"name\": \"m\", \"digest\": \"d\", \"totals\": {\"pairs\": "
		 "{\"hit\": "
		 "%d, \"cpu\": %d}, \"resident_pairs\": %d, \"bytes\": %.0f, \"wait_ns\": %.0f, \"tier\": null}}], "
		 "\"sessions\": [{\"id\": 7, \"pid\": 40, \"uid\": 0, \"model\": \"m\", \"phase\": \"decode\", "
		 "\"pairs\": {\"hit\": %d, \"cpu\": %d}, \"resident_pairs\": %d, \"bytes\": %.0f, \"wait_ns\": %.0f}]}",
		 seconds * 1e9, hit, cpu, resident, bytes, wait_ns, hit, cpu, resident, bytes, wait_ns);
	return documents(status, stats);
}

static bool close_to(double a, double b)
{
	return a - b < 1e-9 && b - a < 1e-9;
}

static void test_rates(void)
{
	struct top_documents none = {0}, a = at(1, 10, 100, 50, 60, 1e9, 1e9), b = at(1, 12, 300, 150, 285, 5e9, 2e9);
	struct top_documents other = at(2, 12, 300, 150, 285, 5e9, 2e9), less = at(1, 13, 0, 0, 0, 0, 0);
	const struct top_session *s;
	struct top_view v;

	top_view_make(&v, &a, &b);
	s = v.sessions;
	ok(v.n_sessions == 1 && v.n_models == 1 && v.n_nodes == 1 && v.models->sessions == 1, "one of each");
	ok(close_to(s->rates.pairs[TOP_HIT], 100) && close_to(s->rates.pairs[TOP_CPU], 50) &&
		   close_to(s->rates.all_pairs, 150),
	   "pairs a second, by the daemon's clock");
	ok(close_to(s->rates.hit_rate, 0.75), "the hit rate of these seconds");
	ok(close_to(s->rates.fill_bytes, 2e9) && close_to(s->rates.wait, 0.5), "fills and waits");
	ok(close_to(v.models->rates.all_pairs, 150) && v.models->found < 0, "the model's are its totals'");
	ok(close_to(v.nodes->node, 2) && close_to(v.nodes->read_bytes, 2e9) && close_to(v.nodes->load, 0.125),
	   "a node's");
	ok(close_to(v.load, 0.125) && close_to(v.pool_pairs, 50), "the pool's");
	top_view_free(&v);

	top_view_make(&v, &none, &b);
	ok(v.sessions->rates.all_pairs < 0 && v.sessions->rates.hit_rate < 0 && v.load < 0,
	   "the first time there is no rate");
	top_view_free(&v);
	top_view_make(&v, &other, &less);
	ok(v.sessions->rates.all_pairs < 0 && v.nodes->read_bytes < 0, "nor of another daemon");
	top_view_free(&v);
	top_view_make(&v, &b, &less);
	ok(close_to(v.sessions->rates.all_pairs, 0) && v.sessions->rates.hit_rate < 0, "what became less is nothing");
	top_view_free(&v);
	top_documents_free(&a);
	top_documents_free(&b);
	top_documents_free(&other);
	top_documents_free(&less);
}

/* So many sessions, models and nodes, with names that would steer a terminal. */
static struct top_documents crowd(int n, double seconds)
{
	json_t *sessions = json_array(), *models = json_array(), *nodes = json_array();
	struct top_documents d;

	for (int i = 0; i < n; i++) {
		json_array_append_new(sessions,
				      json_pack("{s:i, s:i, s:i, s:s, s:s, s:{s:I, s:I}, s:I, s:I, s:I}", "id", i,
						"pid", 4000000 + i, "uid", 4000000000u + (unsigned)i, "model",
						"a very \033[2J long name of a model, longer than any column is",
						"phase", "prefill", "pairs", "hit", (json_int_t)(seconds * 1e12 * i),
						"cpu", (json_int_t)(seconds * 1e9), "resident_pairs",
						(json_int_t)(seconds * 5e11), "bytes", (json_int_t)(seconds * 3e11),
						"wait_ns", (json_int_t)(seconds * 1e9 * (n - i))));
		json_array_append_new(models, json_pack("{s:s, s:i, s:{s:{s:i}, s:{s:i, s:i}}}", "name", "\303\251\n\t",
							"digest", i, "totals", "pairs", "hit", 1, "tier", "hits", 3,
							"misses", 1));
		json_array_append_new(nodes, json_pack("{s:i, s:i, s:I}", "node", i, "threads", 64, "read_bytes",
						       (json_int_t)(seconds * 4e11)));
	}
	d.status = json_pack("{s:i, s:s, s:s, s:I, s:{s:i, s:o}, s:{s:s, s:i, s:i, s:I}}", "pid", 1, "version", "0.1.0",
			     "state", "loading", "uptime_ns", (json_int_t)(seconds * 1e9), "cpu", "threads", 64 * n,
			     "by_node", nodes, "loading", "path",
			     "/a/very/long/path/to/a/folder/that/does/not/fit/into/any/terminal/at/all", "done_bytes",
			     1, "total_bytes", 3, "eta_ns", (json_int_t)90e9);
	d.stats = json_pack("{s:I, s:o, s:o}", "uptime_ns", (json_int_t)(seconds * 1e9), "models", models, "sessions",
			    sessions);
	return d;
}

static bool frame_fits(unsigned columns, unsigned rows)
{
	if (rows && frame.n > rows)
		return false;
	for (unsigned i = 0; i < frame.n; i++) {
		const char *text = frame.lines[i].text;

		if (strlen(text) > columns)
			return false;
		for (; *text; text++)
			if (*text < ' ' || *text > '~')
				return false;
	}
	return true;
}

static const char *line_with(const char *text)
{
	for (unsigned i = 0; i < frame.n; i++)
		if (strstr(frame.lines[i].text, text))
			return frame.lines[i].text;
	return NULL;
}

static void test_sizes(void)
{
	bool fits = true, full = true;

	for (int n = 0; n < 40; n += 13) {
		struct top_documents a = crowd(n, 1), b = crowd(n, 2);
		struct top_view v;

		top_view_make(&v, &a, &b);
		for (unsigned columns = 1; columns < 300; columns++)
			for (unsigned rows = 0; rows < 60; rows++) {
				frame_draw(&frame, columns, rows, &v, rows % 2 ? "a notice" : "",
					   rows % 3 ? "q quit" : NULL);
				fits &= frame_fits(columns, rows);
				full &= !rows || !(rows % 3) || frame.n == rows;
			}
		top_view_free(&v);
		top_documents_free(&a);
		top_documents_free(&b);
	}
	ok(fits, "whatever the terminal, no line is beyond it, and nothing in it but plain ASCII");
	ok(full, "with keys the frame is as high as the terminal: they stand at its end");
}

static void test_frame(void)
{
	struct top_documents a = crowd(30, 1), b = crowd(30, 2);
	struct top_view v;
	char heading[200];

	top_view_make(&v, &a, &b);
	top_view_sort(&v, TOP_BY_PAIRS);
	frame_draw(&frame, 80, 24, &v, "", "q quit");
	snprintf(heading, sizeof heading, "%s", line_with("PID") ? line_with("PID") : "");
	ok(strstr(heading, "USER") && strstr(heading, "MODEL") && strstr(heading, "PHASE") &&
		   strstr(heading, "HIT/s") && strstr(heading, "BUF/s") && strstr(heading, "POOL/s") &&
		   strstr(heading, "CPU/s") && strstr(heading, "GB/s") && strstr(heading, "WAIT"),
	   "at 80 columns a session has all that it has: %s", heading);
	ok(line_with("and 26 more nodes") && line_with("and 26 more models") && line_with("more sessions"),
	   "what has no room is counted");
	ok(strcmp(frame.lines[23].text, "q quit") == 0 && frame.lines[23].look == FRAME_FAINT, "the keys stand last");
	ok(line_with("loading 33.3%, 90.0 s to go") || line_with("loading 33.3%"), "a load is shown");
	ok(line_with("400 GB/s computing"), "bandwidth of a node");
	frame_draw(&frame, 40, 24, &v, "", "q quit");
	snprintf(heading, sizeof heading, "%s", line_with("PID") ? line_with("PID") : "");
	ok(strstr(heading, "HIT") && strstr(heading, "CPU/s") && !strstr(heading, "POOL/s") && !strstr(heading, "USER"),
	   "at 40 columns what matters least is gone, whole: %s", heading);
	frame_draw(&frame, 80, 0, &v, "", NULL);
	ok(!line_with("more") && line_with("4000029"), "a frame without an end has all");

	ok(v.sessions[0].id == 29 && v.sessions[29].id == 0, "sorted by pairs");
	top_view_sort(&v, TOP_BY_WAIT);
	ok(v.sessions[0].id == 0 && v.sessions[29].id == 29, "by waiting");
	top_view_sort(&v, TOP_BY_PID);
	ok(v.sessions[0].id == 0 && v.sessions[29].id == 29, "by process");
	top_view_sort(&v, TOP_BY_HIT_RATE);
	ok(v.sessions[0].rates.hit_rate >= v.sessions[29].rates.hit_rate, "by hit rate");
	top_view_free(&v);
	top_documents_free(&a);
	top_documents_free(&b);
}

int main(void)
{
	test_rates();
	test_sizes();
	test_frame();
	return tap_done();
}
