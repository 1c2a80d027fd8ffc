/* SPDX-License-Identifier: MIT */
#include "model/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "model/json-memory.h"

struct file_id file_identify(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return (struct file_id){0};
	return (struct file_id){.device = st.st_dev, .inode = st.st_ino, .modified = st.st_mtim};
}

int file_open(const char *path, uint64_t *ret_bytes, struct moe_error *err)
{
	_cleanup_close_ int fd = -1;
	struct stat st;

	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a FIFO must not hold us up */
	if (fd < 0)
		return moe_error_sys(err, -errno, "%s", path);
	if (fstat(fd, &st) < 0)
		return moe_error_sys(err, -errno, "%s", path);
	if (!S_ISREG(st.st_mode))
		return moe_error_set(err, -EINVAL, "%s: not a regular file", path);
	*ret_bytes = (uint64_t)st.st_size;
	return steal_fd(&fd);
}

int file_read_at(int fd, const char *path, void *buffer, uint64_t bytes, uint64_t offset, struct moe_error *err)
{
	uint64_t done = 0;

	while (done < bytes) {
		ssize_t n = pread(fd, (char *)buffer + done, bytes - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return moe_error_sys(err, -errno, "%s: reading at offset %llu", path,
					     (unsigned long long)(offset + done));
		if (n == 0)
			return moe_error_set(err, -EIO, "%s: the file became shorter while it was read", path);
		done += (uint64_t)n;
	}
	return 0;
}

int file_read(char **ret, size_t *ret_bytes, const char *path, uint64_t max, struct moe_error *err)
{
	_cleanup_close_ int fd = -1;
	_cleanup_free_ char *text = NULL;
	uint64_t bytes;
	int r;

	fd = file_open(path, &bytes, err);
	if (fd < 0)
		return fd;
	if (bytes > max)
		return moe_error_set(err, -E2BIG, "%s: found %llu bytes; expected at most %llu", path,
				     (unsigned long long)bytes, (unsigned long long)max);
	text = malloc(bytes + 1);
	if (!text)
		return moe_error_sys(err, -ENOMEM, "%s", path);
	r = file_read_at(fd, path, text, bytes, 0, err);
	if (r < 0)
		return r;
	text[bytes] = '\0';
	*ret = steal_ptr(text);
	*ret_bytes = bytes;
	return 0;
}

char *file_join(const char *folder, const char *name)
{
	char *path;

	return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

void file_count_values(const char *text, size_t bytes, uint64_t *ret_values, uint64_t *ret_containers)
{
	uint64_t commas = 0, containers = 0;
	bool string = false;

	for (size_t i = 0; i < bytes; i++) {
		if (text[i] == '"')
			string = !string;
		else if (string)
			i += text[i] == '\\';
		else if (text[i] == ',')
			commas++;
		else if (text[i] == '{' || text[i] == '[')
			containers++;
	}
	*ret_values = 1 + commas + containers; /* it is the first of all, or of a container, or behind a comma */
	*ret_containers = containers;
}

/* Before anything is parsed. */
static int check_values(const char *file, const char *text, size_t bytes, struct moe_error *err)
{
	uint64_t values, containers;

	file_count_values(text, bytes, &values, &containers);
	if (containers > FILE_CONTAINERS_MAX)
		return moe_error_set(err, -E2BIG,
				     "%s: found %llu objects and lists; expected at most %u (is the file damaged?)",
				     file, (unsigned long long)containers, FILE_CONTAINERS_MAX);
	if (values > FILE_VALUES_MAX)
		return moe_error_set(err, -E2BIG, "%s: found %llu values; expected at most %u (is the file damaged?)",
				     file, (unsigned long long)values, FILE_VALUES_MAX);
	return 0;
}

int file_parse_object(json_t **ret, const char *file, const char *text, size_t bytes, struct moe_error *err)
{
	_cleanup_json_ json_t *json = NULL;
	json_error_t why;
	char words[JSON_ERROR_TEXT_LENGTH], found[64];
	int r = check_values(file, text, bytes, err);

	if (r < 0)
		return r;
	r = json_memory_parse(&json, text, bytes, JSON_REJECT_DUPLICATES, &why);
	if (r == -ENOMEM)
		return moe_error_sys(err, r, "%s: memory for its values", file);
	if (r < 0)
		return moe_error_set(err, r, "%s: line %d, column %d: not valid JSON: %s", file, why.line, why.column,
				     file_clean(words, sizeof words, why.text));
	if (!json_is_object(json))
		return moe_error_set(err, -EINVAL, "%s: found %s; expected a JSON object", file,
				     file_describe(found, sizeof found, json));
	*ret = steal_ptr(json);
	return 0;
}

char *file_clean(char *ret, size_t size, const char *text)
{
	size_t i;

	for (i = 0; text[i] && i + 1 < size; i++)
		ret[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];
	ret[i] = '\0';
	if (text[i] && size > 4)
		memcpy(ret + size - 4, "...", 4);
	return ret;
}

char *file_describe(char *ret, size_t size, const json_t *value)
{
	char words[48];

	switch (json_typeof(value)) {
	case JSON_OBJECT:
		snprintf(ret, size, "an object");
		break;
	case JSON_ARRAY:
		snprintf(ret, size, "an array of %zu", json_array_size(value));
		break;
	case JSON_STRING:
		snprintf(ret, size, "the string \"%s\"", file_clean(words, sizeof words, json_string_value(value)));
		break;
	case JSON_INTEGER:
		snprintf(ret, size, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
		break;
	case JSON_REAL:
		snprintf(ret, size, "the number %#.4g", json_real_value(value));
		break;
	case JSON_TRUE:
	case JSON_FALSE:
		snprintf(ret, size, "%s", json_is_true(value) ? "true" : "false");
		break;
	case JSON_NULL:
		snprintf(ret, size, "null");
		break;
	}
	return ret;
}
