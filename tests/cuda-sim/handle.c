/* SPDX-License-Identifier: MIT */
/* Handles are numbers that name nothing in memory: kind, how often their place was used, place. */
#include <stdlib.h>

#include "tests/cuda-sim/sim.h"

struct place {
	void *object; /* NULL: free */
	uint64_t handle;
	uint32_t uses;
};

static struct place *places;
static uint32_t n_places;

static const char *const kind_names[] = {
	[SIM_STREAM] = "stream",       [SIM_EVENT] = "event",
	[SIM_MODULE] = "module",       [SIM_FUNCTION] = "function",
	[SIM_PHYSICAL] = "allocation", [SIM_LIBRARY] = "library",
	[SIM_GRAPH] = "graph",         [SIM_GRAPH_EXEC] = "executable graph",
};

uint64_t sim_handle_new(enum sim_kind kind, void *object)
{
	struct place *p;
	uint32_t i;

	for (i = 0; i < n_places && places[i].object; i++)
		;
	if (i == n_places) {
		places = realloc(places, (n_places + 64) * sizeof *places);
		if (!places)
			abort();
		for (; n_places < i + 64; n_places++)
			places[n_places] = (struct place){0};
	}
	p = &places[i];
	p->object = object;
	p->handle = (uint64_t)kind << 56 | (uint64_t)(++p->uses & 0xffffff) << 24 | i;
	sim.live++;
	return p->handle;
}

static struct place *find(const char *call, enum sim_kind kind, uint64_t handle)
{
	const uint32_t i = handle & 0xffffff;

	if (!handle)
		sim_violation(call, "a %s is needed, NULL is given", kind_names[kind]);
	if (handle >> 56 != kind || i >= n_places)
		sim_violation(call, "%#llx is not a %s", (unsigned long long)handle, kind_names[kind]);
	if (!places[i].object || places[i].handle != handle)
		sim_violation(call, "the %s %#llx has been destroyed", kind_names[kind], (unsigned long long)handle);
	return &places[i];
}

void *sim_handle_get(const char *call, enum sim_kind kind, uint64_t handle)
{
	return find(call, kind, handle)->object;
}

void *sim_handle_end(const char *call, enum sim_kind kind, uint64_t handle)
{
	struct place *p = find(call, kind, handle);
	void *object = p->object;

	p->object = NULL;
	sim.live--;
	return object;
}

/* The table is not a leak. */
__attribute__((destructor)) static void forget_places(void)
{
	free(places);
	places = NULL;
	n_places = 0;
}
