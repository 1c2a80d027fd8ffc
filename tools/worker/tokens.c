/* SPDX-License-Identifier: MIT */
#include "tools/worker/tokens.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/util.h"

/* A file whole; *ret is malloc'ed. */
static int read_file(const char *path, char **ret, size_t *ret_bytes, struct moe_error *err)
{
	_cleanup_fclose_ FILE *file = fopen(path, "re");
	_cleanup_free_ char *text = NULL;
	size_t bytes = 0, room = 0;

	if (!file)
		return moe_error_sys(err, -errno, "cannot open %s", path);
	for (;;) {
		if (bytes == room) {
			char *grown = realloc(text, room + (1u << 20));

			if (!grown)
				return moe_error_set(err, -ENOMEM, "no memory for %s", path);
			text = grown;
			room += 1u << 20;
		}
		bytes += fread(text + bytes, 1, room - bytes, file);
		if (ferror(file))
			return moe_error_sys(err, -errno, "cannot read %s", path);
		if (feof(file))
			break;
	}
	*ret = steal_ptr(text);
	*ret_bytes = bytes;
	return 0;
}

static int check_id(const char *source, size_t at, uint64_t id, uint32_t vocab, struct moe_error *err)
{
	if (id < vocab)
		return 0;
	return moe_error_set(err, -EINVAL, "%s: token %zu: found %llu, expected less than vocab_size (%u)", source, at,
			     (unsigned long long)id, vocab);
}

static int from_bytes(struct tokens *t, const char *source, const char *text, size_t bytes, uint32_t vocab,
		      struct moe_error *err)
{
	int r;

	for (size_t i = 0; i < bytes; i++) {
		r = check_id(source, i, (unsigned char)text[i], vocab, err);
		if (r < 0)
			return r;
		t->ids[t->n++] = (unsigned char)text[i];
	}
	return 0;
}

static int from_numbers(struct tokens *t, const char *source, const char *text, size_t bytes, uint32_t vocab,
			struct moe_error *err)
{
	size_t i = 0;
	int r;

	while (i < bytes) {
		uint64_t id = 0;

		if (memchr(" \t\r\n,[]", text[i], 8)) {
			i++;
			continue;
		}
		if (text[i] < '0' || text[i] > '9')
			return moe_error_set(
				err, -EINVAL,
				"%s: byte %zu: found 0x%02x; expected numbers, blanks, commas and brackets", source, i,
				(unsigned char)text[i]);
		for (; i < bytes && text[i] >= '0' && text[i] <= '9'; i++)
			id = MIN(id * 10 + (uint64_t)(text[i] - '0'), (uint64_t)UINT32_MAX);
		r = check_id(source, t->n, id, vocab, err);
		if (r < 0)
			return r;
		t->ids[t->n++] = (int32_t)id;
	}
	return 0;
}

int tokens_read(struct tokens *ret, const struct options *o, uint32_t vocab, struct moe_error *err)
{
	_cleanup_free_ char *file = NULL;
	_cleanup_free_ int32_t *ids = NULL;
	const char *source = o->ids ? o->ids : o->command == COMMAND_SCORE ? o->text : NULL, *text = o->prompt;
	struct tokens t = {0};
	size_t bytes = 0;
	int r;

	if (source) {
		r = read_file(source, &file, &bytes, err);
		if (r < 0)
			return r;
		text = file;
	} else {
		source = "--prompt";
		bytes = strlen(text);
	}
	ids = t.ids = malloc(MAX(bytes, 1u) * sizeof(*ids));
	if (!ids)
		return moe_error_set(err, -ENOMEM, "no memory for %zu tokens", bytes);
	r = (o->ids ? from_numbers : from_bytes)(&t, source, text, bytes, vocab, err);
	if (r < 0)
		return r;
	if (o->limit && t.n > o->limit)
		t.n = o->limit;
	if (t.n == 0)
		return moe_error_set(err, -EINVAL, "%s: no token in it", source);
	ids = NULL;
	*ret = t;
	return 0;
}

void tokens_free(struct tokens *t)
{
	free(t->ids);
	*t = (struct tokens){0};
}

size_t token_text(char *text, int32_t id)
{
	if (id < 256) {
		text[0] = (char)id;
		return 1;
	}
	return (size_t)snprintf(text, 16, "<%d>", id);
}
