/* SPDX-License-Identifier: MIT */
#include "tools/worker/run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/stdout.h"
#include "base/util.h"
#include "tools/worker/sample.h"
#include "tools/worker/stats.h"

/* The whole text so far; with --json nothing else is written until the end. */
struct output {
	bool stream, keep;
	char *text;
	size_t bytes, room;
};

static int write_token(struct output *out, int32_t id, struct moe_error *err)
{
	char text[16];
	const size_t n = token_text(text, id);
	int r = 0;

	if (out->stream) {
		fwrite(text, 1, n, stdout);
		r = stdout_flush();
	}
	if (r < 0)
		return moe_error_sys(err, r, "cannot write to standard output");
	if (!out->keep)
		return 0;
	if (out->room - out->bytes < n) {
		const size_t room = out->room * 2 + 4096;
		char *grown = realloc(out->text, room);

		if (!grown)
			return moe_error_set(err, -ENOMEM, "no memory for %zu bytes of text", room);
		out->text = grown;
		out->room = room;
	}
	memcpy(out->text + out->bytes, text, n);
	out->bytes += n;
	return 0;
}

/* A JSON string of any bytes: as UTF-8 where it is that, else byte by byte, other bytes than ASCII as U+FFFD. */
static json_t *text_json(const char *text, size_t bytes)
{
	json_t *whole = json_stringn(text ? text : "", bytes), *mended = NULL;
	char *ascii;
	size_t n = 0;

	if (whole)
		return whole;
	ascii = malloc(3 * bytes + 1);
	for (size_t i = 0; ascii && i < bytes; i++) {
		if ((unsigned char)text[i] < 0x80) {
			ascii[n++] = text[i];
		} else {
			memcpy(ascii + n, "\xef\xbf\xbd", 3);
			n += 3;
		}
	}
	if (ascii)
		mended = json_stringn(ascii, n);
	free(ascii);
	return mended;
}

static int prefill(struct run *run, struct moe_error *err)
{
	const struct tokens *in = run->input;
	int r;

	for (size_t at = 0; at < in->n;) {
		const uint32_t n = (uint32_t)MIN(in->n - at, (size_t)run->forward->tokens_max);

		if (run_interrupted())
			return moe_error_set(err, -EINTR, "interrupted");
		r = forward_step(run->forward, in->ids + at, n, MOE_STEP_PREFILL, err);
		if (r < 0)
			return r;
		at += n;
	}
	return 0;
}

static bool is_end(const struct arch *arch, int32_t id)
{
	for (uint32_t i = 0; i < arch->n_ends; i++)
		if (arch->ends[i] == id)
			return true;
	return false;
}

/* New tokens until --tokens, the end token or the last position; *ret_n of them in `ids`. */
static int decode(struct run *run, struct sampler *sampler, float *logits, struct output *out, int32_t *ids,
		  uint32_t *ret_n, struct moe_error *err)
{
	const struct run *const c = run;
	struct forward *f = run->forward;
	uint32_t last = (uint32_t)((run->input->n - 1) % f->tokens_max);
	int r;

	for (*ret_n = 0; *ret_n < c->options->tokens;) {
		int32_t id;

		if (run_interrupted())
			return moe_error_set(err, -EINTR, "interrupted");
		r = forward_logits(f, last, 1, logits, err);
		if (r < 0)
			return r;
		id = sampler_next(sampler, logits);
		if (is_end(c->arch, id))
			break;
		ids[(*ret_n)++] = id;
		r = c->speaks ? write_token(out, id, err) : 0;
		if (r < 0)
			return r;
		if (*ret_n == c->options->tokens || f->used == f->positions)
			break;
		r = forward_step(f, &id, 1, MOE_STEP_DECODE, err);
		if (r < 0)
			return r;
		last = 0;
	}
	return 0;
}

static int print_json(const struct run *run, const struct output *out, const int32_t *ids, uint32_t n,
		      const struct stats_times *t, struct moe_error *err)
{
	json_t *object = json_object(), *list = json_array();
	int r = -ENOMEM;

	if (object && list && json_object_set_new(object, "tokens", json_integer(n)) == 0 &&
	    json_object_set_new(object, "text", text_json(out->text, out->bytes)) == 0)
		r = stats_add(run, object, err);
	for (uint32_t i = 0; r == 0 && i < n; i++)
		if (json_array_append_new(list, json_integer(ids[i])) < 0)
			r = -ENOMEM;
	if (r == 0 && (json_object_set(object, "ids", list) < 0 ||
		       json_object_set_new(object, "prefill_tokens", json_integer((json_int_t)t->prefill_tokens)) < 0 ||
		       json_object_set_new(object, "prefill_seconds", json_real((double)t->prefill_ns / 1e9)) < 0 ||
		       json_object_set_new(object, "decode_tokens", json_integer((json_int_t)t->decode_tokens)) < 0 ||
		       json_object_set_new(object, "decode_seconds", json_real((double)t->decode_ns / 1e9)) < 0))
		r = -ENOMEM;
	if (r < 0)
		moe_error_set(err, r, "no memory for the JSON");
	else
		r = stats_write(object, err);
	json_decref(object);
	json_decref(list);
	return r;
}

static int report(const struct run *run, const struct output *out, const int32_t *ids, uint32_t n,
		  const struct stats_times *times, struct moe_error *err)
{
	int r;

	if (run->options->json)
		return print_json(run, out, ids, n, times, err);
	putchar('\n');
	if (run->options->stats) {
		putchar('\n');
		stats_print(run, times);
	}
	r = stdout_flush();
	return r < 0 ? moe_error_sys(err, r, "cannot write to standard output") : 0;
}

int run_generate(struct run *run, struct moe_error *err)
{
	_cleanup_free_ float *logits = malloc((size_t)run->arch->vocab * sizeof(float));
	_cleanup_free_ int32_t *ids = calloc(run->options->tokens, sizeof(*ids));
	_cleanup_(sampler_fini) struct sampler sampler = {0};
	struct output out = {.stream = !run->options->json, .keep = run->options->json};
	struct stats_times times = {.prefill_tokens = run->input->n};
	uint64_t start = now_ns(), between;
	uint32_t n = 0;
	int r;

	if (!logits || !ids)
		return moe_error_set(err, -ENOMEM, "no memory for %u tokens", run->options->tokens);
	r = sampler_init(&sampler, run->options->temperature, run->options->top_p, run->options->seed, run->arch->vocab,
			 err);
	for (size_t i = 0; r == 0 && run->speaks && i < run->input->n; i++)
		r = write_token(&out, run->input->ids[i], err);
	if (r == 0)
		r = prefill(run, err);
	between = now_ns();
	times.prefill_ns = between - start;
	if (r == 0)
		r = decode(run, &sampler, logits, &out, ids, &n, err);
	times.decode_ns = now_ns() - between;
	times.decode_tokens = run->forward->tokens - run->input->n;
	if (r == 0 && run->speaks)
		r = report(run, &out, ids, n, &times, err);
	free(out.text);
	return r;
}
