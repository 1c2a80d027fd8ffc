/* SPDX-License-Identifier: MIT */
/*
 * test-amx - what AMX needs beside right results (test-formats): the process has permission, calls leave no tile state
 * behind, and integers have the bits that AVX-512 gives them. Where there is no AMX nothing is tested.
 */
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "kernels/detect.h"
#include "kernels/levels.h"
#include "tests/kernel-problem.h"

static struct problem problem;

static sigjmp_buf refused;

static void refuse(int number)
{
	siglongjmp(refused, number);
}

/* Whether there are no tiles: then an instruction on one is refused. */
static bool tiles_released(void)
{
	if (sigsetjmp(refused, 1))
		return true;
	__asm__ volatile("tilezero %%tmm0" ::);
	return false;
}

/* How a child that does this ends: its exit code, or minus the signal. */
static int child_end(int (*what)(void))
{
	int status = 0;

	fflush(stdout);
	switch (fork()) {
	case -1:
		return -1;
	case 0:
		_exit(what());
	default:
		wait(&status);
		return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
	}
}

static int use_unasked(void)
{
	peak_int8_amx(1);
	return 0;
}

/* Linux refuses the tiles while a signal stack has no room for them. */
static int ask_in_vain(void)
{
	static char small[6144];
	const char *why = "";
	enum isa isa;

	if (sigaltstack(&(stack_t){.ss_sp = small, .ss_size = sizeof(small)}, NULL) < 0)
		return 2;
	isa = isa_detect(&why);
	return isa == ISA_AVX512 && strstr(why, "refused") && isa_from_name("amx", &isa) < 0 &&
			       kernels_get(ISA_AMX) == kernels_get(ISA_AVX512)
		       ? 0
		       : 1;
}

static void run(const struct kernel_ops *ops, int gated)
{
	if (gated)
		ops->gate_up(&problem.m[0], &problem.m[1], problem.rows, problem.cols, &problem.act, problem.tokens,
			     problem.packed, problem.out);
	else
		ops->matmul(&problem.m[0], problem.rows, problem.cols, problem.tokens, problem.packed, problem.out);
}

/* One format with so many tokens: no state is left; with `other` the results are those operations'. */
static void format_check(uint32_t format, size_t tokens, const struct kernel_ops *ops, const struct kernel_ops *other)
{
	static float results[TOKENS_MAX][ROWS_MAX];
	bool released = true, same = true;

	problem.rows = 1 + pick(70);
	problem.cols = col_unit(format) == 1 ? 1 + pick(1000)
					     : col_unit(format) * (1 + pick(1024 / (uint32_t)col_unit(format)));
	problem.tokens = tokens;
	problem_new(&problem, format, DATA_PLAIN);
	problem_pack(&problem, ops);
	for (int gated = 0; gated < 2; gated++) {
		outputs_new(&problem);
		run(ops, gated);
		released = released && tiles_released();
		if (!other)
			continue;
		for (size_t t = 0; t < tokens; t++)
			memcpy(results[t], problem.out[t], problem.rows * sizeof(float));
		problem_pack(&problem, other);
		outputs_new(&problem);
		run(other, gated);
		for (size_t t = 0; t < tokens; t++)
			same = same && memcmp(results[t], problem.out[t], problem.rows * sizeof(float)) == 0;
	}
	ok(released, "%s, %zu tokens: the tiles are released", moe_formats[format].name, tokens);
	if (other)
		ok(same, "%s, %zu tokens: the bits of AVX-512 (%zu rows, %zu columns)", moe_formats[format].name,
		   tokens, problem.rows, problem.cols);
}

int main(void)
{
	static const size_t tokens[] = {1, 6, 16, 17, 40};
	struct cpu_words words;
	const char *why;
	enum isa isa;

	seed = tap_seed();
	cpu_words_read(&words);
	if (!(cpu_features(&words) & CPU_AMX)) {
		tap_skip("this CPU has no AMX; scripts/amx-lane.sh runs this test where there is");
		return tap_done();
	}
	ok(child_end(use_unasked) == -SIGILL, "tiles without permission end a process");
	ok(child_end(ask_in_vain) == 0, "where the kernel refuses, the level is avx512, and the reason is said");
	isa = isa_detect(&why);
	require(isa == ISA_AMX, "the level is amx (%s)", why);
	ok(kernels_get(ISA_AMX) == &kernels_amx && kernels_get(ISA_AVX512) != &kernels_amx, "tables of amx and avx512");
	ok(peak_bf16_amx(10) > 0 && peak_int8_amx(10) > 0, "the peaks run");
	signal(SIGILL, refuse);
	ok(tiles_released(), "... and release the tiles");
	problem_init(&problem);
	for (uint32_t f = MOE_FORMAT_NONE + 1; f < MOE_FORMAT_COUNT; f++) {
		const struct kernel_ops *ops = kernels_amx.of[f], *other = kernels_get(ISA_AVX512)->of[f];
		const bool whole = ops->pack == PACK_I8_ROW || ops->pack == PACK_I8_BLOCK;

		for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++)
			format_check(f, tokens[i], ops, whole && other->pack == ops->pack ? other : NULL);
	}
	return tap_done();
}
