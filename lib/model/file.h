/* SPDX-License-Identifier: MIT */
/*
 * file - small files read whole, JSON with a helpful error, and outside text made fit for one line.
 *
 * A path may be a symbolic link (the Hugging Face cache is made of them); what it leads to must be a regular file, and
 * no larger than the caller's limit. A FIFO or a device never blocks us.
 */
#ifndef MODEL_FILE_H
#define MODEL_FILE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "moe-error.h"

/* Opens a regular file for reading, close-on-exec. Returns the fd or -errno. */
int file_open(const char *path, uint64_t *ret_bytes, struct moe_error *err);

/* Reads exactly `bytes` at `offset`; -EIO when the file ends before. */
int file_read_at(int fd, const char *path, void *buffer, uint64_t bytes, uint64_t offset, struct moe_error *err);

/* The whole file, malloc'ed and NUL-terminated. -E2BIG above `max`. */
int file_read(char **ret, size_t *ret_bytes, const char *path, uint64_t max, struct moe_error *err);

/* "folder/name", malloc'ed; NULL when memory is short. */
char *file_join(const char *folder, const char *name);

/* A JSON object; duplicate keys are refused. Errors name line and column. */
int file_parse_object(json_t **ret, const char *file, const char *text, size_t bytes, struct moe_error *err);

static inline void cleanup_json(json_t **json)
{
	json_decref(*json);
}

#define _cleanup_json_ __attribute__((cleanup(cleanup_json)))

/* Outside text for an error line: control bytes become '?', what is too long ends in "...". Returns ret. */
char *file_clean(char *ret, size_t size, const char *text);

/* A JSON value for an error line, e.g. `the string "x"`. Returns ret. */
char *file_describe(char *ret, size_t size, const json_t *value);

#endif
