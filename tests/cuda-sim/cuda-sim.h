/* SPDX-License-Identifier: MIT */
/*
 * cuda-sim - what a test says to the simulated driver that it runs on, beside the environment:
 *
 * CUSIM_SEED=N        the order in which streams go on (1)
 * CUSIM_DELAY=US      each command waits at random up to this long before it runs (0)
 * CUSIM_DEVICES=N     (1)
 * CUSIM_READ_ONLY=1   devices can register read-only memory (attribute 113)
 * CUSIM_SAME=1        registered memory has one address on host and device, as on most machines; without it only memory
 *                     that cannot be mapped twice has
 * CUSIM_PAGEABLE=1    devices read all memory of the host by its page tables (attributes 88 and 100)
 * CUSIM_NO_DMA_BUF=1  devices have no dma-bufs (attribute 124)
 * CUSIM_FAIL=CALL:N   the N-th call of that name fails; CALL:N+ that one and all later ones. '*' is any call but those
 *                     that release. 'run': the N-th command fails while it runs: from then on every call fails
 * CUSIM_HANG=CALL     calls of that name do not return
 * CUSIM_MUTANT=drop-wait:SITE  the waits that this place in the program asks for are left out; drop-wait:none does
 *                     nothing but, with CUSIM_LOG, name the places
 * CUSIM_MUTANT=no-reset       the zeros that batches of memory operations write are left out
 * CUSIM_LOG=FILE      what the mutants' driver wants to know
 *
 * A program finds these functions with dlsym in the libcuda.so.1 that it has loaded.
 */
#ifndef TESTS_CUDA_SIM_H
#define TESTS_CUDA_SIM_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct cuda_sim {
	void (*fail)(const char *what);       /* as CUSIM_FAIL says, counted from here on; NULL: no more failures */
	unsigned long (*calls)(void);         /* that could have failed, since the latest fail() */
	unsigned long (*runs)(void);          /* commands that have run, likewise */
	unsigned (*live)(void);               /* objects and memory that nobody has given back, contexts too */
	void (*delay)(unsigned microseconds); /* CUSIM_DELAY from here on */
};

/* False: the libcuda.so.1 here is not the simulated one, or there is none. */
__attribute__((unused)) static bool cuda_sim_find(struct cuda_sim *ret)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	size_t i;
	static const char *const names[] = {"cusim_fail", "cusim_calls", "cusim_runs", "cusim_live", "cusim_delay"};
	void *found[5];

	for (i = 0; i < 5; i++) {
		found[i] = library ? dlsym(library, names[i]) : NULL;
		if (!found[i])
			return false;
	}
	memcpy(ret, found, sizeof *ret);
	return true;
}

#endif
