/* SPDX-License-Identifier: MIT */
/*
 * The worker's kernels for GPUs, as their twins compute them, against the worker's own functions on random shapes: the
 * same commands that a GPU's stream is given (tools/worker/cuda/pass.c) run here at once, in host memory.
 *
 * Lookups, rotations and the router's choice must have the same bits. Sums are formed in another order: they may differ
 * by a few roundings of what is summed up.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include <immintrin.h>

#include "base/util.h"
#include "tests/tap.h"
#include "tools/worker/attention.h"
#include "tools/worker/cuda/pass.h"
#include "tools/worker/mlp.h"
#include "tools/worker/vector.h"

#define ROUNDS 60
#define ALLOCATIONS_MAX 8

static unsigned long long seed;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

static bool once_in(uint32_t n)
{
	return below(n) == 0;
}

static float number(void)
{
	return (float)((double)(tap_random(&seed) >> 11) / (double)(1ull << 52) - 1);
}

/* -- a GPU in host memory ----------------------------------------------------------------------------------------- */

struct gpu {
	void *allocations[ALLOCATIONS_MAX];
	uint32_t n;
};

int gpu_alloc(struct gpu *gpu, uint64_t bytes, uint64_t *ret, struct moe_error *err)
{
	void *memory = aligned_alloc(256, ALIGN_UP(bytes, 256));

	if (!memory || gpu->n == ALLOCATIONS_MAX)
		abort();
	memset(memory, 0xff, bytes); /* NaNs */
	gpu->allocations[gpu->n++] = memory;
	*ret = (uintptr_t)memory;
	return 0;
}

int gpu_upload(struct gpu *gpu, uint64_t to, uint64_t to_pitch, const void *from, uint64_t from_pitch, uint64_t width,
	       uint64_t rows, struct moe_error *err)
{
	for (uint64_t i = 0; i < rows; i++)
		memcpy((uint8_t *)(uintptr_t)to + i * to_pitch, (const uint8_t *)from + i * from_pitch, width);
	return 0;
}

void gpu_launch(struct gpu *gpu, enum dense_kernel_id kernel, uint64_t blocks, const void *params)
{
	const unsigned grid[3] = {(unsigned)blocks, 1, 1}, block[3] = {DENSE_THREADS, 1, 1};

	dense_twins[kernel](params, grid, block, once_in(2) ? CUDA_TWIN_FORWARDS : CUDA_TWIN_BACKWARDS);
}

static void gpu_end(struct gpu *gpu)
{
	while (gpu->n > 0)
		free(gpu->allocations[--gpu->n]);
}

static uint64_t at(const void *p)
{
	return (uint64_t)(uintptr_t)p;
}

static float *floats(uint64_t n)
{
	float *x = aligned_alloc(64, ALIGN_UP(MAX(n, 1u) * sizeof(float), 64));

	if (!x)
		abort();
	for (uint64_t i = 0; i < n; i++)
		x[i] = number();
	return x;
}

/* -- matrices ----------------------------------------------------------------------------------------------------- */

static struct matrix new_matrix(uint32_t rows, uint32_t cols)
{
	const enum matrix_type type = (enum matrix_type)below(3);
	float *wide = floats((uint64_t)rows * cols);
	uint16_t *narrow = (uint16_t *)(void *)wide;

	for (uint64_t i = 0; type != MATRIX_F32 && i < (uint64_t)rows * cols; i++) {
		const float x = wide[i] / sqrtf((float)cols);
		uint32_t bits;

		memcpy(&bits, &x, sizeof(bits));
		narrow[i] = type == MATRIX_BF16 ? (uint16_t)(bits >> 16) : _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
	}
	for (uint64_t i = 0; type == MATRIX_F32 && i < (uint64_t)rows * cols; i++)
		wide[i] /= sqrtf((float)cols);
	return (struct matrix){.data = (const uint8_t *)wide,
			       .type = type,
			       .rows = rows,
			       .cols = cols,
			       .pitch = (uint64_t)cols * matrix_type_bytes(type)};
}

static void free_matrix(struct matrix *w)
{
	free((void *)(uintptr_t)w->data);
	w->data = NULL;
}

/* Numbers of about 1 and sums of a few thousand of them: how far two orders of adding may be apart. */
static bool near(const float *a, const float *b, uint64_t n)
{
	float largest = 1e-3f;

	for (uint64_t i = 0; i < n; i++)
		largest = fmaxf(largest, fabsf(b[i]));
	for (uint64_t i = 0; i < n; i++)
		if (!(fabsf(a[i] - b[i]) <= 3e-5f * largest))
			return false;
	return true;
}

/* -- a model of one layer ----------------------------------------------------------------------------------------- */

struct subject {
	struct gpu gpu;
	struct arch arch;
	struct layer_weights layer;
	struct weights weights;
	struct placed *placed;
	struct pass *pass;
	float *owned[16];
	uint32_t n_owned;
};

static const float *own(struct subject *s, float *x)
{
	s->owned[s->n_owned++] = x;
	return x;
}

static const float *maybe(struct subject *s, bool there, uint64_t n)
{
	return there ? own(s, floats(n)) : NULL;
}

static void make_gqa(struct subject *s)
{
	struct arch_gqa *g = &s->arch.gqa;
	struct layer_weights *w = &s->layer;
	uint32_t q, kv;

	*g = (struct arch_gqa){.kv_heads = 1 + below(3),
			       .head_dim = 2 * (1 + below(40)),
			       .bias = once_in(2),
			       .output_bias = once_in(3),
			       .norm = (enum arch_norm)below(3),
			       .clip = once_in(3) ? 0.5f : 0,
			       .window = once_in(3) ? 1 + below(20) : 0};
	g->heads = g->kv_heads * (1 + below(3));
	q = g->heads * g->head_dim;
	kv = g->kv_heads * g->head_dim;
	s->arch.rope.dim = once_in(2) ? g->head_dim : 2 * (1 + below(g->head_dim / 2));
	s->arch.attention_scale = 1 / sqrtf((float)g->head_dim);
	w->q = new_matrix(q, s->arch.hidden);
	w->k = new_matrix(kv, s->arch.hidden);
	w->v = new_matrix(kv, s->arch.hidden);
	w->o = new_matrix(s->arch.hidden, q);
	w->q_bias = maybe(s, g->bias, q);
	w->k_bias = maybe(s, g->bias, kv);
	w->v_bias = maybe(s, g->bias, kv);
	w->o_bias = maybe(s, g->output_bias, s->arch.hidden);
	w->q_norm = maybe(s, g->norm != ARCH_NORM_NONE, g->norm == ARCH_NORM_FULL ? q : g->head_dim);
	w->k_norm = maybe(s, g->norm != ARCH_NORM_NONE, g->norm == ARCH_NORM_FULL ? kv : g->head_dim);
}

static void make_mla(struct subject *s)
{
	struct arch_mla *m = &s->arch.mla;
	struct layer_weights *w = &s->layer;
	uint32_t q;

	*m = (struct arch_mla){.heads = 1 + below(4),
			       .q_rank = once_in(2) ? 1 + below(50) : 0,
			       .kv_rank = once_in(4) ? 300 : 1 + below(60),
			       .plain_dim = 1 + below(30),
			       .rope_dim = 2 * (1 + below(16)),
			       .value_dim = 1 + below(40),
			       .bias = once_in(2)};
	q = m->heads * (m->plain_dim + m->rope_dim);
	s->arch.latent = true;
	s->arch.rope.dim = m->rope_dim;
	s->arch.rope.interleaved = once_in(2);
	s->arch.attention_scale = 1 / sqrtf((float)(m->plain_dim + m->rope_dim));
	if (m->q_rank) {
		w->q_a = new_matrix(m->q_rank, s->arch.hidden);
		w->q_a_norm = own(s, floats(m->q_rank));
		w->q_b = new_matrix(q, m->q_rank);
		w->q_a_bias = maybe(s, m->bias, m->q_rank);
	} else {
		w->q = new_matrix(q, s->arch.hidden);
	}
	w->kv_a = new_matrix(m->kv_rank + m->rope_dim, s->arch.hidden);
	w->kv_a_norm = own(s, floats(m->kv_rank));
	w->kv_a_bias = maybe(s, m->bias, m->kv_rank + m->rope_dim);
	w->kv_b = new_matrix(m->heads * (m->plain_dim + m->value_dim), m->kv_rank);
	w->o = new_matrix(s->arch.hidden, m->heads * m->value_dim);
	w->o_bias = maybe(s, m->bias, s->arch.hidden);
}

static void make_rest(struct subject *s)
{
	struct arch *a = &s->arch;
	struct layer_weights *w = &s->layer;

	a->activation = (enum moe_activation[]){MOE_ACTIVATION_SILU, MOE_ACTIVATION_GELU,
						MOE_ACTIVATION_GELU_TANH}[below(3)];
	a->shared_inter = 1 + below(100);
	a->shared_gate = once_in(2);
	a->router.n_experts = 4 + below(20);
	a->router.topk = 1 + below(4);
	w->attention_norm = own(s, floats(a->hidden));
	w->mlp_norm = own(s, floats(a->hidden));
	w->mlp.gate = new_matrix(a->shared_inter, a->hidden);
	w->mlp.up = new_matrix(a->shared_inter, a->hidden);
	w->mlp.down = new_matrix(a->hidden, a->shared_inter);
	w->router = new_matrix(a->router.n_experts, a->hidden);
	if (a->shared_gate)
		w->shared_gate = new_matrix(1, a->hidden);
	s->weights.embedding = new_matrix(a->vocab, a->hidden);
	s->weights.output = new_matrix(a->vocab, a->hidden);
	s->weights.norm = own(s, floats(a->hidden));
}

static void subject_make(struct subject *s, bool latent, uint32_t positions, uint32_t tokens)
{
	static const bool is_moe[] = {true};
	struct moe_error err = {0};

	*s = (struct subject){
		.arch = {.n_layers = 1, .n_moe_layers = 1, .is_moe = is_moe, .vocab = 1 + below(60), .epsilon = 1e-5f}};
	s->arch.hidden = 1 + below(150);
	s->arch.rope = (struct rope_config){.theta = 10000, .factor = 1, .scale = 1};
	if (latent)
		make_mla(s);
	else
		make_gqa(s);
	make_rest(s);
	s->weights.layers = &s->layer;
	s->weights.n_layers = 1;
	if (placed_new(&s->placed, &s->gpu, &s->arch, &s->weights, positions, &err) < 0 ||
	    pass_new(&s->pass, &s->gpu, &s->arch, s->placed, positions, tokens, &err) < 0)
		abort();
}

static void subject_free(struct subject *s)
{
	struct layer_weights *w = &s->layer;
	struct matrix *all[] = {&w->q,
				&w->k,
				&w->v,
				&w->o,
				&w->q_a,
				&w->q_b,
				&w->kv_a,
				&w->kv_b,
				&w->router,
				&w->mlp.gate,
				&w->mlp.up,
				&w->mlp.down,
				&w->shared_gate,
				&s->weights.embedding,
				&s->weights.output};

	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		free_matrix(all[i]);
	while (s->n_owned > 0)
		free(s->owned[--s->n_owned]);
	pass_free(s->pass);
	placed_free(s->placed);
	gpu_end(&s->gpu);
}

static float *on_gpu(uint64_t address)
{
	return (float *)(uintptr_t)address;
}

/* -- tests -------------------------------------------------------------------------------------------------------- */

/* What one step of `tokens` tokens at `first` does with attention, on both sides. */
static bool attention_step(const struct subject *s, struct attention *reference, uint32_t first, uint32_t tokens)
{
	const uint32_t hidden = s->arch.hidden;
	const uint64_t wide = (uint64_t)tokens * hidden;
	const struct layer_weights *w = &s->layer;
	float *x = floats(wide), *normed = floats(wide), *part = floats(wide);
	struct pass_input *input = (struct pass_input *)(uintptr_t)s->pass->input;
	bool good;

	memcpy(on_gpu(s->pass->x), x, wide * sizeof(float));
	*input = (struct pass_input){.position = first};
	pass_attend(s->pass, 0, tokens);

	for (uint32_t t = 0; t < tokens; t++)
		vector_rms_norm(normed + t * hidden, x + t * hidden, w->attention_norm, hidden, s->arch.epsilon);
	attention_run(reference, 0, w, normed, tokens, first, part);
	vector_axpy(x, 1.0f, part, wide);
	good = near(on_gpu(s->pass->x), x, wide);
	for (uint32_t t = 0; t < tokens; t++)
		vector_rms_norm(normed + t * hidden, x + t * hidden, w->mlp_norm, hidden, s->arch.epsilon);
	good = good && near(on_gpu(s->pass->normed), normed, wide);
	free(x);
	free(normed);
	free(part);
	return good;
}

static bool attention_agrees(bool latent, uint32_t positions)
{
	const uint32_t tokens = 1 + below(MIN(positions, 40u));
	struct attention *reference;
	struct subject s;
	bool good = true;

	subject_make(&s, latent, positions, tokens);
	if (attention_new(&reference, &s.arch, positions, tokens, NULL) < 0)
		abort();
	for (uint32_t first = 0; first < positions && good;) {
		const uint32_t some = 1 + below(tokens), n = MIN(some, positions - first);

		good = attention_step(&s, reference, first, n);
		first += n;
	}
	attention_free(reference);
	subject_free(&s);
	return good;
}

static void test_attention(bool latent)
{
	int good = 0;

	for (int i = 0; i < ROUNDS; i++)
		good += attention_agrees(latent, i % 10 == 9 ? 300 + below(400) : 1 + below(40));
	ok(good == ROUNDS, "%s attention: %d of %d contexts as on the CPU", latent ? "latent" : "grouped", good,
	   ROUNDS);
}

/* x += shared experts of the normed rows, as forward-host.c does. */
static void reference_mlp(const struct subject *s, const float *normed, uint32_t tokens, float *x)
{
	const uint32_t hidden = s->arch.hidden;
	float *scratch = floats(2ull * tokens * s->arch.shared_inter), *part = floats((uint64_t)tokens * hidden);

	mlp_run(&s->layer.mlp, s->arch.activation, normed, tokens, scratch, part);
	for (uint32_t t = 0; t < tokens; t++) {
		float share = 1;

		if (s->layer.shared_gate.data) {
			matrix_multiply(&share, 1, normed + t * hidden, hidden, 1, &s->layer.shared_gate, NULL);
			share = sigmoid(share);
		}
		vector_axpy(x + t * hidden, share, part + t * hidden, hidden);
	}
	free(scratch);
	free(part);
}

/* Embedding, shared experts, last norm and logits. */
static bool rest_agrees(void)
{
	const uint32_t tokens = 1 + below(PASS_LOGITS_MAX);
	struct pass_input *input;
	struct subject s;
	float *x, *normed, *logits, *y;
	uint64_t wide;
	bool good;

	subject_make(&s, false, 20, tokens);
	wide = (uint64_t)tokens * s.arch.hidden;
	x = floats(wide);
	normed = floats(wide);
	y = floats(wide);
	logits = floats((uint64_t)tokens * s.arch.vocab);
	input = (struct pass_input *)(uintptr_t)s.pass->input;
	for (uint32_t t = 0; t < tokens; t++) {
		input->ids[t] = (int32_t)below(s.arch.vocab);
		matrix_widen(x + t * s.arch.hidden, &s.weights.embedding, (uint32_t)input->ids[t], 0, s.arch.hidden);
	}
	memcpy(on_gpu(s.pass->normed), normed, wide * sizeof(float));
	memcpy(on_gpu(s.pass->part), y, wide * sizeof(float));
	pass_embed(s.pass, tokens);
	good = memcmp(on_gpu(s.pass->x), x, wide * sizeof(float)) == 0;
	pass_mlp(s.pass, 0, tokens);
	reference_mlp(&s, normed, tokens, x);
	pass_join(s.pass, tokens);
	vector_axpy(x, 1.0f, y, wide);
	good = good && near(on_gpu(s.pass->x), x, wide);
	pass_end(s.pass, tokens);
	for (uint32_t t = 0; t < tokens; t++)
		vector_rms_norm(x + t * s.arch.hidden, x + t * s.arch.hidden, s.weights.norm, s.arch.hidden,
				s.arch.epsilon);
	good = good && near(on_gpu(s.pass->x), x, wide);
	pass_output(s.pass, tokens - 1, 1);
	matrix_multiply(logits, s.arch.vocab, x + wide - s.arch.hidden, s.arch.hidden, 1, &s.weights.output, NULL);
	good = good && near(on_gpu(s.pass->logits), logits, s.arch.vocab);
	free(x);
	free(normed);
	free(y);
	free(logits);
	subject_free(&s);
	return good;
}

static void test_rest(void)
{
	int good = 0;

	for (int i = 0; i < ROUNDS; i++)
		good += rest_agrees();
	ok(good == ROUNDS, "lookup, shared experts, norm, output: %d of %d as on the CPU", good, ROUNDS);
}

static void random_router(struct router_config *r)
{
	*r = (struct router_config){.score = once_in(2) ? ROUTER_SOFTMAX : ROUTER_SIGMOID,
				    .group = (enum router_group)below(3),
				    .n_groups = 1 + below(once_in(4) ? 40 : 6),
				    .renormalise = once_in(2),
				    .renormalise_epsilon = once_in(2) ? 1e-20f : 0,
				    .scale = once_in(2) ? 1 : 2.5f};
	r->n_experts = r->n_groups * (1 + below(once_in(4) ? 60 : 8));
	r->topk_groups = 1 + below(r->n_groups);
	r->topk = 1 + below(MIN(r->n_experts, 9u));
}

/* Scores of which several are equal, some infinite, and now and then none is a number. */
static void random_scores(float *x, uint32_t n)
{
	const bool coarse = once_in(2), strange = once_in(5);

	for (uint32_t i = 0; i < n; i++) {
		x[i] = coarse ? (float)below(4) - 1 : 4 * number();
		if (strange && once_in(10))
			x[i] = once_in(3) ? NAN : once_in(2) ? INFINITY : -INFINITY;
	}
}

static bool router_agrees(void)
{
	const uint32_t tokens = 1 + below(3);
	uint32_t failed = 0, fails = 0;
	struct router_config r;
	struct dense_route q;
	float *scores, *choice, *bias, *shares, *want;
	int32_t ids[3 * 9], want_ids[3 * 9];
	bool good;

	random_router(&r);
	scores = floats(tokens * r.n_experts);
	choice = floats(r.n_experts);
	bias = floats(r.n_experts);
	shares = floats(tokens * r.topk);
	want = floats(tokens * r.topk);
	r.bias = once_in(2);
	if (once_in(3))
		random_scores(bias, r.n_experts);
	random_scores(scores, tokens * r.n_experts);
	q = (struct dense_route){.logits = at(scores),
				 .bias = r.bias ? at(bias) : 0,
				 .ids = at(ids),
				 .shares = at(shares),
				 .failed = at(&failed),
				 .n_experts = r.n_experts,
				 .topk = r.topk,
				 .pitch = r.topk,
				 .layer = 6,
				 .score = r.score == ROUTER_SOFTMAX ? DENSE_SOFTMAX : DENSE_SIGMOID,
				 .group = r.group == ROUTER_GROUP_NONE  ? DENSE_GROUP_NONE
					  : r.group == ROUTER_GROUP_MAX ? DENSE_GROUP_MAX
									: DENSE_GROUP_TOP2,
				 .n_groups = r.n_groups,
				 .topk_groups = r.topk_groups,
				 .renormalise = r.renormalise,
				 .epsilon = r.renormalise_epsilon,
				 .scale = r.scale};
	gpu_launch(NULL, DENSE_KERNEL_worker_route, tokens, &q);
	for (uint32_t t = 0; t < tokens; t++) {
		router_route(&r, scores + t * r.n_experts, choice, r.bias ? bias : NULL, want_ids + t * r.topk,
			     want + t * r.topk);
		fails += want_ids[t * r.topk + r.topk - 1] < 0;
	}
	good = memcmp(ids, want_ids, tokens * r.topk * sizeof(*ids)) == 0 && failed == (fails ? 7 : 0);
	for (uint32_t i = 0; i < tokens * r.topk; i++)
		good = good &&
		       (memcmp(&shares[i], &want[i], sizeof(float)) == 0 || (isnan(shares[i]) && isnan(want[i])));
	free(scores);
	free(choice);
	free(bias);
	free(shares);
	free(want);
	return good;
}

static void test_router(void)
{
	const int rounds = 40 * ROUNDS;
	int good = 0;

	for (int i = 0; i < rounds; i++)
		good += router_agrees();
	ok(good == rounds, "router: %d of %d with the CPU's experts and the bits of its shares", good, rounds);
}

/* A failure that is noticed in an earlier layer is the one that is said. */
static void test_refusals(void)
{
	struct moe_error err = {0};
	struct gpu gpu = {0};
	struct pass *pass = NULL;
	struct arch arch = {.gqa = {.head_dim = DENSE_VALUE_MAX + 1}};

	ok(pass_new(&pass, &gpu, &arch, NULL, 1, 1, &err) == -ENOTSUP && strstr(err.text, "--dense host"),
	   "heads that are too wide are refused, with the way out: %s", err.text);
	arch.gqa.head_dim = 64;
	arch.router.n_experts = DENSE_EXPERTS_MAX + 1;
	ok(pass_new(&pass, &gpu, &arch, NULL, 1, 1, &err) == -ENOTSUP && strstr(err.text, "experts"),
	   "and more experts than the router's kernel can hold: %s", err.text);
}

int main(void)
{
	seed = tap_seed();
	test_router();
	test_rest();
	test_attention(false);
	test_attention(true);
	test_refusals();
	return tap_done();
}
