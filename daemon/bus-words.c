/* SPDX-License-Identifier: MIT */
/* What is said on the bus: text that it takes, and errors by name: a program tells them apart, a person reads the line
 * that the daemon says anyway. */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/util.h"
#include "daemon/bus-internal.h"

static bool is_utf8(const char *text)
{
	for (const uint8_t *p = (const uint8_t *)text; *p; p++) {
		const int more = *p < 0x80                 ? 0
				 : *p >= 0xc2 && *p < 0xe0 ? 1
				 : *p >= 0xe0 && *p < 0xf0 ? 2
				 : *p >= 0xf0 && *p < 0xf5 ? 3
							   : -1;
		/* Overlong, surrogates, above U+10FFFF. */
		const uint8_t least = *p == 0xe0   ? 0xa0
				      : *p == 0xf0 ? 0x90
						   : 0x80,
			      most = *p == 0xed   ? 0x9f
				     : *p == 0xf4 ? 0x8f
						  : 0xbf;

		if (more < 0 || (more > 0 && (p[1] < least || p[1] > most)))
			return false;
		for (int i = 1; i <= more; i++)
			if ((p[i] & 0xc0) != 0x80)
				return false;
		p += more;
	}
	return true;
}

const char *bus_text(char *to, size_t size, const char *from)
{
	snprintf(to, size, "%s", from);
	if (!is_utf8(to))
		for (char *p = to; *p; p++)
			if ((unsigned char)*p >= 0x80)
				*p = '?';
	return to;
}

#define NAMED(word) BUS_NAME ".Error." word

static const struct {
	int code;
	const char *name;
} names[] = {
	{-EBUSY, NAMED("Busy")},           {-ENOENT, NAMED("NoSuchModel")},  {-ESRCH, NAMED("NoSuchObject")},
	{-EEXIST, NAMED("ModelExists")},   {-EPERM, NAMED("NotAuthorized")}, {-EACCES, NAMED("NoAccess")},
	{-ENOMEM, NAMED("NoMemory")},      {-ENOSPC, NAMED("NoMemory")},     {-ECANCELED, NAMED("Canceled")},
	{-EDQUOT, NAMED("LimitExceeded")}, {-EIO, NAMED("InputOutput")},     {-EOPNOTSUPP, NAMED("NotTiered")},
};

const char *bus_error_name(int code, bool load)
{
	if (load && code == -ENOENT)
		return NAMED("NoSuchFile");
	if (load && code == -EOPNOTSUPP)
		return NAMED("BadModel"); /* of a kind that is not served */
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (names[i].code == code)
			return names[i].name;
	return load ? NAMED("BadModel") : NAMED("BadArgument");
}

int bus_error(sd_bus_error *ret, int code, const struct moe_error *err)
{
	char text[MOE_ERROR_TEXT_MAX];

	code = sd_bus_error_set(ret, bus_error_name(code, false), bus_text(text, sizeof text, err->text));
	if (!ret->message) {
		sd_bus_error_free(ret);
		*ret = SD_BUS_ERROR_MAKE_CONST(SD_BUS_ERROR_NO_MEMORY, "no memory for the words of an error");
	}
	return code;
}
