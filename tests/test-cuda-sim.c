/* SPDX-License-Identifier: MIT */
/*
 * The simulated driver's own rules: what CUDA allows works, and each breach of a rule ends the program with words that
 * say which. Each case is a process of its own, which has the driver to itself: this program with the case's name.
 */
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cuda-sim/case-breaks.h"
#include "tests/cuda-sim/case-graphs.h"
#include "tests/cuda-sim/case-works.h"
#include "tests/tap.h"

static const struct test_case {
	const char *name;
	void (*run)(void);
	const char *words; /* that the end comes with; NULL: it works */
	const char *knob;  /* with a value */
} cases[] = {
	{"copies, a kernel and back", works_round_trip, NULL, NULL},
	{"rows, and copies in a batch", works_rows_and_batch, NULL, NULL},
	{"events: never recorded, recorded again, times", works_events, NULL, NULL},
	{"an event orders two streams", works_ordered, NULL, "CUSIM_DELAY=300"},
	{"words order streams and host", works_words, NULL, "CUSIM_DELAY=300"},
	{"a copy's bytes arrive when the host has asked", works_late_arrival, NULL, NULL},
	{"mapped and exported memory", works_mapped_memory, NULL, NULL},
	{"what a correct program may meet is an error", works_refusals, NULL, NULL},
	{"calls that fail", works_failing_call, NULL, NULL},
	{"commands that fail", works_failing_run, NULL, NULL},
	{"two copies that no event orders", race_of_copies, "race", NULL},
	{"the same, long after each other", race_of_copies_far_apart, "race", NULL},
	{"a kernel and a copy that no event orders", race_with_kernel, "race", NULL},
	{"two copies and the same host memory", race_in_host_memory, "race", NULL},
	{"a word without a barrier orders nothing", race_word_without_barrier, "race", NULL},
	{"a source that changes too early", source_changed, "were changed before", NULL},
	{"host memory that is not registered", unregistered, "not registered", NULL},
	{"a copy from two registrations", straddling, "not all of one registration", NULL},
	{"memory that is registered for reading", read_only_written, "for reading only", "CUSIM_READ_ONLY=1"},
	{"private mappings of files", private_file, "private mapping", NULL},
	{"a host's address in place of a device's", host_address_for_device, "no memory of the device", NULL},
	{"a device address of memory that has none", unmapped_registration, "DEVICEMAP", NULL},
	{"a copy past the end", out_of_range, "end 1 behind", NULL},
	{"memory that was freed before the copy ran", use_after_free, "not any more", NULL},
	{"memory that is freed while a copy may use it", free_in_use, "may still write", NULL},
	{"the same of registered memory", unregister_in_use, "may still read", NULL},
	{"memory that is freed twice", freed_twice, "has been freed", NULL},
	{"a destroyed stream", stream_destroyed, "has been destroyed", NULL},
	{"an event in place of a stream", event_for_stream, "is not a stream", NULL},
	{"the default stream", default_stream, "NULL is given", NULL},
	{"no context", no_context, "no context is current", NULL},
	{"a context that goes before what is in it", context_left, "is left", NULL},
	{"a fork", after_fork, "this is a fork", NULL},
	{"times of events without timing", untimed, "without timing", NULL},
	{"a word that is not aligned", odd_word, "not aligned", NULL},
	{"a block of 1025 threads", large_block, "block 1025", NULL},
	{"more shared memory than allowed", much_shared_memory, "shared memory", NULL},
	{"an image that is no fat binary", not_a_fatbin, "not a fat binary", NULL},
	{"a kernel that there is not", no_such_kernel, "there is no kernel", NULL},
	{"a module that is unloaded too early", module_in_use, "is still to run", NULL},
	{"a kernel that writes past an allocation", kernel_past_the_end, "behind the end", NULL},
	{"an allocation of odd size", granule_not_kept, "granularity", NULL},
	{"a mapping without access", mapped_without_access, "may not write", NULL},
	{"a dma-buf of memory that was not made for it", dmabuf_not_meant, "gpuDirectRDMACapable", NULL},
	{"a dma-buf of part of a page", dmabuf_of_part_of_a_page, "not whole pages", NULL},
	{"memory of the host that only page tables know", pageable_written, "not registered", "CUSIM_PAGEABLE=1"},
	{"advice on memory that the device does not read", advised_unread, "attribute 88", NULL},
	{"advice on registered memory", advised_registered, "it is registered", "CUSIM_PAGEABLE=1"},
	{"a prefetch of memory that there is not", prefetched_nothing, "no memory of the device", "CUSIM_PAGEABLE=1"},
	{"a prefetch to a device that there is not", prefetched_nowhere, "no such place", "CUSIM_PAGEABLE=1"},
	{"addresses that are freed too early", freed_while_mapped, "still mapped", NULL},
	{"a batch in any order", batch_order, "stream's order", NULL},
	{"device memory read by the host", host_reads_device, "", NULL},
	{"a graph reads memory anew in each launch", works_replays, NULL, "CUSIM_DELAY=100"},
	{"a graph with branches", works_branches, NULL, "CUSIM_DELAY=100"},
	{"calls beside a capture, in a relaxed thread", works_relaxed, NULL, NULL},
	{"two graphs and the same memory", race_of_graphs, "race", NULL},
	{"a captured stream is waited for", captured_synchronized, "being captured", NULL},
	{"a captured stream is asked", captured_queried, "being captured", NULL},
	{"a captured event is asked", captured_event_queried, "recorded in a capture", NULL},
	{"an event is asked beside a capture", unsafe_beside_capture, "not permitted while", NULL},
	{"memory is made in a capturing thread", memory_beside_capture, "not permitted while", NULL},
	{"the default stream is captured", default_stream_captured, "NULL is given", NULL},
	{"a captured stream waits for what is outside", event_from_outside, "not of its capture", NULL},
	{"a stream waits for what was captured", event_from_inside, "that has ended", NULL},
	{"a branch that never comes back", not_joined, "not joined", NULL},
};

#define CASES (sizeof cases / sizeof *cases)

/* Runs a case and collects its words; the exit status as waitpid gives it. */
static int run_case(const char *program, size_t i, const char *knob, char *words, size_t room)
{
	char number[16];
	int fds[2], status = -1;
	ssize_t n;
	pid_t pid;

	snprintf(number, sizeof number, "%zu", i);
	if (pipe2(fds, O_CLOEXEC) < 0)
		abort();
	pid = fork();
	if (pid == 0) {
		dup2(fds[1], 2);
		setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
		if (knob)
			putenv((char *)knob);
		execl(program, program, number, (char *)NULL);
		_exit(127);
	}
	close(fds[1]);
	words[0] = 0;
	for (size_t at = 0; at + 1 < room && (n = read(fds[0], words + at, room - 1 - at)) > 0;)
		words[at += (size_t)n] = 0;
	close(fds[0]);
	waitpid(pid, &status, 0);
	return status;
}

static void judge(const struct test_case *c, int status, const char *words)
{
	bool right;

	if (!c->words)
		right = status == 0;
	else if (!c->words[0])
		right = status != 0 && !strstr(words, "works");
	else
		right = status != 0 && strstr(words, c->words) && !strstr(words, "must");
	if (!ok(right, "%s", c->name))
		diag("status %#x: %s", (unsigned)status, words);
}

/* A mutant that leaves one place's waits out is caught; the place is found in the log of one that leaves out none. */
static void test_mutant(const char *program)
{
	char log[TAP_TMP], words[4096], site[32] = "", mutant[64], where[96];
	const struct test_case with = {"no wait is left out", race_of_mutant, NULL, NULL};
	const struct test_case without = {"a wait is left out", race_of_mutant, "race", NULL};
	const int fd = mkstemp(tap_tmp(log, "cuda-sim-XXXXXX"));
	FILE *file;

	snprintf(where, sizeof where, "CUSIM_LOG=%s", log);
	putenv(where);
	judge(&with, run_case(program, CASES, "CUSIM_MUTANT=drop-wait:none", words, sizeof words), words);
	file = fdopen(fd, "r");
	ok(file && fscanf(file, "site %31s cuStreamWaitEvent", site) == 1 && strlen(site) == 16,
	   "the log names the place that waits: %s", site);
	fclose(file);
	unlink(log);
	unsetenv("CUSIM_LOG");
	snprintf(mutant, sizeof mutant, "CUSIM_MUTANT=drop-wait:%s", site);
	judge(&without, run_case(program, CASES, mutant, words, sizeof words), words);
}

int main(int argc, char **argv)
{
	char words[4096];
	size_t i;

	if (argc > 1) {
		i = strtoul(argv[1], NULL, 10);
		if (i < CASES)
			cases[i].run();
		else
			race_of_mutant();
		return 0;
	}
	for (i = 0; i < CASES; i++) {
		const int status = run_case("/proc/self/exe", i, cases[i].knob, words, sizeof words);

		judge(&cases[i], status, words);
	}
	test_mutant("/proc/self/exe");
	return tap_done();
}
