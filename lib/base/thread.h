/* SPDX-License-Identifier: MIT */
/* thread - threads of a library, which must not take the signals that are meant for its user's threads. */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* As pthread_create; 0 or a negative errno. No signal but those of the thread's own faults is delivered to it: a user
 * who blocks signals later, to take them by sigwait or signalfd, would lose them to it. */
static inline int thread_start(pthread_t *ret, void *(*run)(void *), void *arg)
{
	static const int faults[] = {SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
	sigset_t blocked, before;
	int r;

	sigfillset(&blocked);
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		sigdelset(&blocked, faults[i]);
	pthread_sigmask(SIG_SETMASK, &blocked, &before);
	r = -pthread_create(ret, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return r;
}

#endif
