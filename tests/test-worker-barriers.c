/* SPDX-License-Identifier: MIT */
/*
 * test-worker-barriers - the worker's kernels for GPUs with each thread as a coroutine that runs from barrier to
 * barrier, as far as it may: forwards, backwards and in random order the results are those of the twins. And each
 * barrier is needed: without any one of them, in some order, some result changes.
 */
#include "tests/cuda-barriers.h"
#include "tools/worker/cuda/dense-kernels.h"

#define MEMORY (1 << 20)

#define X(name, params) void coroutine_##name(const void *p);
DENSE_KERNELS(X)
#undef X

static const struct {
	const char *name;
	void (*run)(const void *params);
} kernels[DENSE_KERNEL_COUNT] = {
#define X(name, params) {#name, coroutine_##name},
	DENSE_KERNELS(X)
#undef X
};

/* A launch, and its memory, which is all that it reads and writes. */
struct subject {
	enum dense_kernel_id kernel;
	unsigned blocks;
	union {
#define X(name, params) struct params name;
		DENSE_KERNELS(X)
#undef X
	} params;
	uint64_t barriers; /* those that it passes */
	size_t bytes;
	uint8_t *memory, *before, *want;
};

/* n numbers between -1 and 1. */
static uint64_t floats(struct subject *s, size_t n)
{
	float *x = (float *)(void *)(s->memory + s->bytes);

	s->bytes += (n * sizeof(float) + 255) & ~(size_t)255;
	if (s->bytes > MEMORY)
		abort();
	for (size_t i = 0; i < n; i++)
		x[i] = (float)below(2000) / 1000 - 1;
	return (uint64_t)(uintptr_t)x;
}

static uint64_t word(struct subject *s, uint32_t value)
{
	const uint64_t at = floats(s, 1);

	*(uint32_t *)(uintptr_t)at = value;
	return at;
}

static struct dense_matrix matrix(struct subject *s, uint32_t rows, uint32_t cols)
{
	return (struct dense_matrix){.data = floats(s, (size_t)rows * cols),
				     .pitch = 4ull * cols,
				     .type = DENSE_F32,
				     .rows = rows,
				     .cols = cols};
}

static void make_embed(struct subject *s)
{
	s->blocks = 2;
	s->params.worker_embed = (struct dense_embed){
		.x = floats(s, 1000), .ids = word(s, 2), .matrix = matrix(s, 3, 500)};
	((int32_t *)(uintptr_t)s->params.worker_embed.ids)[1] = 1;
}

static void make_norm(struct subject *s)
{
	s->blocks = 3;
	s->params.worker_norm = (struct dense_norm){.y = floats(s, 5 * 700),
						    .x = floats(s, 3 * 700),
						    .weight = floats(s, 700),
						    .position = word(s, 2),
						    .x_pitch = 700,
						    .y_pitch = 700,
						    .cols = 700,
						    .epsilon = 1e-5f};
}

static void make_product(struct subject *s)
{
	s->blocks = 2 * 2;
	s->params.worker_product = (struct dense_product){.y = floats(s, 6 * 20),
							  .x = floats(s, 6 * 304),
							  .bias = floats(s, 20),
							  .w = matrix(s, 20, 304),
							  .y_pitch = 20,
							  .x_pitch = 304,
							  .tokens = 6,
							  .tiles = 2,
							  .groups = 2};
}

static void make_carry(struct subject *s)
{
	s->blocks = 2 * 3 * 2;
	s->params.worker_carry = (struct dense_carry){.y = floats(s, 3 * 600),
						      .x = floats(s, 3 * 20),
						      .w = matrix(s, 10, 300),
						      .y_pitch = 600,
						      .x_pitch = 20,
						      .y_batch = 300,
						      .x_batch = 10,
						      .tokens = 3,
						      .tiles = 2};
}

static void make_rotate(struct subject *s)
{
	s->blocks = 2;
	s->params.worker_rotate = (struct dense_rotate){.y = floats(s, 2 * 400),
							.x = floats(s, 2 * 400),
							.cos = floats(s, 5 * 30),
							.sin = floats(s, 5 * 30),
							.position = word(s, 3),
							.x_pitch = 400,
							.y_pitch = 400,
							.heads = 4,
							.dim = 100,
							.offset = 20,
							.rope = 60,
							.clip = 0.5f};
}

/* More than one tile of positions, and more values than threads. */
static void make_attend(struct subject *s)
{
	enum { positions = 600, dim = 24, values = 300 };

	s->blocks = 2;
	s->params.worker_attend = (struct dense_attend){.out = floats(s, 2 * values),
							.query = floats(s, 2 * dim),
							.turned = floats(s, 2 * dim),
							.keys = floats(s, positions * dim),
							.values = floats(s, positions * values),
							.extra = floats(s, positions * dim),
							.position = word(s, positions - 2),
							.out_pitch = values,
							.query_pitch = dim,
							.turned_pitch = dim,
							.key_pitch = dim,
							.value_pitch = values,
							.extra_pitch = dim,
							.heads = 1,
							.group = 1,
							.key_dim = dim,
							.extra_dim = dim,
							.value_dim = values,
							.scale = 1};
}

static void make_route(struct subject *s, enum dense_group group)
{
	s->blocks = 2;
	s->params.worker_route = (struct dense_route){.logits = floats(s, 2 * 640),
						      .bias = floats(s, 640),
						      .ids = floats(s, 2 * 8),
						      .shares = floats(s, 2 * 8),
						      .failed = word(s, 0),
						      .n_experts = 640,
						      .topk = 8,
						      .pitch = 8,
						      .group = group,
						      .n_groups = 40,
						      .topk_groups = 20,
						      .renormalise = 1,
						      .scale = 1};
}

static void make_gate(struct subject *s)
{
	s->blocks = 2;
	s->params.worker_gate = (struct dense_gate){.gate = floats(s, 1000), .up = floats(s, 1000), .n = 1000};
}

static void make_join(struct subject *s)
{
	s->blocks = 3;
	s->params.worker_join = (struct dense_join){
		.x = floats(s, 900), .y = floats(s, 900), .share = floats(s, 3), .cols = 300};
}

#define SUBJECTS (DENSE_KERNEL_COUNT + 1)

static void subject_make(struct subject *s, size_t i)
{
	const unsigned block[3] = {DENSE_THREADS, 1, 1};

	*s = (struct subject){.memory = aligned_alloc(256, MEMORY), .before = malloc(MEMORY), .want = malloc(MEMORY)};
	if (!s->memory || !s->before || !s->want)
		abort();
	s->kernel = i < DENSE_KERNEL_COUNT ? (enum dense_kernel_id)i : DENSE_KERNEL_worker_route;
	switch (s->kernel) {
	case DENSE_KERNEL_worker_embed:
		make_embed(s);
		break;
	case DENSE_KERNEL_worker_norm:
		make_norm(s);
		break;
	case DENSE_KERNEL_worker_product:
		make_product(s);
		break;
	case DENSE_KERNEL_worker_carry:
		make_carry(s);
		break;
	case DENSE_KERNEL_worker_rotate:
		make_rotate(s);
		break;
	case DENSE_KERNEL_worker_attend:
		make_attend(s);
		break;
	case DENSE_KERNEL_worker_route:
		make_route(s, i < DENSE_KERNEL_COUNT ? DENSE_GROUP_NONE : DENSE_GROUP_TOP2);
		break;
	case DENSE_KERNEL_worker_gate:
		make_gate(s);
		break;
	case DENSE_KERNEL_worker_join:
		make_join(s);
		break;
	case DENSE_KERNEL_COUNT:
		break;
	}
	memcpy(s->before, s->memory, s->bytes);
	dense_twins[s->kernel](&s->params, (const unsigned[3]){s->blocks, 1, 1}, block, CUDA_TWIN_FORWARDS);
	memcpy(s->want, s->memory, s->bytes);
}

static bool subject_same(void *subject, enum schedule schedule)
{
	struct subject *s = subject;
	bool even;

	memcpy(s->memory, s->before, s->bytes);
	even = grid_run(kernels[s->kernel].run, &s->params, s->blocks, DENSE_THREADS, schedule);
	return even && memcmp(s->memory, s->want, s->bytes) == 0;
}

static void test_orders(struct subject *subjects)
{
	for (size_t i = 0; i < SUBJECTS; i++) {
		struct subject *s = &subjects[i];
		bool f, b, r;

		for (int k = 0; k < n_barriers; k++)
			barriers[k].passed = false;
		f = subject_same(s, FORWARDS), b = subject_same(s, BACKWARDS), r = subject_same(s, RANDOM);
		for (int k = 0; k < n_barriers; k++)
			s->barriers |= (uint64_t)barriers[k].passed << k;
		ok(f && b && r,
		   "%s: threads forwards (%d), backwards (%d) and in random order (%d) give the twin's bits",
		   kernels[s->kernel].name, f, b, r);
	}
}

static bool subject_notices(void *subjects, size_t i, int barrier)
{
	struct subject *s = (struct subject *)subjects + i;

	return (s->barriers >> barrier & 1) && is_noticed(subject_same, s, barrier);
}

int main(void)
{
	static struct subject subjects[SUBJECTS];

	coroutines_start();
	for (size_t i = 0; i < SUBJECTS; i++)
		subject_make(&subjects[i], i);
	test_orders(subjects);
	test_mutants(subject_notices, subjects, SUBJECTS, 18);
	for (size_t i = 0; i < SUBJECTS; i++) {
		free(subjects[i].memory);
		free(subjects[i].before);
		free(subjects[i].want);
	}
	free(stacks);
	return tap_done();
}
