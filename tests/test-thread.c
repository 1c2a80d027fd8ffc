/* SPDX-License-Identifier: MIT */
/* What a thread computes does not depend on who began it: it has IEEE 754's arithmetic, and a stack for kernels. */
#include <pthread.h>

#include "base/thread.h"
#include "tests/tap.h"

struct seen {
	unsigned int csr;
	size_t stack;
};

static void *look(void *arg)
{
	struct seen *seen = arg;
	pthread_attr_t attr;

	seen->csr = __builtin_ia32_stmxcsr();
	if (pthread_getattr_np(pthread_self(), &attr) == 0) {
		pthread_attr_getstacksize(&attr, &seen->stack);
		pthread_attr_destroy(&attr);
	}
	return NULL;
}

/* As in a program that flushes denormals, where `ulimit -s` is 256. */
static void test_threads(void)
{
	const unsigned int flushes = __builtin_ia32_stmxcsr() | 0x8040;
	pthread_attr_t before, small;
	struct seen seen = {0};
	unsigned int after;
	pthread_t thread;
	int r;

	pthread_getattr_default_np(&before);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 256 << 10);
	pthread_setattr_default_np(&small);
	__builtin_ia32_ldmxcsr(flushes);
	r = thread_start(&thread, look, &seen);
	after = __builtin_ia32_stmxcsr();
	__builtin_ia32_ldmxcsr(flushes & ~0x8040u);
	pthread_setattr_default_np(&before);
	require(r == 0 && pthread_join(thread, NULL) == 0, "a thread");
	ok(seen.csr == 0x1f80 && after == flushes, "it has denormals, and its maker none as before");
	ok(seen.stack >= 4 << 20, "it has room for kernels (%zu bytes)", seen.stack);
	pthread_attr_destroy(&small);
	pthread_attr_destroy(&before);
}

int main(void)
{
	test_threads();
	return tap_done();
}
