/* SPDX-License-Identifier: MIT */
#include "daemon/room.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/error.h"
#include "base/util.h"
#include "model/pool-size.h"

static double gib(uint64_t bytes)
{
	return (double)bytes / (1u << 30);
}

static int refuse(uint64_t bytes, int64_t available, const char *whose, const char *way_out, struct moe_error *err)
{
	return moe_error_set(err, -ENOMEM, "%.2f GiB of memory needed, %.2f GiB available (%s): %s",
			     gib(bytes + pool_besides(bytes)), gib((uint64_t)available), whose, way_out);
}

/* Ordinary memory, of the machine and the cgroup. */
static int check_machine(uint64_t bytes, struct moe_error *err)
{
	int64_t available, limit, left;

	host_read_memory(&available, &limit, &left);
	if (pool_lacks(available, bytes))
		return refuse(bytes, available, "MemAvailable of this machine", "free memory or load a smaller model",
			      err);
	if (pool_lacks(left, bytes))
		return refuse(bytes, left, "what memory.max leaves to this cgroup", "raise the limit, MemoryMax=", err);
	return 0;
}

static int check_ordinary(uint64_t bytes, const struct host_node *now, struct moe_error *err)
{
	char whose[48];

	snprintf(whose, sizeof whose, "free on NUMA node %d", now->id);
	if (pool_lacks(now->mem_available, bytes))
		return refuse(bytes, now->mem_available, whose, "free memory or load a smaller model", err);
	return check_machine(bytes, err);
}

/* -- the reserves of hugepages ------------------------------------------------------------------------------------ */

struct reserve {
	uint64_t needed; /* pages */
	int64_t total, free;
};

static struct reserve reserve_of(enum pages_rung rung, uint64_t bytes, const struct host_node *now)
{
	const bool giant = rung == PAGES_1G;

	return (struct reserve){.needed = DIV_UP(bytes, pages_rung_bytes(rung)),
				.total = giant ? now->huge_1g_total : now->huge_2m_total,
				.free = giant ? now->huge_1g_free : now->huge_2m_free};
}

/* Hugepages that the kernel may make of ordinary memory when they are asked for. */
static uint64_t read_overcommit(enum pages_rung rung)
{
	char path[128];
	int64_t allowed, used;

	snprintf(path, sizeof path, "/sys/kernel/mm/hugepages/hugepages-%" PRIu64 "kB/nr_overcommit_hugepages",
		 pages_rung_bytes(rung) / 1024);
	allowed = host_read_number(path);
	snprintf(path, sizeof path, "/sys/kernel/mm/hugepages/hugepages-%" PRIu64 "kB/surplus_hugepages",
		 pages_rung_bytes(rung) / 1024);
	used = host_read_number(path);
	return allowed > MAX(used, 0) ? (uint64_t)(allowed - MAX(used, 0)) : 0;
}

/* Pages that the node's reserve must have so that these are free. */
static uint64_t reserve_wanted(const struct reserve *reserve)
{
	const uint64_t missing = reserve->needed - MIN(reserve->needed, (uint64_t)MAX(reserve->free, 0));

	return (uint64_t)MAX(reserve->total, 0) + missing;
}

/* Whether the node has so much memory at all: a reserve of more is advice that nobody can follow. */
static bool beyond_node(enum pages_rung rung, const struct reserve *reserve, const struct host_node *now)
{
	return now->mem_total >= 0 && (reserve_wanted(reserve) > INT64_MAX / pages_rung_bytes(rung) ||
				       pool_lacks(now->mem_total, reserve_wanted(reserve) * pages_rung_bytes(rung)));
}

static void write_command(char *ret, uint32_t size, enum pages_rung rung, const struct reserve *reserve, int node)
{
	const bool hidden = access("/sys/kernel", F_OK) != 0;
	char folder[128];

	ret[0] = '\0';
	if (reserve->total < 0 && !hidden)
		return; /* the kernel has no pages of this size */
	host_hugepages_path(folder, sizeof folder, node, pages_rung_bytes(rung));
	snprintf(ret, size, "%secho %" PRIu64 " > %s/nr_hugepages", hidden ? "mount -t sysfs sysfs /sys; " : "",
		 reserve_wanted(reserve), folder);
}

void room_command(char *ret, uint32_t size, enum pages_rung rung, uint64_t bytes, const struct host_node *node)
{
	struct host_node now = {.id = node->id};
	struct reserve reserve;

	host_read_node_memory(&now);
	reserve = reserve_of(rung, bytes, &now);
	ret[0] = '\0';
	if (!beyond_node(rung, &reserve, &now))
		write_command(ret, size, rung, &reserve, node->id);
}

static int check_reserve(enum pages_rung rung, uint64_t bytes, const struct host_node *now, struct moe_error *err)
{
	const struct reserve reserve = reserve_of(rung, bytes, now);
	char command[192];
	uint64_t missing;

	if (reserve.free < 0 || (uint64_t)reserve.free >= reserve.needed)
		return 0;
	missing = reserve.needed - (uint64_t)reserve.free;
	if (missing <= read_overcommit(rung))
		return check_ordinary(missing * pages_rung_bytes(rung), now, err);
	if (beyond_node(rung, &reserve, now))
		snprintf(command, sizeof command,
			 "that node has %.2f GiB of memory in all, and the reserve would have to be %.2f: load a "
			 "smaller model",
			 gib((uint64_t)now->mem_total),
			 (double)reserve_wanted(&reserve) * (double)pages_rung_bytes(rung) / (1u << 30));
	else
		write_command(command, sizeof command, rung, &reserve, now->id);
	return moe_error_set(err, -ENOMEM, "%s hugepages on NUMA node %d: %" PRIu64 " needed, %" PRId64 " free: %s",
			     rung == PAGES_1G ? "1 GiB" : "2 MiB", now->id, reserve.needed, reserve.free, command);
}

/* -- answers ------------------------------------------------------------------------------------------------------ */

int room_check(enum pages_rung rung, uint64_t bytes, const struct host_node *node, struct moe_error *err)
{
	struct host_node now = {.id = node->id};

	host_read_node_memory(&now);
	if (rung == PAGES_1G || rung == PAGES_2M)
		return check_reserve(rung, bytes, &now, err);
	return check_ordinary(bytes, &now, err);
}

/* What cannot be read (-1) is no reason to refuse who asks for it, and no room for who does not. */
static bool reserve_has(enum pages_rung rung, uint64_t bytes, const struct host_node *now)
{
	return reserve_of(rung, bytes, now).free >= 0 && check_reserve(rung, bytes, now, NULL) == 0;
}

static bool has_reserve(uint64_t bytes, const struct host_node *node)
{
	struct host_node now = {.id = node->id};

	host_read_node_memory(&now);
	return (bytes >= POOL_1G_MIN && reserve_has(PAGES_1G, bytes, &now)) || reserve_has(PAGES_2M, bytes, &now);
}

int room_check_all(const uint64_t *bytes, const struct host_node *nodes, uint32_t n, int want, struct moe_error *err)
{
	uint64_t ordinary = 0;
	int r;

	for (uint32_t i = 0; i < n; i++) {
		if (want != PAGES_AUTO) {
			r = room_check((enum pages_rung)want, bytes[i], &nodes[i], err);
			if (r < 0)
				return r;
		}
		if (want == PAGES_1G || want == PAGES_2M)
			continue;
		if (want == PAGES_AUTO && has_reserve(bytes[i], &nodes[i]))
			continue;
		ordinary += bytes[i];
	}
	return ordinary > 0 ? check_machine(ordinary, err) : 0;
}
