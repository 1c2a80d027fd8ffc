/* SPDX-License-Identifier: MIT */
/* moe-mkmodel - random models in each family's published format, and models in quantized forms. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/stdout.h"
#include "moe-expert.h"
#include "tools/mkmodel/folder.h"
#include "tools/mkmodel/options.h"
#include "tools/mkmodel/verbs.h"

static int make(int argc, char **argv)
{
	struct moe_error err = {0};
	enum options_verdict verdict;
	struct folder_result result;
	struct spec spec;
	const char *out;

	if (options_parse(argc, argv, &spec, &out, &verdict, &err) < 0) {
		fprintf(stderr, "moe-mkmodel: %s\nTry 'moe-mkmodel --help'.\n", err.text);
		return EXIT_USAGE;
	}
	if (verdict == OPTIONS_HELP) {
		options_help(stdout);
		return EXIT_DONE;
	}
	if (folder_write(out, &spec, true, &result, &err) < 0) {
		fprintf(stderr, "moe-mkmodel: %s\n", err.text);
		return EXIT_FAILED;
	}
	printf("%s: %s, %u layers of %u experts, %" PRIu64 " tensors, %.1f MB in %u %s\n", out,
	       model_family_name(spec.family), spec.layers, spec.experts, result.n_tensors, (double)result.bytes * 1e-6,
	       result.shards, result.shards == 1 ? "file" : "shards");
	return EXIT_DONE;
}

int main(int argc, char **argv)
{
	const char *verb = argc > 1 ? argv[1] : "";
	int code;

	stdio_fill();
	if (strcmp(verb, "--version") == 0) {
		printf("moe-mkmodel %s\n", MOE_EXPERT_VERSION);
		return stdout_end("moe-mkmodel", EXIT_DONE);
	}
	if (strcmp(verb, "quantize") == 0)
		code = verb_quantize(argc - 1, argv + 1);
	else if (strcmp(verb, "widen") == 0)
		code = verb_widen(argc - 1, argv + 1);
	else
		code = make(argc, argv);
	return stdout_end("moe-mkmodel", code);
}
