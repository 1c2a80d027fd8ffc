/* SPDX-License-Identifier: MIT */
/* Recorded routing in each of its forms: the same trace out of all of them, and what is wrong with a wrong one. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "simulate/moetrc.h"
#include "simulate/trace-file.h"
#include "simulate/trace-routes.h"
#include "tests/tap.h"
#include "uapi/moe_trace.h"

#define LAYERS 3
#define EXPERTS 9
#define TOPK 3
#define STEPS_MAX 20
#define TOKENS_MAX 4
#define TEXT_MAX (256 << 10)

static unsigned long long seed;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

/* -- a trace, in all forms ---------------------------------------------------------------------------------------- */

struct plain {
	uint32_t steps, tokens[STEPS_MAX][LAYERS];
	uint32_t n[STEPS_MAX][LAYERS][TOKENS_MAX]; /* ids of the token */
	int ids[STEPS_MAX][LAYERS][TOKENS_MAX][TOPK];
};

static void draw(struct plain *p, bool whole)
{
	p->steps = 1 + below(STEPS_MAX);
	for (uint32_t s = 0; s < p->steps; s++)
		for (uint32_t l = 0; l < LAYERS; l++) {
			/* Of each step one layer at least has a token: without any, JSONL does not know of it. */
			p->tokens[s][l] = whole ? 1 : l == 0 ? 1 + below(TOKENS_MAX) : below(TOKENS_MAX + 1);
			for (uint32_t t = 0; t < p->tokens[s][l]; t++) {
				const int start = (int)below(EXPERTS), stride = 1 + (int)below(2);

				p->n[s][l][t] = whole ? TOPK : 1 + below(TOPK);
				for (int k = 0; k < TOPK; k++)
					p->ids[s][l][t][k] = (start + k * stride) % EXPERTS;
			}
		}
}

static bool same(const struct sim_trace *t, const struct plain *p, bool weights)
{
	bool good = t->layers == LAYERS && t->experts == EXPERTS && t->topk == TOPK && t->steps == p->steps &&
		    weights == (t->weights != NULL);
	size_t at = 0;

	for (uint32_t s = 0; good && s < p->steps; s++)
		for (uint32_t l = 0; l < LAYERS; l++) {
			good &= t->first[s * LAYERS + l] == at && t->tokens[s * LAYERS + l] == p->tokens[s][l];
			for (uint32_t i = 0; good && i < p->tokens[s][l]; i++)
				for (uint32_t k = 0; k < TOPK; k++, at++) {
					const bool there = k < p->n[s][l][i];

					good &= t->ids[at] == (there ? p->ids[s][l][i][k] : -1);
					good &= !weights || t->weights[at] == (there ? 0.25f * (float)(k + 1) : 0);
				}
		}
	return good;
}

static char *write_ids(char *to, const struct plain *p, uint32_t s, uint32_t l, uint32_t t)
{
	*to++ = '[';
	for (uint32_t k = 0; k < p->n[s][l][t]; k++)
		to += sprintf(to, "%s%d", k ? "," : "", p->ids[s][l][t][k]);
	*to++ = ']';
	*to = '\0';
	return to;
}

static char *write_trace(char *to, const struct plain *p)
{
	to += sprintf(to, "{\"layers\":%d,\"experts\":%d,\"topk\":%d,\"steps\":[", LAYERS, EXPERTS, TOPK);
	for (uint32_t s = 0; s < p->steps; s++) {
		to += sprintf(to, "%s[", s ? ",\n" : "");
		for (uint32_t l = 0; l < LAYERS; l++) {
			to += sprintf(to, "%s[", l ? "," : "");
			for (uint32_t t = 0; t < p->tokens[s][l]; t++) {
				to += sprintf(to, "%s", t ? "," : "");
				to = write_ids(to, p, s, l, t);
			}
			to += sprintf(to, "]");
		}
		to += sprintf(to, "]");
	}
	return to + sprintf(to, "]}\n");
}

/* Layers backwards: the order of lines does not matter. */
static void write_lines(char *to, const struct plain *p, bool weights)
{
	to += sprintf(to, "{\"layers\":%d,\"experts\":%d,\"topk\":%d}\n", LAYERS, EXPERTS, TOPK);
	for (uint32_t l = LAYERS; l-- > 0;)
		for (uint32_t s = 0; s < p->steps; s++)
			for (uint32_t t = 0; t < p->tokens[s][l]; t++) {
				to += sprintf(to, "{\"step\":%u,\"layer\":%u,\"token\":%u,\"experts\":", 3 * s, l, t);
				to = write_ids(to, p, s, l, t);
				for (uint32_t k = 0; weights && k < p->n[s][l][t]; k++)
					to += sprintf(to, "%s%g", k ? "," : ",\"weights\":[", 0.25 * (k + 1));
				to += sprintf(to, weights ? "]}\n" : "}\n");
			}
}

static void write_tokens(char *to, const struct plain *p)
{
	to += sprintf(to, "{\"experts\":%d}\n", EXPERTS);
	for (uint32_t s = 0; s < p->steps; s++) {
		to += sprintf(to, "{\"tok\":%u,\"layers\":[", s + 1);
		for (uint32_t l = 0; l < LAYERS; l++) {
			to += sprintf(to, "%s", l ? "," : "");
			to = write_ids(to, p, s, l, 0);
		}
		to += sprintf(to, "]}\n");
	}
}

static int parse(struct trace_file *ret, const char *text, struct moe_error *err)
{
	return trace_file_parse(ret, &(struct trace_source){"t", (const uint8_t *)text, strlen(text), false}, err);
}

static bool reads(const char *text, const struct plain *p, const char *format, bool weights)
{
	struct trace_file file = {0};
	struct moe_error err = {0};
	bool good = parse(&file, text, &err) == 0;

	if (!good)
		diag("%s: %s", format, err.text);
	good = good && file.n == 1 && strcmp(file.format, format) == 0 && same(&file.cases[0].trace, p, weights);
	trace_file_free(&file);
	return good;
}

static void test_forms(void)
{
	static char text[TEXT_MAX];
	bool good[5] = {true, true, true, true, true};
	static struct plain p;

	for (uint32_t round = 0; round < 100; round++) {
		char *at;

		draw(&p, false);
		write_trace(text, &p);
		good[0] &= reads(text, &p, "trace", false);
		write_lines(text, &p, false);
		good[1] &= reads(text, &p, "JSONL", false);
		write_lines(text, &p, true);
		good[2] &= reads(text, &p, "JSONL", true);
		at = text + sprintf(text, "{\"cases\": [{\"id\": \"a\", \"trace\": ");
		at = write_trace(at, &p);
		sprintf(at, "}]}");
		good[3] &= reads(text, &p, "vectors", false);
		draw(&p, true);
		write_tokens(text, &p);
		good[4] &= reads(text, &p, "JSONL", false);
	}
	ok(good[0], "random traces as one JSON document");
	ok(good[1], "as lines, layers backwards, steps with gaps");
	ok(good[2], "as lines with weights");
	ok(good[3], "as a file of vectors");
	ok(good[4], "a token a line");
}

/* -- shapes that a file does not say ------------------------------------------------------------------------------ */

static void test_least_shape(void)
{
	struct trace_file file = {0};
	struct moe_error err = {0};

	require(parse(&file,
		      "{\"step\":7,\"layer\":1,\"token\":0,\"experts\":[4,2]}\n\n"
		      "{\"step\":9,\"layer\":0,\"token\":5,\"experts\":[1]}",
		      &err) == 0,
		"no first line%s", err.text);
	ok(file.cases[0].trace.layers == 2 && file.cases[0].trace.experts == 5 && file.cases[0].trace.topk == 2 &&
		   file.cases[0].trace.steps == 2 && file.cases[0].trace.ids[3] == -1,
	   "the least shape, and the steps that have tokens");
	ok(strcmp(file.cases[0].id, "t") == 0 && !file.several, "named as the file is");
	trace_file_free(&file);
	require(parse(&file, "{\"tok\":1,\"layers\":[[0],[1,2]]}", &err) == 0, "one line alone%s", err.text);
	ok(file.cases[0].trace.layers == 2 && file.cases[0].trace.experts == 3, "has a shape as well");
	trace_file_free(&file);
}

/* Its shape is all that there is to know of it. */
static void test_no_steps(void)
{
	static const char *const texts[] = {
		"{\"layers\":2,\"experts\":4,\"topk\":1,\"steps\":[]}",
		"{\"layers\":2,\"experts\":4,\"topk\":1}\n",
		"{\"layers\":2,\"experts\":4,\"topk\":1}\n\n",
	};

	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		struct trace_file file = {0};
		struct moe_error err = {0};

		require(parse(&file, texts[i], &err) == 0, "a trace of no steps%s", err.text);
		ok(file.n == 1 && file.cases[0].trace.layers == 2 && file.cases[0].trace.experts == 4 &&
			   file.cases[0].trace.topk == 1 && file.cases[0].trace.steps == 0,
		   "has its shape");
		trace_file_free(&file);
	}
}

static void test_runs(void)
{
	struct trace_file file = {0};
	struct moe_error err = {0};

	require(parse(&file,
		      "{\"id\":\"one\",\"trace\":{\"layers\":1,\"experts\":4,\"topk\":1,\"steps\":[[[[3]]]]},"
		      "\"results\":["
		      "{\"policy\":\"lfu-decay\",\"mode\":\"pinned\",\"capacity\":2,\"params\":{\"period\": 16}},"
		      "{\"policy\":\"lru\",\"mode\":\"atomic\",\"capacity\":0},"
		      "{\"policy\":\"belady\",\"mode\":\"pinned\",\"capacity\":4,\"params\":{}}]}",
		      &err) == 0,
		"one case alone%s", err.text);
	ok(file.cases[0].n_runs == 3 && file.cases[0].runs[0].mode == SIM_PINNED &&
		   strcmp(file.cases[0].runs[0].params, "{\"period\":16}") == 0 &&
		   file.cases[0].runs[1].mode == SIM_ATOMIC && strcmp(file.cases[0].runs[1].params, "{}") == 0 &&
		   file.cases[0].runs[2].mode == SIM_BELADY && file.cases[0].runs[2].capacity == 4 &&
		   strcmp(file.cases[0].runs[2].mode_name, "pinned") == 0,
	   "its runs are those of its results");
	trace_file_free(&file);
}

/* -- what is wrong ------------------------------------------------------------------------------------------------ */

#define SHAPE "{\"layers\":1,\"experts\":4,\"topk\":2}\n"
#define RUN(what)                                                                                                      \
	"{\"id\":\"a\",\"trace\":{\"layers\":1,\"experts\":4,\"topk\":2,\"steps\":[]},\"results\":[{" what "}]}"

static const struct {
	const char *text, *says;
} wrong[] = {
	{"", "begins with"},
	{"MOETRC", "begins with"},
	{"[1]", "begins with"},
	{"{", "line 1"},
	{"{\n\"a\": 1,\n\"a\": 2}", "line 3"},
	{"{}", "no tokens"},
	{"{}\n{}", "line 2: neither step nor tok"},
	{"{\"step\":0,\"layer\":5,\"token\":0,\"experts\":[1]}\n{\"tok\":1,\"layers\":[[1],[2]]}",
	 "line 2: layers: 2 found, 6 expected"},
	{"{\"steps\":[]}", "layers: nothing found, 1 to 4096"},
	{"{\"layers\":0,\"experts\":4,\"topk\":2,\"steps\":[]}", "layers: 0 found"},
	{"{\"layers\":1,\"experts\":4097,\"topk\":2,\"steps\":[]}", "experts: 4097 found, 1 to 4096"},
	{"{\"layers\":1,\"experts\":4,\"topk\":5,\"steps\":[]}", "topk: 5 found, 1 to 4"},
	{"{\"layers\":1,\"experts\":4,\"topk\":2,\"steps\":7}", "steps: 7 found"},
	{"{\"layers\":1,\"experts\":4,\"topk\":2,\"steps\":[[[]],[]]}", "steps[1]: 0 layers found, 1 expected"},
	{"{\"layers\":1,\"experts\":4,\"topk\":2,\"steps\":[[7]]}", "steps[0][0]: 7 found"},
	{"{\"layers\":1,\"experts\":4,\"topk\":2,\"steps\":[[[[0],[1,2,3]]]]}",
	 "steps[0][0][1]: 3 ids found, 2 (topk) at most"},
	{"{\"layers\":1,\"experts\":4,\"topk\":2,\"steps\":[[[[0],[1,4]]]]}", "steps[0][0][1]: id 1: 4 found, 0 to 3"},
	{"{\"layers\":1,\"experts\":4,\"topk\":2,\"steps\":[[[[-1]]]]}", "id 0: -1 found"},
	{"{\"layers\":1,\"experts\":4,\"topk\":2,\"steps\":[[[[2,2]]]]}", "expert 2 twice"},
	{"{\"layers\":1,\"experts\":4,\"topk\":2,\"steps\":[[[[1.5]]]]}", "a fraction found"},
	{"{\"cases\":[]}", "cases: none found"},
	{"{\"cases\":[{}]}", "case cases[0]: layers: nothing found"},
	{"{\"cases\":[{\"id\":[]}]}", "id: an array found"},
	{"{\"layers\":1,\"experts\":2.5,\"topk\":1,\"steps\":[]}", "experts: a fraction found"},
	{"{\"cases\":[{\"id\":\"a\\nb\",\"trace\":7}]}", "case a?b: layers: nothing found"},
	{RUN(""), "results[0].policy: nothing found"},
	{RUN("\"policy\":\"mru\",\"mode\":\"pinned\""), "'mru' found, one of lru, lfu"},
	{RUN("\"policy\":\"lru\",\"mode\":\"loose\""), "results[0].mode: 'loose' found, pinned, atomic"},
	{RUN("\"policy\":\"lru\",\"mode\":\"pinned\",\"capacity\":4097"), "capacity: 4097 found, 0 to 4096"},
	{RUN("\"policy\":\"lfu-decay\",\"mode\":\"pinned\",\"capacity\":2,\"params\":{\"period\":0}"),
	 "results[0].params.period: 0 found, a whole number from 1 to 2147483647"},
	{RUN("\"policy\":\"lfu-decay\",\"mode\":\"pinned\",\"capacity\":2,\"params\":{\"period\":1.5}"),
	 "params.period: 1.5 found, a whole number"},
	{RUN("\"policy\":\"ema\",\"mode\":\"pinned\",\"capacity\":2,\"params\":{\"kept\":1.01}"),
	 "params.kept: 1.01 found, a number from 0 to 1"},
	{RUN("\"policy\":\"ebco-soft\",\"mode\":\"pinned\",\"capacity\":2,\"params\":{\"alpha\":-1}"),
	 "params.alpha: -1 found, a number from 0 to 1"},
	{RUN("\"policy\":\"s3-fifo\",\"mode\":\"pinned\",\"capacity\":2,\"params\":{\"small\":\"x\"}"),
	 "params.small: a string found, a number from 0 to 1"},
	{RUN("\"policy\":\"original\",\"mode\":\"pinned\",\"capacity\":2,\"params\":{\"cache_topk\":0}"),
	 "params.cache_topk: 0 found, a whole number from 1 to 4096"},
	{RUN("\"policy\":\"mrs\",\"mode\":\"pinned\",\"capacity\":2,\"params\":{\"alpha\":0.5,\"kept\":0.5}"),
	 "params: kept and alpha found"},
	{RUN("\"policy\":\"lru\",\"mode\":\"pinned\",\"capacity\":2,\"params\":{\"period\":16}"),
	 "params.period: lru has no such number"},
	{RUN("\"policy\":\"lru\",\"mode\":\"pinned\",\"capacity\":2,\"params\":[]"),
	 "params: an array found, an object"},
	{RUN("\"policy\":\"lru\",\"mode\":\"belady\",\"capacity\":2"), "policy: 'lru' found, belady expected"},
	{RUN("\"policy\":\"belady\",\"mode\":\"loose\",\"capacity\":2"), "mode: 'loose' found"},
	{"{\"layers\":1,\"experts\":9223372036854775808,\"topk\":1,\"steps\":[]}",
	 "experts: 9.22337e+18 found, 1 to 4096"},
	{SHAPE "{\"step\":18446744073709551616,\"layer\":0,\"token\":0,\"experts\":[0]}",
	 "line 2: step: 1.84467e+19 found"},
	{SHAPE "{\"step\":0,\"layer\":0,\"token\":0,\"experts\":[4]}", "line 2: experts: id 0: 4 found"},
	{SHAPE "{\"step\":0,\"layer\":1,\"token\":0,\"experts\":[0]}", "line 2: layer: 1 found, 0 to 0"},
	{SHAPE "{\"step\":-1,\"layer\":0,\"token\":0,\"experts\":[0]}", "line 2: step: -1 found"},
	{SHAPE "{\"step\":0,\"layer\":0,\"experts\":[0]}", "line 2: token: nothing found"},
	{SHAPE "{\"step\":0,\"layer\":0,\"token\":0,\"experts\":[0]}\n{", "line 3"},
	{SHAPE "{\"step\":0,\"layer\":0,\"token\":0,\"experts\":[0],\"weights\":[1,2]}", "weights: 2 found"},
	{SHAPE "{\"step\":0,\"layer\":0,\"token\":0,\"experts\":[0]}\n"
	       "{\"step\":0,\"layer\":0,\"token\":1,\"experts\":[0],\"weights\":[1]}",
	 "line 3: weights: found"},
	{SHAPE "{\"step\":5,\"layer\":0,\"token\":0,\"experts\":[0]}\n"
	       "{\"step\":4,\"layer\":0,\"token\":0,\"experts\":[0]}\n"
	       "{\"step\":5,\"layer\":0,\"token\":0,\"experts\":[1]}",
	 "line 4: step 5, layer 0, token 0 found again, as in line 2"},
	{SHAPE "{\"step\":0,\"layer\":0,\"token\":0,\"experts\":[0]}\n{\"other\":1}", "line 3: neither"},
	{SHAPE "{\"tok\":0,\"layers\":[[0],[1]]}", "line 2: layers: 2 found, 1 expected"},
	{SHAPE "{\"tok\":0,\"layers\":[7]}", "line 2: layers[0]: 7 found"},
};

static void test_wrong(void)
{
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct trace_file file = {0};
		struct moe_error err = {0};
		const int r = parse(&file, wrong[i].text, &err);

		ok(r == -EINVAL && !file.cases && strstr(err.text, wrong[i].says), "%s", err.text);
		trace_file_free(&file);
	}
}

/* -- files -------------------------------------------------------------------------------------------------------- */

static void test_files(void)
{
	static const char moetrc[] = "MOETRC1\0\1\0\0\0\2\0\0\0\1\0\0\0\1\0\0\0\1\0\0\0\1\0\0";
	const char *folder = getenv("MOE_TRACES");
	char path[TAP_TMP], real[4096];
	const int fd = mkstemp(tap_tmp(path, "test-trace-file-XXXXXX"));
	struct trace_file file = {0};
	struct moe_error err = {0};

	require(fd >= 0 && write(fd, moetrc, sizeof moetrc - 1) == sizeof moetrc - 1, "a file is written");
	ok(trace_file_read(&file, path, true, &err) == 0 && strcmp(file.format, "moetrc") == 0 &&
		   file.cases[0].trace.ids[0] == 1 && strncmp(file.cases[0].id, "test-trace-file-", 16) == 0,
	   "moetrc is known by its first bytes%s", err.text);
	trace_file_free(&file);
	require(ftruncate(fd, 30) == 0, "cut short");
	ok(trace_file_read(&file, path, false, &err) == -EINVAL && strstr(err.text, path) && strstr(err.text, "byte"),
	   "%s", err.text);
	close(fd);
	unlink(path);
	ok(trace_file_read(&file, path, false, &err) == -ENOENT && strstr(err.text, path), "%s", err.text);
	ok(trace_file_read(&file, "/", false, &err) == -EISDIR, "%s", err.text);
	snprintf(real, sizeof real, "%s/trace_olmoe_299.jsonl", folder ? folder : "../shared/traces");
	if (access(real, R_OK) < 0) {
		tap_skip("no trace_olmoe_299.jsonl in $MOE_TRACES or ../shared/traces");
		return;
	}
	ok(trace_file_read(&file, real, false, &err) == 0 && file.cases[0].trace.layers == 16 &&
		   file.cases[0].trace.experts == 64 && file.cases[0].trace.topk == 8 &&
		   file.cases[0].trace.steps == 299 && file.cases[0].trace.ids[0] == 6,
	   "OLMoE's recording is read%s", err.text);
	trace_file_free(&file);
}

/* Bytes changed at random: read or refused, never anything else. */
static void test_damaged(void)
{
	static char text[TEXT_MAX], bad[TEXT_MAX];
	static struct plain p;
	uint32_t refused = 0;

	for (uint32_t round = 0; round < 3000; round++) {
		struct trace_file file = {0};
		struct moe_error err = {0};
		size_t n;

		draw(&p, true);
		p.steps = 1 + below(2);
		if (round % 3 == 0)
			write_trace(text, &p);
		else if (round % 3 == 1)
			write_lines(text, &p, true);
		else
			write_tokens(text, &p);
		n = strlen(text);
		memcpy(bad, text, n + 1);
		for (uint32_t i = 0; i < 1 + below(3); i++)
			bad[below((uint32_t)n)] = "[]{},:\"0123456789-. \n\xff"[below(23)];
		if (parse(&file, bad, &err) < 0) {
			refused++;
			if (!err.text[0] || strchr(err.text, '\n'))
				ok(false, "a refusal without a word");
		}
		trace_file_free(&file);
	}
	ok(refused > 100, "of 3000 damaged ones %u are refused", refused);
}

/* -- a recording of several sessions ------------------------------------------------------------------------------ */

#define SESSIONS_MANY 30000u

struct recording {
	uint8_t *data;
	size_t n;
};

static void put(struct recording *r, const void *record, size_t bytes)
{
	memcpy(r->data + r->n, record, bytes);
	r->n += bytes;
}

static void put_head(struct recording *r)
{
	const struct moe_trace_head head = {
		.magic = MOE_TRACE_MAGIC, .version = MOE_TRACE_VERSION, .bytes = sizeof head};

	r->n = 0;
	put(r, &head, sizeof head);
}

static void put_source(struct recording *r, uint32_t number, uint32_t layers, uint32_t experts)
{
	const struct moe_trace_source source = {.bytes = sizeof source,
						.kind = MOE_TRACE_SOURCE,
						.source = (uint16_t)number,
						.session = number + 1u,
						.n_layers = layers,
						.n_experts = experts,
						.topk = 1,
						.model = "m"};

	put(r, &source, sizeof source);
}

/* One token that asks for one expert. */
static void put_route(struct recording *r, uint32_t source, uint64_t step, uint32_t layer, uint16_t expert)
{
	uint8_t record[64] = {0};
	const struct moe_route route = {.bytes = (uint32_t)moe_route_bytes(1, 1),
					.kind = MOE_TRACE_ROUTE,
					.topk = 1,
					.layer = (uint16_t)layer,
					.step = step,
					.tokens = 1,
					.source = (uint16_t)source};

	memcpy(record, &route, sizeof route);
	memcpy(record + sizeof route, &expert, sizeof expert);
	put(r, record, route.bytes);
}

static int parse_recording(struct trace_file *ret, const struct recording *r, struct moe_error *err)
{
	return trace_file_parse(ret, &(struct trace_source){"t", r->data, r->n, false}, err);
}

/* What moectl trace show does: no record behind the one that is wrong is seen. */
static bool refuse_alone(const struct recording *recording)
{
	struct routes_record record;
	uint32_t routes = 0;
	struct routes f;
	int r;

	if (routes_open(&f, &(struct trace_source){"t", recording->data, recording->n, false}, NULL) < 0)
		return false;
	while ((r = routes_next(&f, &record, NULL)) > 0)
		routes += record.kind == MOE_TRACE_ROUTE;
	routes_close(&f);
	return r == -EINVAL && routes == 0;
}

/* Two sessions whose steps come by turns, one that has routed nothing between them. */
static void test_sessions(void)
{
	static const int32_t want[] = {0, 1, 2, 3, 3, 2, 1, 0}; /* [step][layer] */
	struct recording r = {.data = malloc(SESSIONS_MANY * 256)};
	struct trace_file file = {0};
	struct moe_error err = {0};
	const struct sim_trace *t;

	require(r.data != NULL, "there is memory");
	put_head(&r);
	for (uint32_t i = 0; i < 3; i++)
		put_source(&r, i, 2, 4);
	for (uint64_t step = 1; step <= 2; step++)
		for (uint32_t layer = 0; layer < 2; layer++)
			for (uint32_t i = 0; i < 2; i++)
				put_route(&r, 2 * i, step, layer,
					  (uint16_t)(i ? 3 - (2 * (step - 1) + layer) : 2 * (step - 1) + layer));
	require(parse_recording(&file, &r, &err) == 0, "a recording of three sessions is read%s", err.text);
	t = &file.cases[0].trace;
	ok(t->sequences == 3 && t->begins[0] == 0 && t->begins[1] == 2 && t->begins[2] == 2 && t->steps == 4,
	   "each is a sequence, one of them of no steps");
	ok(memcmp(t->ids, want, sizeof want) == 0, "one after the other, each in its order");
	trace_file_free(&file);
	for (int wide = 0; wide < 2; wide++) {
		put_head(&r);
		put_source(&r, 0, 2, 4);
		put_source(&r, 1, wide ? 2 : 3, wide ? 5 : 4);
		put_route(&r, 1, 1, 1 + !wide, wide ? 4 : 0);
		ok(parse_recording(&file, &r, &err) == -EINVAL && strstr(err.text, "session 2: "), "refused: %s",
		   err.text);
		ok(refuse_alone(&r), "by who only goes through it as well");
	}
	err = (struct moe_error){0};
	put_head(&r);
	for (uint32_t i = 0; i < SESSIONS_MANY; i++) {
		put_source(&r, i, 1, 4);
		put_route(&r, i, 1, 0, 3);
	}
	ok(parse_recording(&file, &r, &err) == 0 && file.cases[0].trace.sequences == SESSIONS_MANY &&
		   file.cases[0].trace.steps == SESSIONS_MANY,
	   "%u sessions are read in one go%s", SESSIONS_MANY, err.text);
	trace_file_free(&file);
	free(r.data);
}

int main(void)
{
	seed = tap_seed();
	test_forms();
	test_least_shape();
	test_runs();
	test_no_steps();
	test_wrong();
	test_files();
	test_damaged();
	test_sessions();
	return tap_done();
}
