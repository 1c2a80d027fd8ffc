/* SPDX-License-Identifier: MIT */
/*
 * test-kernels - every level against ref on random shapes and hostile data: results within the stated bound, nothing
 * written outside the outputs, nothing read outside the inputs (each input ends at a page that cannot be touched).
 */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kernels/detect.h"
#include "kernels/kernels.h"
#include "kernels/ref/scalar.h"
#include "tests/tap.h"

#define ROWS_MAX 72
#define COLS_MAX 300
#define TOKENS_MAX 21
#define CANARY 0x5aa5c33cu
#define CANARIES 16

static unsigned long long seed;

static uint32_t pick(uint32_t n)
{
	return (uint32_t)(tap_random(&seed) >> 33) % n;
}

/* -- memory whose end is a wall ----------------------------------------------------------------------------------- */

struct wall {
	char *map;
	size_t bytes; /* before the wall */
};

static struct wall wall_new(size_t bytes)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct wall w = {.bytes = (bytes + page - 1) / page * page};

	w.map = mmap(NULL, w.bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (w.map == MAP_FAILED || mprotect(w.map + w.bytes, page, PROT_NONE) < 0) {
		printf("Bail out! no memory\n");
		exit(1);
	}
	return w;
}

static void wall_free(struct wall *w)
{
	munmap(w->map, w->bytes + (size_t)sysconf(_SC_PAGESIZE));
}

/* `bytes` that end exactly at the wall. */
static void *wall_before(const struct wall *w, size_t bytes)
{
	return w->map + w->bytes - bytes;
}

/* -- data --------------------------------------------------------------------------------------------------------- */

enum data { DATA_PLAIN, DATA_SPECIAL };

static float plain_float(void)
{
	return (float)((double)(tap_random(&seed) >> 11) * 0x1p-52 - 1.0);
}

static uint16_t weight_bits(enum kernel_type type, enum data data)
{
	static const uint16_t specials[KERNEL_TYPES][10] = {
		/* +-0, the least and the largest denormal, the largest finite ones, +-inf, NaN, 1 */
		[KERNEL_BF16] = {0, 0x8000, 1, 0x807f, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0x3f80},
		[KERNEL_F16] = {0, 0x8000, 1, 0x83ff, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x3c00},
	};
	const uint16_t sign = (uint16_t)(pick(2) << 15);

	if (data == DATA_SPECIAL && pick(6) == 0)
		return specials[type][pick(10)];
	if (type == KERNEL_BF16) /* 2^-15 .. 2 */
		return (uint16_t)(sign | (112 + pick(17)) << 7 | pick(128));
	return (uint16_t)(sign | (1 + pick(16)) << 10 | pick(1024));
}

static float x_value(enum data data)
{
	static const float specials[] = {0.0f,     -0.0f,    0x1p-149f, -0x1p-130f, FLT_MAX,
					 -FLT_MAX, INFINITY, -INFINITY, NAN,        1.0f};

	if (data == DATA_SPECIAL && pick(8) == 0)
		return specials[pick(10)];
	return plain_float();
}

/* One random problem: weights, activations and outputs in their own walled memory. */
struct problem {
	enum kernel_type type;
	size_t rows, cols, tokens, pitch[2];
	struct wall w[2], x, out;
	struct kernel_matrix m[2];
	const float *xs[TOKENS_MAX];
	float *outs[TOKENS_MAX];
	size_t out_stride; /* floats */
};

static void matrix_new(struct problem *p, int i, enum data data)
{
	const size_t extra = pick(2) ? 0 : 2 * pick(40);
	size_t bytes;
	char *first;

	p->pitch[i] = p->cols * 2 + extra;
	bytes = p->rows ? (p->rows - 1) * p->pitch[i] + p->cols * 2 : 0;
	p->w[i] = wall_new(bytes + 1);
	first = wall_before(&p->w[i], bytes);
	for (size_t b = 0; b + 1 < bytes; b += 2)
		memcpy(first + b, &(uint16_t){weight_bits(p->type, DATA_PLAIN)}, 2);
	if (data == DATA_SPECIAL)
		for (size_t r = 0; r < p->rows; r++)
			if (pick(3) == 0)
				for (size_t c = 0; c < p->cols; c++)
					memcpy(first + r * p->pitch[i] + c * 2, &(uint16_t){weight_bits(p->type, data)},
					       2);
	p->m[i] = (struct kernel_matrix){.data = first, .pitch = p->pitch[i]};
}

static void problem_new(struct problem *p, enum kernel_type type, enum data data, size_t rows, size_t cols,
			size_t tokens)
{
	*p = (struct problem){.type = type, .rows = rows, .cols = cols, .tokens = tokens};
	for (int i = 0; i < 2; i++)
		matrix_new(p, i, data);
	p->x = wall_new((cols + 8) * 4 * tokens + 1);
	for (size_t t = 0, end = 0; t < tokens; t++) {
		float *x;

		end += cols * 4 + (t ? 4 * pick(8) : 0); /* the first row ends at the wall, each at its own alignment */
		x = wall_before(&p->x, end);
		for (size_t c = 0; c < cols; c++)
			x[c] = x_value(pick(2) ? data : DATA_PLAIN);
		p->xs[t] = x;
	}
	p->out_stride = rows + CANARIES + pick(3);
	p->out = wall_new((p->out_stride * (tokens + 1) + CANARIES) * 4);
	for (size_t t = 0; t < tokens; t++)
		p->outs[t] = (float *)p->out.map + CANARIES + t * p->out_stride;
}

static void problem_free(struct problem *p)
{
	wall_free(&p->w[0]);
	wall_free(&p->w[1]);
	wall_free(&p->x);
	wall_free(&p->out);
}

static void canaries_set(struct problem *p)
{
	for (size_t i = 0; i < p->out.bytes / 4; i++)
		memcpy(p->out.map + i * 4, &(uint32_t){CANARY}, 4);
}

/* True when every word outside the outputs is as it was. */
static bool canaries_live(const struct problem *p)
{
	for (size_t i = 0; i < p->out.bytes / 4; i++) {
		const size_t at = i - CANARIES;
		uint32_t word;

		if (i >= CANARIES && at / p->out_stride < p->tokens && at % p->out_stride < p->rows)
			continue;
		memcpy(&word, p->out.map + i * 4, 4);
		if (word != CANARY)
			return false;
	}
	return true;
}

/* -- bounds ------------------------------------------------------------------------------------------------------- */

/* A dot product in double with what bounds its FP32 error: the sum of the finite terms' magnitudes. */
struct dot {
	double value, magnitude, bound;
};

static struct dot dot_of(const struct problem *p, int i, size_t r, size_t t)
{
	const uint16_t *w = ref_row(&p->m[i], r);
	struct dot d = {0};

	for (size_t c = 0; c < p->cols; c++) {
		const double product = (p->type == KERNEL_BF16 ? bf16_value(w[c]) : f16_value(w[c])) * p->xs[t][c];

		d.value += product;
		d.magnitude += isfinite(product) ? fabs(product) : 0.0;
	}
	d.bound = (double)p->cols * (0x1p-23 * d.magnitude + 0x1p-149);
	return d;
}

/* What a level may return for d. Infinite and NaN terms decide by themselves; where FP32 may overflow on the way, any
 * value that is not finite is right. */
static bool dot_good(const struct dot *d, float got)
{
	if (isnan(d->value))
		return isnan(got);
	if (d->magnitude > FLT_MAX / 2 && !isfinite(got))
		return true;
	if (isinf(d->value))
		return isinf(got) && (got > 0) == (d->value > 0);
	return fabs(got - d->value) <= d->bound + fabs(d->value) * 0x1p-24;
}

/* |f(a + e) - f(a)| <= 1.2 e for each activation: their slopes lie between -0.13 and 1.13. */
static bool gate_up_good(const struct problem *p, enum kernel_activation act, size_t r, size_t t, float got)
{
	const struct dot a = dot_of(p, 0, r, t), b = dot_of(p, 1, r, t);
	double f, ef, bound, value;

	if (!isfinite(a.value) || !isfinite(b.value) || a.magnitude > FLT_MAX / 2 || b.magnitude > FLT_MAX / 2)
		return true; /* activation_check looks at these one by one */
	f = activation_value(act, a.value);
	ef = 1.2 * a.bound + 0x1p-21 * (act == KERNEL_SILU ? fabs(f) : fabs(a.value)) + 0x1p-140;
	value = f * b.value;
	bound = ef * (fabs(b.value) + b.bound) + fabs(f) * b.bound + fabs(value) * 0x1p-23 + 0x1p-149;
	if (fabs(value) + bound > FLT_MAX)
		return true;
	return fabs(got - value) <= bound;
}

/* -- the checks --------------------------------------------------------------------------------------------------- */

static size_t shape(size_t max)
{
	static const size_t edges[] = {0, 1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 256};
	const size_t n = edges[pick(12)];

	return pick(3) == 0 && n <= max ? n : pick((uint32_t)max + 1);
}

static bool matmul_check(const struct kernels *k, enum kernel_type type, enum data data)
{
	struct problem p;
	bool good;

	problem_new(&p, type, data, shape(ROWS_MAX), shape(COLS_MAX), 1 + pick(TOKENS_MAX));
	canaries_set(&p);
	k->matmul[type](&p.m[0], p.rows, p.cols, p.tokens, p.xs, p.outs);
	good = canaries_live(&p);
	for (size_t t = 0; t < p.tokens && good; t++)
		for (size_t r = 0; r < p.rows && good; r++) {
			const struct dot d = dot_of(&p, 0, r, t);

			good = dot_good(&d, p.outs[t][r]);
			if (!good)
				diag("rows %zu cols %zu tokens %zu: y[%zu][%zu] = %g, expected %g +- %g", p.rows,
				     p.cols, p.tokens, t, r, (double)p.outs[t][r], d.value, d.bound);
		}
	problem_free(&p);
	return good;
}

static bool gate_up_check(const struct kernels *k, enum kernel_type type, enum data data)
{
	const enum kernel_activation act = pick(3);
	struct problem p;
	bool good;

	problem_new(&p, type, data, shape(ROWS_MAX), shape(COLS_MAX), 1 + pick(TOKENS_MAX));
	canaries_set(&p);
	k->gate_up[type](&p.m[0], &p.m[1], p.rows, p.cols, act, p.tokens, p.xs, p.outs);
	good = canaries_live(&p);
	for (size_t t = 0; t < p.tokens && good; t++)
		for (size_t r = 0; r < p.rows && good; r++) {
			good = gate_up_good(&p, act, r, t, p.outs[t][r]);
			if (!good)
				diag("rows %zu cols %zu tokens %zu act %d: h[%zu][%zu] = %g", p.rows, p.cols, p.tokens,
				     (int)act, t, r, (double)p.outs[t][r]);
		}
	problem_free(&p);
	return good;
}

/* Each (row, token) alone gives the bits that it gives in company. */
static bool company_check(const struct kernels *k, enum kernel_type type, size_t cols)
{
	float alone[1], *one[1] = {alone};
	struct problem p;
	bool good = true;

	problem_new(&p, type, DATA_PLAIN, 1 + pick(ROWS_MAX), cols, 1 + pick(TOKENS_MAX));
	k->gate_up[type](&p.m[0], &p.m[1], p.rows, p.cols, KERNEL_SILU, p.tokens, p.xs, p.outs);
	for (size_t t = 0; t < p.tokens; t++)
		for (size_t r = 0; r < p.rows; r++) {
			const struct kernel_matrix g = {ref_row(&p.m[0], r), p.m[0].pitch};
			const struct kernel_matrix u = {ref_row(&p.m[1], r), p.m[1].pitch};

			k->gate_up[type](&g, &u, 1, p.cols, KERNEL_SILU, 1, &p.xs[t], one);
			good = good && memcmp(alone, &p.outs[t][r], sizeof(alone)) == 0;
		}
	k->matmul[type](&p.m[0], p.rows, p.cols, p.tokens, p.xs, p.outs);
	for (size_t t = 0; t < p.tokens; t++)
		for (size_t r = 0; r < p.rows; r++) {
			const struct kernel_matrix w = {ref_row(&p.m[0], r), p.m[0].pitch};

			k->matmul[type](&w, 1, p.cols, 1, &p.xs[t], one);
			good = good && memcmp(alone, &p.outs[t][r], sizeof(alone)) == 0;
		}
	problem_free(&p);
	return good;
}

/* The activation itself: gate picks a, up picks 1. */
static float activation_of(const struct kernels *k, enum kernel_activation act, float a)
{
	const uint16_t gate_row[2] = {0x3f80, 0}, up_row[2] = {0, 0x3f80};
	const struct kernel_matrix gate = {gate_row, 4}, up = {up_row, 4};
	const float x[2] = {a, 1.0f}, *xs[1] = {x};
	float h, *hs[1] = {&h};

	if (!isfinite(a)) { /* 0 * inf is NaN: gate and up both read a alone, and only the kind of the result counts */
		k->gate_up[KERNEL_BF16](&gate, &gate, 1, 1, act, 1, xs, hs);
		return h;
	}
	k->gate_up[KERNEL_BF16](&gate, &up, 1, 2, act, 1, xs, hs);
	return h;
}

static void activation_check(const struct kernels *k)
{
	static const char *const names[] = {"SiLU", "GELU", "GELU-tanh"};

	for (enum kernel_activation act = KERNEL_SILU; act <= KERNEL_GELU_TANH; act++) {
		double worst = 0.0, where = 0.0;
		bool small = true;

		for (int i = -1300; i <= 1300; i++) {
			const float a = (float)i * 0.1f + plain_float() * 0.05f;
			const double want = activation_value(act, a), got = activation_of(k, act, a);
			const double unit = act == KERNEL_SILU ? fabs(want) : fabs((double)a);
			const double error = (fabs(got - want) - 0x1p-140) / unit;

			if (error > worst) {
				worst = error;
				where = a;
			}
		}
		for (int e = -149; e < -10; e++) { /* act(a) is a / 2 near zero */
			const float a = ldexpf(1.0f, e);

			small = small && fabs(activation_of(k, act, a) - activation_value(act, a)) <=
						 0x1p-21 * (double)a + 0x1p-149;
		}
		ok(worst <= 0x1p-21, "%s: %s within 2^-21 (worst %.2f x 2^-24 at %g)", k->name, names[act],
		   worst * 0x1p24, where);
		ok(small, "%s: %s near zero", k->name, names[act]);
		ok(isnan(activation_of(k, act, NAN)), "%s: %s of NaN", k->name, names[act]);
		ok(activation_of(k, act, INFINITY) == INFINITY, "%s: %s of infinity", k->name, names[act]);
		ok(isnan(activation_of(k, act, -INFINITY)), "%s: %s of minus infinity", k->name, names[act]);
		ok(activation_of(k, act, 3e38f) == 3e38f, "%s: %s of a huge number", k->name, names[act]);
		ok(activation_of(k, act, -3e38f) == 0.0f, "%s: %s of a huge negative number", k->name, names[act]);
	}
}

static bool axpy_check(const struct kernels *k)
{
	const size_t n = shape(COLS_MAX);
	const float a = x_value(DATA_SPECIAL);
	struct wall wx = wall_new(n * 4 + 1), wy = wall_new((n + CANARIES) * 4);
	float *x = wall_before(&wx, n * 4), *y = wall_before(&wy, n * 4);
	float before[COLS_MAX];
	uint32_t word;
	bool good = true;

	memcpy(y - 1, &(uint32_t){CANARY}, 4);
	for (size_t i = 0; i < n; i++) {
		x[i] = x_value(DATA_SPECIAL);
		before[i] = y[i] = x_value(DATA_SPECIAL);
	}
	k->axpy(n, a, x, y);
	for (size_t i = 0; i < n && good; i++) {
		const double want = (double)before[i] + (double)a * (double)x[i];

		if (isnan(want))
			good = isnan(y[i]);
		else
			good = y[i] == (float)want || fabs(y[i] - want) <= fabs(want) * 0x1p-23;
	}
	memcpy(&word, y - 1, 4);
	wall_free(&wx);
	wall_free(&wy);
	return good && word == CANARY;
}

static bool convert_check(const struct kernels *k)
{
	const struct kernels *ref = kernels_get(ISA_REF);
	const size_t n = shape(COLS_MAX);
	struct wall wide = wall_new((n + CANARIES) * 4), narrow = wall_new((n + CANARIES) * 2);
	float *f = wall_before(&wide, n * 4), f_want[COLS_MAX];
	uint16_t *b = wall_before(&narrow, n * 2), b_want[COLS_MAX];
	bool good;

	for (size_t i = 0; i < n; i++) { /* any bits: NaNs of every kind, ties, values that round to infinity */
		uint32_t bits = (uint32_t)tap_random(&seed);

		if (pick(3) == 0)
			bits = (bits & 0xffff0000u) | 0x8000;
		memcpy(&f[i], &bits, 4);
	}
	f[-1] = 7.0f;
	b[-1] = 7;
	k->f32_to_bf16(n, f, b);
	ref->f32_to_bf16(n, f, b_want);
	good = memcmp(b, b_want, n * 2) == 0 && b[-1] == 7;
	k->bf16_to_f32(n, b, f);
	ref->bf16_to_f32(n, b, f_want);
	good = good && memcmp(f, f_want, n * 4) == 0 && f[-1] == 7.0f;
	wall_free(&wide);
	wall_free(&narrow);
	return good;
}

/* -- ref against facts -------------------------------------------------------------------------------------------- */

static void ref_check(void)
{
	const struct kernels *ref = kernels_get(ISA_REF);
	static const uint16_t f16[] = {0x3c00, 0xc000, 0x3555, 0x0001, 0x03ff, 0x0400, 0x7bff, 0x8000};
	static const double f16_want[] = {1, -2, 0.333251953125, 0x1p-24, 0x3.ffp-16, 0x1p-14, 65504, 0};
	static const float f32[] = {1.0f, -2.5f, 0x1.01p0f, 0x1.03p0f, 0x1.fffffep127f, 0x1p-149f};
	static const uint16_t bf16[] = {0x3f80, 0xc020, 0x3f80, 0x3f82, 0x7f80, 0x0000};
	uint16_t out[6];
	bool good = true;

	for (int i = 0; i < 8; i++)
		good = good && f16_value(f16[i]) == f16_want[i];
	ok(good && isinf(f16_value(0x7c00)) && isnan(f16_value(0x7e00)), "ref: binary16 values");
	ref->f32_to_bf16(6, f32, out);
	ok(memcmp(out, bf16, sizeof(out)) == 0, "ref: bfloat16 rounds to nearest even and overflows to infinity");
	ok(fabs(activation_of(ref, KERNEL_SILU, 1.0f) - 0.7310585786) < 1e-7, "ref: SiLU(1)");
	ok(fabs(activation_of(ref, KERNEL_GELU, 1.0f) - 0.8413447461) < 1e-7, "ref: GELU(1)");
	ok(fabs(activation_of(ref, KERNEL_GELU_TANH, 1.0f) - 0.8411919906) < 1e-7, "ref: GELU-tanh(1)");
}

/* -- levels ------------------------------------------------------------------------------------------------------- */

static void detect_check(void)
{
	const struct cpu_words all = {.leaf1_ecx = 0x38001000, .leaf7_ebx = 0xc0030020, .xcr0 = 0xe7};
	struct cpu_words w;
	const char *why = NULL;
	enum isa isa = ISA_COUNT;

	ok(isa_decide(&all, &why) == ISA_AVX512 && why, "all instructions, all registers saved: avx512");
	w = all;
	w.xcr0 = 0x07;
	ok(isa_decide(&w, &why) == ISA_AVX2 && strstr(why, "operating system"), "ZMM registers not saved: avx2");
	w.xcr0 = 0x03;
	ok(isa_decide(&w, &why) == ISA_REF && strstr(why, "operating system"), "YMM registers not saved: ref");
	w = all;
	w.leaf7_ebx &= ~(1u << 31);
	ok(isa_decide(&w, NULL) == ISA_AVX2, "no AVX-512 VL: avx2");
	w = all;
	w.leaf1_ecx &= ~(1u << 29);
	ok(isa_decide(&w, NULL) == ISA_REF, "no F16C: ref");
	ok(isa_decide(&(struct cpu_words){0}, NULL) == ISA_REF, "nothing: ref");

	ok(isa_from_name("sse9", &isa) == -EINVAL && isa == ISA_COUNT, "an unknown level is refused");
	require(isa_from_name("auto", &isa) == 0, "auto is a level");
	ok(isa == isa_detect(&why), "auto is what the CPU offers");
	diag("%s: %s", isa_name(isa), why);
	for (enum isa i = 0; i < ISA_COUNT; i++) {
		const int r = isa_from_name(isa_name(i), &isa);

		ok(i <= isa_detect(NULL) ? r == 0 && isa == i : r == -ENOTSUP, "level %s by name", isa_name(i));
		ok(strcmp(kernels_get(i)->name, isa_name(i)) == 0, "table of %s", isa_name(i));
	}
}

static void level_check(const struct kernels *k)
{
	static const char *const types[] = {"bf16", "f16"};
	bool good = true;

	for (enum kernel_type type = 0; type < KERNEL_TYPES; type++) {
		for (enum data data = DATA_PLAIN; data <= DATA_SPECIAL; data++) {
			const char *what = data == DATA_PLAIN ? "plain data" : "special values";

			good = true;
			for (int i = 0; i < 150 && good; i++)
				good = matmul_check(k, type, data);
			ok(good, "%s: matmul %s, %s", k->name, types[type], what);
			for (int i = 0; i < 150 && good; i++)
				good = gate_up_check(k, type, data);
			ok(good, "%s: gate_up %s, %s", k->name, types[type], what);
		}
		for (int i = 0; i < 20 && good; i++)
			good = company_check(k, type, 1 + pick(COLS_MAX));
		/* wider than a column block of eight tokens, and than one of one token */
		good = good && company_check(k, type, 1024 + 31) && company_check(k, type, 8192 + 33);
		ok(good, "%s: %s results do not depend on the company of other rows and tokens", k->name, types[type]);
	}
	for (int i = 0; i < 300 && good; i++)
		good = axpy_check(k);
	ok(good, "%s: axpy", k->name);
	for (int i = 0; i < 300 && good; i++)
		good = convert_check(k);
	ok(good, "%s: bfloat16 there and back, bit for bit", k->name);
	activation_check(k);
}

int main(void)
{
	const char *text = getenv("TEST_SEED");

	seed = text ? strtoull(text, NULL, 0) : (unsigned long long)time(NULL);
	diag("TEST_SEED=%llu", seed);
	detect_check();
	ref_check();
	for (enum isa isa = 0; isa < ISA_COUNT; isa++) {
		if (isa <= isa_detect(NULL))
			level_check(kernels_get(isa));
		else
			tap_skip("this CPU does not have %s", isa_name(isa));
	}
	return tap_done();
}
