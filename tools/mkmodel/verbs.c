/* SPDX-License-Identifier: MIT */
#include "tools/mkmodel/verbs.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/model.h"
#include "tools/mkmodel/form.h"
#include "tools/mkmodel/ggml.h"
#include "tools/mkmodel/quantize.h"
#include "tools/mkmodel/widen.h"

static int fail(const struct moe_error *err, int code)
{
	fprintf(stderr, "moe-mkmodel: %s\n", err->text);
	if (code == EXIT_USAGE)
		fputs("Try 'moe-mkmodel --help'.\n", stderr);
	return code;
}

static int read_count(const char *option, const char *text, uint32_t *ret, struct moe_error *err)
{
	char *end;
	const unsigned long value = strtoul(text, &end, 10);

	if (text[0] < '0' || text[0] > '9' || *end || value == 0 || value > MODEL_DIM_MAX)
		return moe_error_set(err, -EINVAL, "%s: found \"%s\"; expected an integer from 1 to %u", option, text,
				     MODEL_DIM_MAX);
	*ret = (uint32_t)value;
	return 0;
}

/* An option that getopt did not take. */
static int bad_option(int c, char **argv, struct moe_error *err)
{
	return moe_error_set(err, -EINVAL, c == ':' ? "%s: a value is missing" : "%s: no such option",
			     argv[optind - 1]);
}

/* The two paths that are left. */
static int read_paths(int argc, char **argv, const char **folder, const char **out, struct moe_error *err)
{
	if (argc - optind != 2)
		return moe_error_set(err, -EINVAL, "%s: found %d arguments; expected FOLDER and OUT", argv[0],
				     argc - optind);
	*folder = argv[optind];
	*out = argv[optind + 1];
	return 0;
}

enum { OPTION_FORMAT = 1000, OPTION_DOWN_FORMAT, OPTION_DOWN_EVERY, OPTION_HIDDEN, OPTION_INTER, OPTION_HELP };

static const struct option options[] = {
	{"format", required_argument, NULL, OPTION_FORMAT},
	{"down-format", required_argument, NULL, OPTION_DOWN_FORMAT},
	{"down-every", required_argument, NULL, OPTION_DOWN_EVERY},
	{"help", no_argument, NULL, OPTION_HELP},
	{NULL, 0, NULL, 0},
};

/* 1: help was asked for. */
static int parse_quantize(int argc, char **argv, struct quantize_request *q, struct moe_error *err)
{
	int c, r = 0;

	opterr = 0;
	optind = 0;
	while (r == 0 && (c = getopt_long(argc, argv, ":h", options, NULL)) != -1)
		switch (c) {
		case 'h':
		case OPTION_HELP:
			return 1;
		case OPTION_FORMAT:
			q->format = optarg;
			break;
		case OPTION_DOWN_FORMAT:
			q->down_format = optarg;
			break;
		case OPTION_DOWN_EVERY:
			r = read_count("--down-every", optarg, &q->down_every, err);
			break;
		default:
			return bad_option(c, argv, err);
		}
	if (r == 0)
		r = read_paths(argc, argv, &q->folder, &q->out, err);
	if (r == 0 && !q->format)
		r = moe_error_set(err, -EINVAL, "--format is missing");
	if (r == 0 && q->down_every && !q->down_format)
		r = moe_error_set(err, -EINVAL, "--down-every: found no --down-format, which it is about");
	return r;
}

int verb_quantize(int argc, char **argv)
{
	struct quantize_request q = {.progress = true};
	struct quantize_result result;
	struct moe_error err = {0};
	int r = parse_quantize(argc, argv, &q, &err);

	if (r > 0) {
		verbs_help(stdout);
		return EXIT_DONE;
	}
	if (r == 0)
		r = quantize_check(&q, &err);
	if (r < 0)
		return fail(&err, EXIT_USAGE);
	if (quantize(&q, &result, &err) < 0)
		return fail(&err, EXIT_FAILED);
	printf("%s: %s, %" PRIu64 " tensors, %.1f MB\n", q.out, q.format, result.n_tensors,
	       (double)result.bytes * 1e-6);
	return EXIT_DONE;
}

static const struct option widen_options[] = {
	{"hidden", required_argument, NULL, OPTION_HIDDEN},
	{"inter", required_argument, NULL, OPTION_INTER},
	{"help", no_argument, NULL, OPTION_HELP},
	{NULL, 0, NULL, 0},
};

struct sizes {
	uint32_t hidden, inter;
};

static int parse_widen(int argc, char **argv, struct sizes *sizes, const char **folder, const char **out,
		       struct moe_error *err)
{
	int c, r = 0;

	opterr = 0;
	optind = 0;
	while (r == 0 && (c = getopt_long(argc, argv, ":h", widen_options, NULL)) != -1)
		switch (c) {
		case 'h':
		case OPTION_HELP:
			return 1;
		case OPTION_HIDDEN:
			r = read_count("--hidden", optarg, &sizes->hidden, err);
			break;
		case OPTION_INTER:
			r = read_count("--inter", optarg, &sizes->inter, err);
			break;
		default:
			return bad_option(c, argv, err);
		}
	return r < 0 ? r : read_paths(argc, argv, folder, out, err);
}

int verb_widen(int argc, char **argv)
{
	const char *folder = NULL, *out = NULL;
	struct folder_result result;
	struct sizes sizes = {0};
	struct moe_error err = {0};
	int r = parse_widen(argc, argv, &sizes, &folder, &out, &err);

	if (r > 0) {
		verbs_help(stdout);
		return EXIT_DONE;
	}
	if (r < 0)
		return fail(&err, EXIT_USAGE);
	if (widen(folder, out, sizes.hidden, sizes.inter, true, &result, &err) < 0)
		return fail(&err, EXIT_FAILED);
	printf("%s: %" PRIu64 " tensors, %.1f MB in %u %s\n", out, result.n_tensors, (double)result.bytes * 1e-6,
	       result.shards, result.shards == 1 ? "file" : "shards");
	return EXIT_DONE;
}

/* A list of words, cut into lines. */
static void print_list(FILE *to, const char *list)
{
	int column = 6;

	fputs("      ", to);
	for (const char *at = list; *at;) {
		const size_t n = strcspn(at, " "), with = n + (at[n] == ' ');

		if (column + (int)n > 100) {
			fputs("\n      ", to);
			column = 6;
		}
		fprintf(to, "%.*s", (int)with, at);
		column += (int)with;
		at += with;
	}
	fputc('\n', to);
}

void verbs_help(FILE *to)
{
	char list[512];

	fputs("usage: moe-mkmodel quantize FOLDER OUT --format F [--down-format F [--down-every N]]\n"
	      "Write a model of BF16 or F16 experts in a form in which models are published. OUT is a new folder, "
	      "with\n"
	      "everything but the experts as it was, in one of the formats\n",
	      to);
	form_list(list, sizeof list);
	print_list(to, list);
	fputs("or, named x.gguf, a file as llama.cpp makes it, with experts of type\n", to);
	ggml_list(list, sizeof list);
	print_list(to, list);
	fputs("  --format F         of the experts\n"
	      "  --down-format F    GGUF: another type for the down matrices, as in mixed quantizations\n"
	      "  --down-every N     only in each Nth layer (default 1)\n\n"
	      "usage: moe-mkmodel widen FOLDER OUT [--hidden N] [--inter N]\n"
	      "Write a larger model that computes the same function: a type with blocks of 256 columns needs that "
	      "many.\n"
	      "  --hidden N         new hidden size: the old one times a power of two (default: as it is)\n"
	      "  --inter N          new intermediate size of the experts, likewise (default: as it is)\n",
	      to);
}
