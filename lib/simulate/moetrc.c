/* SPDX-License-Identifier: MIT */
#include "simulate/moetrc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define MAGIC "MOETRC1" /* and its zero */
#define LAYERS_MAX 4096
#define EXPERTS_MAX 256
#define SEQUENCES_MAX 65536

struct file {
	const uint8_t *data;
	size_t size, at;
	uint32_t layers, experts, topk, sequences;
};

struct sequence {
	uint32_t steps;
	const uint8_t *ids, *weights;
};

static int read_number(struct file *f, uint32_t min, uint32_t max, const char *what, uint32_t *ret,
		       struct moe_error *err)
{
	const uint8_t *p = f->data + f->at;

	if (f->size - f->at < 4)
		return moe_error_set(err, -EINVAL, "moetrc: byte %zu: the file ends where %s is expected", f->at, what);
	*ret = p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
	if (*ret < min || *ret > max)
		return moe_error_set(err, -EINVAL, "moetrc: byte %zu: %s: %u found, %u to %u expected", f->at, what,
				     *ret, min, max);
	f->at += 4;
	return 0;
}

static int read_header(struct file *f, struct moe_error *err)
{
	int r;

	if (f->size < sizeof MAGIC || memcmp(f->data, MAGIC, sizeof MAGIC) != 0)
		return moe_error_set(err, -EINVAL, "moetrc: the file does not begin with %s", MAGIC);
	f->at = sizeof MAGIC;
	r = read_number(f, 1, LAYERS_MAX, "layers", &f->layers, err);
	if (r == 0)
		r = read_number(f, 1, EXPERTS_MAX, "experts", &f->experts, err);
	if (r == 0)
		r = read_number(f, 1, f->experts, "topk", &f->topk, err);
	return r < 0 ? r : read_number(f, 0, SEQUENCES_MAX, "sequences", &f->sequences, err);
}

static int read_sequence(struct file *f, struct sequence *ret, struct moe_error *err)
{
	size_t n;
	int r = read_number(f, 0, UINT32_MAX, "steps", &ret->steps, err);

	if (r < 0)
		return r;
	n = (size_t)f->layers * f->topk;
	if (ret->steps > (f->size - f->at) / (3 * n))
		return moe_error_set(err, -EINVAL, "moetrc: byte %zu: %u steps found, the file has room for %zu",
				     f->at - 4, ret->steps, (f->size - f->at) / (3 * n));
	n *= ret->steps;
	ret->ids = f->data + f->at;
	ret->weights = ret->ids + n;
	for (size_t i = 0; i < n; i++)
		if (ret->ids[i] >= f->experts)
			return moe_error_set(err, -EINVAL, "moetrc: byte %zu: expert %u found, 0 to %u expected",
					     f->at + i, ret->ids[i], f->experts - 1);
	f->at += 3 * n;
	return 0;
}

/* Room for `steps` steps of `tokens` tokens in all; of none as well. */
static int allocate(struct sim_trace *t, const struct file *f, uint64_t steps, uint64_t tokens, struct moe_error *err)
{
	*t = (struct sim_trace){.layers = f->layers, .experts = f->experts, .topk = f->topk, .steps = (uint32_t)steps};
	t->tokens = calloc(steps * f->layers + 1, sizeof *t->tokens);
	t->first = calloc(steps * f->layers + 1, sizeof *t->first);
	t->ids = calloc(tokens * f->layers * f->topk + 1, sizeof *t->ids);
	t->weights = calloc(tokens * f->layers * f->topk + 1, sizeof *t->weights);
	t->begins = calloc(f->sequences + 1, sizeof *t->begins);
	if (steps <= UINT32_MAX && t->tokens && t->first && t->ids && t->weights && t->begins)
		return 0;
	sim_trace_fini(t);
	return moe_error_set(err, -ENOMEM, "moetrc: no memory for %llu tokens", (unsigned long long)tokens);
}

static void copy_token(struct sim_trace *t, size_t to, const struct sequence *q, uint32_t step, uint32_t layer)
{
	const size_t from = ((size_t)step * t->layers + layer) * t->topk;

	for (uint32_t k = 0; k < t->topk; k++) {
		const uint8_t *w = q->weights + 2 * (from + k);

		t->ids[to + k] = q->ids[from + k];
		t->weights[to + k] = (float)(w[0] | w[1] << 8) / 65535.0f;
	}
}

static void tell_sequences(struct sim_trace *t, const struct sequence *q, uint32_t n)
{
	uint32_t step = 0;

	for (t->sequences = 0; t->sequences < n; step += q[t->sequences++].steps)
		t->begins[t->sequences] = step;
}

static void lay_out(struct sim_trace *t, const struct sequence *q, uint32_t n, bool together)
{
	uint32_t step = 0, sequence = 0;
	size_t at = 0;

	for (uint32_t s = 0; s < t->steps; s++, step++) {
		while (!together && step == q[sequence].steps) {
			sequence++;
			step = 0;
		}
		for (uint32_t layer = 0; layer < t->layers; layer++) {
			const size_t place = (size_t)s * t->layers + layer;

			t->first[place] = at;
			for (uint32_t i = together ? 0 : sequence; i < (together ? n : sequence + 1); i++) {
				if (step >= q[i].steps)
					continue;
				copy_token(t, at, &q[i], step, layer);
				t->tokens[place]++;
				at += t->topk;
			}
		}
	}
}

int moetrc_parse(struct sim_trace *ret, const void *data, size_t size, bool together, struct moe_error *err)
{
	struct file f = {.data = data, .size = size};
	struct sequence *q = NULL;
	uint64_t sum = 0, longest = 0;
	int r = read_header(&f, err);

	*ret = (struct sim_trace){0};
	if (r == 0 && !(q = calloc(f.sequences + 1, sizeof *q)))
		r = moe_error_set(err, -ENOMEM, "moetrc: no memory for %u sequences", f.sequences);
	for (uint32_t i = 0; r == 0 && i < f.sequences; i++) {
		r = read_sequence(&f, &q[i], err);
		sum += q[i].steps;
		longest = q[i].steps > longest ? q[i].steps : longest;
	}
	if (r == 0 && f.at < size)
		r = moe_error_set(err, -EINVAL, "moetrc: byte %zu: %zu bytes after the last sequence", f.at,
				  size - f.at);
	if (r == 0)
		r = allocate(ret, &f, together ? longest : sum, sum, err);
	if (r == 0 && !together)
		tell_sequences(ret, q, f.sequences);
	if (r == 0)
		lay_out(ret, q, f.sequences, together);
	free(q);
	return r;
}

void sim_trace_fini(struct sim_trace *t)
{
	free(t->tokens);
	free(t->first);
	free(t->ids);
	free(t->weights);
	free(t->begins);
	*t = (struct sim_trace){0};
}
