/* SPDX-License-Identifier: MIT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cgroup.h"
#include "base/host.h"
#include "base/small.h"
#include "base/util.h"

/* -- cores -------------------------------------------------------------------------------------------------------- */

/* The lowest CPU of the core that `cpu` is a thread of; itself where sysfs does not say. */
static uint32_t core_of(uint16_t cpu)
{
	char path[96], text[64], *end;
	unsigned long first;

	snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu);
	if (!small_read(path, text, sizeof text))
		return cpu;
	first = strtoul(text, &end, 10); /* "3,67" or "6-7" */
	return end == text ? cpu : (uint32_t)first;
}

void host_order_cpus(struct host_node *node)
{
	uint16_t others[HOST_CPUS_MAX];
	uint32_t cores[HOST_CPUS_MAX], n_others = 0;

	node->n_cores = 0;
	for (uint32_t i = 0; i < node->n_cpus; i++) {
		const uint32_t core = core_of(node->cpus[i]);
		bool seen = false;

		for (uint32_t c = 0; c < node->n_cores && !seen; c++)
			seen = cores[c] == core;
		if (seen) {
			others[n_others++] = node->cpus[i];
			continue;
		}
		cores[node->n_cores] = core;
		node->cpus[node->n_cores++] = node->cpus[i];
	}
	memcpy(node->cpus + node->n_cores, others, n_others * sizeof others[0]);
}

/* -- quota -------------------------------------------------------------------------------------------------------- */

/* CPUs' worth of time in a period, as "200000 100000", "max 100000", or in two files. */
static void read_quota(int folder, int version, void *userdata)
{
	double *least = userdata, quota, period = 0;
	char text[64], more[64], *end;

	if (!small_read_at(folder, version == 2 ? "cpu.max" : "cpu.cfs_quota_us", text, sizeof text))
		return;
	quota = strtod(text, &end);
	if (end == text || quota <= 0) /* "max", -1 */
		return;
	if (version == 2)
		period = strtod(end, NULL);
	else if (small_read_at(folder, "cpu.cfs_period_us", more, sizeof more))
		period = strtod(more, NULL);
	if (period > 0 && (*least < 0 || quota / period < *least))
		*least = quota / period;
}

double host_read_cpu_quota(void)
{
	double least = -1;

	cgroup_walk("cpu", read_quota, &least);
	return least;
}
