/* SPDX-License-Identifier: MIT */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/stdout.h"
#include "bench.h"

/* Long options without a letter. */
enum {
	OPTION_SHAPE = 256,
	OPTION_HIDDEN,
	OPTION_INTER,
	OPTION_EXPERTS,
	OPTION_TOPK,
	OPTION_FORMAT,
	OPTION_THREADS,
	OPTION_ISA,
	OPTION_ACTIVE,
	OPTION_SKEW,
	OPTION_BYTES,
	OPTION_CHECK,
	OPTION_SESSIONS,
	OPTION_BESIDE,
	OPTION_DEVICE,
	OPTION_SLOTS,
	OPTION_TRANSPORT,
};

static const struct verb {
	const char *name;
	int (*run)(const struct options *);
	uint32_t samples;
	const char *usage, *help;
	uint32_t tokens; /* 0: 1 */
} verbs[] = {
	{"ring", bench_ring, 20000, "ring [OPTION]...", "round trips through the daemon, beside bare ping-pongs"},
	{"compute", bench_compute, 200, "compute [--tokens N]", "the CPU pool, beside the streaming read limit"},
	{"ffn", bench_ffn, 15, "ffn [OPTION]...",
	 "the CPU pool alone, in this process, on weights of any shape and format"},
	{"compare", bench_compare, 9, "compare [OPTION]...", "the same beside other libraries, on the same weights"},
	{"device", bench_device, 9, "device [OPTION]...",
	 "a GPU: copies, fills, lanes, kernels, each beside its limit"},
	{"policy", bench_policy, 50, "policy [--slots N] [OPTION]...",
	 "a cache policy alone, in this process: one event", 8},
	{"plan", bench_plan, 20, "plan", "planning which GPU holds which experts, beside sorting their loads"},
	{"load", bench_load, 5, "load PATH", "loading, beside bare O_DIRECT reads"},
	{"attach", bench_attach, 100, "attach [--hold N --seconds S]",
	 "time to attach; or N idle sessions for S seconds"},
	{"restart", bench_restart, 20, "restart [--hold N --seconds S]",
	 "kills a daemon that has a keeper, each S seconds (11), under N sessions (64): until it answers"},
};

static void print_help(void)
{
	printf("Usage: moe-bench VERB [OPTION]...\n"
	       "What moe-expertd reaches beside this machine's own limit, measured in the same run.\n\n");
	for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
		printf("  %-32s %s\n", verbs[i].usage, verbs[i].help);
	printf("\n  --daemon PATH   the daemon's socket (default $MOE_EXPERTD_SOCKET, else %s)\n"
	       "  --model NAME    the loaded model (default: the only one)\n"
	       "  --samples N     how many (defaults differ by verb)\n"
	       "  --tokens N      of a request (default 1; of policy 8)\n"
	       "  --sessions N    of ring: that are attached and take turns (default 1)\n"
	       "  --beside N      of ring: so many programs that compute keep the same CPUs busy (default 0)\n"
	       "  --transport T   of ring: kmod: beside the ring, the same by the kernel module's queue (default "
	       "ring)\n"
	       "  --json          one JSON object a line\n"
	       "\nOf policy, with --experts N (256) and --topk N (8):\n"
	       "  --slots N       of the cache (default 104)\n"
	       "\nOf device:\n"
	       "  --device NAME   cuda (the default) or cuda:N\n"
	       "\nOf ffn, compare and device:\n"
	       "  --model-shape NAME  qwen3-30b-a3b (the default), mixtral-8x7b, deepseek-v3, gpt-oss-20b, kimi-k2\n"
	       "  --hidden N --inter N --experts N --topk N  another shape, or part of it\n"
	       "  --format NAME   of the weights (default bf16); list: their names\n"
	       "  --bytes SIZE    of weights in rotation, at least; of device: of its memory that is read: a number\n"
	       "                  with K, M, G or T (default 4G)\n"
	       "  --check         compare what was timed with the reference; a wrong result is a failure\n"
	       "\nOf ffn and compare:\n"
	       "  --threads N     of the pool (default: one per core)\n"
	       "  --isa LEVEL     auto, ref, avx2, avx512 or amx (default auto)\n"
	       "  --active N      distinct experts of a request (default: as many as its tokens can choose)\n"
	       "  --skew          nine tokens in ten choose the same expert\n\n"
	       "  -h, --help      this text\n"
	       "  --version       version and exit\n\n"
	       "Exit status: 0 done, 1 failed, 2 usage, 77 cannot run here (CPU).\n",
	       MOE_SOCKET_DEFAULT);
}

json_t *bench_document(struct moe_client *client, enum moe_document what)
{
	_cleanup_free_ char *text = NULL;

	return moe_query(client, what, &text, NULL) == 0 ? json_loads(text, 0, NULL) : NULL;
}

int bench_daemon_pid(struct moe_client *client)
{
	json_t *status = bench_document(client, MOE_DOCUMENT_STATUS);
	const int pid = (int)json_integer_value(json_object_get(status, "pid"));

	json_decref(status);
	return pid;
}

int bench_fail(const struct moe_error *err)
{
	fprintf(stderr, "moe-bench: %s\n", *err->text ? err->text : "out of memory");
	return 1;
}

void bench_pause(double seconds)
{
	const time_t whole = (time_t)seconds;

	nanosleep(&(struct timespec){.tv_sec = whole, .tv_nsec = (long)(1e9 * (seconds - (double)whole))}, NULL);
}

static int usage(const char *text, const char *word)
{
	fprintf(stderr, "moe-bench: %s '%s'; see moe-bench --help\n", text, word);
	return 2;
}

static int parse_count(uint32_t *ret, const char *text)
{
	char *end;
	const unsigned long value = strtoul(text, &end, 10);

	if (*end || end == text || *text == '-' || value == 0 || value > 10000000)
		return -1;
	*ret = (uint32_t)value;
	return 0;
}

static int parse_bytes(uint64_t *ret, const char *text)
{
	static const char suffixes[] = "KMGT";
	char *end;
	const double value = strtod(text, &end);
	const char *suffix = *end ? strchr(suffixes, *end) : NULL;
	const double bytes = suffix ? value * (double)(1ull << 10 * (suffix - suffixes + 1)) : value;

	if (end == text || (suffix ? end[1] : *end) || !(bytes >= 1 && bytes < 1e15))
		return -1;
	*ret = (uint64_t)bytes;
	return 0;
}

static int run_verb(struct options *o, const char *word)
{
	for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
		if (strcmp(word, verbs[i].name) != 0)
			continue;
		if (!o->samples)
			o->samples = verbs[i].samples;
		if (!o->tokens)
			o->tokens = verbs[i].tokens ? verbs[i].tokens : 1;
		return verbs[i].run(o);
	}
	return usage("unknown verb", word);
}

/* 0, or -1 when the word is no value of that option. */
static int set_option(struct options *o, int id, char *word)
{
	char *end;

	switch (id) {
	case 'd':
		o->socket = word;
		return 0;
	case 'm':
		o->model = word;
		return 0;
	case 'n':
		return parse_count(&o->samples, word);
	case 't':
		return parse_count(&o->tokens, word);
	case 'H':
		return parse_count(&o->hold, word);
	case 's':
		o->seconds = strtod(word, &end);
		return *end == '\0' && o->seconds > 0 && o->seconds < 1e6 ? 0 : -1;
	case 'j':
		o->json = true;
		return 0;
	case OPTION_SESSIONS:
		return parse_count(&o->sessions, word);
	case OPTION_BESIDE:
		return parse_count(&o->beside, word);
	case OPTION_DEVICE:
		o->device = word;
		return 0;
	case OPTION_SHAPE:
		o->shape = word;
		return 0;
	case OPTION_HIDDEN:
		return parse_count(&o->hidden, word);
	case OPTION_INTER:
		return parse_count(&o->inter, word);
	case OPTION_EXPERTS:
		return parse_count(&o->experts, word);
	case OPTION_TOPK:
		return parse_count(&o->topk, word);
	case OPTION_FORMAT:
		o->format = word;
		return 0;
	case OPTION_THREADS:
		return parse_count(&o->threads, word);
	case OPTION_ISA:
		o->isa = word;
		return 0;
	case OPTION_ACTIVE:
		return parse_count(&o->active, word);
	case OPTION_SLOTS:
		return parse_count(&o->slots, word);
	case OPTION_TRANSPORT:
		o->transport = word;
		return strcmp(word, "ring") == 0 || strncmp(word, "kmod", 4) == 0 ? 0 : -1;
	case OPTION_SKEW:
		o->skew = true;
		return 0;
	case OPTION_BYTES:
		return parse_bytes(&o->bytes, word);
	default:
		o->check = true;
		return 0;
	}
}

static int run(int argc, char **argv)
{
	static const struct option options[] = {
		{"daemon", required_argument, NULL, 'd'},
		{"model", required_argument, NULL, 'm'},
		{"samples", required_argument, NULL, 'n'},
		{"tokens", required_argument, NULL, 't'},
		{"hold", required_argument, NULL, 'H'},
		{"model-shape", required_argument, NULL, OPTION_SHAPE},
		{"hidden", required_argument, NULL, OPTION_HIDDEN},
		{"inter", required_argument, NULL, OPTION_INTER},
		{"experts", required_argument, NULL, OPTION_EXPERTS},
		{"topk", required_argument, NULL, OPTION_TOPK},
		{"format", required_argument, NULL, OPTION_FORMAT},
		{"threads", required_argument, NULL, OPTION_THREADS},
		{"isa", required_argument, NULL, OPTION_ISA},
		{"active", required_argument, NULL, OPTION_ACTIVE},
		{"skew", no_argument, NULL, OPTION_SKEW},
		{"bytes", required_argument, NULL, OPTION_BYTES},
		{"check", no_argument, NULL, OPTION_CHECK},
		{"sessions", required_argument, NULL, OPTION_SESSIONS},
		{"beside", required_argument, NULL, OPTION_BESIDE},
		{"device", required_argument, NULL, OPTION_DEVICE},
		{"transport", required_argument, NULL, OPTION_TRANSPORT},
		{"slots", required_argument, NULL, OPTION_SLOTS},
		{"seconds", required_argument, NULL, 's'},
		{"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{0},
	};
	struct options o = {.sessions = 1, .bytes = 4ull << 30};
	int id, which = 0;

	while ((id = getopt_long(argc, argv, "h", options, &which)) != -1) {
		if (id == 'h') {
			print_help();
			return 0;
		}
		if (id == 'V') {
			printf("moe-bench %s\n", MOE_EXPERT_VERSION);
			return 0;
		}
		if (id == '?')
			return 2;
		if (set_option(&o, id, optarg) < 0) {
			fprintf(stderr, "moe-bench: --%s: '%s' is not a value that it takes; see moe-bench --help\n",
				options[which].name, optarg);
			return 2;
		}
	}
	if (optind == argc) {
		fprintf(stderr, "moe-bench: a verb is missing; see moe-bench --help\n");
		return 2;
	}
	o.path = optind + 1 < argc ? argv[optind + 1] : NULL;
	if (optind + 1 + (strcmp(argv[optind], "load") == 0) < argc)
		return usage("unexpected argument", argv[argc - 1]);
	if (strcmp(argv[optind], "load") == 0 && !o.path)
		return usage("a model's PATH is missing behind", argv[optind]);
	return run_verb(&o, argv[optind]);
}

int main(int argc, char **argv)
{
	stdio_fill();
	return stdout_end("moe-bench", run(argc, argv));
}
