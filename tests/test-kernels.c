/* SPDX-License-Identifier: MIT */
/*
 * test-kernels - which tables a CPU gets, and what in them has no format: axpy, conversions, copies, activations.
 * Results within the stated bounds, nothing written outside the outputs, nothing read outside the inputs (each ends at
 * a page that cannot be touched).
 */
#include <errno.h>

#include "kernels/detect.h"
#include "tests/kernel-dots.h"

#define FLOATS_MAX 300

/* -- levels ------------------------------------------------------------------------------------------------------- */

#define VENDOR_INTEL 0x756e6547u /* "Genu" */
#define AVX512_AND_MORE (CPU_AVX512 | CPU_VNNI | CPU_VBMI | CPU_BF16_FAST | CPU_AMX)
#define EVERYTHING (CPU_AVX2 | CPU_AVX_VNNI | AVX512_AND_MORE)
#define ALL_TABLES (EVERYTHING | CPU_UNASKED)

#define FAMILY_25 0x00a10f11u /* a Zen 4 */
#define LEAF7_EBX_AVX512F (1u << 16)
#define FAMILY_26 0x00b00f21u /* a Zen 5 */

static const struct cpu_words all_words = {.leaf1_eax = FAMILY_26,
					   .leaf1_ecx = 0x38001000,
					   .leaf7_ebx = 0xc0030020,
					   .leaf7_ecx = 0x902,
					   .leaf7_edx = 0x03400000,
					   .leaf7_1_eax = 0x30,
					   .vendor_ebx = 0x68747541, /* "Auth" */
					   .xcr0 = 0x600e7};

/* The bits that count, and what is lost without each. */
static const struct {
	char word; /* 'c': leaf 1 ecx; 'B', 'C', 'D': leaf 7 ebx, ecx, edx; '1': its subleaf 1; 'x': XCR0 */
	int bit;
	uint32_t lost;
} bits[] = {
	{'c', 12, EVERYTHING},
	{'c', 27, EVERYTHING},
	{'c', 28, EVERYTHING},
	{'c', 29, EVERYTHING},
	{'B', 5, EVERYTHING},
	{'B', 16, AVX512_AND_MORE},
	{'B', 17, AVX512_AND_MORE},
	{'B', 30, AVX512_AND_MORE},
	{'B', 31, AVX512_AND_MORE},
	{'C', 1, CPU_VBMI | CPU_BF16_FAST | CPU_AMX},
	{'C', 8, CPU_AMX},
	{'C', 11, CPU_VNNI | CPU_VBMI | CPU_BF16_FAST | CPU_AMX},
	{'D', 22, CPU_AMX},
	{'D', 24, CPU_AMX},
	{'D', 25, CPU_AMX},
	{'1', 4, CPU_AVX_VNNI},
	{'1', 5, CPU_BF16_FAST | CPU_AMX},
	{'x', 1, EVERYTHING},
	{'x', 2, EVERYTHING},
	{'x', 5, AVX512_AND_MORE},
	{'x', 6, AVX512_AND_MORE},
	{'x', 7, AVX512_AND_MORE},
	{'x', 17, CPU_AMX},
	{'x', 18, CPU_AMX},
};

static struct cpu_words words_without(char word, int bit)
{
	struct cpu_words w = all_words;
	uint32_t *narrow = word == 'c'   ? &w.leaf1_ecx
			   : word == 'B' ? &w.leaf7_ebx
			   : word == 'C' ? &w.leaf7_ecx
			   : word == 'D' ? &w.leaf7_edx
					 : &w.leaf7_1_eax;

	if (word == 'x')
		w.xcr0 &= ~(1ull << bit);
	else
		*narrow &= ~(1u << bit);
	return w;
}

static void features_check(void)
{
	struct cpu_words w = all_words;
	bool good = true;

	ok(cpu_features(&all_words) == EVERYTHING, "all bits: all features");
	for (const char *word = "cBCD1x"; *word; word++)
		for (int bit = 0; bit < (*word == 'x' ? 64 : 32); bit++) {
			uint32_t want = EVERYTHING, got;

			for (size_t i = 0; i < sizeof(bits) / sizeof(bits[0]); i++)
				if (bits[i].word == *word && bits[i].bit == bit)
					want &= ~bits[i].lost;
			w = words_without(*word, bit);
			got = cpu_features(&w);
			if (got != want)
				diag("without bit %d of %c: features 0x%x and not 0x%x", bit, *word, got, want);
			good = good && got == want;
		}
	ok(good, "without one bit: what needs it is lost, and nothing else");
	w = all_words;
	w.leaf1_eax = FAMILY_25;
	ok(cpu_features(&w) == (EVERYTHING | CPU_UNASKED), "AMD's family 25 is left to read ahead by itself");
	w.leaf7_ebx &= ~LEAF7_EBX_AVX512F;
	ok(cpu_features(&w) == (CPU_AVX2 | CPU_AVX_VNNI | CPU_UNASKED), "and so it is without AVX-512 (Zen 3)");
	w = all_words;
	w.leaf1_eax = FAMILY_25;
	w.vendor_ebx = VENDOR_INTEL;
	ok(cpu_features(&w) == (EVERYTHING & ~CPU_BF16_FAST), "another vendor's family of that number is not");
	w = all_words;
	w.vendor_ebx = VENDOR_INTEL;
	ok(cpu_features(&w) == (EVERYTHING & ~CPU_BF16_FAST), "Intel: the BF16 dot product is no gain, AMX is there");
	w = (struct cpu_words){.leaf1_eax = ~0u,
			       .leaf1_ecx = ~0u,
			       .leaf7_ebx = ~0u,
			       .leaf7_ecx = ~0u,
			       .leaf7_edx = ~0u,
			       .leaf7_1_eax = ~0u,
			       .xcr0 = ~0ull};
	ok(cpu_features(&w) == (EVERYTHING & ~CPU_BF16_FAST), "all bits of a vendor that is not known: as Intel");
	w.xcr0 = 0;
	ok(cpu_features(&w) == 0 && cpu_features(&(struct cpu_words){0}) == 0,
	   "nothing, or no saved registers: no features");
}

/* The last table for these features and up to this level. */
static const struct kernels *last_table(uint32_t features, enum isa level)
{
	const struct kernels *k, *last = NULL;

	for (unsigned i = 0; (k = kernels_runnable(features, i)); i++)
		for (enum isa isa = 0; isa <= level && isa < ISA_COUNT; isa++)
			if (strcmp(k->name, isa_name(isa)) == 0)
				last = k;
	return last;
}

static unsigned table_count(uint32_t features)
{
	unsigned n = 0;

	while (kernels_runnable(features, n))
		n++;
	return n;
}

static void decide_check(void)
{
	const char *why = NULL;
	struct cpu_words w = words_without('x', 18);
	bool good = true;

	ok(isa_decide(&w, &why) == ISA_AVX512 && why, "all but saved tiles: avx512");
	w = words_without('x', 7);
	ok(isa_decide(&w, &why) == ISA_AVX2 && strstr(why, "operating system"), "ZMM registers not saved: avx2");
	w = words_without('x', 2);
	ok(isa_decide(&w, &why) == ISA_REF && strstr(why, "operating system"), "YMM registers not saved: ref");
	ok(isa_decide(&(struct cpu_words){0}, NULL) == ISA_REF, "nothing: ref");
	w = words_without('C', 1);
	ok(isa_decide(&w, &why) == ISA_AVX512 && strstr(why, "without VBMI"),
	   "a Cascade Lake: avx512, and what it lacks");
	ok(strcmp(last_table(cpu_features(&w), ISA_COUNT)->variant, "avx512+vnni, no vbmi") == 0, "and its own table");
	w = words_without('x', 18);
	w.leaf1_eax = FAMILY_25;
	ok(isa_decide(&w, &why) == ISA_AVX512 && strstr(why, "few prefetches"), "family 25: avx512, and why");
	ok(strcmp(isa_name(isa_decide(&all_words, NULL)), last_table(EVERYTHING, ISA_COUNT)->name) == 0,
	   "everything: the level of the last table");
	ok(table_count(0) == 1 && strcmp(kernels_runnable(0, 0)->name, "ref") == 0, "no features: ref only");
	for (uint32_t f = 0; f <= ALL_TABLES; f++)
		good = good && table_count(f) >= 1 && table_count(f) <= table_count(ALL_TABLES);
	for (unsigned i = 0; i < table_count(ALL_TABLES); i++)
		for (unsigned j = 0; j < i; j++)
			good = good && strcmp(kernels_runnable(ALL_TABLES, i)->variant,
					      kernels_runnable(ALL_TABLES, j)->variant) != 0;
	ok(good && table_count(ALL_TABLES) >= 8, "tables have names of their own, and more features run no fewer");
}

static void levels_check(uint32_t features)
{
	enum isa isa = ISA_COUNT;
	const char *why = NULL;

	ok(isa_from_name("sse9", &isa) == -EINVAL && isa == ISA_COUNT, "an unknown level is refused");
	for (enum isa i = 0; i < ISA_COUNT; i++)
		ok(strstr(isa_why_not("sse9"), isa_name(i)) != NULL, "and %s is offered instead", isa_name(i));
	require(isa_from_name("auto", &isa) == 0, "auto is a level");
	ok(isa == isa_detect(&why), "auto is what the CPU offers");
	diag("%s: %s", isa_name(isa), why);
	for (enum isa i = 0; i < ISA_COUNT; i++) {
		const int r = isa_from_name(isa_name(i), &isa);

		ok(i <= isa_detect(NULL) ? r == 0 && isa == i : r == -ENOTSUP, "level %s by name", isa_name(i));
		ok(i == ISA_REF || strstr(isa_why_not(isa_name(i)), i == ISA_AVX2  ? "AVX2"
								    : i == ISA_AMX ? "AMX"
										   : "AVX-512"),
		   "%s, where it is missing: %s", isa_name(i), isa_why_not(isa_name(i)));
		if (i <= isa_detect(NULL))
			ok(kernels_get(i) == last_table(features, i), "table of %s: %s", isa_name(i),
			   kernels_get(i)->variant);
	}
}

/* -- axpy and conversions ----------------------------------------------------------------------------------------- */

static size_t length(void)
{
	static const unsigned char edges[] = {0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64};

	return once_in(2) ? edges[pick(sizeof(edges))] : pick(FLOATS_MAX + 1);
}

static float any_float(void)
{
	return once_in(8) ? special_float() : plain_float();
}

static bool axpy_check(const struct kernels *k, const struct wall *wx, const struct wall *wy)
{
	const size_t n = length();
	const float a = any_float();
	float *x = wall_before(wx, n * 4), *y = wall_before(wy, n * 4);
	float before[FLOATS_MAX];
	uint32_t word;
	bool good = true;

	memcpy(y - 1, &(uint32_t){CANARY}, 4);
	for (size_t i = 0; i < n; i++) {
		x[i] = any_float();
		before[i] = y[i] = any_float();
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
	return good && word == CANARY;
}

static bool convert_check(const struct kernels *k, const struct wall *wide, const struct wall *narrow)
{
	const size_t n = length();
	float *f = wall_before(wide, n * 4);
	uint16_t *b = wall_before(narrow, n * 2);
	bool good = true;

	for (size_t i = 0; i < n; i++) { /* any bits: NaNs of every kind, ties, values that round to infinity */
		uint32_t any = (uint32_t)tap_random(&seed);

		if (once_in(3))
			any = (any & 0xffff0000u) | 0x8000;
		memcpy(&f[i], &any, 4);
	}
	f[-1] = 7.0f;
	b[-1] = 7;
	k->f32_to_bf16(n, f, b);
	for (size_t i = 0; i < n && good; i++) {
		const double want = nearest_bf16(f[i]), got = decode_bf16[b[i]];

		good = isnan(want) ? isnan(got) : got == want && !signbit(got) == !signbit(f[i]);
	}
	good = good && b[-1] == 7;
	k->bf16_to_f32(n, b, f);
	for (size_t i = 0; i < n && good; i++) {
		const uint32_t want = (uint32_t)b[i] << 16;

		good = memcmp(&f[i], &want, 4) == 0;
	}
	return good && f[-1] == 7.0f;
}

/* -- activations -------------------------------------------------------------------------------------------------- */

static const char *const act_names[] = {"SiLU", "GELU", "GELU-tanh", "clamped SwiGLU"};

#define ACT_ROWS 48
#define ACT_COLS 256

/* h = act(g, u) of rows numbers, by a matrix of zeros whose biases they are: so they arrive as they are. */
static void gated(const struct kernel_ops *ops, uint32_t format, const struct kernel_act *act, size_t rows,
		  const float *g, const float *u, float *h)
{
	static _Alignas(64) const char zeros[ACT_ROWS * ACT_COLS * 2];
	static _Alignas(64) char packed[ACT_COLS * 8];
	static const float x[ACT_COLS];
	struct kernel_matrix m = {.format = format,
				  .codes = zeros,
				  .pitch = moe_band_bytes(format, MOE_PLANE_CODES, ACT_COLS),
				  .scale_pitch = moe_band_bytes(format, MOE_PLANE_SCALES, ACT_COLS)};
	struct kernel_matrix up;
	const void *xs[1] = {packed};
	float *hs[1] = {h};

	if (moe_format_has(format, MOE_PLANE_SCALES))
		m.scales = zeros;
	if (moe_format_has(format, MOE_PLANE_ROW_SCALES))
		m.row_scales = (const float *)zeros;
	up = m;
	m.bias = g;
	up.bias = u;
	if (ops->pack_row)
		ops->pack_row(ACT_COLS, ops->block, x, packed);
	else
		memcpy(packed, x, sizeof(x));
	ops->gate_up(&m, &up, rows, ACT_COLS, act, 1, xs, hs);
}

/* The error of results in units of what is allowed. */
static double act_worst(const struct kernel_ops *ops, uint32_t format, const struct kernel_act *act)
{
	float g[ACT_ROWS], u[ACT_ROWS], h[ACT_ROWS];
	double worst = 0.0;

	for (size_t r = 0; r < ACT_ROWS; r++) {
		g[r] = once_in(4) ? ldexpf(plain_float(), -(int)pick(150)) : plain_float() * (once_in(2) ? 8 : 130);
		u[r] = act->kind == KERNEL_SWIGLU_CLAMPED ? plain_float() * 10 : 1.0f;
	}
	gated(ops, format, act, ACT_ROWS, g, u, h);
	for (size_t r = 0; r < ACT_ROWS; r++) {
		const struct dot gate = {.value = g[r]}, up = {.value = u[r]};
		const double want = kernel_gated(act, g[r], u[r]), f = act_value(act, g[r]);
		const double cut = fmax(-act->limit, fmin(act->limit, u[r]));
		const double factor = act->kind == KERNEL_SWIGLU_CLAMPED ? fabs(cut + 1.0) : 1.0;
		const double unit = act->kind == KERNEL_SILU ? fabs(f) : fabs((double)g[r]);
		const double allowed = 0x1p-21 * unit * factor + 0x1p-23 * fabs(want) + 0x1p-140 * (1.0 + factor);

		worst = fmax(worst, fabs(h[r] - want) / allowed);
		if (!gated_good(act, &gate, &up, h[r]))
			worst = INFINITY;
	}
	return worst;
}

static float gated_one(const struct kernel_ops *ops, uint32_t format, enum kernel_activation kind, float g, float u)
{
	const struct kernel_act act = {.kind = kind, .limit = 7.0f};
	float h;

	gated(ops, format, &act, 1, &g, &u, &h);
	return h;
}

/* What is not a number, or not finite. */
static bool act_extremes(const struct kernel_ops *ops, uint32_t f, enum kernel_activation kind)
{
	const bool clamped = kind == KERNEL_SWIGLU_CLAMPED;
	const float top = clamped ? (float)(7 / (1 + exp(-1.702 * 7))) : INFINITY;
	const float one = clamped ? 0.0f : 1.0f; /* the second factor is then 1 */
	bool good = isnan(gated_one(ops, f, kind, NAN, one)) && isnan(gated_one(ops, f, kind, 1.0f, NAN));

	good = good && isnan(gated_one(ops, f, kind, -INFINITY, one));
	good = good && gated_one(ops, f, kind, -3e38f, one) == 0.0f;
	if (!clamped)
		return good && gated_one(ops, f, kind, INFINITY, one) == INFINITY &&
		       gated_one(ops, f, kind, 3e38f, one) == 3e38f;
	good = good && fabsf(gated_one(ops, f, kind, INFINITY, one) - top) < 1e-5f;
	good = good && fabsf(gated_one(ops, f, kind, 3e38f, INFINITY) - 8 * top) < 1e-4f;
	return good && fabsf(gated_one(ops, f, kind, 9.0f, -INFINITY) + 6 * top) < 1e-4f;
}

static void activation_check(const struct kernels *k)
{
	for (enum kernel_activation kind = KERNEL_SILU; kind <= KERNEL_SWIGLU_CLAMPED; kind++) {
		const struct kernel_act act = {.kind = kind, .limit = 7.0f};
		bool extremes = true;
		double worst = 0.0;

		for (uint32_t f = 1; f < MOE_FORMAT_COUNT; f++) {
			const struct kernel_ops *ops = k->of[f];
			const bool slow = ops == kernels_get(ISA_REF)->of[f];
			bool good;

			for (int i = 0; i < (slow ? 2 : 40); i++)
				worst = fmax(worst, act_worst(ops, f, &act));
			good = act_extremes(ops, f, kind);
			if (!good)
				diag("%s: %s of extreme numbers", moe_formats[f].name, act_names[kind]);
			extremes = extremes && good;
		}
		ok(worst <= 1.0, "%s: %s within its bound (%.2f of it) in every format", k->variant, act_names[kind],
		   worst);
		ok(extremes, "%s: %s of NaN, infinities and huge numbers", k->variant, act_names[kind]);
	}
}

static void gated_check(void)
{
	const struct kernel_act silu = {.kind = KERNEL_SILU}, gelu = {.kind = KERNEL_GELU};
	const struct kernel_act gelu_tanh = {.kind = KERNEL_GELU_TANH};
	const struct kernel_act clamped = {.kind = KERNEL_SWIGLU_CLAMPED, .limit = 7.0f};

	ok(fabs(kernel_gated(&silu, 1, 2) - 2 * 0.7310585786300049) < 1e-15, "SiLU(1) * 2");
	ok(fabs(kernel_gated(&gelu, 1, 2) - 2 * 0.8413447460685429) < 1e-15, "GELU(1) * 2");
	ok(fabs(kernel_gated(&gelu_tanh, 1, 2) - 2 * 0.8411919906082768) < 1e-15, "GELU-tanh(1) * 2");
	ok(fabs(kernel_gated(&clamped, 1, 2) - 3 * 0.8457957659328212) < 1e-15, "clamped SwiGLU(1) * (2 + 1)");
	ok(kernel_gated(&clamped, 100, 50) == kernel_gated(&clamped, 7, 7) &&
		   kernel_gated(&clamped, -100, -50) == kernel_gated(&clamped, -100, -7),
	   "clamped SwiGLU: the gate is cut above, the other on both sides");
}

/* -- copies ------------------------------------------------------------------------------------------------------- */

static bool copy_check(const struct kernels *k, const struct wall *wfrom, const struct wall *wto)
{
	static const unsigned char edges[] = {0, 1, 63, 64, 65, 127, 128, 192};
	const size_t rows = pick(6), width = once_in(2) ? edges[pick(sizeof(edges))] : pick(200);
	const size_t pitch = once_in(2) ? width : width + pick(80);
	const size_t from_bytes = rows ? (rows - 1) * pitch + width : 0, skew = once_in(2) ? 0 : pick(64);
	char *from = wall_before(wfrom, from_bytes), *to = wall_before(wto, rows * width + skew);

	fill_random(from, from_bytes);
	fill_random(to, rows * width + skew);
	memset(to - 64, 0x5a, 64);
	memset(to + rows * width, 0x5a, skew);
	k->copy_rows(rows, width, pitch, from, to);
	for (size_t r = 0; r < rows; r++)
		if (memcmp(to + r * width, from + r * pitch, width) != 0)
			return false;
	for (size_t i = 0; i < 64 + skew; i++)
		if ((i < 64 ? to[(long)i - 64] : to[rows * width + i - 64]) != 0x5a)
			return false;
	return true;
}

/* -- tables ------------------------------------------------------------------------------------------------------- */

static void peak_check(const struct kernels *k, const char *what, uint64_t (*peak)(uint64_t rounds))
{
	if (peak)
		ok(peak(10) > 0 && peak(20) == 2 * peak(10), "%s: the peak of %s counts its work", k->variant, what);
}

/* -- columns ------------------------------------------------------------------------------------------------------ */

#define WIDE_ROWS 5
#define WIDE_TOKENS 40
#define WIDE_COLS 150000 /* beyond 2^17 the sums of INT8's products need more than 32 bits */

/* All products of a row are as large as can be, or the row's last but one and no other is zero. */
static int8_t wide_weight(size_t r, size_t c, size_t cols)
{
	return r % 2 == 0 ? (int8_t)(r ? 127 : -128) : c + 2 == cols ? 0 : (int8_t)(c % 3 ? 127 : -127);
}

/* Activations are all -1 or all 1: codes of 127. */
static bool wide_check(const struct kernel_ops *ops, size_t cols, size_t tokens)
{
	const size_t pitch = kernel_packed_bytes(ops, cols);
	float scales[WIDE_ROWS], y[WIDE_TOKENS][WIDE_ROWS], *out[WIDE_TOKENS];
	static struct wall codes, packs, floats;
	int8_t *w;
	float *x;
	char *packed;
	const void *rows[WIDE_TOKENS];
	struct kernel_matrix m = {.format = MOE_FORMAT_INT8, .pitch = cols, .row_scales = scales};
	bool good = true;

	if (!codes.end) {
		codes = wall_new((size_t)WIDE_ROWS * WIDE_COLS);
		packs = wall_new(2 * (WIDE_COLS * sizeof(float) + 128));
		floats = wall_new(WIDE_COLS * sizeof(float));
	}
	m.codes = w = wall_before(&codes, WIDE_ROWS * cols);
	x = wall_before(&floats, cols * sizeof(float));
	packed = wall_before(&packs, 2 * pitch);
	for (size_t i = 0; i < 2; i++) {
		for (size_t c = 0; c < cols; c++)
			x[c] = i ? 1.0f : -1.0f;
		if (ops->pack_row)
			ops->pack_row(cols, ops->block, x, packed + i * pitch);
		else
			memcpy(packed + i * pitch, x, cols * sizeof(float));
	}
	for (size_t t = 0; t < tokens; t++) {
		rows[t] = packed + t % 2 * pitch;
		out[t] = y[t];
	}
	for (size_t r = 0; r < WIDE_ROWS; r++) {
		scales[r] = 1.0f;
		for (size_t c = 0; c < cols; c++)
			w[r * cols + c] = wide_weight(r, c, cols);
	}
	ops->matmul(&m, WIDE_ROWS, cols, tokens, rows, out);
	for (size_t r = 0; r < WIDE_ROWS; r++) {
		double sum = 0.0;

		for (size_t c = 0; c < cols; c++)
			sum += wide_weight(r, c, cols);
		for (size_t t = 0; t < tokens; t++)
			good = good && fabs((double)y[t][r] - (t % 2 ? sum : -sum)) <= 0x1p-20 * fabs(sum) + 0x1p-10;
	}
	return good;
}

static void columns_check(const struct kernels *k)
{
	static const size_t cols[] = {1u << 17, (1u << 17) + 1, WIDE_COLS}, tokens[] = {1, 3, 12, 32, WIDE_TOKENS};
	bool good = true;

	for (size_t i = 0; i < sizeof(cols) / sizeof(cols[0]); i++)
		for (size_t j = 0; j < sizeof(tokens) / sizeof(tokens[0]); j++)
			if (!wide_check(k->of[MOE_FORMAT_INT8], cols[i], tokens[j])) {
				diag("%s: %zu columns, %zu tokens", k->variant, cols[i], tokens[j]);
				good = false;
			}
	ok(good, "%s: INT8 with more columns than 32 bits have room for", k->variant);
}

static void table_check(const struct kernels *k)
{
	const struct wall a = wall_new((FLOATS_MAX + 1) * 4), b = wall_new((FLOATS_MAX + 1) * 4);
	bool good = true;

	for (int i = 0; i < 1000 && good; i++)
		good = axpy_check(k, &a, &b);
	ok(good, "%s: axpy", k->variant);
	for (int i = 0; i < 1000 && good; i++)
		good = convert_check(k, &a, &b);
	ok(good, "%s: bfloat16 there and back", k->variant);
	for (int i = 0; i < 4000 && good; i++)
		good = copy_check(k, &a, &b);
	ok(good, "%s: rows are packed", k->variant);
	activation_check(k);
	columns_check(k);
	peak_check(k, "FP32", k->peak_f32);
	peak_check(k, "BF16", k->peak_bf16);
	peak_check(k, "INT8", k->peak_int8);
}

int main(void)
{
	const char *table = getenv("TEST_TABLE");
	const struct kernels *k;
	struct cpu_words words;
	uint32_t features;

	seed = tap_seed();
	decode_tables();
	features_check();
	decide_check();
	gated_check();
	cpu_words_read(&words);
	features = cpu_features(&words);
	levels_check(features);
	for (unsigned i = 0; (k = kernels_runnable(features, i)); i++)
		if (!table || strcmp(table, k->variant) == 0)
			table_check(k);
	return tap_done();
}
