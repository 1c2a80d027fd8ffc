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
#include <time.h>

#include "moe-error.h"

/* Which file a path led to, in what state; zeros: nobody knows. */
struct file_id {
	uint64_t device, inode;
	struct timespec modified;
};

struct file_id file_identify(const char *path);

/* Opens a regular file for reading, close-on-exec. Returns the fd or -errno. */
int file_open(const char *path, uint64_t *ret_bytes, struct moe_error *err);

/* Reads exactly `bytes` at `offset`; -EIO when the file ends before. */
int file_read_at(int fd, const char *path, void *buffer, uint64_t bytes, uint64_t offset, struct moe_error *err);

/* The whole file, malloc'ed and NUL-terminated. -E2BIG above `max`. */
int file_read(char **ret, size_t *ret_bytes, const char *path, uint64_t max, struct moe_error *err);

/* "folder/name", malloc'ed; NULL when memory is short. */
char *file_join(const char *folder, const char *name);

/* What a text may hold at most. A value of JSON takes up to 260 bytes of memory and may have three of the file: one of
 * 64 MiB took 5.8 GB, and whoever made it is a stranger. 65,536 tensors of a shard, each an object with two lists and
 * up to ten numbers, are 917,504 values. */
#define FILE_VALUES_MAX (1u << 20)
#define FILE_CONTAINERS_MAX (1u << 18)

/* How many values a text of JSON has at most (an empty object or list counts twice), and how many objects and lists. */
void file_count_values(const char *text, size_t bytes, uint64_t *ret_values, uint64_t *ret_containers);

/* A JSON object; duplicate keys and more values than above are refused. Errors name line and column. */
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
