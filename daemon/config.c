/* SPDX-License-Identifier: MIT */
#include "daemon/config.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/util.h"
#include "daemon/pages.h"
#include "daemon/push.h"
#include "uapi/moe_proto.h"

#define DEFAULT_SPIN_US 50
#define THREADS_MAX 4096
#define SPIN_US_MAX 1000000

enum option_id {
	OPT_SOCKET = 256,
	OPT_SOCKET_MODE,
	OPT_MODEL,
	OPT_NAME,
	OPT_THREADS,
	OPT_SPIN,
	OPT_PAGES,
	OPT_ISA,
	OPT_MEMORY_MAX,
	OPT_POOL_MAX,
	OPT_UID_LIMIT,
	OPT_FILL_BUDGET,
	OPT_WRITABLE,
	OPT_PUSH_CUDA,
	OPT_PRIVATE,
	OPT_KEEP,
	OPT_READY_FD,
	OPT_VERSION,
};

static const struct option long_options[] = {
	{"socket", required_argument, NULL, OPT_SOCKET},
	{"socket-mode", required_argument, NULL, OPT_SOCKET_MODE},
	{"model", required_argument, NULL, OPT_MODEL},
	{"name", required_argument, NULL, OPT_NAME},
	{"threads", required_argument, NULL, OPT_THREADS},
	{"spin", required_argument, NULL, OPT_SPIN},
	{"pages", required_argument, NULL, OPT_PAGES},
	{"isa", required_argument, NULL, OPT_ISA},
	{"memory-max", required_argument, NULL, OPT_MEMORY_MAX},
	{"pool-max", required_argument, NULL, OPT_POOL_MAX},
	{"uid-limit", required_argument, NULL, OPT_UID_LIMIT},
	{"fill-budget", required_argument, NULL, OPT_FILL_BUDGET},
	{"writable-weights", no_argument, NULL, OPT_WRITABLE},
	{"push-cuda", optional_argument, NULL, OPT_PUSH_CUDA},
	{"private", no_argument, NULL, OPT_PRIVATE},
	{"keep", no_argument, NULL, OPT_KEEP},
	{"ready-fd", required_argument, NULL, OPT_READY_FD},
	{"verbose", no_argument, NULL, 'v'},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, OPT_VERSION},
	{0},
};

static void print_help(void)
{
	printf("Usage: moe-expertd [OPTION]...\n"
	       "Own the expert weights of Mixture-of-Experts models once for all inference processes of this "
	       "machine.\n\n"
	       "  --model DIR          load this Hugging Face folder before READY (may be repeated)\n"
	       "  --name NAME          name of the --model before it (default: the folder's name)\n"
	       "  --socket PATH        where clients connect (default %s)\n"
	       "  --socket-mode OCTAL  permissions of the socket (default 0660)\n"
	       "  --pages RUNG         auto, or required: 1g, 2m, thp, 4k (default auto: the best that has room)\n"
	       "  --memory-max BYTES   models may take this much; suffixes K, M, G, T (default: what the host has)\n"
	       "  --pool-max BYTES     of a model that needs more, keep so much in memory and the rest on disk\n"
	       "                       (default: load all of it or fail)\n"
	       "  --uid-limit NAME=N   one user may hold so many bytes, fds, connections, sessions, requests or "
	       "leases\n"
	       "                       (default: bytes and fds half of what there is, connections %d, sessions %d,\n"
	       "                       requests %d, leases %d); may be repeated\n"
	       "  --fill-budget BYTES  copy so much into one device's slots at a time\n"
	       "                       (default: 4M for each thread of the CPU pool, at most 64M)\n"
	       "  --writable-weights   leave weights writable by clients: for GPUs that register only writable "
	       "mappings\n"
	       "  --push-cuda[=SECONDS] push into slots in the memory of GPUs, for workers that ask for it; a copy "
	       "that "
	       "takes\n"
	       "                       longer is given up (default: off; %d seconds)\n"
	       "  --threads N          threads of the CPU pool (default: one per core of the affinity mask,\n"
	       "                       fewer where the CPU quota allows no more)\n"
	       "  --isa LEVEL          auto, ref, avx2, avx512, amx (default auto)\n"
	       "  --spin MICROSECONDS  poll this long before sleeping (default %d)\n"
	       "  --ready-fd N         write \"READY\\n\" to this file descriptor when all models are loaded\n"
	       "  --private            end when the parent process or standard input does; remove the socket's folder "
	       "if empty\n"
	       "  --keep               stay as a keeper of the daemon's memory: start it again when it dies, and on "
	       "SIGUSR2\n"
	       "                       from the program on disk; under systemd the unit does this\n"
	       "  -v, --verbose        log more\n"
	       "  -h, --help           this text\n"
	       "  --version            version and exit\n\n"
	       "Exit status: 0 done, 1 failed, 2 usage, 77 cannot run here (io_uring is forbidden).\n"
	       "Example: moe-expertd --model /models/Qwen3-30B-A3B --pages 1g\n",
	       MOE_SOCKET_DEFAULT, ACCOUNT_CONNECTIONS_DEFAULT, ACCOUNT_SESSIONS_DEFAULT, ACCOUNT_REQUESTS_DEFAULT,
	       ACCOUNT_LEASES_DEFAULT, PUSH_PATIENCE_S, DEFAULT_SPIN_US);
}

static int parse_number(uint64_t *ret, const char *option, const char *text, int base, uint64_t min, uint64_t max,
			struct moe_error *err)
{
	char *end;
	unsigned long long value;

	errno = 0;
	value = strtoull(text, &end, base);
	if (errno || end == text || *end || *text == '-' || value < min || value > max)
		return moe_error_set(err, -EINVAL, "%s '%s': a number from %llu to %llu expected", option, text,
				     (unsigned long long)min, (unsigned long long)max);
	*ret = value;
	return 0;
}

/* "123", "64M", "1.5T" are bytes; powers of 1024. */
static int parse_bytes(uint64_t *ret, const char *option, const char *text, struct moe_error *err)
{
	static const char suffixes[] = "KMGT";
	double factor = 1;
	char *end;
	double value = strtod(text, &end);
	const char *suffix = *end ? strchr(suffixes, *end) : NULL;

	if (suffix) {
		for (const char *p = suffixes; p <= suffix; p++)
			factor *= 1024;
		end++;
	}
	if (end == text || *end || !(value * factor >= 1) || value * factor > 1e18)
		return moe_error_set(err, -EINVAL, "%s '%s': bytes expected, e.g. 512M or 1.5T", option, text);
	*ret = (uint64_t)(value * factor);
	return 0;
}

/* "sessions=64", "bytes=16G" */
static int parse_uid_limit(struct config *c, const char *text, struct moe_error *err)
{
	const char *equals = strchr(text, '=');
	const int resource = equals ? account_resource_from_name(text, (size_t)(equals - text)) : -EINVAL;
	char option[32];

	if (resource < 0)
		return moe_error_set(
			err, -EINVAL,
			"--uid-limit '%s': NAME=N expected, NAME one of bytes, fds, connections, sessions, "
			"requests, leases",
			text);
	snprintf(option, sizeof option, "--uid-limit %s", account_resource_name((enum account_resource)resource));
	if (resource == ACCOUNT_BYTES)
		return parse_bytes(&c->uid_limits[resource], option, equals + 1, err);
	return parse_number(&c->uid_limits[resource], option, equals + 1, 10, 1, UINT32_MAX, err);
}

static int parse_isa(struct config *c, const char *text, struct moe_error *err)
{
	if (isa_from_name(text, &c->isa) < 0)
		return moe_error_set(err, -EINVAL, "--isa %s: %s", text, isa_why_not(text));
	if (strcmp(text, "auto") != 0)
		c->isa_why = "forced by --isa";
	return 0;
}

static int add_model(struct config *c, const char *path, struct moe_error *err)
{
	if (c->n_models == CONFIG_MODELS_MAX)
		return moe_error_set(err, -EINVAL, "--model: at most %d models", CONFIG_MODELS_MAX);
	c->models[c->n_models++] = path;
	return 0;
}

static int take_option(struct config *c, int id, const char *arg, struct moe_error *err)
{
	uint64_t n = 0;
	int r = 0;

	switch (id) {
	case OPT_SOCKET:
		c->socket = arg;
		break;
	case OPT_SOCKET_MODE:
		r = parse_number(&n, "--socket-mode", arg, 8, 0, 0777, err);
		c->socket_mode = (uint32_t)n;
		break;
	case OPT_MODEL:
		r = add_model(c, arg, err);
		break;
	case OPT_NAME:
		if (c->n_models == 0)
			return moe_error_set(err, -EINVAL, "--name %s: must follow the --model that it names", arg);
		c->names[c->n_models - 1] = arg;
		break;
	case OPT_THREADS:
		r = parse_number(&n, "--threads", arg, 10, 1, THREADS_MAX, err);
		c->threads = (uint32_t)n;
		break;
	case OPT_SPIN:
		r = parse_number(&n, "--spin", arg, 10, 0, SPIN_US_MAX, err);
		c->spin_us = (uint32_t)n;
		break;
	case OPT_PAGES:
		if (pages_rung_from_name(arg, &c->pages) < 0)
			r = moe_error_set(err, -EINVAL, "--pages '%s': auto, 1g, 2m, thp or 4k expected", arg);
		break;
	case OPT_ISA:
		r = parse_isa(c, arg, err);
		break;
	case OPT_MEMORY_MAX:
		r = parse_bytes(&c->memory_max, "--memory-max", arg, err);
		break;
	case OPT_POOL_MAX:
		r = parse_bytes(&c->pool_max, "--pool-max", arg, err);
		break;
	case OPT_UID_LIMIT:
		r = parse_uid_limit(c, arg, err);
		break;
	case OPT_FILL_BUDGET:
		r = parse_bytes(&c->fill_budget, "--fill-budget", arg, err);
		break;
	case OPT_WRITABLE:
		c->writable_weights = true;
		break;
	case OPT_PUSH_CUDA:
		c->push_cuda = true;
		if (arg)
			r = parse_number(&n, "--push-cuda", arg, 10, 1, 3600, err);
		c->push_patience_s = arg ? (uint32_t)n : 0;
		break;
	case OPT_PRIVATE:
		c->private_mode = true;
		break;
	case OPT_KEEP:
		c->keep = true;
		break;
	case OPT_READY_FD:
		r = parse_number(&n, "--ready-fd", arg, 10, 0, 1 << 20, err);
		c->ready_fd = (int)n;
		break;
	case 'v':
		c->verbose = true;
		break;
	default:
		r = moe_error_set(err, -EINVAL, "see moe-expertd --help");
	}
	return r;
}

int config_parse(struct config *ret, int argc, char **argv, struct moe_error *err)
{
	struct config c = {
		.socket = MOE_SOCKET_DEFAULT,
		.socket_mode = 0660,
		.spin_us = DEFAULT_SPIN_US,
		.pages = PAGES_AUTO,
		.ready_fd = -1,
	};
	int id, r, first = optind;

	c.isa = isa_detect(&c.isa_why);
	while ((id = getopt_long(argc, argv, "vh", long_options, NULL)) != -1) {
		if (id == 'h') {
			print_help();
			return 1;
		}
		if (id == OPT_VERSION) {
			printf("moe-expertd %s\n", MOE_VERSION);
			return 1;
		}
		r = take_option(&c, id, optarg, err);
		if (r < 0)
			return r;
		/* Both are the keeper's own: the daemon that it starts is not told. */
		for (; first < optind; first++)
			if (id == OPT_KEEP || id == OPT_READY_FD)
				argv[first] = NULL;
	}
	if (optind < argc)
		return moe_error_set(err, -EINVAL, "unexpected argument '%s'; see moe-expertd --help", argv[optind]);
	if (c.keep && c.private_mode)
		return moe_error_set(
			err, -EINVAL,
			"--keep with --private: a private daemon ends with its parent; leave one of them out");
	*ret = c;
	return 0;
}
