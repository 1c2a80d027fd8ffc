/* SPDX-License-Identifier: MIT */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/cuda-sim/sim.h"

struct sim sim = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.changed = PTHREAD_COND_INITIALIZER,
	.work = PTHREAD_COND_INITIALIZER,
};

/* -- words -------------------------------------------------------------------------------------------------------- */

void sim_violation(const char *call, const char *format, ...)
{
	va_list args;

	fprintf(stderr, "cuda-sim: %s: ", call);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	abort();
}

void sim_log(const char *format, ...)
{
	FILE *file = sim.log ? fopen(sim.log, "ae") : NULL;
	va_list args;

	if (!file)
		return;
	va_start(args, format);
	vfprintf(file, format, args);
	va_end(args);
	fclose(file);
}

uint64_t sim_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* splitmix64 (Vigna 2015). */
uint64_t sim_random(void)
{
	static uint64_t state;
	uint64_t z = sim.seed + (state += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* For the thread that runs commands alone. */
bool sim_toss(void)
{
	static uint64_t state;

	state = state * 6364136223846793005u + 2 * sim.seed + 1; /* Knuth, MMIX */
	return state >> 63;
}

/* -- knobs -------------------------------------------------------------------------------------------------------- */

static uint64_t env_number(const char *name, uint64_t otherwise)
{
	const char *value = getenv(name);

	return value && *value ? strtoull(value, NULL, 0) : otherwise;
}

static void set_fail(const char *what)
{
	const char *colon = what ? strrchr(what, ':') : NULL;
	unsigned long at;
	char *end;

	sim.calls = sim.runs = 0;
	sim.fail_at = sim.run_fail_at = 0;
	if (!colon || (size_t)(colon - what) >= sizeof sim.fail_call)
		return;
	at = strtoul(colon + 1, &end, 0);
	sim.fail_for_ever = *end == '+';
	memcpy(sim.fail_call, what, (size_t)(colon - what));
	sim.fail_call[colon - what] = 0;
	if (strcmp(sim.fail_call, "run") == 0)
		sim.run_fail_at = at;
	else
		sim.fail_at = at;
}

__attribute__((constructor)) static void read_knobs(void)
{
	sim.seed = env_number("CUSIM_SEED", 1);
	sim.delay_ns = env_number("CUSIM_DELAY", 0) * 1000;
	sim.devices = (int)env_number("CUSIM_DEVICES", 1);
	if (sim.devices > SIM_DEVICES_MAX)
		sim.devices = SIM_DEVICES_MAX;
	sim.read_only_register = env_number("CUSIM_READ_ONLY", 0);
	sim.same_pointers = env_number("CUSIM_SAME", 0);
	sim.pageable = env_number("CUSIM_PAGEABLE", 0);
	sim.no_dma_buf = env_number("CUSIM_NO_DMA_BUF", 0);
	sim.mutant = getenv("CUSIM_MUTANT");
	sim.log = getenv("CUSIM_LOG");
	sim.hang = getenv("CUSIM_HANG");
	set_fail(getenv("CUSIM_FAIL"));
}

/* cuMemAlloc_v2 is what cuda.h makes of cuMemAlloc: both names mean it. */
static bool is_call(const char *call, const char *name)
{
	const size_t n = strlen(name);

	return strncmp(call, name, n) == 0 && (call[n] == 0 || (call[n] == '_' && call[n + 1] == 'v'));
}

/* Errors of the one call; those of the context come from commands that fail. */
static CUresult failure_of(const char *call)
{
	return strstr(call, "Module") ? CUDA_ERROR_NO_BINARY_FOR_GPU : CUDA_ERROR_OUT_OF_MEMORY;
}

/* A call that releases cannot be tried again, so only its own name fails it. */
static bool strikes(const char *call, enum sim_needs needs)
{
	if (!sim.fail_at || (strcmp(sim.fail_call, "*") == 0 ? needs >= SIM_RELEASES : !is_call(call, sim.fail_call)))
		return false;
	sim.calls++;
	return sim.fail_for_ever ? sim.calls >= sim.fail_at : sim.calls == sim.fail_at;
}

/* -- what a mutant leaves out ------------------------------------------------------------------------------------- */

#define SITES_MAX 256

static uint64_t site_part(void *address)
{
	Dl_info info;

	return address && dladdr(address, &info) ? (uint64_t)((char *)address - (char *)info.dli_fbase) : 0;
}

bool sim_mutant_drops(const char *call, void *caller, void *callers_caller)
{
	static uint64_t known[SITES_MAX];
	static size_t n_known;
	char name[64];
	uint64_t site;
	size_t i;

	if (!sim.mutant || strncmp(sim.mutant, "drop-wait:", 10) != 0)
		return false;
	site = site_part(caller) * 0x9e3779b97f4a7c15u + site_part(callers_caller);
	snprintf(name, sizeof name, "%016llx", (unsigned long long)site);
	for (i = 0; i < n_known && known[i] != site; i++)
		;
	if (i == n_known && n_known < SITES_MAX) {
		known[n_known++] = site;
		sim_log("site %s %s %#llx %#llx\n", name, call, (unsigned long long)site_part(caller),
			(unsigned long long)site_part(callers_caller));
	}
	return strcmp(sim.mutant + 10, name) == 0;
}

/* -- contexts ----------------------------------------------------------------------------------------------------- */

#define STACK_MAX 8

static _Thread_local int stack[STACK_MAX], depth; /* device + 1 */

int sim_current(void)
{
	return depth ? stack[depth - 1] - 1 : -1;
}

static void require_context(const char *call)
{
	const int device = sim_current();

	if (device < 0)
		sim_violation(call, "no context is current to this thread");
	if (!sim.retained[device])
		sim_violation(call, "the context that is current to this thread has been released");
}

/* Before the lock, which a thread of the other process may have had at the fork: nobody gives it back here. */
static void require_own_process(const char *call)
{
	const pid_t pid = __atomic_load_n(&sim.pid, __ATOMIC_RELAXED);

	if (pid && pid != getpid())
		sim_violation(call, "the driver was initialised in another process, of which this is a fork");
}

CUresult sim_enter(const char *call, enum sim_needs needs)
{
	while (sim.hang && is_call(call, sim.hang))
		pause();
	require_own_process(call);
	pthread_mutex_lock(&sim.lock);
	if (needs != SIM_NEEDS_NOTHING && !sim.pid)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (needs == SIM_NEEDS_CONTEXT || needs == SIM_RELEASES)
		require_context(call);
	sim_capture_check(call);
	if (!sim.fail_at && needs < SIM_RELEASES)
		sim.calls++;
	if (strikes(call, needs))
		return failure_of(call);
	return needs == SIM_NEEDS_CONTEXT ? sim.sticky : CUDA_SUCCESS;
}

CUresult sim_leave(CUresult result)
{
	if (result == CUDA_SUCCESS && sim.pid)
		result = sim.sticky;
	pthread_mutex_unlock(&sim.lock);
	return result;
}

/* A context's value names its device; nothing is behind it. */
CUcontext sim_context_of(int device)
{
	return (CUcontext)(uintptr_t)(0xc0de000000000000u + (unsigned)device);
}

static int device_of(const char *call, CUcontext context)
{
	const uintptr_t device = (uintptr_t)context - 0xc0de000000000000u;

	if (device >= (uintptr_t)sim.devices || !sim.retained[device])
		sim_violation(call, "not a context, or one that has been released");
	return (int)device;
}

CUresult cuInit(unsigned flags)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_NOTHING);

	SIM_RULE(flags == 0, "flags must be 0");
	if (r == CUDA_SUCCESS && sim.devices == 0)
		r = CUDA_ERROR_NO_DEVICE;
	if (r == CUDA_SUCCESS)
		__atomic_store_n(&sim.pid, getpid(), __ATOMIC_RELAXED);
	return sim_leave(r);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_INIT);

	SIM_RULE(context && device >= 0 && device < sim.devices, "no such device: %d", device);
	if (r == CUDA_SUCCESS) {
		if (sim.retained[device]++ == 0 && sim.contexts++ == 0)
			sim_run_start();
		*context = sim_context_of(device);
	}
	return sim_leave(r);
}

static void check_nothing_left(const char *call, int device)
{
	const struct sim_stream *s;
	const struct sim_region *region;

	for (s = sim.streams; s; s = s->next)
		if (s->device == device && !s->doomed)
			sim_violation(call, "the device's last context goes while a stream is left");
	for (region = sim.regions; region; region = region->next)
		if (region->device == device)
			sim_violation(call, "the device's last context goes while %s of %llu bytes is left",
				      region->host ? "a registration" : "memory", (unsigned long long)region->bytes);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	CUresult r = sim_enter(__func__, SIM_NEEDS_INIT);

	SIM_RULE(device >= 0 && device < sim.devices && sim.retained[device], "device %d has no context", device);
	if (sim.retained[device] == 1)
		check_nothing_left(__func__, device);
	if (--sim.retained[device] == 0 && --sim.contexts == 0) {
		sim_run_stop();
		sim.sticky = CUDA_SUCCESS;
	}
	return sim_leave(r);
}

/* Nothing of what runs comes back from here. */
static CUresult leave_switch(CUresult result)
{
	pthread_mutex_unlock(&sim.lock);
	return result;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	CUresult r = sim_enter(__func__, SIM_SWITCHES);

	if (r == CUDA_SUCCESS && !context) {
		depth -= depth > 0;
	} else if (r == CUDA_SUCCESS) {
		depth += depth == 0;
		stack[depth - 1] = device_of(__func__, context) + 1;
	}
	return leave_switch(r);
}

CUresult cuCtxPushCurrent(CUcontext context)
{
	CUresult r = sim_enter(__func__, SIM_SWITCHES);

	if (r == CUDA_SUCCESS) {
		SIM_RULE(depth < STACK_MAX, "%d contexts are pushed", depth);
		stack[depth] = device_of(__func__, context) + 1;
		depth++;
	}
	return leave_switch(r);
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
	CUresult r = sim_enter(__func__, SIM_SWITCHES);

	SIM_RULE(depth > 0, "no context is current to this thread");
	if (r == CUDA_SUCCESS) {
		if (context)
			*context = sim_context_of(sim_current());
		depth--;
	}
	return leave_switch(r);
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
	CUresult r = sim_enter(__func__, SIM_SWITCHES);

	if (r == CUDA_SUCCESS)
		*context = depth ? sim_context_of(sim_current()) : NULL;
	return leave_switch(r);
}

/* -- for tests ---------------------------------------------------------------------------------------------------- */

SIM_EXPORT void cusim_fail(const char *what);
SIM_EXPORT unsigned long cusim_calls(void);
SIM_EXPORT unsigned long cusim_runs(void);
SIM_EXPORT unsigned cusim_live(void);
SIM_EXPORT void cusim_delay(unsigned microseconds);

void cusim_fail(const char *what)
{
	pthread_mutex_lock(&sim.lock);
	set_fail(what);
	pthread_mutex_unlock(&sim.lock);
}

unsigned long cusim_calls(void)
{
	unsigned long calls;

	pthread_mutex_lock(&sim.lock);
	calls = sim.calls;
	pthread_mutex_unlock(&sim.lock);
	return calls;
}

unsigned long cusim_runs(void)
{
	unsigned long runs;

	pthread_mutex_lock(&sim.lock);
	runs = sim.runs;
	pthread_mutex_unlock(&sim.lock);
	return runs;
}

unsigned cusim_live(void)
{
	unsigned live;

	pthread_mutex_lock(&sim.lock);
	live = sim.live + sim.contexts;
	pthread_mutex_unlock(&sim.lock);
	return live;
}

void cusim_delay(unsigned microseconds)
{
	pthread_mutex_lock(&sim.lock);
	sim.delay_ns = (uint64_t)microseconds * 1000;
	pthread_mutex_unlock(&sim.lock);
}
