/* SPDX-License-Identifier: MIT */
/*
 * cpu-floor - programs end with a sentence, not with SIGILL, on a CPU that they were not compiled for.
 *
 * All else is compiled for x86-64-v3; this file is for every x86-64, is linked into each program and runs before any
 * other code of ours. The library does not have it: it is not its place to end somebody else's process.
 */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#define EXIT_CANNOT_RUN 77

/* CPUs that have these have all of x86-64-v3. GCC's words count the operating system's part: saved AVX registers. */
__attribute__((constructor(101))) static void cpu_floor(void)
{
	__builtin_cpu_init();
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
	    __builtin_cpu_supports("bmi2"))
		return;
	dprintf(STDERR_FILENO,
		"%s: needs a CPU with AVX2, FMA, BMI1 and BMI2 (x86-64-v3: Intel from Haswell on, AMD from Zen on), "
		"and this one, or the operating system, does not offer them; in a virtual machine choose a CPU model "
		"that passes them on\n",
		program_invocation_short_name);
	_exit(EXIT_CANNOT_RUN);
}
