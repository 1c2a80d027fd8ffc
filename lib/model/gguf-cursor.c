/* SPDX-License-Identifier: MIT */
#include "model/gguf-cursor.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"

int cursor_take(struct cursor *c, uint64_t n, const uint8_t **ret)
{
	if (!checked_range(c->at, n, c->file_bytes))
		return moe_error_set(c->err, -EINVAL,
				     "%s: header: found %llu bytes at byte %llu of a file of %llu; expected them to "
				     "lie in the file (is it truncated?)",
				     c->file, (unsigned long long)n, (unsigned long long)c->at,
				     (unsigned long long)c->file_bytes);
	if (!checked_range(c->at, n, c->bytes))
		return -ENODATA;
	*ret = c->base + c->at;
	c->at += n;
	return 0;
}

int cursor_u32(struct cursor *c, uint32_t *ret)
{
	const uint8_t *p = NULL;
	int r = cursor_take(c, sizeof *ret, &p);

	if (r < 0)
		return r;
	memcpy(ret, p, sizeof *ret);
	*ret = le32toh(*ret);
	return 0;
}

int cursor_u64(struct cursor *c, uint64_t *ret)
{
	const uint8_t *p = NULL;
	int r = cursor_take(c, sizeof *ret, &p);

	if (r < 0)
		return r;
	memcpy(ret, p, sizeof *ret);
	*ret = le64toh(*ret);
	return 0;
}

int cursor_string(struct cursor *c, const uint8_t **ret, uint64_t *ret_bytes)
{
	int r = cursor_u64(c, ret_bytes);

	return r < 0 ? r : cursor_take(c, *ret_bytes, ret);
}

int cursor_name(struct cursor *c, const char *what, char **ret)
{
	const uint8_t *p = NULL;
	uint64_t bytes = 0;
	char *name;
	int r;

	r = cursor_string(c, &p, &bytes);
	if (r < 0)
		return r;
	if (bytes == 0 || bytes > GGUF_KEPT_MAX)
		return moe_error_set(c->err, bytes ? -E2BIG : -EINVAL,
				     "%s: header: found a %s of %llu bytes; expected 1 to %u", c->file, what,
				     (unsigned long long)bytes, GGUF_KEPT_MAX);
	for (uint64_t i = 0; i < bytes; i++)
		if (p[i] < 0x20 || p[i] == 0x7f)
			return moe_error_set(
				c->err, -EINVAL,
				"%s: header: a %s contains byte 0x%02x, a control character; expected text", c->file,
				what, p[i]);
	name = strndup((const char *)p, bytes);
	if (!name)
		return moe_error_sys(c->err, -ENOMEM, "%s", c->file);
	*ret = name;
	return 0;
}

int cursor_count(struct cursor *c, const char *what, uint64_t count, uint64_t most, uint64_t least)
{
	if (count > most)
		return moe_error_set(c->err, -E2BIG, "%s: header: found %llu %s; expected at most %llu", c->file,
				     (unsigned long long)count, what, (unsigned long long)most);
	if (count > (c->file_bytes - c->at) / least)
		return moe_error_set(c->err, -EINVAL,
				     "%s: header: found %llu %s in a file of %llu bytes; expected room for them (is it "
				     "truncated?)",
				     c->file, (unsigned long long)count, what, (unsigned long long)c->file_bytes);
	return 0;
}
