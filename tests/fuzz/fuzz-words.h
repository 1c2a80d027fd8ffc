/* SPDX-License-Identifier: MIT */
/* fuzz-words - an input that stands for a command line: a word a line, the program's name not among them. */
#ifndef TESTS_FUZZ_FUZZ_WORDS_H
#define TESTS_FUZZ_FUZZ_WORDS_H

#include <getopt.h>

#include "tests/fuzz/fuzz.h"

#define FUZZ_WORDS_MAX 64

struct fuzz_words {
	int argc;
	char *argv[FUZZ_WORDS_MAX + 2], *text;
};

/* Also makes getopt begin anew, and say nothing. */
static inline struct fuzz_words fuzz_words(const uint8_t *data, size_t size)
{
	static char program[] = "fuzz";
	struct fuzz_words w = {.argc = 1, .argv = {program}};

	w.text = malloc(size + 1);
	fuzz_check(w.text);
	if (size > 0)
		memcpy(w.text, data, size);
	w.text[size] = '\0';
	for (char *at = w.text, *end; *at && w.argc <= FUZZ_WORDS_MAX; at = end) {
		end = strchrnul(at, '\n');
		if (*end)
			*end++ = '\0';
		w.argv[w.argc++] = at;
	}
	optind = 0;
	opterr = 0;
	return w;
}

/* Whether the text is one of the words, or the end of one. */
static inline bool fuzz_words_have(const struct fuzz_words *w, const char *text)
{
	const size_t n = strlen(text);

	for (int i = 1; i < w->argc; i++) {
		const size_t m = w->argv[i] ? strlen(w->argv[i]) : 0; /* NULL: taken out */

		if (w->argv[i] && m >= n && strcmp(w->argv[i] + m - n, text) == 0)
			return true;
	}
	return false;
}

#endif
