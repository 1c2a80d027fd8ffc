/* SPDX-License-Identifier: MIT */
/*
 * thread - threads that compute, and threads of a library, which must not take the signals that are meant for its
 * user's threads.
 *
 * Law: what a thread computes does not depend on who began it. A new thread has its maker's control of floating-point
 * arithmetic (MXCSR), which may flush denormals (torch.set_flush_denormal, a library built with -ffast-math), and a
 * stack as large as `ulimit -s` says, which may be less than kernels need.
 */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

/* What kernels keep of blocks lies on the stack, up to a megabyte. */
#define THREAD_STACK_BYTES ((size_t)4 << 20)

/* As pthread_create; 0 or a positive errno. The thread's arithmetic is IEEE 754's: to nearest, with denormals, without
 * traps. */
static inline int thread_create(pthread_t *ret, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
	const unsigned int own = __builtin_ia32_stmxcsr();
	int r;

	__builtin_ia32_ldmxcsr(0x1f80);
	r = pthread_create(ret, attr, run, arg);
	__builtin_ia32_ldmxcsr(own);
	return r;
}

/* The same; 0 or a negative errno. No signal but those of the thread's own faults is delivered to it: a user who blocks
 * signals later, to take them by sigwait or signalfd, would lose them to it. */
static inline int thread_start(pthread_t *ret, void *(*run)(void *), void *arg)
{
	static const int faults[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
	sigset_t blocked, before;
	pthread_attr_t attr;
	int r;

	sigfillset(&blocked);
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		sigdelset(&blocked, faults[i]);
	r = pthread_attr_init(&attr);
	if (r)
		return -r;
	pthread_attr_setstacksize(&attr, THREAD_STACK_BYTES);
	pthread_sigmask(SIG_SETMASK, &blocked, &before);
	r = thread_create(ret, &attr, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return -r;
}

#endif
