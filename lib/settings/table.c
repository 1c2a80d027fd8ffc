/* SPDX-License-Identifier: MIT */
/* table - which settings there are: their names, types, ranges, units and defaults, and nowhere else. */
#include "settings/settings.h"
#include "uapi/moe_proto.h"

#define BYTES_MAX 1000000000000000000u

/* In the order in which they are listed. A default in words that is a sentence stands in the manual as well
 * (tests/style/man.t). */
const struct setting_def settings_table[SETTINGS] = {
	[SETTING_SOCKET] =
		{
			.section = "Daemon",
			.key = "Socket",
			.option = "socket",
			.argument = "PATH",
			.type = SETTING_TYPE_PATH,
			.preset = MOE_SOCKET_DEFAULT,
			.help = "where clients connect",
		},
	[SETTING_SOCKET_MODE] =
		{
			.section = "Daemon",
			.key = "SocketMode",
			.option = "socket-mode",
			.argument = "OCTAL",
			.type = SETTING_TYPE_OCTAL,
			.max = 0777,
			.preset = "0660",
			.help = "permissions of the socket",
		},
	[SETTING_VERBOSE] =
		{
			.section = "Daemon",
			.key = "Verbose",
			.option = "verbose",
			.argument = "[=BOOL]",
			.type = SETTING_TYPE_BOOL,
			.preset = "no",
			.live = true,
			.help = "log more",
		},
	[SETTING_METRICS] =
		{
			.section = "Daemon",
			.key = "Metrics",
			.option = "metrics",
			.argument = "ADDRESS:PORT|PATH",
			.type = SETTING_TYPE_TEXT,
			.words = "off, a port of 127.0.0.1, ADDRESS:PORT, or an absolute path of a socket file",
			.preset = "off",
			.help = "answer Prometheus there: http://ADDRESS:PORT/metrics; a PORT alone is on 127.0.0.1, "
				"a PATH is a socket file",
		},
	[SETTING_BUS] =
		{
			.section = "Daemon",
			.key = "Bus",
			.option = "bus",
			.argument = "BUS",
			.type = SETTING_TYPE_TEXT,
			.words = "off, system, user, or unix:path=...",
			.preset = "off",
			.help = "offer org.moeexpertd.Manager1 on this D-Bus: off, system, user, or unix:path=...",
		},
	[SETTING_BUS_NAME] =
		{
			.section = "Daemon",
			.key = "BusName",
			.option = "bus-name",
			.argument = "NAME",
			.type = SETTING_TYPE_TEXT,
			.words = "org.moeexpertd, or org.moeexpertd.X",
			.preset = "org.moeexpertd",
			.help = "the name to have there: of several daemons each needs its own, org.moeexpertd.X",
		},
	[SETTING_STATE_DIRECTORY] =
		{
			.section = "Daemon",
			.key = "StateDirectory",
			.option = "state-directory",
			.argument = "PATH",
			.type = SETTING_TYPE_PATH,
			.computed = "that of the service manager, else none",
			.help = "keep there what outlives a reboot: which experts are hot",
		},
	[SETTING_MODEL] =
		{
			.section = "Models",
			.key = "Model",
			.option = "model",
			.argument = "DIR",
			.type = SETTING_TYPE_MODEL,
			.computed = "none",
			.help = "load this Hugging Face folder before READY; may be repeated, and replaces those of "
				"the files",
		},
	[SETTING_PAGES] =
		{
			.section = "Models",
			.key = "Pages",
			.option = "pages",
			.argument = "RUNG",
			.type = SETTING_TYPE_WORD,
			.words = "auto 1g 2m thp 4k",
			.preset = "auto",
			.live = true,
			.help = "page size of the weights: a rung that is required, or auto, the best that has room",
		},
	[SETTING_MEMORY_MAX] =
		{
			.section = "Models",
			.key = "MemoryMax",
			.option = "memory-max",
			.argument = "BYTES",
			.type = SETTING_TYPE_BYTES,
			.min = 1,
			.max = BYTES_MAX,
			.computed = "what the host has",
			.unit = "bytes",
			.live = true,
			.help = "models may take this much; suffixes K, M, G, T",
		},
	[SETTING_POOL_MAX] =
		{
			.section = "Models",
			.key = "PoolMax",
			.option = "pool-max",
			.argument = "BYTES",
			.type = SETTING_TYPE_BYTES,
			.min = 1,
			.max = BYTES_MAX,
			.computed = "load all of it or fail",
			.unit = "bytes",
			.live = true,
			.help = "of a model that needs more, keep so much in memory and the rest on disk",
		},
	[SETTING_REPLICA_MAX] =
		{
			.section = "Models",
			.key = "ReplicaMax",
			.option = "replica-max",
			.argument = "BYTES",
			.type = SETTING_TYPE_BYTES,
			.min = 1,
			.max = BYTES_MAX,
			.computed = "none",
			.unit = "bytes",
			.live = true,
			.help = "on several NUMA nodes, whole copies of a model's hot experts may take this much more",
		},
	[SETTING_TIER_POLICY] =
		{
			.section = "Models",
			.key = "TierPolicy",
			.option = "tier-policy",
			.argument = "POLICY",
			.type = SETTING_TYPE_WORD,
			.words = "lru lfu lfu-decay lfru ema mrs arc s3-fifo sieve ebco-soft ebco-hard",
			.preset = "ema",
			.live = true,
			.help = "of a layer of such a model, which expert makes room: lru, lfu, lfu-decay, lfru, ema, "
				"mrs, arc, s3-fifo, sieve, ebco-soft or ebco-hard",
		},
	[SETTING_HEAT_STEPS] =
		{
			.section = "Models",
			.key = "HeatSteps",
			.option = "heat-steps",
			.argument = "N",
			.type = SETTING_TYPE_NUMBER,
			.min = 1,
			.max = 1000000000,
			.preset = "4096",
			.unit = "steps",
			.help = "a model's heat is halved every so many steps of its sessions",
		},
	[SETTING_WRITABLE_WEIGHTS] =
		{
			.section = "Models",
			.key = "WritableWeights",
			.option = "writable-weights",
			.argument = "[=BOOL]",
			.type = SETTING_TYPE_BOOL,
			.preset = "no",
			.help = "leave weights writable by clients: for GPUs that register only writable mappings",
		},
	[SETTING_MODULE] =
		{
			.section = "Models",
			.key = "Module",
			.option = "module",
			.argument = "USE",
			.type = SETTING_TYPE_WORD,
			.words = "auto yes no",
			.preset = "auto",
			.help = "let the kernel module keep the memory of models on huge pages: auto (if it is there), "
				"yes (or fail), no",
		},
	[SETTING_THREADS] =
		{
			.section = "Pool",
			.key = "Threads",
			.option = "threads",
			.argument = "N",
			.type = SETTING_TYPE_NUMBER,
			.min = 1,
			.max = 4096,
			.computed = "one per core of the affinity mask, fewer where the CPU quota allows no more",
			.unit = "threads",
			.help = "threads of the CPU pool",
		},
	[SETTING_ISA] =
		{
			.section = "Pool",
			.key = "Isa",
			.option = "isa",
			.argument = "LEVEL",
			.type = SETTING_TYPE_WORD,
			.words = "auto ref avx2 avx512 amx",
			.preset = "auto",
			.help = "instruction set of the arithmetic: auto, ref, avx2, avx512, amx",
		},
	[SETTING_SPIN] =
		{
			.section = "Pool",
			.key = "Spin",
			.option = "spin",
			.argument = "MICROSECONDS",
			.type = SETTING_TYPE_NUMBER,
			.max = 1000000,
			.preset = "50",
			.unit = "microseconds",
			.help = "poll this long before sleeping",
		},
	[SETTING_FILL_BUDGET] =
		{
			.section = "Fills",
			.key = "FillBudget",
			.option = "fill-budget",
			.argument = "BYTES",
			.type = SETTING_TYPE_BYTES,
			.min = 1,
			.max = BYTES_MAX,
			.computed = "4M for each thread of the CPU pool, at most 64M",
			.unit = "bytes",
			.live = true,
			.help = "copy so much into one device's slots at a time",
		},
	[SETTING_PUSH_CUDA] =
		{
			.section = "Fills",
			.key = "PushCuda",
			.option = "push-cuda",
			.argument = "[=SECONDS]",
			.type = SETTING_TYPE_BOOL,
			.preset = "no",
			.help = "push into slots in the memory of GPUs, for workers that ask for it; SECONDS are "
				"--push-patience",
		},
	[SETTING_PUSH_PATIENCE] =
		{
			.section = "Fills",
			.key = "PushPatience",
			.option = "push-patience",
			.argument = "SECONDS",
			.type = SETTING_TYPE_NUMBER,
			.min = 1,
			.max = 3600,
			.preset = "10",
			.unit = "seconds",
			.help = "a copy into a GPU's memory that takes longer is given up",
		},
	[SETTING_UID_BYTES] =
		{
			.section = "Limits",
			.key = "UidBytes",
			.option = "uid-limit",
			.part = "bytes",
			.argument = "NAME=N",
			.type = SETTING_TYPE_BYTES,
			.min = 1,
			.max = BYTES_MAX,
			.computed = "half of what there is",
			.unit = "bytes",
			.live = true,
			.help = "one user may hold so many bytes of arenas and books",
		},
	[SETTING_UID_FDS] =
		{
			.section = "Limits",
			.key = "UidFds",
			.option = "uid-limit",
			.part = "fds",
			.argument = "NAME=N",
			.type = SETTING_TYPE_NUMBER,
			.min = 1,
			.max = UINT32_MAX,
			.computed = "half of what there is",
			.live = true,
			.help = "one user may hold so many descriptors of the daemon",
		},
	[SETTING_UID_CONNECTIONS] =
		{
			.section = "Limits",
			.key = "UidConnections",
			.option = "uid-limit",
			.part = "connections",
			.argument = "NAME=N",
			.type = SETTING_TYPE_NUMBER,
			.min = 1,
			.max = UINT32_MAX,
			.preset = "2048",
			.live = true,
			.help = "one user may hold so many connections",
		},
	[SETTING_UID_SESSIONS] =
		{
			.section = "Limits",
			.key = "UidSessions",
			.option = "uid-limit",
			.part = "sessions",
			.argument = "NAME=N",
			.type = SETTING_TYPE_NUMBER,
			.min = 1,
			.max = UINT32_MAX,
			.preset = "1024",
			.live = true,
			.help = "one user may hold so many sessions",
		},
	/* Four times as many as that many sessions have in the library's queues. */
	[SETTING_UID_REQUESTS] =
		{
			.section = "Limits",
			.key = "UidRequests",
			.option = "uid-limit",
			.part = "requests",
			.argument = "NAME=N",
			.type = SETTING_TYPE_NUMBER,
			.min = 1,
			.max = UINT32_MAX,
			.preset = "1048576",
			.live = true,
			.help = "one user may have queues for so many requests",
		},
	/* All experts of a model of 24,000, for 170 sessions. */
	[SETTING_UID_LEASES] =
		{
			.section = "Limits",
			.key = "UidLeases",
			.option = "uid-limit",
			.part = "leases",
			.argument = "NAME=N",
			.type = SETTING_TYPE_NUMBER,
			.min = 1,
			.max = UINT32_MAX,
			.preset = "4194304",
			.live = true,
			.help = "one user may hold so many leases",
		},
};
