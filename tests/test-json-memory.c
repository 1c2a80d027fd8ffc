/* SPDX-License-Identifier: MIT */
/*
 * test-json-memory - what jansson's parser takes lies in its reservation: for the texts whose values take most, whole,
 * cut off, and not JSON at all; and it goes with the last value, whoever frees it.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "model/json-memory.h"
#include "tests/tap.h"

#define TEXT_BYTES (1u << 18)

static uint64_t reserved(void)
{
	uint64_t bytes, fallbacks;

	json_memory_stats(&bytes, &fallbacks);
	return bytes;
}

static uint64_t fallbacks(void)
{
	uint64_t bytes, n;

	json_memory_stats(&bytes, &n);
	return n;
}

/* `head`, `part` again and again, `tail`; a # in the part is a number that differs each time. */
static size_t make(char *text, size_t size, const char *head, const char *part, const char *tail)
{
	size_t n = (size_t)sprintf(text, "%s", head), parts = 0;

	while (n + strlen(part) + 16 < size) {
		for (const char *c = part; *c; c++)
			n += (size_t)(*c == '#' ? sprintf(text + n, "%zx", parts) : sprintf(text + n, "%c", *c));
		parts++;
	}
	return n + (size_t)sprintf(text + n, "%s", tail);
}

static void test_bounds(void)
{
	static const struct {
		const char *head, *part, *tail;
		bool good;
	} texts[] = {
		{"[[]", ",[]", "]", true},
		{"[{}", ",{}", "]", true},
		{"[1", ",1", "]", true},
		{"[1.5", ",1.5", "]", true},
		{"[\"\"", ",\"\"", "]", true},
		{"{\"\":0", ",\"#\":0", "}", true},
		{"[\"", "x", "\"]", true},
		{"[\"", "\\u00e9", "\"]", true},
		{"{\"", "k", "\":1}", true},
		{"[[[0]]", ",[[0]]", "]", true},
		{"[[1]", ",[1,[2,{\"a\":3}]]", "]", true},
		{"{\"x\":{}", ",\"#\":{\"b\":[]}", "}", true},
		{"{\"\":[]", ",\"#\":[[]]", "}", true},
		{"", "[", "", false},
		{"", "{\"\":", "", false},
		{"[", "\"", "", false},
		{"[", "\"\",", "", false},
		{"[1", "0", "]", false},
		{"[", ",", "]", false},
		{"[\"", "\\", "\"]", false},
	};
	static const size_t sizes[] = {64, 4096, TEXT_BYTES};
	char *text = malloc(TEXT_BYTES);

	for (size_t i = 0; text && i < sizeof texts / sizeof *texts; i++) {
		bool good = true;

		for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
			const size_t n = make(text, sizes[s], texts[i].head, texts[i].part, texts[i].tail);
			json_t *json = NULL;
			json_error_t why;
			int r = json_memory_parse(&json, text, n, JSON_REJECT_DUPLICATES, &why);

			good = good && (r == 0) == texts[i].good && (r == 0) == (json != NULL);
			json_decref(json);
			for (size_t cut = 1; cut < n; cut += 1 + n / 7) {
				json = NULL;
				if (json_memory_parse(&json, text, cut, 0, &why) == 0)
					json_decref(json);
			}
		}
		ok(good && fallbacks() == 0 && reserved() == 0, "%s%s%s: within its reservation, which goes",
		   texts[i].head, texts[i].part, texts[i].tail);
	}
	free(text);
}

static void *drop(void *userdata)
{
	json_decref(userdata);
	return NULL;
}

static void test_lives(json_t *older)
{
	static const char text[] = "{\"a\": [1, 2, \"three\"], \"b\": {\"c\": null}}";
	json_t *one = NULL, *two = NULL, *part;
	json_error_t why;
	pthread_t thread;

	json_memory_parse(&one, text, strlen(text), 0, &why);
	json_memory_parse(&two, text, strlen(text), 0, &why);
	ok(json_equal(one, two) && reserved() > 0, "two values at a time");
	json_decref(older);
	json_object_set_new(one, "d", json_string("made by malloc()"));
	part = json_incref(json_object_get(one, "a"));
	json_decref(one);
	ok(json_array_size(part) == 3 && strcmp(json_string_value(json_array_get(part, 2)), "three") == 0,
	   "a part outlives the whole");
	pthread_create(&thread, NULL, drop, part);
	pthread_join(thread, NULL);
	json_decref(two);
	ok(reserved() == 0, "nothing is left after the last part, freed by another thread");
}

/* Without room for the reservation. */
static void test_no_memory(void)
{
	struct rlimit before, none = {.rlim_cur = 1};
	json_t *json = NULL;
	json_error_t why;
	int r;

	getrlimit(RLIMIT_AS, &before);
	none.rlim_max = before.rlim_max;
	if (setrlimit(RLIMIT_AS, &none) < 0) {
		tap_skip("no limit of memory can be set here");
		return;
	}
	r = json_memory_parse(&json, "{}", 2, 0, &why);
	setrlimit(RLIMIT_AS, &before);
	ok(r == -ENOMEM && !json && reserved() == 0, "without memory nothing is parsed (%d)", r);
}

int main(void)
{
	json_t *older = json_pack("{s:i}", "made", 1);

	test_bounds();
	test_lives(older);
	test_no_memory();
	return tap_done();
}
