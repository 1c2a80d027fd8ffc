/* SPDX-License-Identifier: MIT */
/*
 * test-formats - every table of kernels that this CPU can run, in every format, on random problems: results within the
 * bound that kernels.h states, nothing written outside the outputs, nothing read outside the inputs, the same bits
 * alone and in company.
 *
 *   TEST_SHAPES=N           problems for each format (10000, of twins 60; where sanitizers are on a tenth)
 *   TEST_COMPANIES=4        problems for each format that are also run in pieces (32, of twins 4; sanitized a quarter)
 *   TEST_FORMAT=q4_k        this format only
 *   TEST_TABLE=avx512+vnni  this table only
 *   TEST_SEED=N TEST_SHAPES=N TEST_PROBLEM=I  one problem again
 */
#include <signal.h>

#include "kernels/detect.h"
#include "tests/kernel-dots.h"
#include "tests/kernel-groups.h"

/* Built a second time as test-cuda-formats, with the twins of the CUDA kernels. */
#ifdef TEST_CUDA_TWINS
#include "tests/cuda-tables.h"
#define TABLE_RUNNABLE cuda_table
#define SHAPES_MOST 60
#define LARGE_EVERY 30
#else
#define TABLE_RUNNABLE kernels_runnable
#define SHAPES_MOST 10000
#define LARGE_EVERY 250
#endif

#define TABLES_MAX 16

/* The operations of one or more tables for a format. */
struct subject {
	const struct kernel_ops *ops;
	const char *table; /* the first of them */
	bool slow;         /* one weight at a time */
	bool good_results, good_company;
};

static struct subject subjects[TABLES_MAX];
static size_t subject_count;
static const struct kernels *tables[TABLES_MAX];
static size_t table_count;

static struct problem problem;
static struct dots dots;
static unsigned long long base_seed;
static long shapes = 1000, companies = SHAPES_MOST < 1000 ? 4 : 32, only = -1, at_problem;
static volatile const char *running = "nothing";
static const struct subject *running_subject;

/* -- words -------------------------------------------------------------------------------------------------------- */

static void describe(const struct subject *s, const char *what)
{
	const struct problem *p = &problem;

	diag("%s %s, %s: rows %zu cols %zu tokens %zu from row %zu column %zu, %s data, bias %d%d, pack %d, act %d "
	     "limit %g; "
	     "TEST_SEED=%llu TEST_SHAPES=%ld TEST_FORMAT=%s TEST_PROBLEM=%ld",
	     s->table, moe_formats[p->format].name, what, p->rows, p->cols, p->tokens, p->row0, p->col0,
	     p->data == DATA_PLAIN ? "plain" : "special", p->m[0].bias != NULL, p->m[1].bias != NULL, (int)s->ops->pack,
	     (int)p->act.kind, (double)p->act.limit, base_seed, shapes, moe_formats[p->format].name, at_problem);
}

static void fatal(int number)
{
	if (running_subject)
		describe(running_subject, (const char *)running);
	printf("Bail out! signal %d in %s\n", number, (const char *)running);
	fflush(stdout);
	_exit(1);
}

/* -- one problem -------------------------------------------------------------------------------------------------- */

/* Rounding, flushing of denormals and masks; not the flags of what has happened. */
static uint32_t control_word(void)
{
	return __builtin_ia32_stmxcsr() & ~0x3fu;
}

static bool pack_check(struct problem *p, const struct subject *s)
{
	static double x[COLS_MAX];
	bool fresh = dots.x_count != p->tokens * p->cols;

	running = "pack_row";
	if (!problem_pack(p, s->ops)) {
		describe(s, "pack_row wrote beyond its bytes");
		return false;
	}
	for (size_t t = 0; t < p->tokens; t++) {
		double *known = dots.x + t * p->cols;

		if (!unpack(s->ops, p->cols, p->packed[t], x)) {
			describe(s, "a packed row is not laid out as it should");
			return false;
		}
		if (!pack_good(s->ops, p->cols, p->x[t], x)) {
			describe(s, "a packed row is not what was packed");
			return false;
		}
		if (fresh || memcmp(known, x, p->cols * sizeof(x[0])) != 0) {
			memcpy(known, x, p->cols * sizeof(x[0]));
			fresh = true;
		}
	}
	if (fresh)
		dots_fill(&dots, p);
	dots.x_count = p->tokens * p->cols;
	return true;
}

static void matmul_run(struct problem *p, const struct subject *s)
{
	running = "matmul";
	s->ops->matmul(&p->m[0], p->rows, p->cols, p->tokens, p->packed, p->out);
}

static void gate_up_run(struct problem *p, const struct subject *s)
{
	running = "gate_up";
	s->ops->gate_up(&p->m[0], &p->m[1], p->rows, p->cols, &p->act, p->tokens, p->packed, p->out);
}

/* The first p->tokens results; with `rounded` factors, as groups of PACK_I8_BLOCK have them. */
static bool results_good(const struct problem *p, const struct subject *s, bool gated, float *const *out, bool rounded)
{
	const double more = rounded ? 0x1p-7 + 0x1p-16 : 0.0;
	const enum kernel_pack pack = s->ops->pack;

	for (size_t t = 0; t < p->tokens; t++)
		for (size_t r = 0; r < p->rows; r++) {
			struct dot g = dot_of(p, &dots, pack, 0, r, t), u = dot_of(p, &dots, pack, 1, r, t);
			const double got = (double)out[t][r];

			g.bound += more * g.magnitude;
			u.bound += more * u.magnitude;
			if (gated ? gated_good(&p->act, &g, &u, got) : dot_good(&g, got))
				continue;
			describe(s, (const char *)running);
			diag("result [%zu][%zu] is %.9g; gate %.9g +- %.3g%s%s%s, up %.9g +- %.3g", t, r, got, g.value,
			     g.bound, g.wide ? " wide" : "", g.loose ? " loose" : "", g.odd ? " odd" : "", u.value,
			     u.bound);
			return false;
		}
	return true;
}

/* As many tokens as there are, or more than a call's. */
static bool groups_good(const struct problem *p, const struct subject *s, bool gated)
{
	const bool rounded = s->ops->pack == PACK_I8_BLOCK;
	const size_t tokens = once_in(8) ? p->tokens + pick(GROUP_TOKENS_MOST - p->tokens + 1) : p->tokens;
	float *out[GROUP_TOKENS_MOST];
	const char *wrong;

	if (!s->ops->groups || !p->tokens)
		return true;
	running = gated ? "gate_up of groups" : "matmul of groups";
	wrong = groups_run(p, s->ops, gated, tokens, out);
	if (!wrong && !groups_same(p, out, tokens, rounded ? out : p->out))
		wrong = rounded ? "tokens of a group have other bits when they come again"
				: "groups do not have the rows' bits";
	if (wrong) {
		describe(s, wrong);
		diag("in %s of %zu tokens", (const char *)running, tokens);
	}
	return !wrong && (!rounded || results_good(p, s, gated, out, true));
}

static bool subject_check(struct problem *p, const struct subject *s)
{
	const uint32_t control = control_word();
	bool good;

	running_subject = s;
	if (!pack_check(p, s))
		return false;
	for (int gated = 0; gated < 2; gated++) {
		outputs_new(p);
		(gated ? gate_up_run : matmul_run)(p, s);
		good = canaries_live(p);
		if (!good || control_word() != control)
			describe(s, good ? "the control word of SSE has changed"
					 : "something outside the outputs has changed");
		if (!good || control_word() != control || !results_good(p, s, gated, p->out, false) ||
		    !groups_good(p, s, gated))
			return false;
	}
	return true;
}

/* -- shapes ------------------------------------------------------------------------------------------------------- */

static void shape_small(struct problem *p, uint32_t format)
{
	static const unsigned char rows[] = {0, 1, 2, 7, 8, 15, 16, 17, 31, 32, 33, 48};
	/* Those from 28 on have a lane each at AVX-512, but for 33, which would leave too many idle. */
	static const unsigned char tokens[] = {0,  1,  1,  1,  2,  3,  4,  5,  6,  7,  8, 9,
					       12, 13, 16, 17, 24, 28, 31, 32, 33, 47, 64};
	static const unsigned short cols[] = {0, 1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 160, 256, 257, 300};
	const size_t block = moe_formats[format].block, unit = format == MOE_FORMAT_FP8_BLOCK ? 1 : col_unit(format);

	p->rows = once_in(2) ? rows[pick(sizeof(rows))] : 1 + pick(once_in(2) ? 16 : 48);
	if (once_in(6)) /* enough for streams side by side */
		p->rows = 64 + pick(70);
	p->tokens = once_in(3) ? tokens[pick(sizeof(tokens))] : 1 + pick(once_in(2) ? 4 : 9);
	if (unit == 1)
		p->cols = once_in(2) ? cols[pick(sizeof(cols) / sizeof(cols[0]))] : pick(300);
	else if (once_in(50))
		p->cols = 0;
	else
		p->cols = block * (1 + pick(block == 32 ? 9 : block == 64 ? 5 : 2));
}

/* Around the edges of blocks, but not all three large at once. */
static void shape_large(struct problem *p, uint32_t format)
{
	const size_t unit = col_unit(format);
	const uint32_t which = pick(5);

	if (which == 3) { /* more columns than a kernel takes in one part */
		p->rows = 1 + pick(40);
		p->tokens = 1 + pick(12);
		p->cols = 8449 + pick(28000);
	} else if (which == 4) { /* more rows than one takes in a run */
		p->rows = 256 + pick(448);
		p->tokens = 1 + pick(40);
		p->cols = 64 + pick(400);
	} else {
		p->rows = which == 0 ? 16 + pick(33) : 64 + pick(137);
		p->tokens = which == 1 ? 1 + pick(9) : 16 + pick(once_in(4) ? 121 : 55);
		p->cols = which == 2 ? 256 + pick(513) : 2048 + pick(which == 1 ? 2100 : 6253);
	}
	if (format == MOE_FORMAT_FP8_BLOCK ? once_in(2) : unit > 1)
		p->cols = (p->cols + unit - 1) / unit * unit;
}

static void check_problem(uint32_t format, long i)
{
	const long every = shapes < 2 * LARGE_EVERY ? shapes / 2 + 1 : LARGE_EVERY; /* one at least */
	const bool large = i % every == every - 1;

	seed = (base_seed * 31 + format) * 0x9e3779b97f4a7c15ULL + (unsigned long long)i * 0xd1342543de82ef95ULL + 1;
	tap_random(&seed);
	at_problem = i;
	(large ? shape_large : shape_small)(&problem, format);
	running = "making a problem";
	running_subject = NULL;
	problem_new(&problem, format, once_in(2) ? DATA_PLAIN : DATA_SPECIAL);
	dots.x_count = SIZE_MAX;
	if (!problem_weights_good(&problem, 8))
		for (size_t s = 0; s < subject_count; s++)
			subjects[s].good_results = false;
	for (size_t s = 0; s < subject_count; s++) {
		if (subjects[s].slow && (large || (i % 16 && only < 0)))
			continue;
		if (subjects[s].good_results)
			subjects[s].good_results = subject_check(&problem, &subjects[s]);
	}
}

/* -- company ------------------------------------------------------------------------------------------------------ */

static float together[2][TOKENS_MAX][ROWS_MAX];

/* The problem's rows from `row` on, `rows` of them, and its tokens from `token` on: the bits of `together`? */
static bool alone_same(struct problem *p, const struct subject *s, size_t row, size_t rows, size_t token, size_t tokens)
{
	struct problem part = *p;
	bool good = true;

	part.rows = rows;
	part.tokens = tokens;
	part.packed = p->packed + token;
	for (int i = 0; i < 2; i++)
		part.m[i] = kernel_rows(&p->m[i], row);
	for (int gated = 0; gated < 2; gated++) {
		outputs_new(&part);
		(gated ? gate_up_run : matmul_run)(&part, s);
		for (size_t t = 0; t < tokens; t++)
			good = good && memcmp(part.out[t], &together[gated][token + t][row], 4 * rows) == 0;
	}
	if (!good) {
		describe(s, "the same bits alone and in company");
		diag("not so for %zu rows from %zu on and %zu tokens from %zu on", rows, row, tokens, token);
	}
	return good;
}

static bool company_check(struct problem *p, const struct subject *s)
{
	const size_t unit = row_unit(p->format);
	bool good = true;

	running_subject = s;
	problem_pack(p, s->ops);
	for (int gated = 0; gated < 2; gated++) {
		outputs_new(p);
		(gated ? gate_up_run : matmul_run)(p, s);
		for (size_t t = 0; t < p->tokens; t++)
			memcpy(together[gated][t], p->out[t], 4 * p->rows);
	}
	for (size_t t = 0; t < p->tokens && good; t++)
		good = alone_same(p, s, 0, p->rows, t, 1);
	for (int i = 0; i < 12 && good; i++) {
		const size_t row = pick((uint32_t)(p->rows / unit)) * unit, token = pick((uint32_t)p->tokens);
		const size_t rows = p->rows - row, tokens = p->tokens - token;

		good = alone_same(p, s, row, once_in(2) ? rows : 1 + pick((uint32_t)least(rows, 40)), token,
				  once_in(2) ? 1 + pick((uint32_t)least(tokens, 9)) : tokens);
	}
	return good;
}

static void check_company(uint32_t format, long i)
{
	const bool wide = i % 4 == 3;

	seed = base_seed * 37 + format * 1000 + (unsigned long long)i + 1;
	at_problem = -1;
	(wide ? shape_large : shape_small)(&problem, format);
	problem.rows += problem.rows == 0;
	problem.tokens += problem.tokens == 0;
	problem_new(&problem, format, DATA_PLAIN);
	for (size_t s = 0; s < subject_count; s++)
		if (subjects[s].good_company && !(subjects[s].slow && (wide || i % 8)))
			subjects[s].good_company = company_check(&problem, &subjects[s]);
}

/* -- formats ------------------------------------------------------------------------------------------------------ */

static struct subject *subject_of(const struct kernel_ops *ops)
{
	for (size_t s = 0; s < subject_count; s++)
		if (subjects[s].ops == ops)
			return &subjects[s];
	return NULL;
}

/* Tables may share operations, which are run once. */
static void subjects_make(uint32_t format)
{
	const struct kernel_ops *plain = kernels_get(ISA_REF)->of[format];

	subject_count = 0;
	for (size_t k = 0; k < table_count; k++) {
		const struct kernel_ops *ops = tables[k]->of[format];

		if (ops && !subject_of(ops))
			subjects[subject_count++] = (struct subject){.ops = ops,
								     .table = tables[k]->variant,
								     .slow = ops == plain,
								     .good_results = true,
								     .good_company = true};
	}
}

static void format_check(uint32_t format)
{
	const char *name = moe_formats[format].name;

	subjects_make(format);
	if (only >= 0)
		check_problem(format, only);
	for (long i = 0; i < shapes && only < 0; i++)
		check_problem(format, i);
	for (long i = 0; i < companies && only < 0; i++)
		check_company(format, i);
	for (size_t k = 0; k < table_count; k++) {
		const struct subject *s = subject_of(tables[k]->of[format]);

		if (!ok(s != NULL, "%s, %s: has operations", tables[k]->variant, name))
			continue;
		ok(s->good_results, "%s, %s: results within their bounds (operations of %s)", tables[k]->variant, name,
		   s->table);
		ok(s->good_company, "%s, %s: the same bits alone and in company", tables[k]->variant, name);
	}
}

int main(void)
{
	const char *count = getenv("TEST_SHAPES"), *one = getenv("TEST_PROBLEM");
	const char *format = getenv("TEST_FORMAT"), *table = getenv("TEST_TABLE"), *company = getenv("TEST_COMPANIES");
	const char *sanitized = getenv("MOE_SANITIZED");
	const uint32_t features = cpu_features_here();
	const struct kernels *k;

	shapes = count ? atol(count) : sanitized && *sanitized ? SHAPES_MOST / 10 : SHAPES_MOST;
	companies = company ? atol(company) : sanitized && *sanitized ? companies / 4 : companies;
	only = one ? atol(one) : only;
	base_seed = seed = tap_seed();
	for (int i = 0; i < 4; i++)
		signal((const int[]){SIGSEGV, SIGBUS, SIGILL, SIGFPE}[i], fatal);
	for (unsigned i = 0; table_count < TABLES_MAX && (k = TABLE_RUNNABLE(features, i)); i++)
		if (!table || strcmp(table, k->variant) == 0)
			tables[table_count++] = k;
	if (table_count == 0) {
		printf("Bail out! this CPU runs no table named %s\n", table);
		return 1;
	}
	problem_init(&problem);
	for (uint32_t f = MOE_FORMAT_NONE + 1; f < MOE_FORMAT_COUNT; f++)
		if (!format || strcmp(format, moe_formats[f].name) == 0)
			format_check(f);
	return tap_done();
}
