/* SPDX-License-Identifier: MIT */
#include "simulate/trace-file.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/text.h"
#include "base/util.h"
#include "simulate/moetrc.h"
#include "simulate/trace-json.h"
#include "simulate/trace-routes.h"

#define ROOM_FIRST ((size_t)64 << 10)

static int read_moetrc(struct trace_file *ret, const struct trace_source *source, struct moe_error *err)
{
	struct sim_trace trace;
	struct moe_error why = {0};
	int r = moetrc_parse(&trace, source->data, source->size, source->together, &why);

	if (r < 0)
		return moe_error_set(err, r, "%s: %s", source->name, why.text);
	return trace_file_single(ret, "moetrc", source, &trace, err);
}

/* By how a file begins; the first that fits. */
static const struct {
	const char *begin;
	size_t n;
	int (*read)(struct trace_file *ret, const struct trace_source *source, struct moe_error *err);
} formats[] = {
	{"MOETRC1", 8, read_moetrc},
	{"MOETRACE", 8, routes_read},
};

int trace_file_parse(struct trace_file *ret, const struct trace_source *source, struct moe_error *err)
{
	size_t at = 0;

	for (size_t i = 0; i < ARRAY_LEN(formats); i++)
		if (source->size >= formats[i].n && memcmp(source->data, formats[i].begin, formats[i].n) == 0)
			return formats[i].read(ret, source, err);
	while (at < source->size && memchr(" \t\r\n", source->data[at], 4))
		at++;
	if (at < source->size && source->data[at] == '{')
		return trace_json_read(ret, source, err);
	return moe_error_set(err, -EINVAL,
			     "%s: a trace begins with MOETRC1, MOETRACE or, in JSON, with {; this file does with none",
			     source->name);
}

static int read_all(int fd, const char *path, uint8_t **ret, size_t *ret_size, struct moe_error *err)
{
	uint8_t *data = NULL, *grown;
	size_t size = 0, room = 0;
	ssize_t n = 1;

	while (n > 0) {
		if (size == room) {
			room = room ? 2 * room : ROOM_FIRST;
			grown = room <= TRACE_FILE_BYTES_MAX ? realloc(data, room) : NULL;
			if (!grown) {
				free(data);
				return moe_error_set(err, room > TRACE_FILE_BYTES_MAX ? -E2BIG : -ENOMEM,
						     "%s: %zu bytes and more are too many: %s", path, size,
						     "cut the trace into parts");
			}
			data = grown;
		}
		do
			n = read(fd, data + size, room - size);
		while (n < 0 && errno == EINTR);
		size += n > 0 ? (size_t)n : 0;
	}
	if (n < 0) {
		n = -errno;
		free(data);
		return moe_error_sys(err, (int)n, "%s: cannot be read", path);
	}
	*ret = data;
	*ret_size = size;
	return 0;
}

int trace_file_read(struct trace_file *ret, const char *path, bool together, struct moe_error *err)
{
	const bool input = strcmp(path, "-") == 0;
	const int fd = input ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
	struct trace_source source = {.name = input ? "standard input" : path, .together = together};
	uint8_t *data = NULL;
	int r;

	if (fd < 0)
		return moe_error_sys(err, -errno, "%s: cannot be opened", path);
	r = read_all(fd, source.name, &data, &source.size, err);
	if (!input)
		close(fd);
	source.data = data;
	if (r == 0)
		r = trace_file_parse(ret, &source, err);
	free(data);
	return r;
}

/* The file's last name; '?' stands for what a document cannot say or a terminal would obey. */
static char *id_of(const char *name)
{
	const char *slash = strrchr(name, '/');
	char *ret = strdup(slash && slash[1] ? slash + 1 : name);

	return ret ? text_clean(ret) : NULL;
}

int trace_file_single(struct trace_file *ret, const char *format, const struct trace_source *source,
		      struct sim_trace *trace, struct moe_error *err)
{
	struct trace_case *one = calloc(1, sizeof *one);

	if (one)
		one->id = id_of(source->name);
	if (!one || !one->id) {
		free(one);
		sim_trace_fini(trace);
		return moe_error_set(err, -ENOMEM, "%s: no memory", source->name);
	}
	one->trace = *trace;
	*ret = (struct trace_file){.format = format, .cases = one, .n = 1};
	return 0;
}

void trace_file_free(struct trace_file *file)
{
	for (uint32_t i = 0; i < file->n; i++) {
		struct trace_case *one = &file->cases[i];

		for (uint32_t j = 0; j < one->n_runs; j++) {
			free(one->runs[j].policy);
			free(one->runs[j].params);
		}
		free(one->runs);
		free(one->id);
		sim_trace_fini(&one->trace);
	}
	free(file->cases);
	*file = (struct trace_file){0};
}
