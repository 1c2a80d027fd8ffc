/* SPDX-License-Identifier: MIT */
/*
 * test-cuda-step - one layer's step as a list of launches, done by the kernels' twins: all formats, slices and maps, on
 * both paths; the same bits forwards and backwards, alone and in company.
 */
#include <errno.h>

#include "kernels/cuda/launch.h"
#include "tests/plain-experts.h"
#include "tests/kernel-walls.h" /* has a `seed`, which plain-experts.h calls its parameters */

#define TOPK_MAX 6

struct step {
	struct moe_layout layout;
	struct moe_slice slice;
	uint32_t rank, size;
	struct cuda_experts work;
	struct plain_values values[TOPK_MAX];
	uint8_t *slots, *records[TOPK_MAX];
	float *x, *y, *again, *weights;
	int32_t *ids, *map;
};

static struct wall scratch;

static uint32_t below(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) % n);
}

static uint64_t at(const void *p)
{
	return (uint64_t)(uintptr_t)p;
}

/* Random sizes that the formats allow, one rank's slice of any tp_size. */
static void shape(struct step *s, uint32_t gate_up, uint32_t down)
{
	const uint32_t gate_multiple = plain_multiple(gate_up), down_multiple = plain_multiple(down);
	const uint32_t hidden = gate_multiple * (1 + below(gate_multiple > 1 ? 3 : 90));
	const uint32_t inter = down_multiple * (1 + below(down_multiple > 1 ? 3 : 90));
	uint32_t size;

	plain_layout(&s->layout, gate_up, down, hidden, inter, below(2));
	size = s->size = 1 + below(MIN(moe_slice_units(&s->layout), 5u));
	s->rank = below(size);
	moe_slice_of(&s->slice, &s->layout, s->rank, size);
	s->work = (struct cuda_experts){.layout = &s->layout,
					.slice = &s->slice,
					.slot_bytes = s->slice.bytes + 64 * below(3),
					.hidden = hidden,
					.activation = below(4),
					.limit = 0.5f,
					.tokens = 1 + below(below(2) ? 4 : 30),
					.n_experts = 2 + below(TOPK_MAX - 1)};
	s->work.topk = 1 + below(s->work.n_experts);
}

static void *room(size_t bytes)
{
	void *p = aligned_alloc(CUDA_SCRATCH_ALIGN, ALIGN_UP(bytes + 1, (size_t)CUDA_SCRATCH_ALIGN));

	if (!p)
		abort();
	return p;
}

static void fill(struct step *s)
{
	const uint32_t tokens = s->work.tokens, topk = s->work.topk, experts = s->work.n_experts;
	static const int32_t nobody[] = {-1, -7, TOPK_MAX, INT32_MAX};

	for (uint32_t e = 0; e < experts; e++) {
		uint8_t *record = s->records[e] = room(s->layout.record_bytes);

		s->map[e] = below(3) ? (int32_t)(experts - 1 - e) : -1;
		plain_fill_record(&s->layout, record, &seed);
		plain_decode(&s->values[e], &s->layout, record);
		plain_pack(&s->slice, record, s->slots + (experts - 1 - e) * s->work.slot_bytes);
	}
	for (uint32_t i = 0; i < tokens * s->work.hidden; i++)
		s->x[i] = (float)plain_random(&seed, 1);
	for (uint32_t i = 0; i < tokens * topk; i++) {
		s->ids[i] = below(8) ? (int32_t)((i / topk + i % topk) % experts) : nobody[below(4)];
		s->weights[i] = (float)plain_random(&seed, 1);
	}
}

static void step_new(struct step *s, uint32_t gate_up, uint32_t down)
{
	struct cuda_experts *w = &s->work;

	shape(s, gate_up, down);
	s->slots = room(w->n_experts * w->slot_bytes);
	s->map = room(w->n_experts * sizeof *s->map);
	s->x = room(w->tokens * w->hidden * sizeof *s->x);
	s->y = room(w->tokens * w->hidden * sizeof *s->y);
	s->again = room(w->tokens * w->hidden * sizeof *s->again);
	s->ids = room(w->tokens * w->topk * sizeof *s->ids);
	s->weights = room(w->tokens * w->topk * sizeof *s->weights);
	fill(s);
	w->slots = at(s->slots), w->map = at(s->map), w->x = at(s->x), w->ids = at(s->ids), w->weights = at(s->weights);
}

static void step_free(struct step *s)
{
	for (uint32_t e = 0; e < s->work.n_experts; e++) {
		plain_forget(&s->values[e]);
		free(s->records[e]);
	}
	free(s->slots);
	free(s->map);
	free(s->x);
	free(s->y);
	free(s->again);
	free(s->ids);
	free(s->weights);
}

/* Scratch ends at a wall and holds rubbish; so does y. */
static bool run(struct cuda_experts w, float *y, enum cuda_path path, enum cuda_twin_order order)
{
	struct cuda_launch launches[CUDA_LAUNCHES_MAX];
	const uint64_t bytes = cuda_scratch_bytes(&w);
	int n;

	w.path = path;
	w.y = at(y);
	w.scratch = at(wall_before(&scratch, bytes));
	memset((void *)(uintptr_t)w.scratch, 0xff, bytes);
	memset(y, 0xff, w.tokens * w.hidden * sizeof *y);
	n = cuda_launch_experts(&w, launches);
	for (int i = 0; i < n; i++)
		cuda_launch_twin(&launches[i], order);
	return n >= 3;
}

/* The largest distance from the plain result, as a share of its terms' magnitude. */
static double error_of(const struct step *s, const float *y)
{
	const struct cuda_experts *w = &s->work;
	double *want = room(w->hidden * sizeof *want), *magnitude = room(w->hidden * sizeof *magnitude), worst = 0;

	for (uint32_t t = 0; t < w->tokens; t++) {
		memset(want, 0, w->hidden * sizeof *want);
		memset(magnitude, 0, w->hidden * sizeof *magnitude);
		for (uint32_t k = 0; k < w->topk; k++) {
			const int32_t id = s->ids[t * w->topk + k];

			if (id >= 0 && id < (int32_t)w->n_experts && s->map[id] >= 0)
				plain_expert(&s->values[id], w->activation, (double)w->limit, s->slice.first,
					     s->slice.inter, (double)s->weights[t * w->topk + k], s->x + t * w->hidden,
					     want, magnitude);
		}
		for (uint32_t j = 0; j < w->hidden; j++) {
			const double error = fabs(want[j] - (double)y[t * w->hidden + j]) / (magnitude[j] + 1e-9);

			worst = error > worst || isnan(error) ? error : worst;
		}
	}
	free(want);
	free(magnitude);
	return worst;
}

static double tolerance(const struct step *s, bool prefill)
{
	double worst = 1e-5;

	for (int i = 0; i < MOE_PARTS; i++) {
		uint32_t block;
		const enum kernel_pack pack = cuda_pack_of(s->layout.part[i].format, prefill, &block);

		worst = fmax(worst, pack == PACK_F32 ? 0 : pack == PACK_BF16 || pack == PACK_F16 ? 0.01 : 0.03);
	}
	return worst;
}

/* One token of the step alone: the same bits as in company? */
static bool alone_same(const struct step *s, enum cuda_path path)
{
	const uint32_t t = below(s->work.tokens);
	struct cuda_experts one = s->work;

	one.tokens = 1;
	one.x += (uint64_t)t * one.hidden * sizeof(float);
	one.ids += (uint64_t)t * one.topk * sizeof(int32_t);
	one.weights += (uint64_t)t * one.topk * sizeof(float);
	return run(one, s->again, path, CUDA_TWIN_FORWARDS) &&
	       memcmp(s->again, s->y + (size_t)t * one.hidden, one.hidden * sizeof(float)) == 0;
}

static bool step_check(uint32_t gate_up, uint32_t down, enum cuda_path path)
{
	struct step s;
	bool launched, near, same, alone;
	double error;

	step_new(&s, gate_up, down);
	launched = run(s.work, s.y, path, CUDA_TWIN_FORWARDS);
	error = error_of(&s, s.y) / tolerance(&s, path == CUDA_PATH_PREFILL);
	near = error <= 1;
	run(s.work, s.again, path, CUDA_TWIN_BACKWARDS);
	same = memcmp(s.y, s.again, s.work.tokens * s.work.hidden * sizeof(float)) == 0;
	alone = alone_same(&s, path);
	if (!launched || !near || !same || !alone)
		diag("%s, %s, path %d: hidden %u inter %u tokens %u topk %u experts %u: error %g of the tolerance; "
		     "backwards %d, alone %d",
		     moe_formats[gate_up].name, moe_formats[down].name, (int)path, s.work.hidden, s.slice.inter,
		     s.work.tokens, s.work.topk, s.work.n_experts, error, same, alone);
	step_free(&s);
	return launched && near && same && alone;
}

static void test_steps(long rounds)
{
	for (uint32_t f = MOE_FORMAT_NONE + 1; f < MOE_FORMAT_COUNT; f++) {
		bool good[2] = {true, true};

		for (long i = 0; i < rounds; i++) {
			const uint32_t down = i % 2 ? 1 + below(MOE_FORMAT_COUNT - 1) : f;

			good[0] = step_check(f, down, CUDA_PATH_DECODE) && good[0];
			good[1] = step_check(f, down, CUDA_PATH_PREFILL) && good[1];
		}
		ok(good[0], "%s: decode steps are near enough, and the same in any order and company",
		   moe_formats[f].name);
		ok(good[1], "%s: so are prefill steps", moe_formats[f].name);
	}
}

/* -- in the pool -------------------------------------------------------------------------------------------------- */

/* Some experts lie in slots and some in pool files, of which each has a share of their rows: the same bits come out. */
static bool pool_check(uint32_t gate_up, uint32_t down)
{
	uint64_t records[TOPK_MAX * 3];
	uint8_t *memory[TOPK_MAX * 3];
	struct cuda_share shares[3];
	struct moe_layout spread;
	struct cuda_experts w;
	struct step s;
	uint32_t n = 3, n_reads = 0, e, i;
	bool same;

	step_new(&s, gate_up, down);
	for (i = 0; i < MOE_PARTS; i++)
		n = MIN(n, DIV_UP(s.layout.part[i].rows, 16u));
	n = 1 + below(n);
	run(s.work, s.y, CUDA_PATH_DECODE, CUDA_TWIN_FORWARDS);
	plain_spread(&spread, &s.layout, n);
	for (e = 0; e < s.work.n_experts; e++) {
		if (s.map[e] < 0 || below(3) == 0)
			continue;
		for (i = 0; i < n; i++) {
			memory[n_reads * n + i] = memset(room(spread.record_bytes), 0xff, spread.record_bytes);
			plain_move_share(&s.layout, s.records[e], &spread, i, memory[n_reads * n + i], false);
			records[n_reads * n + i] = at(memory[n_reads * n + i]);
		}
		s.map[e] = (int32_t)(s.work.n_experts + n_reads++);
	}
	moe_slice_of(&s.slice, &spread, s.rank, s.size);
	for (i = 0; i < n; i++)
		cuda_share_of(&shares[i], &spread, &s.slice, i, n);
	w = s.work;
	w.layout = &spread;
	w.n_slots = w.n_experts;
	w.n_shares = n;
	w.records = at(records);
	w.shares = at(shares);
	same = run(w, s.again, CUDA_PATH_AUTO, CUDA_TWIN_BACKWARDS) &&
	       memcmp(s.y, s.again, w.tokens * w.hidden * sizeof(float)) == 0;
	if (!same)
		diag("%s, %s, %u files, %u of %u: hidden %u inter %u tokens %u topk %u experts %u, %u in the pool",
		     moe_formats[gate_up].name, moe_formats[down].name, n, s.rank, s.size, w.hidden, s.slice.inter,
		     w.tokens, w.topk, w.n_experts, n_reads);
	for (i = 0; i < n_reads * n; i++)
		free(memory[i]);
	step_free(&s);
	return same;
}

static void test_pool(long rounds)
{
	for (uint32_t f = MOE_FORMAT_NONE + 1; f < MOE_FORMAT_COUNT; f++) {
		bool good = true;

		for (long i = 0; i < rounds; i++)
			good = pool_check(f, i % 2 ? 1 + below(MOE_FORMAT_COUNT - 1) : f) && good;
		ok(good, "%s: experts in pool files give the bits of those in slots", moe_formats[f].name);
	}
}

static void test_paths(void)
{
	struct cuda_launch few[CUDA_LAUNCHES_MAX], many[CUDA_LAUNCHES_MAX];
	struct step s;
	uint32_t made;
	int n;

	step_new(&s, MOE_FORMAT_Q4_K, MOE_FORMAT_Q4_K);
	made = s.work.n_experts;
	s.work.topk = 2;
	s.work.n_experts = 8;
	s.work.tokens = 8 * CUDA_DECODE_PAIRS / 2 - 1;
	n = cuda_launch_experts(&s.work, few);
	s.work.tokens++;
	ok(n == 6 && cuda_launch_experts(&s.work, many) == 6 && few[2].kernel == CUDA_KERNEL_moe_decode_gate_up_p4 &&
		   few[4].kernel == CUDA_KERNEL_moe_decode_down_p4 &&
		   many[2].kernel == CUDA_KERNEL_moe_prefill_gate_up_p4 &&
		   many[4].kernel == CUDA_KERNEL_moe_prefill_down_p4,
	   "tensor cores from %d pairs for each expert on", CUDA_DECODE_PAIRS);
	s.work.tokens = 0;
	ok(cuda_launch_experts(&s.work, few) == 0, "no tokens, no launches");
	s.work.tokens = 1u << 30;
	ok(cuda_launch_experts(&s.work, few) == -E2BIG, "2^31 pairs are too many");
	s.work.tokens = 1u << 29;
	s.work.path = CUDA_PATH_DECODE;
	ok(cuda_launch_experts(&s.work, few) == -E2BIG, "so are blocks");
	s.work.path = CUDA_PATH_AUTO;
	s.work.tokens = 1;
	s.work.n_experts = CUDA_EXPERTS_MAX + 1;
	ok(cuda_launch_experts(&s.work, few) == -EINVAL, "so are %u experts", s.work.n_experts);
	s.work.n_experts = 1;
	s.work.topk = 0;
	ok(cuda_launch_experts(&s.work, few) == -EINVAL, "topk 0 is refused");
	s.work.topk = 1;
	s.layout.part[MOE_PART_UP].format = MOE_FORMAT_BF16;
	ok(cuda_launch_experts(&s.work, few) == -EINVAL, "gate and up of two formats are refused");
	s.work.n_experts = made;
	step_free(&s);
}

/* All of a large layer's experts in one step: items that are full, not full, and experts without any. */
static void test_crowd(void)
{
	enum { experts = 300, tokens = 700, topk = 4 };
	static int32_t ids[tokens * topk], map[experts];
	static uint32_t order[tokens * topk], found[experts];
	static struct cuda_item items[tokens * topk];
	struct cuda_counts counts = {0};
	struct cuda_launch launch = {.kernel = CUDA_KERNEL_moe_group, .grid = {1, 1, 1}, .block = {1024, 1, 1}};
	uint32_t ours = 0, covered = 0;
	bool good = true;

	for (int e = 0; e < experts; e++)
		map[e] = below(4) ? e : -1;
	for (int i = 0; i < tokens * topk; i++) {
		ids[i] = (int32_t)below(below(2) ? 3 : experts);
		ours += map[ids[i]] >= 0;
	}
	launch.params.group = (struct cuda_group){.ids = at(ids),
						  .map = at(map),
						  .order = at(order),
						  .items = at(items),
						  .counts = at(&counts),
						  .slots = 1 << 20,
						  .slot_bytes = 64,
						  .pairs = tokens * topk,
						  .n_experts = experts,
						  .item_pairs = CUDA_DECODE_PAIRS};
	cuda_launch_twin(&launch, CUDA_TWIN_BACKWARDS);
	for (uint32_t i = 0; i < counts.n_items; i++) {
		const uint32_t expert = (uint32_t)(items[i].slot - (1 << 20)) / 64;

		good = good && items[i].count >= 1 && items[i].count <= CUDA_DECODE_PAIRS && items[i].first == covered;
		for (uint32_t k = 0; k < items[i].count; k++)
			good = good && ids[order[covered + k]] == (int32_t)expert && map[expert] >= 0;
		covered += items[i].count;
		found[expert]++;
	}
	for (uint32_t i = 0, j; i < covered && good; i++) /* no pair twice */
		for (j = 0; j < i && good; j++)
			good = order[i] != order[j];
	ok(good && covered == ours && counts.n_pairs == ours, "%u pairs of %d experts are grouped, each once", ours,
	   experts);
}

/* More than the blocks take in one round, and no multiple of what a thread takes. */
static void test_add(void)
{
	enum { N = 299999 };
	static _Alignas(16) float y[N + 1], z[N + 1];
	struct cuda_launch launch;
	bool good = true;

	for (int i = 0; i <= N; i++)
		y[i] = (float)i, z[i] = (float)below(100);
	cuda_launch_add(at(y), at(z), N, &launch);
	cuda_launch_twin(&launch, CUDA_TWIN_FORWARDS);
	for (int i = 0; i < N; i++)
		good = good && y[i] == (float)i + z[i];
	ok(good && y[N] == (float)N, "the CPU's answer is added, and nothing behind it");
}

int main(void)
{
	const char *rounds = getenv("TEST_ROUNDS");

	seed = tap_seed();
	scratch = wall_new(64 << 20);
	test_paths();
	test_crowd();
	test_add();
	test_steps(rounds ? atol(rounds) : 8);
	test_pool(rounds ? atol(rounds) : 8);
	return tap_done();
}
