/* SPDX-License-Identifier: MIT */
/* The names of errors: a program tells them apart, a person reads the line that the daemon says anyway. */
#include <errno.h>
#include <stddef.h>

#include "base/util.h"
#include "daemon/bus-internal.h"

#define NAMED(word) BUS_NAME ".Error." word

static const struct {
	int code;
	const char *name;
} names[] = {
	{-EBUSY, NAMED("Busy")},           {-ENOENT, NAMED("NoSuchModel")},  {-ESRCH, NAMED("NoSuchObject")},
	{-EEXIST, NAMED("ModelExists")},   {-EPERM, NAMED("NotAuthorized")}, {-EACCES, NAMED("NoAccess")},
	{-ENOMEM, NAMED("NoMemory")},      {-ENOSPC, NAMED("NoMemory")},     {-ECANCELED, NAMED("Canceled")},
	{-EDQUOT, NAMED("LimitExceeded")}, {-EIO, NAMED("InputOutput")},
};

const char *bus_error_name(int code, bool load)
{
	if (load && code == -ENOENT)
		return NAMED("NoSuchFile");
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		if (names[i].code == code)
			return names[i].name;
	return load ? NAMED("BadModel") : NAMED("BadArgument");
}

int bus_error(sd_bus_error *ret, int code, const struct moe_error *err)
{
	char text[MOE_ERROR_TEXT_MAX];

	return sd_bus_error_set(ret, bus_error_name(code, false), bus_text(text, sizeof text, err->text));
}
