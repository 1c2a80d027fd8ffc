/* SPDX-License-Identifier: MIT */
/* What is said on the bus: text that it takes, and errors by name: a program tells them apart, a person reads the line
 * that the daemon says anyway. */
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/text.h"
#include "base/util.h"
#include "daemon/bus-internal.h"

const char *bus_text(char *to, size_t size, const char *from)
{
	snprintf(to, size, "%s", from);
	return text_to_utf8(to);
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
