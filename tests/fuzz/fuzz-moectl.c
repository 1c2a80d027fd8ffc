/* SPDX-License-Identifier: MIT */
/* moectl's command line: refused with a reason, or a verb, its words and options within their limits. The input is as
 * fuzz-words.h. */
#include "tests/fuzz/fuzz-words.h"
#include "tools/moectl/arguments.h"

static void check_verb(const struct arguments *arg, const struct fuzz_words *w)
{
	const char *const options[] = {arg->socket, arg->name, arg->isa, arg->config, arg->root, arg->svg};

	fuzz_check(fuzz_words_have(w, arg->verb));
	fuzz_check(arg->n >= 0 && arg->n < w->argc && arg->words + arg->n == w->argv + w->argc);
	for (int i = 0; i < arg->n; i++)
		fuzz_check(fuzz_words_have(w, arg->words[i]));
	for (size_t i = 0; i < sizeof options / sizeof *options; i++)
		fuzz_check(!options[i] || fuzz_words_have(w, options[i]));
	fuzz_check(arg->interval >= ARGUMENTS_WATCH_MIN && arg->interval <= ARGUMENTS_WATCH_MAX);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_words w = fuzz_words(data, size);
	struct arguments arg;
	const enum arguments_result r = arguments_parse(&arg, w.argc, w.argv);

	if (r == ARGUMENTS_VERB)
		check_verb(&arg, &w);
	else if (r == ARGUMENTS_WRONG)
		fuzz_check(arg.wrong && *arg.wrong);
	free(w.text);
	return 0;
}
