/* SPDX-License-Identifier: MIT */
#include "tools/worker/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "kernels/kernels.h"

const char *const experts_names[] = {"local", "cpu", "cache", NULL};
const char *const mode_names[] = {"auto", "decode", "prefetch", "full", NULL};
const char *const dense_names[] = {"host", "device", NULL};
static const char *const policy_words[] = {"lru",     "lfu",   "lfu-decay", "lfru",      "ema",      "mrs",    "arc",
					   "s3-fifo", "sieve", "ebco-soft", "ebco-hard", "original", "static", NULL};
static const char *const fill_names[] = {"push", "pull", NULL};
static const char *const zero_copy_names[] = {"off", "cost", "always", NULL};
static const char *const pages_fill_names[] = {"plain", "advise", "prefetch", NULL};
const char *const answers_names[] = {"read", "copy", NULL};
static const char *const share_names[] = {"part", "group", NULL};
static const char *const n_copy_names[] = {"cost", "stairs", NULL};
static const char *const pages_names[] = {"auto", "1g", "2m", "thp", "4k", NULL};

enum option_code {
	OPTION_MODEL = 256,
	OPTION_EXPERTS_FROM,
	OPTION_PROMPT,
	OPTION_TEXT,
	OPTION_IDS,
	OPTION_LIMIT,
	OPTION_TOKENS,
	OPTION_WINDOW,
	OPTION_DECODE,
	OPTION_TEMPERATURE,
	OPTION_TOP_P,
	OPTION_SEED,
	OPTION_EXPERTS,
	OPTION_MODE,
	OPTION_TP,
	OPTION_SLOTS,
	OPTION_POLICY,
	OPTION_CACHE_TOPK,
	OPTION_UPDATE,
	OPTION_DEVICE,
	OPTION_DENSE,
	OPTION_GRAPH,
	OPTION_FILL,
	OPTION_ZERO_COPY,
	OPTION_PAGES_FILL,
	OPTION_ANSWERS,
	OPTION_SHARE,
	OPTION_N_COPY,
	OPTION_DEFER,
	OPTION_PREDICT,
	OPTION_GHOSTS,
	OPTION_WARM,
	OPTION_DAEMON,
	OPTION_THREADS,
	OPTION_PAGES,
	OPTION_ISA,
	OPTION_STATS,
	OPTION_JSON,
	OPTION_VERSION
};

static const struct option long_options[] = {
	{"model", required_argument, NULL, OPTION_MODEL},
	{"experts-from", required_argument, NULL, OPTION_EXPERTS_FROM},
	{"prompt", required_argument, NULL, OPTION_PROMPT},
	{"text", required_argument, NULL, OPTION_TEXT},
	{"ids", required_argument, NULL, OPTION_IDS},
	{"limit", required_argument, NULL, OPTION_LIMIT},
	{"tokens", required_argument, NULL, OPTION_TOKENS},
	{"window", required_argument, NULL, OPTION_WINDOW},
	{"decode", no_argument, NULL, OPTION_DECODE},
	{"temperature", required_argument, NULL, OPTION_TEMPERATURE},
	{"top-p", required_argument, NULL, OPTION_TOP_P},
	{"seed", required_argument, NULL, OPTION_SEED},
	{"experts", required_argument, NULL, OPTION_EXPERTS},
	{"mode", required_argument, NULL, OPTION_MODE},
	{"tp", required_argument, NULL, OPTION_TP},
	{"slots", required_argument, NULL, OPTION_SLOTS},
	{"policy", required_argument, NULL, OPTION_POLICY},
	{"cache-topk", required_argument, NULL, OPTION_CACHE_TOPK},
	{"update", required_argument, NULL, OPTION_UPDATE},
	{"device", required_argument, NULL, OPTION_DEVICE},
	{"dense", required_argument, NULL, OPTION_DENSE},
	{"graph", no_argument, NULL, OPTION_GRAPH},
	{"fill", required_argument, NULL, OPTION_FILL},
	{"zero-copy", required_argument, NULL, OPTION_ZERO_COPY},
	{"pages-fill", required_argument, NULL, OPTION_PAGES_FILL},
	{"answers", required_argument, NULL, OPTION_ANSWERS},
	{"share", required_argument, NULL, OPTION_SHARE},
	{"n-copy", required_argument, NULL, OPTION_N_COPY},
	{"defer", required_argument, NULL, OPTION_DEFER},
	{"predict", required_argument, NULL, OPTION_PREDICT},
	{"ghosts", required_argument, NULL, OPTION_GHOSTS},
	{"warm", no_argument, NULL, OPTION_WARM},
	{"daemon", required_argument, NULL, OPTION_DAEMON},
	{"threads", required_argument, NULL, OPTION_THREADS},
	{"pages", required_argument, NULL, OPTION_PAGES},
	{"isa", required_argument, NULL, OPTION_ISA},
	{"stats", no_argument, NULL, OPTION_STATS},
	{"json", no_argument, NULL, OPTION_JSON},
	{"verbose", no_argument, NULL, 'v'},
	{"help", no_argument, NULL, 'h'},
	{"version", no_argument, NULL, OPTION_VERSION},
	{0},
};

static int wrong(const char *option, const char *found, const char *expected)
{
	fprintf(stderr, "moe-worker: %s: found '%s', expected %s\n", option, found, expected);
	return -EINVAL;
}

static int parse_number(const char *option, const char *text, uint64_t min, uint64_t max, uint64_t *ret)
{
	unsigned long long n;
	char expected[80], *end;

	snprintf(expected, sizeof(expected), "a number from %llu to %llu", (unsigned long long)min,
		 (unsigned long long)max);
	errno = 0;
	n = strtoull(text, &end, 10);
	if (errno || end == text || *end || text[0] < '0' || text[0] > '9' || n < min || n > max)
		return wrong(option, text, expected);
	*ret = n;
	return 0;
}

static int parse_u32(const char *option, const char *text, uint32_t min, uint32_t max, uint32_t *ret)
{
	uint64_t n;
	int r = parse_number(option, text, min, max, &n);

	if (r == 0)
		*ret = (uint32_t)n;
	return r;
}

static int parse_real(const char *option, const char *text, double min, double max, double *ret)
{
	char expected[80], *end;
	const double x = strtod(text, &end);

	snprintf(expected, sizeof(expected), "a number from %g to %g", min, max);
	if (end == text || *end || !(x >= min && x <= max))
		return wrong(option, text, expected);
	*ret = x;
	return 0;
}

/* The word's place in the list, or -EINVAL. */
static int parse_word(const char *option, const char *text, const char *const *words)
{
	char expected[512] = "";

	for (int i = 0; words[i]; i++) {
		if (strcmp(text, words[i]) == 0)
			return i;
		snprintf(expected + strlen(expected), sizeof(expected) - strlen(expected), "%s%s", i ? ", " : "",
			 words[i]);
	}
	return wrong(option, text, expected);
}

/* Whether the private daemon, which is on this machine, could take it. */
static int parse_isa(const char *text)
{
	enum isa isa;
	const int r = isa_from_name(text, &isa);

	if (r < 0)
		fprintf(stderr, "moe-worker: --isa %s: %s\n", text, isa_why_not(text));
	return r;
}

/* Which of them there are the library knows. */
static int parse_device(const char *text)
{
	const char *number = strncmp(text, "cuda:", 5) == 0 ? text + 5 : NULL;

	if (strcmp(text, "host") == 0 || strcmp(text, "auto") == 0 || strcmp(text, "cuda") == 0 ||
	    (number && *number && strspn(number, "0123456789") == strlen(number)))
		return 0;
	return wrong("--device", text, "host, cuda, cuda:N or auto");
}

static int parse_n_copy(struct options *o, const char *text)
{
	int r = 0;

	if (text[0] >= '0' && text[0] <= '9') {
		o->n_copy_rule = N_COPY_NUMBER;
		return parse_u32("--n-copy", text, 0, 1u << 20, &o->n_copy);
	}
	for (r = 0; n_copy_names[r] && strcmp(text, n_copy_names[r]) != 0; r++)
		;
	if (!n_copy_names[r])
		return wrong("--n-copy", text, "cost, stairs or a number");
	o->n_copy_rule = (enum n_copy_rule)r;
	return 0;
}

/* Options of the text and of the output. -ENOENT: not one of these. */
static int parse_text(struct options *o, int option, const char *name, const char *arg)
{
	switch (option) {
	case OPTION_PROMPT:
		o->prompt = arg;
		return 0;
	case OPTION_TEXT:
		o->text = arg;
		return 0;
	case OPTION_IDS:
		o->ids = arg;
		return 0;
	case OPTION_LIMIT:
		return parse_u32(name, arg, 1, UINT32_MAX, &o->limit);
	case OPTION_TOKENS:
		return parse_u32(name, arg, 1, 1u << 24, &o->tokens);
	case OPTION_WINDOW:
		return parse_u32(name, arg, 2, 1u << 24, &o->window);
	case OPTION_DECODE:
		o->decode = true;
		return 0;
	case OPTION_TEMPERATURE:
		return parse_real(name, arg, 0, 100, &o->temperature);
	case OPTION_TOP_P:
		return parse_real(name, arg, 0, 1, &o->top_p);
	case OPTION_SEED:
		return parse_number(name, arg, 0, UINT64_MAX, &o->seed);
	case OPTION_STATS:
		o->stats = true;
		return 0;
	case OPTION_JSON:
		o->json = true;
		return 0;
	case 'v':
		o->verbose = true;
		return 0;
	default:
		return -ENOENT;
	}
}

static int parse_experts(struct options *o, int option, const char *name, const char *arg)
{
	int word = 0, r = 0;

	switch (option) {
	case OPTION_MODEL:
		o->model = arg;
		break;
	case OPTION_EXPERTS_FROM:
		o->experts_from = arg;
		break;
	case OPTION_EXPERTS:
		r = word = parse_word(name, arg, experts_names);
		o->experts = (enum experts_kind)MAX(word, 0);
		break;
	case OPTION_MODE:
		r = word = parse_word(name, arg, mode_names);
		o->mode = (enum moe_mode)MAX(word, 0);
		break;
	case OPTION_FILL:
		r = word = parse_word(name, arg, fill_names);
		o->fill = (enum moe_fill)MAX(word, 0);
		o->fill_given = true;
		break;
	case OPTION_DEVICE:
		r = parse_device(arg);
		o->device = arg;
		break;
	case OPTION_DENSE:
		r = word = parse_word(name, arg, dense_names);
		o->dense = (enum dense_place)MAX(word, 0);
		break;
	case OPTION_GRAPH:
		o->graph = true;
		break;
	case OPTION_ZERO_COPY:
		r = word = parse_word(name, arg, zero_copy_names);
		o->zero_copy = (enum moe_zero_copy)MAX(word, 0);
		break;
	case OPTION_PAGES_FILL:
		r = word = parse_word(name, arg, pages_fill_names);
		o->pages_fill = (enum moe_pages)MAX(word, 0);
		break;
	case OPTION_ANSWERS:
		r = word = parse_word(name, arg, answers_names);
		o->answers = (enum moe_answers)MAX(word, 0);
		break;
	case OPTION_SHARE:
		r = word = parse_word(name, arg, share_names);
		o->share = (enum moe_share)MAX(word, 0);
		break;
	case OPTION_POLICY:
		r = parse_word(name, arg, policy_words);
		o->policy = arg;
		break;
	case OPTION_TP:
		r = parse_u32(name, arg, 1, 64, &o->tp);
		break;
	case OPTION_SLOTS:
		r = parse_u32(name, arg, 0, 1u << 20, &o->slots);
		break;
	case OPTION_CACHE_TOPK:
		r = parse_u32(name, arg, 1, 64, &o->cache_topk);
		break;
	case OPTION_UPDATE:
		r = parse_u32(name, arg, 1, 1u << 20, &o->update);
		break;
	case OPTION_N_COPY:
		r = parse_n_copy(o, arg);
		break;
	case OPTION_DEFER:
		r = parse_u32(name, arg, 0, 63, &o->defer);
		break;
	case OPTION_PREDICT:
		r = parse_u32(name, arg, 0, 4096, &o->predict);
		break;
	case OPTION_GHOSTS:
		r = parse_u32(name, arg, 0, 4096, &o->ghosts);
		break;
	case OPTION_WARM:
		o->warm = true;
		break;
	case OPTION_DAEMON:
		if (!*arg) /* a variable that is not set must not load the model a second time */
			r = wrong(name, arg, "a socket; without --daemon a private one is started");
		o->daemon = arg;
		break;
	case OPTION_THREADS:
		r = parse_u32(name, arg, 1, 4096, &o->threads);
		break;
	case OPTION_PAGES:
		r = parse_word(name, arg, pages_names);
		o->pages = arg;
		break;
	case OPTION_ISA:
		r = parse_isa(arg);
		o->isa = arg;
		break;
	default:
		r = -EINVAL;
	}
	return MIN(r, 0);
}

/* The daemon pushes into memory that it can map; who reads the pool maps it. */
static void choose_fill(struct options *o)
{
	if (!o->fill_given)
		o->fill = options_on_host(o) && o->zero_copy == MOE_ZERO_COPY_OFF ? MOE_FILL_PUSH : MOE_FILL_PULL;
}

/* Ranks that share the CPU part must plan alike, and each measures its own costs. */
static int check_n_copy(struct options *o)
{
	const bool alike = o->share == MOE_SHARE_GROUP && o->tp > 1;

	if (o->n_copy_rule == N_COPY_COST && alike)
		return wrong("--n-copy", "cost", "stairs or a number with --share group");
	if (o->n_copy_rule == N_COPY_DEFAULT)
		o->n_copy_rule = alike ? N_COPY_STAIRS : N_COPY_COST;
	return 0;
}

/* Where nothing could be deferred, asking for it is a mistake. */
static int check_defer(const struct options *o)
{
	if (o->defer == 0)
		return 0;
	if (o->experts == EXPERTS_LOCAL)
		return wrong("--experts", "local", "cpu or cache with --defer");
	if (o->command == COMMAND_SCORE && !o->decode) {
		fprintf(stderr, "moe-worker: --defer: score with it needs --decode: nothing is deferred in prefill\n");
		return -EINVAL;
	}
	return 0;
}

/* What lies on a GPU is computed there. `auto` is decided when the GPU is looked for. */
static int check_dense(struct options *o)
{
	const bool slots = o->experts == EXPERTS_CACHE && o->slots > 0 && !options_on_host(o);

	if (o->dense == DENSE_WITH_SLOTS)
		o->dense = slots ? DENSE_DEVICE : DENSE_HOST;
	if (o->dense == DENSE_DEVICE && !slots)
		return wrong("--dense", "device", "host: there are no slots on a GPU (--device cuda, --experts cache)");
	if (o->dense == DENSE_DEVICE && o->defer)
		return wrong("--dense", "device", "host with --defer");
	if (o->answers == MOE_ANSWERS_COPY && o->dense != DENSE_DEVICE)
		return wrong("--answers", "copy", "read: without --dense device the host adds the CPU part");
	if (!o->graph)
		return 0;
	if (o->dense != DENSE_DEVICE)
		return wrong("--graph", dense_names[o->dense], "attention and router on a GPU: --device cuda");
	if (o->tp > 1)
		return wrong("--graph", "--tp", "one rank: the ranks' sums are not captured");
	if (o->command == COMMAND_SCORE && !o->decode)
		return wrong("--graph", "prefill", "score with --decode: only decode steps are captured");
	return 0;
}

/* The first that was given of a list that 0 ends. */
static bool any_given(const struct options *o, const int *list, const char **ret_name)
{
	for (; *list; list++)
		for (const struct option *l = long_options; l->name; l++)
			if (l->val == *list && o->given & 1ull << (*list - OPTION_MODEL)) {
				*ret_name = l->name;
				return true;
			}
	return false;
}

/* What would be ignored is a mistake: who gives it expects something of it. */
static int check_given(const struct options *o)
{
	static const int of_generate[] = {
		OPTION_PROMPT, OPTION_TOKENS, OPTION_TEMPERATURE, OPTION_TOP_P, OPTION_SEED, OPTION_STATS, 0};
	static const int of_score[] = {OPTION_TEXT, OPTION_WINDOW, OPTION_DECODE, 0};
	static const int of_private[] = {OPTION_THREADS, OPTION_PAGES, OPTION_ISA, 0};
	const char *name;

	if (any_given(o, o->command == COMMAND_GENERATE ? of_score : of_generate, &name)) {
		fprintf(stderr, "moe-worker: --%s is not an option of %s: see moe-worker --help\n", name,
			o->command == COMMAND_GENERATE ? "generate" : "score");
		return -EINVAL;
	}
	if (o->daemon && any_given(o, of_private, &name)) {
		fprintf(stderr,
			"moe-worker: --%s is for a private daemon: the one at --daemon %s was started with its own\n",
			name, o->daemon);
		return -EINVAL;
	}
	if (o->daemon && o->experts == EXPERTS_LOCAL)
		return wrong("--experts", "local", "cpu or cache with --daemon");
	return 0;
}

static int check(struct options *o, int argc, char **argv)
{
	const char *input;

	if (argc - optind > 1) {
		fprintf(stderr, "moe-worker: %s: one command at a time\n", argv[optind + 1]);
		return -EINVAL;
	}
	if (optind < argc && strcmp(argv[optind], "generate") == 0) {
		o->command = COMMAND_GENERATE;
		input = o->prompt;
	} else if (optind < argc && strcmp(argv[optind], "score") == 0) {
		o->command = COMMAND_SCORE;
		input = o->text;
	} else {
		return wrong("command", optind < argc ? argv[optind] : "", "generate or score; see --help");
	}
	if (check_given(o) < 0)
		return -EINVAL;
	if (!o->model) {
		fprintf(stderr, "moe-worker: --model DIR is missing\n");
		return -EINVAL;
	}
	if (!input == !o->ids) {
		fprintf(stderr, "moe-worker: expected either %s or --ids FILE\n",
			o->command == COMMAND_GENERATE ? "--prompt TEXT" : "--text FILE");
		return -EINVAL;
	}
	choose_fill(o);
	return check_defer(o) < 0 || check_dense(o) < 0 ? -EINVAL : check_n_copy(o);
}

int options_parse(struct options *ret, int argc, char **argv)
{
	struct options o = {
		.experts = EXPERTS_CACHE,
		.mode = MOE_MODE_AUTO,
		.tp = 1,
		.slots = 8,
		.n_copy_rule = N_COPY_DEFAULT,
		.dense = DENSE_WITH_SLOTS,
		.tokens = 64,
		.top_p = 1.0,
	};
	int option, index = 0, r;

	while ((option = getopt_long(argc, argv, "vh", long_options, &index)) != -1) {
		char name[32];

		if (option == '?') {
			fputs("moe-worker: see moe-worker --help\n", stderr);
			return -EINVAL;
		}
		if (option == 'h') {
			fputs(options_help, stdout);
			return 1;
		}
		if (option == OPTION_VERSION) {
			puts("moe-worker " MOE_EXPERT_VERSION);
			return 1;
		}
		snprintf(name, sizeof(name), "--%s", option == 'v' ? "verbose" : long_options[index].name);
		r = parse_text(&o, option, name, optarg);
		if (option >= OPTION_MODEL)
			o.given |= 1ull << (option - OPTION_MODEL);
		if (r == -ENOENT)
			r = parse_experts(&o, option, name, optarg);
		if (r < 0)
			return r;
	}
	r = check(&o, argc, argv);
	if (r == 0)
		*ret = o;
	return r;
}
